//! Handles on an open catalog: a writer's, and a read-only one that follows.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode};
use tokio::sync::RwLock;

use super::authority::{Commit, CommitAuthority, Native};
use super::bootstrap;
use super::commit::{Change, plan};
use super::deadline::Deadline;
use super::driver::{ATTEMPTS, refuse_commit_log};
use super::format::SystemRecords;
use super::key::{Key, System};
use super::location::Location;
use super::read::{StoreReader, message};
use super::store::{Ending, Sighting, look, manifest, open_reader, system_records};
use super::value::Head;
use super::view::View;
use crate::environment::Environment;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// A catalog open for reading and writing.
pub struct Catalog {
    authority: Arc<dyn CommitAuthority>,
    environment: Environment,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}

impl Catalog {
    /// Opens a store, making a catalog where there is none. A refusal comes before the live writer is fenced.
    pub async fn open(location: &Location, environment: &Environment, budget: &Budget) -> Result<Self> {
        let deadline = Deadline::of(budget);
        let Sighting { epoch, records } = look(location, &deadline).await?;
        records.gate()?;
        refuse_commit_log(&records)?;
        let authority = Native::open(location, epoch.unwrap_or(0), deadline).await?;
        let opened = match ready(&authority, environment).await {
            Ok(()) => Self::over(Arc::new(authority), environment.clone()),
            Err(error) => {
                // Refused only now that it has the epoch: somebody was faster. Nothing is written.
                authority.close(Ending::Abandoned).await?;
                return Err(error);
            }
        };
        Ok(opened)
    }

    /// A catalog over an authority that is already open.
    pub fn over(authority: Arc<dyn CommitAuthority>, environment: Environment) -> Self {
        Self { authority, environment }
    }

    /// Pins the present state; refuses while a migration runs.
    pub async fn read(&self) -> Result<View> {
        let state = self.authority.pin().await?;
        let records = system_records(state.as_ref()).await?;
        let (format, head) = gated(&records)?;
        Ok(View::new(state, format, head))
    }

    /// Commits changes as one snapshot and waits until it is durable; a commit that loses to another is decided again,
    /// a bounded number of times. Returns the snapshot's id.
    pub async fn commit(&self, changes: &[Change]) -> Result<u64> {
        for attempt in 0..ATTEMPTS {
            let view = self.read().await?;
            let plan = plan(&view, changes, &self.environment).await?;
            if self.authority.commit(&plan.anchor, plan.batch).await? == Commit::Committed {
                self.authority.settle().await?;
                return Ok(plan.snapshot_id);
            }
            let pause = self.environment.jitter(Duration::from_millis(5) * 2_u32.pow(attempt));
            tokio::time::sleep(pause).await;
        }
        Err(Error::new(ErrorKind::Contended, format!("lost to other commits {ATTEMPTS} times")))
    }

    /// Closes the writer.
    pub async fn close(&self) -> Result<()> {
        self.authority.close(Ending::Complete).await
    }
}

/// The check under the writer's own epoch, and the bootstrap of an absent catalog.
async fn ready(authority: &Native, environment: &Environment) -> Result<()> {
    let records = system_records(authority.pin().await?.as_ref()).await?;
    refuse_commit_log(&records)?;
    match records.gate()? {
        Some(_) => Ok(()),
        None => bootstrap::write(authority, environment).await,
    }
}

fn gated(records: &SystemRecords) -> Result<(u64, Head)> {
    let Some(format) = records.gate()? else { return Err(absent()) };
    let Some(head) = records.head else {
        return Err(Error::new(ErrorKind::Corruption, "the catalog has a format but no head"));
    };
    Ok((format.format_version, head))
}

fn absent() -> Error {
    Error::new(ErrorKind::InvalidInput, "there is no catalog here").next("metashift catalog create")
}

/// What a read-only handle knows about the format of the store while head stands.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Known {
    head: Head,
    format: u64,
}

/// A read-only handle that follows the store; it writes nothing and fences nobody.
pub struct CatalogReader {
    location: Location,
    options: DbReaderOptions,
    deadline: Deadline,
    reader: RwLock<Arc<DbReader>>,
    known: Mutex<Option<Known>>,
}

impl std::fmt::Debug for CatalogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CatalogReader").field("location", &self.location).finish_non_exhaustive()
    }
}

impl CatalogReader {
    /// Opens a store for reading; `poll` is how often it looks for what is new.
    pub async fn open(location: &Location, poll: Duration, budget: &Budget) -> Result<Self> {
        let deadline = Deadline::of(budget);
        if manifest(location, &deadline).await?.is_none() {
            return Err(absent());
        }
        let options = DbReaderOptions { manifest_poll_interval: poll, ..DbReaderOptions::default() };
        let reader = open_reader(location, DbReaderMode::FollowLatest, options.clone(), &deadline).await?;
        let handle = Self {
            location: location.clone(),
            options,
            deadline,
            reader: RwLock::new(reader),
            known: Mutex::new(None),
        };
        handle.read(|_| async { Ok(()) }).await?;
        Ok(handle)
    }

    /// Runs `query` on a view, and releases its answer only if head stood still from before the format and marker were
    /// read until after the query's last read. A moved head without a marker repeats it, a bounded number of times.
    pub async fn read<T, Q, F>(&self, query: Q) -> Result<T>
    where
        Q: Fn(View) -> F,
        F: Future<Output = Result<T>>,
    {
        let mut reopened = false;
        for _ in 0..ATTEMPTS {
            let reader = Arc::clone(&*self.reader.read().await);
            let state = Arc::new(StoreReader::following(reader, self.deadline.clone()));
            let answer = match self.known_at(&state).await {
                Ok(known) => {
                    let answer = query(View::new(Arc::clone(&state) as _, known.format, known.head)).await;
                    if head(&state).await? != Some(known.head) {
                        // Whatever moved head may be a marker: then this refuses, else the query is run again.
                        gated(&system_records(state.as_ref()).await?)?;
                        continue;
                    }
                    *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
                    answer
                }
                Err(error) => Err(error),
            };
            match answer {
                // A garbage collector may have removed what an old manifest names: once, from a new one.
                Err(error) if error.kind() == ErrorKind::Corruption && !reopened => {
                    reopened = true;
                    self.reopen().await?;
                }
                answer => return answer,
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("the catalog moved during each of {ATTEMPTS} reads")))
    }

    /// Head, and the format under it: remembered while head stands, read after it otherwise.
    async fn known_at(&self, state: &StoreReader) -> Result<Known> {
        let Some(head) = head(state).await? else { return Err(absent()) };
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.filter(|known| known.head == head) {
            return Ok(known);
        }
        let (format, _) = gated(&system_records(state).await?)?;
        Ok(Known { head, format })
    }

    async fn reopen(&self) -> Result<()> {
        let mode = DbReaderMode::FollowLatest;
        let reader = open_reader(&self.location, mode, self.options.clone(), &self.deadline).await?;
        let old = std::mem::replace(&mut *self.reader.write().await, reader);
        self.deadline.wait("closing a reader", old.close()).await
    }

    /// The reader below, to wait for what it sees.
    pub async fn reader(&self) -> Arc<DbReader> {
        Arc::clone(&*self.reader.read().await)
    }

    /// Closes the handle.
    pub async fn close(&self) -> Result<()> {
        let reader = Arc::clone(&*self.reader.read().await);
        self.deadline.wait("closing a reader", reader.close()).await
    }
}

async fn head(state: &StoreReader) -> Result<Option<Head>> {
    message(state, &Key::System(System::Head).encode()).await
}
