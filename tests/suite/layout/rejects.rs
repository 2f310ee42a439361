//! Items that cannot move: found by a survey, recorded by backfill while the rest moves, cleared once they are mended.

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use metashift::ErrorKind;
use metashift::layout::cutover::{Evidence, install_barrier};
use metashift::layout::key::MOST_ITEM_BYTES;
use metashift::layout::records::BARRIER_KEY;
use metashift::layout::records::reject::Reason;
use metashift::layout::records::segment::{Mismatch, MismatchKind, Walk};
use metashift::layout::status;
use metashift::layout::transaction::Side;
use metashift::layout::{Layout, Mode};

use super::support::{Lake, TABLE, start};

/// Puts an item into v1 with these attributes beside its key.
async fn put_odd(lake: &Lake, key: &str, attributes: &[(&str, AttributeValue)]) {
    let mut put = lake.client.put_item().table_name(TABLE).item("pk", AttributeValue::S(key.to_owned()));
    for (name, value) in attributes {
        put = put.item(*name, value.clone());
    }
    put.send().await.unwrap();
}

fn binary(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

async fn recorded(lake: &Lake) -> Vec<(String, Reason)> {
    let plan = lake.plan().await.unwrap();
    let mut rejects: Vec<_> = status::rejects(&lake.tables, &plan)
        .await
        .unwrap()
        .into_iter()
        .map(|reject| (reject.key, reject.reason))
        .collect();
    rejects.sort_by(|a, b| a.0.cmp(&b.0));
    rejects
}

#[tokio::test]
async fn of_a_thousand_items_the_one_that_cannot_move_stops_finalization_and_nothing_else() {
    let lake = Lake::with_items(999).await;
    put_odd(&lake, "tbl/odd", &[]).await;
    let run = lake.run(4);
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByRejects);
    assert_eq!(lake.v2().await.len(), 999);
    assert_eq!(recorded(&lake).await, [("tbl/odd".to_owned(), Reason::UnsupportedItem)]);
    let acknowledged = Evidence::Acknowledged(true);
    for _ in 0..2 {
        let refused = run.finalize(&start("e1"), &acknowledged).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BlockedByRejects);
        assert!(refused.next_step().is_some());
    }
    let refused = install_barrier(&lake.tables, &start("e1")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BlockedByRejects);
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);

    lake.put(Side::V1, "tbl/odd", b"mended").await;
    let total = run.backfill().await.unwrap();
    assert_eq!((total.progress.copied, total.progress.rejected), (1000, 0));
    assert_eq!(recorded(&lake).await, []);
    assert_eq!(run.finalize(&start("e1"), &acknowledged).await.unwrap().verified, 1000);
    assert_eq!(lake.assert_equal().await, 1000);
}

/// One item of each kind that v2 cannot hold, and what a survey calls it.
async fn put_each_kind(lake: &Lake) -> Vec<(String, Reason, MismatchKind)> {
    let mut kinds = Vec::new();
    for bytes in [1025, 2048] {
        let key = format!("tbl/{}{}", "é".repeat((bytes - 4) / 2), "k".repeat(bytes % 2));
        assert_eq!(key.len(), bytes);
        lake.put(Side::V1, &key, b"v").await;
        kinds.push((key, Reason::KeyTooLong, MismatchKind::KeyTooLong));
    }
    let most = MOST_ITEM_BYTES - "pkval".len() - "tbl/large".len();
    lake.put(Side::V1, "tbl/large", &vec![1; most]).await;
    kinds.push(("tbl/large".to_owned(), Reason::ItemTooLarge, MismatchKind::ItemTooLarge));
    put_odd(lake, "tbl/empty", &[]).await;
    put_odd(lake, "tbl/text", &[("val", AttributeValue::S("v".to_owned()))]).await;
    put_odd(lake, "tbl/more", &[("val", binary(b"v")), ("ttl", AttributeValue::N("1".to_owned()))]).await;
    for key in ["tbl/empty", "tbl/text", "tbl/more"] {
        kinds.push((key.to_owned(), Reason::UnsupportedItem, MismatchKind::UnsupportedItem));
    }
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    kinds
}

