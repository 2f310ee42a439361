//! Several operators on one table: plans that change under a run, epochs that come late, a layout that was a slip.

use std::time::Duration;

use metashift::ErrorKind;
use metashift::layout::cutover::{Start, Why, install_barrier, release_barrier};
use metashift::layout::plan::Seen;
use metashift::layout::records::plan::{KEY as PLAN_KEY, State};
use metashift::layout::records::segment::Walk;
use metashift::layout::records::{BARRIER_KEY, MARKER_KEY};
use metashift::layout::transaction::Side;
use metashift::layout::verify::verify;
use metashift::layout::walk::SegmentInput;
use metashift_faults::{Fault, Rule};
use serde_json::Value;
use tokio::process::Command;

use super::support::{Lake, TABLE, pages, start};

fn command(endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().args(["--json", "layout"]).args(arguments);
    command.args(["--table", TABLE, "--endpoint", endpoint]).kill_on_drop(true);
    command
}

async fn run(lake: &Lake, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = command(&lake.server.endpoint(), arguments).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    (output.status.code(), last.unwrap_or_default())
}

const FINALIZE: [&str; 5] = ["run", "--local", "--finalize", "--writes-paused", "--rollout-acknowledged"];

#[tokio::test]
async fn a_new_generation_ends_a_running_finalize_and_nothing_is_published() {
    let lake = Lake::with_items(600).await;
    assert_eq!(run(&lake, &["run", "--local", "--segments", "64"]).await.0, Some(0));
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("held", Fault::Hold).on("TransactWriteItems").mentioning("/rehearse/").times(1));
    let mut finalize = command(&proxy.endpoint(), &FINALIZE);
    let finalize = finalize.stdout(std::process::Stdio::piped()).spawn().unwrap();
    proxy.reached("held", 1).await;
    let (code, said) = run(&lake, &["run", "--local", "--new-generation", "--segments", "1"]).await;
    assert_eq!(code, Some(0), "{said}");
    // Only a comparison with the segments of the plan as it is now finds this one.
    lake.put(Side::V1, "tbl/v1-only", b"lost").await;
    proxy.release("held");
    let output = finalize.wait_with_output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("Superseded"), "{text}");
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    // And the next one does find it.
    assert_eq!(run(&lake, &FINALIZE).await.0, Some(3));
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
}

#[tokio::test]
async fn a_generation_that_began_after_the_rehearsal_is_not_cut_over() {
    let lake = Lake::with_items(50).await;
    lake.run(2).backfill().await.unwrap();
    let seen = Seen::of(&lake.plan().await.unwrap());
    let next = metashift::layout::run::Run {
        wish: metashift::layout::generation::PlanWish { segments: Some(3), new_generation: true },
        ..lake.run(3)
    };
    next.backfill().await.unwrap();
    let error = install_barrier(&lake.tables, &Start { seen: Some(seen), ..start("e1") }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Superseded, "{error}");
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    let seen = Seen::of(&lake.plan().await.unwrap());
    install_barrier(&lake.tables, &Start { seen: Some(seen), ..start("e1") }).await.unwrap();
}

#[tokio::test]
async fn verify_refuses_a_number_of_segments_that_is_not_the_plans() {
    let lake = Lake::with_items(50).await;
    lake.run(4).backfill().await.unwrap();
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    for segments in [1, 2, 8] {
        let input = SegmentInput { segment: 0, segments, page_size: 100 };
        let error = verify(&lake.tables, "e1", Side::V1, false, input, pages(9)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PlanMismatch, "{segments}: {error}");
    }
    assert_eq!(lake.segment(&Walk::Verify { epoch: "e1".to_owned(), side: Side::V1 }, 0).await, None);
}

