//! A catalog's migration by the command, on an S3 API whose answers are lost, late or wrong.
//!
//! Whatever a run is told, it ends done or typed and retriable, and the next one on a healthy store ends as one that
//! suffered nothing.

use std::sync::Arc;
use std::time::Duration;

use metashift::catalog::location::Location;
use metashift::catalog::seed::{self, LAST_SNAPSHOT, Seed};
use metashift::environment::Environment;
use metashift::step::Budget;
use metashift_faults::{Fault, Proxy, Rule};
use serde_json::Value;

use super::ministack::Server;

const SEED: Seed =
    Seed { format: 8, schemas: 4, tables: 40, delete_files: 60, tombstones: 80, name_bytes: 8 };

fn budget() -> Budget {
    let environment = Environment::system();
    let until = environment.now() + Duration::from_secs(120);
    Budget::until(environment, until)
}

/// Exit code of a run through `endpoint`, and the error's name where it failed.
async fn run(endpoint: &str, path: &str) -> (Option<i32>, Option<String>) {
    let mut command = Server::command(endpoint);
    command.args(["catalog", "run", &format!("s3://lake/{path}"), "--local", "--checkpoint"]);
    let ended = tokio::time::timeout(Duration::from_secs(100), command.output());
    let output = ended.await.unwrap_or_else(|_| panic!("{path}: hangs")).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last: Value =
        text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let name = last.pointer("/error/name").and_then(Value::as_str).map(str::to_owned);
    (output.status.code(), name)
}

fn s3(status: u16, code: &str) -> Fault {
    Fault::S3Error { status, code: code.to_owned() }
}

/// What happens to writes, how often in a row, and whether the client's own retries get over it.
fn faults() -> Vec<(&'static str, Fault, u64)> {
    vec![
        ("conflict", s3(409, "ConditionalRequestConflict"), 1),
        ("precondition", s3(412, "PreconditionFailed"), 1),
        ("slow-down", s3(503, "SlowDown"), 2),
        ("internal", s3(500, "InternalError"), 2),
        ("answer-lost", Fault::DropAnswer, 1),
        ("request-lost", Fault::DropBefore, 2),
        ("500-after", Fault::Status { status: 500, forwarded: true }, 1),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_s3_answers_a_catalog_run_ends_done_or_typed_and_the_next_one_ends_as_without_faults() {
    let server = Server::start().await;
    let store = server.store();
    let whole = {
        let location = Location::new(Arc::clone(&store), "whole");
        seed::write(&location, SEED, &budget()).await.unwrap();
        assert_eq!(run(&server.endpoint(), "whole").await, (Some(0), None));
        seed::dump(&location, &budget()).await.unwrap()
    };
    for (name, fault, times) in faults() {
        // The first write of a run, one that fences, and one in the middle of its batches.
        for skip in [0, 2, 9] {
            let path = format!("{name}-{skip}");
            let location = Location::new(Arc::clone(&store), path.as_str());
            seed::write(&location, SEED, &budget()).await.unwrap();
            let proxy = Proxy::start(&server.endpoint(), 0).await.unwrap();
            proxy.add(Rule::new("fault", fault.clone()).on("PUT").path(&path).skip(skip).times(times));
            let (code, error) = run(&proxy.endpoint(), &path).await;
            println!("{path}: {code:?} {error:?}, {} hit", proxy.hits("fault"));
            assert_eq!(proxy.hits("fault"), times, "{path}");
            // Done, or retry later; only where the epoch is taken a lost answer looks like another migrator's write.
            let fenced = skip == 2 && code == Some(5);
            assert!(fenced || matches!(code, Some(0 | 4)), "{path}: {code:?} {error:?}");
            for snapshot in 0..=LAST_SNAPSHOT {
                seed::read_at(&location, snapshot, &budget()).await.unwrap();
            }
            let healthy = run(&server.endpoint(), &path).await;
            assert_eq!(healthy, (Some(0), None), "{path}");
            let after = seed::dump(&location, &budget()).await.unwrap();
            assert!(after == whole, "{path}: another end than without faults");
        }
    }
}
