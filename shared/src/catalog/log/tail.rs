//! An index and the slots that it has not folded yet, as one state.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::slot::CommitSlot;
use super::{Beyond, Log};
use crate::catalog::format::{SystemRecords, is_commit_log};
use crate::catalog::read::{Changes, Fetch, Range, Read, Rows};
use crate::{Error, ErrorKind, Result};

/// The slots behind an index, folded into memory.
#[derive(Debug, Clone)]
pub struct Tail {
    /// The system records after the last of them.
    pub records: SystemRecords,
    /// `batch_seq` at which the log began.
    pub origin: u64,
    /// How many slots.
    pub slots: u64,
    changes: Arc<Changes>,
}

impl Tail {
    /// Nothing yet behind an index with these records; `Corruption` where the log began after them.
    pub fn new(records: SystemRecords, origin: u64) -> Result<Self> {
        let tail = Self { records, origin, slots: 0, changes: Arc::default() };
        tail.position()?;
        Ok(tail)
    }

    /// The sequence of the last slot in it or in the index below; `Corruption` where the log began after both.
    pub fn position(&self) -> Result<u64> {
        let batch_seq = self.records.head.unwrap_or_default().batch_seq;
        batch_seq.checked_sub(self.origin).ok_or_else(|| {
            Error::new(
                ErrorKind::Corruption,
                format!(
                    "the index is at batch {batch_seq}, before {} where its commit log began",
                    self.origin
                ),
            )
        })
    }

    /// Takes the next slot; errors as those of [`CommitSlot::follow`].
    pub fn push(&mut self, sequence: u64, slot: &CommitSlot) -> Result<()> {
        self.records = slot.follow(&self.records, self.origin, sequence)?;
        let changes = Arc::make_mut(&mut self.changes);
        for (key, value) in slot.changes() {
            changes.insert(key.clone(), value.cloned());
        }
        self.slots += 1;
        Ok(())
    }

    /// Whether the last slot in it has ended the log; what comes behind belongs to another one.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.records)
    }

    /// Takes every slot that there is; false if the index below is behind the floor.
    ///
    /// Errors as those of [`Log::beyond`] and [`CommitSlot::follow`].
    pub async fn advance(&mut self, log: &Log) -> Result<bool> {
        while !self.has_ended() {
            match log.beyond(self.position()?).await? {
                Beyond::Truncated => return Ok(false),
                Beyond::Slots(slots) if slots.is_empty() => return Ok(true),
                Beyond::Slots(slots) => {
                    for (sequence, slot) in &slots {
                        self.push(*sequence, slot)?;
                        if self.has_ended() {
                            break;
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// The state of `index` under these slots.
    pub fn over(&self, index: Arc<dyn Read>) -> Arc<dyn Read> {
        Arc::new(Folded { index, changes: Arc::clone(&self.changes) })
    }
}

/// Whether a catalog with these records is a native one.
pub(crate) fn has_ended(records: &SystemRecords) -> bool {
    records.format.as_ref().is_some_and(|format| !is_commit_log(format))
}

/// The records after the last slot behind an index with `records`, and how many slots there are; `None` if the index is
/// behind the floor. Keeps nothing else of them.
pub(crate) async fn last_records(
    log: &Log,
    mut records: SystemRecords,
    origin: u64,
) -> Result<Option<(SystemRecords, u64)>> {
    let mut count = 0;
    while !has_ended(&records) {
        let position = Tail::new(records.clone(), origin)?.position()?;
        let slots = match log.beyond(position).await? {
            Beyond::Truncated => return Ok(None),
            Beyond::Slots(slots) if slots.is_empty() => break,
            Beyond::Slots(slots) => slots,
        };
        for (sequence, slot) in &slots {
            records = slot.follow(&records, origin, *sequence)?;
            count += 1;
            if has_ended(&records) {
                break;
            }
        }
    }
    Ok(Some((records, count)))
}

struct Folded {
    index: Arc<dyn Read>,
    changes: Arc<Changes>,
}

#[async_trait]
impl Read for Folded {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.index.get(key).await,
        }
    }

    async fn scan(&self, range: Range, fetch: Fetch) -> Result<Rows> {
        let bounds = (range.start.clone(), range.end.clone());
        let changes = self.changes.range(bounds).map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(self.index.scan(range, fetch).await?.under(changes))
    }
}
