//! Taking back a directory unit that has not finished: its entries and its marker go, the format stays.

use bytes::Bytes;

use super::authority::{self, Commit, CommitAuthority};
use super::batch::{Anchor, Batch};
use super::checkpoints;
use super::deadline::{Deadline, has_vanished};
use super::driver::{ATTEMPTS, agree, phases};
use super::format::SystemRecords;
use super::key::{Key, System};
use super::location::Location;
use super::read::{Fetch, Range, Rows};
use super::store::{Ending, look, system_records};
use super::units::{Kind, Registry, STEP_RECORDS};
use super::value::{Format, Migration};
use crate::environment::Environment;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result, crash};

/// What was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abandoned {
    /// The unit.
    pub unit: String,
    /// The format that the store keeps.
    pub format: u64,
    /// Entries that were removed.
    pub entries: u64,
    /// The checkpoint from before the run that stays, because the run had passed a unit that cannot be taken back.
    pub kept_checkpoint: Option<String>,
}

/// The prefix of the entries of the unit that is under way, if it can be taken back.
fn target<'a>(
    registry: &'a Registry,
    records: &'a SystemRecords,
) -> Result<(&'static str, Bytes, &'a Migration)> {
    records.coherent()?;
    let Some(marker) = &records.marker else {
        return Err(Error::new(
            ErrorKind::Migration,
            "no migration is under way; there is nothing to abandon",
        ));
    };
    let Some(unit) = registry.unit(marker.from_format, marker.to_format) else {
        return Err(Error::new(
            ErrorKind::Migration,
            format!(
                "a migration from format {} to {} is under way that this version does not carry",
                marker.from_format, marker.to_format
            ),
        ));
    };
    match unit.kind() {
        Kind::Directory { entries } => Ok((unit.name(), entries, marker)),
        Kind::Rewriting => Err(Error::new(
            ErrorKind::Migration,
            format!("{} moves keys and cannot be taken back", unit.name()),
        )
        .next("metashift catalog run")),
    }
}

/// Removes the entries and the marker of an unfinished directory unit, and the checkpoint from before it. The cursor goes back to the start with the first
/// entries, so that a run after a crash in here is complete again.
///
/// `Migration` where no migration is under way, where it is one that moves keys, or one that this version does not carry;
/// `Contended` where another commit came between.
pub async fn abandon(
    location: &Location,
    registry: &Registry,
    environment: &Environment,
    budget: Budget,
) -> Result<Abandoned> {
    let deadline = Deadline::of(&budget);
    let sighting = look(location, &deadline).await?;
    target(registry, &sighting.records)?;
    let original = phases::original(&sighting.records);
    let authority = authority::open(location, &sighting, None, environment, &deadline).await?;
    let result = through(authority.as_ref(), registry, budget).await;
    authority.close(if result.is_ok() { Ending::Complete } else { Ending::Abandoned }).await?;
    let mut done = result?;
    // The catalog is what it was: a checkpoint of the same format is of no more use, and nobody else would release it.
    checkpoints::forget(location, &checkpoints::before(done.format), &deadline).await?;
    let before = checkpoints::before(original);
    let listed = checkpoints::list(location, environment, &deadline).await?;
    done.kept_checkpoint = listed.into_iter().find_map(|found| found.name.filter(|name| *name == before));
    Ok(done)
}

async fn through(
    authority: &dyn CommitAuthority,
    registry: &Registry,
    mut budget: Budget,
) -> Result<Abandoned> {
    let state = authority.pin().await?;
    let records = system_records(state.as_ref()).await?;
    agree(&records, authority)?;
    let (unit, entries, marker) = target(registry, &records)?;
    let (format, head) = phases::initialized(&records)?;
    let mut anchor = Anchor { head, marker: Some(marker.clone()) };
    let back = Migration { cursor: Bytes::new(), ..marker.clone() };
    let mut rows = state.scan(Range::prefix(&entries), Fetch::Ahead).await?;
    let mut removed = 0;
    let mut looks = 0;
    loop {
        let mut batch = match staged(&mut rows).await {
            Ok(batch) => batch,
            // A collector of another process may have removed what only an older manifest names.
            Err(error) if has_vanished(&error) && looks < ATTEMPTS => {
                looks += 1;
                rows = authority.pin().await?.scan(Range::prefix(&entries), Fetch::Ahead).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        if batch.deletes.is_empty() {
            break;
        }
        removed += batch.deletes.len() as u64;
        let next = anchor.advanced(Some(back.clone()));
        batch.put_system(System::Migration, &back);
        batch.put_system(System::Head, &next.head);
        commit(authority, &anchor, batch).await?;
        anchor = next;
        budget.take_page();
        crash::reach("catalog-stepped").await;
    }
    let mut batch = Batch::default();
    batch.put_system(System::Head, &anchor.advanced(None).head);
    if format.original_format.is_some() {
        batch.put_system(System::Format, &Format { original_format: None, ..format.clone() });
    }
    batch.delete(Key::System(System::Migration).encode());
    commit(authority, &anchor, batch).await?;
    authority.settle().await?;
    crash::reach("catalog-abandoned").await;
    Ok(Abandoned {
        unit: unit.to_owned(),
        format: format.format_version,
        entries: removed,
        kept_checkpoint: None,
    })
}

/// The deletions of the next entries.
async fn staged(rows: &mut Rows) -> Result<Batch> {
    let mut batch = Batch::default();
    for _ in 0..STEP_RECORDS {
        let Some((key, _)) = rows.next().await? else { break };
        batch.delete(key);
    }
    Ok(batch)
}

async fn commit(authority: &dyn CommitAuthority, anchor: &Anchor, batch: Batch) -> Result<()> {
    match authority.commit(anchor, batch).await? {
        Commit::Committed => Ok(()),
        Commit::Lost => {
            Err(Error::new(ErrorKind::Contended, "another commit came between; nothing was removed by it")
                .next("metashift catalog abandon"))
        }
    }
}
