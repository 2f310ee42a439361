//! `metashift catalog`: formats of a SlateDB catalog.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use metashift::catalog::abandon::abandon;
use metashift::catalog::checkpoints;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{MOST_FINAL_DAYS, Report, Stop};
use metashift::catalog::format::{NEWEST, TARGETS};
use metashift::catalog::handle::Catalog;
use metashift::catalog::inspect::{Inspection, dry_run, inspect};
use metashift::catalog::location::{Location, make_directory, region_of_bucket};
use metashift::catalog::log::lifecycle::{self, Changed, KEPT};
use metashift::catalog::seed::{self, LAST_SNAPSHOT, Seed};
use metashift::catalog::step::{Input, Mode, VERSION, inspected, invoke};
use metashift::catalog::store::look;
use metashift::catalog::units::Registry;
use metashift::environment::{Environment, elapsed};
use metashift::step::{Budget, Status, StepOutput};
use metashift::{Error, ErrorKind, Result, aws};
use object_store::Error as ObjectError;
use serde::Serialize;
use serde_json::{Value, json};

use crate::again::quoted;
use crate::execution::{Machine, MachineArgs};
use crate::output::{Output, with_rate};

mod demo;

use demo::SEED as SAMPLE;
pub(crate) use demo::demo;

/// Time between two lines of progress in JSON.
const LINE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Says which format a store has, what is under way, and what a run would do
    Status(Target),
    /// Migrates a store to a newer format; stopped or killed, the same command goes on where it was
    Run(Migrate),
    /// Lists the checkpoints of a store
    Checkpoints(Store),
    /// Takes back an unfinished directory unit (never one that moves keys)
    Abandon(Store),
    /// Makes an empty catalog, or one with a history to try a migration on
    Create(Create),
    /// Puts a native catalog of format 11 or 12 under a commit log
    AdoptLog(Change),
    /// Makes a catalog that is kept in a commit log native again
    DemoteLog(Change),
    /// Deletes slots of a commit log that are folded, all but the last ones
    TruncateLog(Truncate),
}

#[derive(Debug, Args)]
pub(crate) struct Store {
    /// The store, as s3://bucket/path or file:///directory
    store: String,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    store: Store,
    /// Keep it in a commit log from its first batch on
    #[arg(long)]
    commit_log: bool,
    /// Fill it, in this format (1 to 12): schemas, tables, delete files and inline rows over seven snapshots
    #[arg(long, value_name = "FORMAT", value_parser = clap::value_parser!(u64).range(1..=NEWEST), conflicts_with = "commit_log")]
    sample: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    store: Store,
    /// Say what would change, without writing or fencing anybody
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Truncate {
    #[command(flatten)]
    change: Change,
    /// How many slots stay
    #[arg(long, value_name = "N", default_value_t = KEPT)]
    keep: u64,
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
pub(crate) struct Migrate {
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
    /// Run the steps in this process; without it the deployed state machine runs them, unless the store is a file:// one
    #[arg(long)]
    local: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// AWS region of the state machine; else as the environment says
    #[arg(long)]
    region: Option<String>,
    /// How many days the checkpoint of the result stays
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FINAL_DAYS)))]
    final_checkpoint_days: u32,
    /// Batches that a catalog of format 10 had when its commit log began, where it does not say it
    #[arg(long, value_name = "N")]
    commit_log_origin: Option<u64>,
    /// Begin the unit to format 9 although readers have the store open; one from before format 9 shows deleted rows again
    #[arg(long)]
    accept_open_readers: bool,
}

fn format(text: &str) -> std::result::Result<u64, String> {
    let target = text.parse().ok().filter(|target| TARGETS.contains(target));
    target.ok_or_else(|| "one of 9, 11 and 12".to_owned())
}

/// How long a store may take for its first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(30);

impl CatalogCommand {
    fn store(&self) -> &str {
        match self {
            Self::Status(target) => &target.store.store,
            Self::Run(run) => &run.target.store.store,
            Self::Checkpoints(store) | Self::Abandon(store) => &store.store,
            Self::Create(create) => &create.store.store,
            Self::AdoptLog(change) | Self::DemoteLog(change) => &change.store.store,
            Self::TruncateLog(truncate) => &truncate.change.store.store,
        }
    }
}

