//! The proxy itself: one task a connection, every request forwarded by a task of its own, so that a client that has
//! gone does not take its request with it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::rule::{Fault, Rule, Seen};
use crate::{answer, control};

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Body = BoxBody<Bytes, Failed>;

/// What has passed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// Requests by operation (or HTTP method), the refused ones included.
    pub calls: BTreeMap<String, u64>,
    /// Requests that each rule hit, since it was added.
    pub hits: BTreeMap<String, u64>,
    /// Read request units that forwarded answers say were charged.
    pub read_units: f64,
    /// Write request units that forwarded answers say were charged.
    pub write_units: f64,
}

/// A request that a rule has kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// `X-Amz-Date`: when it was signed.
    pub signed: String,
    /// The body, to the byte.
    pub body: Bytes,
}

struct Active {
    rule: Rule,
    matched: u64,
    hits: u64,
    kept: Vec<Kept>,
    released: watch::Sender<bool>,
}

/// What connections, the control path and the owner share.
pub(crate) struct Shared {
    upstream: Uri,
    client: Client<HttpConnector, Full<Bytes>>,
    rules: Mutex<Vec<Active>>,
    statistics: Mutex<Statistics>,
    hit: watch::Sender<()>,
    in_flight: watch::Sender<usize>,
}

/// Counts a request for as long as it lives.
struct InFlight(Arc<Shared>);

impl InFlight {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.in_flight.send_modify(|count| *count += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|count| *count -= 1);
    }
}

/// A request, whole.
struct Whole {
    method: Method,
    path: String,
    headers: HeaderMap,
    operation: String,
    body: Bytes,
}

impl Whole {
    fn signed(&self) -> &str {
        self.headers.get("x-amz-date").and_then(|date| date.to_str().ok()).unwrap_or_default()
    }
}

