//! The life of a commit log: a catalog born in one, adoption of a native catalog, demotion, and truncation.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use super::floor::{Floor, REMEMBERED};
use super::{AT_ONCE, Log, origin_unknown};
use crate::catalog::authority::{Commit, CommitAuthority, Folder, Native};
use crate::catalog::batch::{Anchor, Batch};
use crate::catalog::bootstrap;
use crate::catalog::checkpoints::{self, LOG_BASE};
use crate::catalog::deadline::Deadline;
use crate::catalog::driver::{ATTEMPTS, agree, phases};
use crate::catalog::format::{BOOTSTRAP, LEGACY_COMMIT_LOG, NAMES, SystemRecords, is_commit_log};
use crate::catalog::key::System;
use crate::catalog::location::Location;
use crate::catalog::store::{Ending, Sighting, index_behind, look, system_records};
use crate::catalog::value::{Format, Head};
use crate::environment::Environment;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result, crash};

/// Slots that a truncation keeps unless it is told otherwise: how long a committer may be held up between its slot and
/// its look at the floor.
pub const KEPT: u64 = 1_000;

/// A catalog's log as it is after one of these verbs, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Changed {
    /// Whether anything was, or would be, changed.
    pub changed: bool,
    /// The catalog's format, which none of them changes.
    pub format: u64,
    /// `batch_seq` at which the log began; absent in a native catalog.
    pub origin: Option<u64>,
    /// The sequence of the last slot.
    pub last_slot: u64,
    /// Slots up to it count no more.
    pub floor: u64,
    /// Slots that were, or would be, deleted.
    pub deleted: u64,
}

fn refused(why: impl Into<String>, next: &str) -> Error {
    Error::new(ErrorKind::Migration, why).next(next)
}

/// Format and head of a catalog on which no migration is under way.
fn idle(records: &SystemRecords) -> Result<(&Format, Head)> {
    if records.gate()?.is_none() {
        return Err(
            Error::new(ErrorKind::InvalidInput, "there is no catalog here").next("metashift catalog create")
        );
    }
    phases::initialized(records)
}

/// Makes an empty catalog that is kept in a log from its first batch on, or folds one that is there.
///
/// `InvalidInput` where a native catalog is; else as [`Folder::open`].
pub async fn create(location: &Location, environment: &Environment, budget: &Budget) -> Result<Changed> {
    let deadline = Deadline::of(budget);
    let Sighting { epoch, records, log } = look(location, &deadline).await?;
    if log.is_none() && records.format.is_some() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{location} holds a native catalog"))
            .next("metashift catalog adopt-log"));
    }
    let folder = Folder::open(location, epoch.unwrap_or(0), None, environment, &deadline).await?;
    let made = async {
        let records = system_records(folder.pin().await?.as_ref()).await?;
        if records.format.is_none() {
            let anchor = Anchor { head: Head::default(), marker: None };
            // Lost is as good: somebody else made it, and the slot is folded below.
            let commit = folder.commit(&anchor, bootstrap::batch(BOOTSTRAP, true, environment)?).await?;
            tracing::debug!(?commit, "the first slot");
        }
        let records = system_records(folder.pin().await?.as_ref()).await?;
        folder.settle().await?;
        let (format, _) = phases::initialized(&records)?;
        let (position, floor) = (folder.position().await, folder.log().floor().await?.sequence);
        Ok(state(format, log.is_none(), position, floor, 0))
    };
    ended(&folder, made.await).await
}

fn state(format: &Format, changed: bool, last_slot: u64, floor: u64, deleted: u64) -> Changed {
    let origin = format.commit_log_batch_origin;
    Changed { changed, format: format.format_version, origin, last_slot, floor, deleted }
}

async fn ended<T>(authority: &dyn CommitAuthority, result: Result<T>) -> Result<T> {
    authority.close(if result.is_ok() { Ending::Complete } else { Ending::Abandoned }).await?;
    result
}

