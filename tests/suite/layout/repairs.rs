//! Nodes that were rolled back to v1-only leave stale copies; repair makes v2 follow v1, with writers at work.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use metashift::layout::cutover::Evidence;
use metashift::layout::generation::{PlanWish, begin_repair, finish_repair, open_plan};
use metashift::layout::records::plan::State;
use metashift::layout::records::segment::{Mismatch, MismatchKind};
use metashift::layout::transaction::Side;
use metashift::layout::{Layout, Mode, Mutation};
use metashift::{ErrorKind, crash};
use metashift_faults::{Fault, Rule};
use metashift_sandbox::{Workload, seed};

use super::support::{Freeze, Lake, start, tables_through};

/// Keys of nodes that go back to v1-only: updated, deleted, created there, and untouched.
async fn roll_back_and_forth(lake: &Lake) {
    let dual = lake.store(Mode::Dual).await;
    for n in 0..40 {
        dual.cas(&format!("zz/rolled/{n:02}"), None, Some(b"dual")).await.unwrap();
    }
    let rolled_back = lake.store(Mode::V1Only).await;
    for n in 0..10 {
        rolled_back.cas(&format!("zz/rolled/{n:02}"), Some(b"dual"), Some(b"rolled back")).await.unwrap();
    }
    for n in 10..20 {
        rolled_back.delete(&format!("zz/rolled/{n:02}"), b"dual").await.unwrap();
    }
    for n in 40..50 {
        rolled_back.cas(&format!("zz/rolled/{n:02}"), None, Some(b"rolled back")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_rollback_stale_copies_fail_closed_and_a_repair_under_load_mends_them() {
    let lake = Lake::with_items(300).await;
    let run = lake.run(3);
    run.backfill().await.unwrap();
    roll_back_and_forth(&lake).await;

    // Back in dual mode: what differs is refused and nothing is written, what is only missing goes through.
    let dual = lake.store(Mode::Dual).await;
    let stale = dual.cas("zz/rolled/00", Some(b"rolled back"), Some(b"new")).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Divergence);
    let deleted = dual.cas("zz/rolled/10", None, Some(b"new")).await.unwrap_err();
    assert_eq!(deleted.kind(), ErrorKind::Divergence);
    assert_eq!(dual.get("zz/rolled/00").await.unwrap().as_deref(), Some(&b"rolled back"[..]));
    let created = dual.cas("zz/rolled/40", Some(b"rolled back"), Some(b"new")).await.unwrap();
    assert_eq!(created, Mutation::Applied);

    let mut stores = Vec::new();
    for _ in 0..2 {
        stores.push(lake.store(Mode::Dual).await);
    }
    let reader = lake.store(Mode::Dual).await;
    let workload = Workload::start(stores, reader, 300, Duration::from_millis(5), 3);
    let (summary, _) = run.compare().await.unwrap();
    let count = |kind: MismatchKind| summary.mismatches.iter().filter(|one| one.kind == kind).count();
    assert_eq!(summary.mismatched, 29);
    assert_eq!(count(MismatchKind::WrongValue), 10);
    assert_eq!(count(MismatchKind::Extra), 10);
    assert_eq!(count(MismatchKind::Missing), 9);
    let blocked = run.finalize(&start("e0"), &Evidence::Acknowledged(true)).await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::VerificationFailed);
    let (total, summary) = run.repair().await.unwrap();
    assert_eq!((total.progress.copied, total.progress.rejected, summary.mismatched), (29, 0, 0));
    let counts = workload.finish(&dual).await.unwrap();
    assert_eq!(counts.violations, Vec::<String>::new());
    assert!(counts.applied > 20, "{counts:?}");
    assert_eq!(dual.get("zz/rolled/00").await.unwrap().as_deref(), Some(&b"rolled back"[..]));
    assert_eq!(dual.get("zz/rolled/10").await.unwrap(), None);
    lake.assert_equal().await;
    run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
    lake.assert_equal().await;
}

#[tokio::test]
async fn a_new_generation_after_a_rollback_is_blocked_by_divergence_until_a_repair() {
    let lake = Lake::with_items(50).await;
    let run = lake.run(2);
    run.backfill().await.unwrap();
    roll_back_and_forth(&lake).await;
    let wish = PlanWish { segments: Some(2), new_generation: true };
    open_plan(&lake.tables, wish).await.unwrap();
    assert_eq!(run.backfill().await.unwrap_err().kind(), ErrorKind::BlockedByDivergence);
    let refused = run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BlockedByDivergence);
    run.repair().await.unwrap();
    let total = run.backfill().await.unwrap();
    assert_eq!(total.progress.diverged, 0);
    run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
    assert_eq!(lake.assert_equal().await, 90);
}

#[tokio::test]
async fn a_repair_that_dies_goes_on_under_its_own_id_and_blocks_everything_else_until_then() {
    for point in ["repair-opened", "repair-group", "repair-done"] {
        let lake = Lake::with_items(60).await;
        lake.run(2).backfill().await.unwrap();
        roll_back_and_forth(&lake).await;
        let freeze = Freeze::at(point);
        let (run, hook) = (lake.run(2), Arc::clone(&freeze.hook));
        let dying = tokio::spawn(crash::with_hook(hook, async move { run.repair().await.map(|_| ()) }));
        freeze.reached().await;
        dying.abort();
        let plan = lake.plan().await.unwrap();
        assert_eq!(plan.state, State::Repairing, "{point}");
        assert_eq!(lake.run(2).backfill().await.unwrap_err().kind(), ErrorKind::PlanMismatch, "{point}");
        let (id, _) = begin_repair(&lake.tables, "another").await.unwrap();
        assert_eq!(Some(id.clone()), plan.repair_run, "{point}");
        let (_, summary) = lake.run(2).repair().await.unwrap();
        assert_eq!(summary.mismatched, 0, "{point}");
        finish_repair(&lake.tables, &id).await.unwrap();
        assert_eq!(lake.plan().await.unwrap().state, State::Open);
        lake.assert_equal().await;
    }
}

