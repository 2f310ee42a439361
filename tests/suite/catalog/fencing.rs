//! Two at once: the epoch decides, and the loser says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metashift::ErrorKind;
use metashift::catalog::commit::Change;
use metashift::catalog::driver::{Request, run};
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::inspect::inspect;
use metashift::catalog::key::{Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::seed::Seed;
use metashift::catalog::store::TagExtractor;
use metashift::catalog::units::Registry;
use metashift::catalog::value::{Format, frame};
use metashift::crash::{Hook, with_hook};
use tokio::sync::{Notify, Semaphore};

use super::support::{
    Mortal, PATH, at, budget, copied, dump, environment, finish, is_lost_race, kind, migrate, records,
    seeded, tamper,
};

fn seed() -> Seed {
    Seed { tombstones: 1_000, ..Seed::small(8) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_migrators_at_once_one_finishes_and_the_other_ends_fenced() {
    let store = seeded(seed()).await;
    let other = copied(&store).await;
    finish(&other, 12).await;
    for round in 0..5 {
        let shared = copied(&store).await;
        let runs = [0, 1].map(|_| {
            let location = at(&shared);
            tokio::spawn(async move { migrate(&location, &Request::to(12), budget()).await })
        });
        let (mut done, mut closed) = (0, 0);
        for result in futures::future::join_all(runs).await {
            match result.unwrap() {
                Ok(report) => done += u32::from(report.done),
                Err(error) => {
                    assert!(is_lost_race(&error), "round {round}: {error}");
                    closed += u32::from(error.kind() == ErrorKind::Unavailable);
                }
            }
        }
        // Both may be done only if the second came after the first had finished, which is a run with nothing to do.
        assert!(done + closed >= 1, "round {round}");
        finish(&shared, 12).await;
        assert!(
            dump(&shared).await == dump(&other).await,
            "round {round}: the work was not done exactly once"
        );
    }
}

/// Freezes the task at the n-th time that it reaches a point.
struct Freezer {
    point: &'static str,
    left: std::sync::atomic::AtomicU64,
    frozen: Semaphore,
    thaw: Notify,
    thawed: AtomicBool,
}

impl Freezer {
    fn new(point: &'static str, times: u64) -> Arc<Self> {
        Arc::new(Self {
            point,
            left: times.into(),
            frozen: Semaphore::new(0),
            thaw: Notify::new(),
            thawed: AtomicBool::new(false),
        })
    }

    fn hook(self: &Arc<Self>) -> Hook {
        let freezer = Arc::clone(self);
        Arc::new(move |reached| {
            let freezer = Arc::clone(&freezer);
            Box::pin(async move {
                if reached == freezer.point && freezer.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    freezer.frozen.add_permits(1);
                    while !freezer.thawed.load(Ordering::SeqCst) {
                        freezer.thaw.notified().await;
                    }
                }
            })
        })
    }

    async fn is_frozen(&self) {
        self.frozen.acquire().await.unwrap().forget();
    }

    fn thaw(&self) {
        self.thawed.store(true, Ordering::SeqCst);
        self.thaw.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migrator_frozen_inside_its_work_and_thawed_after_the_winner_has_finished_ends_fenced_and_harms_nothing()
 {
    let store = seeded(Seed { format: 7, ..seed() }).await;
    for (point, times) in [
        ("catalog-stamped", 1),
        ("catalog-started", 1),
        ("catalog-stepped", 1),
        ("catalog-stepped", 3),
        ("catalog-flushed", 1),
        ("catalog-finished", 1),
        ("catalog-started", 3),
        ("catalog-finished", 2),
    ] {
        let shared = copied(&store).await;
        let freezer = Freezer::new(point, times);
        let (location, hook) = (at(&shared), freezer.hook());
        let loser =
            tokio::spawn(
                async move { with_hook(hook, migrate(&location, &Request::to(12), budget())).await },
            );
        freezer.is_frozen().await;
        let winner = finish(&shared, 12).await;
        assert!(winner.resumed, "{point} {times}");
        let after = dump(&shared).await;
        freezer.thaw();
        assert_eq!(kind(&loser.await.unwrap()), ErrorKind::Fenced, "{point} {times}");
        assert!(dump(&shared).await == after, "{point} {times}: the thawed loser changed the store");
    }
}

#[tokio::test]
async fn a_running_catalog_is_fenced_by_a_migrator_and_its_next_commit_writes_nothing() {
    let store = seeded(Seed::small(11)).await;
    let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    catalog.commit(&[Change::CreateSchema { name: "before".into() }]).await.unwrap();
    finish(&store, 12).await;
    let after = dump(&store).await;
    let late = catalog.commit(&[Change::CreateSchema { name: "late".into() }]).await;
    assert_eq!(kind(&late), ErrorKind::Fenced);
    assert_eq!(dump(&store).await, after);
}

#[tokio::test]
async fn a_future_format_is_refused_everywhere_without_a_write_and_without_fencing_the_live_writer() {
    let store = seeded(Seed::small(12)).await;
    let future = Format { format_version: 13, writer_version: "later".into(), ..Format::default() };
    tamper(&store, &[(Key::System(System::Format).encode(), frame(&future).to_vec())], &[]).await;
    let live = slatedb::Db::builder(PATH, Arc::clone(&store))
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await
        .unwrap();

    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let request = Request::to(12);
    let registry = Registry::shipped();
    let refused = run(&location, &registry, &request, &environment(), budget(), &|_| {}).await;
    assert_eq!(kind(&refused), ErrorKind::Migration);
    assert!(refused.unwrap_err().message().contains("format 13"));
    let opened = Catalog::open(&location, &environment(), &budget()).await;
    assert_eq!(kind(&opened), ErrorKind::Migration);
    let poll = std::time::Duration::from_secs(10);
    assert_eq!(kind(&CatalogReader::open(&location, poll, &budget()).await), ErrorKind::Migration);
    let looked = inspect(&location, &registry, 12, true, &environment(), &budget()).await;
    assert_eq!(kind(&looked), ErrorKind::Migration);
    assert_eq!(mortal.writes(), 0);

    live.put(b"\x07live", b"still").await.unwrap();
    live.flush().await.unwrap();
    live.close().await.unwrap();
    assert_eq!(records(&dump(&store).await).format.unwrap(), future);
}

#[tokio::test]
async fn a_format_below_the_floor_is_refused_to_ordinary_use_without_a_write() {
    let store = seeded(Seed::small(8)).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let refused = Catalog::open(&location, &environment(), &budget()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Migration);
    assert_eq!(refused.next_step(), Some("metashift catalog run"));
    assert_eq!(mortal.writes(), 0);
}

#[tokio::test]
async fn a_database_with_another_extractor_is_refused_before_any_write() {
    #[derive(Debug)]
    struct Other;
    impl slatedb::PrefixExtractor for Other {
        fn name(&self) -> &'static str {
            "other"
        }
        fn prefix_len(&self, target: &slatedb::PrefixTarget) -> Option<usize> {
            TagExtractor.prefix_len(target)
        }
    }
    for extractor in [None, Some(Arc::new(Other))] {
        let store = super::support::memory();
        let mut builder = slatedb::Db::builder(PATH, Arc::clone(&store));
        if let Some(extractor) = extractor {
            builder = builder.with_segment_extractor(extractor);
        }
        builder.build().await.unwrap().close().await.unwrap();
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let refused = migrate(&location, &Request::to(12), budget()).await;
        assert_eq!(kind(&refused), ErrorKind::InvalidInput);
        assert!(refused.unwrap_err().message().contains("moraine-tag-v1"));
        assert_eq!(kind(&Catalog::open(&location, &environment(), &budget()).await), ErrorKind::InvalidInput);
        assert_eq!(mortal.writes(), 0);
    }
}
