//! Stores of any format with a history, written record by record: for the demo, the tests and the benchmarks.
//!
//! The same [`Seed`] of two formats holds the same catalog, so a migrated store can be compared with one that was
//! written in the newer format.

use std::sync::Arc;

use bytes::Bytes;
use slatedb::config::DbReaderOptions;
use slatedb::{Db, DbReader, DbReaderMode, WriteBatch};

use super::deadline::Deadline;
use super::format::{DELETE_TARGETS, FLOOR, NAMES, SystemRecords, WRITER};
use super::key::{Current, Entity, Inline, Key, Name, Operation, System};
use super::location::Location;
use super::log::Log;
use super::read::{Fetch, Range, Read, StoreReader};
use super::store::{Ending, behind, close_writer, look, open_reader, open_writer, system_records};
use super::value::{
    DeleteFile, DeleteTargetEntry, Format, Head, InlineChunk, InlineChunkLocator, NameEntry, OptionScope,
    RowDeletion, Schema, Snapshot, Table, frame,
};
use super::view::{Contents, View};
use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// Entries of one write.
const WRITE: usize = 4096;
/// The last snapshot of a seeded store.
pub const LAST_SNAPSHOT: u64 = 6;
/// The table with the inline rows.
pub const ROW_TABLE: u64 = 1_000_000;
/// 2026-01-01, in microseconds: every seed is the same bytes.
const EPOCH_MICROS: i64 = 1_767_225_600_000_000;

/// What a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    /// Its format, 1 to 12.
    pub format: u64,
    /// Schemas besides `main`.
    pub schemas: u64,
    /// Tables, spread over the schemas.
    pub tables: u64,
    /// Delete files.
    pub delete_files: u64,
    /// Deleted inline rows; as many stay.
    pub tombstones: u64,
    /// Least bytes of a name.
    pub name_bytes: usize,
}

impl Seed {
    /// A small store.
    pub fn small(format: u64) -> Self {
        Self { format, schemas: 5, tables: 20, delete_files: 20, tombstones: 20, name_bytes: 8 }
    }
}

struct Seeder {
    db: Db,
    deadline: Deadline,
    batch: WriteBatch,
    staged: usize,
    seed: Seed,
}

/// Writes a store where none is.
///
/// `InvalidInput` where a catalog is already.
pub async fn write(location: &Location, seed: Seed, budget: &Budget) -> Result<()> {
    let deadline = Deadline::of(budget);
    if look(location, &deadline).await?.records.format.is_some() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{location} holds a catalog already")));
    }
    let (db, deadline) = open_writer(location, 0, &deadline).await?;
    let mut seeder = Seeder { db, deadline: deadline.clone(), batch: WriteBatch::new(), staged: 0, seed };
    let written = seeder.write().await;
    close_writer(&seeder.db, if written.is_ok() { Ending::Complete } else { Ending::Abandoned }, &deadline)
        .await?;
    written
}

fn uuid(id: u64) -> String {
    format!("00000000-0000-0000-0000-{id:012x}")
}

