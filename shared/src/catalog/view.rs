//! What a catalog holds, now or at an earlier snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::format::{DELETE_TARGETS, NAMES};
use super::key::{Current, Entity, Inline, Key, Name, Operation, prefix, shown};
use super::read::{Fetch, Range, Read, message};
use super::value::{DeleteFile, Head, InlineChunk, NameEntry, RowDeletion, Schema, Table, unframe};
use crate::{Error, ErrorKind, Result};

/// A catalog in one state. Cheap to clone.
#[derive(Clone)]
pub struct View {
    state: Arc<dyn Read>,
    format: u64,
    head: Head,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("format", &self.format).field("head", &self.head).finish_non_exhaustive()
    }
}

/// Rows of one inline chunk that are visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleRows {
    /// The snapshot that inserted them.
    pub begin_snapshot: u64,
    /// Ids of the visible ones, ascending.
    pub row_ids: Vec<u64>,
    /// The chunk's Arrow bytes, whole.
    pub body: Bytes,
}

/// Everything that a snapshot shows, in id order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Schemas.
    pub schemas: Vec<Schema>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Delete files.
    pub delete_files: Vec<DeleteFile>,
    /// Inline rows, by table.
    pub rows: BTreeMap<u64, Vec<VisibleRows>>,
}

/// Whether a version that began and perhaps ended is visible at a snapshot.
fn visible(begin: u64, end: Option<u64>, at: u64) -> bool {
    begin <= at && end.is_none_or(|end| at < end)
}

/// Whether a row that began at `begin` has been deleted at a snapshot by one of these events.
///
/// An event at or before the row's begin belongs to an earlier row with the same id.
fn deleted(begin: u64, events: &[u64], at: u64) -> bool {
    events.iter().any(|end| begin < *end && *end <= at)
}

impl View {
    /// A state whose format and head have been read from it.
    pub(crate) fn new(state: Arc<dyn Read>, format: u64, head: Head) -> Self {
        Self { state, format, head }
    }

    /// The store's format.
    pub fn format(&self) -> u64 {
        self.format
    }

    /// The latest snapshot and number of batches.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The state below, for what has no query here.
    pub fn state(&self) -> &dyn Read {
        self.state.as_ref()
    }

    async fn versions<M, K>(&self, current: &[u8], ended: &[u8], visible: K) -> Result<Vec<M>>
    where
        M: prost::Message + Default,
        K: Fn(&M) -> bool + Send + Sync,
    {
        let mut found = Vec::new();
        for range in [current, ended] {
            let mut rows = self.state.scan(Range::prefix(range), Fetch::Ahead).await?;
            while let Some((key, value)) = rows.next().await? {
                let version = unframe::<M>(&key, &value)?;
                if visible(&version) {
                    found.push(version);
                }
            }
        }
        Ok(found)
    }

