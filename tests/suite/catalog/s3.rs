//! The same on an S3 API.

use std::sync::Arc;

use metashift::ErrorKind;
use metashift::catalog::commit::Change;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::Catalog;
use metashift::catalog::location::Location;
use metashift::catalog::log::lifecycle::{create, truncate};
use metashift::catalog::seed::{self, LAST_SNAPSHOT, Seed};
use tokio::process::Command;

use super::support::{Mortal, at, budget, dump, environment, finish, is_lost_race, memory, migrate, records};
use crate::ministack::Server;

fn run(server: &Server, url: &str, crash_at: Option<&str>) -> Command {
    let mut command = Server::command(&server.endpoint());
    command.args(["catalog", "run", url, "--local", "--checkpoint"]);
    if let Some(point) = crash_at {
        command.env("METASHIFT_CRASH_AT", point);
    }
    command
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
        let killed = run(&server, &url, Some(point)).output().await.unwrap();
        assert_eq!(killed.status.code(), None, "{point}: {}", String::from_utf8_lossy(&killed.stderr));
        for (snapshot, shown) in (0..=LAST_SNAPSHOT).zip(&shown) {
            assert_eq!(&seed::read_at(&location, snapshot, &budget()).await.unwrap(), shown, "{point}");
        }
        let resumed = run(&server, &url, None).output().await.unwrap();
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
    let mut closed = 0;
    for error in [one, other].into_iter().filter_map(Result::err) {
        assert!(is_lost_race(&error), "{error}");
        closed += usize::from(error.kind() == ErrorKind::Unavailable);
    }
    assert!(done + closed >= 1);
    migrate(&location, &request, budget()).await.unwrap();
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
    // A start that loses to busy committers says so, and is run again.
    loop {
        match migrate(&location, &Request::to(12), budget()).await {
            Ok(report) => break assert!(report.done),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Contended, "{error}"),
        }
    }
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
