//! What a store is and what a run would do, found without writing to it or fencing its writer.

use std::sync::Arc;

use serde::Serialize;
use slatedb::DbReaderMode;

use super::checkpoints::{self, Listed};
use super::deadline::{Deadline, has_vanished};
#[cfg(doc)]
use super::driver::check::check;
use super::driver::check::{Findings, Pass};
use super::driver::{ATTEMPTS, phases};
use super::format::{FLOOR, SystemRecords, is_commit_log};
use super::key::shown;
use super::location::Location;
use super::log::Log;
use super::read::{Read, StoreReader};
use super::sound::sound;
use super::store::{behind, explained, looking, manifest, open_reader, system_records};
use super::units::{Kind, Registry, Stage, Unit};
use super::value::{Format, Head, Migration};
use crate::environment::Environment;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// A unit that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnderWay {
    /// Format before the unit.
    pub from_format: u64,
    /// Format after the unit.
    pub to_format: u64,
    /// The last source key that is done, in hexadecimal; empty before the first step.
    pub cursor: String,
}

/// The log of a catalog that is kept in one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitLog {
    /// `batch_seq` at which it began; absent if nobody can say (format 10 without a slot).
    pub origin: Option<u64>,
    /// The sequence of its last slot.
    pub last_slot: u64,
    /// Slots that the index has not folded.
    pub unfolded: u64,
    /// Slots up to it count no more and may be deleted.
    pub floor: u64,
}

/// A stage that a run would work on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Name of the unit, or `additive-stamp`.
    pub unit: String,
    /// Records left; absent where only the run itself can count them (it was not asked for, or an earlier unit makes
    /// them).
    pub records: Option<u64>,
    /// Bytes of the keys and values that it would write and delete.
    pub bytes: Option<u64>,
}

/// A store as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// Format now.
    pub format: u64,
    /// Format before the run that is under way; the present one without.
    pub original_format: u64,
    /// Who wrote the format record.
    pub writer_version: String,
    /// The latest snapshot.
    pub snapshot_id: u64,
    /// Number of batches so far.
    pub batch_seq: u64,
    /// Its commit log, if its truth is one.
    pub commit_log: Option<CommitLog>,
    /// Whether ordinary readers open it now.
    pub readable: bool,
    /// The unit that is under way.
    pub under_way: Option<UnderWay>,
    /// The format that was asked about.
    pub to_format: u64,
    /// What a run would work on, in order; empty when there is nothing to do.
    pub plan: Vec<Planned>,
    /// Checkpoints.
    pub checkpoints: Vec<Listed>,
}

/// Looks at a store. With `counted`, also runs the check of every planned unit's source range (the dry run); what would
/// stop the migration is then its error.
///
/// `InvalidInput` where there is no catalog, and for a target that no unit ends at; `Migration` for a format above the target;
/// `Corruption` as [`sound`] finds it;
/// `Unavailable` where the catalog moved during every look; with `counted`, errors as those of [`check`].
pub async fn inspect(
    location: &Location,
    registry: &Registry,
    to_format: u64,
    counted: bool,
    environment: &Environment,
    budget: &Budget,
) -> Result<Inspection> {
    registry.check_target(to_format)?;
    let deadline = Deadline::of(budget);
    if manifest(location, &deadline).await?.is_none() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("there is no catalog at {location}"))
            .next("metashift catalog create"));
    }
    let checkpoints = checkpoints::list(location, environment, &deadline).await?;
    sound(location, &deadline).await?;
    let mut survey = Survey::default();
    let mut looks = 0;
    loop {
        let reached = survey.records();
        let (found, seen) = looked(location, registry, to_format, counted, budget, &mut survey).await;
        match found {
            // Somebody's compactor and collector may have removed what this reader knew. What the newest manifest names has
            // to be there: another look goes on from the record that was reached, and only one that finds the same on the
            // same manifest tells of damage.
            Err(error) if error.kind() == ErrorKind::Corruption => {
                looks = if survey.records() > reached { 1 } else { looks + 1 };
                let now = manifest(location, &deadline).await?.map(|manifest| manifest.id());
                if looks > 1 && seen == now || looks > ATTEMPTS {
                    return explained(location, Err(error), &deadline).await;
                }
            }
            other => return other.map(|found| Inspection { checkpoints, ..found }),
        }
    }
}

