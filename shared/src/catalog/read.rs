//! Reading one state: point reads and scans, whatever holds the state.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::vec;

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message;
use slatedb::config::ScanOptions;
use slatedb::{Db, DbIterator, DbReader, DbSnapshot};

use super::deadline::Deadline;
use super::key::prefix;
use super::value::unframe;
use crate::Result;

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Where it begins.
    pub start: Bound<Bytes>,
    /// Where it ends.
    pub end: Bound<Bytes>,
}

impl Range {
    /// Every key with a prefix.
    pub fn prefix(start: &[u8]) -> Self {
        let end = prefix::end(start).map_or(Bound::Unbounded, |end| Bound::Excluded(end.into()));
        Self { start: Bound::Included(Bytes::copy_from_slice(start)), end }
    }

    /// The part after a key.
    #[must_use]
    pub fn after(self, key: &[u8]) -> Self {
        if key.is_empty() {
            return self;
        }
        Self { start: Bound::Excluded(Bytes::copy_from_slice(key)), ..self }
    }

    /// Whether a key is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match &self.start {
            Bound::Included(start) => key >= start.as_ref(),
            Bound::Excluded(start) => key > start.as_ref(),
            Bound::Unbounded => true,
        };
        let below = match &self.end {
            Bound::Included(end) => key <= end.as_ref(),
            Bound::Excluded(end) => key < end.as_ref(),
            Bound::Unbounded => true,
        };
        above && below
    }
}

/// How a scan fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// A few rows.
    Few,
    /// A long range, read ahead: 512 KiB in each of two requests.
    Ahead,
}

impl Fetch {
    fn options(self) -> ScanOptions {
        match self {
            Self::Few => ScanOptions::default(),
            Self::Ahead => {
                ScanOptions { read_ahead_bytes: 512 * 1024, max_fetch_tasks: 2, ..ScanOptions::default() }
            }
        }
    }
}

/// Changes on top of a state: what a key holds now, or that it is gone.
pub type Changes = BTreeMap<Bytes, Option<Bytes>>;

/// Rows of a scan, in key order.
pub struct Rows {
    rows: DbIterator,
    /// The next row below, where there are changes to compare it with.
    ahead: Option<(Bytes, Bytes)>,
    changes: Peekable<vec::IntoIter<(Bytes, Option<Bytes>)>>,
    deadline: Deadline,
    /// The first row with an end of its own.
    expiring: Option<Bytes>,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl Rows {
    /// The same rows under changes in the same range.
    pub(crate) fn under(self, changes: Vec<(Bytes, Option<Bytes>)>) -> Self {
        Self { changes: changes.into_iter().peekable(), ..self }
    }

    /// The next key and value; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            let below = match self.ahead.take() {
                Some(row) => Some(row),
                None => self.below().await?,
            };
            let Some(changed) = self.changes.peek().map(|(key, _)| key) else { return Ok(below) };
            match below {
                Some(row) if row.0 < *changed => return Ok(Some(row)),
                Some(row) if row.0 > *changed => self.ahead = Some(row),
                _ => {}
            }
            if let Some((key, Some(value))) = self.changes.next() {
                return Ok(Some((key, value)));
            }
        }
    }

    async fn below(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        // The future is large: pinned here, only a reference to it is handed on.
        let next = std::pin::pin!(self.rows.next());
        let next = self.deadline.wait("scanning the catalog", next).await?;
        Ok(next.map(|row| {
            if row.expire_ts.is_some() && self.expiring.is_none() {
                self.expiring = Some(row.key.clone());
            }
            (row.key, row.value)
        }))
    }

    /// The key of the first of them so far that SlateDB is to let expire by itself.
    pub fn expiring(&self) -> Option<&Bytes> {
        self.expiring.as_ref()
    }
}

/// One state of the store.
#[async_trait]
pub trait Read: Send + Sync {
    /// The value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;
    /// The rows of a range.
    async fn scan(&self, range: Range, fetch: Fetch) -> Result<Rows>;
}

/// The message under a key; `Corruption` for a value that is none.
pub async fn message<M: Message + Default>(state: &dyn Read, key: &[u8]) -> Result<Option<M>> {
    state.get(key).await?.map(|value| unframe(key, &value)).transpose()
}

enum Source {
    Snapshot(Arc<DbSnapshot>),
    Following(Arc<DbReader>),
    Writer(Db),
}

/// A state held by SlateDB.
pub struct StoreReader {
    source: Source,
    deadline: Deadline,
}

impl StoreReader {
    /// A pinned state of a writer.
    pub fn pinned(snapshot: Arc<DbSnapshot>, deadline: Deadline) -> Self {
        Self { source: Source::Snapshot(snapshot), deadline }
    }

    /// Whatever a reader sees at each call.
    pub fn following(reader: Arc<DbReader>, deadline: Deadline) -> Self {
        Self { source: Source::Following(reader), deadline }
    }

    /// Whatever a writer sees at each call.
    pub fn present(db: Db, deadline: Deadline) -> Self {
        Self { source: Source::Writer(db), deadline }
    }
}

#[async_trait]
impl Read for StoreReader {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        const WHAT: &str = "reading the catalog";
        match &self.source {
            Source::Snapshot(source) => self.deadline.wait(WHAT, source.get(key)).await,
            Source::Following(source) => self.deadline.wait(WHAT, source.get(key)).await,
            Source::Writer(source) => self.deadline.wait(WHAT, source.get(key)).await,
        }
    }

    async fn scan(&self, range: Range, fetch: Fetch) -> Result<Rows> {
        const WHAT: &str = "scanning the catalog";
        let options = fetch.options();
        let bounds = (range.start, range.end);
        let rows = match &self.source {
            Source::Snapshot(source) => {
                self.deadline.wait(WHAT, source.scan_with_options(bounds, &options)).await?
            }
            Source::Following(source) => {
                self.deadline.wait(WHAT, source.scan_with_options(bounds, &options)).await?
            }
            Source::Writer(source) => {
                self.deadline.wait(WHAT, source.scan_with_options(bounds, &options)).await?
            }
        };
        Ok(Rows {
            rows,
            ahead: None,
            changes: Vec::new().into_iter().peekable(),
            deadline: self.deadline.clone(),
            expiring: None,
        })
    }
}
