//! Stores that can die, and runs that die with them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use metashift::catalog::driver::{Report, Request, run};
use metashift::catalog::format::SystemRecords;
use metashift::catalog::key::{Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::seed::{self, Seed};
use metashift::catalog::units::Registry;
use metashift::catalog::view::Contents;
use metashift::crash::{Hook, with_hook};
use metashift::environment::Environment;
use metashift::step::Budget;
use metashift::{Error, Result};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::sync::Notify;

/// A process's way to a shared object store. Dead, nothing gets through any more.
pub(crate) struct Mortal {
    inner: Arc<dyn ObjectStore>,
    dead: AtomicBool,
    writes: AtomicU64,
    writes_left: AtomicU64,
    died: Notify,
    hangs: bool,
    missing: AtomicU64,
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
        })
    }

    /// Answers that many reads of tables as if a garbage collector had been there.
    pub(crate) fn miss(&self, reads: u64) {
        self.missing.store(reads, Ordering::SeqCst);
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
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
        self.answers(self.write()).await?;
        self.inner.put_opts(location, payload, options).await
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
    tokio::select! {
        biased;
        () = store.died.notified() => Ended::Died,
        result = work => Ended::Lived(result),
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
    SystemRecords::decode(format.as_deref(), head.as_deref(), marker.as_deref()).unwrap()
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
