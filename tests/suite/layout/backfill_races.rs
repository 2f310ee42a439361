//! Backfill against writers and other workers, with the race made to happen.

use std::sync::Arc;

use metashift::layout::backfill::backfill_page;
use metashift::layout::generation::{PlanWish, open_plan};
use metashift::layout::records::segment::{State, Walk};
use metashift::layout::transaction::Side;
use metashift::layout::walk::SegmentInput;
use metashift::layout::{Mode, Mutation, Tables};
use metashift::step::{Status, StepOutput};
use metashift::{ErrorKind, Result, crash};
use metashift_faults::{Fault, Rule};

use super::support::{Freeze, Lake, pages, tables_through};

const WALK: Walk = Walk::Backfill { generation: 0 };

async fn open(lake: &Lake, segments: u32) {
    let wish = PlanWish { segments: Some(segments), new_generation: false };
    open_plan(&lake.tables, wish).await.unwrap();
}

async fn step(tables: &Tables, segments: u32, segment: u32, page_size: u32, most: u32) -> Result<StepOutput> {
    backfill_page(tables, 0, SegmentInput { segment, segments, page_size }, pages(most)).await
}

/// The next data group that is sent is held.
fn hold_group() -> Rule {
    Rule::new("group", Fault::Hold).on("TransactWriteItems").mentioning("/backfill/0/").times(1)
}

#[tokio::test]
async fn keys_that_change_between_scan_and_put_end_as_their_writers_left_them() {
    let lake = Lake::empty().await;
    for n in 0..12 {
        lake.put(Side::V1, &format!("tbl/{n:02}"), b"old").await;
    }
    open(&lake, 1).await;
    let proxy = lake.proxy().await;
    proxy.add(hold_group());
    let behind = tables_through(&proxy);
    let worker = tokio::spawn(async move { step(&behind, 1, 0, 100, 100).await });
    proxy.reached("group", 1).await;

    let dual = lake.store(Mode::Dual).await;
    let old_node = lake.store(Mode::V1Only).await;
    let applied = |answer: Result<Mutation>| assert_eq!(answer.unwrap(), Mutation::Applied);
    // Deleted; deleted and created again, equal and not; updated; updated there and back.
    applied(dual.delete("tbl/00", b"old").await);
    applied(dual.delete("tbl/01", b"old").await);
    applied(dual.cas("tbl/01", None, Some(b"old")).await);
    applied(dual.delete("tbl/02", b"old").await);
    applied(dual.cas("tbl/02", None, Some(b"new")).await);
    applied(dual.cas("tbl/03", Some(b"old"), Some(b"new")).await);
    applied(dual.cas("tbl/04", Some(b"old"), Some(b"new")).await);
    applied(dual.cas("tbl/04", Some(b"new"), Some(b"old")).await);
    // The same by a node that still writes v1 alone.
    applied(old_node.cas("tbl/05", Some(b"old"), Some(b"new")).await);
    applied(old_node.delete("tbl/06", b"old").await);
    applied(old_node.delete("tbl/07", b"old").await);
    applied(old_node.cas("tbl/07", None, Some(b"new")).await);
    proxy.release("group");

    let output = worker.await.unwrap().unwrap();
    assert_eq!(output.status, Status::Done);
    assert_eq!(lake.assert_equal().await, 10);
    let expected = [None, Some("old"), Some("new"), Some("new"), Some("old"), Some("new"), None, Some("new")];
    for (n, value) in expected.iter().enumerate() {
        let key = format!("tbl/{n:02}");
        assert_eq!(dual.get(&key).await.unwrap(), value.map(|value| value.as_bytes().to_vec()), "{key}");
    }
    let progress = output.progress;
    assert_eq!((progress.scanned, progress.copied, progress.already_live), (12, 6, 4), "{progress:?}");
    assert_eq!((progress.rejected, progress.diverged), (0, 0));
}