#[tokio::test]
async fn a_repair_takes_away_copies_in_wrong_buckets_and_records_that_somebody_copied_by_hand() {
    let lake = Lake::with_items(30).await;
    let run = lake.run(2);
    run.backfill().await.unwrap();
    lake.put_in(Side::V2, "tbl#zz", &seed::key(5), &seed::value(5)).await;
    lake.put_in(Side::V2, "other#00", &seed::key(6), b"stale").await;
    lake.put(Side::V2, "__lake_internal/dynamo-prefix-v2/plan", b"{}").await;
    let (summary, _) = run.compare().await.unwrap();
    assert_eq!(summary.mismatched, 3, "{summary:?}");
    let (_, summary) = run.repair().await.unwrap();
    assert_eq!(summary.mismatched, 0, "{summary:?}");
    assert_eq!(lake.assert_equal().await, 30);
}

#[tokio::test]
async fn a_repair_leaves_what_v2_cannot_hold_and_says_so() {
    let lake = Lake::with_items(10).await;
    let run = lake.run(1);
    run.backfill().await.unwrap();
    let long = format!("tbl/{}", "k".repeat(1021));
    lake.put(Side::V1, &long, b"v").await;
    let (total, summary) = run.repair().await.unwrap();
    assert_eq!((total.progress.copied, total.progress.rejected), (0, 1));
    assert_eq!(summary.mismatches[0].kind, MismatchKind::KeyTooLong);
    assert_eq!(lake.value(Side::V1, &long).await.as_deref(), Some(&b"v"[..]));
}

#[tokio::test]
async fn a_stray_copy_that_changes_under_a_repair_is_left_and_said_and_the_next_one_takes_it_away() {
    let lake = Lake::with_items(10).await;
    lake.run(1).backfill().await.unwrap();
    lake.put_in(Side::V2, "tbl#zz", &seed::key(5), b"stray").await;
    let proxy = lake.proxy().await;
    let mend = Rule::new("mend", Fault::Hold).on("TransactWriteItems").mentioning("tbl#zz").times(1);
    proxy.add(mend);
    let run = lake.run_with(&tables_through(&proxy), 1, 20);
    let repairing = tokio::spawn(async move { run.repair().await });
    proxy.reached("mend", 1).await;
    lake.put_in(Side::V2, "tbl#zz", &seed::key(5), b"another").await;
    proxy.release("mend");
    let (total, summary) = repairing.await.unwrap().unwrap();
    assert_eq!((total.progress.copied, total.progress.diverged), (0, 1));
    assert_eq!(summary.mismatches, [Mismatch { key: seed::key(5), kind: MismatchKind::WrongBucket }]);
    let (_, summary) = lake.run(1).repair().await.unwrap();
    assert_eq!(summary.mismatched, 0);
    assert_eq!(lake.assert_equal().await, 10);
}

#[tokio::test]
async fn an_id_of_a_repair_is_used_once_also_when_others_came_in_between() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    for id in ["r1", "r2"] {
        assert_eq!(begin_repair(&lake.tables, id).await.unwrap().0, id);
        // The same one again, while it runs, is the same repair.
        assert_eq!(begin_repair(&lake.tables, id).await.unwrap().0, id);
        finish_repair(&lake.tables, id).await.unwrap();
        // So is its end.
        finish_repair(&lake.tables, id).await.unwrap();
    }
    for id in ["r1", "r2"] {
        let before = lake.everything().await;
        let error = begin_repair(&lake.tables, id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{id}: {error}");
        assert!(before == lake.everything().await, "{id}: something was changed");
    }
    lake.put(Side::V1, &seed::key(3), b"v1-only").await;
    assert_eq!(lake.run(2).repair().await.unwrap().1.mismatched, 0);
}

#[tokio::test]
async fn a_copy_in_v2_that_is_no_record_is_named_as_such_and_left_to_a_person() {
    let lake = Lake::with_items(10).await;
    let run = lake.run(1);
    run.backfill().await.unwrap();
    for (key, known) in [(seed::key(4), true), ("tbl/only-v2".to_owned(), false)] {
        let put = lake.client.put_item().table_name(lake.tables.name(Side::V2));
        let put = put
            .item("bucket", AttributeValue::S(Layout::default().bucket(&key)))
            .item("pk", AttributeValue::S(key.clone()))
            .item("val", AttributeValue::B(Blob::new(seed::value(4))))
            .item("note", AttributeValue::S("by hand".to_owned()));
        put.send().await.unwrap();
        let (total, summary) = run.repair().await.unwrap();
        assert_eq!(total.progress.copied, 0, "{key}");
        assert_eq!(summary.mismatches, [Mismatch { key: key.clone(), kind: MismatchKind::UnsupportedItem }]);
        let error = run.rehearse().await.unwrap_err();
        assert!(error.next_step().unwrap().contains("for a person"), "{error}");
        lake.remove(Side::V2, &key).await;
        assert_eq!(run.repair().await.unwrap().0.progress.copied, u64::from(known));
    }
    run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
}
