//! Another migrator on the same table, as the published protocol describes it: its barrier, its marker, its cursor.

use std::collections::BTreeSet;

use metashift::ErrorKind;
use metashift::layout::generation::{follow_marker, remove_foreign_barrier, stamp_audit};
use metashift::layout::records::plan::{KEY as PLAN_KEY, State};
use metashift::layout::records::segment::{State as SegmentState, Walk};
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE, FOREIGN_CURSOR_KEY, MARKER_KEY, MARKER_VALUE};
use metashift::layout::transaction::Side;
use metashift_faults::{Fault, Rule};
use serde_json::Value;
use tokio::process::Command;

use super::support::{Lake, TABLE, acknowledged, start, tables_through};

async fn run(lake: &Lake, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().args(["--json", "layout"]).args(arguments);
    if !arguments.contains(&"--table") {
        command.args(["--table", TABLE, "--endpoint", &lake.server.endpoint()]);
    }
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    (output.status.code(), last.unwrap_or_default())
}

#[tokio::test]
async fn a_backfill_frozen_over_a_foreign_marker_revives_nothing() {
    let lake = Lake::with_items(60).await;
    lake.run(2).backfill().await.unwrap();
    // A second generation with work to do: half of the copies are gone.
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("held", Fault::Hold).on("TransactWriteItems").mentioning("/backfill/1/").times(2));
    let frozen = tables_through(&proxy);
    let keys: Vec<_> = lake.v2().await.into_keys().collect();
    for key in keys.iter().step_by(2) {
        lake.remove(Side::V2, key).await;
    }
    let wish = metashift::layout::generation::PlanWish { segments: Some(2), new_generation: true };
    let ghost = metashift::layout::run::Run { wish, ..lake.run_with(&frozen, 2, 20) };
    let ghost = tokio::spawn(async move { ghost.backfill().await });
    proxy.reached("held", 2).await;
    // The other migrator publishes; its v2-only nodes have deleted what is missing in v2.
    lake.publish().await;
    let (code, said) = run(&lake, &["run", "--local"]).await;
    assert_eq!((code, said["error"]["name"].as_str()), (Some(6), Some("AlreadyFinalized")), "{said}");
    let plan = lake.plan().await.unwrap();
    assert_eq!((plan.state, plan.version), (State::Final, 2));
    assert!(plan.taken_over_at.is_some());
    let before = lake.v2().await;
    proxy.release("held");
    assert!(ghost.await.unwrap().is_err());
    proxy.idle().await;
    assert!(lake.v2().await == before, "a deleted key is back");
    for segment in 0..2 {
        let record = lake.segment(&Walk::Backfill { generation: 1 }, segment).await.unwrap();
        assert_eq!(record.state, SegmentState::Closed);
    }
}

#[tokio::test]
async fn a_repair_frozen_over_a_foreign_marker_overwrites_nothing() {
    let lake = Lake::with_items(40).await;
    lake.run(2).backfill().await.unwrap();
    let keys: Vec<_> = lake.v2().await.into_keys().collect();
    for key in &keys {
        lake.put(Side::V2, key, b"newer").await;
    }
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("held", Fault::Hold).on("TransactWriteItems").mentioning("bmV3ZXI=").times(4));
    let ghost = lake.run_with(&tables_through(&proxy), 2, 20);
    let ghost = tokio::spawn(async move { ghost.repair().await });
    proxy.reached("held", 2).await;
    lake.publish().await;
    assert!(follow_marker(&lake.tables, false).await.unwrap());
    let before = lake.v2().await;
    proxy.release("held");
    assert!(ghost.await.unwrap().is_err());
    proxy.idle().await;
    assert!(lake.v2().await == before, "a newer value was overwritten");
    assert_eq!(lake.plan().await.unwrap().repair_run, None);
}

#[tokio::test]
async fn looking_takes_nothing_over_and_every_verb_that_changes_does() {
    for verb in [&["run", "--local"][..], &["repair", "--local"], &["abort"]] {
        for planned in [false, true] {
            let lake = Lake::with_items(20).await;
            if planned {
                lake.run(2).backfill().await.unwrap();
            }
            lake.put(Side::V1, MARKER_KEY, MARKER_VALUE).await;
            let before = lake.everything().await;
            for look in [&["status"][..], &["plan"], &["audit"], &["retire", "--dry-run"], &["rollback-plan"]]
            {
                let (code, said) = run(&lake, look).await;
                assert!(matches!(code, Some(0 | 2 | 6)), "{look:?}: {code:?} {said}");
            }
            assert!(before == lake.everything().await, "looking changed something");
            let (code, said) = run(&lake, verb).await;
            assert_eq!(
                (code, said["error"]["name"].as_str()),
                (Some(6), Some("AlreadyFinalized")),
                "{verb:?}: {said}"
            );
            assert_eq!(lake.plan().await.unwrap().state, State::Final, "{verb:?}");
            assert_eq!(lake.value(Side::V1, BARRIER_KEY).await.as_deref(), Some(BARRIER_VALUE));
        }
    }
}

