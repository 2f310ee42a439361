//! Speed and cost of the catalog migration 8 to 9 beside the released `moraine` 0.7.0 and beside SlateDB alone, in one run.
//!
//! ```sh
//! cargo run --profile bench --manifest-path tests/interop/Cargo.toml --bin catalog_bench -- [TOMBSTONES] [STORE] [FILE.json]
//! ```
//!
//! `STORE` is a `file:///directory` that exists, or an `s3://bucket/path` with its endpoint and credentials in the
//! environment; a temporary directory if absent. Every candidate works on a copy of the same store, one after another.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use metashift::catalog::driver::{Request, run};
use metashift::catalog::key::{Inline, Key, Operation};
use metashift::catalog::location::{Location, make_directory};
use metashift::catalog::seed::{self, ROW_TABLE, Seed};
use metashift::catalog::store::{TagExtractor, settings};
use metashift::catalog::units::Registry;
use metashift::catalog::value::{RowDeletion, frame};
use metashift::environment::{Environment, elapsed};
use metashift::step::Budget;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

type Failure = Box<dyn std::error::Error>;

/// Tombstones where the command line does not say.
const TOMBSTONES: u64 = 200_000;
/// Records of one batch of SlateDB alone, as many as a step has.
const BATCH: u64 = 256;