impl Seeder {
    async fn put<M: prost::Message>(&mut self, key: &Key, message: &M) -> Result<()> {
        self.batch.put(key.checked()?, frame(message));
        self.staged += 1;
        if self.staged >= WRITE {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if std::mem::take(&mut self.staged) > 0 {
            self.deadline.wait("seeding", self.db.write(batch)).await?;
        }
        Ok(())
    }

    fn name(&self, kind: &str, id: u64) -> String {
        let name = format!("{kind}_{id}_");
        let padding = self.seed.name_bytes.saturating_sub(name.len());
        name + &"n".repeat(padding)
    }

    async fn current<M: prost::Message>(&mut self, entity: Entity, message: &M) -> Result<()> {
        self.put(&Key::Current(Current::Entity(entity)), message).await
    }

    async fn write(&mut self) -> Result<()> {
        let seed = self.seed;
        let format =
            Format { format_version: seed.format, writer_version: WRITER.to_owned(), ..Format::default() };
        self.put(&Key::System(System::Format), &format).await?;
        let head = Head { snapshot_id: LAST_SNAPSHOT, batch_seq: LAST_SNAPSHOT };
        self.put(&Key::System(System::Head), &head).await?;
        let encrypted = [("encrypted".to_owned(), "false".to_owned())].into();
        let option = OptionScope { options: encrypted };
        self.current(Entity::Option { scope_kind: 0, scope_id: 0 }, &option).await?;
        for snapshot_id in 0..=LAST_SNAPSHOT {
            let snapshot = Snapshot {
                snapshot_id,
                snapshot_time_micros: EPOCH_MICROS + i64::try_from(snapshot_id).unwrap_or(0),
                schema_version: snapshot_id.min(2),
                next_catalog_id: ROW_TABLE + 1 + seed.tables + seed.schemas,
                next_file_id: 1 + 2 * seed.delete_files,
                changes_made: format!("seeded:{snapshot_id}"),
                ..Snapshot::default()
            };
            self.put(&Key::Snapshot(snapshot_id), &snapshot).await?;
        }
        self.schema(0, "main".to_owned(), 0).await?;
        for schema_id in 1..=seed.schemas {
            let name = self.name("schema", schema_id);
            self.schema(schema_id, name, 1).await?;
        }
        self.tables().await?;
        self.rows().await?;
        self.delete_files().await?;
        self.send().await?;
        self.deadline.wait("making the seed durable", self.db.flush()).await
    }

    async fn schema(&mut self, schema_id: u64, name: String, begin_snapshot: u64) -> Result<()> {
        let schema = Schema {
            schema_id,
            uuid: uuid(schema_id),
            begin_snapshot,
            end_snapshot: None,
            path: format!("{schema_id}/"),
            schema_name: name.clone(),
            path_is_relative: true,
        };
        self.current(Entity::Schema { schema_id }, &schema).await?;
        if self.seed.format >= NAMES {
            self.put(&Key::Name(Name::Schema { name }), &NameEntry { id: schema_id }).await?;
        }
        Ok(())
    }

    /// Tables from snapshot 2 on; every fifth was renamed at 5, every seventh dropped at 6.
    async fn tables(&mut self) -> Result<()> {
        for number in 0..self.seed.tables {
            let table_id = ROW_TABLE + number;
            let entity = Entity::Table { table_id };
            let mut table = Table {
                table_id,
                uuid: uuid(table_id),
                begin_snapshot: 2,
                end_snapshot: None,
                schema_id: number % (self.seed.schemas + 1),
                table_name: self.name("table", number),
                path: format!("{table_id}/"),
                path_is_relative: true,
                next_column_id: 1,
            };
            if number % 5 == 1 {
                let ended = Table { end_snapshot: Some(5), ..table.clone() };
                self.put(&Key::History(entity, 5), &ended).await?;
                table = Table { begin_snapshot: 5, table_name: self.name("renamed", number), ..table };
            }
            if number % 7 == 2 {
                self.put(&Key::History(entity, 6), &Table { end_snapshot: Some(6), ..table }).await?;
                continue;
            }
            let name = Name::Table { schema_id: table.schema_id, name: table.table_name.clone() };
            self.current(entity, &table).await?;
            if self.seed.format >= NAMES {
                self.put(&Key::Name(name), &NameEntry { id: table_id }).await?;
            }
        }
        Ok(())
    }

    /// Chunks at snapshot 3, of whose rows every second is deleted, at 5 or at 6; and an archived one with a deletion,
    /// which a migration has to leave where they are.
    async fn rows(&mut self) -> Result<()> {
        let (table_id, rows) = (ROW_TABLE, 2 * self.seed.tombstones);
        let chunk_rows = (rows / 4).max(1);
        for (chunk_seq, row_id_start) in
            (0..rows).step_by(usize::try_from(chunk_rows).unwrap_or(1)).enumerate()
        {
            let chunk_seq = chunk_seq as u64;
            let (schema_version, begin_snapshot) = (1, 3);
            let row_count = chunk_rows.min(rows - row_id_start);
            let chunk = InlineChunk {
                body: Bytes::from(format!("chunk {chunk_seq}")),
                row_id_start,
                row_count,
                data_file_id: None,
            };
            let insert = Operation::Insert { table_id, schema_version, begin_snapshot, chunk_seq };
            self.put(&Key::Inline(Inline::Live(insert)), &chunk).await?;
            let row_id_end = row_id_start + row_count - 1;
            let locator = InlineChunkLocator { row_id_start, schema_version, begin_snapshot, chunk_seq };
            let place = match self.seed.format {
                0..=5 => continue,
                6 | 7 => Inline::ChunkRange { table_id, row_id_end },
                _ => Inline::ChunkLocator { table_id, row_id_end, schema_version, begin_snapshot, chunk_seq },
            };
            self.put(&Key::Inline(place), &locator).await?;
        }
        let archived = InlineChunk {
            body: Bytes::from_static(b"archived"),
            row_id_start: rows,
            row_count: 4,
            data_file_id: Some(0),
        };
        let insert = Operation::Insert { table_id, schema_version: 1, begin_snapshot: 4, chunk_seq: 0 };
        self.put(&Key::Inline(Inline::Archived(insert)), &archived).await?;
        let delete = Operation::RowDelete { table_id, row_id: rows + 1 };
        self.put(&Key::Inline(Inline::Archived(delete)), &RowDeletion { end_snapshot: 5 }).await?;
        for number in 0..self.seed.tombstones {
            let (row_id, end_snapshot) = (2 * number, 5 + number % 2);
            let place = if self.seed.format < FLOOR {
                Inline::Live(Operation::RowDelete { table_id, row_id })
            } else {
                Inline::RowTombstone { table_id, row_id, end_snapshot }
            };
            self.put(&Key::Inline(place), &RowDeletion { end_snapshot }).await?;
        }
        Ok(())
    }

    /// Delete files at snapshot 4, two a data file; every third ended at 6.
    async fn delete_files(&mut self) -> Result<()> {
        for number in 0..self.seed.delete_files {
            let table_id = ROW_TABLE + number % self.seed.tables.max(1);
            let delete_file_id = 1 + number;
            let data_file_id = 1 + self.seed.delete_files + number / 2;
            let entity = Entity::DeleteFile { table_id, delete_file_id };
            let file = DeleteFile {
                delete_file_id,
                table_id,
                begin_snapshot: 4,
                end_snapshot: (number % 3 == 2).then_some(6),
                data_file_id,
                path: format!("{delete_file_id}.parquet"),
                path_is_relative: true,
                format: "parquet".to_owned(),
                delete_count: 1,
                ..DeleteFile::default()
            };
            if file.end_snapshot.is_some() {
                self.put(&Key::History(entity, 6), &file).await?;
                continue;
            }
            self.current(entity, &file).await?;
            if self.seed.format >= DELETE_TARGETS {
                let target = Key::DeleteTarget { table_id, data_file_id, delete_file_id };
                self.put(&target, &DeleteTargetEntry {}).await?;
            }
        }
        Ok(())
    }
}

/// A store as it is, with the slots of a commit log that are not folded yet.
async fn whole(
    location: &Location,
    deadline: &Deadline,
) -> Result<(Arc<DbReader>, Arc<dyn Read>, SystemRecords)> {
    let reader =
        open_reader(location, DbReaderMode::FollowLatest, DbReaderOptions::default(), deadline).await?;
    let index: Arc<dyn Read> = Arc::new(StoreReader::following(Arc::clone(&reader), deadline.clone()));
    let records = system_records(index.as_ref()).await?;
    let log = Log::of(location, deadline);
    Ok(match log.origin(&records, None).await? {
        Some(origin) => {
            let tail = behind(&log, records, origin).await?;
            (reader, tail.over(index), tail.records)
        }
        None => (reader, index, records),
    })
}

/// Reads a snapshot of a store whatever its format, also below the floor or with a marker: what the demo and the tests
/// compare before and after. Nothing else may, because with a marker there are holes.
///
/// `InvalidInput` for a snapshot beyond the latest.
pub async fn read_at(location: &Location, snapshot: u64, budget: &Budget) -> Result<Contents> {
    let deadline = Deadline::of(budget);
    let (reader, state, records) = whole(location, &deadline).await?;
    let format = records.format.map(|format| format.format_version).unwrap_or_default();
    let contents = View::new(state, format, records.head.unwrap_or_default()).read_at(snapshot).await;
    deadline.wait("closing the reader", reader.close()).await?;
    contents
}

/// Every key and value of a store, in key order.
pub async fn dump(location: &Location, budget: &Budget) -> Result<Vec<(Bytes, Bytes)>> {
    let deadline = Deadline::of(budget);
    let (reader, state, _) = whole(location, &deadline).await?;
    let mut rows = state.scan(Range::prefix(&[]), Fetch::Ahead).await?;
    let mut all = Vec::new();
    while let Some((key, value)) = rows.next().await? {
        all.push((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)));
    }
    drop(rows);
    deadline.wait("closing the reader", reader.close()).await?;
    Ok(all)
}