#[tokio::test]
async fn after_a_takeover_an_audit_is_recorded_and_retire_rests_on_it() {
    let lake = Lake::with_items(30).await;
    lake.run(2).backfill().await.unwrap();
    // A comparison from before the marker says nothing about what came after it.
    lake.run(2).compare_as("early").await.unwrap();
    lake.publish().await;
    assert!(follow_marker(&lake.tables, false).await.unwrap());
    assert!(!stamp_audit(&lake.tables, "early").await.unwrap());
    let retire = ["retire", "--horizon-days", "0"];
    let (code, said) = run(&lake, &retire).await;
    assert_eq!((code, said["error"]["name"].as_str()), (Some(3), Some("RolloutNotReady")), "{said}");
    lake.put(Side::V1, "tbl/late", b"v1-only").await;
    assert_eq!(run(&lake, &["audit"]).await.0, Some(3));
    assert_eq!(lake.plan().await.unwrap().audited, None);
    lake.remove(Side::V1, "tbl/late").await;
    assert_eq!(run(&lake, &["audit"]).await.0, Some(0));
    assert!(lake.plan().await.unwrap().audited.is_some());
    // Later writes of v2-only nodes make no audit clean again; the record stays.
    lake.put(Side::V2, "tbl/v2-only", b"new").await;
    assert_eq!(run(&lake, &["audit"]).await.0, Some(3));
    assert_eq!(run(&lake, &retire).await.0, Some(0));
}

#[tokio::test]
async fn a_cutover_of_ours_under_a_foreign_marker_ends_final() {
    let lake = Lake::with_items(30).await;
    lake.run(2).backfill().await.unwrap();
    metashift::layout::cutover::install_barrier(&lake.tables, &start("e1")).await.unwrap();
    lake.put(Side::V1, MARKER_KEY, MARKER_VALUE).await;
    let finished = lake.run(2).finalize(&start("e1"), &acknowledged()).await.unwrap();
    assert_eq!(finished.verified, 0, "nothing of it was verified by this software");
    let plan = lake.plan().await.unwrap();
    assert_eq!((plan.state, plan.cutover.is_none()), (State::Final, true));
}