#[tokio::test]
async fn a_newer_copy_is_never_overwritten_but_recorded_as_diverged() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, "tbl/differs", b"v1").await;
    lake.put(Side::V2, "tbl/differs", b"v2").await;
    lake.put(Side::V1, "tbl/equal", b"same").await;
    lake.put(Side::V2, "tbl/equal", b"same").await;
    lake.put(Side::V1, "tbl/missing", b"m").await;
    let error = lake.run(2).backfill().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BlockedByDivergence);
    assert_eq!(lake.value(Side::V2, "tbl/differs").await.as_deref(), Some(&b"v2"[..]));
    assert_eq!(lake.value(Side::V2, "tbl/missing").await.as_deref(), Some(&b"m"[..]));
}

#[tokio::test]
async fn a_worker_held_before_its_put_is_superseded_after_its_replacement_finished_and_writes_nothing() {
    let lake = Lake::with_items(150).await;
    open(&lake, 1).await;
    let proxy = lake.proxy().await;
    proxy.add(hold_group().skip(1));
    let behind = tables_through(&proxy);
    let frozen = tokio::spawn(async move { step(&behind, 1, 0, 40, 100).await });
    proxy.reached("group", 1).await;
    assert_eq!(step(&lake.tables, 1, 0, 40, 100).await.unwrap().status, Status::Done);
    // What the frozen worker holds is old by now: deleted, updated, created again.
    let dual = lake.store(Mode::Dual).await;
    let v1 = lake.v1().await;
    for (n, (key, value)) in v1.iter().filter(|(key, _)| !key.starts_with("__lake")).enumerate() {
        match n % 3 {
            0 => assert_eq!(dual.delete(key, value).await.unwrap(), Mutation::Applied),
            1 => assert_eq!(dual.cas(key, Some(value), Some(b"new")).await.unwrap(), Mutation::Applied),
            _ => {}
        }
    }
    let before = lake.everything().await;
    proxy.release("group");
    assert_eq!(frozen.await.unwrap().unwrap_err().kind(), ErrorKind::Superseded);
    proxy.idle().await;
    assert!(before == lake.everything().await, "a stale write landed");
    assert_eq!(lake.assert_equal().await, 100);
}

#[tokio::test]
async fn a_request_that_arrives_after_its_worker_died_and_was_replaced_changes_nothing() {
    let lake = Lake::with_items(60).await;
    open(&lake, 1).await;
    let proxy = lake.proxy().await;
    proxy.add(hold_group());
    let behind = tables_through(&proxy);
    let dead = tokio::spawn(async move { step(&behind, 1, 0, 40, 100).await });
    proxy.reached("group", 1).await;
    dead.abort();
    assert_eq!(step(&lake.tables, 1, 0, 40, 100).await.unwrap().status, Status::Done);
    let dual = lake.store(Mode::Dual).await;
    for n in 0..60 {
        let (key, value) = (metashift_sandbox::seed::key(n), metashift_sandbox::seed::value(n));
        assert_eq!(dual.delete(&key, &value).await.unwrap(), Mutation::Applied);
    }
    let before = lake.everything().await;
    proxy.release("group");
    proxy.idle().await;
    assert!(before == lake.everything().await, "a dead worker's write landed");
    assert_eq!(lake.v2().await.len(), 0);
}

