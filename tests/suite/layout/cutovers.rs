//! Deadline, release, hold, abort, and what arrives too late.

use std::sync::Arc;
use std::time::Duration;

use metashift::layout::cutover::{
    Evidence, Installed, Published, Released, Start, Why, install_barrier, publish_marker, release_barrier,
    release_expired,
};
use metashift::layout::records::plan::{OnFailure, State};
use metashift::layout::records::{BARRIER_KEY, MARKER_KEY, MARKER_VALUE};
use metashift::layout::transaction::Side;
use metashift::layout::verify::verify;
use metashift::layout::walk::SegmentInput;
use metashift::layout::{Authority, Mode, Mutation, Tables, status};
use metashift::step::Status;
use metashift::{ErrorKind, crash};
use metashift_faults::{Fault, Proxy, Rule};

use super::support::{Freeze, Lake, ShiftedClock, acknowledged, on, pages, start, tables_through};

const SEGMENTS: u32 = 2;

async fn migrated() -> Lake {
    let lake = Lake::with_items(80).await;
    lake.run(SEGMENTS).backfill().await.unwrap();
    lake
}

async fn verify_both(tables: &Tables, epoch: &str) {
    for side in [Side::V1, Side::V2] {
        for segment in 0..SEGMENTS {
            let input = SegmentInput { segment, segments: SEGMENTS, page_size: 100 };
            let output = verify(tables, epoch, side, false, input, pages(100)).await.unwrap();
            assert_eq!(output.status, Status::Done);
        }
    }
}

/// Writers are not paused: a mutation is applied.
async fn assert_writable(lake: &Lake, round: &str) {
    let store = lake.store(Mode::Dual).await;
    let answer = store.cas(&format!("tbl/probe/{round}"), None, Some(b"v")).await.unwrap();
    assert_eq!(answer, Mutation::Applied, "{round}");
}

async fn assert_paused(lake: &Lake) {
    let store = lake.store(Mode::Dual).await;
    let error = store.cas("tbl/probe/paused", None, Some(b"v")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BarrierHeld);
}

#[tokio::test]
async fn past_its_deadline_a_cutover_releases_the_barrier_and_writers_go_on() {
    let lake = migrated().await;
    let clock = Arc::new(ShiftedClock::default());
    let tables = lake.tables_at(&clock);
    let late = Arc::clone(&clock);
    let hook = on("barrier-installed", move || {
        late.advance(Duration::from_secs(601));
        async {}
    });
    let run = lake.run_with(&tables, SEGMENTS, 20);
    let error = crash::with_hook(hook, run.finalize(&start("e1"), &acknowledged())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CutoverExpired);
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    assert_eq!(lake.plan().await.unwrap().state, State::Open);
    assert_writable(&lake, "released").await;
    run.finalize(&start("e2"), &acknowledged()).await.unwrap();
    assert_eq!(lake.assert_equal().await, 81);
}

#[tokio::test]
async fn a_cutover_that_is_to_be_held_keeps_the_barrier_past_its_deadline_until_a_person_aborts_it() {
    let lake = migrated().await;
    let clock = Arc::new(ShiftedClock::default());
    let tables = lake.tables_at(&clock);
    let late = Arc::clone(&clock);
    let hook = on("barrier-installed", move || {
        late.advance(Duration::from_secs(601));
        async {}
    });
    let hold = Start { on_failure: OnFailure::Hold, ..start("e1") };
    let run = lake.run_with(&tables, SEGMENTS, 20);
    let error = crash::with_hook(hook, run.finalize(&hold, &acknowledged())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CutoverExpired);
    assert!(error.next_step().unwrap().starts_with("metashift layout abort first; then "), "{error}");
    assert_paused(&lake).await;
    let busy = run.finalize(&start("e2"), &acknowledged()).await.unwrap_err();
    assert!(busy.next_step().unwrap().contains("only metashift layout abort"), "{busy}");
    assert_eq!(release_expired(&tables).await.unwrap(), None);
    for why in [Why::Failure, Why::OwnerEnded, Why::Deadline] {
        let answer = release_barrier(&tables, Some("e1"), why).await.unwrap();
        assert!(matches!(answer, Released::Held(_)), "{why:?}: {answer:?}");
    }
    assert_paused(&lake).await;
    let answer = release_barrier(&tables, Some("e1"), Why::Abort).await.unwrap();
    assert!(matches!(answer, Released::Released(_)), "{answer:?}");
    assert_writable(&lake, "aborted").await;
}

