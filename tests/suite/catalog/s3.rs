//! The same on an S3 API: a server that this test starts on a free port and stops.
//!
//! `ministack` (`pip install ministack==1.5.33`, which the gate does) is looked for where `METASHIFT_MINISTACK` says,
//! where the gate installs its tools, and on the PATH.

use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use metashift::ErrorKind;
use metashift::catalog::driver::Request;
use metashift::catalog::location::Location;
use metashift::catalog::seed::{self, LAST_SNAPSHOT, Seed};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::support::{Mortal, at, budget, dump, finish, memory, migrate, records};

/// Where the gate installs it, else whatever the PATH names.
fn program() -> String {
    if let Ok(program) = std::env::var("METASHIFT_MINISTACK") {
        return program;
    }
    let tools = std::env::var("METASHIFT_TOOLS").ok();
    let cache = std::env::var("HOME").map(|home| format!("{home}/.cache/metashift/tools")).ok();
    let installed = [tools, cache].into_iter().flatten().map(|tools| format!("{tools}/stack/bin/ministack"));
    installed
        .into_iter()
        .find(|program| std::path::Path::new(program).exists())
        .unwrap_or("ministack".to_owned())
}

/// A running server; dropped, it is killed.
struct Server {
    _child: Child,
    port: u16,
}

impl Server {
    async fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let program = program();
        let child = Command::new(&program)
            .env("GATEWAY_PORT", port.to_string())
            .env("MINISTACK_HOST", "127.0.0.1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}; pip install ministack==1.5.33"));
        let server = Self { _child: child, port };
        let up = async {
            while !server.makes_a_bucket().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), up).await.expect("the server answers");
        server
    }

    async fn makes_a_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)).await else { return false };
        let request = format!(
            "PUT /lake HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.port
        );
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).await.is_ok()
            && stream.read_to_string(&mut answer).await.is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .with_bucket_name("lake")
            .with_region("us-east-1")
            .with_access_key_id("test")
            .with_secret_access_key("test");
        Arc::new(builder.build().unwrap())
    }

    fn run(&self, url: &str, crash_at: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
        command.args(["--json", "catalog", "run", url, "--local", "--checkpoint"]).kill_on_drop(true);
        command
            .env("AWS_ENDPOINT_URL", self.endpoint())
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env_remove("AWS_ENDPOINT_URL_S3")
            .env_remove("METASHIFT_CRASH_AT");
        if let Some(point) = crash_at {
            command.env("METASHIFT_CRASH_AT", point);
        }
        command
    }
}

#[tokio::test]
async fn on_an_s3_api_killed_processes_resume_and_two_migrators_fence_each_other() {
    let server = Server::start().await;
    let store = server.store();
    let seed =
        Seed { format: 5, schemas: 20, tables: 280, delete_files: 400, tombstones: 520, name_bytes: 8 };

    let local = memory();
    seed::write(&at(&local), seed, &budget()).await.unwrap();
    let shown = super::support::history(&local).await;
    finish(&local, 12).await;
    let whole = dump(&local).await;

    for point in [
        "catalog-stamped",
        "catalog-checkpointed",
        "catalog-started:1",
        "catalog-stepped:2",
        "catalog-flushed:1",
        "catalog-finished:1",
        "catalog-started:2",
        "catalog-stepped:5",
        "catalog-flushed:3",
        "catalog-finished:3",
        "catalog-published",
    ] {
        let path = point.replace(':', "-");
        let location = Location::new(Arc::clone(&store), path.as_str());
        seed::write(&location, seed, &budget()).await.unwrap();
        let url = format!("s3://lake/{path}");
        let killed = server.run(&url, Some(point)).output().await.unwrap();
        assert_eq!(killed.status.code(), None, "{point}: {}", String::from_utf8_lossy(&killed.stderr));
        for (snapshot, shown) in (0..=LAST_SNAPSHOT).zip(&shown) {
            assert_eq!(&seed::read_at(&location, snapshot, &budget()).await.unwrap(), shown, "{point}");
        }
        let resumed = server.run(&url, None).output().await.unwrap();
        assert!(resumed.status.success(), "{point}: {}", String::from_utf8_lossy(&resumed.stderr));
        let after = seed::dump(&location, &budget()).await.unwrap();
        assert!(after == whole, "{point}: differs from an uninterrupted run in memory");
    }

    let location = Location::new(Arc::clone(&store), "twice");
    seed::write(&location, Seed { tombstones: 2_000, ..seed }, &budget()).await.unwrap();
    let request = Request::to(12);
    let (one, other) =
        tokio::join!(migrate(&location, &request, budget()), migrate(&location, &request, budget()));
    let done =
        [&one, &other].into_iter().filter(|result| result.as_ref().is_ok_and(|report| report.done)).count();
    for error in [one, other].into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    }
    assert!(done >= 1);
    let records = records(&seed::dump(&location, &budget()).await.unwrap());
    assert_eq!((records.format.unwrap().format_version, records.marker), (12, None));

    // A write that loses its server in the middle is resumed too.
    let location = Location::new(Arc::clone(&store), "cut");
    seed::write(&location, seed, &budget()).await.unwrap();
    let mortal = Mortal::with_writes(Arc::clone(&store), 7);
    let cut = Location::new(Arc::clone(&mortal) as _, "cut");
    let ended = super::support::until_death(&mortal, migrate(&cut, &request, budget())).await;
    assert!(matches!(ended, super::support::Ended::Died));
    assert!(migrate(&location, &request, budget()).await.unwrap().done);
    // Without a checkpoint before, nothing but the batches counts.
    assert!(seed::dump(&location, &budget()).await.unwrap() == whole);
}
