//! The minimal commit path: what a catalog's writer does beside migrations, one snapshot a commit.
//!
//! Planning is pure: a [`Plan`] is decided on what was read, and says the whole batch.

use bytes::Bytes;

use super::batch::{Anchor, Batch};
use super::format::{DELETE_TARGETS, FLOOR, NAMES};
use super::key::{Current, Entity, Inline, Key, Name, Operation, System, prefix};
use super::read::{Fetch, Range, message};
use super::value::{
    DeleteFile, DeleteTargetEntry, Head, InlineChunk, InlineChunkLocator, NameEntry, RowDeletion, Schema,
    Snapshot, Table, unframe,
};
use super::view::View;
use crate::environment::Environment;
use crate::{Error, ErrorKind, Result};

/// One change of a catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A new schema.
    CreateSchema {
        /// Its name.
        name: String,
    },
    /// A new table.
    CreateTable {
        /// The schema.
        schema_id: u64,
        /// Its name.
        name: String,
    },
    /// Another name for a table.
    RenameTable {
        /// The table.
        table_id: u64,
        /// Its new name.
        name: String,
    },
    /// The end of a table.
    DropTable {
        /// The table.
        table_id: u64,
    },
    /// A file that lists deleted rows of a data file.
    AddDeleteFile {
        /// The table of both files.
        table_id: u64,
        /// The file whose rows are deleted.
        data_file_id: u64,
        /// Path of the delete file.
        path: String,
    },
    /// The end of a delete file.
    DropDeleteFile {
        /// The table.
        table_id: u64,
        /// The delete file.
        delete_file_id: u64,
    },
    /// Rows kept in the catalog.
    InlineInsert {
        /// The table.
        table_id: u64,
        /// Number of rows.
        row_count: u64,
        /// Arrow bytes; opaque here.
        body: Bytes,
    },
    /// Deletion of a row kept in the catalog.
    InlineDelete {
        /// The table.
        table_id: u64,
        /// The row.
        row_id: u64,
    },
}

/// The batch of a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The state that it was decided on.
    pub anchor: Anchor,
    /// What it writes.
    pub batch: Batch,
    /// The snapshot that it makes.
    pub snapshot_id: u64,
}

/// Plans one commit of `changes` on a view.
///
/// `InvalidInput` for a name that is taken and for what is not there to be changed.
pub async fn plan(view: &View, changes: &[Change], environment: &Environment) -> Result<Plan> {
    let head = view.head();
    let key = Key::Snapshot(head.snapshot_id).encode();
    let Some(last) = message::<Snapshot>(view.state(), &key).await? else {
        return Err(Error::new(
            ErrorKind::Corruption,
            format!("head names snapshot {}, which is not there", head.snapshot_id),
        ));
    };
    let mut planner = Planner {
        view,
        environment,
        batch: Batch::default(),
        snapshot: Snapshot {
            snapshot_id: head.snapshot_id + 1,
            snapshot_time_micros: environment.now().as_microsecond(),
            changes_made: String::new(),
            author: None,
            message: None,
            extra: None,
            ..last
        },
        chunks: 0,
    };
    for change in changes {
        planner.apply(change).await?;
    }
    let Planner { mut batch, snapshot, .. } = planner;
    let snapshot_id = snapshot.snapshot_id;
    batch.put(&Key::Snapshot(snapshot_id), &snapshot)?;
    batch.put_system(System::Head, &Head { snapshot_id, batch_seq: head.batch_seq + 1 });
    Ok(Plan { anchor: Anchor { head, marker: None }, batch, snapshot_id })
}

struct Planner<'a> {
    view: &'a View,
    environment: &'a Environment,
    batch: Batch,
    snapshot: Snapshot,
    chunks: u64,
}

