//! The catalog's part of `metashift demo`: format 8 to 12, killed once on the way, the same answers before and after.

use std::sync::atomic::{AtomicBool, Ordering};

use metashift::catalog::driver::{Report, Request, run};
use metashift::catalog::format::NEWEST;
use metashift::catalog::inspect::inspect;
use metashift::catalog::location::{Location, make_directory};
use metashift::catalog::seed::{self, LAST_SNAPSHOT, Seed};
use metashift::catalog::units::Registry;
use metashift::catalog::view::Contents;
use metashift::environment::Environment;
use metashift::step::Budget;
use metashift::{Error, ErrorKind, Result};
use serde_json::json;
use tokio::sync::Notify;

use crate::output::Output;

/// What the demo's store and a sample hold.
pub(super) const SEED: Seed =
    Seed { format: 8, schemas: 200, tables: 3_000, delete_files: 3_000, tombstones: 5_000, name_bytes: 12 };

/// Seeds a store of format 8 in a temporary directory, migrates it to 12 with one kill on the way, and compares what
/// every snapshot shows before and after.
pub(crate) async fn demo(environment: &Environment, output: &Output) -> Result<()> {
    let directory = std::env::temp_dir().join(format!("metashift-demo-{}", environment.id()));
    let url = format!("file://{}", directory.display());
    make_directory(&url)?;
    let result = Box::pin(story(&Location::parse(&url).await?, environment, output)).await;
    std::fs::remove_dir_all(&directory)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("{}: {error}", directory.display())))?;
    result
}

async fn story(location: &Location, environment: &Environment, output: &Output) -> Result<()> {
    let budget = Budget::unbounded(environment.clone());
    seed::write(location, SEED, &budget).await?;
    let before = shown(location, &budget).await?;
    let registry = Registry::shipped();
    let request = Request { checkpoint: true, ..Request::to(NEWEST) };

    // The kill: the run is dropped in the middle of its first unit, writer and all, without a flush or a close.
    let (half, killed) = (Notify::new(), AtomicBool::new(false));
    let watch = |report: &Report| {
        if report.records_moved >= SEED.tombstones / 2 {
            killed.store(true, Ordering::SeqCst);
            half.notify_one();
        }
    };
    tokio::select! {
        biased;
        () = half.notified() => {}
        result = run(location, &registry, &request, environment, budget.clone(), &watch) => { result?; }
    }
    let found = inspect(location, &registry, NEWEST, false, environment, &budget).await?;
    let report = run(location, &registry, &request, environment, budget.clone(), &|_| {}).await?;
    let after = shown(location, &budget).await?;
    if before != after {
        return Err(Error::new(
            ErrorKind::VerificationFailed,
            "a snapshot shows something else after the migration",
        )
        .next("this must never happen: report it"));
    }
    tell(found.under_way.is_some().then_some(found.format), &report, &before, output);
    Ok(())
}

async fn shown(location: &Location, budget: &Budget) -> Result<Vec<Contents>> {
    let mut all = Vec::new();
    for snapshot in 0..=LAST_SNAPSHOT {
        all.push(seed::read_at(location, snapshot, budget).await?);
    }
    Ok(all)
}

fn tell(killed_in: Option<u64>, report: &Report, shown: &[Contents], output: &Output) {
    output.emit(&json!({
        "demo": "catalog",
        "fromFormat": report.from_format,
        "format": report.format,
        "killedInFormat": killed_in,
        "resumed": report.resumed,
        "recordsMovedAfterTheKill": report.records_moved,
        "snapshotsCompared": shown.len(),
    }));
    let killed = killed_in
        .map_or_else(String::new, |format| format!(", killed on the way in format {format} and resumed"));
    output.say(format!(
        "catalog: format {} to {}{killed}; every snapshot shows the same before and after",
        report.from_format, report.format
    ));
    let rows = shown.iter().enumerate().map(|(snapshot, contents)| {
        let rows: usize = contents.rows.values().flatten().map(|rows| rows.row_ids.len()).sum();
        let counts = [contents.schemas.len(), contents.tables.len(), contents.delete_files.len(), rows];
        std::iter::once(snapshot).chain(counts).map(|number| number.to_string()).collect()
    });
    output
        .table(&["snapshot", "schemas", "tables", "delete files", "inline rows"], &rows.collect::<Vec<_>>());
}