#[tokio::test]
async fn a_pause_in_a_cutover_ends_it_and_writers_go_on_unless_it_is_to_be_held() {
    for on_failure in [OnFailure::Release, OnFailure::Hold] {
        let lake = migrated().await;
        let tables = lake.tables.clone();
        let hook = on("barrier-installed", move || {
            let tables = tables.clone();
            async move { drop(status::change_control(&tables, |control| control.paused = true).await.unwrap()) }
        });
        let run = lake.run(SEGMENTS);
        let cutover = Start { on_failure, ..start("e1") };
        let error = crash::with_hook(hook, run.finalize(&cutover, &acknowledged())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Superseded, "{error}");
        assert!(error.next_step().unwrap().contains("metashift layout resume"), "{error}");
        if on_failure == OnFailure::Hold {
            assert!(error.next_step().unwrap().starts_with("metashift layout abort first"), "{error}");
            assert_paused(&lake).await;
            release_barrier(&lake.tables, None, Why::Abort).await.unwrap();
        }
        assert_writable(&lake, "paused").await;
        status::change_control(&lake.tables, |control| control.paused = false).await.unwrap();
        run.finalize(&start("e2"), &acknowledged()).await.unwrap();
    }
}

#[tokio::test]
async fn a_dead_cutover_is_ended_by_the_next_run_once_the_table_says_that_its_deadline_has_passed() {
    let lake = migrated().await;
    let proxy = lake.proxy().await;
    let tables = tables_through(&proxy);
    let at = async |seconds: Option<i64>| {
        proxy.add(Rule::new("date", Fault::Date { seconds }).on("GetItem"));
        release_barrier(&tables, None, Why::Deadline).await.unwrap()
    };
    // Whoever begins it may have any clock: the deadline is ten minutes of the table's time from now.
    let wrong = Arc::new(ShiftedClock::default());
    wrong.advance(Duration::from_secs(3600));
    install_barrier(&lake.tables_at(&wrong), &start("e1")).await.unwrap();
    let left = |released: &Released| match released {
        Released::NotYet(left) => left.as_secs(),
        other => panic!("{other:?}"),
    };
    assert!((655..=660).contains(&left(&at(Some(0)).await)));
    // Whoever looks, too.
    assert_eq!(release_expired(&lake.tables_at(&wrong)).await.unwrap(), None);
    assert!(
        (25..=31).contains(&left(&at(Some(630)).await)),
        "the minute after the deadline is the run's own"
    );
    assert_eq!(left(&at(None).await), 60, "a table that does not say its time");
    let busy = lake.run_with(&tables, SEGMENTS, 20).backfill().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Superseded, "{busy}");
    assert_paused(&lake).await;
    proxy.add(Rule::new("date", Fault::Date { seconds: Some(661) }).on("GetItem"));
    lake.run_with(&tables, SEGMENTS, 20).backfill().await.unwrap();
    assert_writable(&lake, "later").await;
    // A verifier and a publisher of the dead cutover find that it is over.
    let input = SegmentInput { segment: 0, segments: SEGMENTS, page_size: 100 };
    let late = verify(&tables, "e1", Side::V1, false, input, pages(1)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Superseded);
    assert_eq!(publish_marker(&tables, "e1").await.unwrap_err().kind(), ErrorKind::Superseded);
}

#[tokio::test]
async fn verification_and_publish_check_the_deadline_themselves() {
    let lake = migrated().await;
    let clock = Arc::new(ShiftedClock::default());
    let tables = lake.tables_at(&clock);
    install_barrier(&tables, &start("e1")).await.unwrap();
    verify_both(&tables, "e1").await;
    clock.advance(Duration::from_secs(601));
    let input = SegmentInput { segment: 0, segments: SEGMENTS, page_size: 100 };
    let late = verify(&tables, "e1", Side::V1, false, input, pages(1)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::CutoverExpired);
    let late = publish_marker(&tables, "e1").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::CutoverExpired);
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
}