impl Planner<'_> {
    async fn apply(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::CreateSchema { name } => self.create_schema(name).await?,
            Change::CreateTable { schema_id, name } => self.create_table(*schema_id, name).await?,
            Change::RenameTable { table_id, name } => self.rename_table(*table_id, name).await?,
            Change::DropTable { table_id } => self.end_table(*table_id).await.map(|_| ())?,
            Change::AddDeleteFile { table_id, data_file_id, path } => {
                self.add_delete_file(*table_id, *data_file_id, path)?;
            }
            Change::DropDeleteFile { table_id, delete_file_id } => {
                self.drop_delete_file(*table_id, *delete_file_id).await?;
            }
            Change::InlineInsert { table_id, row_count, body } => {
                self.inline_insert(*table_id, *row_count, body).await?;
            }
            Change::InlineDelete { table_id, row_id } => self.inline_delete(*table_id, *row_id)?,
        }
        Ok(())
    }

    fn note(&mut self, what: &str) {
        if !self.snapshot.changes_made.is_empty() {
            self.snapshot.changes_made.push(',');
        }
        self.snapshot.changes_made.push_str(what);
    }

    fn next_catalog_id(&mut self) -> u64 {
        let id = self.snapshot.next_catalog_id;
        self.snapshot.next_catalog_id += 1;
        self.snapshot.schema_version += 1;
        id
    }

    /// A name entry, from format 11 on.
    fn name(&mut self, name: Name, id: u64) -> Result<()> {
        if self.view.format() >= NAMES {
            self.batch.put(&Key::Name(name), &NameEntry { id })?;
        }
        Ok(())
    }

    fn unname(&mut self, table: &Table) {
        if self.view.format() >= NAMES {
            let name = Name::Table { schema_id: table.schema_id, name: table.table_name.clone() };
            self.batch.delete(Key::Name(name).encode());
        }
    }

    async fn create_schema(&mut self, name: &str) -> Result<()> {
        if self.view.schema_named(name).await?.is_some() {
            return Err(taken(name));
        }
        let schema_id = self.next_catalog_id();
        let schema = Schema {
            schema_id,
            uuid: uuid(self.environment),
            begin_snapshot: self.snapshot.snapshot_id,
            end_snapshot: None,
            schema_name: name.to_owned(),
            path: format!("{name}/"),
            path_is_relative: true,
        };
        self.batch.put(&Key::Current(Current::Entity(Entity::Schema { schema_id })), &schema)?;
        self.name(Name::Schema { name: name.to_owned() }, schema_id)?;
        self.note(&format!("created_schema:\"{name}\""));
        Ok(())
    }

    async fn create_table(&mut self, schema_id: u64, name: &str) -> Result<()> {
        if self.view.table_named(schema_id, name).await?.is_some() {
            return Err(taken(name));
        }
        let table_id = self.next_catalog_id();
        let table = Table {
            table_id,
            uuid: uuid(self.environment),
            begin_snapshot: self.snapshot.snapshot_id,
            end_snapshot: None,
            schema_id,
            table_name: name.to_owned(),
            path: format!("{name}/"),
            path_is_relative: true,
            next_column_id: 1,
        };
        self.batch.put(&Key::Current(Current::Entity(Entity::Table { table_id })), &table)?;
        self.name(Name::Table { schema_id, name: name.to_owned() }, table_id)?;
        self.note(&format!("created_table:\"{name}\""));
        Ok(())
    }

    /// Moves a current table to history and forgets its name.
    async fn end_table(&mut self, table_id: u64) -> Result<Table> {
        let entity = Entity::Table { table_id };
        let key = Key::Current(Current::Entity(entity)).encode();
        let Some(table) = message::<Table>(self.view.state(), &key).await? else {
            return Err(missing(&format!("table {table_id}")));
        };
        let end = self.snapshot.snapshot_id;
        let ended = Table { end_snapshot: Some(end), ..table.clone() };
        self.batch.put(&Key::History(entity, end), &ended)?;
        self.batch.delete(key);
        self.unname(&table);
        self.snapshot.schema_version += 1;
        self.note(&format!("dropped_table:{table_id}"));
        Ok(table)
    }

    async fn rename_table(&mut self, table_id: u64, name: &str) -> Result<()> {
        let key = Key::Current(Current::Entity(Entity::Table { table_id }));
        let Some(table) = message::<Table>(self.view.state(), &key.encode()).await? else {
            return Err(missing(&format!("table {table_id}")));
        };
        if self.view.table_named(table.schema_id, name).await?.is_some() {
            return Err(taken(name));
        }
        let end = self.snapshot.snapshot_id;
        let ended = Table { end_snapshot: Some(end), ..table.clone() };
        self.batch.put(&Key::History(Entity::Table { table_id }, end), &ended)?;
        self.unname(&table);
        let schema_id = table.schema_id;
        let renamed = Table { begin_snapshot: end, table_name: name.to_owned(), ..table };
        self.batch.put(&key, &renamed)?;
        self.name(Name::Table { schema_id, name: name.to_owned() }, table_id)?;
        self.snapshot.schema_version += 1;
        self.note(&format!("altered_table:{table_id}"));
        Ok(())
    }

    fn add_delete_file(&mut self, table_id: u64, data_file_id: u64, path: &str) -> Result<()> {
        let delete_file_id = self.snapshot.next_file_id;
        self.snapshot.next_file_id += 1;
        let file = DeleteFile {
            delete_file_id,
            table_id,
            begin_snapshot: self.snapshot.snapshot_id,
            data_file_id,
            path: path.to_owned(),
            path_is_relative: true,
            format: "parquet".to_owned(),
            delete_count: 1,
            ..DeleteFile::default()
        };
        self.batch
            .put(&Key::Current(Current::Entity(Entity::DeleteFile { table_id, delete_file_id })), &file)?;
        if self.view.format() >= DELETE_TARGETS {
            self.batch
                .put(&Key::DeleteTarget { table_id, data_file_id, delete_file_id }, &DeleteTargetEntry {})?;
        }
        self.note(&format!("deleted_from_table:{table_id}"));
        Ok(())
    }

    async fn drop_delete_file(&mut self, table_id: u64, delete_file_id: u64) -> Result<()> {
        let entity = Entity::DeleteFile { table_id, delete_file_id };
        let key = Key::Current(Current::Entity(entity)).encode();
        let Some(file) = message::<DeleteFile>(self.view.state(), &key).await? else {
            return Err(missing(&format!("delete file {delete_file_id} of table {table_id}")));
        };
        let end = self.snapshot.snapshot_id;
        let data_file_id = file.data_file_id;
        self.batch.put(&Key::History(entity, end), &DeleteFile { end_snapshot: Some(end), ..file })?;
        self.batch.delete(key);
        if self.view.format() >= DELETE_TARGETS {
            self.batch.delete(Key::DeleteTarget { table_id, data_file_id, delete_file_id }.encode());
        }
        self.note(&format!("deleted_from_table:{table_id}"));
        Ok(())
    }

    async fn inline_insert(&mut self, table_id: u64, row_count: u64, body: &Bytes) -> Result<()> {
        let row_id_start = self.next_row_id(table_id).await?;
        let (schema_version, begin_snapshot) = (self.snapshot.schema_version, self.snapshot.snapshot_id);
        let chunk_seq = self.chunks;
        self.chunks += 1;
        let insert = Operation::Insert { table_id, schema_version, begin_snapshot, chunk_seq };
        let chunk = InlineChunk { body: body.clone(), row_id_start, row_count, data_file_id: None };
        self.batch.put(&Key::Inline(Inline::Live(insert)), &chunk)?;
        let row_id_end = row_id_start.saturating_add(row_count).saturating_sub(1);
        let locator =
            Inline::ChunkLocator { table_id, row_id_end, schema_version, begin_snapshot, chunk_seq };
        self.batch.put(
            &Key::Inline(locator),
            &InlineChunkLocator { row_id_start, schema_version, begin_snapshot, chunk_seq },
        )?;
        self.note(&format!("inlined_insert:{table_id}"));
        Ok(())
    }

    /// One above every row id that the table's chunks hold or this commit gives.
    async fn next_row_id(&self, table_id: u64) -> Result<u64> {
        let mut next = 0;
        let staged = self.batch.puts.iter().map(|(key, value)| (key.clone(), value.clone()));
        let mut chunks: Vec<_> = staged.collect();
        for range in [prefix::LIVE_INSERTS, prefix::ARCHIVED_INSERTS] {
            let range = Range::prefix(&prefix::of(range, table_id));
            let mut rows = self.view.state().scan(range, Fetch::Ahead).await?;
            while let Some(row) = rows.next().await? {
                chunks.push(row);
            }
        }
        for (key, value) in chunks {
            let Key::Inline(Inline::Live(operation) | Inline::Archived(operation)) = Key::decode(&key)?
            else {
                continue;
            };
            if matches!(operation, Operation::Insert { table_id: of, .. } if of == table_id) {
                let chunk: InlineChunk = unframe(&key, &value)?;
                next = next.max(chunk.row_id_start.saturating_add(chunk.row_count));
            }
        }
        Ok(next)
    }

    fn inline_delete(&mut self, table_id: u64, row_id: u64) -> Result<()> {
        let end_snapshot = self.snapshot.snapshot_id;
        debug_assert!(self.view.format() >= FLOOR);
        let tombstone = Key::Inline(Inline::RowTombstone { table_id, row_id, end_snapshot });
        self.batch.put(&tombstone, &RowDeletion { end_snapshot })?;
        self.note(&format!("inlined_delete:{table_id}"));
        Ok(())
    }
}

/// A random id in the usual form of a UUID.
pub(crate) fn uuid(environment: &Environment) -> String {
    let id = environment.id();
    let part = |from: usize, to: usize| id.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

fn taken(name: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the name {name:?} is taken"))
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("there is no current {what}"))
}
