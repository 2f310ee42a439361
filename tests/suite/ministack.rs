//! A server with the APIs of S3 and Step Functions, that a test starts on a free port and stops.
//!
//! `ministack` is what `METASHIFT_MINISTACK` names, else what the gate has installed, else installed the same way.

use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use super::http;

/// The server's program: the one that is named or installed, else installed now, as the gate does.
async fn program() -> String {
    static PROGRAM: OnceCell<String> = OnceCell::const_new();
    PROGRAM.get_or_init(find_or_install).await.clone()
}

async fn find_or_install() -> String {
    if let Ok(program) = std::env::var("METASHIFT_MINISTACK") {
        return program;
    }
    let home = std::env::var("HOME").expect("HOME is set");
    let tools = std::env::var("METASHIFT_TOOLS").unwrap_or(format!("{home}/.cache/metashift/tools"));
    let folder = format!("{tools}/stack");
    let program = format!("{folder}/bin/ministack");
    if !std::path::Path::new(&program).exists() {
        let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/stack-requirements.txt");
        run("python3", &["-m", "venv", &folder]).await;
        run(&format!("{folder}/bin/pip"), &["install", "--quiet", "--requirement", requirements]).await;
        std::fs::copy(requirements, format!("{folder}/installed.txt")).unwrap();
    }
    program
}

async fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().await;
    assert!(
        status.is_ok_and(|status| status.success()),
        "{program} {arguments:?}: Python 3.11 with venv is needed"
    );
}

/// A running server with a bucket named `lake`; dropped, it is killed.
pub(crate) struct Server {
    _child: Child,
    port: u16,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let program = program().await;
        let child = Command::new(&program)
            .env("GATEWAY_PORT", port.to_string())
            .env("MINISTACK_HOST", "127.0.0.1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let server = Self { _child: child, port };
        let up = async {
            while !matches!(http::send(&server.endpoint(), "PUT", "/lake", "").await, Ok((200, _))) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), up).await.expect("the server answers");
        server
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The bucket.
    pub(crate) fn store(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .with_bucket_name("lake")
            .with_region("us-east-1")
            .with_access_key_id("test")
            .with_secret_access_key("test");
        Arc::new(builder.build().unwrap())
    }

    /// The command, for which `endpoint` is AWS.
    pub(crate) fn command(endpoint: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
        command
            .env_clear()
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .arg("--json")
            .kill_on_drop(true);
        command
    }
}