/// Counts writes.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn ObjectStore>,
    puts: AtomicU64,
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Counting {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        // At least one part, and the requests that begin and end it.
        self.puts.fetch_add(3, Ordering::Relaxed);
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// What one candidate took.
struct Figure {
    who: &'static str,
    seconds: f64,
    puts: u64,
}

struct Bench {
    root: Location,
    tombstones: u64,
    environment: Environment,
    figures: Vec<Figure>,
}

impl Bench {
    /// The seeded store, copied for one candidate, behind a counter.
    async fn copy(&self, who: &str) -> Result<(Arc<Counting>, Path), Failure> {
        let (from, to) = (self.root.path.clone().join("seed"), self.root.path.clone().join(who));
        let objects: Vec<_> = self.root.store.list(Some(&from)).try_collect().await?;
        for object in objects {
            let parts = object.location.prefix_match(&from).ok_or("an object outside the seed")?;
            let place = parts.fold(to.clone(), |path, part| path.join(part));
            self.root.store.copy(&object.location, &place).await?;
        }
        Ok((Arc::new(Counting { inner: Arc::clone(&self.root.store), puts: AtomicU64::new(0) }), to))
    }

    async fn measure<W>(
        &mut self,
        who: &'static str,
        work: impl FnOnce(Arc<Counting>, Path) -> W,
    ) -> Result<(), Failure>
    where
        W: Future<Output = Result<(), Failure>>,
    {
        let (store, path) = self.copy(who).await?;
        let begun = self.environment.now();
        work(Arc::clone(&store), path).await?;
        let seconds = elapsed(begun, self.environment.now()).as_secs_f64();
        let puts = store.puts.load(Ordering::Relaxed);
        println!("{who:<36} {seconds:>9.2} s {:>12.0} records/s {puts:>8} puts", self.rate(seconds));
        self.figures.push(Figure { who, seconds, puts });
        Ok(())
    }

    #[allow(clippy::cast_precision_loss, reason = "a count of records, for a ratio")]
    fn rate(&self, seconds: f64) -> f64 {
        self.tombstones as f64 / seconds
    }

    fn seconds(&self, who: &str) -> f64 {
        self.figures.iter().find(|figure| figure.who == who).map_or(f64::NAN, |figure| figure.seconds)
    }
}

async fn raw(store: Arc<Counting>, path: Path, tombstones: u64) -> Result<(), Failure> {
    let db = slatedb::Db::builder(path, store)
        .with_settings(settings())
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await?;
    for first in (0..tombstones).step_by(usize::try_from(BATCH)?) {
        let mut batch = slatedb::WriteBatch::new();
        for row in first..(first + BATCH).min(tombstones) {
            let (table_id, row_id, end_snapshot) = (ROW_TABLE, 2 * row, 5 + row % 2);
            let moved = Key::Inline(Inline::RowTombstone { table_id, row_id, end_snapshot }).encode();
            batch.put(moved, frame(&RowDeletion { end_snapshot }));
            batch.delete(Key::Inline(Inline::Live(Operation::RowDelete { table_id, row_id })).encode());
        }
        db.write(batch).await?;
    }
    db.flush().await?;
    db.close().await?;
    Ok(())
}

async fn ours(store: Arc<Counting>, path: Path, environment: &Environment) -> Result<(), Failure> {
    let budget = Budget::unbounded(environment.clone());
    let location = Location::new(store, path);
    let report = run(&location, &Registry::shipped(), &Request::to(9), environment, budget, &|_| {}).await?;
    if report.done { Ok(()) } else { Err(format!("not finished: {report:?}").into()) }
}

async fn released(store: Arc<Counting>, path: Path, flush_interval: Option<Duration>) -> Result<(), Failure> {
    let mut options = moraine_070::CatalogOptions::default();
    path.as_ref().clone_into(&mut options.path);
    if let Some(flush_interval) = flush_interval {
        options.flush_interval = flush_interval;
    }
    moraine_070::Catalog::migrate(store, options, moraine_070::MigrationRequest::default()).await?;
    Ok(())
}

const OURS: &str = "metashift";
const RAW: &str = "slatedb";
const DEFAULT: &str = "moraine";
const EAGER: &str = "moraine-flush-0";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let tombstones = arguments.next().map_or(Ok(TOMBSTONES), |text| text.parse())?;
    let environment = Environment::system();
    let url = arguments.next().unwrap_or_else(|| {
        let directory = std::env::temp_dir().join(format!("metashift-catalog-bench-{}", environment.id()));
        format!("file://{}", directory.display())
    });
    make_directory(&url)?;
    let root = Location::parse(&url).await?;
    let seeded = Location::new(Arc::clone(&root.store), root.path.clone().join("seed"));
    let seed = Seed { format: 8, schemas: 10, tables: 100, delete_files: 100, tombstones, name_bytes: 8 };
    seed::write(&seeded, seed, &Budget::unbounded(environment.clone())).await?;

    let mut bench = Bench { root, tombstones, environment: environment.clone(), figures: Vec::new() };
    bench.measure(RAW, |store, path| raw(store, path, tombstones)).await?;
    bench.measure(OURS, |store, path| ours(store, path, &environment)).await?;
    bench.measure(EAGER, |store, path| released(store, path, Some(Duration::ZERO))).await?;
    bench.measure(DEFAULT, |store, path| released(store, path, None)).await?;

    let ours = bench.seconds(OURS);
    let puts = bench.figures.iter().find(|figure| figure.who == OURS).map_or(0, |figure| figure.puts);
    let rows = [
        ("8 to 9 / moraine 0.7.0, default flush interval", bench.seconds(DEFAULT) / ours, "at least 10"),
        ("8 to 9 / moraine 0.7.0, flush interval 0", bench.seconds(EAGER) / ours, ""),
        ("8 to 9 / SlateDB batches of the same bytes", bench.seconds(RAW) / ours, "at least 0.5"),
        #[allow(clippy::cast_precision_loss, reason = "a count of requests, for a ratio")]
        ("object-store puts a million records", puts as f64 * 1e6 / tombstones as f64, ""),
    ];
    for (what, value, target) in rows {
        println!("{what:<52} {value:>10.2} {target:>14}");
    }
    if let Some(file) = arguments.next() {
        let rows: Vec<_> = rows
            .iter()
            .map(|(what, value, target)| {
                format!(r#"{{"what":"{what}","value":{value},"target":"{target}"}}"#)
            })
            .collect();
        std::fs::write(file, format!(r#"{{"tombstones":{tombstones},"rows":[{}]}}"#, rows.join(",")))?;
    }
    let objects = bench.root.store.list(Some(&bench.root.path)).map_ok(|object| object.location).boxed();
    bench.root.store.delete_stream(objects).try_collect::<Vec<_>>().await?;
    Ok(())
}