#[tokio::test]
async fn a_cursor_that_comes_back_stops_a_cutover() {
    let lake = Lake::with_items(30).await;
    lake.run(2).backfill().await.unwrap();
    lake.put(Side::V1, FOREIGN_CURSOR_KEY, b"tbl/a").await;
    let error = metashift::layout::cutover::install_barrier(&lake.tables, &start("e1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignLeftovers, "{error}");
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
}

#[tokio::test]
async fn a_foreign_barrier_is_removed_by_name_and_ours_is_not() {
    let lake = Lake::with_items(20).await;
    let abort = ["abort", "--adopt-foreign-barrier"];
    for planned in [false, true] {
        if planned {
            lake.run(2).backfill().await.unwrap();
        }
        lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
        let (code, said) = run(&lake, &["abort"]).await;
        assert_eq!(code, Some(6), "{said}");
        let (code, said) = run(&lake, &abort).await;
        assert_eq!((code, said["outcome"].as_str()), (Some(0), Some("removed")), "{said}");
        assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    }
    metashift::layout::cutover::install_barrier(&lake.tables, &start("e1")).await.unwrap();
    assert!(!remove_foreign_barrier(&lake.tables).await.unwrap());
    assert!(lake.value(Side::V1, BARRIER_KEY).await.is_some());
    lake.put(Side::V1, BARRIER_KEY, b"unknown").await;
    lake.put(
        Side::V1,
        PLAN_KEY,
        &metashift::layout::records::encode(&{
            let mut plan = lake.plan().await.unwrap();
            plan.state = State::Open;
            plan.cutover = None;
            plan
        })
        .unwrap(),
    )
    .await;
    assert_eq!(remove_foreign_barrier(&lake.tables).await.unwrap_err().kind(), ErrorKind::ForeignLeftovers);
}

/// The first command of a next step that changes something, as words after `metashift layout`.
fn next_command(next: &str) -> Option<Vec<String>> {
    for (at, _) in next.match_indices("metashift layout ") {
        let text = &next[at + "metashift layout ".len()..];
        let mut words: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            let value = words.last().is_some_and(|last| {
                matches!(last.as_str(), "--table" | "--endpoint" | "--companion" | "--epoch" | "--layout")
            });
            let clean = word.trim_end_matches([',', ';', ')', '.']);
            if words.is_empty() || value || word.starts_with("--") {
                words.push(clean.to_owned());
            } else {
                break;
            }
            if clean.len() < word.len() {
                break;
            }
        }
        let looks = ["status", "rejects", "plan", "rollback-plan", "retire"];
        let changes = words.first().is_some_and(|verb| !looks.contains(&verb.as_str()));
        if changes && !words.iter().any(|word| word == "--dry-run") {
            return Some(words);
        }
    }
    None
}

/// Follows next commands from `first` until one succeeds or none is named. A state and command met twice is a circle.
async fn follow(lake: &Lake, name: &str, first: &[&str]) {
    let mut seen = BTreeSet::new();
    let mut arguments: Vec<String> = first.iter().map(|&word| word.to_owned()).collect();
    loop {
        let before = format!("{:?}", lake.everything().await);
        assert!(seen.insert((arguments.clone(), before)), "{name}: {arguments:?} is a circle of {seen:#?}");
        assert!(seen.len() < 10, "{name}: no end");
        let words: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (code, said) = run(lake, &words).await;
        if code == Some(0) {
            if first.first() == words.first() || !first.contains(&"--local") {
                return;
            }
            // The way was cleared: what was wanted is asked for again.
            arguments = first.iter().map(|&word| word.to_owned()).collect();
            continue;
        }
        let next = said["error"]["next"].as_str().unwrap_or_else(|| panic!("{name}: {said}")).to_owned();
        let Some(mut words) = next_command(&next) else {
            assert_eq!(said["error"]["name"], "AlreadyFinalized", "{name}: {arguments:?} ends with {said}");
            return;
        };
        if matches!(words[0].as_str(), "run" | "repair") && !words.iter().any(|word| word == "--local") {
            words.push("--local".to_owned());
        }
        if words.iter().any(|word| word == "--finalize") {
            for flag in ["--writes-paused", "--rollout-acknowledged"] {
                if !words.iter().any(|word| word == flag) {
                    words.push(flag.to_owned());
                }
            }
        }
        arguments = words;
    }
}

#[tokio::test]
async fn next_commands_end_from_every_state() {
    const FINALIZE: [&str; 5] = ["run", "--local", "--finalize", "--writes-paused", "--rollout-acknowledged"];
    let fresh = async || Lake::with_items(20).await;
    let copied = async || {
        let lake = Lake::with_items(20).await;
        lake.run(2).backfill().await.unwrap();
        lake
    };
    let lake = fresh().await;
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    follow(&lake, "a foreign barrier", &FINALIZE).await;
    // Its finalization failed on a difference and left the barrier.
    let lake = fresh().await;
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    lake.put(Side::V2, &metashift_sandbox::seed::key(3), b"stale").await;
    follow(
        &lake,
        "a foreign barrier over a difference",
        &[&FINALIZE[..], &["--adopt-foreign-barrier"]].concat(),
    )
    .await;
    assert!(lake.value(Side::V1, MARKER_KEY).await.is_some());
    let lake = copied().await;
    lake.put(Side::V2, &metashift_sandbox::seed::key(3), b"stale").await;
    follow(&lake, "a difference", &FINALIZE).await;
    assert!(lake.value(Side::V1, MARKER_KEY).await.is_some());
    let lake = copied().await;
    lake.put(Side::V1, FOREIGN_CURSOR_KEY, b"tbl/a").await;
    follow(&lake, "a foreign cursor", &["run", "--local"]).await;
    for first in [&["audit"][..], &["repair", "--local"], &FINALIZE, &["retire", "--dry-run"]] {
        let lake = copied().await;
        lake.publish().await;
        follow(&lake, "a foreign marker over a plan", first).await;
        let lake = fresh().await;
        lake.publish().await;
        follow(&lake, "a foreign marker without a plan", first).await;
    }
    let lake = copied().await;
    metashift::layout::generation::begin_repair(&lake.tables, "r").await.unwrap();
    follow(&lake, "an unfinished repair", &FINALIZE).await;
    let lake = copied().await;
    let held = metashift::layout::cutover::Start {
        on_failure: metashift::layout::records::plan::OnFailure::Hold,
        ..start("e1")
    };
    metashift::layout::cutover::install_barrier(&lake.tables, &held).await.unwrap();
    follow(&lake, "a held cutover", &["repair", "--local"]).await;
    follow(&lake, "after a held cutover", &FINALIZE).await;
}
