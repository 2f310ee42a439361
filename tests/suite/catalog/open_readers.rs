//! Readers that have a store open before the unit to format 9.

use std::sync::Arc;
use std::time::Duration;

use metashift::catalog::authority::{CommitAuthority, Native};
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{self, Request, run};
use metashift::catalog::inspect::{dry_run, inspect};
use metashift::catalog::location::Location;
use metashift::catalog::seed::Seed;
use metashift::catalog::store::{Ending, TagExtractor};
use metashift::catalog::units::Registry;
use metashift::environment::{Clock, Environment, SystemEntropy};
use metashift::{ErrorKind, Result};
use object_store::ObjectStore;
use slatedb::DbReader;
use slatedb::admin::AdminBuilder;
use slatedb::config::CheckpointOptions;

use super::support::{
    Mortal, PATH, at, budget, copied, dump, dying_at, environment, epoch, finish, migrate, records, seeded,
};

fn refused<T>(answer: Result<T>, named: &str, what: &str) {
    let Err(error) = answer else { panic!("{what}: it went on") };
    assert_eq!(error.kind(), ErrorKind::Migration, "{what}: {error}");
    assert!(error.message().contains(named), "{what}: {error}");
    assert!(error.next_step().is_some_and(|next| next.contains("--accept-open-readers")), "{what}: {error}");
}

async fn open(store: &Arc<dyn ObjectStore>) -> DbReader {
    // The default mode, as released readers use it: a checkpoint of its own, refreshed while it is open.
    DbReader::builder(PATH, Arc::clone(store))
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await
        .unwrap()
}

async fn checkpoint(store: &Arc<dyn ObjectStore>, lifetime: Option<Duration>, name: Option<&str>) -> String {
    let admin = AdminBuilder::new(PATH, Arc::clone(store)).build();
    let options =
        CheckpointOptions { lifetime, name: name.map(str::to_owned), ..CheckpointOptions::default() };
    admin.create_detached_checkpoint(&options).await.unwrap().id.to_string()
}

#[tokio::test]
async fn while_one_is_open_the_unit_to_format_9_does_not_begin_and_nobody_is_fenced() {
    for format in [3, 8] {
        let store = seeded(Seed::small(format)).await;
        let reader = open(&store).await;
        let registry = Registry::shipped();
        let found = inspect(&at(&store), &registry, 12, false, &environment(), &budget()).await.unwrap();
        let [held] = &found.checkpoints[..] else { panic!("{:?}", found.checkpoints) };
        assert_eq!(held.name, None);
        let (before, taken) = (dump(&store).await, epoch(&store).await);
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        for to_format in [9, 11, 12] {
            let dry = dry_run(&location, &registry, to_format, false, &environment(), &budget()).await;
            refused(dry, &held.id, "dry run");
            refused(migrate(&location, &Request::to(to_format), budget()).await, &held.id, "run");
        }
        assert_eq!((mortal.writes(), epoch(&store).await), (0, taken));
        // Under the writer it is looked up again: a reader may have come since.
        let native = Native::open(&at(&store), taken, Deadline::of(&budget())).await.unwrap();
        let ran =
            driver::migrate(&native, &registry, &Request::to(12), &environment(), budget(), &|_| {}).await;
        native.close(Ending::Abandoned).await.unwrap();
        refused(ran, &held.id, "under the writer");
        assert!(dump(&store).await == before);
        // Accepted, it goes on; and so it does once the reader is closed.
        let other = copied(&store).await;
        dry_run(&at(&other), &registry, 12, true, &environment(), &budget()).await.unwrap();
        let accepted = Request { accept_open_readers: true, ..Request::to(12) };
        assert!(migrate(&at(&other), &accepted, budget()).await.unwrap().done);
        reader.close().await.unwrap();
        dry_run(&at(&store), &registry, 12, false, &environment(), &budget()).await.unwrap();
        finish(&store, 12).await;
    }
}

#[tokio::test]
async fn a_named_checkpoint_an_ended_one_and_a_unit_that_moves_no_keys_stop_nothing() {
    let store = seeded(Seed::small(8)).await;
    checkpoint(&store, None, Some("somebody's")).await;
    checkpoint(&store, Some(Duration::from_secs(600)), Some("metashift-pre-8")).await;
    finish(&store, 9).await;
    // From 9 on no unit hides a row.
    let reader = open(&store).await;
    finish(&store, 12).await;
    reader.close().await.unwrap();
}

#[derive(Debug)]
struct Later(jiff::Timestamp);

impl Clock for Later {
    fn now(&self) -> jiff::Timestamp {
        self.0
    }
}

#[tokio::test]
async fn the_checkpoint_of_a_killed_reader_counts_until_it_ends_and_one_without_an_end_counts_for_ever() {
    let later = environment().now() + Duration::from_secs(601);
    let later = Environment { clock: Arc::new(Later(later)), entropy: Arc::new(SystemEntropy) };
    let (registry, request) = (Registry::shipped(), Request::to(9));
    let store = seeded(Seed::small(8)).await;
    let held = checkpoint(&store, Some(Duration::from_secs(600)), None).await;
    refused(migrate(&at(&store), &request, budget()).await, &held, "before it ends");
    Box::pin(run(&at(&store), &registry, &request, &later, budget(), &|_| {})).await.unwrap();
    let store = seeded(Seed::small(8)).await;
    let held = checkpoint(&store, None, None).await;
    let ran = Box::pin(run(&at(&store), &registry, &request, &later, budget(), &|_| {})).await;
    refused(ran, &held, "without an end");
}

#[tokio::test]
async fn a_unit_that_has_begun_is_finished_whoever_has_the_store_open() {
    let store = seeded(Seed { tombstones: 600, ..Seed::small(8) }).await;
    dying_at(&store, &Request::to(9), budget(), "catalog-started", 1).await;
    assert!(records(&dump(&store).await).marker.is_some());
    let held = checkpoint(&store, None, None).await;
    dry_run(&at(&store), &Registry::shipped(), 12, false, &environment(), &budget()).await.unwrap();
    finish(&store, 9).await;
    assert!(!held.is_empty());
}