pub(crate) async fn run(command: CatalogCommand, output: &Output) -> Result<()> {
    let store = command.store().to_owned();
    run_on(command, output).await.map_err(|error| naming(error, &store))
}

/// The error with a next step that names the store.
fn naming(error: Error, store: &str) -> Error {
    let store = quoted(store);
    let next = match error.next_step() {
        Some("metashift catalog create") => {
            format!("check the path, or make a catalog there: metashift catalog create {store}")
        }
        Some("metashift catalog run") => format!("metashift catalog run {store}"),
        Some(_) if error.message().contains("no such directory") => {
            format!("check the path, or make a catalog there: metashift catalog create {store}")
        }
        _ => return error,
    };
    error.next(next)
}

/// The store that a URL names, once it has answered: SlateDB would wait for a wrong bucket or address for minutes.
pub(crate) async fn reach(store: &str) -> Result<Location> {
    let location = Location::parse(store).await?;
    let hint = "check the bucket, AWS_REGION, the credentials and AWS_ENDPOINT_URL_S3, then run it again";
    let path = location.path.clone();
    let first = tokio::time::timeout(FIRST_ANSWER, location.store.list_with_delimiter(Some(&path))).await;
    let (kind, what) = match first {
        Ok(Ok(_)) => return Ok(location),
        Ok(Err(error @ ObjectError::Unauthenticated { .. })) => {
            let text = one_line(&aws::reason(&error));
            return Err(Error::new(ErrorKind::AccessDenied, format!("store {store}: {text}"))
                .next(aws::NEEDS_CREDENTIALS));
        }
        Ok(Err(error)) if ELSEWHERE.iter().any(|said| error.to_string().contains(said)) => {
            return Err(elsewhere(store).await);
        }
        Ok(Err(error)) => unreached(&error),
        Err(_) => (ErrorKind::Unavailable, format!("no answer within {} s", FIRST_ANSWER.as_secs())),
    };
    Err(Error::new(kind, format!("store {store}: {what}")).next(hint))
}

/// How S3 answers about a bucket of another region.
const ELSEWHERE: [&str; 4] = [
    "redirect without LOCATION",
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraint",
];

/// The error of a bucket that is in another region.
async fn elsewhere(store: &str) -> Error {
    let region = region_of_bucket(store).await;
    let (is, next) = match &region {
        Some(region) => (format!("in {region}"), format!("name it with AWS_REGION={region}")),
        None => (
            "in another one, and does not say in which".to_owned(),
            "name its region with AWS_REGION".to_owned(),
        ),
    };
    Error::new(
        ErrorKind::InvalidInput,
        format!("store {store}: the bucket is not in the region that was asked, but {is}"),
    )
    .next(format!("{next}, and run it again"))
}

/// How S3 refuses who asks.
const REFUSALS: [&str; 6] = [
    "status code: 401",
    "status code: 403",
    "<Code>ExpiredToken</Code>",
    "<Code>InvalidToken</Code>",
    "<Code>InvalidAccessKeyId</Code>",
    "<Code>SignatureDoesNotMatch</Code>",
];

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Why a store cannot be reached, in one line.
fn unreached(error: &ObjectError) -> (ErrorKind, String) {
    let text = one_line(&error.to_string());
    match error {
        ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } => {
            (ErrorKind::AccessDenied, text)
        }
        // A list that is refused has no kind of its own.
        _ if REFUSALS.iter().any(|refusal| text.contains(refusal)) => (ErrorKind::AccessDenied, text),
        _ if text.contains("NoSuchBucket") => (ErrorKind::InvalidInput, "there is no such bucket".to_owned()),
        _ => (ErrorKind::Unavailable, text),
    }
}

/// The store that a URL names, if a catalog is there.
async fn there(store: &str, environment: &Environment, budget: &Budget) -> Result<Location> {
    let location = reach(store).await?;
    match inspect(&location, &Registry::shipped(), NEWEST, false, environment, budget).await {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Err(error),
        _ => Ok(location),
    }
}

