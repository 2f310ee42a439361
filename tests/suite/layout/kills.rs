//! Real processes killed (SIGKILL) at every crash point; the server lives in the test's process.
//!
//! After any kill the same command is run again, twice; the user's items of both tables and the marker are then those
//! of an uninterrupted run.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

use metashift::crash;
use metashift::layout::key::is_internal;
use metashift::layout::records::MARKER_KEY;
use metashift::layout::records::plan::State as PlanState;
use metashift::layout::records::segment::{State, Walk};
use metashift::layout::transaction::Side;
use metashift_sandbox::seed;
use tokio::process::Command;

use super::support::{Lake, TABLE};

const BACKFILL: &[&str] = &["run", "--local", "--page-size", "20", "--segments", "2"];
const AGAIN: &[&str] = &["run", "--local", "--page-size", "20", "--new-generation"];
const REPAIR: &[&str] = &["repair", "--local", "--page-size", "20"];
const ABORT: &[&str] = &["abort"];
const SURVEY: &[&str] = &["plan", "--survey", "--survey-id", "s", "--segments", "2", "--page-size", "20"];

fn finalize(epoch: &str) -> Vec<&str> {
    let flags = ["--finalize", "--writes-paused", "--rollout-acknowledged", "--epoch", epoch];
    [BACKFILL, &flags].concat()
}

/// How a process ended: its exit code, or `None` where it was killed.
async fn metashift(lake: &Lake, arguments: &[&str], crash_at: Option<&str>) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().arg("--json").arg("layout").args(arguments);
    command.args(["--table", TABLE, "--endpoint", &lake.server.endpoint()]);
    if let Some(point) = crash_at {
        command.env("METASHIFT_CRASH_AT", point);
    }
    let output = command.kill_on_drop(true).output().await.unwrap();
    if output.status.code().is_none() {
        assert_eq!(output.status.signal(), Some(9), "{output:?}");
    }
    output.status.code()
}

async fn succeed(lake: &Lake, arguments: &[&str]) {
    assert_eq!(metashift(lake, arguments, None).await, Some(0), "{arguments:?}");
}

/// The user's items of both tables, and the marker.
type Snapshot = (BTreeMap<String, Vec<u8>>, BTreeMap<String, (Option<String>, Vec<u8>)>, Option<Vec<u8>>);

async fn snapshot(lake: &Lake) -> Snapshot {
    lake.assert_equal().await;
    let mut v1 = lake.v1().await;
    v1.retain(|key, _| !is_internal(key));
    (v1, lake.v2().await, lake.value(Side::V1, MARKER_KEY).await)
}

/// What a scenario does: `crash_at` kills its main command, which is then run twice more.
async fn migration(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    let finalize = finalize("e1");
    let killed = metashift(&lake, &finalize, crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, &finalize).await;
    }
    (snapshot(&lake).await, killed)
}

async fn new_generation(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    succeed(&lake, BACKFILL).await;
    // Only a walk from the first item finds this one.
    lake.put(Side::V1, "tbl/late", b"v1-only").await;
    let killed = metashift(&lake, AGAIN, crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, AGAIN).await;
    }
    succeed(&lake, &finalize("e1")).await;
    (snapshot(&lake).await, killed)
}

async fn rejects(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    for n in 0..3 {
        lake.put(Side::V1, &format!("tbl/{n}/{}", "k".repeat(1200)), b"too long").await;
    }
    // Without a kill it ends as blocked.
    let ended = metashift(&lake, BACKFILL, crash_at).await;
    assert!(matches!(ended, None | Some(3)), "{ended:?}");
    for _ in 0..2 {
        assert_eq!(metashift(&lake, BACKFILL, None).await, Some(3));
    }
    for n in 0..3 {
        lake.remove(Side::V1, &format!("tbl/{n}/{}", "k".repeat(1200))).await;
    }
    succeed(&lake, &finalize("e1")).await;
    (snapshot(&lake).await, ended.is_none())
}

async fn repair(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    succeed(&lake, BACKFILL).await;
    for n in 0..20 {
        match n % 4 {
            0 => lake.put(Side::V1, &seed::key(n), b"v1-only").await,
            1 => lake.remove(Side::V1, &seed::key(n)).await,
            2 => lake.put(Side::V1, &format!("tbl/v1-only/{n}"), b"v1-only").await,
            _ => lake.put_in(Side::V2, "tbl#zz", &seed::key(n), b"stray").await,
        }
    }
    let killed = metashift(&lake, REPAIR, crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, REPAIR).await;
    }
    succeed(&lake, &finalize("e1")).await;
    (snapshot(&lake).await, killed)
}

async fn abort(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    assert_eq!(metashift(&lake, &finalize("e1"), Some("barrier-installed")).await, None);
    let killed = metashift(&lake, ABORT, crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, ABORT).await;
    }
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
    assert_eq!(metashift(&lake, &finalize("e1"), None).await, Some(2), "an epoch is used once");
    succeed(&lake, &finalize("e2")).await;
    assert_eq!(metashift(&lake, ABORT, None).await, Some(6), "after the marker an abort is refused");
    (snapshot(&lake).await, killed)
}

