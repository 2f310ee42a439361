//! The crash matrix once more, by killing real processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metashift::catalog::location::Location;
use metashift::catalog::seed::{self, Seed};
use metashift::environment::Environment;
use object_store::local::LocalFileSystem;
use object_store::{GetOptions, ObjectStore, PutOptions};
use serde_json::Value;
use tokio::process::Command;

use super::support::{budget, content, copied, dump, environment, history, logged, memory, records, seeded};

/// A directory that goes when the test does.
struct Directory(PathBuf);

impl Directory {
    fn new(environment: &Environment) -> Self {
        let path = std::env::temp_dir().join(format!("metashift-process-{}", environment.id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that cannot be removed stays behind in the temporary one; the test's answer is what counts.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The store of a directory, under the path that the support's dumps read.
fn store(directory: &Path) -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new_with_prefix(directory).unwrap())
}

fn command(url: &str, arguments: &[&str], crash_at: Option<String>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.args(["--json", "catalog", "run", url]).args(arguments).kill_on_drop(true);
    command.env_remove("METASHIFT_CRASH_AT");
    if let Some(point) = crash_at {
        command.env("METASHIFT_CRASH_AT", point);
    }
    command
}

fn last_line(output: &[u8]) -> Value {
    let text = String::from_utf8_lossy(output);
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default()
}

/// Enough for several steps of every unit.
fn seed_of(format: u64) -> Seed {
    Seed { format, schemas: 20, tables: 280, delete_files: 400, tombstones: 520, name_bytes: 8 }
}

#[tokio::test]
async fn a_process_killed_at_any_point_leaves_a_store_that_the_next_process_completes() {
    let killed = killed_at_every(seeded(seed_of(1)).await, |point| !point.starts_with("catalog-log-")).await;
    assert!(killed >= 13, "{killed}");
}

#[tokio::test]
async fn a_process_killed_at_any_point_in_a_commit_log_leaves_a_catalog_that_the_next_process_completes() {
    let store = logged(seed_of(10)).await;
    super::support::create_schema(&store, "not folded").await.unwrap();
    let killed = killed_at_every(store, |_| true).await;
    assert!(killed >= 16, "{killed}");
}

/// Kills a run of a store at the first, second and third time at each chosen point, and completes it in a process of its
/// own; how many were killed.
async fn killed_at_every(seeded: Arc<dyn ObjectStore>, chosen: impl Fn(&str) -> bool) -> u32 {
    let shown = history(&seeded).await;
    let whole = copied(&seeded).await;
    super::support::finish(&whole, 12).await;
    let whole = dump(&whole).await;
    let mut killed = 0;
    let of_catalogs = metashift::crash::ALL.iter().filter(|point| point.starts_with("catalog-"));
    for point in of_catalogs.filter(|point| chosen(point)) {
        for times in 1..=3 {
            let directory = Directory::new(&environment());
            let shared = store(&directory.0);
            for object in futures::TryStreamExt::try_collect::<Vec<_>>(seeded.list(None)).await.unwrap() {
                let got = seeded.get_opts(&object.location, GetOptions::default()).await.unwrap();
                let bytes = got.bytes().await.unwrap();
                shared.put_opts(&object.location, bytes.into(), PutOptions::default()).await.unwrap();
            }
            let url = format!("file://{}/{}", directory.0.display(), super::support::PATH);
            let crash = Some(format!("{point}:{times}"));
            let output = command(&url, &["--checkpoint"], crash).output().await.unwrap();
            let died = output.status.code().is_none();
            killed += u32::from(died);
            let when = format!("killed at {point}, time {times}");
            let after = dump(&shared).await;
            assert!(records(&after).coherent().is_ok(), "{when}");
            assert_eq!(history(&shared).await, shown, "{when}");
            let output = command(&url, &[], None).output().await.unwrap();
            assert!(output.status.success(), "{when}: {}", String::from_utf8_lossy(&output.stderr));
            let answer = last_line(&output.stdout);
            assert_eq!((&answer["status"], &answer["format"]), (&"done".into(), &12.into()), "{when}");
            assert!(dump(&shared).await == whole, "{when}: differs from an uninterrupted run");
            if !died {
                break;
            }
        }
    }
    killed
}

#[tokio::test]
async fn short_invocations_in_fresh_processes_come_to_the_same_store_without_stalling() {
    let root = Directory::new(&environment());
    let shared = store(&root.0);
    let seed = Seed { tombstones: 20_000, ..Seed::small(8) };
    seed::write(&Location::new(Arc::clone(&shared), super::support::PATH), seed, &budget()).await.unwrap();
    let url = format!("file://{}/{}", root.0.display(), super::support::PATH);
    let mut invocations = 0;
    loop {
        let output = command(&url, &["--to-format", "9", "--max-steps", "1"], None).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        invocations += 1;
        if last_line(&output.stdout)["status"] == "done" {
            break;
        }
    }
    // 20,000 records in steps of 256: more invocations than L0 has places.
    assert_eq!(invocations, 80);
    let newer = memory();
    let location = Location::new(Arc::clone(&newer), super::support::PATH);
    seed::write(&location, Seed { format: 9, ..seed }, &budget()).await.unwrap();
    assert!(content(&dump(&shared).await) == content(&dump(&newer).await));
}

#[cfg(unix)]
#[tokio::test]
async fn an_interrupt_ends_with_130_and_leaves_a_resumable_store() {
    let root = Directory::new(&environment());
    let shared = store(&root.0);
    let seed = Seed { tombstones: 100_000, ..Seed::small(8) };
    seed::write(&Location::new(Arc::clone(&shared), super::support::PATH), seed, &budget()).await.unwrap();
    let url = format!("file://{}/{}", root.0.display(), super::support::PATH);
    let mut child =
        command(&url, &["--to-format", "9"], None).stdout(std::process::Stdio::piped()).spawn().unwrap();
    // The first line of progress says that the listener stands and the work has begun.
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut line).await.unwrap();
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut lines, &mut rest).await.unwrap();
    let status = child.wait().await.unwrap();
    assert_eq!(status.code(), Some(130), "{line}{rest}");
    assert!(records(&dump(&shared).await).marker.is_some());
    let output = command(&url, &["--to-format", "9"], None).output().await.unwrap();
    assert_eq!(last_line(&output.stdout)["resumed"], true);
    assert_eq!(records(&dump(&shared).await).format.unwrap().format_version, 9);
}

