//! Damage is found before anything that cannot be taken back, in seconds, wherever it is, and named by its object.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::Catalog;
use metashift::catalog::inspect::inspect;
use metashift::catalog::key::{Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::seed::{LAST_SNAPSHOT, Seed};
use metashift::catalog::sound::sound;
use metashift::catalog::store::TagExtractor;
use metashift::catalog::units::Registry;
use metashift::catalog::value::{Head, frame};
use metashift::{ErrorKind, Result};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutOptions};
use slatedb::config::{FlushOptions, FlushType};
use slatedb::{PathResolver, VersionedManifest};

use super::support::{Mortal, PATH, at, budget, copied, environment, finish, migrate, seeded};

/// Far below the bound of a wait, and far above what a look takes on a busy machine.
const SECONDS: Duration = Duration::from_secs(60);

async fn bytes(store: &Arc<dyn ObjectStore>, path: &Path) -> Bytes {
    store.get(path).await.unwrap().bytes().await.unwrap()
}

async fn put(store: &Arc<dyn ObjectStore>, path: &Path, bytes: Bytes) {
    store.put_opts(path, bytes.into(), PutOptions::default()).await.unwrap();
}

async fn names(store: &Arc<dyn ObjectStore>, folder: &str) -> Vec<Path> {
    let folder = Path::from(PATH).join(folder);
    let mut names: Vec<Path> =
        store.list(Some(&folder)).map_ok(|object| object.location).try_collect().await.unwrap();
    names.sort();
    names
}

async fn manifest(store: &Arc<dyn ObjectStore>) -> VersionedManifest {
    let admin = slatedb::admin::AdminBuilder::new(PATH, Arc::clone(store)).build();
    admin.read_manifest(None).await.unwrap().unwrap()
}

/// The tables of a store, with the segment of each.
async fn tables(store: &Arc<dyn ObjectStore>) -> Vec<(Vec<u8>, Path)> {
    let manifest = manifest(store).await;
    let paths = PathResolver::new(PATH, &manifest);
    let segments = manifest.segments().iter().flat_map(|segment| {
        let views =
            segment.l0().iter().chain(segment.compacted().iter().flat_map(|run| run.sst_views().iter()));
        views.map(|view| (segment.prefix().to_vec(), paths.sst_path(&view.sst.id))).collect::<Vec<_>>()
    });
    segments.collect()
}

