//! `layout run` without `--local`: which execution of a deployed state machine it follows. On a server with the API of
//! Step Functions, with a machine that waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_sfn::Client;
use aws_sdk_sfn::config::{BehaviorVersion, Credentials, Region};
use serde_json::{Value, json};
use tokio::process::Command;

use super::super::http::Recorder;
use super::super::ministack::Server;
use super::support::{Lake, TABLE};

/// Waits for an hour, like a run that has much to do.
const WAITING: &str = r#"{"StartAt":"Work","States":{"Work":{"Type":"Wait","Seconds":3600,"End":true}}}"#;

/// Exit code and last line of `layout` with these arguments.
async fn layout(server: &Server, lake: &Lake, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = Server::command(&server.endpoint());
    command.arg("layout").args(arguments).args(["--endpoint", &lake.server.endpoint()]);
    // An execution that is followed does not end by itself.
    let output = tokio::time::timeout(Duration::from_secs(30), command.output());
    let output = output.await.unwrap_or_else(|_| panic!("{arguments:?}: it is followed")).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    (output.status.code(), last.unwrap_or_default())
}

/// A client, and the ARN of a machine that waits.
async fn waiting_machine(server: &Server) -> (Client, String) {
    let config = aws_sdk_sfn::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(server.endpoint());
    let machines = Client::from_conf(config.build());
    let machine = machines
        .create_state_machine()
        .name("test-dynamodb-layout")
        .role_arn("arn:aws:iam::000000000000:role/test")
        .definition(WAITING);
    let machine = machine.send().await.unwrap().state_machine_arn;
    (machines, machine)
}

#[tokio::test]
async fn a_run_follows_an_execution_of_its_own_mode_and_table_and_refuses_any_other() {
    let server = Server::start().await;
    let lake = Lake::with_items(5).await;
    let (machines, machine) = waiting_machine(&server).await;
    let companion = format!("{TABLE}_prefix_v2");
    let input = json!({ "version": 1, "table": TABLE, "companion": companion, "mode": "backfill" });
    let running =
        machines.start_execution().state_machine_arn(&machine).name("first").input(input.to_string());
    let running = running.send().await.unwrap().execution_arn;

    let finalize = ["--finalize", "--writes-paused", "--rollout-acknowledged"];
    let by_itself = |table: &'static str, flags: &[&'static str]| {
        [&["run", "--table", table][..], flags].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let by_name = |table: &'static str, flags: &[&'static str]| {
        let named = ["--attach".to_owned(), running.clone()];
        [by_itself(table, flags), named.to_vec()].concat()
    };
    for (arguments, differs) in [
        (by_itself(TABLE, &finalize), "mode"),
        (by_itself("another", &[]), "table"),
        (by_name(TABLE, &finalize), "mode"),
        (by_name("another", &[]), "table"),
        (by_itself(TABLE, &["--new-generation", "--segments", "8"]), "newGeneration"),
        (by_itself(TABLE, &["--segments", "8"]), "segments"),
        (by_name(TABLE, &["--page-size", "7"]), "pageSize"),
        (by_itself(TABLE, &["--companion", "elsewhere"]), "companion"),
        (by_itself(TABLE, &["--allow-ttl"]), "allowTtl"),
    ] {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (code, said) = layout(&server, &lake, &arguments).await;
        let error = &said["error"];
        assert_eq!((code, error["name"].as_str()), (Some(5), Some("Superseded")), "{arguments:?}: {said}");
        assert!(error["message"].as_str().unwrap().contains(differs), "{error}");
    }
    let all = machines.list_executions().state_machine_arn(&machine).send().await.unwrap();
    assert_eq!(all.executions.len(), 1, "a refused command has started something");

    // The same work is followed, not started a second time.
    machines.stop_execution().execution_arn(&running).send().await.unwrap();
    let (code, said) = layout(&server, &lake, &["run", "--table", TABLE, "--attach", &running]).await;
    assert_eq!((code, said["error"]["name"].as_str()), (Some(5), Some("Superseded")), "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("stopped by somebody"), "{said}");
}

