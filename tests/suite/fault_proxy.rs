//! The fault proxy as a process of its own, between the command and a server, with rules that come in while it runs.

use std::process::Stdio;

use metashift::layout::records::{MARKER_KEY, MARKER_VALUE};
use metashift::layout::transaction::Side;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::http;
use super::layout::support::{Lake, TABLE};

/// The proxy's binary, which a build of the workspace puts beside the command.
async fn start(upstream: &str) -> (Child, String) {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_metashift")).with_file_name("metashift-faults");
    let mut child = Command::new(&program)
        .args(["--upstream", upstream])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}; build it: cargo test --workspace", program.display()));
    let endpoint = BufReader::new(child.stdout.take().unwrap()).lines().next_line().await.unwrap().unwrap();
    (child, endpoint)
}

async fn metashift(endpoint: &str, arguments: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().args(["--json", "layout", "run", "--local", "--segments", "2", "--page-size", "20"]);
    command.args(arguments).args(["--table", TABLE, "--endpoint", endpoint]);
    command.kill_on_drop(true).output().await.unwrap().status.code()
}

#[tokio::test]
async fn rules_that_come_in_over_http_hit_the_requests_of_a_command_that_runs_through_the_binary() {
    let lake = Lake::with_items(90).await;
    let (_proxy, endpoint) = start(&lake.server.endpoint()).await;
    let post = async |rule: Value| http::send(&endpoint, "POST", "/__faults/rules", &rule.to_string()).await;
    let hits = async |name: &str| {
        let (_, text) = http::send(&endpoint, "GET", "/__faults/statistics", "").await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["hits"][name].as_u64()
    };

    let denied = json!({
        "name": "denied", "operation": "TransactWriteItems",
        "fault": { "kind": "error", "name": "AccessDeniedException" },
    });
    assert_eq!(post(denied).await.unwrap().0, 200);
    assert_eq!(metashift(&endpoint, &[]).await, Some(2));
    assert_eq!(hits("denied").await, Some(1));
    let (status, _) = http::send(&endpoint, "DELETE", "/__faults/rules/denied", "").await.unwrap();
    assert_eq!(status, 200);

    let rules = json!([
        { "name": "lost", "operation": "TransactWriteItems", "times": 5, "fault": { "kind": "dropAnswer" } },
        { "name": "throttled", "operation": "Scan", "table": "lake", "times": 3,
          "fault": { "kind": "error", "name": "ThrottlingException" } },
    ]);
    assert_eq!(post(rules).await.unwrap().0, 200);
    let finalize = ["--finalize", "--writes-paused", "--rollout-acknowledged"];
    assert_eq!(metashift(&endpoint, &finalize).await, Some(0));
    assert_eq!((hits("lost").await, hits("throttled").await), (Some(5), Some(3)));
    assert_eq!(lake.assert_equal().await, 90);
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await.as_deref(), Some(MARKER_VALUE));
}
