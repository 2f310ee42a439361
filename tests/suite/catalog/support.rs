//! Stores that can die, and runs that die with them.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use metashift::catalog::authority::{Commit, CommitAuthority};
use metashift::catalog::batch::{Anchor, Batch};
use metashift::catalog::checkpoints::Listed;
use metashift::catalog::commit::Change;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{self, Report, Request, run};
use metashift::catalog::format::{LEGACY_COMMIT_LOG, SystemRecords};
use metashift::catalog::handle::Catalog;
use metashift::catalog::inspect::{CommitLog, inspect};
use metashift::catalog::key::{Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::log::lifecycle;
use metashift::catalog::read::Read;
use metashift::catalog::seed::{self, Seed};
use metashift::catalog::store::{Ending, look};
use metashift::catalog::units::Registry;
use metashift::catalog::value::{Format, frame};
use metashift::catalog::view::Contents;
use metashift::crash::{Hook, with_hook};
use metashift::environment::Environment;
use metashift::step::Budget;
use metashift::{Error, ErrorKind, Result};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::sync::{Notify, Semaphore};

/// A process's way to a shared object store. Dead, nothing gets through any more.
pub(crate) struct Mortal {
    inner: Arc<dyn ObjectStore>,
    dead: AtomicBool,
    writes: AtomicU64,
    writes_left: AtomicU64,
    died: Notify,
    hangs: bool,
    missing: AtomicU64,
    slots: AtomicU64,
    meddling: Mutex<Option<(u64, Meddle)>>,
    hold_read: AtomicBool,
    /// A create was held, and may go on.
    pub(crate) held: Semaphore,
    pub(crate) released: Semaphore,
    /// A held request has arrived.
    pub(crate) arrived: Semaphore,
}

/// What happens to a create of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meddle {
    /// It lands, and its answer is lost.
    LoseAnswer,
    /// It does not land, and the sender sees the same.
    Drop,
    /// It waits on its way there until it is released.
    HoldRequest,
    /// It lands, and its answer waits until it is released.
    HoldAnswer,
}

impl fmt::Debug for Mortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mortal")
    }
}

impl fmt::Display for Mortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mortal")
    }
}

