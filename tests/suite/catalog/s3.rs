//! The same on an S3 API: a server that this test starts on a free port and stops.
//!
//! `ministack` is what `METASHIFT_MINISTACK` names, else what the gate has installed, else installed the same way.

use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use metashift::ErrorKind;
use metashift::catalog::commit::Change;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::Catalog;
use metashift::catalog::location::Location;
use metashift::catalog::log::lifecycle::{create, truncate};
use metashift::catalog::seed::{self, LAST_SNAPSHOT, Seed};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use super::support::{Mortal, at, budget, dump, environment, finish, memory, migrate, records};

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

/// A running server; dropped, it is killed.
struct Server {
    _child: Child,
    port: u16,
}

impl Server {
    async fn start() -> Self {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_s3_api_committers_race_for_the_slots_of_a_log_that_is_migrated_and_truncated_meanwhile() {
    let server = Server::start().await;
    let location = Location::new(server.store(), "log");
    create(&location, &environment(), &budget()).await.unwrap();
    let committers = (0..4).map(|committer| {
        let location = location.clone();
        tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            while acknowledged.len() < 10 {
                let name = format!("{committer}/{}", acknowledged.len());
                let change = [Change::CreateSchema { name: name.clone() }];
                // While the marker stands a commit refuses; so does the opening of a session.
                let committed = match Catalog::open(&location, &environment(), &budget()).await {
                    Ok(catalog) => catalog.commit(&change).await,
                    Err(error) => Err(error),
                };
                match committed {
                    Ok(_) => acknowledged.push(name),
                    Err(error) => {
                        let expected = [ErrorKind::Contended, ErrorKind::Migration];
                        assert!(expected.contains(&error.kind()), "{error}");
                    }
                }
            }
            acknowledged
        })
    });
    let committers: Vec<_> = committers.collect();
    assert!(migrate(&location, &Request::to(12), budget()).await.unwrap().done);
    truncate(&location, 2, false, &environment(), &budget()).await.unwrap();
    let mut acknowledged = vec!["main".to_owned()];
    for committer in committers {
        acknowledged.extend(committer.await.unwrap());
    }
    let catalog = Catalog::open(&location, &environment(), &budget()).await.unwrap();
    let view = catalog.read().await.unwrap();
    let schemas = view.schemas(view.head().snapshot_id).await.unwrap();
    let mut found: Vec<_> = schemas.into_iter().map(|schema| schema.schema_name).collect();
    found.sort();
    acknowledged.sort();
    assert_eq!(found, acknowledged);
    // Bootstrap, start, finish, and one slot for every acknowledged commit.
    assert_eq!((view.format(), view.head().batch_seq), (12, 3 + 40));
}
