//! One HTTP request, as `curl` would send it, and a server that keeps what it is asked.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Status and body of the answer; `endpoint` is `http://host:port`.
pub(crate) async fn send(
    endpoint: &str,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let host = endpoint.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    status.zip(body).ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {answer:?}")))
}

/// What a [`Recorder`] has seen of a request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Method and path, as `GET /path`.
    pub(crate) line: String,
    /// The head, line by line.
    pub(crate) head: String,
    /// The body.
    pub(crate) body: String,
}

impl Seen {
    /// A header; names in lower case.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        });
        found.unwrap_or_default()
    }

    /// Who signed it: key id, region and service of its credential scope.
    pub(crate) fn signer(&self) -> (String, String, String) {
        let scope = self.header("authorization").split("Credential=").nth(1).unwrap_or_default();
        let mut parts = scope.split(',').next().unwrap_or_default().split('/').map(str::to_owned);
        let mut next = |skip: usize| parts.nth(skip).unwrap_or_default();
        (next(0), next(1), next(0))
    }
}

/// A server that answers each request by a function of it, and keeps what it has seen.
pub(crate) struct Recorder {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Recorder {
    /// `answer` gives status, headers (each line ended) and body.
    pub(crate) async fn start(
        answer: impl Fn(&Seen) -> (u16, String, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (Arc::clone(&seen), Arc::new(answer));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    // A client that goes away in the middle of a request has its reasons.
                    while let Ok(Some(request)) = read(&mut stream).await {
                        let (status, headers, body) = answer(&request);
                        let bare = request.line.starts_with("HEAD ");
                        kept.lock().unwrap().push(request);
                        let text = format!(
                            "HTTP/1.1 {status} Answer\r\n{headers}Content-Length: {}\r\n\r\n{}",
                            body.len(),
                            if bare { "" } else { &body }
                        );
                        if stream.write_all(text.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, seen, serving }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// The next request of a connection; `None` at its end.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Seen>> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let line = head.lines().next().unwrap_or_default().rsplit_once(' ').map(|(line, _)| line.to_owned());
    let mut seen = Seen { line: line.unwrap_or_default(), head, body: String::new() };
    let mut body = vec![0; seen.header("content-length").parse().unwrap_or_default()];
    stream.read_exact(&mut body).await?;
    seen.body = String::from_utf8_lossy(&body).into_owned();
    Ok(Some(seen))
}