#[tokio::test]
async fn a_rehearsal_id_of_other_segments_is_refused() {
    let lake = Lake::with_items(120).await;
    lake.run(8).backfill().await.unwrap();
    let (summary, _) = lake.run(8).compare_as("r").await.unwrap();
    assert_eq!((summary.done, summary.v1_items), (16, 120));
    let wish = metashift::layout::generation::PlanWish { segments: Some(2), new_generation: true };
    let next = metashift::layout::run::Run { wish, ..lake.run(2) };
    next.backfill().await.unwrap();
    // Two records of eight say nothing about the whole table.
    let error = next.compare_as("r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PlanMismatch, "{error}");
    assert_eq!(next.compare_as("s").await.unwrap().0.v1_items, 120);
    let error = lake.run(2).survey("x", 2).await.map(|_| ());
    assert!(error.is_ok());
    let error = lake.run(2).survey("x", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PlanMismatch, "{error}");
}

#[tokio::test]
async fn an_ended_epoch_never_begins_again() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    for epoch in ["e1", "e2"] {
        install_barrier(&lake.tables, &start(epoch)).await.unwrap();
        release_barrier(&lake.tables, Some(epoch), Why::Failure).await.unwrap();
    }
    // A run that failed before its barrier: whatever it still has on its way begins nothing.
    release_barrier(&lake.tables, Some("e3"), Why::OwnerEnded).await.unwrap();
    for epoch in ["e1", "e2", "e3"] {
        let error = install_barrier(&lake.tables, &start(epoch)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{epoch}: {error}");
    }
    let plan = lake.plan().await.unwrap();
    assert_eq!((plan.state, plan.cutovers), (State::Open, 3));
    // Released again, it is no news.
    release_barrier(&lake.tables, Some("e3"), Why::OwnerEnded).await.unwrap();
    assert_eq!(lake.plan().await.unwrap(), plan);
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
}

#[tokio::test]
async fn a_slip_in_the_layout_is_left_by_a_new_generation() {
    let lake = Lake::with_items(80).await;
    let folder = std::env::temp_dir().join(format!("metashift-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("slip.json");
    std::fs::write(&file, br#"{"version":1,"default":9,"families":{}}"#).unwrap();
    let slip = file.to_str().unwrap();
    let (code, said) = run(&lake, &["run", "--local", "--segments", "2", "--layout", slip]).await;
    assert_eq!(code, Some(0), "{said}");
    for arguments in [&["run", "--local"][..], &["repair", "--local"]] {
        let (code, said) = run(&lake, arguments).await;
        assert_eq!((code, said["error"]["name"].as_str()), (Some(2), Some("LayoutMismatch")), "{said}");
        assert!(said["error"]["next"].as_str().unwrap().contains("--new-generation"), "{said}");
    }
    // Also where a repair under the slip was left half-way.
    let plan = lake.value(Side::V1, PLAN_KEY).await.unwrap();
    let mut plan: Value = serde_json::from_slice(&plan).unwrap();
    plan["state"] = "repairing".into();
    plan["repairRun"] = "r".into();
    lake.put(Side::V1, PLAN_KEY, &serde_json::to_vec(&plan).unwrap()).await;
    let (code, said) = run(&lake, &["run", "--local", "--new-generation"]).await;
    assert_eq!(code, Some(0), "{said}");
    let plan = lake.plan().await.unwrap();
    assert_eq!((plan.generation, plan.layout), (1, lake.tables.layout().fingerprint()));
    // What the slip put elsewhere is found and taken away.
    assert_eq!(run(&lake, &["repair", "--local"]).await.0, Some(0));
    assert_eq!(run(&lake, &FINALIZE).await.0, Some(0));
    assert_eq!(lake.assert_equal().await, 80);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_plan_of_version_1_becomes_one_of_version_2_when_it_is_open() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    let as_version_1 = async |state: &str, extra: &str| {
        let plan = format!(
            r#"{{"version":1,"layout":"{}","companion":"{TABLE}_prefix_v2","segments":2,"generation":0,"state":"{state}"{extra}}}"#,
            lake.tables.layout().fingerprint()
        );
        lake.put(Side::V1, PLAN_KEY, plan.as_bytes()).await;
    };
    as_version_1("open", "").await;
    lake.run(2).backfill().await.unwrap();
    assert_eq!(lake.plan().await.unwrap().version, 2);
    as_version_1("open", "").await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    assert_eq!(lake.plan().await.unwrap().version, 2);
    release_barrier(&lake.tables, None, Why::Abort).await.unwrap();
    as_version_1("repairing", r#","repairRun":"r""#).await;
    lake.run(2).repair().await.unwrap();
    assert_eq!(lake.plan().await.unwrap().version, 1, "it was not open");
    lake.run(2)
        .finalize(
            &Start { deadline: Duration::from_secs(60), ..start("e2") },
            &super::support::acknowledged(),
        )
        .await
        .unwrap();
    assert_eq!(lake.assert_equal().await, 20);
}
