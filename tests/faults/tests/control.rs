//! The control path over HTTP, and the binary, in front of a server that answers everything.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use metashift_faults::Proxy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server whose every answer is `{"done":true}`.
async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"done\":true}";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("http://{address}")
}

/// Status and body; `None` where the connection was closed instead.
async fn send(endpoint: &str, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder()
        .method(method)
        .uri(format!("{endpoint}{path}"))
        .header("x-amz-target", "DynamoDB_20120810.Scan")
        .body(Full::new(Bytes::from(body)));
    let answer = client.request(request.unwrap()).await.ok()?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    Some((status, serde_json::from_slice(&body).unwrap_or_default()))
}

fn rule(name: &str, fault: &Value) -> Value {
    json!({ "name": name, "operation": "Scan", "fault": fault })
}

async fn rules_come_and_go(endpoint: &str) {
    let control =
        async |method: &str, path: &str, body: Value| send(endpoint, method, path, &body).await.unwrap();
    let scan = async || send(endpoint, "POST", "/", &json!({ "TableName": "t" })).await;
    let done = Some((200, json!({ "done": true })));
    assert_eq!(scan().await, done);

    let dropped = rule("dropped", &json!({ "kind": "dropAnswer" }));
    let slow = rule("slow", &json!({ "kind": "status", "status": 503 }));
    assert_eq!(control("POST", "/__faults/rules", dropped.clone()).await.0, 200);
    assert_eq!(scan().await, None);
    let (status, listed) = control("GET", "/__faults/rules", Value::Null).await;
    assert_eq!(
        (status, &listed[0]["name"], &listed[0]["fault"]),
        (200, &json!("dropped"), &dropped["fault"])
    );

    // One of the same name takes its place; several come at once; the first that hits decides.
    let gone = rule("dropped", &json!({ "kind": "error", "name": "ThrottlingException" }));
    assert_eq!(control("POST", "/__faults/rules", json!([slow, gone])).await.0, 200);
    assert_eq!(scan().await.unwrap().0, 503);
    assert_eq!(control("DELETE", "/__faults/rules/slow", Value::Null).await.0, 200);
    let (status, body) = scan().await.unwrap();
    assert_eq!(status, 400);
    assert!(body["__type"].as_str().unwrap().ends_with("#ThrottlingException"));

    for bad in [json!({ "name": "x" }), rule("x", &json!({ "kind": "mischief" })), json!([1])] {
        let (status, answer) = control("POST", "/__faults/rules", bad).await;
        assert!(status == 400 && answer["error"].is_string(), "{status} {answer}");
    }
    assert_eq!(control("DELETE", "/__faults/rules/nobody", Value::Null).await.0, 404);
    assert_eq!(control("POST", "/__faults/release/nobody", Value::Null).await.0, 404);
    assert_eq!(control("GET", "/__faults/what", Value::Null).await.0, 404);

    assert_eq!(control("DELETE", "/__faults/rules", Value::Null).await.0, 200);
    let held = rule("held", &json!({ "kind": "hold" }));
    assert_eq!(control("POST", "/__faults/rules", held).await.0, 200);
    let waiting = {
        let endpoint = endpoint.to_owned();
        tokio::spawn(async move { send(&endpoint, "POST", "/", &json!({})).await })
    };
    let hits = async |name: &str| {
        let (_, statistics) = control("GET", "/__faults/statistics", Value::Null).await;
        (statistics["hits"][name].as_u64().unwrap(), statistics["calls"]["Scan"].as_u64().unwrap())
    };
    while hits("held").await.0 == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    assert_eq!(control("POST", "/__faults/release/held", Value::Null).await.0, 200);
    assert_eq!(waiting.await.unwrap(), done);
    assert_eq!(hits("held").await, (1, 5));
    assert_eq!(control("DELETE", "/__faults/rules", Value::Null).await.0, 200);
    assert_eq!(scan().await, done);
}

#[tokio::test]
async fn rules_come_go_replace_each_other_and_let_go_over_the_control_path() {
    let proxy = Proxy::start(&upstream().await, 0).await.unwrap();
    rules_come_and_go(&proxy.endpoint()).await;
}

/// Killed when it is dropped.
struct Binary(Child);

impl Drop for Binary {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[tokio::test]
async fn the_binary_says_where_it_listens_takes_rules_from_a_file_and_over_http() {
    let folder = std::env::temp_dir().join(format!("metashift-faults-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("rules.json");
    let first = rule("first", &json!({ "kind": "status", "status": 500 }));
    std::fs::write(&file, json!([first]).to_string()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_metashift-faults"))
        .args(["--upstream", &upstream().await, "--rules"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let _binary = Binary(child);
    let endpoint = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        line.trim().to_owned()
    });
    let endpoint = endpoint.await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(send(&endpoint, "POST", "/", &json!({})).await.unwrap().0, 500);
    assert_eq!(send(&endpoint, "DELETE", "/__faults/rules", &Value::Null).await.unwrap().0, 200);
    let (_, statistics) = send(&endpoint, "GET", "/__faults/statistics", &Value::Null).await.unwrap();
    assert_eq!(statistics["hits"]["first"], 1);
}