async fn run_on(command: CatalogCommand, output: &Output) -> Result<()> {
    let environment = Environment::system();
    let budget = Budget::unbounded(environment.clone());
    match command {
        CatalogCommand::Status(target) => {
            let location = reach(&target.store.store).await?;
            let registry = Registry::shipped();
            let found = inspect(&location, &registry, target.to_format, false, &environment, &budget).await?;
            show_inspection(&found, output)?;
            if !found.plan.is_empty() {
                output.say(format!(
                    "next: metashift catalog run {} --dry-run checks and counts every record; without --dry-run it migrates",
                    quoted(&target.store.store)
                ));
            }
            Ok(())
        }
        CatalogCommand::Run(run) => migrate(run, &environment, budget, output).await,
        CatalogCommand::Checkpoints(Store { store }) => {
            let location = reach(&store).await?;
            let listed = checkpoints::list(&location, &environment, &Deadline::of(&budget)).await?;
            if listed.is_empty() {
                there(&store, &environment, &budget).await?;
                output.say("no checkpoints");
            }
            output.emit(&json!({ "checkpoints": listed }));
            if listed.is_empty() {
                return Ok(());
            }
            let rows = listed.into_iter().map(|found| {
                let expires = found.expires.unwrap_or_else(|| "never".to_owned());
                let expires = if found.expired { format!("{expires} (expired)") } else { expires };
                vec![
                    found.name.unwrap_or_default(),
                    found.created,
                    expires,
                    found.manifest_id.to_string(),
                    found.id,
                ]
            });
            output.table(&["name", "created", "expires", "manifest", "id"], &rows.collect::<Vec<_>>());
            Ok(())
        }
        CatalogCommand::Abandon(Store { store }) => {
            let location = there(&store, &environment, &budget).await?;
            let done = abandon(&location, &Registry::shipped(), &environment, budget).await?;
            let rows = [
                ("abandoned", done.unit.clone()),
                ("entries removed", done.entries.to_string()),
                ("format, as before", done.format.to_string()),
            ];
            let value = json!({
                "unit": done.unit, "format": done.format, "entries": done.entries, "keptCheckpoint": done.kept_checkpoint,
            });
            output.rows(&rows, &value);
            if let Some(kept) = done.kept_checkpoint {
                output.say(format!(
                    "{kept} stays: it is the way back to before the run; metashift catalog run {store} --to-format {} releases it",
                    done.format
                ));
            }
            Ok(())
        }
        CatalogCommand::Create(Create { store: Store { store }, commit_log: true, .. }) => {
            make_directory(&store).map_err(|error| error.next("name a directory that can be written to"))?;
            let location = reach(&store).await?;
            show_log(&lifecycle::create(&location, &environment, &budget).await?, false, output)
        }
        CatalogCommand::AdoptLog(Change { store: Store { store }, dry_run }) => {
            let location = reach(&store).await?;
            show_log(&lifecycle::adopt(&location, dry_run, &environment, &budget).await?, dry_run, output)
        }
        CatalogCommand::DemoteLog(Change { store: Store { store }, dry_run }) => {
            let location = reach(&store).await?;
            show_log(&lifecycle::demote(&location, dry_run, &environment, &budget).await?, dry_run, output)
        }
        CatalogCommand::TruncateLog(Truncate {
            change: Change { store: Store { store }, dry_run },
            keep,
        }) => {
            let location = there(&store, &environment, &budget).await?;
            let done = lifecycle::truncate(&location, keep, dry_run, &environment, &budget).await?;
            show_log(&done, dry_run, output)
        }
        CatalogCommand::Create(Create { store: Store { store }, commit_log: false, sample }) => {
            make_directory(&store).map_err(|error| error.next("name a directory that can be written to"))?;
            let location = reach(&store).await?;
            if look(&location, &Deadline::of(&budget)).await?.records.format.is_some() {
                return Err(Error::new(ErrorKind::InvalidInput, format!("{store} holds a catalog already"))
                    .next(format!(
                        "metashift catalog status {} shows it; name another place for a new one",
                        quoted(&store)
                    )));
            }
            let (format, snapshot) = if let Some(format) = sample {
                seed::write(&location, Seed { format, ..SAMPLE }, &budget).await?;
                (format, LAST_SNAPSHOT)
            } else {
                let catalog = Catalog::open(&location, &environment, &budget).await?;
                let view = catalog.read().await?;
                catalog.close().await?;
                (view.format(), view.head().snapshot_id)
            };
            let rows = [("format", format.to_string()), ("latest snapshot", snapshot.to_string())];
            output.rows(&rows, &json!({ "format": format, "snapshotId": snapshot }));
            output.say(format!("next: metashift catalog status {}", quoted(&store)));
            Ok(())
        }
    }
}