#[tokio::test]
async fn an_abort_at_any_point_before_the_marker_frees_writers_and_ends_the_run_without_a_marker() {
    for (number, point) in ["barrier-installed", "verify-page", "verify-done"].into_iter().enumerate() {
        let lake = migrated().await;
        let freeze = Freeze::at(point);
        let run = lake.run(SEGMENTS);
        let hook = Arc::clone(&freeze.hook);
        let running =
            tokio::spawn(crash::with_hook(
                hook,
                async move { run.finalize(&start("e1"), &acknowledged()).await },
            ));
        freeze.reached().await;
        assert_paused(&lake).await;
        let answer = release_barrier(&lake.tables, None, Why::Abort).await.unwrap();
        assert!(matches!(answer, Released::Released(_)), "{point}: {answer:?}");
        assert_writable(&lake, point).await;
        freeze.thaw();
        // A run that has not begun to verify finds its epoch used up.
        let ended =
            if point == "barrier-installed" { ErrorKind::InvalidInput } else { ErrorKind::Superseded };
        assert_eq!(running.await.unwrap().unwrap_err().kind(), ended, "{point}");
        assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None, "{point}");
        let again = release_barrier(&lake.tables, Some("e1"), Why::Abort).await.unwrap();
        assert_eq!(again, Released::NotHeld, "{point}");
        let fresh = start(&format!("again-{number}"));
        lake.run(SEGMENTS).finalize(&fresh, &acknowledged()).await.unwrap();
        assert_eq!(lake.assert_equal().await, 81, "{point}");
    }
}

#[tokio::test]
async fn after_the_marker_an_abort_changes_nothing_and_says_so() {
    let lake = migrated().await;
    let freeze = Freeze::at("marker-published");
    let (run, hook) = (lake.run(SEGMENTS), Arc::clone(&freeze.hook));
    let running =
        tokio::spawn(crash::with_hook(
            hook,
            async move { run.finalize(&start("e1"), &acknowledged()).await },
        ));
    freeze.reached().await;
    let before = lake.everything().await;
    for why in [Why::Abort, Why::Failure, Why::OwnerEnded, Why::Deadline] {
        assert_eq!(release_barrier(&lake.tables, Some("e1"), why).await.unwrap(), Released::Published);
        assert_eq!(release_barrier(&lake.tables, None, why).await.unwrap(), Released::Published);
    }
    assert!(before == lake.everything().await);
    freeze.thaw();
    assert_eq!(running.await.unwrap().unwrap().verified, 80);
    assert_eq!(lake.store(Mode::Dual).await.authority(), Authority::V2);
    // The whole run again is a success that changes nothing.
    let again = lake.run(SEGMENTS).finalize(&start("e9"), &acknowledged()).await.unwrap();
    assert_eq!((again.verified, again.barrier_held), (80, None));
    assert!(before == lake.everything().await);
}

/// The publish of e1 is held until e1 is released and e2 holds the barrier, after a write that e1 did not verify.
/// Gives the lake, how the late publish ended, and whether it changed anything.
async fn publish_late(planted: Option<Rule>) -> (Lake, metashift::Result<Published>, bool) {
    let lake = migrated().await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    verify_both(&lake.tables, "e1").await;
    let server = lake.proxy().await;
    if let Some(rule) = planted {
        server.add(rule);
    }
    let proxy = Proxy::start(&server.endpoint(), 0).await.unwrap();
    proxy.add(
        Rule::new("publish", Fault::Hold).on("TransactWriteItems").mentioning("prefix-v2-authority").times(1),
    );
    let behind = tables_through(&proxy);
    let ghost = tokio::spawn(async move { publish_marker(&behind, "e1").await });
    proxy.reached("publish", 1).await;
    assert!(matches!(
        release_barrier(&lake.tables, Some("e1"), Why::Abort).await.unwrap(),
        Released::Released(_)
    ));
    lake.put(Side::V1, "tbl/unseen", b"v").await;
    install_barrier(&lake.tables, &start("e2")).await.unwrap();
    let before = lake.everything().await;
    proxy.release("publish");
    let ended = ghost.await.unwrap();
    let changed = before != lake.everything().await;
    (lake, ended, changed)
}