/// An API of Step Functions with one execution: `failing` fails its looks after the first, then the run has succeeded.
async fn followed(failures: u32, code: &'static str) -> (Option<i32>, Value) {
    let lake = Lake::with_items(5).await;
    let looks = AtomicU32::new(0);
    let api = Recorder::start(move |seen| {
        let kind = "Content-Type: application/x-amz-json-1.0\r\n".to_owned();
        assert!(seen.header("x-amz-target").ends_with("DescribeExecution"), "{seen:?}");
        let look = looks.fetch_add(1, Ordering::SeqCst);
        if (1..=failures).contains(&look) {
            return (
                400,
                kind,
                json!({ "__type": format!("x#{code}"), "message": "so it says" }).to_string(),
            );
        }
        let input = json!({
            "version": 1, "mode": "backfill", "table": TABLE, "companion": format!("{TABLE}_prefix_v2"),
        });
        let answer = json!({
            "executionArn": ARN, "stateMachineArn": ARN, "status": "SUCCEEDED", "startDate": 1.0,
            "input": input.to_string(), "output": json!({ "status": "done" }).to_string(),
        });
        (200, kind, answer.to_string())
    })
    .await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().env("AWS_ENDPOINT_URL_SFN", api.endpoint()).env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    command.args(["--json", "layout", "run", "--table", TABLE, "--endpoint", &lake.server.endpoint()]);
    command.args(["--attach", ARN]).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
    let output = output.expect("it ends").unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    (output.status.code(), last.unwrap_or_default())
}

const ARN: &str = "arn:aws:states:us-east-1:000000000000:execution:x-dynamodb-layout:run";

#[tokio::test]
async fn who_follows_an_execution_outlasts_throttling_and_says_that_a_token_has_expired() {
    // More than the SDK repeats by itself.
    let (code, said) = followed(4, "ThrottlingException").await;
    assert_eq!((code, said["status"].as_str()), (Some(0), Some("done")), "{said}");
    let (code, said) = followed(99, "ExpiredTokenException").await;
    assert_eq!((code, said["error"]["name"].as_str()), (Some(2), Some("AccessDenied")), "{said}");
    assert!(said["error"]["next"].as_str().unwrap().contains("sign in again"), "{said}");
}

#[tokio::test]
async fn the_audits_of_an_earlier_cutover_are_no_run_that_another_one_waits_for() {
    let server = Server::start().await;
    let lake = Lake::with_items(5).await;
    let (machines, machine) = waiting_machine(&server).await;
    let input = json!({ "version": 1, "table": TABLE, "mode": "audit" });
    let audit =
        machines.start_execution().state_machine_arn(&machine).name("seen-audit").input(input.to_string());
    let audit = audit.send().await.unwrap().execution_arn;
    let begun = async {
        loop {
            let all = machines.list_executions().state_machine_arn(&machine).send().await.unwrap();
            if let Some(other) = all.executions.iter().find(|one| one.execution_arn != audit) {
                let started = machines.describe_execution().execution_arn(&other.execution_arn).send();
                let input: Value = serde_json::from_str(started.await.unwrap().input().unwrap()).unwrap();
                machines.stop_execution().execution_arn(&other.execution_arn).send().await.unwrap();
                break input;
            }
        }
    };
    let finalize = ["run", "--table", TABLE, "--finalize", "--writes-paused", "--rollout-acknowledged"];
    let finalize = [&finalize[..], &["--audit-after", "60,120"]].concat();
    let begun = tokio::time::timeout(Duration::from_secs(30), begun);
    let (ended, started) = tokio::join!(layout(&server, &lake, &finalize), begun);
    let started = started.unwrap_or_else(|_| panic!("no run was started: {}", ended.1));
    assert_eq!((&started["mode"], &started["auditAfterSeconds"]), (&json!("finalize"), &json!([60, 120])));
    assert_eq!(ended.0, Some(5), "it was stopped: {}", ended.1);
    assert!(ended.1["error"]["message"].as_str().unwrap().contains("stopped by somebody"), "{}", ended.1);
}