async fn migrate(run: Migrate, environment: &Environment, budget: Budget, output: &Output) -> Result<()> {
    let input = Input {
        version: VERSION,
        store: run.target.store.store,
        mode: if run.dry_run { Mode::DryRun } else { Mode::Step },
        to_format: run.target.to_format,
        checkpoint: run.checkpoint,
        max_steps: run.max_steps,
        final_checkpoint_days: Some(run.final_checkpoint_days),
        commit_log_origin: run.commit_log_origin,
        accept_open_readers: run.accept_open_readers,
    };
    if !run.local && !run.dry_run && input.store.starts_with("s3://") {
        if input.max_steps.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the state machine does not stop after so many batches",
            )
            .next("run the steps in this process with --local, or leave --max-steps out"));
        }
        return execute(&run.machine, run.region.as_deref(), &input, environment, output).await;
    }
    if run.dry_run {
        let location = reach(&input.store).await?;
        let registry = Registry::shipped();
        let accepted = input.accept_open_readers;
        let found = dry_run(&location, &registry, input.to_format, accepted, environment, &budget).await?;
        show_inspection(&found, output)?;
        output.say("nothing was written");
        return Ok(());
    }
    reach(&input.store).await?;
    // Ctrl-C drops the run: what is durable stays, and the same command goes on from there.
    let progress = ProgressLine::new(environment, output);
    let observe = |report: &Report| progress.show(report);
    let answer = invoke(&input, environment, budget, Stop::default(), &observe).await;
    progress.bar.finish_and_clear();
    let answer = answer?;
    show_answer(&answer, output)?;
    let taken = answer.details.get("preCheckpoint").is_some_and(|name| !name.is_null());
    if taken && answer.status == Status::Done {
        output.say("the checkpoint from before is removed: the target is reached");
    } else if input.checkpoint && !taken && answer.details.get("resumed") == Some(&Value::Bool(true)) {
        output.say("no checkpoint from before was taken: the migration was under way already");
    }
    Ok(())
}

/// Starts the state machine, or attaches to it, and follows it and the store to the end.
async fn execute(
    args: &MachineArgs,
    region: Option<&str>,
    input: &Input,
    environment: &Environment,
    output: &Output,
) -> Result<()> {
    let location = Location::parse(&input.store).await?;
    let machine = Machine::find(args, "-catalog-format", region).await?;
    let mut asked = json!({
        "version": VERSION, "mode": "run", "store": input.store, "toFormat": input.to_format,
        "checkpoint": input.checkpoint, "finalCheckpointDays": input.final_checkpoint_days,
        "acceptOpenReaders": input.accept_open_readers,
    });
    if let (Some(origin), Value::Object(asked)) = (input.commit_log_origin, &mut asked) {
        asked.insert("commitLogOrigin".to_owned(), origin.into());
    }
    let execution = machine
        .start(args, &environment.id(), &asked, output, async {
            there(&input.store, environment, &Budget::unbounded(environment.clone())).await.map(drop)
        })
        .await?;
    let ended = machine
        .follow(&execution, output, || async {
            let budget = Budget::unbounded(environment.clone());
            let registry = Registry::shipped();
            let found = inspect(&location, &registry, input.to_format, false, environment, &budget).await?;
            let line = match &found.under_way {
                Some(unit) => format!(
                    "format {}, on the way to {}, batch {}",
                    found.format, unit.to_format, found.batch_seq
                ),
                None => format!("format {}", found.format),
            };
            Ok((
                line,
                json!({ "format": found.format, "underWay": found.under_way, "batchSeq": found.batch_seq }),
            ))
        })
        .await?;
    output.emit(&ended);
    output.say(format!("done; metashift catalog status {} shows where it is", quoted(&input.store)));
    Ok(())
}

/// Progress by records moved: a bar for people, a line a second for programs.
struct ProgressLine<'a> {
    environment: &'a Environment,
    output: &'a Output,
    bar: ProgressBar,
    last: Mutex<Option<Timestamp>>,
}

