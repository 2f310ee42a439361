//! Keys and values at the limits of both tables, and values of every kind of bytes.

use metashift::layout::key::MOST_ITEM_BYTES;
use metashift::layout::transaction::Side;
use metashift::layout::{Layout, MetaStore, Mode, Mutation};
use metashift::{Error, ErrorKind};

use super::support::Lake;

/// A key of exactly so many bytes, most of its letters two bytes long.
fn key_of(bytes: usize) -> String {
    let mut key = "tbl/".to_owned();
    key.push_str(&"é".repeat((bytes - 4) / 2));
    key.push_str(&"k".repeat(bytes - key.len()));
    key
}

fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind()
}

#[tokio::test]
async fn a_dual_node_refuses_keys_that_v2_cannot_hold_before_anything_is_sent() {
    let lake = Lake::empty().await;
    for (published, modes) in [(false, &[Mode::Dual][..]), (true, &[Mode::Dual, Mode::V2Only][..])] {
        if published {
            lake.publish_audited().await;
        }
        for mode in modes {
            let store = lake.store(*mode).await;
            let longest = key_of(1024);
            assert_eq!(store.cas(&longest, None, Some(b"v")).await.unwrap(), Mutation::Applied);
            assert_eq!(store.get(&longest).await.unwrap().as_deref(), Some(&b"v"[..]));
            store.delete(&longest, b"v").await.unwrap();
            let sent = store.usage().all_requests();
            for (bytes, expected) in
                [(1025, ErrorKind::KeyTooLong), (2048, ErrorKind::KeyTooLong), (2049, ErrorKind::InvalidKey)]
            {
                let key = key_of(bytes);
                assert_eq!(key.len(), bytes);
                assert_eq!(kind(store.cas(&key, None, Some(b"v")).await), expected, "{bytes}");
                assert_eq!(kind(store.cas(&key, Some(b"v"), Some(b"w")).await), expected, "{bytes}");
                assert_eq!(kind(store.delete(&key, b"v").await), expected, "{bytes}");
                let guarded = store.guarded_mutate((&key, b"held"), "tbl/a", None, Some(b"v")).await;
                assert_eq!(kind(guarded), expected, "a guard of {bytes} bytes");
            }
            for key in ["", "__lake_internal/dynamo-prefix-v2x", "__lake_internal/dynamo-prefix-v2/plan"] {
                assert_eq!(kind(store.cas(key, None, Some(b"v")).await), ErrorKind::InvalidKey);
                assert_eq!(kind(store.get(key).await), ErrorKind::InvalidKey);
            }
            assert_eq!(store.usage().all_requests(), sent, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn a_v1_only_node_still_writes_everything_that_v1_holds() {
    let lake = Lake::empty().await;
    let store = lake.store(Mode::V1Only).await;
    for bytes in [1024, 1025, 2048] {
        let key = key_of(bytes);
        assert_eq!(store.cas(&key, None, Some(b"v")).await.unwrap(), Mutation::Applied, "{bytes}");
        assert_eq!(store.get(&key).await.unwrap().as_deref(), Some(&b"v"[..]));
    }
    assert_eq!(kind(store.cas(&key_of(2049), None, Some(b"v")).await), ErrorKind::InvalidKey);
    let most = MOST_ITEM_BYTES - "pkval".len() - "tbl/big".len();
    assert_eq!(store.cas("tbl/big", None, Some(&vec![7; most])).await.unwrap(), Mutation::Applied);
    let over = store.cas("tbl/big2", None, Some(&vec![7; most])).await;
    assert_eq!(kind(over), ErrorKind::ItemTooLarge);
}

#[tokio::test]
async fn an_item_is_written_to_its_last_byte_and_not_one_byte_further() {
    let lake = Lake::empty().await;
    let store = lake.store(Mode::Dual).await;
    for key in ["tbl/big", "lease", "append-operation/v1/é"] {
        let bucket = Layout::default().bucket(key);
        let most = MOST_ITEM_BYTES - "bucketpkval".len() - bucket.len() - key.len();
        let sent = store.usage().all_requests();
        assert_eq!(kind(store.cas(key, None, Some(&vec![1; most + 1])).await), ErrorKind::ItemTooLarge);
        assert_eq!(store.usage().all_requests(), sent);
        assert_eq!(store.cas(key, None, Some(&vec![1; most])).await.unwrap(), Mutation::Applied, "{key}");
        for side in [Side::V1, Side::V2] {
            assert_eq!(lake.value(side, key).await.map(|value| value.len()), Some(most));
        }
        assert_eq!(store.delete(key, &vec![1; most]).await.unwrap(), Mutation::Applied);
    }
}

#[tokio::test]
async fn a_key_that_v2_cannot_hold_reads_as_too_long_under_v2_and_is_never_sent() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, &key_of(1025), b"v").await;
    let v1 = lake.store(Mode::Dual).await;
    assert_eq!(v1.get(&key_of(1025)).await.unwrap().as_deref(), Some(&b"v"[..]));
    lake.publish_audited().await;
    let v2 = lake.store(Mode::Dual).await;
    let sent = v2.usage().all_requests();
    assert_eq!(kind(v2.get(&key_of(1025)).await), ErrorKind::KeyTooLong);
    assert_eq!(v2.usage().all_requests(), sent);
}

#[tokio::test]
async fn values_and_keys_are_bytes_and_survive_every_path() {
    let lake = Lake::empty().await;
    let values: [&[u8]; 6] = [
        b"",
        b"\0",
        &(0..=255).collect::<Vec<u8>>(),
        b"bG9vayBsaWtlIGJhc2U2NA==",
        b"{\"S\":\"x\"}",
        &[255; 3],
    ];
    // Composed and decomposed letters, separators and NUL inside a key: each its own key.
    let keys = ["t/\u{e9}", "t/e\u{301}", "t/a#0f", "t//", "t/a\0b", "t/\u{1f5dd}"];
    for published in [false, true] {
        if published {
            lake.publish_audited().await;
        }
        let store = lake.store(Mode::Dual).await;
        let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(store.cas(key, None, Some(value)).await.unwrap(), Mutation::Applied, "{key:?}");
            assert_eq!(store.get(key).await.unwrap().as_deref(), Some(value), "{key:?}");
            expected.push(((*key).to_owned(), value.to_vec()));
        }
        expected.sort();
        assert_eq!(store.scan_prefix("t/").await.unwrap(), expected);
        assert_eq!(lake.assert_equal().await, keys.len());
        assert_empty_is_a_value(&store).await;
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(store.delete(key, value).await.unwrap(), Mutation::Applied, "{key:?}");
            assert_eq!(store.get(key).await.unwrap(), None);
        }
    }
}

/// `t/é` holds an empty value: it exists, and it is not any other value.
async fn assert_empty_is_a_value(store: &MetaStore) {
    let key = "t/\u{e9}";
    let present = Mutation::Conflict { current: Some(Vec::new()) };
    assert_eq!(store.cas(key, None, Some(b"n")).await.unwrap(), present);
    assert_eq!(store.delete(key, b"x").await.unwrap(), present);
    assert_eq!(store.cas(key, Some(b""), Some(b"n")).await.unwrap(), Mutation::Applied);
    assert_eq!(store.cas(key, Some(b"n"), Some(b"")).await.unwrap(), Mutation::Applied);
}