impl Mortal {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Self::with_writes(inner, u64::MAX)
    }

    /// Dies at the write after this many.
    pub(crate) fn with_writes(inner: Arc<dyn ObjectStore>, writes: u64) -> Arc<Self> {
        Self::made(inner, writes, false)
    }

    /// Answers no write after this many, and nothing at all from then on.
    pub(crate) fn stuck_after(inner: Arc<dyn ObjectStore>, writes: u64) -> Arc<Self> {
        Self::made(inner, writes, true)
    }

    fn made(inner: Arc<dyn ObjectStore>, writes: u64, hangs: bool) -> Arc<Self> {
        Arc::new(Self {
            inner,
            dead: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            writes_left: AtomicU64::new(writes),
            died: Notify::new(),
            hangs,
            missing: AtomicU64::new(0),
            slots: AtomicU64::new(0),
            meddling: Mutex::new(None),
            hold_read: AtomicBool::new(false),
            held: Semaphore::new(0),
            released: Semaphore::new(0),
            arrived: Semaphore::new(0),
        })
    }

    /// Answers that many reads of tables as if a garbage collector had been there.
    pub(crate) fn miss(&self, reads: u64) {
        self.missing.store(reads, Ordering::SeqCst);
    }

    /// Meddles with the n-th create of a slot from here on, counted from 1.
    pub(crate) fn meddle(&self, nth: u64, how: Meddle) {
        *self.meddling.lock().unwrap() = Some((self.slots.load(Ordering::SeqCst) + nth, how));
    }

    /// From here on no slot arrives, and its sender hears nothing of it.
    pub(crate) fn drop_slots(&self) {
        self.meddle(0, Meddle::Drop);
    }

    /// Holds the next read of a slot on its way.
    pub(crate) fn hold_read(&self) {
        self.hold_read.store(true, Ordering::SeqCst);
    }

    fn meddling_with(&self, location: &Path) -> Option<Meddle> {
        if !location.as_ref().contains("commits/0") {
            return None;
        }
        let create = self.slots.fetch_add(1, Ordering::SeqCst) + 1;
        let mut meddling = self.meddling.lock().unwrap();
        match *meddling {
            Some((nth, Meddle::Drop)) if nth < create => Some(Meddle::Drop),
            _ => meddling.take_if(|(nth, _)| *nth == create).map(|(_, how)| how),
        }
    }

    async fn hold(&self) {
        self.held.add_permits(1);
        self.released.acquire().await.unwrap().forget();
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
    }

    pub(crate) fn revive(&self) {
        self.dead.store(false, Ordering::SeqCst);
    }

    /// Writes that went through.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Like [`Self::alive`], but a store that hangs never answers.
    async fn answers(&self, result: object_store::Result<()>) -> object_store::Result<()> {
        if result.is_err() && self.hangs {
            std::future::pending::<()>().await;
        }
        result
    }

    fn alive(&self) -> object_store::Result<()> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(object_store::Error::Generic {
                store: "mortal",
                source: "the process is dead".into(),
            });
        }
        Ok(())
    }

    fn write(&self) -> object_store::Result<()> {
        self.alive()?;
        let left =
            self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            self.kill();
            return self.alive();
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait::async_trait]
impl ObjectStore for Mortal {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let meddle = self.meddling_with(location);
        let lost =
            || object_store::Error::Generic { store: "mortal", source: "the connection is gone".into() };
        match meddle {
            Some(Meddle::Drop) => return Err(lost()),
            Some(Meddle::HoldRequest) => self.hold().await,
            _ => {}
        }
        // What is under way when a process dies may still arrive.
        if meddle != Some(Meddle::HoldRequest) {
            self.answers(self.write()).await?;
        }
        let answer = self.inner.put_opts(location, payload, options).await;
        match meddle {
            Some(Meddle::LoseAnswer) => return Err(lost()),
            Some(Meddle::HoldRequest) => self.arrived.add_permits(1),
            Some(Meddle::HoldAnswer) => self.hold().await,
            _ => {}
        }
        answer
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.answers(self.write()).await?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.answers(self.alive()).await?;
        if location.as_ref().contains("commits/0") && self.hold_read.swap(false, Ordering::SeqCst) {
            self.hold().await;
        }
        let misses = |left: u64| left.checked_sub(1);
        if location.as_ref().ends_with(".sst")
            && self.missing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, misses).is_ok()
        {
            return Err(object_store::Error::NotFound {
                path: location.to_string(),
                source: "collected".into(),
            });
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        match self.alive() {
            Ok(()) => self.inner.delete_stream(locations),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        match self.alive() {
            Ok(()) => self.inner.list(prefix),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.answers(self.alive()).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.answers(self.write()).await?;
        self.inner.copy_opts(from, to, options).await
    }
}

pub(crate) const PATH: &str = "lake/catalog";

pub(crate) fn environment() -> Environment {
    Environment::system()
}

/// A budget that a healthy test never spends, so that a hang fails it.
pub(crate) fn budget() -> Budget {
    Budget::until(environment(), environment().now() + Duration::from_secs(120))
}

pub(crate) fn at(store: &Arc<dyn ObjectStore>) -> Location {
    Location::new(Arc::clone(store), PATH)
}

/// How a migrator ends that has met another one: fenced, or closed by the compactor that the other one started last.
pub(crate) fn is_lost_race(error: &Error) -> bool {
    error.kind() == ErrorKind::Fenced
        || (error.kind() == ErrorKind::Unavailable && error.message().contains("which nobody else has"))
}

pub(crate) fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

/// A store of a seed in memory.
pub(crate) async fn seeded(seed: Seed) -> Arc<dyn ObjectStore> {
    let store = memory();
    seed::write(&at(&store), seed, &budget()).await.unwrap();
    store
}

/// Another store with the same objects.
pub(crate) async fn copied(store: &Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let copy = memory();
    let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
    for object in objects {
        let bytes =
            store.get_opts(&object.location, GetOptions::default()).await.unwrap().bytes().await.unwrap();
        copy.put_opts(&object.location, bytes.into(), PutOptions::default()).await.unwrap();
    }
    copy
}

/// Runs a migration to the end of its budget.
pub(crate) async fn migrate(location: &Location, request: &Request, budget: Budget) -> Result<Report> {
    Box::pin(run(location, &Registry::shipped(), request, &environment(), budget, &|_| {})).await
}

/// Runs a migration that has to reach its target.
pub(crate) async fn finish(store: &Arc<dyn ObjectStore>, to_format: u64) -> Report {
    let report = migrate(&at(store), &Request::to(to_format), budget()).await.unwrap();
    assert!(report.done, "{report:?}");
    report
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Died,
    Lived(Result<Report>),
}

/// Runs `work` until its store dies.
pub(crate) async fn until_death(store: &Mortal, work: impl Future<Output = Result<Report>>) -> Ended {
    outlived(store, work).await.map_or(Ended::Died, Ended::Lived)
}

/// What `work` came to, unless its store died first.
pub(crate) async fn outlived<T>(store: &Mortal, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = store.died.notified() => None,
        result = work => Some(result),
    }
}