#[tokio::test]
async fn the_publish_of_an_earlier_epoch_that_arrives_after_release_and_re_install_is_refused() {
    let (lake, ended, changed) = publish_late(None).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Superseded);
    assert!(!changed, "the publish of e1 landed under e2");
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
    verify_both(&lake.tables, "e2").await;
    assert_eq!(publish_marker(&lake.tables, "e2").await.unwrap(), Published::VerifyExactly);
}

#[tokio::test]
async fn a_publish_that_is_not_bound_to_its_epoch_is_found() {
    let fault = Fault::Blind {
        action: "Put".to_owned(),
        table: "lake".to_owned(),
        key: "dynamo-prefix-v2/plan".to_owned(),
        idle: false,
    };
    let (lake, _, changed) = publish_late(Some(Rule::new("planted", fault))).await;
    assert!(changed && lake.value(Side::V1, MARKER_KEY).await.is_some(), "the planted bug does nothing");
}

#[tokio::test]
async fn an_epoch_is_used_once_and_the_same_epoch_again_while_it_holds_is_no_change() {
    let lake = migrated().await;
    let Installed::Held(first) = install_barrier(&lake.tables, &start("e1")).await.unwrap() else {
        panic!("published");
    };
    let before = lake.everything().await;
    let Installed::Held(again) = install_barrier(&lake.tables, &start("e1")).await.unwrap() else {
        panic!("published");
    };
    assert_eq!(first, again);
    let other = install_barrier(&lake.tables, &start("e2")).await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Superseded);
    assert!(before == lake.everything().await);
    assert_eq!(release_barrier(&lake.tables, Some("e2"), Why::Abort).await.unwrap(), Released::NotHeld);
    release_barrier(&lake.tables, Some("e1"), Why::Abort).await.unwrap();
    let reused = install_barrier(&lake.tables, &start("e1")).await.unwrap_err();
    assert_eq!(reused.kind(), ErrorKind::InvalidInput);
    // Also when another one came in between, once the first had begun to verify.
    install_barrier(&lake.tables, &start("e3")).await.unwrap();
    verify_both(&lake.tables, "e3").await;
    release_barrier(&lake.tables, Some("e3"), Why::Abort).await.unwrap();
    install_barrier(&lake.tables, &start("e4")).await.unwrap();
    release_barrier(&lake.tables, Some("e4"), Why::Abort).await.unwrap();
    let reused = install_barrier(&lake.tables, &start("e3")).await.unwrap_err();
    assert_eq!(reused.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_cutover_needs_paused_writers_or_their_acceptance_and_a_rollout_that_somebody_vouches_for() {
    let lake = migrated().await;
    let before = lake.value(Side::V1, "__lake_internal/dynamo-prefix-v2/plan").await;
    let busy = Start { writes_paused: false, ..start("e1") };
    let error = install_barrier(&lake.tables, &busy).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    for (epoch, deadline) in [("", 600), ("a b", 600), ("e1", 0), ("e1", 24 * 3600 + 1)] {
        let odd = Start { deadline: Duration::from_secs(deadline), ..start(epoch) };
        let error = install_barrier(&lake.tables, &odd).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{epoch:?} {deadline}");
    }
    let run = lake.run(SEGMENTS);
    let error = run.finalize(&start("e1"), &Evidence::Acknowledged(false)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolloutNotReady);
    assert_eq!(lake.value(Side::V1, "__lake_internal/dynamo-prefix-v2/plan").await, before);
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    let loaded = Start { writes_paused: false, under_load: true, ..start("e1") };
    run.finalize(&loaded, &acknowledged()).await.unwrap();
}

#[tokio::test]
async fn a_barrier_that_somebody_removed_by_hand_stops_the_publish_and_heals_on_release() {
    let lake = migrated().await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    verify_both(&lake.tables, "e1").await;
    lake.remove(Side::V1, BARRIER_KEY).await;
    let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignLeftovers);
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
    let answer = release_barrier(&lake.tables, None, Why::Abort).await.unwrap();
    assert!(matches!(answer, Released::Released(_)), "{answer:?}");
    assert_eq!(lake.plan().await.unwrap().state, State::Open);
    lake.run(SEGMENTS).finalize(&start("e2"), &acknowledged()).await.unwrap();
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await.as_deref(), Some(MARKER_VALUE));
    assert_eq!(publish_marker(&lake.tables, "e2").await.unwrap(), Published::Marker { verified: 80 });
}
