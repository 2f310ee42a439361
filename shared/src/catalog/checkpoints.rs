//! Checkpoints of a migration, found by their fixed names: `metashift-pre-<original format>` from before it, kept until
//! the target is reached, and `metashift-final-<format>` of its result.

use std::sync::Arc;

use serde::Serialize;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::CheckpointOptions;
use slatedb::{Checkpoint, DbReader, DbReaderMode};

use super::authority::CommitAuthority;
use super::deadline::Deadline;
use super::driver::{Report, Request};
use super::location::Location;
use super::read::StoreReader;
use super::store::{looking, manifest, open_reader, system_records};
use crate::environment::Environment;
use crate::{Error, ErrorKind, Result};

/// What the name of a checkpoint from before a migration starts with.
pub const BEFORE: &str = "metashift-pre-";
/// What the name of a checkpoint of a migration's result starts with.
pub const FINAL: &str = "metashift-final-";

/// The checkpoint that the slots of a commit log go on from: with it and them, every record can be had again.
pub const LOG_BASE: &str = "metashift-log-base";

/// Name of the checkpoint from before a migration that began at a format.
pub fn before(original_format: u64) -> String {
    format!("{BEFORE}{original_format}")
}

/// Name of the checkpoint of a migration's result.
pub fn result(format: u64) -> String {
    format!("{FINAL}{format}")
}

/// A checkpoint as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// SlateDB's id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The manifest that it holds.
    pub manifest_id: u64,
    /// When it was taken (RFC 3339).
    pub created: String,
    /// When it ends; never if absent.
    pub expires: Option<String>,
    /// Whether it has ended already.
    pub expired: bool,
}

fn admin(location: &Location) -> Admin {
    AdminBuilder::new(location.path.clone(), location.guarded()).build()
}

fn expired(checkpoint: &Checkpoint, environment: &Environment) -> bool {
    let now = environment.now().as_millisecond();
    checkpoint.expire_time.is_some_and(|at| at.timestamp_millis() <= now)
}

async fn all(location: &Location, deadline: &Deadline) -> Result<Vec<Checkpoint>> {
    Ok(manifest(location, deadline).await?.map(|manifest| manifest.checkpoints().clone()).unwrap_or_default())
}

async fn delete(location: &Location, checkpoint: &Checkpoint, deadline: &Deadline) -> Result<()> {
    let what = format!("releasing checkpoint {}", checkpoint.id);
    deadline.wait(&what, admin(location).delete_checkpoint(checkpoint.id)).await
}

/// Releases the checkpoints with a name but for the one just taken.
pub(crate) async fn supersede(
    location: &Location,
    name: &str,
    taken: &str,
    deadline: &Deadline,
) -> Result<()> {
    for old in
        all(location, deadline).await?.iter().filter(|found| is(found, name) && found.id.to_string() != taken)
    {
        delete(location, old, deadline).await?;
    }
    Ok(())
}

/// Releases every checkpoint with a name.
pub(crate) async fn forget(location: &Location, name: &str, deadline: &Deadline) -> Result<()> {
    for checkpoint in all(location, deadline).await?.iter().filter(|found| is(found, name)) {
        delete(location, checkpoint, deadline).await?;
    }
    Ok(())
}