/// A hook that kills a store at the n-th time (from 1) that a crash point is reached.
pub(crate) fn killing(store: &Arc<Mortal>, point: &'static str, times: u64) -> Hook {
    let (store, seen) = (Arc::clone(store), AtomicU64::new(0));
    Arc::new(move |reached| {
        let dies = reached == point && seen.fetch_add(1, Ordering::SeqCst) + 1 == times;
        if dies {
            store.kill();
        }
        Box::pin(async move {
            if dies {
                std::future::pending::<()>().await;
            }
        })
    })
}

/// Runs a migration in a process that dies at the n-th time that it reaches a crash point.
pub(crate) async fn dying_at(
    shared: &Arc<dyn ObjectStore>,
    request: &Request,
    budget: Budget,
    point: &'static str,
    times: u64,
) -> Ended {
    let mortal = Mortal::new(Arc::clone(shared));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let work = with_hook(killing(&mortal, point, times), migrate(&location, request, budget));
    let ended = until_death(&mortal, work).await;
    mortal.kill();
    ended
}

/// Every key and value.
pub(crate) async fn dump(store: &Arc<dyn ObjectStore>) -> Vec<(Bytes, Bytes)> {
    seed::dump(&at(store), &budget()).await.unwrap()
}

/// The records of a dump.
pub(crate) fn records(dump: &[(Bytes, Bytes)]) -> SystemRecords {
    let value = |key: System| {
        let key = Key::System(key).encode();
        dump.iter().find(|(at, _)| *at == key).map(|(_, value)| value.clone())
    };
    let (format, head, marker) = (value(System::Format), value(System::Head), value(System::Migration));
    SystemRecords::decode(format.as_deref(), head.as_deref(), marker.as_deref(), None).unwrap()
}

/// A dump without format and head: what a migration has to bring about.
pub(crate) fn content(dump: &[(Bytes, Bytes)]) -> Vec<(Bytes, Bytes)> {
    let system = |key: &Bytes| key.starts_with(&[2]);
    dump.iter().filter(|(key, _)| !system(key)).cloned().collect()
}

/// What every snapshot shows, whatever the format.
pub(crate) async fn history(store: &Arc<dyn ObjectStore>) -> Vec<Contents> {
    let mut all = Vec::new();
    for snapshot in 0..=seed::LAST_SNAPSHOT {
        all.push(seed::read_at(&at(store), snapshot, &budget()).await.unwrap());
    }
    all
}

/// Puts and deletes keys of a store behind everybody's back, through a writer of its own.
pub(crate) async fn tamper(store: &Arc<dyn ObjectStore>, puts: &[(Vec<u8>, Vec<u8>)], deletes: &[Vec<u8>]) {
    let db = slatedb::Db::builder(PATH, Arc::clone(store))
        .with_segment_extractor(Arc::new(metashift::catalog::store::TagExtractor))
        .build()
        .await
        .unwrap();
    let mut batch = slatedb::WriteBatch::new();
    for (key, value) in puts {
        batch.put(key, value);
    }
    for key in deletes {
        batch.delete(key);
    }
    db.write(batch).await.unwrap();
    db.close().await.unwrap();
}

pub(crate) fn kind(result: &Result<impl fmt::Debug, Error>) -> metashift::ErrorKind {
    result.as_ref().expect_err("an error").kind()
}

