//! Beside a compactor and a collector of another process: what they replace is looked for again in the newer manifest, and a
//! healthy store is never called corrupt.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use metashift::ErrorKind;
use metashift::catalog::abandon::abandon;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::CatalogReader;
use metashift::catalog::inspect::{Inspection, inspect};
use metashift::catalog::location::Location;
use metashift::catalog::seed::{self, Seed};
use metashift::catalog::units::Registry;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use slatedb::admin::AdminBuilder;
use slatedb::compactor::{CompactionSpec, CompactorBuilder, SourceId};
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, GarbageCollectorDirectoryOptions, GarbageCollectorOptions,
};

use super::support::{PATH, at, budget, content, copied, dump, environment, finish, migrate, seeded};

/// Compacts every table of a store into new ones and removes the old ones, as another process may at any time.
async fn replace_all(store: &Arc<dyn ObjectStore>) {
    let admin = AdminBuilder::new(PATH, Arc::clone(store)).build();
    let before = admin.read_manifest(None).await.unwrap().unwrap();
    let soon = Duration::from_millis(5);
    let worker =
        CompactionWorkerOptions { compactions_poll_interval: soon, ..CompactionWorkerOptions::default() };
    let options = CompactorOptions {
        poll_interval: soon,
        commit_compacted_interval: soon,
        worker: Some(worker),
        ..CompactorOptions::default()
    };
    let compactor = Arc::new(CompactorBuilder::new(PATH, Arc::clone(store)).with_options(options).build());
    let running = tokio::spawn({
        let compactor = Arc::clone(&compactor);
        async move { compactor.run().await }
    });
    let old: Vec<_> = before.all_sst_views().map(|view| view.sst.id).collect();
    for segment in before.segments() {
        // One after the other: the run that a compaction makes has to be the newest of all as it is submitted.
        let now = admin.read_manifest(None).await.unwrap().unwrap();
        let runs = now.segments().iter().flat_map(|segment| segment.compacted().iter().map(|run| run.id));
        // Of runs alone it takes the place of the oldest.
        let oldest = segment.compacted().iter().map(|run| run.id).min().filter(|_| segment.l0().is_empty());
        let destination = oldest.unwrap_or_else(|| runs.max().map_or(0, |run| run + 1));
        let tables = segment.l0().iter().map(|view| SourceId::SstView(view.id));
        let runs = segment.compacted().iter().map(|run| SourceId::SortedRun(run.id));
        let spec =
            CompactionSpec::for_segment(segment.prefix().clone(), tables.chain(runs).collect(), destination);
        admin.submit_compaction(spec).await.unwrap();
        let done = async {
            loop {
                let now = admin.read_manifest(None).await.unwrap().unwrap();
                let there = now.segments().iter().find(|there| there.prefix() == segment.prefix());
                let views = there.into_iter().flat_map(|there| {
                    there.l0().iter().chain(there.compacted().iter().flat_map(|run| run.sst_views().iter()))
                });
                if views.into_iter().all(|view| !old.contains(&view.sst.id)) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), done).await.is_err() {
            panic!("not every table is replaced: {:?}", admin.read_compactions(None).await.unwrap());
        }
    }
    compactor.stop().await.unwrap();
    running.await.unwrap().unwrap();
    let at_once =
        Some(GarbageCollectorDirectoryOptions { interval: None, min_age: Duration::ZERO, dry_run: false });
    let options = GarbageCollectorOptions {
        compacted_options: at_once,
        manifest_options: None,
        wal_options: None,
        wal_fence_options: None,
        compactions_options: None,
        ..GarbageCollectorOptions::default()
    };
    admin.run_gc_once(options).await.unwrap();
    let paths = slatedb::PathResolver::new(PATH, &before);
    for id in old {
        // A collector keeps the newest for a while; another one does not have to.
        match store.delete(&paths.sst_path(&id)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A store under which everything is replaced before the n-th reads of a table.
struct Restless {
    inner: Arc<dyn ObjectStore>,
    reads: AtomicU64,
    every: u64,
    most: u64,
    replaced: AtomicU64,
}

impl Restless {
    fn new(inner: &Arc<dyn ObjectStore>, every: u64, most: u64) -> Arc<Self> {
        let (reads, replaced) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { inner: Arc::clone(inner), reads, every, most, replaced })
    }
}

impl fmt::Debug for Restless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("restless")
    }
}

