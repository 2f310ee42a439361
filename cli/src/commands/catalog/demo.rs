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

use super::{print_json, table};

/// What the demo's store holds.
const SEED: Seed =
    Seed { format: 8, schemas: 200, tables: 3_000, delete_files: 3_000, tombstones: 5_000, name_bytes: 12 };

/// Seeds a store of format 8 in a temporary directory, migrates it to 12 with one kill on the way, and compares what
/// every snapshot shows before and after.
pub(crate) async fn demo(environment: &Environment, json: bool) -> Result<()> {
    let directory = std::env::temp_dir().join(format!("metashift-demo-{}", environment.id()));
    let url = format!("file://{}", directory.display());
    make_directory(&url)?;
    let result = story(&Location::parse(&url)?, environment, json).await;
    std::fs::remove_dir_all(&directory)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("{}: {error}", directory.display())))?;
    result
}

async fn story(location: &Location, environment: &Environment, json: bool) -> Result<()> {
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
        return Err(Error::new(ErrorKind::Internal, "a snapshot shows something else after the migration"));
    }
    tell(&found.under_way.is_some().then_some(found.format), &report, &before, json);
    Ok(())
}

async fn shown(location: &Location, budget: &Budget) -> Result<Vec<Contents>> {
    let mut all = Vec::new();
    for snapshot in 0..=LAST_SNAPSHOT {
        all.push(seed::read_at(location, snapshot, budget).await?);
    }
    Ok(all)
}

fn tell(killed_at: &Option<u64>, report: &Report, shown: &[Contents], json: bool) {
    let rows = |contents: &Contents| -> usize {
        contents.rows.values().flatten().map(|rows| rows.row_ids.len()).sum()
    };
    if json {
        print_json(&json!({
            "catalog": {
                "fromFormat": report.from_format,
                "format": report.format,
                "killedInFormat": killed_at,
                "resumed": report.resumed,
                "recordsMovedAfterTheKill": report.records_moved,
                "snapshotsCompared": shown.len(),
                "equal": true,
            }
        }));
        return;
    }
    let killed =
        killed_at.map_or_else(String::new, |format| format!(", killed on the way in format {format}"));
    println!(
        "catalog: format {} to {}{killed}; each snapshot shows the same before and after",
        report.from_format, report.format
    );
    let mut table = table(&["snapshot", "schemas", "tables", "delete files", "inline rows"]);
    for (snapshot, contents) in shown.iter().enumerate() {
        table.add_row([
            snapshot.to_string(),
            contents.schemas.len().to_string(),
            contents.tables.len().to_string(),
            contents.delete_files.len().to_string(),
            rows(contents).to_string(),
        ]);
    }
    println!("{table}");
}
