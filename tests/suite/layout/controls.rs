//! Pause, resume and the write rate of a running migration; what it was charged.

use std::sync::Arc;
use std::time::Duration;

use metashift::layout::backfill::backfill_page;
use metashift::layout::generation::{PlanWish, open_plan};
use metashift::layout::records::plan::KEY as PLAN_KEY;
use metashift::layout::records::segment::Walk;
use metashift::layout::run::{Event, Run};
use metashift::layout::transaction::Side;
use metashift::layout::verify::rehearse;
use metashift::layout::walk::SegmentInput;
use metashift::layout::{Tables, status};
use metashift::step::{Consumed, Status};
use metashift::{ErrorKind, Result};
use metashift_faults::{Fault, Rule};
use tokio::sync::Semaphore;

use super::support::{Lake, pages, tables_through};

const WALK: Walk = Walk::Backfill { generation: 0 };

async fn open(lake: &Lake, segments: u32) {
    let wish = PlanWish { segments: Some(segments), new_generation: false };
    open_plan(&lake.tables, wish).await.unwrap();
}

async fn pause(tables: &Tables, paused: bool) {
    status::change_control(tables, |control| control.paused = paused).await.unwrap();
}

#[tokio::test]
async fn a_paused_run_stops_at_its_next_page_and_goes_on_when_it_is_resumed() {
    let lake = Lake::with_items(400).await;
    open(&lake, 1).await;
    let input = SegmentInput { segment: 0, segments: 1, page_size: 40 };
    let step = || backfill_page(&lake.tables, 0, input.clone(), pages(2));
    assert_eq!(step().await.unwrap().status, Status::Continue);
    pause(&lake.tables, true).await;
    let before = lake.everything().await;
    let paused = step().await.unwrap();
    assert_eq!(paused.status, Status::Paused);
    assert!(paused.retry_after_seconds.is_some());
    assert!(before == lake.everything().await, "a paused step wrote");
    pause(&lake.tables, false).await;
    while step().await.unwrap().status != Status::Done {}
    assert_eq!(lake.assert_equal().await, 400);
}

#[tokio::test]
async fn a_pause_in_the_middle_of_a_running_step_takes_effect_before_the_step_ends() {
    let lake = Lake::with_items(2000).await;
    open(&lake, 1).await;
    let tables = lake.tables.clone();
    let input = SegmentInput { segment: 0, segments: 1, page_size: 20 };
    let running = tokio::spawn(async move { backfill_page(&tables, 0, input, pages(10_000)).await });
    while lake.segment(&WALK, 0).await.unwrap().scanned < 100 {}
    pause(&lake.tables, true).await;
    let output = running.await.unwrap().unwrap();
    assert_eq!(output.status, Status::Paused);
    assert!((100..2000).contains(&output.progress.scanned), "{:?}", output.progress);
    pause(&lake.tables, false).await;
    lake.run(1).backfill().await.unwrap();
    assert_eq!(lake.assert_equal().await, 2000);
}

#[tokio::test]
async fn a_whole_run_waits_while_it_is_paused_and_finishes_once_it_is_resumed() {
    let lake = Lake::with_items(100).await;
    open(&lake, 2).await;
    pause(&lake.tables, true).await;
    let turns = Arc::new(Semaphore::new(0));
    let seen = Arc::clone(&turns);
    let observer = Arc::new(move |event| {
        if matches!(event, Event::Segment { .. }) {
            seen.add_permits(1);
        }
    });
    let run = Run { observer, ..lake.run(2) };
    let running = tokio::spawn(async move { run.backfill().await });
    // Each of the two segments has looked twice.
    turns.acquire_many(4).await.unwrap().forget();
    assert_eq!(lake.v2().await.len(), 0, "nothing moves while the run is paused");
    pause(&lake.tables, false).await;
    assert_eq!(running.await.unwrap().unwrap().progress.copied, 100);
}

