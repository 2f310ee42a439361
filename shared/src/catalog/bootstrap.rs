//! The first batch of a catalog.

use std::collections::BTreeMap;

use super::authority::Native;
use super::batch::Batch;
use super::format::{BOOTSTRAP, NAMES, WRITER};
use super::key::{Current, Entity, Key, Name, System};
use super::store::failed;
use super::value::{Format, Head, NameEntry, OptionScope, Schema, Snapshot};
use crate::environment::Environment;
use crate::{Error, ErrorKind, Result};

/// The batch that makes a catalog of `format`: snapshot 0, schema `main`, the option scope, head (0, 0); in a commit log,
/// whose first slot it is, head (0, 1).
pub(crate) fn batch(format: u64, log: bool, environment: &Environment) -> Result<Batch> {
    let mut batch = Batch::default();
    batch.put_system(
        System::Format,
        &Format {
            format_version: format,
            writer_version: WRITER.to_owned(),
            commit_log_batch_origin: log.then_some(0),
            ..Format::default()
        },
    );
    batch.put_system(System::Head, &Head { snapshot_id: 0, batch_seq: u64::from(log) });
    batch.put(
        &Key::Snapshot(0),
        &Snapshot {
            snapshot_id: 0,
            snapshot_time_micros: environment.now().as_microsecond(),
            next_catalog_id: 1,
            changes_made: "created_schema:\"main\"".to_owned(),
            ..Snapshot::default()
        },
    )?;
    batch.put(
        &Key::Current(Current::Entity(Entity::Schema { schema_id: 0 })),
        &Schema {
            uuid: super::commit::uuid(environment),
            schema_name: "main".to_owned(),
            path: "main/".to_owned(),
            path_is_relative: true,
            ..Schema::default()
        },
    )?;
    if format >= NAMES {
        batch.put(&Key::Name(Name::Schema { name: "main".to_owned() }), &NameEntry { id: 0 })?;
    }
    batch.put(
        &Key::Current(Current::Entity(Entity::Option { scope_kind: 0, scope_id: 0 })),
        &OptionScope { options: BTreeMap::from([("encrypted".to_owned(), "false".to_owned())]) },
    )?;
    Ok(batch)
}

/// Writes the first batch under the writer's epoch, if nobody has, and waits until it is durable.
pub(crate) async fn write(authority: &Native, environment: &Environment) -> Result<()> {
    let batch = batch(BOOTSTRAP, false, environment)?;
    let transaction = authority
        .db()
        .begin(slatedb::IsolationLevel::SerializableSnapshot)
        .map_err(failed("beginning the first batch"))?;
    let format = Key::System(System::Format).encode();
    let deadline = authority.deadline();
    if deadline.wait("reading the format", transaction.get(&format)).await?.is_some() {
        return Err(Error::new(ErrorKind::Contended, "somebody else made the catalog"));
    }
    for (key, value) in &batch.puts {
        transaction.put(key, value).map_err(failed("staging the first batch"))?;
    }
    deadline.wait("committing the first batch", transaction.commit()).await?;
    deadline.wait("making the first batch durable", authority.db().flush()).await
}
