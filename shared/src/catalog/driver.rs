//! The driver: start, steps, finish of every unit on the way, under a budget, resumable after any batch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::authority::{self, Commit, CommitAuthority};
use super::batch::{Anchor, Batch};
use super::checkpoints;
use super::deadline::{Deadline, has_vanished};
use super::format::{SystemRecords, is_commit_log};
use super::location::Location;
use super::log::ended;
use super::read::{Range, Read};
use super::sound::sound;
use super::store::{Ending, Logged, look, manifest, system_records};
use super::units::{Kind, Registry, Stage, Unit};
use super::value::{Head, Migration};
use crate::environment::Environment;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result, crash};

use check::{Findings, Pass};

pub mod check;
pub(crate) mod phases;
mod steps;

/// How long the final checkpoint stays unless somebody refreshes it.
pub const FINAL_LIFETIME: Duration = Duration::from_hours(7 * 24);
/// The most days that the final checkpoint may stay: SlateDB keeps its end in 32 bits of seconds since 1970.
pub const MOST_FINAL_DAYS: u32 = 10_000;
/// How often a batch that lost to another one is decided again before the run ends `Contended`.
pub const ATTEMPTS: u32 = 8;
/// Longest pause before the first of these; it doubles each time.
const PAUSE: Duration = Duration::from_millis(10);

/// Set from outside to make a run stop after its current batch.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the run to stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it was asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// What a run is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The format to reach.
    pub to_format: u64,
    /// Whether to take a checkpoint before the first change.
    pub checkpoint: bool,
    /// How long the final checkpoint stays.
    pub final_lifetime: Duration,
    /// Where the commit log of a catalog of format 10 began, which may not say it itself.
    pub commit_log_origin: Option<u64>,
    /// Whether a unit that moves keys may begin although readers have the store open.
    pub accept_open_readers: bool,
    /// Makes the run stop after its current batch.
    pub stop: Stop,
}

