//! What arbitrates between those who commit.
//!
//! A migration and an ordinary commit are batches decided on a pinned state and anchored on its head. Whether such a
//! batch is a SlateDB write or a slot of a log is the authority's business; the units and the driver do not know.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::batch::{Anchor, Batch};
use super::read::Read;
use super::store::Ending;
use crate::Result;

mod native;

pub use native::Native;

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
    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit>;

    /// Waits until everything committed so far is durable. A fenced writer learns it here at the latest.
    async fn settle(&self) -> Result<()>;

    /// Makes everything durable and takes a named checkpoint, in place of older ones with that name; without a lifetime
    /// it stays until it is released.
    async fn checkpoint(&self, name: &str, lifetime: Option<Duration>) -> Result<()>;

    /// Ends the session.
    async fn close(&self, ending: Ending) -> Result<()>;
}