#[tokio::test]
async fn a_worker_frozen_after_its_group_is_superseded_when_it_thaws_and_cursors_never_go_back() {
    let lake = Lake::with_items(120).await;
    open(&lake, 1).await;
    let freeze = Freeze::at_nth("backfill-group", 2);
    let (tables, hook) = (lake.tables.clone(), Arc::clone(&freeze.hook));
    let frozen = tokio::spawn(crash::with_hook(hook, async move { step(&tables, 1, 0, 20, 100).await }));
    freeze.reached().await;
    let seen = lake.segment(&WALK, 0).await.unwrap();
    assert_eq!(step(&lake.tables, 1, 0, 20, 2).await.unwrap().status, Status::Continue);
    let later = lake.segment(&WALK, 0).await.unwrap();
    assert!(later.scanned > seen.scanned && later.cursor != seen.cursor, "{seen:?} {later:?}");
    freeze.thaw();
    assert_eq!(frozen.await.unwrap().unwrap_err().kind(), ErrorKind::Superseded);
    assert_eq!(lake.segment(&WALK, 0).await.unwrap(), later);
    assert_eq!(step(&lake.tables, 1, 0, 20, 100).await.unwrap().status, Status::Done);
    let done = lake.segment(&WALK, 0).await.unwrap();
    assert_eq!((done.scanned, done.copied), (120, 120), "no item is counted twice");
    assert_eq!(lake.assert_equal().await, 120);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_on_every_segment_end_equal_and_progress_only_grows() {
    let lake = Lake::with_items(1200).await;
    open(&lake, 2).await;
    let work = |tables: Tables| async move {
        let mut superseded = 0;
        loop {
            let mut done = 0;
            for segment in 0..2 {
                match step(&tables, 2, segment, 60, 2).await {
                    Ok(output) => done += u32::from(output.status == Status::Done),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Superseded, "{error}");
                        superseded += 1;
                    }
                }
            }
            if done == 2 {
                return superseded;
            }
        }
    };
    let one = tokio::spawn(work(lake.tables.metered()));
    let two = tokio::spawn(work(lake.tables.metered()));
    let mut last = [0, 0];
    while !one.is_finished() || !two.is_finished() {
        for (number, last) in (0..).zip(&mut last) {
            let segment = lake.segment(&WALK, number).await.unwrap();
            assert!(segment.scanned >= *last, "segment {number} went back");
            *last = segment.scanned;
        }
    }
    let superseded = one.await.unwrap() + two.await.unwrap();
    assert!(superseded > 0, "the workers never met");
    assert_eq!(last.iter().sum::<u64>(), 1200, "no item is counted twice or left out");
    assert_eq!(lake.assert_equal().await, 1200);
}

#[tokio::test]
async fn no_items_one_item_and_fewer_items_than_segments_are_moved_and_finalized() {
    for (items, segments) in [(0, 1), (0, 16), (1, 1), (1, 16), (5, 256)] {
        let lake = Lake::with_items(items).await;
        let run = lake.run(segments);
        let total = run.backfill().await.unwrap();
        assert_eq!(total.progress.copied, u64::from(items), "{items} in {segments}");
        let acknowledged = metashift::layout::cutover::Evidence::Acknowledged(true);
        let finished = run.finalize(&super::support::start("e1"), &acknowledged).await.unwrap();
        assert_eq!(finished.verified, u64::from(items));
        assert_eq!(lake.assert_equal().await, items as usize);
        for segment in 0..segments {
            assert_eq!(lake.segment(&WALK, segment).await.unwrap().state, State::Done);
        }
    }
}

#[tokio::test]
async fn keys_that_grow_between_scan_and_put_take_their_group_over_no_limit() {
    let lake = Lake::empty().await;
    // One group of 2 MB counted twice, for the check and for the put: near the limit of 4 MB.
    for n in 0..20 {
        lake.put(Side::V1, &format!("tbl/{n:02}"), &vec![1; 100_000]).await;
    }
    open(&lake, 1).await;
    let proxy = lake.proxy().await;
    proxy.add(hold_group());
    let behind = tables_through(&proxy);
    let worker = tokio::spawn(async move { step(&behind, 1, 0, 100, 100).await });
    proxy.reached("group", 1).await;
    for n in 0..6 {
        lake.put(Side::V1, &format!("tbl/{n:02}"), &vec![2; 400_000]).await;
    }
    proxy.release("group");
    let output = worker.await.unwrap().unwrap();
    assert_eq!(output.status, Status::Done);
    assert_eq!(output.progress.copied, 20);
    assert_eq!(lake.assert_equal().await, 20);
}