impl Request {
    /// A run to a format, without a checkpoint before it.
    pub fn to(to_format: u64) -> Self {
        Self {
            to_format,
            checkpoint: false,
            final_lifetime: FINAL_LIFETIME,
            commit_log_origin: None,
            accept_open_readers: false,
            stop: Stop::default(),
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The format before the first invocation of the whole run, additive stamp included.
    pub from_format: u64,
    /// The format that was asked for.
    pub to_format: u64,
    /// The format now.
    pub format: u64,
    /// What this invocation worked on, in order.
    pub units: Vec<String>,
    /// Records that this invocation moved or indexed.
    pub records_moved: u64,
    /// Bytes of the keys and values that they put and deleted.
    pub bytes: u64,
    /// Batches that this invocation committed.
    pub batches: u64,
    /// Records that the pass before the current unit counted; absent when the unit was resumed.
    pub estimated_total: Option<u64>,
    /// Whether an earlier invocation had begun this run.
    pub resumed: bool,
    /// Whether the target is reached.
    pub done: bool,
    /// The checkpoint from before the run, while it exists or if this invocation released it.
    pub pre_checkpoint: Option<String>,
    /// The checkpoint of the result.
    pub final_checkpoint: Option<String>,
}

/// Called after every batch with the report so far.
pub type Observer<'a> = dyn Fn(&Report) + Send + Sync + 'a;

/// How a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Reached,
    Stopped,
    Lost,
}

/// Runs what the durable state asks for on a store, within a budget: takes the writer, works, closes.
///
/// `InvalidInput` for a target that no unit ends at, for a lifetime that is not within [`MOST_FINAL_DAYS`], and where there is no
/// catalog; `Migration` for a format above the target
/// and for a unit that this version does not carry; `Corruption` where [`sound`] finds damage and where the check of a unit names
/// records that stop it, before its marker stands; `Contended` after [`ATTEMPTS`] batches in a row that lost; `Timeout` also where the check does not fit
/// into the budget. In a commit log `AuthorityChanged` where it has ended, `OutcomeUnknown` for a slot that may still arrive,
/// and those of [`authority::open`]. Whatever it ends with, the next run goes on from the last durable batch.
pub async fn run(
    location: &Location,
    registry: &Registry,
    request: &Request,
    environment: &Environment,
    budget: Budget,
    observe: &Observer<'_>,
) -> Result<Report> {
    registry.check_target(request.to_format)?;
    check_lifetime(request.final_lifetime)?;
    let deadline = Deadline::of(&budget);
    let sighting = look(location, &deadline).await?;
    let records = &sighting.records;
    if matches!(registry.next(records, request.to_format)?, Stage::Done) {
        let mut report = Report { done: true, ..report_of(records, request) };
        match sighting.log {
            None if checkpoints::converge(location, request, environment, &deadline, &mut report).await? => {
                return Ok(report);
            }
            Some(Logged { unfolded: 0, .. }) => {
                checkpoints::release(location, &deadline, &mut report).await?;
                return Ok(report);
            }
            _ => {}
        }
    }
    // What is under way has been looked at when it began; before the next thing that cannot be taken back, all of it is.
    if matches!(registry.next(records, request.to_format)?, Stage::Stamp | Stage::Start(_)) {
        sound(location, &deadline).await?;
        // Refused before the writer of somebody else is fenced, and once more before the unit begins.
        if let Some(unit) = hides_rows(registry, records, request)? {
            let readers = checkpoints::open_readers(location, environment, &deadline).await?;
            checkpoints::refuse_open_readers(unit, &readers)?;
        }
    }
    let asked = request.commit_log_origin;
    let seen = sighting.epoch.unwrap_or(0);
    let authority = match authority::open(location, &sighting, asked, environment, &deadline).await {
        Ok(authority) => authority,
        Err(error) => return Err(fenced_by_whom(location, seen, error, &deadline).await),
    };
    let result =
        Box::pin(through(location, authority.as_ref(), registry, request, environment, budget, observe));
    let ended = match result.await {
        Ok(report) => {
            let ending = if report.done { Ending::Complete } else { Ending::Resumable };
            authority.close(ending).await.map(|()| report)
        }
        Err(error) => {
            authority.close(Ending::Abandoned).await?;
            Err(error)
        }
    };
    match ended {
        Ok(report) => Ok(report),
        Err(error) => Err(fenced_by_whom(location, seen + 1, error, &deadline).await),
    }
}

/// The work under a writer: the migration, and what is published of it.
async fn through(
    location: &Location,
    authority: &dyn CommitAuthority,
    registry: &Registry,
    request: &Request,
    environment: &Environment,
    budget: Budget,
    observe: &Observer<'_>,
) -> Result<Report> {
    let deadline = Deadline::of(&budget);
    let mut report = migrate(authority, registry, request, environment, budget, observe).await?;
    if report.done {
        checkpoints::publish(location, authority, request, environment, &deadline, &mut report).await?;
        crash::reach("catalog-published").await;
    }
    Ok(report)
}

/// SlateDB takes every conflict of a write for another writer, and closes a writer whose compactor was replaced, which a
/// process that has lost the writer may still do as it starts. Where the epoch is still the one before or of this run,
/// nobody has the store, and the next run goes on.
async fn fenced_by_whom(location: &Location, epoch: u64, error: Error, deadline: &Deadline) -> Error {
    if error.kind() != ErrorKind::Fenced {
        return error;
    }
    match manifest(location, deadline).await {
        Ok(Some(manifest)) if manifest.writer_epoch() <= epoch => Error::new(
            ErrorKind::Unavailable,
            format!(
                "a conflict in the object store or a compactor of another process closed the writer, which nobody else has: {}",
                error.message()
            ),
        )
        .next("run the same command again; it resumes")
        .because(error),
        _ => error,
    }
}

/// Runs what the durable state asks for through an authority that is already open.
///
/// Errors as those of [`run`].
pub async fn migrate(
    authority: &dyn CommitAuthority,
    registry: &Registry,
    request: &Request,
    environment: &Environment,
    budget: Budget,
    observe: &Observer<'_>,
) -> Result<Report> {
    registry.check_target(request.to_format)?;
    let report = Report::default();
    let checked = Checked::default();
    let mut migrator =
        Migrator { authority, registry, request, environment, budget, observe, report, checked };
    migrator.drive().await?;
    Ok(migrator.report)
}

/// `InvalidInput` for a lifetime of the final checkpoint that is none, or that the store cannot hold.
fn check_lifetime(lifetime: Duration) -> Result<()> {
    if lifetime.is_zero() || lifetime > Duration::from_hours(24) * MOST_FINAL_DAYS {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "the final checkpoint stays for 1 to {MOST_FINAL_DAYS} days, not {} seconds",
                lifetime.as_secs()
            ),
        ));
    }
    Ok(())
}

/// The unit of a run that takes rows away from where older readers look, unless readers are accepted.
fn hides_rows(
    registry: &Registry,
    records: &SystemRecords,
    request: &Request,
) -> Result<Option<&'static str>> {
    if request.accept_open_readers {
        return Ok(None);
    }
    let chain = registry.chain(records, request.to_format)?;
    Ok(chain.into_iter().find(|unit| unit.kind() == Kind::Rewriting).map(Unit::name))
}

/// The report before anything was done.
pub(crate) fn report_of(records: &SystemRecords, request: &Request) -> Report {
    let format = records.format.as_ref();
    Report {
        from_format: phases::original(records),
        to_format: request.to_format,
        format: format.map(|format| format.format_version).unwrap_or_default(),
        resumed: records.marker.is_some() || format.is_some_and(|format| format.original_format.is_some()),
        ..Report::default()
    }
}

