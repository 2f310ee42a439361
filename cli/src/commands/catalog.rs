//! `metashift catalog`: formats of a SlateDB catalog.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use metashift::catalog::abandon::abandon;
use metashift::catalog::checkpoints;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{Report, Stop};
use metashift::catalog::format::{NEWEST, TARGETS};
use metashift::catalog::handle::Catalog;
use metashift::catalog::inspect::{Inspection, inspect};
use metashift::catalog::location::{Location, make_directory};
use metashift::catalog::step::{Input, Mode, VERSION, inspected, invoke};
use metashift::catalog::units::Registry;
use metashift::environment::{Environment, elapsed};
use metashift::step::{Budget, Status, StepOutput};
use metashift::{Error, ErrorKind, Result};
use serde_json::{Value, json};

mod demo;

pub(crate) use demo::demo;

/// Exit code of a run that the user stopped; the same command resumes it.
const STOPPED: u8 = metashift::error::Class::Stopped.exit_code();

/// Time between two lines of progress in JSON.
const LINE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Says which format a store has, what is under way, and what a run would do
    Status(Target),
    /// Migrates a store to a newer format; stopped or killed, the same command goes on where it was
    Run(Run),
    /// Lists the checkpoints of a store
    Checkpoints(Store),
    /// Takes back an unfinished directory unit (never one that moves keys)
    Abandon(Store),
    /// Makes an empty catalog
    Create(Store),
}

#[derive(Debug, Args)]
pub(crate) struct Store {
    /// The store, as s3://bucket/path or file:///directory
    store: String,
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    store: Store,
    /// The format to reach: 9, 11 or 12
    #[arg(long, value_name = "N", default_value_t = NEWEST, value_parser = format)]
    to_format: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    target: Target,
    /// Take a checkpoint before the first change, kept until the target is reached
    #[arg(long)]
    checkpoint: bool,
    /// Check every record and say what would run, without writing or fencing anybody
    #[arg(long)]
    dry_run: bool,
    /// Stop after this many batches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_steps: Option<u32>,
    /// How many days the checkpoint of the result stays
    #[arg(long, value_name = "N", default_value_t = 7)]
    final_checkpoint_days: u32,
}

fn format(text: &str) -> std::result::Result<u64, String> {
    let target = text.parse().ok().filter(|target| TARGETS.contains(target));
    target.ok_or_else(|| "one of 9, 11 and 12".to_owned())
}

