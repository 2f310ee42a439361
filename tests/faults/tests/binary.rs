//! The binary between a server and its clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot reach what it has started has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

fn request(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_binary_says_where_it_listens_and_takes_rules_there() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_metashift-faults"))
        .args(["--upstream", &format!("http://{}", upstream.local_addr().unwrap())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap();
    let rule = r#"{"name":"busy","operation":"GET","fault":{"kind":"status","status":503}}"#;
    assert!(request(address, "POST /__faults/rules", rule).starts_with("HTTP/1.1 200"));
    assert!(request(address, "GET /bucket/key", "").starts_with("HTTP/1.1 503"));
    let statistics = request(address, "GET /__faults/statistics", "");
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    assert!(statistics.contains(r#""busy":1"#), "{statistics}");
}
