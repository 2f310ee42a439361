//! Prefix pages, lists and scans, under both authorities.

use std::collections::BTreeSet;

use metashift::ErrorKind;
use metashift::layout::transaction::Side;
use metashift::layout::{MetaStore, Mode};

use super::support::Lake;

/// Families that begin alike, and keys with every separator inside.
const KEYS: [&str; 14] = [
    "a/1", "a/2", "a/b/3", "a/#", "a/\0", "ab/1", "ab/a/1", "a#/1", "a#0f/1", "a#0f/a/1", "a", "/a/1", "A/1",
    "a\0/1",
];

async fn filled() -> Lake {
    let lake = Lake::empty().await;
    for key in KEYS {
        for side in [Side::V1, Side::V2] {
            lake.put(side, key, key.as_bytes()).await;
        }
    }
    for n in 0..40 {
        for side in [Side::V1, Side::V2] {
            lake.put(side, &format!("many/{n:02}"), b"v").await;
        }
    }
    // A record of the migrator is never part of a prefix.
    lake.put(Side::V1, "__lake_internal/dynamo-prefix-v2/control", b"{\"version\":1}").await;
    lake
}

/// Every key of a prefix by pages of `limit`, and how many pages that took.
async fn by_pages(store: &MetaStore, prefix: &str, limit: u32) -> (Vec<String>, usize) {
    let (mut keys, mut pages, mut cursor) = (Vec::new(), 0, None);
    loop {
        let page = store.prefix_page(prefix, limit, cursor.as_deref()).await.unwrap();
        assert!(page.entries.len() <= limit as usize);
        keys.extend(page.entries.into_iter().map(|(key, _)| key));
        pages += 1;
        cursor = page.cursor;
        if cursor.is_none() {
            return (keys, pages);
        }
    }
}

#[tokio::test]
async fn a_prefix_gives_exactly_its_own_keys_by_list_scan_and_pages_under_both_authorities() {
    let lake = filled().await;
    for published in [false, true] {
        if published {
            lake.publish_audited().await;
        }
        let modes = if published { &[Mode::Dual, Mode::V2Only][..] } else { &[Mode::Dual, Mode::V1Only] };
        for mode in modes {
            let store = lake.store(*mode).await;
            for prefix in
                ["a/", "ab/", "a#/", "a#0f/", "a#0f/a", "a/b", "A/", "a\0/", "/a", "many/", "many/1", "none/"]
            {
                let all = KEYS.iter().map(|key| (*key).to_owned());
                let all = all.chain((0..40).map(|n| format!("many/{n:02}")));
                let expected: BTreeSet<_> = all.filter(|key| key.starts_with(prefix)).collect();
                let listed = store.list(prefix).await.unwrap();
                assert_eq!(listed, expected.iter().cloned().collect::<Vec<_>>(), "{mode:?} {prefix:?}");
                let entries = store.scan_prefix(prefix).await.unwrap();
                assert!(entries.iter().all(|(key, value)| value == b"v" || value == key.as_bytes()));
                for limit in [1, 3, 1000] {
                    let (keys, _) = by_pages(&store, prefix, limit).await;
                    assert_eq!(keys.len(), expected.len(), "no key twice: {prefix:?} by {limit}");
                    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected, "{prefix:?} by {limit}");
                }
            }
            let scanned = store.usage().requests.contains_key("Scan v1");
            assert_eq!(scanned, !published, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn under_v2_a_page_is_one_query_and_a_whole_prefix_one_query_a_shard() {
    let lake = filled().await;
    lake.publish_audited().await;
    let store = lake.store(Mode::V2Only).await;
    let queries = || store.usage().requests.get("Query").copied().unwrap_or_default();
    store.prefix_page("many/", 5, None).await.unwrap();
    assert_eq!(queries(), 1);
    store.list("many/").await.unwrap();
    assert_eq!(queries(), 1 + 8);
    let (_, pages) = by_pages(&store, "many/", 5).await;
    assert_eq!(queries(), 1 + 8 + pages as u64);
}

#[tokio::test]
async fn a_cursor_of_a_v1_page_met_under_v2_starts_the_prefix_again() {
    let lake = filled().await;
    let store = lake.store(Mode::Dual).await;
    let page = store.prefix_page("many/", 7, None).await.unwrap();
    let cursor = page.cursor.expect("more items than one page");
    lake.publish_audited().await;
    let fresh = lake.store(Mode::Dual).await;
    let error = fresh.prefix_page("many/", 7, Some(&cursor)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthorityChanged);
    let (keys, _) = by_pages(&fresh, "many/", 7).await;
    assert_eq!(keys.len(), 40);
    // A node that has not seen the marker yet takes a cursor of one that has.
    let ahead = fresh.prefix_page("many/", 2, None).await.unwrap().cursor.unwrap();
    assert!(store.prefix_page("many/", 2, Some(&ahead)).await.is_ok());
}

#[tokio::test]
async fn a_cursor_that_no_page_gave_out_is_refused_and_nothing_is_read() {
    let lake = filled().await;
    lake.publish_audited().await;
    let store = lake.store(Mode::Dual).await;
    let good = store.prefix_page("many/", 1, None).await.unwrap().cursor.unwrap();
    let sent = store.usage().all_requests();
    for (prefix, cursor) in [
        ("many/", String::new()),
        ("many/", good.replace("\"version\":1", "\"version\":2")),
        ("many/1", good.clone()),
        ("a/", good.clone()),
        ("many/", good.replace("many/", "other/")),
    ] {
        let error = store.prefix_page(prefix, 1, Some(&cursor)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCursor, "{prefix:?} {cursor}");
    }
    for prefix in ["", "a", "__lake_internal/dynamo-prefix-v2", "__lake_internal/dynamo-prefix-v2/"] {
        for error in [
            store.prefix_page(prefix, 1, None).await.unwrap_err(),
            store.list(prefix).await.unwrap_err(),
            store.scan_prefix(prefix).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidPrefix, "{prefix:?}");
        }
    }
    let none = store.prefix_page("a/", 0, None).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidInput);
    assert_eq!(store.usage().all_requests(), sent);
}