impl fmt::Display for Restless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("restless")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Restless {
    async fn put_opts(
        &self,
        to: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.inner.put_opts(to, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        if from.as_ref().contains("/compacted/") {
            let read = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
            if read.is_multiple_of(self.every) && self.replaced.load(Ordering::SeqCst) < self.most {
                self.replaced.fetch_add(1, Ordering::SeqCst);
                let inner = Arc::clone(&self.inner);
                // As a task of its own: the replacing does not weigh on the stack of the reader.
                tokio::spawn(async move { replace_all(&inner).await }).await.unwrap();
            }
        }
        self.inner.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        from: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(from)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Enough that a pass over it reads many blocks.
fn long() -> Seed {
    Seed { format: 8, schemas: 100, tables: 3_000, delete_files: 3_000, tombstones: 12_000, name_bytes: 40 }
}

fn without_checkpoints(found: Inspection) -> Inspection {
    Inspection { checkpoints: Vec::new(), ..found }
}

#[tokio::test]
async fn a_dry_run_goes_on_from_where_it_was_and_counts_what_an_undisturbed_one_counts() {
    let store = seeded(long()).await;
    let registry = Registry::shipped();
    let quiet = inspect(&at(&store), &registry, 12, true, &environment(), &budget()).await.unwrap();
    assert!(quiet.plan.iter().map(|planned| planned.records.unwrap()).sum::<u64>() > 15_000);
    // At every one of the first reads, and all along.
    for (every, most) in [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (8, 1), (12, 1), (10, 4)] {
        let shared = copied(&store).await;
        let restless = Restless::new(&shared, every, most);
        let location = Location::new(Arc::clone(&restless) as _, PATH);
        let found = inspect(&location, &registry, 12, true, &environment(), &budget()).await;
        let found = found.unwrap_or_else(|error| panic!("at read {every}: {error}"));
        assert_eq!(without_checkpoints(found), without_checkpoints(quiet.clone()), "at read {every}");
        assert!(restless.replaced.load(Ordering::SeqCst) >= 1, "nothing was replaced at read {every}");
    }
}

#[tokio::test]
async fn a_migration_goes_on_from_its_last_batch() {
    let store = seeded(long()).await;
    let whole = copied(&store).await;
    finish(&whole, 12).await;
    let whole = content(&dump(&whole).await);
    for every in [2, 5, 9, 14] {
        let shared = copied(&store).await;
        let restless = Restless::new(&shared, every, 2);
        let location = Location::new(Arc::clone(&restless) as _, PATH);
        // A compactor of another process closes the writer's own; then the run says so, and the next goes on.
        // Its compactor holds checkpoints without a name, as a reader does.
        let request = Request { accept_open_readers: true, ..Request::to(12) };
        loop {
            match migrate(&location, &request, budget()).await {
                Ok(report) => break assert!(report.done),
                Err(error) => {
                    assert!(
                        [ErrorKind::Unavailable, ErrorKind::Fenced].contains(&error.kind()),
                        "at {every}: {error}"
                    );
                }
            }
        }
        assert!(content(&dump(&shared).await) == whole, "at read {every}");
        assert!(restless.replaced.load(Ordering::SeqCst) >= 1);
    }
}

#[tokio::test]
async fn a_reader_and_an_abandon_answer() {
    let store = seeded(Seed { format: 11, ..long() }).await;
    let shown = seed::read_at(&at(&store), 5, &budget()).await.unwrap();
    for every in [1, 3, 7] {
        let shared = copied(&store).await;
        let restless = Restless::new(&shared, every, 3);
        let location = Location::new(Arc::clone(&restless) as _, PATH);
        let reader = CatalogReader::open(&location, Duration::from_secs(3_600), &budget()).await.unwrap();
        assert_eq!(reader.read(|view| async move { view.read_at(5).await }).await.unwrap(), shown, "{every}");
        reader.close().await.unwrap();
    }
    migrate(&at(&store), &Request::to(12), budget().with_pages(Some(4))).await.unwrap();
    let restless = Restless::new(&store, 2, 1);
    let location = Location::new(Arc::clone(&restless) as _, PATH);
    loop {
        match abandon(&location, &Registry::shipped(), &environment(), budget()).await {
            Ok(done) => break assert_eq!(done.format, 11),
            Err(error) => {
                assert!([ErrorKind::Unavailable, ErrorKind::Fenced].contains(&error.kind()), "{error}")
            }
        }
    }
}