/// A run that finds another migrator's marker follows it, whatever it was in the middle of.
async fn takeover(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    succeed(&lake, BACKFILL).await;
    lake.publish().await;
    let ended = metashift(&lake, BACKFILL, crash_at).await;
    assert!(matches!(ended, None | Some(6)), "{ended:?}");
    for _ in 0..2 {
        assert_eq!(metashift(&lake, BACKFILL, None).await, Some(6));
    }
    let plan = lake.plan().await.unwrap();
    assert_eq!((plan.state, plan.taken_over_at.is_some()), (PlanState::Final, true));
    for segment in 0..2 {
        let record = lake.segment(&Walk::Backfill { generation: 0 }, segment).await.unwrap();
        assert_eq!(record.state, State::Closed);
    }
    (snapshot(&lake).await, ended.is_none())
}

async fn audit(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    succeed(&lake, &finalize("e1")).await;
    let killed = metashift(&lake, &["audit"], crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, &["audit"]).await;
    }
    assert!(lake.plan().await.unwrap().audited.is_some());
    (snapshot(&lake).await, killed)
}

/// An epoch that never held the barrier is taken out of use.
async fn cancel(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    succeed(&lake, BACKFILL).await;
    let killed = metashift(&lake, &["abort", "--epoch", "e1"], crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, &["abort", "--epoch", "e1"]).await;
    }
    assert_eq!(metashift(&lake, &finalize("e1"), None).await, Some(2), "it is out of use");
    succeed(&lake, &finalize("e2")).await;
    (snapshot(&lake).await, killed)
}

/// What it counts is in its own records; the tables stay as they are.
async fn survey(crash_at: Option<&str>) -> (Snapshot, bool) {
    let lake = Lake::with_items(90).await;
    let killed = metashift(&lake, SURVEY, crash_at).await.is_none();
    for _ in 0..2 {
        succeed(&lake, SURVEY).await;
    }
    for segment in 0..2 {
        let walked = lake.segment(&Walk::Survey { run: "s-2".to_owned() }, segment).await.unwrap();
        assert_eq!(walked.state, State::Done);
    }
    succeed(&lake, &finalize("e1")).await;
    (snapshot(&lake).await, killed)
}

/// Points of each scenario, and how often each is reached at least.
const MIGRATION: [(&str, u32); 11] = [
    ("plan-opening", 1),
    ("segment-created", 1),
    ("plan-open", 1),
    ("backfill-group", 3),
    ("backfill-done", 2),
    ("rehearse-page", 2),
    ("rehearse-done", 4),
    ("barrier-installed", 1),
    ("verify-page", 3),
    ("verify-done", 4),
    ("marker-published", 1),
];
const NEW_GENERATION: [(&str, u32); 5] = [
    ("plan-closing", 1),
    ("segment-closed", 2),
    ("plan-opening", 1),
    ("segment-created", 1),
    ("plan-open", 1),
];
const REJECTS: [(&str, u32); 1] = [("backfill-rechecked", 1)];
const REPAIRS: [(&str, u32); 5] = [
    ("repair-opened", 1),
    ("repair-group", 4),
    ("repair-done", 3),
    ("segment-closed", 4),
    ("repair-closed", 1),
];
const ABORTS: [(&str, u32); 1] = [("barrier-released", 1)];
const SURVEYS: [(&str, u32); 1] = [("survey-done", 2)];
const TAKEOVERS: [(&str, u32); 3] = [("takeover-begun", 1), ("segment-closed", 2), ("taken-over", 1)];
const AUDITS: [(&str, u32); 1] = [("audit-stamped", 1)];
const CANCELS: [(&str, u32); 1] = [("epoch-cancelled", 1)];

async fn hold<F: AsyncFn(Option<&str>) -> (Snapshot, bool)>(points: &[(&str, u32)], scenario: F) {
    let (whole, _) = scenario(None).await;
    for (point, most) in points {
        // The first time that it is reached, and the last.
        let mut times = vec![1, *most];
        times.dedup();
        for n in times {
            let (ended, killed) = scenario(Some(&format!("{point}:{n}"))).await;
            assert!(killed, "{point} was not reached {n} times");
            assert!(ended == whole, "killed at {point}:{n}, another end");
        }
    }
}

#[test]
fn every_crash_point_of_the_layout_belongs_to_a_scenario() {
    let all = [
        &MIGRATION[..],
        &NEW_GENERATION,
        &REJECTS,
        &REPAIRS,
        &ABORTS,
        &SURVEYS,
        &TAKEOVERS,
        &AUDITS,
        &CANCELS,
    ]
    .concat();
    for point in crash::ALL.iter().filter(|point| !point.starts_with("catalog-")) {
        assert!(all.iter().any(|(named, _)| named == point), "{point}");
    }
}

#[tokio::test]
async fn a_migration_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&MIGRATION, migration).await;
}

#[tokio::test]
async fn a_generation_start_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&NEW_GENERATION, new_generation).await;
}

#[tokio::test]
async fn a_run_with_rejects_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&REJECTS, rejects).await;
}

#[tokio::test]
async fn a_repair_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&REPAIRS, repair).await;
}

#[tokio::test]
async fn an_abort_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&ABORTS, abort).await;
}

#[tokio::test]
async fn a_survey_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&SURVEYS, survey).await;
}

#[tokio::test]
async fn a_takeover_killed_at_any_point_ends_like_an_uninterrupted_one() {
    hold(&TAKEOVERS, takeover).await;
}

#[tokio::test]
async fn an_audit_killed_as_it_is_recorded_ends_like_an_uninterrupted_one() {
    hold(&AUDITS, audit).await;
}

#[tokio::test]
async fn a_cancelled_epoch_stays_so_after_a_kill() {
    hold(&CANCELS, cancel).await;
}