/// Refuses to go on through an authority that is no longer the catalog's.
pub(crate) fn agree(records: &SystemRecords, authority: &dyn CommitAuthority) -> Result<()> {
    let logged = records.format.as_ref().is_some_and(is_commit_log);
    if logged == authority.origin().is_some() {
        return Ok(());
    }
    Err(ended())
}

struct Migrator<'a> {
    authority: &'a dyn CommitAuthority,
    registry: &'a Registry,
    request: &'a Request,
    environment: &'a Environment,
    budget: Budget,
    observe: &'a Observer<'a>,
    report: Report,
    checked: Checked,
}

/// What the pass before the first unit found of each, for as long as nobody else has committed.
#[derive(Debug, Default)]
struct Checked {
    head: Option<Head>,
    units: Vec<(&'static str, Range, Findings)>,
}

impl Checked {
    /// Forgets what a batch is about to change.
    fn forget(&mut self, batch: &Batch) {
        let changed = || batch.puts.iter().map(|(key, _)| key).chain(&batch.deletes);
        self.units.retain(|(_, range, _)| !changed().any(|key| range.contains(key)));
    }

    /// Follows a batch of our own that is committed.
    fn follow(&mut self, anchor: &Anchor) {
        if self.head == Some(anchor.head) {
            self.head = Some(anchor.advanced(None).head);
        }
    }

    fn of(&self, name: &str) -> Option<Findings> {
        self.units.iter().find(|(known, ..)| *known == name).map(|(.., findings)| *findings)
    }
}

impl fmt::Debug for Migrator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migrator").field("report", &self.report).finish_non_exhaustive()
    }
}