    /// `InvalidInput` for a snapshot beyond the latest, and for one that has expired: its record is gone, and with it the promise
    /// that what it showed is still there.
    async fn retained(&self, snapshot: u64) -> Result<()> {
        if snapshot > self.head.snapshot_id {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("snapshot {snapshot} is beyond the latest one, {}", self.head.snapshot_id),
            ));
        }
        if self.state.get(&Key::Snapshot(snapshot).encode()).await?.is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("snapshot {snapshot} has expired"))
                .next("name one that the catalog still lists"));
        }
        Ok(())
    }

    /// Schemas at a snapshot; `InvalidInput` for one that is not there, as for everything at a snapshot.
    pub async fn schemas(&self, at: u64) -> Result<Vec<Schema>> {
        self.retained(at).await?;
        let shown = move |schema: &Schema| visible(schema.begin_snapshot, schema.end_snapshot, at);
        let mut found = self.versions(prefix::CURRENT_SCHEMAS, prefix::ENDED_SCHEMAS, shown).await?;
        found.sort_by_key(|schema| schema.schema_id);
        Ok(found)
    }

    /// Tables at a snapshot.
    pub async fn tables(&self, at: u64) -> Result<Vec<Table>> {
        self.retained(at).await?;
        let shown = move |table: &Table| visible(table.begin_snapshot, table.end_snapshot, at);
        let mut found = self.versions(prefix::CURRENT_TABLES, prefix::ENDED_TABLES, shown).await?;
        found.sort_by_key(|table| table.table_id);
        Ok(found)
    }

    /// Delete files at a snapshot.
    pub async fn delete_files(&self, at: u64) -> Result<Vec<DeleteFile>> {
        self.retained(at).await?;
        let shown = move |file: &DeleteFile| visible(file.begin_snapshot, file.end_snapshot, at);
        let mut found =
            self.versions(prefix::CURRENT_DELETE_FILES, prefix::ENDED_DELETE_FILES, shown).await?;
        found.sort_by_key(|file| (file.table_id, file.delete_file_id));
        Ok(found)
    }

    /// Inline rows of every table at a snapshot.
    ///
    /// Live chunks and the events that delete their rows; archived ones count for nothing, as in the released crates:
    /// what was flushed is read from data files, also at earlier snapshots.
    pub async fn rows(&self, at: u64) -> Result<BTreeMap<u64, Vec<VisibleRows>>> {
        self.retained(at).await?;
        let deletions = self.deletions().await?;
        let mut found: BTreeMap<u64, Vec<VisibleRows>> = BTreeMap::new();
        let mut rows = self.state.scan(Range::prefix(prefix::LIVE_INSERTS), Fetch::Ahead).await?;
        while let Some((key, value)) = rows.next().await? {
            let Key::Inline(Inline::Live(Operation::Insert { table_id, begin_snapshot, .. })) =
                Key::decode(&key)?
            else {
                return Err(strange(&key));
            };
            if begin_snapshot > at {
                continue;
            }
            let chunk: InlineChunk = unframe(&key, &value)?;
            let end = chunk.row_id_start.saturating_add(chunk.row_count);
            let row_ids: Vec<_> = (chunk.row_id_start..end)
                .filter(|row| {
                    let events = deletions.get(&(table_id, *row)).map_or(&[][..], Vec::as_slice);
                    !deleted(begin_snapshot, events, at)
                })
                .collect();
            if !row_ids.is_empty() {
                let rows = VisibleRows { begin_snapshot, row_ids, body: chunk.body };
                found.entry(table_id).or_default().push(rows);
            }
        }
        for rows in found.values_mut() {
            rows.sort_by_key(|rows| rows.row_ids.first().copied());
        }
        Ok(found)
    }

    /// When each row was deleted: row deletes of formats 1 to 8, tombstones from 9 on.
    async fn deletions(&self) -> Result<BTreeMap<(u64, u64), Vec<u64>>> {
        let mut events: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
        for range in [prefix::LIVE_ROW_DELETES, prefix::ROW_TOMBSTONES] {
            let mut rows = self.state.scan(Range::prefix(range), Fetch::Ahead).await?;
            while let Some((key, value)) = rows.next().await? {
                let row = match Key::decode(&key)? {
                    Key::Inline(
                        Inline::Live(Operation::RowDelete { table_id, row_id })
                        | Inline::RowTombstone { table_id, row_id, .. },
                    ) => (table_id, row_id),
                    _ => return Err(strange(&key)),
                };
                events.entry(row).or_default().push(unframe::<RowDeletion>(&key, &value)?.end_snapshot);
            }
        }
        Ok(events)
    }

    /// Everything at a snapshot (time travel).
    pub async fn read_at(&self, snapshot: u64) -> Result<Contents> {
        Ok(Contents {
            schemas: self.schemas(snapshot).await?,
            tables: self.tables(snapshot).await?,
            delete_files: self.delete_files(snapshot).await?,
            rows: self.rows(snapshot).await?,
        })
    }

    /// The current schema with exactly this name: through the directory from format 11 on, by a scan before.
    pub async fn schema_named(&self, name: &str) -> Result<Option<Schema>> {
        if self.format < NAMES {
            let named = |schema: &Schema| schema.schema_name == name;
            return self.one(prefix::CURRENT_SCHEMAS, named).await;
        }
        let entry = Key::Name(Name::Schema { name: name.to_owned() }).encode();
        let Some(NameEntry { id }) = message(self.state(), &entry).await? else { return Ok(None) };
        let record = Key::Current(Current::Entity(Entity::Schema { schema_id: id })).encode();
        match message::<Schema>(self.state(), &record).await? {
            Some(schema) if schema.schema_name == name => Ok(Some(schema)),
            _ => Err(dangling(&entry, &record)),
        }
    }

    /// The current table of a schema with exactly this name: through the directory from format 11 on, by a scan before.
    pub async fn table_named(&self, schema_id: u64, name: &str) -> Result<Option<Table>> {
        if self.format < NAMES {
            let named = |table: &Table| table.schema_id == schema_id && table.table_name == name;
            return self.one(prefix::CURRENT_TABLES, named).await;
        }
        let entry = Key::Name(Name::Table { schema_id, name: name.to_owned() }).encode();
        let Some(NameEntry { id }) = message(self.state(), &entry).await? else { return Ok(None) };
        let record = Key::Current(Current::Entity(Entity::Table { table_id: id })).encode();
        match message::<Table>(self.state(), &record).await? {
            Some(table) if table.table_name == name && table.schema_id == schema_id => Ok(Some(table)),
            _ => Err(dangling(&entry, &record)),
        }
    }

    async fn one<M: prost::Message + Default>(
        &self,
        range: &[u8],
        named: impl Fn(&M) -> bool + Send + Sync,
    ) -> Result<Option<M>> {
        let mut rows = self.state.scan(Range::prefix(range), Fetch::Ahead).await?;
        while let Some((key, value)) = rows.next().await? {
            let record = unframe::<M>(&key, &value)?;
            if named(&record) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Current delete files of a data file: through the directory at format 12, by a scan of the table's before.
    pub async fn delete_files_of(&self, table_id: u64, data_file_id: u64) -> Result<Vec<DeleteFile>> {
        let mut found = Vec::new();
        if self.format < DELETE_TARGETS {
            let range = Range::prefix(&prefix::of(prefix::CURRENT_DELETE_FILES, table_id));
            let mut rows = self.state.scan(range, Fetch::Ahead).await?;
            while let Some((key, value)) = rows.next().await? {
                let file: DeleteFile = unframe(&key, &value)?;
                if file.data_file_id == data_file_id {
                    found.push(file);
                }
            }
            return Ok(found);
        }
        let targets =
            [prefix::of(prefix::DELETE_TARGETS, table_id), data_file_id.to_be_bytes().to_vec()].concat();
        let mut rows = self.state.scan(Range::prefix(&targets), Fetch::Few).await?;
        while let Some((key, _)) = rows.next().await? {
            let Key::DeleteTarget { delete_file_id, .. } = Key::decode(&key)? else {
                return Err(strange(&key));
            };
            let record =
                Key::Current(Current::Entity(Entity::DeleteFile { table_id, delete_file_id })).encode();
            match message::<DeleteFile>(self.state(), &record).await? {
                Some(file) if file.data_file_id == data_file_id => found.push(file),
                _ => return Err(dangling(&key, &record)),
            }
        }
        Ok(found)
    }
}

fn strange(key: &[u8]) -> Error {
    Error::new(ErrorKind::Corruption, format!("key {} is not of the kind that its range holds", shown(key)))
}

fn dangling(entry: &[u8], record: &[u8]) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("directory entry {} stands for {}, which is not so", shown(entry), shown(record)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_visible_from_its_begin_until_before_its_end() {
        assert!(!visible(3, None, 2));
        assert!(visible(3, None, 3));
        assert!(visible(3, Some(5), 4));
        assert!(!visible(3, Some(5), 5));
    }

    #[test]
    fn a_row_is_hidden_only_by_an_event_after_its_begin() {
        assert!(!deleted(5, &[], 9));
        assert!(!deleted(5, &[5], 9));
        assert!(!deleted(5, &[3], 9));
        assert!(deleted(5, &[3, 7], 9));
        assert!(deleted(5, &[7], 7));
        assert!(!deleted(5, &[7], 6));
    }
}
