//! What a store is and what a run would do, found without writing to it or fencing its writer.

use std::sync::Arc;

use serde::Serialize;
use slatedb::DbReaderMode;

use super::checkpoints::{self, Listed};
use super::deadline::Deadline;
use super::driver::check::check;
use super::driver::{ATTEMPTS, phases};
use super::format::{FLOOR, SystemRecords, is_commit_log};
use super::key::shown;
use super::location::Location;
use super::log::Log;
use super::read::{Read, StoreReader};
use super::sound::sound;
use super::store::{behind, looking, manifest, open_reader, system_records};
use super::units::{Registry, Stage};
use super::value::{Format, Migration};
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
    let log = Log::of(location, &deadline);
    if manifest(location, &deadline).await?.is_none() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("there is no catalog at {location}"))
            .next("metashift catalog create"));
    }
    let checkpoints = checkpoints::list(location, environment, &deadline).await?;
    sound(location, &deadline).await?;
    let reader = open_reader(location, DbReaderMode::FollowLatest, looking(), &deadline).await?;
    let index = Arc::new(StoreReader::following(Arc::clone(&reader), deadline.clone()));
    let found = settled(&index, &log, registry, to_format, counted, budget).await;
    deadline.wait("closing the reader", reader.close()).await?;
    Ok(Inspection { checkpoints, ..found? })
}

/// Repeats the look until the index's head stood still during it.
async fn settled(
    index: &Arc<StoreReader>,
    log: &Log,
    registry: &Registry,
    to_format: u64,
    counted: bool,
    budget: &Budget,
) -> Result<Inspection> {
    for _ in 0..ATTEMPTS {
        let before = system_records(index.as_ref()).await?.head;
        let found = settled_once(index, log, registry, to_format, counted, budget).await;
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
) -> Result<Inspection> {
    let records = system_records(index.as_ref()).await?;
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
    let plan = planned(state.as_ref(), registry, &found, to_format, counted, budget).await?;
    Ok(Inspection { commit_log, ..describe(&found, registry, to_format, plan)? })
}

async fn planned(
    state: &dyn Read,
    registry: &Registry,
    records: &SystemRecords,
    to_format: u64,
    counted: bool,
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
        let findings = if counted { Some(check(state, unit, &cursor, budget).await?) } else { None };
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