/// What a run would find before its first change: as [`inspect`] that checks every record, and `Migration` where readers that
/// are not accepted have the store open and a unit that moves keys would begin.
pub async fn dry_run(
    location: &Location,
    registry: &Registry,
    to_format: u64,
    accept_open_readers: bool,
    environment: &Environment,
    budget: &Budget,
) -> Result<Inspection> {
    let found = inspect(location, registry, to_format, true, environment, budget).await?;
    let hides =
        |planned: &&Planned| registry.named(&planned.unit).is_some_and(|unit| unit.kind() == Kind::Rewriting);
    if !accept_open_readers
        && found.under_way.is_none()
        && let Some(planned) = found.plan.iter().find(hides)
    {
        checkpoints::refuse_open_readers(&planned.unit, &checkpoints::readers_of(found.checkpoints.clone()))?;
    }
    Ok(found)
}

/// How far the checks of the planned units have come, for as long as the catalog stands still.
#[derive(Debug, Default)]
struct Survey {
    head: Option<Head>,
    done: Vec<(&'static str, Findings)>,
    pass: Option<Pass>,
}

impl Survey {
    fn records(&self) -> u64 {
        let done: u64 = self.done.iter().map(|(_, findings)| findings.records).sum();
        done + self.pass.as_ref().map_or(0, Pass::records)
    }