/// A seeded store that is kept in a commit log: of format 10 stamped with its origin, of a newer one adopted.
pub(crate) async fn logged(seed: Seed) -> Arc<dyn ObjectStore> {
    let store = seeded(seed).await;
    if seed.format == LEGACY_COMMIT_LOG {
        stamp(&store, Some(seed::LAST_SNAPSHOT)).await;
    } else {
        lifecycle::adopt(&at(&store), false, &environment(), &budget()).await.unwrap();
    }
    store
}

/// Writes the origin into a store's format record.
pub(crate) async fn stamp(store: &Arc<dyn ObjectStore>, origin: Option<u64>) {
    let format = records(&dump(store).await).format.unwrap();
    let format = Format { commit_log_batch_origin: origin, ..format };
    tamper(store, &[(Key::System(System::Format).encode(), frame(&format).to_vec())], &[]).await;
}

/// Commits a new schema through a session of its own.
pub(crate) async fn create_schema(store: &Arc<dyn ObjectStore>, name: &str) -> Result<u64> {
    let catalog = Catalog::open(&at(store), &environment(), &budget()).await?;
    let committed = catalog.commit(&[Change::CreateSchema { name: name.to_owned() }]).await;
    catalog.close().await?;
    committed
}

/// The commit log as an operator sees it.
pub(crate) async fn commit_log(store: &Arc<dyn ObjectStore>) -> Option<CommitLog> {
    let registry = Registry::shipped();
    inspect(&at(store), &registry, 12, false, &environment(), &budget()).await.unwrap().commit_log
}

/// The slots that are there.
pub(crate) async fn slots(store: &Arc<dyn ObjectStore>) -> Vec<u64> {
    let folder = Path::from(PATH).join("commits");
    let objects: Vec<_> = store.list(Some(&folder)).try_collect().await.unwrap();
    let mut found: Vec<u64> =
        objects.iter().filter_map(|object| object.location.filename()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// An authority between whose decision and commit somebody else acts, told how many commits it is.
struct Raced<F> {
    inner: Arc<dyn CommitAuthority>,
    commits: AtomicU64,
    lost: AtomicU64,
    rival: F,
}

#[async_trait::async_trait]
impl<F, A> CommitAuthority for Raced<F>
where
    F: Fn(u64) -> A + Send + Sync,
    A: Future<Output = ()> + Send,
{
    async fn pin(&self) -> Result<Arc<dyn Read>> {
        self.inner.pin().await
    }

    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit> {
        (self.rival)(self.commits.fetch_add(1, Ordering::SeqCst) + 1).await;
        let commit = self.inner.commit(anchor, batch).await?;
        self.lost.fetch_add(u64::from(commit == Commit::Lost), Ordering::SeqCst);
        Ok(commit)
    }

    async fn settle(&self) -> Result<()> {
        self.inner.settle().await
    }

    async fn checkpoint(&self, name: &str, lifetime: Option<Duration>) -> Result<()> {
        self.inner.checkpoint(name, lifetime).await
    }

    async fn open_readers(&self, environment: &Environment) -> Result<Vec<Listed>> {
        self.inner.open_readers(environment).await
    }

    async fn close(&self, ending: Ending) -> Result<()> {
        self.inner.close(ending).await
    }

    fn origin(&self) -> Option<u64> {
        self.inner.origin()
    }
}

/// Migrates through an authority, which it closes, with `rival` called before every commit; how many of these lost, and
/// how it ended.
pub(crate) async fn raced<F, A>(
    inner: Arc<dyn CommitAuthority>,
    to_format: u64,
    rival: F,
) -> (u64, Result<Report>)
where
    F: Fn(u64) -> A + Send + Sync,
    A: Future<Output = ()> + Send,
{
    let raced = Raced { inner, commits: AtomicU64::new(0), lost: AtomicU64::new(0), rival };
    let (registry, request) = (Registry::shipped(), Request::to(to_format));
    let result = driver::migrate(&raced, &registry, &request, &environment(), budget(), &|_| {}).await;
    raced.close(if result.is_ok() { Ending::Complete } else { Ending::Abandoned }).await.unwrap();
    (raced.lost.load(Ordering::SeqCst), result)
}

/// The epoch of a store's last writer.
pub(crate) async fn epoch(store: &Arc<dyn ObjectStore>) -> u64 {
    look(&at(store), &Deadline::of(&budget())).await.unwrap().epoch.unwrap()
}
