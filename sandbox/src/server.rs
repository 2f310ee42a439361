//! A DynamoDB-compatible server in memory, on a free loopback port, on a thread of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Credentials, Region};
use dynoxide::Database;
use metashift::layout::tables;
use metashift::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

/// A running server; stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts an empty server on `port`, or on a free one for 0.
    pub async fn start(port: u16) -> Result<Self> {
        let failed =
            |what: &str, error: String| Error::new(ErrorKind::Unavailable, format!("{what}: {error}"));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .map_err(|error| failed("the embedded server cannot listen", error.to_string()))?;
        let address = listener
            .local_addr()
            .map_err(|error| failed("the embedded server has no address", error.to_string()))?;
        listener.set_nonblocking(true).map_err(|error| failed("the embedded server", error.to_string()))?;
        let database = Database::memory()
            .map_err(|error| failed("the embedded server has no memory", error.to_string()))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = oneshot::channel();
        let thread = std::thread::Builder::new().name("dynoxide".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _gone = ready.send(Err(error.to_string()));
                    return;
                }
            };
            runtime.block_on(async move {
                match tokio::net::TcpListener::from_std(listener) {
                    Err(error) => {
                        let _gone = ready.send(Err(error.to_string()));
                    }
                    Ok(listener) => {
                        let _gone = ready.send(Ok(()));
                        // Ends with the process or with `stop`; connections that are open then are cut.
                        tokio::select! {
                            _ = dynoxide::server::serve_with_shutdown(listener, database, std::future::pending()) => {}
                            _ = stopped => {}
                        }
                    }
                }
            });
            runtime.shutdown_background();
        });
        let thread =
            thread.map_err(|error| failed("the embedded server has no thread", error.to_string()))?;
        started
            .await
            .unwrap_or_else(|_| Err("its thread ended".to_owned()))
            .map_err(|error| failed("the embedded server did not start", error))?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client for this server.
    pub fn client(&self) -> Client {
        client(&self.endpoint())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _gone = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// A client for a server that takes any credentials.
pub fn client(endpoint: &str) -> Client {
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "sandbox"))
        .http_client(metashift::aws::direct())
        .endpoint_url(endpoint);
    tables::client(config)
}
