//! A commit session on a log: the index as it was when it was opened, the tail in memory, and a race for the next slot.
//! It writes nothing to the index and fences nobody.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use slatedb::{DbReader, DbReaderMode};
use tokio::sync::Mutex;

use super::{Commit, CommitAuthority};
use crate::catalog::batch::{Anchor, Batch};
use crate::catalog::checkpoints::{self, Listed};
use crate::catalog::deadline::Deadline;
use crate::catalog::location::Location;
use crate::catalog::log::tail::{Tail, has_ended};
use crate::catalog::log::{Log, Won, ended, origin_unknown};
use crate::catalog::read::{Read, StoreReader};
use crate::catalog::store::{Ending, behind, index_behind, open_reader, reader_options, system_records};
use crate::environment::Environment;
use crate::{Error, ErrorKind, Result};

/// How often the index is looked at: never within a session. It stands still, so that a pinned state does.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// Slots that a session keeps in memory before it looks whether the index has them by now.
const REBASE: u64 = 1_024;

/// A committer's session.
pub struct Session {
    location: Location,
    log: Log,
    environment: Environment,
    deadline: Deadline,
    state: Mutex<State>,
    origin: u64,
}

struct State {
    reader: Arc<DbReader>,
    /// Readers that a pinned state may still use.
    retired: Vec<Arc<DbReader>>,
    tail: Tail,
    /// How long the tail may grow before the index is looked at for a newer state.
    rebase_at: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("origin", &self.origin).finish_non_exhaustive()
    }
}

async fn based(location: &Location, log: &Log, deadline: &Deadline) -> Result<(Arc<DbReader>, Tail)> {
    let reader = open_reader(location, DbReaderMode::FollowLatest, reader_options(NEVER), deadline).await?;
    let tail = async {
        let index = StoreReader::following(Arc::clone(&reader), deadline.clone());
        let records = system_records(&index).await?;
        if has_ended(&records) {
            return Err(ended());
        }
        let origin = log.origin(&records, None).await?.ok_or_else(origin_unknown)?;
        behind(log, records, origin).await
    };
    match tail.await {
        Ok(tail) => Ok((reader, tail)),
        Err(error) => {
            deadline.wait("closing a reader", reader.close()).await?;
            Err(error)
        }
    }
}

impl Session {
    /// Opens a session on a catalog that is kept in a log.
    ///
    /// `AuthorityChanged` where the catalog is native by now, `Migration` where nobody can say the origin of its log.
    pub async fn open(location: &Location, environment: &Environment, deadline: &Deadline) -> Result<Self> {
        let log = Log::of(location, deadline);
        let (reader, tail) = match based(location, &log, deadline).await {
            // The log may have been truncated, or a table collected, since the manifest was read.
            Err(error) if error.kind() == ErrorKind::Corruption => based(location, &log, deadline).await?,
            based => based?,
        };
        let origin = tail.origin;
        let rebase_at = tail.slots + REBASE;
        let state = Mutex::new(State { reader, retired: Vec::new(), tail, rebase_at });
        let (location, environment, deadline) = (location.clone(), environment.clone(), deadline.clone());
        Ok(Self { location, log, environment, deadline, state, origin })
    }

    async fn rebase(&self, state: &mut State) -> Result<()> {
        let (reader, tail) = based(&self.location, &self.log, &self.deadline).await?;
        if tail.origin != self.origin {
            return Err(ended());
        }
        state.retired.push(std::mem::replace(&mut state.reader, reader));
        state.rebase_at = tail.slots + REBASE;
        state.tail = tail;
        let (used, unused) =
            std::mem::take(&mut state.retired).into_iter().partition(|reader| Arc::strong_count(reader) > 1);
        state.retired = used;
        close_all(unused, &self.deadline).await
    }
}

async fn close_all(readers: Vec<Arc<DbReader>>, deadline: &Deadline) -> Result<()> {
    for reader in readers {
        deadline.wait("closing a reader", reader.close()).await?;
    }
    Ok(())
}

#[async_trait]
impl CommitAuthority for Session {
    async fn pin(&self) -> Result<Arc<dyn Read>> {
        let mut state = self.state.lock().await;
        if state.tail.slots >= state.rebase_at {
            self.rebase(&mut state).await?;
        }
        if !state.tail.advance(&self.log).await? {
            self.rebase(&mut state).await?;
            if !state.tail.advance(&self.log).await? {
                return Err(index_behind(state.tail.position()?));
            }
        }
        let index = StoreReader::following(Arc::clone(&state.reader), self.deadline.clone());
        Ok(state.tail.over(Arc::new(index)))
    }

    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit> {
        let mut state = self.state.lock().await;
        if !anchor.is(&state.tail.records) {
            return Ok(Commit::Lost);
        }
        let (sequence, slot, _) =
            super::folder::next(&self.environment, &state.tail.records, self.origin, batch)?;
        match self.log.win(sequence, &slot, &self.environment).await? {
            Won::Lost => Ok(Commit::Lost),
            Won::Mine => {
                state.tail.push(sequence, &slot)?;
                Ok(Commit::Committed)
            }
        }
    }

    /// A slot is durable when it is won.
    async fn settle(&self) -> Result<()> {
        Ok(())
    }

    async fn checkpoint(&self, name: &str, _lifetime: Option<Duration>) -> Result<()> {
        Err(Error::new(ErrorKind::Internal, format!("checkpoint {name} is for whoever writes the index")))
    }

    async fn open_readers(&self, environment: &Environment) -> Result<Vec<Listed>> {
        checkpoints::open_readers(&self.location, environment, &self.deadline).await
    }

    async fn close(&self, _ending: Ending) -> Result<()> {
        let mut state = self.state.lock().await;
        let mut readers = std::mem::take(&mut state.retired);
        readers.push(Arc::clone(&state.reader));
        close_all(readers, &self.deadline).await
    }

    fn origin(&self) -> Option<u64> {
        Some(self.origin)
    }

    async fn refresh(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        self.rebase(&mut state).await
    }
}