impl<'a> ProgressLine<'a> {
    fn new(environment: &'a Environment, output: &'a Output) -> Self {
        let shown = !output.is_json() && std::io::stderr().is_terminal();
        let bar = if shown { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let template = "{msg:>28} {wide_bar} {human_pos}/{human_len} records, {rate}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(with_rate(style));
        }
        Self { environment, output, bar, last: Mutex::new(None) }
    }

    fn show(&self, report: &Report) {
        if let Some(total) = report.estimated_total {
            self.bar.set_length(total);
        }
        self.bar.set_message(report.units.last().cloned().unwrap_or_default());
        self.bar.set_position(report.records_moved);
        let now = self.environment.now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| elapsed(last, now) >= LINE_EVERY) {
            *last = Some(now);
            self.output.emit(&json!({
                "status": "continue",
                "unit": report.units.last(),
                "recordsMoved": report.records_moved,
                "estimatedTotal": report.estimated_total,
            }));
        }
    }
}

fn show_answer(answer: &StepOutput, output: &Output) -> Result<()> {
    let value = as_json(answer)?;
    let rows: Vec<_> = [
        ("from format", "fromFormat"),
        ("format", "format"),
        ("units", "units"),
        ("records moved", "recordsMoved"),
        ("batches", "batches"),
        ("bytes", "bytes"),
        ("resumed", "resumed"),
        ("checkpoint before", "preCheckpoint"),
        ("checkpoint of the result", "finalCheckpoint"),
    ]
    .into_iter()
    .filter_map(|(name, field)| Some((name, text(value.get(field).filter(|value| !value.is_null())?))))
    .collect();
    output.rows(&rows, &value);
    if answer.status != Status::Done {
        output.say("not finished; the same command goes on from here");
    } else if value.get("units").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        output.say("there was nothing to do");
    }
    Ok(())
}

fn show_log(changed: &Changed, dry_run: bool, output: &Output) -> Result<()> {
    let rows = [
        ("format", changed.format.to_string()),
        ("kept in a commit log", changed.origin.is_some().to_string()),
        ("the log began at batch", changed.origin.map_or_else(String::new, |origin| origin.to_string())),
        ("last slot", changed.last_slot.to_string()),
        ("floor", changed.floor.to_string()),
        ("slots deleted", changed.deleted.to_string()),
    ];
    output.rows(&rows, &as_json(changed)?);
    match (changed.changed, dry_run) {
        (false, _) => output.say("nothing to do"),
        (true, true) => output.say("this is what it would be; nothing was written"),
        (true, false) => {}
    }
    Ok(())
}

fn show_inspection(found: &Inspection, output: &Output) -> Result<()> {
    let mut about = vec![
        ("format", found.format.to_string()),
        ("written by", found.writer_version.clone()),
        ("latest snapshot", found.snapshot_id.to_string()),
        ("batches so far", found.batch_seq.to_string()),
        ("readable now", found.readable.to_string()),
    ];
    if let Some(log) = &found.commit_log {
        let unknown = || "unknown: a run needs --commit-log-origin N".to_owned();
        let origin = log.origin.map_or_else(unknown, |origin| origin.to_string());
        about.push(("commit log began at batch", origin));
        about.push(("last slot", log.last_slot.to_string()));
        about.push(("slots not folded yet", log.unfolded.to_string()));
        about.push(("floor of the log", log.floor.to_string()));
    }
    if let Some(unit) = &found.under_way {
        about.push(("under way", format!("{} to {}", unit.from_format, unit.to_format)));
        about.push(("cursor", unit.cursor.clone()));
    }
    about.extend(found.checkpoints.iter().filter_map(|found| Some(("checkpoint", found.name.clone()?))));
    let readers = found.checkpoints.iter().filter(|found| found.name.is_none() && !found.expired).count();
    if readers > 0 {
        about.push(("readers that have it open", readers.to_string()));
    }
    output.rows(&about, &as_json(&inspected(found)?)?);
    if found.plan.is_empty() {
        output.say(format!("nothing to do: the store is at format {}", found.to_format));
        return Ok(());
    }
    let count = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let rows = found.plan.iter().map(|next| vec![next.unit.clone(), count(next.records), count(next.bytes)]);
    output.table(&["a run would do", "records", "bytes"], &rows.collect::<Vec<_>>());
    Ok(())
}

fn as_json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("an answer is no JSON: {error}")))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.is_empty() => "none".to_owned(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
