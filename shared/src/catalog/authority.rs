//! What arbitrates between those who commit.
//!
//! A migration and an ordinary commit are batches decided on a pinned state and anchored on its head. Whether such a
//! batch is a SlateDB write or a slot of a log is the authority's business; the units and the driver do not know.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::batch::{Anchor, Batch};
#[cfg(doc)]
use super::checkpoints;
use super::checkpoints::Listed;
use super::deadline::Deadline;
use super::location::Location;
use super::log::{Log, agreed, origin_unknown};
use super::read::Read;
use super::store::{Ending, Sighting, look};
use crate::Result;
use crate::environment::Environment;

mod folder;
mod native;
mod session;

pub use folder::Folder;
pub use native::Native;
pub use session::Session;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Commit {
    /// It is part of the catalog's order; durable only after [`CommitAuthority::settle`].
    Committed,
    /// Somebody else moved head first: nothing was written; decide again on a newly pinned state.
    Lost,
}

/// The order of a catalog's batches.
#[async_trait]
pub trait CommitAuthority: Send + Sync {
    /// Pins the latest committed state.
    async fn pin(&self) -> Result<Arc<dyn Read>>;

    /// Commits a batch if head and marker are still those of `anchor`. The batch puts a head whose `batch_seq` is one
    /// higher. Batches become durable in the order in which they were committed.
    ///
    /// `AuthorityChanged` in a log that has ended; `OutcomeUnknown` where a slot of the log may still arrive.
    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit>;

    /// Waits until everything committed so far is durable. A fenced writer learns it here at the latest.
    async fn settle(&self) -> Result<()>;

    /// Makes everything durable and takes a named checkpoint, in place of older ones with that name; without a lifetime
    /// it stays until it is released.
    ///
    /// `Internal` in a [`Session`], which has no writer.
    async fn checkpoint(&self, name: &str, lifetime: Option<Duration>) -> Result<()>;

    /// Checkpoints by which readers hold the store open, as [`checkpoints::open_readers`] finds them.
    async fn open_readers(&self, environment: &Environment) -> Result<Vec<Listed>>;

    /// Ends the session.
    async fn close(&self, ending: Ending) -> Result<()>;

    /// `batch_seq` at which the catalog's commit log began; `None` for a native catalog.
    fn origin(&self) -> Option<u64> {
        None
    }

    /// Looks at the store anew, after reads have failed because somebody removed what they rest on.
    async fn refresh(&self) -> Result<()> {
        Ok(())
    }
}

/// Opens a catalog for migrating: takes the writer of a native one, and the index of one kept in a log, with every slot
/// folded. A log that has been demoted is folded to its end first.
///
/// `InvalidInput` for an origin that the log contradicts, `Migration` where nobody can say it, before anybody is fenced.
pub async fn open(
    location: &Location,
    sighting: &Sighting,
    asked_origin: Option<u64>,
    environment: &Environment,
    deadline: &Deadline,
) -> Result<Box<dyn CommitAuthority>> {
    let mut epoch = sighting.epoch.unwrap_or(0);
    if let Some(logged) = sighting.log {
        // Refused before the writer of somebody else is fenced.
        let batch_seq = sighting.records.head.unwrap_or_default().batch_seq;
        let origin = match logged.origin {
            Some(known) => agreed(Some(known), asked_origin, batch_seq)?,
            None => Log::of(location, deadline).origin(&sighting.records, asked_origin).await?,
        };
        let origin = origin.ok_or_else(origin_unknown)?;
        let folder = Folder::open(location, epoch, Some(origin), environment, deadline).await?;
        if !folder.is_demoted().await {
            return Ok(Box::new(folder));
        }
        folder.settle().await?;
        folder.close(Ending::Complete).await?;
        epoch = look(location, deadline).await?.epoch.unwrap_or(0);
    }
    Ok(Box::new(Native::open(location, epoch, deadline.clone()).await?))
}
