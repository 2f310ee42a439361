//! Handles on an open catalog: a writer's, and a read-only one that follows.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode};
use tokio::sync::RwLock;
use tokio::time::Instant;

use super::authority::{self, Commit, CommitAuthority, Native, Session};
use super::bootstrap;
use super::commit::{Change, plan};
use super::deadline::Deadline;
use super::driver::{ATTEMPTS, agree};
use super::format::{SystemRecords, is_commit_log};
use super::key::{Key, System};
use super::location::Location;
use super::log::Log;
use super::log::tail::Tail;
use super::read::{Read, StoreReader, message};
use super::store::{Ending, explained, look, manifest, open_reader, reader_options, system_records};
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
    /// Opens a store, making a native catalog where there is none. A refusal comes before the live writer is fenced. A
    /// catalog that is kept in a commit log is opened beside everybody else who commits to it.
    ///
    /// Errors as those of [`SystemRecords::gate`], and `Contended` where somebody else made the catalog meanwhile.
    pub async fn open(location: &Location, environment: &Environment, budget: &Budget) -> Result<Self> {
        let deadline = Deadline::of(budget);
        let sighting = look(location, &deadline).await?;
        let format = sighting.records.gate()?;
        if let Some(logged) = sighting.log {
            if logged.indexed && format.is_some_and(is_commit_log) {
                let session = Session::open(location, environment, &deadline).await?;
                return Ok(Self::over(Arc::new(session), environment.clone()));
            }
            // No index yet, or a log that has ended and is not folded to its end.
            let folder = authority::open(location, &sighting, None, environment, &deadline).await?;
            folder.settle().await?;
            folder.close(Ending::Complete).await?;
            return Box::pin(Self::open(location, environment, budget)).await;
        }
        let authority = Native::open(location, sighting.epoch.unwrap_or(0), deadline).await?;
        let log = Log::of(location, authority.deadline());
        let opened = match ready(&authority, &log, environment).await {
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
    ///
    /// Errors as those of [`SystemRecords::gate`]; `AuthorityChanged` where the catalog went into a log or out of it.
    pub async fn read(&self) -> Result<View> {
        let state = self.authority.pin().await?;
        let records = system_records(state.as_ref()).await?;
        agree(&records, self.authority.as_ref())?;
        let (format, head) = gated(&records)?;
        Ok(View::new(state, format, head))
    }

    /// Commits changes as one snapshot and waits until it is durable; a commit that loses to another is decided again,
    /// a bounded number of times. Returns the snapshot's id.
    ///
    /// Errors as those of [`Self::read`] and [`plan`]; `Contended` after [`ATTEMPTS`] losses, with nothing written; in a commit log
    /// `OutcomeUnknown` where its slot may still arrive.
    pub async fn commit(&self, changes: &[Change]) -> Result<u64> {
        let mut refreshed = false;
        for attempt in 0..ATTEMPTS {
            match self.attempt(changes).await {
                Ok(Some(snapshot_id)) => return Ok(snapshot_id),
                Ok(None) => {}
                // A garbage collector may have removed what an index from before it rests on: once, from a new one.
                Err(error) if error.kind() == ErrorKind::Corruption && !refreshed => {
                    refreshed = true;
                    self.authority.refresh().await?;
                }
                Err(error) => return Err(error),
            }
            let pause = self.environment.jitter(Duration::from_millis(5) * 2_u32.pow(attempt));
            tokio::time::sleep(pause).await;
        }
        Err(Error::new(ErrorKind::Contended, format!("lost to other commits {ATTEMPTS} times")))
    }

    async fn attempt(&self, changes: &[Change]) -> Result<Option<u64>> {
        let view = self.read().await?;
        let plan = plan(&view, changes, &self.environment).await?;
        // What it pins may be changed in place from here on.
        drop(view);
        if self.authority.commit(&plan.anchor, plan.batch).await? == Commit::Lost {
            return Ok(None);
        }
        self.authority.settle().await?;
        Ok(Some(plan.snapshot_id))
    }

    /// Closes the writer.
    pub async fn close(&self) -> Result<()> {
        self.authority.close(Ending::Complete).await
    }
}

/// The check under the writer's own epoch, and the bootstrap of an absent catalog.
async fn ready(authority: &Native, log: &Log, environment: &Environment) -> Result<()> {
    let records = system_records(authority.pin().await?.as_ref()).await?;
    match records.gate()? {
        Some(_) => agree(&records, authority),
        None if log.last().await? > 0 => {
            Err(Error::new(ErrorKind::Contended, "somebody else made the catalog, in a commit log"))
        }
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

fn without_index(log: bool) -> Error {
    if !log {
        return absent();
    }
    Error::new(ErrorKind::Unavailable, "the catalog's commit log has no index yet")
        .next("metashift catalog create --commit-log, which builds it")
}

fn absent() -> Error {
    Error::new(ErrorKind::InvalidInput, "there is no catalog here").next("metashift catalog create")
}

/// What a read-only handle knows while the head of the index stands.
#[derive(Debug, Clone)]
struct Known {
    index: Head,
    /// The slots behind the index, of a catalog that is kept in a log.
    tail: Option<Tail>,
    records: SystemRecords,
}

/// How one try of a read ended.
enum Attempt<T> {
    Answer(T),
    /// The index's head moved under it.
    Moved,
    /// The index is behind the log's floor.
    Behind,
}

/// After how many polls without a sign of life a handle looks itself.
pub const STALE_POLLS: u32 = 3;

/// A read-only handle that follows the store; it writes nothing and fences nobody.
pub struct CatalogReader {
    location: Location,
    log: Log,
    options: DbReaderOptions,
    deadline: Deadline,
    /// When the newest manifest was last known to be the reader's.
    looked: Mutex<Instant>,
    reader: RwLock<Arc<DbReader>>,
    /// Readers that somebody may still be reading from.
    retired: Mutex<Vec<Arc<DbReader>>>,
    known: Mutex<Option<Known>>,
}

impl std::fmt::Debug for CatalogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CatalogReader").field("location", &self.location).finish_non_exhaustive()
    }
}

impl CatalogReader {
    /// Opens a store for reading; `poll` is how often it looks for what is new.
    ///
    /// `InvalidInput` where there is no catalog, `Unavailable` where it is a log without an index; else as [`Self::read`].
    pub async fn open(location: &Location, poll: Duration, budget: &Budget) -> Result<Self> {
        let deadline = Deadline::of(budget);
        if manifest(location, &deadline).await?.is_none() {
            return Err(without_index(look(location, &deadline).await?.log.is_some()));
        }
        let options = reader_options(poll);
        let reader = open_reader(location, DbReaderMode::FollowLatest, options.clone(), &deadline).await?;
        let handle = Self {
            location: location.clone(),
            log: Log::of(location, &deadline),
            options,
            deadline,
            looked: Mutex::new(Instant::now()),
            reader: RwLock::new(reader),
            retired: Mutex::default(),
            known: Mutex::new(None),
        };
        let opened = async {
            handle.read(|_| async { Ok(()) }).await?;
            let known = handle.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
            handle.log.refuse_foreign(&known.map(|known| known.records).unwrap_or_default()).await
        };
        match opened.await {
            Ok(()) => Ok(handle),
            Err(error) => {
                handle.close().await?;
                Err(error)
            }
        }
    }

    /// Runs `query` on a view, and releases its answer only if the index's head stood still from before the format and
    /// marker were read until after the query's last read. A moved head repeats it, a bounded number of times. Of a
    /// catalog that is kept in a log every slot that was acknowledged before is part of the view.
    ///
    /// The view is no older than [`STALE_POLLS`] polls: where the handle has not seen the newest manifest for so long, it looks
    /// itself, and what keeps it from looking is its error.
    ///
    /// Errors as those of [`SystemRecords::gate`] and of the query; `Unavailable` where the catalog moved [`ATTEMPTS`] times.
    pub async fn read<T, Q, F>(&self, query: Q) -> Result<T>
    where
        Q: Fn(View) -> F,
        F: Future<Output = Result<T>>,
    {
        self.refresh().await?;
        let mut failed_on = None;
        for _ in 0..ATTEMPTS {
            let reader = Arc::clone(&*self.reader.read().await);
            let index = Arc::new(StoreReader::following(Arc::clone(&reader), self.deadline.clone()));
            match self.attempt(&index, &query).await {
                Ok(Attempt::Answer(answer)) => return Ok(answer),
                Ok(Attempt::Moved) => {}
                // The next slot is deleted: the index has gone on, and this handle has not seen it yet.
                Ok(Attempt::Behind) => self.reopen(&reader).await?,
                // A garbage collector may have removed what an old manifest names. On the newest one, twice is damage.
                Err(error) if error.kind() == ErrorKind::Corruption => {
                    let newest =
                        manifest(&self.location, &self.deadline).await?.map(|manifest| manifest.id());
                    if failed_on == Some(newest) {
                        return explained(&self.location, Err(error), &self.deadline).await;
                    }
                    failed_on = Some(newest);
                    match self.reopen(&reader).await {
                        Err(error) if error.kind() != ErrorKind::Corruption => return Err(error),
                        _ => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("the catalog moved during each of {ATTEMPTS} reads")))
    }

    async fn attempt<T, Q, F>(&self, index: &Arc<StoreReader>, query: &Q) -> Result<Attempt<T>>
    where
        Q: Fn(View) -> F,
        F: Future<Output = Result<T>>,
    {
        let Some(before) = head(index).await? else {
            return Err(without_index(self.log.last().await? > 0));
        };
        let answer = async {
            let Some(known) = self.known_at(index, before).await? else { return Ok(None) };
            let (format, at) = gated(&known.records)?;
            let below = Arc::clone(index) as Arc<dyn Read>;
            let state = known.tail.as_ref().map_or(Arc::clone(&below), |tail| tail.over(below));
            let answer = query(View::new(state, format, at)).await?;
            Ok(Some((answer, known)))
        }
        .await;
        // Even an error may come of two states read as one.
        if head(index).await? != Some(before) {
            return Ok(Attempt::Moved);
        }
        let Some((answer, known)) = answer? else { return Ok(Attempt::Behind) };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(Attempt::Answer(answer))
    }

    /// The records under a head of the index, with those of the slots behind it: remembered while head stands, read anew
    /// otherwise. `None` if the index is behind the log's floor.
    async fn known_at(&self, index: &StoreReader, head: Head) -> Result<Option<Known>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // An empty log of format 10 says nothing of its origin; the first slot will.
        let settled =
            |known: &Known| known.tail.is_some() || !known.records.format.as_ref().is_some_and(is_commit_log);
        let known = known.filter(|known| known.index == head && settled(known));
        let (tail, records) = if let Some(Known { tail, records, .. }) = known {
            (tail, records)
        } else {
            let records = system_records(index).await?;
            let origin = self.log.origin(&records, None).await?;
            let tail = origin.map(|origin| Tail::new(records.clone(), origin)).transpose()?;
            (tail, records)
        };
        let Some(mut tail) = tail else { return Ok(Some(Known { index: head, tail: None, records })) };
        if !tail.advance(&self.log).await? {
            return Ok(None);
        }
        let records = tail.records.clone();
        Ok(Some(Known { index: head, tail: Some(tail), records }))
    }

    /// SlateDB's own polls fail in silence, so that a reader whose manifest cannot be read any more serves what it has for ever.
    async fn refresh(&self) -> Result<()> {
        let bound = self.options.manifest_poll_interval * STALE_POLLS;
        let looked = *self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < bound {
            return Ok(());
        }
        let now = Instant::now();
        let newest = manifest(&self.location, &self.deadline).await?.map(|manifest| manifest.id());
        let reader = Arc::clone(&*self.reader.read().await);
        if newest.is_none_or(|newest| newest > reader.manifest().id()) {
            self.reopen(&reader).await?;
        }
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(())
    }

    /// Opens the store anew, unless somebody has done so since `failed` was taken.
    async fn reopen(&self, failed: &Arc<DbReader>) -> Result<()> {
        let mut current = self.reader.write().await;
        if !Arc::ptr_eq(&current, failed) {
            return Ok(());
        }
        let mode = DbReaderMode::FollowLatest;
        let reader = open_reader(&self.location, mode, self.options.clone(), &self.deadline).await?;
        let old = std::mem::replace(&mut *current, reader);
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(old);
        Ok(())
    }

    /// The reader below, to wait for what it sees.
    pub async fn reader(&self) -> Arc<DbReader> {
        Arc::clone(&*self.reader.read().await)
    }

    /// Closes the handle.
    pub async fn close(&self) -> Result<()> {
        let mut readers = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
        readers.push(Arc::clone(&*self.reader.read().await));
        for reader in readers {
            self.deadline.wait("closing a reader", reader.close()).await?;
        }
        Ok(())
    }
}

async fn head(state: &StoreReader) -> Result<Option<Head>> {
    message(state, &Key::System(System::Head).encode()).await
}