/// Puts a native catalog of format 11 or 12 under a commit log, and takes the checkpoint that the log goes on from.
///
/// The numbers of an earlier log are not used again: a slot of it that arrives late finds its place taken, or lies below
/// the floor. Without one, the log begins at slot 1 and its origin is head's `batch_seq`.
///
/// Errors as those of [`SystemRecords::gate`]; `Migration` below format 11; `InvalidInput` where there is no catalog;
/// `ForeignLeftovers` where slots of another log are there; `Contended` where a commit came between.
pub async fn adopt(
    location: &Location,
    dry_run: bool,
    environment: &Environment,
    budget: &Budget,
) -> Result<Changed> {
    let deadline = Deadline::of(budget);
    let sighting = look(location, &deadline).await?;
    let (format, head) = idle(&sighting.records)?;
    if format.format_version < NAMES {
        let next = format!("metashift catalog run --to-format {NAMES}");
        return Err(refused(
            format!("only formats from {NAMES} on are adopted; this is {}", format.format_version),
            &next,
        ));
    }
    let log = Log::of(location, &deadline);
    if is_commit_log(format) {
        return converge(location, &sighting, dry_run, environment, &deadline).await;
    }
    let (last, floor) = (log.last().await?, log.floor().await?.sequence);
    let origin = (head.batch_seq + 1).checked_sub(last).ok_or_else(|| foreign(last, head))?;
    let planned = Format { commit_log_batch_origin: Some(origin), ..format.clone() };
    if dry_run {
        return Ok(state(&planned, true, last, floor, 0));
    }
    let epoch = sighting.epoch.unwrap_or(0);
    let native = Native::open(location, epoch, deadline.clone()).await?;
    let adopted = async {
        let records = system_records(native.pin().await?.as_ref()).await?;
        agree(&records, &native)?;
        let (format, head) = idle(&records)?;
        let origin = (head.batch_seq + 1).checked_sub(last).ok_or_else(|| foreign(last, head))?;
        let adopted = Format { commit_log_batch_origin: Some(origin), ..format.clone() };
        restamp(&native, &records, &adopted).await?;
        native.settle().await?;
        crash::reach("catalog-log-adopted").await;
        native.checkpoint(LOG_BASE, None).await?;
        Ok(state(&adopted, true, last, floor, 0))
    };
    ended(&native, adopted.await).await
}

fn foreign(last: u64, head: Head) -> Error {
    Error::new(
        ErrorKind::ForeignLeftovers,
        format!("there are {last} slots of another log, and the catalog has only {} batches", head.batch_seq),
    )
    .next("look whose commits/ it is, and move it away")
}