impl Shared {
    fn locked<T>(&self, look: impl FnOnce(&mut Vec<Active>) -> T) -> T {
        look(&mut self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, change: impl FnOnce(&mut Statistics)) {
        change(&mut self.statistics.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn add(&self, rule: Rule) {
        self.remove(&rule.name);
        self.count(|statistics| {
            statistics.hits.insert(rule.name.clone(), 0);
        });
        self.locked(|rules| {
            rules.push(Active {
                rule,
                matched: 0,
                hits: 0,
                kept: Vec::new(),
                released: watch::Sender::new(false),
            });
        });
    }

    pub(crate) fn rules(&self) -> Vec<Rule> {
        self.locked(|rules| rules.iter().map(|active| active.rule.clone()).collect())
    }

    pub(crate) fn clear(&self) {
        self.locked(|rules| {
            for active in rules.drain(..) {
                active.released.send_replace(true);
            }
        });
    }

    /// Removes a rule and lets go what it holds; `false` where there is none of that name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let found = self.release(name);
        self.locked(|rules| rules.retain(|active| active.rule.name != name));
        found
    }

    pub(crate) fn release(&self, name: &str) -> bool {
        self.locked(|rules| {
            let found = rules.iter().find(|active| active.rule.name == name);
            found.map(|active| active.released.send_replace(true)).is_some()
        })
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The fault of the first rule that hits this request, the number of the hit, and the rule's release.
    fn decide(&self, request: &Whole) -> Option<(Fault, u64, watch::Receiver<bool>)> {
        let body = String::from_utf8_lossy(&request.body);
        let seen = Seen { operation: &request.operation, path: &request.path, body: &body };
        let hit = self.locked(|rules| {
            for active in rules.iter_mut().filter(|active| active.rule.matches(seen)) {
                let matched = active.matched;
                active.matched += 1;
                if active.rule.hits(matched, active.hits) {
                    active.hits += 1;
                    if active.rule.keep {
                        let (signed, body) = (request.signed().to_owned(), request.body.clone());
                        active.kept.push(Kept { signed, body });
                    }
                    let name = active.rule.name.clone();
                    return Some((name, active.rule.fault.clone(), active.hits, active.released.subscribe()));
                }
            }
            None
        });
        let (name, fault, number, released) = hit?;
        self.count(|statistics| *statistics.hits.entry(name).or_default() += 1);
        self.hit.send_replace(());
        Some((fault, number, released))
    }

    async fn forward(&self, request: &Whole, body: Bytes) -> Result<Response<Bytes>, Failed> {
        let mut parts = self.upstream.clone().into_parts();
        parts.path_and_query = Some(request.path.parse()?);
        let mut forwarded = Request::builder().method(request.method.clone()).uri(Uri::from_parts(parts)?);
        for (name, value) in &request.headers {
            if name != CONTENT_LENGTH && name != TRANSFER_ENCODING {
                forwarded = forwarded.header(name, value);
            }
        }
        let answer = self.client.request(forwarded.body(Full::new(body))?).await?;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        let units = answer::units(&body);
        let writes = matches!(
            request.operation.as_str(),
            "TransactWriteItems" | "PutItem" | "DeleteItem" | "UpdateItem" | "BatchWriteItem"
        );
        self.count(|statistics| {
            if writes {
                statistics.write_units += units;
            } else {
                statistics.read_units += units;
            }
        });
        Ok(Response::from_parts(parts, body))
    }

    /// The answer; an error closes the connection.
    async fn serve(self: Arc<Self>, request: Whole) -> Result<Response<Body>, Failed> {
        let body = request.body.clone();
        let Some((fault, number, mut released)) = self.decide(&request) else {
            return self.forward(&request, body).await.map(whole);
        };
        match fault {
            Fault::DropBefore => Err("dropped before it was forwarded".into()),
            Fault::DropAnswer => {
                self.forward(&request, body).await?;
                Err("the answer was dropped".into())
            }
            Fault::Cut => Ok(cut(self.forward(&request, body).await?)),
            Fault::Delay { millis } => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                self.forward(&request, body).await.map(whole)
            }
            Fault::Hold => {
                released.wait_for(|released| *released).await?;
                self.forward(&request, body).await.map(whole)
            }
            Fault::Stray { millis } => {
                let in_flight = InFlight::new(&self);
                tokio::spawn(async move {
                    let _in_flight = in_flight;
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    let _unseen = self.forward(&request, body).await;
                });
                Err("on its way alone".into())
            }
            Fault::Status { status, forwarded } => {
                if forwarded {
                    self.forward(&request, body).await?;
                }
                json(status, String::new())
            }
            Fault::Error { name } => {
                let (status, body) = answer::dynamodb_error(&name);
                json(status, body)
            }
            Fault::Cancel { reasons } => {
                let actions = answer::actions(&String::from_utf8_lossy(&request.body));
                let (status, body) = answer::cancelled(&reasons, actions);
                json(status, body)
            }
            Fault::Clock { ahead, refuses } => {
                let (now, good) = answer::clock(ahead, request.signed());
                let mut answer = if refuses && !good {
                    let (status, body) = answer::dynamodb_error("InvalidSignatureException");
                    json(status, body)?
                } else {
                    whole(self.forward(&request, body).await?)
                };
                answer.headers_mut().insert(DATE, now.parse()?);
                Ok(answer)
            }
            Fault::S3Error { status, code } => {
                let body = answer::s3_error(&code, &request.path);
                response(status, "application/xml", body)
            }
            Fault::Answer { body } => json(200, body.replace("{n}", &format!("{number:06}"))),
            Fault::Blind { action, table, key, idle } => {
                let text = String::from_utf8_lossy(&request.body);
                let blind = answer::blinded(&text, &action, &table, &key, idle).map_or(body, Bytes::from);
                self.forward(&request, blind).await.map(whole)
            }
            Fault::Date { seconds } => Ok(dated(self.forward(&request, body).await?, seconds)),
            Fault::Forgotten { times } => {
                let text = String::from_utf8_lossy(&request.body);
                let other = answer::forgotten(&text, times).map_or(body, Bytes::from);
                self.forward(&request, other).await.map(whole)
            }
            Fault::Unprocessed => {
                let halves = answer::halve(&String::from_utf8_lossy(&request.body));
                let Some((first, left)) =
                    halves.filter(|(_, left)| left.as_object().is_some_and(|left| !left.is_empty()))
                else {
                    return self.forward(&request, body).await.map(whole);
                };
                let answered = self.forward(&request, Bytes::from(first)).await?;
                match answer::with_unprocessed(answered.body(), left) {
                    Some(body) => json(200, body),
                    None => Ok(whole(answered)),
                }
            }
        }
    }
}

/// An answer as it came.
fn whole(answer: Response<Bytes>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    parts.headers.remove(TRANSFER_ENCODING);
    Response::from_parts(parts, Full::new(body).map_err(never).boxed())
}

/// Half of an answer's body, then nothing more.
fn cut(answer: Response<Bytes>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    parts.headers.remove(TRANSFER_ENCODING);
    parts.headers.insert(CONTENT_LENGTH, body.len().into());
    let half = body.slice(..body.len() / 2);
    let frames: [Result<Frame<Bytes>, Failed>; 2] = [Ok(Frame::data(half)), Err("cut".into())];
    Response::from_parts(parts, BodyExt::boxed(StreamBody::new(stream::iter(frames))))
}

/// An answer of another time.
fn dated(mut answer: Response<Bytes>, seconds: Option<i64>) -> Response<Body> {
    let now = answer.headers_mut().remove(DATE).and_then(|date| answer::later(date.to_str().ok()?, seconds?));
    // An empty header is none to a client, and keeps the server of this proxy from adding its own.
    let date = now.and_then(|text| HeaderValue::from_str(&text).ok()).unwrap_or(HeaderValue::from_static(""));
    answer.headers_mut().insert(DATE, date);
    whole(answer)
}

fn never(never: Infallible) -> Failed {
    match never {}
}

fn json(status: u16, body: String) -> Result<Response<Body>, Failed> {
    response(status, "application/x-amz-json-1.0", body)
}

fn response(status: u16, kind: &str, body: String) -> Result<Response<Body>, Failed> {
    let body = Full::new(Bytes::from(body)).map_err(never).boxed();
    Ok(Response::builder().status(StatusCode::from_u16(status)?).header(CONTENT_TYPE, kind).body(body)?)
}

async fn take(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    if path.starts_with(control::PREFIX) {
        let (status, body) = control::answer(&shared, &parts.method, &path, &body);
        return response(status, "application/json", body);
    }
    let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    let operation =
        target.and_then(|target| target.rsplit('.').next()).unwrap_or(parts.method.as_str()).to_owned();
    shared.count(|statistics| *statistics.calls.entry(operation.clone()).or_default() += 1);
    let request = Whole { method: parts.method, path, headers: parts.headers, operation, body };
    let in_flight = InFlight::new(&shared);
    let served = async move {
        let _in_flight = in_flight;
        shared.serve(request).await
    };
    tokio::spawn(served).await?
}

/// A running proxy; stops when it is dropped, and what it holds is never forwarded.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listens on a loopback port (0: a free one) in front of `upstream`, `http://host:port`.
    pub async fn start(upstream: &str, port: u16) -> std::io::Result<Self> {
        let upstream: Uri = upstream.parse().map_err(std::io::Error::other)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            client: Client::builder(TokioExecutor::new()).build_http(),
            rules: Mutex::default(),
            statistics: Mutex::default(),
            hit: watch::Sender::new(()),
            in_flight: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule; one of the same name is replaced. The first rule that hits a request decides.
    pub fn add(&self, rule: Rule) {
        self.shared.add(rule);
    }

    /// Removes a rule and lets go what it holds.
    pub fn remove(&self, name: &str) {
        self.shared.remove(name);
    }

    /// Removes every rule and lets go what they hold.
    pub fn clear(&self) {
        self.shared.clear();
    }

    /// Lets go what a rule holds, now and later.
    pub fn release(&self, name: &str) {
        self.shared.release(name);
    }

    /// What has passed.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Requests that a rule hit since it was added.
    pub fn hits(&self, name: &str) -> u64 {
        self.statistics().hits.get(name).copied().unwrap_or_default()
    }

    /// What a rule that keeps has hit, in order.
    pub fn kept(&self, name: &str) -> Vec<Kept> {
        let of = |rules: &mut Vec<Active>| {
            rules.iter().find(|active| active.rule.name == name).map(|active| active.kept.clone())
        };
        self.shared.locked(of).unwrap_or_default()
    }

    /// Waits until a rule has hit so many requests.
    pub async fn reached(&self, name: &str, hits: u64) {
        let mut changed = self.shared.hit.subscribe();
        while self.hits(name) < hits {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until no request is being forwarded or held.
    pub async fn idle(&self) {
        let mut in_flight = self.shared.in_flight.subscribe();
        let _gone = in_flight.wait_for(|count| *count == 0).await;
    }

    /// Serves until the proxy is dropped.
    pub async fn run(&mut self) {
        let _stopped = (&mut self.accepting).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _slow = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| take(Arc::clone(&shared), request));
            // A fault is an error here: it closes the connection, which is what it is for.
            let _closed = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