#[tokio::test]
async fn a_new_write_rate_takes_effect_on_a_running_step() {
    let lake = Lake::with_items(1000).await;
    open(&lake, 1).await;
    // About 200 units a group of 49 keys: 2 groups a second.
    status::throttle(&lake.tables, Some(400)).await.unwrap();
    let tables = lake.tables.clone();
    let input = SegmentInput { segment: 0, segments: 1, page_size: 100 };
    let started = tokio::time::Instant::now();
    let running = tokio::spawn(async move { backfill_page(&tables, 0, input, pages(10_000)).await });
    while lake.segment(&WALK, 0).await.unwrap().scanned < 200 {
        tokio::task::yield_now().await;
    }
    let slow = started.elapsed();
    assert!(slow > Duration::from_millis(1200), "200 items at 400 units a second took {slow:?}");
    status::throttle(&lake.tables, None).await.unwrap();
    let output = running.await.unwrap().unwrap();
    assert_eq!(output.status, Status::Done);
    let all = started.elapsed();
    // The other 800 would take more than 8 seconds at that rate.
    assert!(all < slow + Duration::from_secs(5), "{slow:?} for a fifth, {all:?} for all");
    assert_eq!(lake.assert_equal().await, 1000);
    let zero = status::throttle(&lake.tables, Some(0)).await.unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_low_write_rate_is_kept_by_smaller_groups_and_not_exceeded_by_a_whole_one() {
    let lake = Lake::with_items(60).await;
    open(&lake, 1).await;
    status::throttle(&lake.tables, Some(10)).await.unwrap();
    let started = tokio::time::Instant::now();
    let (mut steps, mut before) = (0, 0.0);
    let input = SegmentInput { segment: 0, segments: 1, page_size: 5 };
    while started.elapsed() < Duration::from_secs(6) {
        let output = backfill_page(&lake.tables, 0, input.clone(), pages(1)).await.unwrap();
        let spent = lake.segment(&WALK, 0).await.unwrap().write_units;
        // Each step has paid for what the steps before it wrote.
        let earned = 10.0 * started.elapsed().as_secs_f64();
        assert!(before <= earned * 1.05 + 1.0, "{before} units in {:?} at 10 a second", started.elapsed());
        before = spent;
        steps += 1;
        assert_ne!(output.status, Status::Done, "60 items at 10 units a second take 24 s");
    }
    assert!(steps >= 2 && before < 120.0, "{steps} steps wrote {before} units in 6 s at 10 a second");
    // A whole page of 49 keys at once would be 20 seconds of that rate.
    let input = SegmentInput { page_size: 100, ..input };
    let tables = lake.tables.clone();
    let running = tokio::spawn(async move { backfill_page(&tables, 0, input, pages(1)).await });
    let scanned = lake.segment(&WALK, 0).await.unwrap().scanned;
    while lake.segment(&WALK, 0).await.unwrap().scanned == scanned {
        tokio::task::yield_now().await;
    }
    assert!(lake.segment(&WALK, 0).await.unwrap().scanned - scanned <= 15);
    running.abort();
}

fn add(total: &mut Consumed, output: Consumed) {
    *total += output;
}

#[tokio::test]
async fn the_units_that_steps_report_are_those_that_the_server_charged() {
    let lake = Lake::with_items(500).await;
    open(&lake, 2).await;
    let proxy = lake.proxy().await;
    let tables = tables_through(&proxy);
    let mut total = Consumed::default();
    for segment in 0..2 {
        loop {
            let input = SegmentInput { segment, segments: 2, page_size: 60 };
            let output = backfill_page(&tables, 0, input, pages(2)).await.unwrap();
            add(&mut total, output.consumed);
            if output.status == Status::Done {
                break;
            }
        }
    }
    let charged = proxy.statistics();
    assert!(total.write_units > 2000.0 && total.read_units > 500.0, "{total:?}");
    assert!((total.write_units - charged.write_units).abs() < 1e-6, "{total:?} {charged:?}");
    assert!((total.read_units - charged.read_units).abs() < 1e-6, "{total:?} {charged:?}");

    for (side, segment) in [(Side::V1, 0), (Side::V2, 0), (Side::V1, 1), (Side::V2, 1)] {
        let input = SegmentInput { segment, segments: 2, page_size: 60 };
        let output = rehearse(&tables, "r", side, input, pages(1000)).await.unwrap();
        assert_eq!(output.status, Status::Done);
        add(&mut total, output.consumed);
    }
    let charged = proxy.statistics();
    assert!((total.write_units - charged.write_units).abs() < 1e-6, "{total:?} {charged:?}");
    assert!((total.read_units - charged.read_units).abs() < 1e-6, "{total:?} {charged:?}");
    assert!(lake.value(Side::V1, PLAN_KEY).await.is_some());
}

#[tokio::test]
async fn page_sizes_and_segments_that_cannot_be_are_refused_before_anything_is_read() {
    let lake = Lake::with_items(5).await;
    let before = lake.everything().await;
    let kind = |answer: Result<_>| answer.map(|_: metashift::step::StepOutput| ()).unwrap_err().kind();
    for (segment, segments, page_size) in
        [(0, 0, 10), (0, 257, 10), (3, 3, 10), (u32::MAX, 1, 10), (0, 1, 0), (0, 1, 10_001), (0, 1, u32::MAX)]
    {
        let input = SegmentInput { segment, segments, page_size };
        let answer = backfill_page(&lake.tables, 0, input.clone(), pages(1)).await;
        assert_eq!(kind(answer), ErrorKind::InvalidInput, "{segment} of {segments} by {page_size}");
        let answer = rehearse(&lake.tables, "r", Side::V1, input, pages(1)).await;
        assert_eq!(kind(answer), ErrorKind::InvalidInput, "{segment} of {segments} by {page_size}");
    }
    for page_size in [0, 10_001] {
        let error = lake.run_with(&lake.tables, 2, page_size).backfill().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    for segments in [0, 257] {
        assert_eq!(lake.run(segments).backfill().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(lake.run(1).survey("s", segments).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert!(before == lake.everything().await);
}

#[tokio::test]
async fn a_pause_that_arrives_late_never_lands_over_what_was_set_since() {
    let lake = Lake::with_items(5).await;
    open(&lake, 1).await;
    let control = async || status::load_control(&lake.tables).await.unwrap();
    // Before anything was set, after a pause and a resume, and where the resume changes nothing.
    for turn in 0..3 {
        let proxy = lake.proxy().await;
        let late = tables_through(&proxy);
        proxy.add(Rule::new("late", Fault::Hold).on("TransactWriteItems").mentioning("/control"));
        let pausing =
            tokio::spawn(async move { status::change_control(&late, |control| control.paused = true).await });
        proxy.reached("late", 1).await;
        // Whoever sent it is gone; the request is not.
        pausing.abort();
        if turn == 1 {
            pause(&lake.tables, true).await;
        }
        pause(&lake.tables, false).await;
        let set = control().await;
        proxy.release("late");
        proxy.idle().await;
        assert_eq!(control().await, set, "turn {turn}");
        assert!(!set.paused && !set.write.is_empty());
    }
}
