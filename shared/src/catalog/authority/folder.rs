//! The commit log's folder: the one who holds the index's writer, applies every slot to it, and commits by winning the
//! next one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use slatedb::WriteBatch;
use tokio::sync::Mutex;

use super::{Commit, CommitAuthority, Native};
use crate::catalog::batch::{Anchor, Batch};
use crate::catalog::checkpoints::Listed;
use crate::catalog::deadline::Deadline;
use crate::catalog::format::SystemRecords;
use crate::catalog::location::Location;
use crate::catalog::log::slot::CommitSlot;
use crate::catalog::log::tail::has_ended;
use crate::catalog::log::{Beyond, Log, Won, ended, origin_unknown};
use crate::catalog::read::Read;
use crate::catalog::store::{Ending, index_behind, manifest, system_records};
use crate::environment::Environment;
use crate::{Error, ErrorKind, Result, crash};

/// A catalog kept in a commit log, whose index this process writes.
///
/// Slots need no epoch: what a fenced folder wins still counts, and whoever took the index folds it.
pub struct Folder {
    location: Location,
    epoch: u64,
    index: Native,
    log: Log,
    origin: u64,
    environment: Environment,
    /// The records of the index with every slot applied so far.
    folded: Mutex<SystemRecords>,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folder").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Folder {
    /// Takes the index's writer after `epoch` and folds every slot. Without an index it is built from the first slot on.
    ///
    /// `AuthorityChanged` where the log has ended, `Migration` where nobody can say its origin, `InvalidInput` for one that the log
    /// contradicts. `Corruption` where the index is an old copy, whose next slots are deleted.
    pub async fn open(
        location: &Location,
        epoch: u64,
        asked_origin: Option<u64>,
        environment: &Environment,
        deadline: &Deadline,
    ) -> Result<Self> {
        let index = Native::open(location, epoch, deadline.clone()).await?;
        let log = Log::of(location, deadline);
        let start = async {
            let records = system_records(index.pin().await?.as_ref()).await?;
            let origin = match &records.format {
                None => Some(0),
                Some(_) if has_ended(&records) => return Err(ended()),
                Some(_) => log.origin(&records, asked_origin).await?,
            };
            Ok((records, origin.ok_or_else(origin_unknown)?))
        };
        let (records, origin) = match start.await {
            Ok(start) => start,
            Err(error) => {
                index.close(Ending::Abandoned).await?;
                return Err(error);
            }
        };
        let (location, environment) = (location.clone(), environment.clone());
        let folder =
            Self { location, epoch: epoch + 1, index, log, origin, environment, folded: Mutex::new(records) };
        if let Err(error) = folder.fold(&mut *folder.folded.lock().await).await {
            folder.close(Ending::Abandoned).await?;
            return Err(error);
        }
        Ok(folder)
    }

    /// The sequence of the last folded slot.
    pub async fn position(&self) -> u64 {
        let batch_seq = self.folded.lock().await.head.unwrap_or_default().batch_seq;
        batch_seq.saturating_sub(self.origin)
    }

    /// Whether the folded catalog is a native one: its log has been demoted.
    pub async fn is_demoted(&self) -> bool {
        has_ended(&*self.folded.lock().await)
    }

    /// The log below.
    pub fn log(&self) -> &Log {
        &self.log
    }

    async fn fold(&self, records: &mut SystemRecords) -> Result<()> {
        while !has_ended(records) {
            let position = records.head.unwrap_or_default().batch_seq.saturating_sub(self.origin);
            let slots = match self.log.beyond(position).await? {
                Beyond::Truncated => return Err(self.left_behind(position).await?),
                Beyond::Slots(slots) if slots.is_empty() => break,
                Beyond::Slots(slots) => slots,
            };
            for (sequence, slot) in slots {
                let after = slot.follow(records, self.origin, sequence)?;
                self.apply(slot).await?;
                *records = after;
                if has_ended(records) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Why the next slot is deleted: somebody else has the index, or this one is an old copy.
    async fn left_behind(&self, position: u64) -> Result<Error> {
        let there = manifest(&self.location, self.index.deadline()).await?;
        if there.is_some_and(|manifest| manifest.writer_epoch() > self.epoch) {
            return Ok(Error::new(
                ErrorKind::Fenced,
                "another process has folded and truncated the commit log",
            )
            .next("see what it does, then run the same command again"));
        }
        Ok(index_behind(position))
    }

    /// One write a slot.
    async fn apply(&self, slot: CommitSlot) -> Result<()> {
        let mut batch = WriteBatch::new();
        for put in slot.puts {
            batch.put(put.key, put.value);
        }
        for key in slot.deletes {
            batch.delete(key);
        }
        self.index.deadline().wait("folding a slot", self.index.db().write(batch)).await?;
        crash::reach("catalog-log-folded").await;
        Ok(())
    }
}

#[async_trait]
impl CommitAuthority for Folder {
    async fn pin(&self) -> Result<Arc<dyn Read>> {
        let mut records = self.folded.lock().await;
        self.fold(&mut records).await?;
        self.index.pin().await
    }

    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit> {
        let mut records = self.folded.lock().await;
        if !anchor.is(&records) {
            return Ok(Commit::Lost);
        }
        let (sequence, slot, after) = next(&self.environment, &records, self.origin, batch)?;
        if self.log.win(sequence, &slot, &self.environment).await? == Won::Lost {
            return Ok(Commit::Lost);
        }
        crash::reach("catalog-log-won").await;
        self.apply(slot).await?;
        *records = after;
        Ok(Commit::Committed)
    }

    async fn settle(&self) -> Result<()> {
        self.index.settle().await
    }

    async fn checkpoint(&self, name: &str, lifetime: Option<Duration>) -> Result<()> {
        self.index.checkpoint(name, lifetime).await
    }

    async fn open_readers(&self, environment: &Environment) -> Result<Vec<Listed>> {
        self.index.open_readers(environment).await
    }

    async fn close(&self, ending: Ending) -> Result<()> {
        self.index.close(ending).await
    }

    fn origin(&self) -> Option<u64> {
        Some(self.origin)
    }
}

/// The slot that a batch on these records would be, its sequence, and the records after it.
pub(super) fn next(
    environment: &Environment,
    records: &SystemRecords,
    origin: u64,
    batch: Batch,
) -> Result<(u64, CommitSlot, SystemRecords)> {
    if has_ended(records) {
        return Err(ended());
    }
    let base = records.head.unwrap_or_default().batch_seq;
    let slot = CommitSlot::new(environment.number(), base, batch);
    let sequence = (base + 1).saturating_sub(origin);
    let after = slot.follow(records, origin, sequence).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("a batch that the log would not take: {}", error.message()))
    })?;
    Ok((sequence, slot, after))
}
