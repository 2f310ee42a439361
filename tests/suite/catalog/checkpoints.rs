//! Checkpoints before and after, found by their names.

use std::sync::Arc;
use std::time::Duration;

use metashift::ErrorKind;
use metashift::catalog::checkpoints::{self, Listed};
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::Request;
use metashift::catalog::key::{Current, Entity, Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::read::StoreReader;
use metashift::catalog::read::message;
use metashift::catalog::seed::{self, Seed};
use metashift::catalog::store::look;
use metashift::catalog::value::Format;
use object_store::ObjectStore;
use slatedb::admin::{AdminBuilder, CloneSourceSpec};

use super::support::{
    Ended, Mortal, PATH, at, budget, dump, dying_at, environment, finish, kind, migrate, seeded, tamper,
};

async fn names(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    let listed = checkpoints::list(&at(store), &environment(), &Deadline::of(&budget())).await.unwrap();
    let mut names: Vec<_> = listed.into_iter().filter_map(|Listed { name, .. }| name).collect();
    names.sort();
    names
}

/// The format that a read-only scope on a checkpoint sees; it writes nothing.
async fn format_in(store: &Arc<dyn ObjectStore>, name: &str) -> u64 {
    let mortal = Mortal::new(Arc::clone(store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let deadline = Deadline::of(&budget());
    let reader = checkpoints::open(&location, name, &environment(), &deadline).await.unwrap().unwrap();
    let state = StoreReader::following(Arc::clone(&reader), deadline);
    let format: Format = message(&state, &Key::System(System::Format).encode()).await.unwrap().unwrap();
    assert_eq!(mortal.writes(), 0);
    format.format_version
}

fn with_checkpoint(to_format: u64) -> Request {
    Request { checkpoint: true, ..Request::to(to_format) }
}

#[tokio::test]
async fn the_checkpoint_before_survives_invocations_is_named_in_the_report_and_released_at_the_end() {
    let store = seeded(Seed { tombstones: 600, ..Seed::small(5) }).await;
    let mut invocations = 0;
    loop {
        let one = budget().with_pages(Some(1));
        let report = migrate(&at(&store), &with_checkpoint(12), one).await.unwrap();
        assert_eq!(report.from_format, 5);
        if report.done {
            assert_eq!(report.final_checkpoint.as_deref(), Some("metashift-final-12"));
            assert_eq!(report.pre_checkpoint.as_deref(), Some("metashift-pre-5"));
            break;
        }
        invocations += 1;
        assert_eq!(names(&store).await, ["metashift-pre-5"], "after invocation {invocations}");
        assert_eq!(format_in(&store, "metashift-pre-5").await, 5);
    }
    assert!(invocations >= 3, "{invocations}");
    assert_eq!(names(&store).await, ["metashift-final-12"]);
}

#[tokio::test]
async fn a_read_only_scope_on_the_final_checkpoint_sees_the_migrated_format_without_a_writer() {
    let store = seeded(Seed::small(8)).await;
    finish(&store, 11).await;
    let epoch = look(&at(&store), &Deadline::of(&budget())).await.unwrap().epoch;
    assert_eq!(format_in(&store, "metashift-final-11").await, 11);
    assert_eq!(look(&at(&store), &Deadline::of(&budget())).await.unwrap().epoch, epoch);
}

#[tokio::test]
async fn the_checkpoint_before_is_kept_when_the_migration_fails() {
    let store = seeded(Seed::small(8)).await;
    let table = Key::Current(Current::Entity(Entity::Table { table_id: 1_000_000 })).encode();
    tamper(&store, &[(table, b"no table".to_vec())], &[]).await;
    let failed = migrate(&at(&store), &with_checkpoint(12), budget()).await;
    assert_eq!(kind(&failed), ErrorKind::Corruption);
    assert_eq!(names(&store).await, ["metashift-pre-8"]);
    assert_eq!(format_in(&store, "metashift-pre-8").await, 8);
}

#[tokio::test]
async fn a_run_with_nothing_to_do_publishes_what_a_crash_left_out_and_releases_what_it_left_behind() {
    let store = seeded(Seed::small(8)).await;
    let ended = dying_at(&store, &with_checkpoint(9), budget(), "catalog-finished", 1).await;
    assert!(matches!(ended, Ended::Died));
    assert_eq!(names(&store).await, ["metashift-pre-8"]);
    let report = finish(&store, 9).await;
    assert_eq!((report.records_moved, report.from_format), (0, 9));
    assert_eq!(report.pre_checkpoint.as_deref(), Some("metashift-pre-8"));
    assert_eq!(names(&store).await, ["metashift-final-9"]);
    assert_eq!(format_in(&store, "metashift-final-9").await, 9);
}

#[tokio::test]
async fn a_run_with_nothing_to_do_does_not_fence_the_live_writer_and_publishes_once() {
    let store = seeded(Seed::small(12)).await;
    let epoch = || async { look(&at(&store), &Deadline::of(&budget())).await.unwrap().epoch };
    let before = epoch().await;
    for _ in 0..2 {
        finish(&store, 12).await;
        assert_eq!(names(&store).await, ["metashift-final-12"]);
    }
    assert_eq!(epoch().await, before);
}

#[tokio::test]
async fn an_expired_final_checkpoint_is_published_again() {
    let store = seeded(Seed::small(11)).await;
    let short = Request { final_lifetime: Duration::from_millis(1), ..Request::to(12) };
    migrate(&at(&store), &short, budget()).await.unwrap();
    let listed = || async {
        checkpoints::list(&at(&store), &environment(), &Deadline::of(&budget())).await.unwrap().remove(0)
    };
    let expired = listed().await;
    while !listed().await.expired {
        tokio::task::yield_now().await;
    }
    finish(&store, 12).await;
    let fresh = listed().await;
    assert!(!fresh.expired);
    assert_ne!(fresh.id, expired.id);
    assert_eq!(names(&store).await, ["metashift-final-12"]);
}

#[tokio::test]
async fn a_checkpoint_from_a_run_that_was_abandoned_is_replaced_by_one_of_the_present_state() {
    let store = seeded(Seed { schemas: 300, ..Seed::small(9) }).await;
    let one = budget().with_pages(Some(1));
    migrate(&at(&store), &with_checkpoint(11), one).await.unwrap();
    let registry = metashift::catalog::units::Registry::shipped();
    metashift::catalog::abandon::abandon(&at(&store), &registry, &environment(), budget()).await.unwrap();
    let listed = || async {
        let deadline = Deadline::of(&budget());
        checkpoints::list(&at(&store), &environment(), &deadline).await.unwrap()
    };
    // The store is what it was, so the checkpoint is not left behind.
    assert_eq!(listed().await.len(), 0);
    // One that a crash left behind is replaced.
    dying_at(&store, &with_checkpoint(11), budget(), "catalog-checkpointed", 1).await;
    let old = listed().await;
    let one = budget().with_pages(Some(1));
    migrate(&at(&store), &with_checkpoint(11), one).await.unwrap();
    let new = listed().await;
    assert_eq!((old.len(), new.len()), (1, 1));
    assert_eq!(new[0].name.as_deref(), Some("metashift-pre-9"));
    assert_ne!(new[0].id, old[0].id);
}

#[tokio::test]
async fn an_abandon_keeps_the_checkpoint_from_before_what_it_cannot_take_back_and_says_who_releases_it() {
    let store = seeded(Seed { schemas: 300, tombstones: 10, ..Seed::small(8) }).await;
    migrate(&at(&store), &with_checkpoint(12), budget().with_pages(Some(2))).await.unwrap();
    let registry = metashift::catalog::units::Registry::shipped();
    let done =
        metashift::catalog::abandon::abandon(&at(&store), &registry, &environment(), budget()).await.unwrap();
    assert_eq!((done.format, done.kept_checkpoint.as_deref()), (9, Some("metashift-pre-8")));
    assert_eq!(names(&store).await, ["metashift-pre-8"]);
    finish(&store, 9).await;
    assert_eq!(names(&store).await, ["metashift-final-9"]);
}

#[tokio::test]
async fn a_run_with_nothing_to_do_leaves_the_checkpoint_of_a_run_that_has_only_begun() {
    for format in [9, 11] {
        let store = seeded(Seed::small(format)).await;
        dying_at(&store, &with_checkpoint(12), budget(), "catalog-checkpointed", 1).await;
        let kept = format!("metashift-pre-{format}");
        assert_eq!(names(&store).await, [kept.as_str()]);
        let report = finish(&store, format).await;
        assert_eq!((report.batches, report.pre_checkpoint), (0, None));
        let result = format!("metashift-final-{format}");
        assert_eq!(names(&store).await, [result.as_str(), kept.as_str()]);
        assert_eq!(format_in(&store, &kept).await, format);
        // The run that took it goes on, and releases it when it is done.
        let report = migrate(&at(&store), &with_checkpoint(12), budget()).await.unwrap();
        assert_eq!(report.pre_checkpoint.as_deref(), Some(kept.as_str()));
        assert!(!names(&store).await.contains(&kept));
    }
}

#[tokio::test]
async fn a_lifetime_that_the_store_cannot_hold_is_refused_before_anything_else() {
    let day = Duration::from_secs(24 * 3600);
    for (lifetime, taken) in [
        (Duration::ZERO, false),
        (Duration::from_secs(1), true),
        (day * 10_000, true),
        (day * 10_000 + Duration::from_secs(1), false),
        (day * 30_000, false),
        (day * u32::MAX, false),
    ] {
        let store = seeded(Seed::small(8)).await;
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let request = Request { final_lifetime: lifetime, ..Request::to(12) };
        let ran = migrate(&location, &request, budget()).await;
        if taken {
            assert!(ran.unwrap().done);
            let deadline = Deadline::of(&budget());
            let kept = checkpoints::list(&at(&store), &environment(), &deadline).await.unwrap().remove(0);
            assert!(!kept.expired || lifetime < day, "{lifetime:?}: {kept:?}");
            let expires: jiff::Timestamp = kept.expires.unwrap().parse().unwrap();
            let stays = metashift::environment::elapsed(environment().now(), expires);
            assert!(
                stays <= lifetime && stays + Duration::from_secs(120) > lifetime,
                "{lifetime:?}: {stays:?}"
            );
        } else {
            assert_eq!(kind(&ran), ErrorKind::InvalidInput, "{lifetime:?}");
            assert_eq!(mortal.writes(), 0);
        }
    }
}

#[tokio::test]
async fn a_run_that_was_to_go_further_is_over_when_its_present_format_is_asked_for() {
    let store = seeded(Seed::small(8)).await;
    dying_at(&store, &with_checkpoint(12), budget(), "catalog-finished", 1).await;
    let report = finish(&store, 9).await;
    assert_eq!((report.from_format, report.format, report.records_moved), (8, 9, 0));
    assert!(report.resumed);
    assert_eq!(report.pre_checkpoint.as_deref(), Some("metashift-pre-8"));
    assert_eq!(names(&store).await, ["metashift-final-9"]);
    // What begins now begins at 9.
    assert_eq!(finish(&store, 12).await.from_format, 9);
}

#[tokio::test]
async fn the_way_back_is_a_clone_of_the_checkpoint_at_another_place() {
    let store = seeded(Seed::small(8)).await;
    let before = dump(&store).await;
    let ended = dying_at(&store, &with_checkpoint(12), budget(), "catalog-finished", 2).await;
    assert!(matches!(ended, Ended::Died));
    assert!(dump(&store).await != before);
    let deadline = Deadline::of(&budget());
    let kept = checkpoints::list(&at(&store), &environment(), &deadline).await.unwrap().remove(0);
    let source = CloneSourceSpec::with_checkpoint(PATH, kept.id.parse().unwrap());
    let admin = AdminBuilder::new("lake/again", Arc::clone(&store)).build();
    admin.create_clone_builder_from_source(source).build().await.unwrap();

    let again = Location::new(Arc::clone(&store), "lake/again");
    assert!(seed::dump(&again, &budget()).await.unwrap() == before);
    migrate(&again, &Request::to(12), budget()).await.unwrap();
    finish(&store, 12).await;
    assert!(seed::dump(&again, &budget()).await.unwrap() == dump(&store).await);
}
