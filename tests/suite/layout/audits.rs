//! Audits after the marker, as the state machine makes them: looking for the plan, comparing, recording the verdict.

use metashift::layout::generation::follow_marker;
use metashift::layout::records::plan::State;
use metashift::layout::transaction::Side;
use metashift::layout::{input, steps};
use metashift::step::StepOutput;
use metashift::{ErrorKind, Result};
use serde_json::{Value, json};

use super::support::{Lake, TABLE};

async fn record(lake: &Lake, run: &str) -> Result<StepOutput> {
    let raw = json!({ "version": 1, "table": TABLE, "run": run });
    steps::record_audit(&lake.tables, input::parse(raw)?).await
}

async fn look(lake: &Lake) -> Result<StepOutput> {
    let raw = json!({ "version": 1, "table": TABLE, "mode": "audit" });
    steps::preflight(&lake.tables, input::parse(raw)?, None).await
}

fn verdict(output: &StepOutput) -> Value {
    let detail = |name: &str| output.details.get(name).cloned().unwrap_or_default();
    json!([detail("clean"), detail("mismatches"), detail("stamped")])
}

fn metrics(lake: &Lake, ended: &Result<StepOutput>) -> Value {
    let line = steps::metrics(lake.tables.environment(), "record-audit", None, ended, 0.1);
    serde_json::from_str(&line).unwrap()
}

#[tokio::test]
async fn an_audit_is_counted_and_the_first_clean_one_is_recorded() {
    let lake = Lake::with_items(30).await;
    lake.run(2).backfill().await.unwrap();
    lake.run(2).compare_as("early").await.unwrap();
    assert_eq!(record(&lake, "early").await.unwrap_err().kind(), ErrorKind::PlanMismatch);
    lake.publish().await;
    assert!(follow_marker(&lake.tables, false).await.unwrap());

    // Neither of them says anything about the tables after the marker.
    for (run, why) in [("early", "began before the marker"), ("never", "is not done: 0 of 4")] {
        let error = record(&lake, run).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PlanMismatch);
        assert!(error.message().contains(why), "{error}");
    }
    assert_eq!(lake.plan().await.unwrap().audited, None);

    // What v1-only nodes did unseen.
    lake.put(Side::V1, "tbl/late", b"v1-only").await;
    lake.remove(Side::V1, &metashift_sandbox::seed::key(3)).await;
    lake.run(2).compare_as("a").await.unwrap();
    let differs = record(&lake, "a").await;
    let said = metrics(&lake, &differs);
    assert_eq!(said["AuditMismatches"], 2.0, "{said}");
    assert_eq!(said["Mismatches"], Value::Null, "it is not counted twice");
    assert_eq!(verdict(&differs.unwrap()), json!([false, 2, false]));
    assert_eq!(lake.plan().await.unwrap().audited, None);

    lake.remove(Side::V1, "tbl/late").await;
    lake.remove(Side::V2, &metashift_sandbox::seed::key(3)).await;
    lake.run(2).compare_as("b").await.unwrap();
    let clean = record(&lake, "b").await;
    assert_eq!(metrics(&lake, &clean)["AuditMismatches"], 0.0);
    assert_eq!(verdict(&clean.unwrap()), json!([true, 0, true]));
    assert_eq!(lake.plan().await.unwrap().audited.unwrap().run, "b");

    // A later audit informs and takes nothing back.
    assert_eq!(verdict(&record(&lake, "a").await.unwrap()), json!([false, 2, true]));
    assert_eq!(lake.plan().await.unwrap().audited.unwrap().run, "b");
}

#[tokio::test]
async fn looking_for_an_audit_takes_no_table_over() {
    let lake = Lake::with_items(20).await;
    assert_eq!(look(&lake).await.unwrap_err().kind(), ErrorKind::PlanMismatch, "no plan");
    lake.run(2).backfill().await.unwrap();
    assert_eq!(look(&lake).await.unwrap_err().kind(), ErrorKind::PlanMismatch, "before the marker");
    lake.publish().await;
    let before = lake.everything().await;
    for error in [look(&lake).await.unwrap_err(), record(&lake, "a").await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::AlreadyFinalized);
        assert!(error.next_step().unwrap().contains("metashift layout run"), "{error}");
    }
    assert!(before == lake.everything().await, "looking changed something");
    assert!(follow_marker(&lake.tables, false).await.unwrap());
    let plan = look(&lake).await.unwrap().details["plan"].clone();
    assert_eq!((&plan["state"], &plan["segments"]), (&json!(State::Final), &json!(2)));
}