/// Every checkpoint of a store.
pub async fn list(
    location: &Location,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<Vec<Listed>> {
    let listed = |checkpoint: &Checkpoint| Listed {
        id: checkpoint.id.to_string(),
        name: checkpoint.name.clone(),
        manifest_id: checkpoint.manifest_id,
        created: checkpoint.create_time.to_rfc3339(),
        expires: checkpoint.expire_time.map(|at| at.to_rfc3339()),
        expired: expired(checkpoint, environment),
    };
    Ok(all(location, deadline).await?.iter().map(listed).collect())
}

/// Checkpoints by which readers hold a store open: they have no name and have not ended. A reader that was killed holds its
/// own until it ends; a compactor of SlateDB 0.18 holds such ones too, for a quarter of an hour, and cannot be told from one.
pub async fn open_readers(
    location: &Location,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<Vec<Listed>> {
    Ok(readers_of(list(location, environment, deadline).await?))
}

/// Those of a list of checkpoints by which readers hold a store open.
pub(crate) fn readers_of(listed: Vec<Listed>) -> Vec<Listed> {
    listed.into_iter().filter(|found| found.name.is_none() && !found.expired).collect()
}

/// How many of them an error names.
const NAMED: usize = 5;

/// `Migration` where readers have the store open: one of a release from before format 9 looks for deletions where the unit to
/// format 9 takes them away, and shows every deleted row again until it is closed.
pub(crate) fn refuse_open_readers(unit: &str, readers: &[Listed]) -> Result<()> {
    if readers.is_empty() {
        return Ok(());
    }
    let named = readers.iter().take(NAMED).map(|reader| {
        let until =
            reader.expires.as_ref().map_or_else(|| "without an end".to_owned(), |at| format!("until {at}"));
        format!("{} of {} {until}", reader.id, reader.created)
    });
    let named: Vec<_> = named.collect();
    let more = readers.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(Error::new(
        ErrorKind::Migration,
        format!(
            "{unit}: readers have this store open (checkpoints without a name: {}{more}); one from before format 9 would show every deleted row again",
            named.join(", ")
        ),
    )
    .next("stop them, wait until metashift catalog checkpoints shows none without a name, and run the same command again; if none of them is from before format 9, add --accept-open-readers (acceptOpenReaders in the input of a step)"))
}

/// Opens a read-only scope on the live checkpoint with a name; `None` if there is none.
pub async fn open(
    location: &Location,
    name: &str,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<Option<Arc<DbReader>>> {
    let checkpoints = all(location, deadline).await?;
    let named = |found: &&Checkpoint| found.name.as_deref() == Some(name) && !expired(found, environment);
    let Some(found) = checkpoints.iter().rfind(named) else { return Ok(None) };
    let mode = DbReaderMode::Checkpoint(found.id);
    open_reader(location, mode, looking(), deadline).await.map(Some)
}

/// After a finished migration, with the writer still held: publishes the result of a native catalog, then releases what
/// was kept from before. In a commit log every acknowledged slot is published already.
pub(crate) async fn publish(
    location: &Location,
    authority: &dyn CommitAuthority,
    request: &Request,
    environment: &Environment,
    deadline: &Deadline,
    report: &mut Report,
) -> Result<()> {
    if authority.origin().is_none() {
        let name = result(report.format);
        if !clear(location, &name, environment, deadline).await? {
            authority.checkpoint(&name, Some(request.final_lifetime)).await?;
        }
        report.final_checkpoint = Some(name);
    }
    release(location, deadline, report).await
}

/// For a store that already is what is asked for: the same, without opening a writer. False if only a writer can
/// publish, because the result is not yet in what a reader of the manifest sees.
pub(crate) async fn converge(
    location: &Location,
    request: &Request,
    environment: &Environment,
    deadline: &Deadline,
    report: &mut Report,
) -> Result<bool> {
    let name = result(report.format);
    if !clear(location, &name, environment, deadline).await? {
        let lifetime = Some(request.final_lifetime);
        let options =
            CheckpointOptions { lifetime, name: Some(name.clone()), ..CheckpointOptions::default() };
        let create = async { admin(location).create_detached_checkpoint(&options).await };
        deadline.wait(&format!("taking checkpoint {name}"), create).await?;
        if shown_format(location, &name, environment, deadline).await? != Some(report.format) {
            forget(location, &name, deadline).await?;
            return Ok(false);
        }
    }
    report.final_checkpoint = Some(name);
    release(location, deadline, report).await?;
    Ok(true)
}

fn is(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.name.as_deref() == Some(name)
}

/// Removes expired checkpoints of a name; whether a live one is there.
async fn clear(
    location: &Location,
    name: &str,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<bool> {
    let mut live = false;
    for checkpoint in all(location, deadline).await?.iter().filter(|found| is(found, name)) {
        if expired(checkpoint, environment) {
            delete(location, checkpoint, deadline).await?;
        } else {
            live = true;
        }
    }
    Ok(live)
}

/// Releases what was kept from before migrations that have reached the present format: what is named after it, or after a
/// later one, is of a run that has yet to change anything.
pub(crate) async fn release(location: &Location, deadline: &Deadline, report: &mut Report) -> Result<()> {
    for checkpoint in &all(location, deadline).await? {
        let Some(name) = checkpoint.name.as_deref() else { continue };
        let from = name.strip_prefix(BEFORE).and_then(|from| from.parse::<u64>().ok());
        if from.is_none_or(|from| from >= report.format) {
            continue;
        }
        report.pre_checkpoint = Some(name.to_owned());
        delete(location, checkpoint, deadline).await?;
    }
    Ok(())
}

/// The format that a read-only scope on a checkpoint sees.
async fn shown_format(
    location: &Location,
    name: &str,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<Option<u64>> {
    let Some(reader) = open(location, name, environment, deadline).await? else { return Ok(None) };
    let records = system_records(&StoreReader::following(Arc::clone(&reader), deadline.clone())).await;
    deadline.wait("closing the checkpoint's reader", reader.close()).await?;
    Ok(records?.gate().ok().flatten().map(|format| format.format_version))
}