#[tokio::test]
async fn each_kind_of_item_that_v2_cannot_hold_is_surveyed_recorded_mended_and_cleared() {
    let lake = Lake::with_items(200).await;
    let kinds = put_each_kind(&lake).await;
    // To the last byte of what v2 holds: these move.
    let fits =
        MOST_ITEM_BYTES - "bucketpkval".len() - Layout::default().bucket("tbl/fits").len() - "tbl/fits".len();
    lake.put(Side::V1, "tbl/fits", &vec![1; fits]).await;
    lake.put(Side::V1, &"k".repeat(1024), b"v").await;
    // Only a backfill can know of this one.
    lake.put(Side::V1, "tbl/twice", b"v1").await;
    lake.put(Side::V2, "tbl/twice", b"v2").await;

    let run = lake.run(3);
    let survey = "one".to_owned();
    let total = run.survey(&survey, 3).await.unwrap();
    assert_eq!((total.progress.scanned, total.progress.rejected), (209, 6));
    let segments = status::walk_segments(&lake.tables, 3, &Walk::Survey { run: survey }).await.unwrap();
    let mut found: Vec<_> = segments.into_iter().flat_map(|segment| segment.mismatches).collect();
    found.sort();
    let mut expected: Vec<_> =
        kinds.iter().map(|(key, _, kind)| Mismatch { key: key.clone(), kind: *kind }).collect();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(lake.v2().await.len(), 1, "a survey moves nothing");

    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByRejects);
    let mut expected: Vec<_> = kinds.iter().map(|(key, reason, _)| (key.clone(), *reason)).collect();
    expected.push(("tbl/twice".to_owned(), Reason::Diverged));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(recorded(&lake).await, expected);
    assert_eq!(lake.v2().await.len(), 203, "200 seeded, the two that fit, and the copy that differs");

    // Each is mended in another way: deleted, shrunk to the last byte, rewritten.
    for (key, reason, _) in &kinds {
        match reason {
            Reason::KeyTooLong => lake.remove(Side::V1, key).await,
            Reason::ItemTooLarge => lake.put(Side::V1, key, &vec![2; fits - 1]).await,
            _ => lake.put(Side::V1, key, b"mended").await,
        }
    }
    let blocked = run.backfill().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::BlockedByDivergence);
    assert_eq!(recorded(&lake).await, [("tbl/twice".to_owned(), Reason::Diverged)]);
    lake.remove(Side::V2, "tbl/twice").await;
    let total = run.backfill().await.unwrap();
    assert_eq!((total.progress.rejected, total.progress.diverged), (0, 0));
    assert_eq!(recorded(&lake).await, []);
    run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
    assert_eq!(lake.assert_equal().await, 207);
}

#[tokio::test]
async fn a_reject_that_fails_for_another_reason_by_now_is_recorded_with_that_one() {
    let lake = Lake::empty().await;
    put_odd(&lake, "tbl/odd", &[]).await;
    let run = lake.run(1);
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByRejects);
    lake.put(Side::V1, "tbl/odd", b"v1").await;
    lake.put(Side::V2, "tbl/odd", b"v2").await;
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByDivergence);
    assert_eq!(recorded(&lake).await, [("tbl/odd".to_owned(), Reason::Diverged)]);
    // Deleted by a v1-only node: only the new table has it, which is a divergence too.
    lake.remove(Side::V1, "tbl/odd").await;
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByDivergence);
    lake.remove(Side::V2, "tbl/odd").await;
    run.backfill().await.unwrap();
    assert_eq!(recorded(&lake).await, []);
}

#[tokio::test]
async fn hundreds_of_rejects_beside_live_items_are_recorded_once_each_and_cleared_step_by_step() {
    let lake = Lake::with_items(130).await;
    for n in 0..230 {
        put_odd(&lake, &format!("tbl/odd/{n:03}"), &[]).await;
    }
    let run = lake.run(1);
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByRejects);
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByRejects);
    assert_eq!(recorded(&lake).await.len(), 230);
    for n in 0..230 {
        lake.put(Side::V1, &format!("tbl/odd/{n:03}"), b"v").await;
    }
    let total = run.backfill().await.unwrap();
    assert_eq!((total.progress.copied, total.progress.rejected), (360, 0));
    assert_eq!(recorded(&lake).await, []);
    assert_eq!(lake.assert_equal().await, 360);
}

#[tokio::test]
async fn a_dual_writer_mends_a_reject_by_itself_and_the_next_run_sees_it() {
    let lake = Lake::empty().await;
    put_odd(&lake, "tbl/odd", &[("val", AttributeValue::S("v".to_owned()))]).await;
    let run = lake.run(2);
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByRejects);
    let store = lake.store(Mode::Dual).await;
    assert_eq!(store.get("tbl/odd").await.unwrap_err().kind(), ErrorKind::UnsupportedItem);
    lake.remove(Side::V1, "tbl/odd").await;
    store.cas("tbl/odd", None, Some(b"v")).await.unwrap();
    let total = run.backfill().await.unwrap();
    assert_eq!((total.progress.already_live, total.progress.rejected), (1, 0));
}

#[tokio::test]
async fn a_run_of_one_page_a_step_comes_to_an_end_with_rejects_too() {
    let lake = Lake::with_items(30).await;
    put_odd(&lake, "tbl/odd", &[]).await;
    let run = metashift::layout::run::Run { pages_per_step: 1, ..lake.run(2) };
    for _ in 0..2 {
        let ended = tokio::time::timeout(std::time::Duration::from_secs(20), run.backfill()).await;
        assert_eq!(ended.expect("it ends").unwrap_err().kind(), ErrorKind::BlockedByRejects);
    }
    lake.put(Side::V1, "tbl/odd", b"v").await;
    run.backfill().await.unwrap();
    assert_eq!(lake.assert_equal().await, 31);
}