#[tokio::test]
async fn the_command_says_what_to_do_next_and_ends_with_the_documented_code() {
    let root = Directory::new(&environment());
    let url = format!("file://{}", root.0.display());
    let run = |arguments: Vec<String>| async move {
        Command::new(env!("CARGO_BIN_EXE_metashift")).args(arguments).output().await.unwrap()
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let absent = run(words(&["catalog", "status", &url])).await;
    assert_eq!(absent.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&absent.stderr).contains("metashift catalog create"));
    assert!(run(words(&["catalog", "create", &url])).await.status.success());
    let down = run(words(&["catalog", "run", &url, "--to-format", "9"])).await;
    assert_eq!(down.status.code(), Some(6));
    assert_eq!(run(words(&["catalog", "run", &url, "--to-format", "10"])).await.status.code(), Some(2));
    assert_eq!(run(words(&["catalog", "abandon", &url])).await.status.code(), Some(6));
    assert!(run(words(&["catalog", "run", &url, "--dry-run"])).await.status.success());
    assert!(run(words(&["catalog", "run", &url])).await.status.success());
    let listed = run(words(&["catalog", "checkpoints", &url, "--json"])).await;
    assert_eq!(last_line(&listed.stdout)["checkpoints"][0]["name"], "metashift-final-12");
    let status = run(words(&["catalog", "status", &url, "--json"])).await;
    assert_eq!(last_line(&status.stdout)["format"], 12);
}