impl Migrator<'_> {
    async fn drive(&mut self) -> Result<()> {
        let (mut lost, mut looks) = (0, 0);
        let mut first = true;
        loop {
            match self.turn(&mut first).await {
                Ok(Some(Outcome::Reached)) => (lost, looks) = (0, 0),
                Ok(Some(Outcome::Stopped) | None) => return Ok(()),
                Ok(Some(Outcome::Lost)) => {
                    lost += 1;
                    self.pause(lost).await?;
                }
                // Whatever was read last, the durable state says what comes next.
                Err(error) => {
                    looks += 1;
                    self.look_again(looks, error).await?;
                }
            }
        }
    }

    /// The next stage of what the durable state asks for; `None` once it is what was asked for.
    async fn turn(&mut self, first: &mut bool) -> Result<Option<Outcome>> {
        let records = system_records(self.authority.pin().await?.as_ref()).await?;
        agree(&records, self.authority)?;
        if std::mem::take(first) {
            self.report = report_of(&records, self.request);
        }
        self.report.format = phases::initialized(&records)?.0.format_version;
        let stage = self.registry.next(&records, self.request.to_format)?;
        if matches!(stage, Stage::Done) {
            self.report.done = true;
            return Ok(None);
        }
        if self.must_stop() {
            return Ok(None);
        }
        if self.request.checkpoint && !self.report.resumed && self.report.pre_checkpoint.is_none() {
            self.checkpoint_before().await?;
        }
        self.stage(stage, &records).await.map(Some)
    }

    async fn checkpoint_before(&mut self) -> Result<()> {
        // One that is there already is from a run that never started; the catalog may have moved since.
        let name = checkpoints::before(self.report.from_format);
        self.authority.checkpoint(&name, None).await?;
        crash::reach("catalog-checkpointed").await;
        self.report.pre_checkpoint = Some(name);
        Ok(())
    }

    async fn stage(&mut self, stage: Stage<'_>, records: &SystemRecords) -> Result<Outcome> {
        match stage {
            Stage::Done => Ok(Outcome::Reached),
            Stage::Forget => self.durable(phases::forget(records)?, None).await,
            Stage::Stamp => {
                // Nothing takes it back either, so the whole way has to be open.
                if !self.check(self.authority.pin().await?, records).await? {
                    return Ok(Outcome::Lost);
                }
                self.work_on("additive-stamp");
                self.durable(phases::stamp(records)?, Some("catalog-stamped")).await
            }
            Stage::Start(unit) => self.start(unit).await,
            Stage::Resume(unit, marker) => self.resume(unit, records, &marker).await,
        }
    }

    /// Checks the source range and starts on exactly the head that the check ran at.
    async fn start(&mut self, unit: &dyn Unit) -> Result<Outcome> {
        let state = self.authority.pin().await?;
        let records = system_records(state.as_ref()).await?;
        agree(&records, self.authority)?;
        let again = self.registry.next(&records, self.request.to_format)?;
        if !matches!(again, Stage::Start(same) if same.name() == unit.name()) {
            return Ok(Outcome::Lost);
        }
        if !self.check(state, &records).await? {
            return Ok(Outcome::Lost);
        }
        let findings = self.checked.of(unit.name()).unwrap_or_default();
        self.report.estimated_total = Some(self.report.records_moved + findings.records);
        self.work_on(unit.name());
        self.durable(phases::start(&records, unit.to_format())?, Some("catalog-started")).await
    }

    /// Passes over the source ranges of every unit up to the target, also of those that come later: what stops one of them
    /// has to be found before the first that cannot be taken back. False if another commit came between.
    async fn check(&mut self, mut state: Arc<dyn Read>, records: &SystemRecords) -> Result<bool> {
        let (_, head) = phases::initialized(records)?;
        if self.checked.head != Some(head) {
            self.checked = Checked { head: Some(head), units: Vec::new() };
        }
        let hides = hides_rows(self.registry, records, self.request)?;
        self.refuse_readers(hides).await?;
        for unit in self.registry.chain(records, self.request.to_format)? {
            if self.checked.of(unit.name()).is_some() {
                continue;
            }
            let mut pass = Pass::default();
            let (mut reached, mut looks) = (0, 0);
            while let Err(error) = pass.over(state.as_ref(), unit, &self.budget).await {
                looks = if pass.records() > reached { 1 } else { looks + 1 };
                reached = pass.records();
                self.look_again(looks, error).await?;
                state = self.authority.pin().await?;
                if system_records(state.as_ref()).await?.head != Some(head) {
                    return Ok(false);
                }
            }
            self.checked.units.push((unit.name(), unit.source(), pass.end(unit)?));
        }
        // A long pass later there may be others.
        self.refuse_readers(hides).await?;
        Ok(true)
    }

    async fn refuse_readers(&self, unit: Option<&'static str>) -> Result<()> {
        match unit {
            Some(unit) => {
                checkpoints::refuse_open_readers(unit, &self.authority.open_readers(self.environment).await?)
            }
            None => Ok(()),
        }
    }

    /// Waits before the next look where an object was gone that this process may know from an older manifest alone; any
    /// other error, and one that comes again each time, ends the run.
    async fn look_again(&self, looks: u32, error: Error) -> Result<()> {
        if looks > ATTEMPTS || !has_vanished(&error) {
            return Err(error);
        }
        tokio::time::sleep(PAUSE * 2_u32.pow(looks.min(ATTEMPTS))).await;
        Ok(())
    }

    async fn resume(
        &mut self,
        unit: &dyn Unit,
        records: &SystemRecords,
        marker: &Migration,
    ) -> Result<Outcome> {
        self.work_on(unit.name());
        let (_, head) = phases::initialized(records)?;
        let anchor = Anchor { head, marker: Some(marker.clone()) };
        match self.steps(unit, anchor, marker).await? {
            Outcome::Reached => {}
            other => return Ok(other),
        }
        // The cursor in the store is the one that counts, so the finish is decided on what is there now.
        let records = system_records(self.authority.pin().await?.as_ref()).await?;
        agree(&records, self.authority)?;
        match self.registry.next(&records, self.request.to_format)? {
            Stage::Resume(same, _) if same.name() == unit.name() => {}
            _ => return Ok(Outcome::Lost),
        }
        let finish = phases::finish(&records, self.request.to_format, self.authority.origin())?;
        self.durable(finish, Some("catalog-finished")).await
    }

    /// Commits one batch and waits until it is durable.
    async fn durable(
        &mut self,
        (anchor, batch): (Anchor, Batch),
        point: Option<&'static str>,
    ) -> Result<Outcome> {
        self.checked.forget(&batch);
        match self.authority.commit(&anchor, batch).await? {
            Commit::Committed => self.checked.follow(&anchor),
            Commit::Lost => return Ok(Outcome::Lost),
        }
        self.authority.settle().await?;
        self.report.batches += 1;
        (self.observe)(&self.report);
        if let Some(point) = point {
            crash::reach(point).await;
        }
        Ok(Outcome::Reached)
    }

    async fn pause(&self, lost: u32) -> Result<()> {
        if lost >= ATTEMPTS {
            return Err(Error::new(
                ErrorKind::Contended,
                format!("{lost} batches in a row lost to other commits"),
            )
            .next("run the same command again; it resumes"));
        }
        tokio::time::sleep(self.environment.jitter(PAUSE * 2_u32.pow(lost))).await;
        Ok(())
    }

    fn must_stop(&self) -> bool {
        self.budget.is_spent() || self.request.stop.is_asked()
    }

    fn work_on(&mut self, name: &str) {
        if self.report.units.last().is_none_or(|last| last != name) {
            self.report.units.push(name.to_owned());
        }
    }

    fn moved(&mut self, records: u64, bytes: u64) {
        self.report.records_moved += records;
        self.report.bytes += bytes;
        self.report.batches += 1;
        self.budget.take_page();
        (self.observe)(&self.report);
    }
}