/// A catalog that is adopted already: the one thing that a crash can have left out is the checkpoint.
async fn converge(
    location: &Location,
    sighting: &Sighting,
    dry_run: bool,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<Changed> {
    let (format, _) = phases::initialized(&sighting.records)?;
    let log = Log::of(location, deadline);
    let (last, floor) = (log.last().await?, log.floor().await?.sequence);
    let born = format.commit_log_batch_origin == Some(0) && floor == 0;
    let complete = born || has_base(location, environment, deadline).await?;
    if complete || dry_run {
        return Ok(state(format, !complete, last, floor, 0));
    }
    let folder = Folder::open(location, sighting.epoch.unwrap_or(0), None, environment, deadline).await?;
    let based = async {
        folder.settle().await?;
        folder.checkpoint(LOG_BASE, None).await
    };
    ended(&folder, based.await).await?;
    Ok(state(format, true, last, floor, 0))
}

async fn has_base(location: &Location, environment: &Environment, deadline: &Deadline) -> Result<bool> {
    let listed = checkpoints::list(location, environment, deadline).await?;
    Ok(listed.iter().any(|found| found.name.as_deref() == Some(LOG_BASE)))
}

/// One batch that only writes the format.
async fn restamp(authority: &dyn CommitAuthority, records: &SystemRecords, format: &Format) -> Result<()> {
    let (_, head) = phases::initialized(records)?;
    let anchor = Anchor { head, marker: records.marker.clone() };
    let mut batch = Batch::default();
    batch.put_system(System::Format, format);
    batch.put_system(System::Head, &anchor.advanced(None).head);
    match authority.commit(&anchor, batch).await? {
        Commit::Committed => Ok(()),
        Commit::Lost => {
            Err(Error::new(ErrorKind::Contended, "another commit came between; nothing was written")
                .next("run the same command again"))
        }
    }
}

/// Makes a catalog native again: everything is folded and flushed, then the log's last slot says that it has ended, so
/// that whoever still commits to the log finds out.
///
/// Errors as those of [`SystemRecords::gate`]; `Migration` at format 10, which is a log by its format; `InvalidInput` where there
/// is no catalog; `Contended` after [`ATTEMPTS`] commits that came between; `OutcomeUnknown` where the last slot may still
/// arrive.
pub async fn demote(
    location: &Location,
    dry_run: bool,
    environment: &Environment,
    budget: &Budget,
) -> Result<Changed> {
    let deadline = Deadline::of(budget);
    let sighting = look(location, &deadline).await?;
    let (format, _) = idle(&sighting.records)?;
    if format.format_version == LEGACY_COMMIT_LOG {
        return Err(refused(
            "a catalog of format 10 is one by its format and cannot be demoted",
            &format!("metashift catalog run --to-format {NAMES}"),
        ));
    }
    let log = Log::of(location, &deadline);
    let (last, floor) = (log.last().await?, log.floor().await?.sequence);
    let Some(logged) = sighting.log else {
        // The one thing that a crash can have left is the checkpoint.
        let left = has_base(location, environment, &deadline).await?;
        if left && !dry_run {
            checkpoints::forget(location, LOG_BASE, &deadline).await?;
        }
        return Ok(state(format, left, last, floor, 0));
    };
    let native = Format { commit_log_batch_origin: None, ..format.clone() };
    let pending = is_commit_log(format);
    if dry_run {
        return Ok(state(&native, pending || logged.unfolded > 0, last, floor, 0));
    }
    let epoch = sighting.epoch.unwrap_or(0);
    let folder = Folder::open(location, epoch, None, environment, &deadline).await?;
    let demoted = async {
        folder.settle().await?;
        for attempt in 0..ATTEMPTS {
            let records = system_records(folder.pin().await?.as_ref()).await?;
            let (format, _) = idle(&records)?;
            if !is_commit_log(format) {
                break;
            }
            let native = Format { commit_log_batch_origin: None, ..format.clone() };
            match restamp(&folder, &records, &native).await {
                Err(error) if error.kind() == ErrorKind::Contended && attempt + 1 < ATTEMPTS => {}
                other => other?,
            }
        }
        folder.settle().await?;
        crash::reach("catalog-log-demoted").await;
        Ok(folder.position().await)
    };
    let last = ended(&folder, demoted.await).await?;
    checkpoints::forget(location, LOG_BASE, &deadline).await?;
    Ok(state(&native, true, last, floor, 0))
}

/// Folds the log, takes a new checkpoint that it goes on from, raises the floor to all but the last `keep` slots, and
/// deletes what lies below it.
///
/// `InvalidInput` for a native catalog, `Migration` where nobody can say where the log began; `Contended` where somebody else
/// lowered the floor.
pub async fn truncate(
    location: &Location,
    keep: u64,
    dry_run: bool,
    environment: &Environment,
    budget: &Budget,
) -> Result<Changed> {
    let deadline = Deadline::of(budget);
    let sighting = look(location, &deadline).await?;
    let (format, _) = phases::initialized(&sighting.records)?;
    let Some(logged) = sighting.log.filter(|_| is_commit_log(format)) else {
        return Err(Error::new(ErrorKind::InvalidInput, "a native catalog has no commit log to truncate"));
    };
    let log = Log::of(location, &deadline);
    let floor = log.floor().await?;
    let origin = logged.origin.ok_or_else(origin_unknown)?;
    // Where the catalog does not say the origin, its first slot does.
    let keep = if format.commit_log_batch_origin.is_none() { keep.max(1) } else { keep };
    let format = Format { commit_log_batch_origin: Some(origin), ..format.clone() };
    if dry_run {
        let last = log.last().await?;
        let target = last.saturating_sub(keep).max(floor.sequence);
        let deleted =
            log.listed(0, usize::MAX).await?.0.into_iter().filter(|sequence| *sequence <= target).count();
        return Ok(state(&format, deleted > 0, last, target, deleted as u64));
    }
    let epoch = sighting.epoch.unwrap_or(0);
    let folder = Folder::open(location, epoch, None, environment, &deadline).await?;
    let truncated = async {
        folder.settle().await?;
        let last = folder.position().await;
        let target = last.saturating_sub(keep);
        if target > floor.sequence {
            // From here on a new process needs no slot up to `last`.
            folder.checkpoint(LOG_BASE, None).await?;
            crash::reach("catalog-log-based").await;
            let transaction_ids = remembered(&log, &floor, target).await?;
            log.raise(Floor { sequence: target, transaction_ids }).await?;
            crash::reach("catalog-log-floored").await;
        }
        let deleted = log.clear().await?;
        let floor = log.floor().await?.sequence;
        Ok(state(&format, deleted > 0, last, floor, deleted))
    };
    ended(&folder, truncated.await).await
}

/// Ids of the last slots up to `target`, without a gap: those that the floor before remembers, and the next ones.
async fn remembered(log: &Log, before: &Floor, target: u64) -> Result<Vec<Bytes>> {
    let oldest = (target + 1).saturating_sub(REMEMBERED);
    let mut ids = if before.sequence + 1 < oldest { Vec::new() } else { before.transaction_ids.clone() };
    let mut slots = futures::stream::iter((before.sequence + 1).max(oldest)..=target)
        .map(|sequence| async move { Ok::<_, Error>((sequence, log.slot(sequence).await?)) })
        .buffered(AT_ONCE);
    while let Some((sequence, slot)) = slots.try_next().await? {
        ids.push(slot.ok_or_else(|| index_behind(sequence - 1))?.transaction_id);
    }
    let surplus = ids.len().saturating_sub(usize::try_from(REMEMBERED).unwrap_or(usize::MAX));
    Ok(ids.split_off(surplus))
}