#[tokio::test]
async fn the_commands_of_a_commit_log_take_a_catalog_through_its_whole_life() {
    let root = Directory::new(&environment());
    let url = format!("file://{}/{}", root.0.display(), super::support::PATH);
    let shared = store(&root.0);
    let run = async |arguments: &[&str], crash_at: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
        command.args(["--json", "catalog"]).args(arguments).env_remove("METASHIFT_CRASH_AT");
        if let Some(point) = crash_at {
            command.env("METASHIFT_CRASH_AT", point);
        }
        let output = command.output().await.unwrap();
        (output.status.code(), last_line(&output.stdout))
    };
    let (code, made) = run(&["create", &url, "--commit-log"], None).await;
    assert_eq!((code, &made["origin"], &made["lastSlot"]), (Some(0), &0.into(), &1.into()), "{made}");
    assert_eq!(run(&["run", &url], Some("catalog-log-won:1")).await.0, None);
    let (_, status) = run(&["status", &url], None).await;
    assert_eq!(
        (&status["commitLog"]["unfolded"], &status["readable"]),
        (&1.into(), &false.into()),
        "{status}"
    );
    let (code, done) = run(&["run", &url], None).await;
    assert_eq!((code, &done["format"], &done["resumed"]), (Some(0), &12.into(), &true.into()), "{done}");
    for number in 0..4 {
        super::support::create_schema(&shared, &format!("schema {number}")).await.unwrap();
    }
    let (_, planned) = run(&["truncate-log", &url, "--keep", "2", "--dry-run"], None).await;
    let (code, truncated) = run(&["truncate-log", &url, "--keep", "2"], None).await;
    assert_eq!((code, &truncated), (Some(0), &planned));
    assert_eq!((&truncated["floor"], &truncated["deleted"]), (&5.into(), &5.into()), "{truncated}");
    let (code, demoted) = run(&["demote-log", &url], None).await;
    assert_eq!(
        (code, &demoted["origin"], &demoted["lastSlot"]),
        (Some(0), &Value::Null, &8.into()),
        "{demoted}"
    );
    assert_eq!(run(&["truncate-log", &url], None).await.0, Some(2));
    super::support::create_schema(&shared, "native").await.unwrap();
    assert_eq!(run(&["adopt-log", &url, "--dry-run"], None).await.1["changed"], true);
    let (code, adopted) = run(&["adopt-log", &url], None).await;
    assert_eq!((code, &adopted["floor"], &adopted["origin"]), (Some(0), &5.into(), &2.into()), "{adopted}");
    assert_eq!(run(&["adopt-log", &url], None).await.1["changed"], false);
    let (_, status) = run(&["status", &url], None).await;
    assert_eq!(
        status["commitLog"],
        serde_json::json!({"origin": 2, "lastSlot": 8, "unfolded": 0, "floor": 5})
    );
    assert_eq!(run(&["create", &url, "--commit-log"], None).await.0, Some(0));
}

#[tokio::test]
async fn a_directory_without_a_catalog_is_said_by_every_command_and_stays_as_it_is() {
    let directory = Directory::new(&environment());
    let url = format!("file://{}", directory.0.display());
    for command in ["status", "run", "checkpoints", "abandon", "adopt-log", "demote-log", "truncate-log"] {
        for url in [url.clone(), format!("{url}/missing")] {
            let mut process = Command::new(env!("CARGO_BIN_EXE_metashift"));
            let output = process.args(["--json", "catalog", command, &url]).output().await.unwrap();
            let said = last_line(&output.stdout);
            assert_eq!(output.status.code(), Some(2), "{command} {url}: {said}");
            assert_eq!(said["error"]["name"], "InvalidInput", "{command} {url}: {said}");
            let next = said["error"]["next"].as_str().unwrap();
            assert!(next.contains(&format!("catalog create {url}")), "{command} {url}: {next}");
        }
    }
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}