/// Runs one of the commands; the exit code is 130 if the user stopped it.
pub(crate) async fn run(command: CatalogCommand, json: bool) -> Result<ExitCode> {
    let environment = Environment::system();
    let budget = Budget::unbounded(environment.clone());
    match command {
        CatalogCommand::Status(target) => {
            let location = Location::parse(&target.store.store)?;
            let registry = Registry::shipped();
            let found = inspect(&location, &registry, target.to_format, false, &environment, &budget).await?;
            show_inspection(&found, json)?;
        }
        CatalogCommand::Run(run) => return migrate(run, &environment, budget, json).await,
        CatalogCommand::Checkpoints(Store { store }) => {
            let location = Location::parse(&store)?;
            let listed = checkpoints::list(&location, &environment, &Deadline::of(&budget)).await?;
            if json {
                print_json(&json!({ "checkpoints": listed }));
            } else {
                let mut table = table(&["name", "created", "expires", "manifest", "id"]);
                for found in listed {
                    let expires = found.expires.unwrap_or_else(|| "never".to_owned());
                    let expires = if found.expired { format!("{expires} (expired)") } else { expires };
                    let name = found.name.unwrap_or_default();
                    table.add_row([name, found.created, expires, found.manifest_id.to_string(), found.id]);
                }
                println!("{table}");
            }
        }
        CatalogCommand::Abandon(Store { store }) => {
            let done = abandon(&Location::parse(&store)?, &Registry::shipped(), budget).await?;
            if json {
                print_json(&json!({ "unit": done.unit, "format": done.format, "entries": done.entries }));
            } else {
                println!(
                    "{} abandoned: {} entries removed, the store stays at format {}",
                    done.unit, done.entries, done.format
                );
            }
        }
        CatalogCommand::Create(Store { store }) => {
            make_directory(&store)?;
            let location = Location::parse(&store)?;
            let catalog = Catalog::open(&location, &environment, &budget).await?;
            let view = catalog.read().await?;
            catalog.close().await?;
            if json {
                print_json(&json!({ "format": view.format(), "snapshotId": view.head().snapshot_id }));
            } else {
                println!(
                    "{location}: a catalog of format {}, snapshot {}",
                    view.format(),
                    view.head().snapshot_id
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn migrate(run: Run, environment: &Environment, budget: Budget, json: bool) -> Result<ExitCode> {
    let input = Input {
        version: VERSION,
        store: run.target.store.store,
        mode: if run.dry_run { Mode::DryRun } else { Mode::Step },
        to_format: run.target.to_format,
        checkpoint: run.checkpoint,
        max_steps: run.max_steps,
        final_checkpoint_days: Some(run.final_checkpoint_days),
    };
    if run.dry_run {
        let location = Location::parse(&input.store)?;
        let registry = Registry::shipped();
        let found = inspect(&location, &registry, input.to_format, true, environment, &budget).await?;
        show_inspection(&found, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Stop::default();
    let asked = stop.clone();
    let listener = tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            asked.ask();
        }
    });
    let progress = ProgressLine::new(environment, json);
    let observe = |report: &Report| progress.show(report);
    let output = invoke(&input, environment, budget, stop.clone(), &observe).await;
    listener.abort();
    progress.bar.finish_and_clear();
    let output = output?;
    show_output(&output, json)?;
    Ok(if stop.is_asked() && output.status != Status::Done {
        ExitCode::from(STOPPED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Progress by records moved: a bar for people, a line a second for programs.
struct ProgressLine<'a> {
    environment: &'a Environment,
    json: bool,
    bar: ProgressBar,
    last: Mutex<Option<jiff::Timestamp>>,
}

impl<'a> ProgressLine<'a> {
    fn new(environment: &'a Environment, json: bool) -> Self {
        let bar = if json || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::no_length()
        };
        if let Ok(style) =
            ProgressStyle::with_template("{msg:28} {bar:32} {human_pos}/{human_len} records {per_sec}")
        {
            bar.set_style(style);
        }
        Self { environment, json, bar, last: Mutex::new(None) }
    }

    fn show(&self, report: &Report) {
        if let Some(total) = report.estimated_total {
            self.bar.set_length(total);
        }
        self.bar.set_message(report.units.last().cloned().unwrap_or_default());
        self.bar.set_position(report.records_moved);
        if !self.json {
            return;
        }
        let now = self.environment.now();
        let Ok(mut last) = self.last.lock() else { return };
        if last.is_none_or(|last| elapsed(last, now) >= LINE_EVERY) {
            *last = Some(now);
            print_json(&json!({
                "status": "continue",
                "unit": report.units.last(),
                "recordsMoved": report.records_moved,
                "estimatedTotal": report.estimated_total,
            }));
        }
    }
}

fn show_output(output: &StepOutput, json: bool) -> Result<()> {
    let value = serde_json::to_value(output)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("an output is no JSON: {error}")))?;
    if json {
        print_json(&value);
        return Ok(());
    }
    let mut table = table(&["", ""]);
    for (name, field) in [
        ("from format", "fromFormat"),
        ("format", "format"),
        ("units", "units"),
        ("records moved", "recordsMoved"),
        ("batches", "batches"),
        ("bytes", "bytes"),
        ("resumed", "resumed"),
        ("checkpoint before", "preCheckpoint"),
        ("checkpoint of the result", "finalCheckpoint"),
    ] {
        if let Some(value) = value.get(field).filter(|value| !value.is_null()) {
            table.add_row([name.to_owned(), text(value)]);
        }
    }
    println!("{table}");
    if output.status != Status::Done {
        println!("not finished; the same command goes on from here");
    }
    Ok(())
}

fn show_inspection(found: &Inspection, json: bool) -> Result<()> {
    if json {
        let output = inspected(found)?;
        let value = serde_json::to_value(output)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("an output is no JSON: {error}")))?;
        print_json(&value);
        return Ok(());
    }
    let mut about = table(&["", ""]);
    about.add_row(["format".to_owned(), found.format.to_string()]);
    about.add_row(["written by".to_owned(), found.writer_version.clone()]);
    about.add_row(["latest snapshot".to_owned(), found.snapshot_id.to_string()]);
    about.add_row(["batches so far".to_owned(), found.batch_seq.to_string()]);
    about.add_row(["readable now".to_owned(), found.readable.to_string()]);
    if let Some(unit) = &found.under_way {
        about.add_row(["under way".to_owned(), format!("{} to {}", unit.from_format, unit.to_format)]);
        about.add_row(["cursor".to_owned(), unit.cursor.clone()]);
    }
    for name in found.checkpoints.iter().filter_map(|found| found.name.as_ref()) {
        about.add_row(["checkpoint".to_owned(), name.clone()]);
    }
    println!("{about}");
    if found.plan.is_empty() {
        println!("nothing to do: the store is at format {}", found.to_format);
        return Ok(());
    }
    let mut plan = table(&["a run would do", "records", "bytes"]);
    let count = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    for planned in &found.plan {
        plan.add_row([planned.unit.clone(), count(planned.records), count(planned.bytes)]);
    }
    println!("{plan}");
    Ok(())
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if header.iter().any(|name| !name.is_empty()) {
        table.set_header(header);
    }
    table
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn print_json(value: &Value) {
    println!("{value}");
}