    async fn check(
        &mut self,
        state: &dyn Read,
        unit: &dyn Unit,
        cursor: &[u8],
        budget: &Budget,
    ) -> Result<Findings> {
        if let Some((_, findings)) = self.done.iter().find(|(name, _)| *name == unit.name()) {
            return Ok(*findings);
        }
        let pass = self.pass.get_or_insert_with(|| Pass::after(cursor));
        if let Err(error) = pass.over(state, unit, budget).await {
            // A record that stops it is found again from the start, with what it had to do with others.
            if !has_vanished(&error) {
                self.pass = None;
            }
            return Err(error);
        }
        let findings = self.pass.take().unwrap_or_default().end(unit)?;
        self.done.push((unit.name(), findings));
        Ok(findings)
    }
}

/// One look through a reader of its own, and the manifest that the reader had in the end.
async fn looked(
    location: &Location,
    registry: &Registry,
    to_format: u64,
    counted: bool,
    budget: &Budget,
    survey: &mut Survey,
) -> (Result<Inspection>, Option<u64>) {
    let deadline = Deadline::of(budget);
    let log = Log::of(location, &deadline);
    let reader = match open_reader(location, DbReaderMode::FollowLatest, looking(), &deadline).await {
        Ok(reader) => reader,
        Err(error) => return (Err(error), None),
    };
    let index = Arc::new(StoreReader::following(Arc::clone(&reader), deadline.clone()));
    let found = settled(&index, &log, registry, to_format, counted, budget, survey).await;
    let seen = reader.manifest().id();
    let closed = deadline.wait("closing the reader", reader.close()).await;
    (found.and_then(|found| closed.map(|()| found)), Some(seen))
}

/// Repeats the look until the index's head stood still during it.
async fn settled(
    index: &Arc<StoreReader>,
    log: &Log,
    registry: &Registry,
    to_format: u64,
    counted: bool,
    budget: &Budget,
    survey: &mut Survey,
) -> Result<Inspection> {
    for _ in 0..ATTEMPTS {
        let before = system_records(index.as_ref()).await?.head;
        let found = settled_once(index, log, registry, to_format, counted, budget, survey).await;
        // Even an error may come of two states read as one; then head has moved.
        if system_records(index.as_ref()).await?.head == before {
            return found;
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("the catalog moved during each of {ATTEMPTS} looks")))
}

async fn settled_once(
    index: &Arc<StoreReader>,
    log: &Log,
    registry: &Registry,
    to_format: u64,
    counted: bool,
    budget: &Budget,
    survey: &mut Survey,
) -> Result<Inspection> {
    let records = system_records(index.as_ref()).await?;
    log.refuse_foreign(&records).await?;
    let below = Arc::clone(index) as Arc<dyn Read>;
    let (state, found, commit_log) = match log.origin(&records, None).await? {
        Some(origin) => {
            let tail = behind(log, records, origin).await?;
            let commit_log = CommitLog {
                origin: Some(origin),
                last_slot: tail.position()?,
                unfolded: tail.slots,
                floor: log.floor().await?.sequence,
            };
            (tail.over(below), tail.records, Some(commit_log))
        }
        None if records.format.as_ref().is_some_and(is_commit_log) => {
            let floor = log.floor().await?.sequence;
            (below, records, Some(CommitLog { origin: None, last_slot: floor, unfolded: 0, floor }))
        }
        None => (below, records, None),
    };
    if survey.head != found.head {
        *survey = Survey { head: found.head, ..Survey::default() };
    }
    let survey = counted.then_some(survey);
    let plan = planned(state.as_ref(), registry, &found, to_format, survey, budget).await?;
    Ok(Inspection { commit_log, ..describe(&found, registry, to_format, plan)? })
}

async fn planned(
    state: &dyn Read,
    registry: &Registry,
    records: &SystemRecords,
    to_format: u64,
    mut survey: Option<&mut Survey>,
    budget: &Budget,
) -> Result<Vec<Planned>> {
    let mut plan = Vec::new();
    let mut records = records.clone();
    loop {
        let (unit, cursor) = match registry.next(&records, to_format)? {
            Stage::Done | Stage::Forget => return Ok(plan),
            Stage::Stamp => {
                plan.push(Planned { unit: "additive-stamp".to_owned(), records: None, bytes: None });
                reach(&mut records, super::format::LAST_ADDITIVE);
                continue;
            }
            Stage::Start(unit) => (unit, bytes::Bytes::new()),
            Stage::Resume(unit, Migration { cursor, .. }) => (unit, cursor),
        };
        // Every unit's source range is written by ordinary commits only, so a later unit's can be checked now.
        let findings = match &mut survey {
            Some(survey) => Some(survey.check(state, unit, &cursor, budget).await?),
            None => None,
        };
        plan.push(Planned {
            unit: unit.name().to_owned(),
            records: findings.map(|findings| findings.records),
            bytes: findings.map(|findings| findings.bytes),
        });
        let reached = unit.to_format();
        reach(&mut records, reached);
    }
}

fn reach(records: &mut SystemRecords, format_version: u64) {
    let format = records.format.take().unwrap_or_default();
    records.format = Some(Format { format_version, ..format });
    records.marker = None;
}

fn describe(
    records: &SystemRecords,
    registry: &Registry,
    to_format: u64,
    plan: Vec<Planned>,
) -> Result<Inspection> {
    debug_assert_eq!(registry.plan(records, to_format).map(|plan| plan.len()).ok(), Some(plan.len()));
    let (format, head) = phases::initialized(records)?;
    Ok(Inspection {
        format: format.format_version,
        original_format: phases::original(records),
        writer_version: format.writer_version.clone(),
        snapshot_id: head.snapshot_id,
        batch_seq: head.batch_seq,
        commit_log: None,
        readable: records.marker.is_none() && format.format_version >= FLOOR,
        under_way: records.marker.as_ref().map(|marker| UnderWay {
            from_format: marker.from_format,
            to_format: marker.to_format,
            cursor: if marker.cursor.is_empty() { String::new() } else { shown(&marker.cursor) },
        }),
        to_format,
        plan,
        checkpoints: Vec::new(),
    })
}