/// Everybody who may not go on says so, names the object, and writes nothing.
async fn is_found(store: &Arc<dyn ObjectStore>, named: &Path, what: &str) {
    let mortal = Mortal::new(Arc::clone(store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let registry = Registry::shipped();
    let bounded = |who: &'static str, answer: Result<()>| {
        let error = answer.expect_err(&format!("{what}: {who}"));
        assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {who}: {error}");
        assert!(error.message().contains(named.as_ref()), "{what}: {who} does not name {named}: {error}");
        assert!(error.next_step().is_some(), "{what}: {who}: {error}");
    };
    let (environment, budget) = (environment(), budget());
    let looks = async {
        bounded("status", inspect(&location, &registry, 12, false, &environment, &budget).await.map(drop));
        bounded("dry run", inspect(&location, &registry, 12, true, &environment, &budget).await.map(drop));
        bounded("run", migrate(&location, &Request::to(12), budget.clone()).await.map(drop));
    };
    tokio::time::timeout(SECONDS, looks).await.unwrap_or_else(|_| panic!("{what}: it hangs"));
    assert_eq!(mortal.writes(), 0, "{what}");
}

#[tokio::test]
async fn a_table_that_is_missing_or_cut_is_found_in_whichever_segment_it_is() {
    let whole = seeded(Seed::small(8)).await;
    let tables = tables(&whole).await;
    let mut segments: Vec<_> = tables.iter().map(|(segment, _)| segment.clone()).collect();
    segments.dedup();
    // Among them those that no unit reads: snapshots, history, the changelog.
    assert!(segments.len() >= 4 && segments.contains(&vec![5]), "{segments:?}");
    for (segment, path) in &tables {
        let store = copied(&whole).await;
        store.delete(path).await.unwrap();
        is_found(&store, path, &format!("{segment:x?} is missing")).await;
        let table = bytes(&whole, path).await;
        for kept in [0, table.len() / 2, table.len() - 1] {
            put(&store, path, table.slice(..kept)).await;
            is_found(&store, path, &format!("{segment:x?} cut to {kept} of {}", table.len())).await;
        }
        put(&store, path, table).await;
        finish(&store, 12).await;
    }
}

/// A store whose last commits are in the write-ahead log alone, as a killed catalog leaves them.
async fn with_log() -> Arc<dyn ObjectStore> {
    let store = seeded(Seed::small(8)).await;
    let db = slatedb::Db::builder(PATH, Arc::clone(&store))
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await
        .unwrap();
    for number in 1..=5 {
        let head = Head { snapshot_id: LAST_SNAPSHOT, batch_seq: LAST_SNAPSHOT + number };
        db.put(Key::System(System::Head).encode(), frame(&head)).await.unwrap();
        db.flush_with_options(FlushOptions { flush_type: FlushType::Wal }).await.unwrap();
    }
    let left = copied(&store).await;
    db.close().await.unwrap();
    left
}

#[tokio::test]
async fn a_hole_or_a_cut_in_the_write_ahead_log_is_found() {
    let whole = with_log().await;
    sound(&at(&whole), &Deadline::of(&budget())).await.unwrap();
    let folded = manifest(&whole).await.replay_after_wal_id();
    let number = |path: &Path| path.filename().unwrap().trim_end_matches(".sst").parse::<u64>().unwrap();
    let log: Vec<_> = names(&whole, "wal").await.into_iter().filter(|path| number(path) > folded).collect();
    // The fence of the killed catalog, and a commit each.
    assert!(log.len() >= 6, "{log:?}");
    for (place, path) in log.iter().enumerate() {
        let store = copied(&whole).await;
        let object = bytes(&whole, path).await;
        if place + 1 < log.len() {
            store.delete(path).await.unwrap();
            is_found(&store, path, &format!("log object {place} is missing")).await;
        }
        for kept in [1, object.len() / 2, object.len().saturating_sub(1)] {
            if (1..object.len()).contains(&kept) {
                put(&store, path, object.slice(..kept)).await;
                is_found(&store, path, &format!("log object {place} cut to {kept}")).await;
            }
        }
    }
    // Whole, every commit counts.
    assert_eq!(finish(&whole, 12).await.from_format, 8);
}

#[tokio::test]
async fn a_manifest_that_is_cut_or_gone_is_found() {
    let whole = seeded(Seed::small(8)).await;
    let newest = names(&whole, "manifest")
        .await
        .into_iter()
        .rfind(|path| path.as_ref().ends_with(".manifest"))
        .unwrap();
    let object = bytes(&whole, &newest).await;
    for kept in [0, 1, 2, 3, 10, object.len() / 4, object.len() / 2] {
        let store = copied(&whole).await;
        put(&store, &newest, object.slice(..kept)).await;
        is_found(&store, &newest, &format!("manifest cut to {kept} of {}", object.len())).await;
    }
    let store = copied(&whole).await;
    for path in names(&store, "manifest").await {
        store.delete(&path).await.unwrap();
    }
    let folder = Path::from(PATH).join("manifest");
    is_found(&store, &folder, "no manifest").await;
    // Nor is a new catalog made over what is left of the old one.
    let opened = Catalog::open(&at(&store), &environment(), &budget()).await;
    assert_eq!(super::support::kind(&opened), ErrorKind::Corruption);
}

#[tokio::test]
async fn a_list_of_compactions_that_is_empty_or_cut_is_found() {
    let whole = seeded(Seed::small(8)).await;
    let newest = names(&whole, "compactions").await.pop().expect("a writer leaves one");
    let object = bytes(&whole, &newest).await;
    for kept in [0, 1, 2, 5, object.len() / 2] {
        let store = copied(&whole).await;
        put(&store, &newest, object.slice(..kept)).await;
        is_found(&store, &newest, &format!("compactions cut to {kept} of {}", object.len())).await;
    }
}
