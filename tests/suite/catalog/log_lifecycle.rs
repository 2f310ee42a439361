//! Commit logs are born, adopted, truncated, rebuilt from and demoted.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use metashift::ErrorKind;
use metashift::catalog::abandon::abandon;
use metashift::catalog::checkpoints::{self, LOG_BASE};
use metashift::catalog::commit::Change;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::location::Location;
use metashift::catalog::log::Log;
use metashift::catalog::log::floor::Floor;
use metashift::catalog::log::lifecycle::{adopt, create, demote, truncate};
use metashift::catalog::log::tail::Tail;
use metashift::catalog::read::{Fetch, Range, Read, StoreReader};
use metashift::catalog::seed::Seed;
use metashift::catalog::store::system_records;
use metashift::catalog::units::Registry;
use metashift::crash::with_hook;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::support::{
    Meddle, Mortal, PATH, at, budget, commit_log, content, copied, create_schema, dump, environment, finish,
    history, killing, kind, logged, memory, migrate, records, seeded, slots, stamp,
};

const POLL: Duration = Duration::from_secs(3600);

fn schema(name: &str) -> [Change; 1] {
    [Change::CreateSchema { name: name.to_owned() }]
}

async fn has_base(store: &Arc<dyn ObjectStore>) -> bool {
    let listed = checkpoints::list(&at(store), &environment(), &Deadline::of(&budget())).await.unwrap();
    listed.iter().filter(|found| found.name.as_deref() == Some(LOG_BASE)).count() == 1
}

#[tokio::test]
async fn a_catalog_born_in_a_log_is_rebuilt_from_its_slots_alone() {
    let store = memory();
    let made = create(&at(&store), &environment(), &budget()).await.unwrap();
    assert_eq!((made.changed, made.format, made.origin, made.last_slot), (true, 11, Some(0), 1));
    for name in ["one", "two", "three"] {
        create_schema(&store, name).await.unwrap();
    }
    finish(&store, 12).await;
    create_schema(&store, "four").await.unwrap();
    let whole = dump(&store).await;
    lose_index(&store).await;
    let read = CatalogReader::open(&at(&store), POLL, &budget()).await;
    assert_eq!(kind(&read), ErrorKind::Unavailable);
    let again = create(&at(&store), &environment(), &budget()).await.unwrap();
    assert_eq!((again.changed, again.format), (false, 12));
    assert!(dump(&store).await == whole);
    assert_eq!(commit_log(&store).await.unwrap().unfolded, 0);
}

#[tokio::test]
async fn a_creation_that_dies_at_any_write_is_completed_by_the_next() {
    for writes in 0.. {
        let store = memory();
        let mortal = Mortal::with_writes(Arc::clone(&store), writes);
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let first = super::support::outlived(&mortal, create(&location, &environment(), &budget())).await;
        mortal.kill();
        // A commit opens what is there of it, and builds the index if need be; without a slot there is nothing yet.
        if slots(&store).await.is_empty() {
            let made = create(&at(&store), &environment(), &budget()).await.unwrap();
            assert_eq!((made.format, made.origin, made.last_slot), (11, Some(0), 1), "{writes}");
        }
        create_schema(&store, "first").await.unwrap();
        assert_eq!(slots(&store).await, [1, 2]);
        if let Some(first) = first {
            assert!(first.unwrap().changed);
            assert!(writes > 2);
            return;
        }
    }
}

async fn lose_index(store: &Arc<dyn ObjectStore>) {
    let objects: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
    for object in objects.iter().filter(|object| !object.location.as_ref().contains("commits/")) {
        store.delete(&object.location).await.unwrap();
    }
}

#[tokio::test]
async fn a_rebuild_that_dies_at_any_write_is_completed_by_whoever_opens_the_catalog() {
    let store = memory();
    create(&at(&store), &environment(), &budget()).await.unwrap();
    create_schema(&store, "one").await.unwrap();
    finish(&store, 12).await;
    create_schema(&store, "two").await.unwrap();
    let whole = dump(&store).await;
    lose_index(&store).await;
    for writes in 0.. {
        let shared = copied(&store).await;
        let mortal = Mortal::with_writes(Arc::clone(&shared), writes);
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let ended = super::support::outlived(&mortal, create(&location, &environment(), &budget())).await;
        mortal.kill();
        let catalog = Catalog::open(&at(&shared), &environment(), &budget()).await.unwrap();
        catalog.close().await.unwrap();
        assert!(dump(&shared).await == whole, "{writes}");
        if ended.is_some() {
            break;
        }
    }
    // A log that has ended does not hold what came after it.
    create(&at(&store), &environment(), &budget()).await.unwrap();
    demote(&at(&store), false, &environment(), &budget()).await.unwrap();
    lose_index(&store).await;
    assert_eq!(kind(&Catalog::open(&at(&store), &environment(), &budget()).await), ErrorKind::Corruption);
    assert_eq!(kind(&create(&at(&store), &environment(), &budget()).await), ErrorKind::Corruption);
}

#[tokio::test]
async fn the_checkpoint_of_the_adoption_and_the_log_give_every_record_again() {
    let store = logged(Seed::small(11)).await;
    assert!(has_base(&store).await);
    create_schema(&store, "one").await.unwrap();
    finish(&store, 12).await;
    create_schema(&store, "two").await.unwrap();
    for truncated in [false, true] {
        if truncated {
            truncate(&at(&store), 1, false, &environment(), &budget()).await.unwrap();
            create_schema(&store, "three").await.unwrap();
            assert!(has_base(&store).await);
        }
        let deadline = Deadline::of(&budget());
        let base =
            checkpoints::open(&at(&store), LOG_BASE, &environment(), &deadline).await.unwrap().unwrap();
        let index: Arc<dyn Read> = Arc::new(StoreReader::following(Arc::clone(&base), deadline.clone()));
        let before = system_records(index.as_ref()).await.unwrap();
        let origin = before.format.as_ref().unwrap().commit_log_batch_origin.unwrap();
        let mut tail = Tail::new(before, origin).unwrap();
        assert!(tail.advance(&Log::of(&at(&store), &deadline)).await.unwrap());
        let state = tail.over(index);
        let mut rows = state.scan(Range::prefix(&[]), Fetch::Ahead).await.unwrap();
        let mut rebuilt = Vec::new();
        while let Some(row) = rows.next().await.unwrap() {
            rebuilt.push(row);
        }
        assert!(rebuilt == dump(&store).await, "truncated: {truncated}");
        drop(rows);
        base.close().await.unwrap();
    }
}

#[tokio::test]
async fn adoption_stamps_the_origin_and_fences_the_native_writer_and_a_dry_run_writes_nothing() {
    let store = seeded(Seed::small(12)).await;
    let before = dump(&store).await;
    let native = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let mortal = Mortal::new(Arc::clone(&store));
    let watched = Location::new(Arc::clone(&mortal) as _, PATH);
    let planned = adopt(&watched, true, &environment(), &budget()).await.unwrap();
    assert_eq!(mortal.writes(), 0);
    let adopted = adopt(&at(&store), false, &environment(), &budget()).await.unwrap();
    assert_eq!(planned, adopted);
    let after = records(&dump(&store).await);
    assert_eq!(adopted.origin, Some(after.head.unwrap().batch_seq));
    assert_eq!(after.format.unwrap().commit_log_batch_origin, adopted.origin);
    assert_eq!(content(&dump(&store).await), content(&before));
    assert_eq!(kind(&native.commit(&schema("late")).await), ErrorKind::Fenced);
    create_schema(&store, "first").await.unwrap();
    assert_eq!(slots(&store).await, [1]);
    let again = adopt(&at(&store), false, &environment(), &budget()).await.unwrap();
    assert!(!again.changed);
    let old = seeded(Seed::small(9)).await;
    let refused = adopt(&at(&old), false, &environment(), &budget()).await;
    assert_eq!(kind(&refused), ErrorKind::Migration);
}

#[tokio::test]
async fn adoption_and_demotion_that_die_at_any_write_are_completed_by_the_next() {
    let store = seeded(Seed::small(11)).await;
    let shown = history(&store).await;
    for demoting in [false, true] {
        for writes in 0.. {
            let shared = copied(&store).await;
            if demoting {
                adopt(&at(&shared), false, &environment(), &budget()).await.unwrap();
                create_schema(&shared, "tail").await.unwrap();
            }
            let mortal = Mortal::with_writes(Arc::clone(&shared), writes);
            let location = Location::new(Arc::clone(&mortal) as _, PATH);
            let environment = environment();
            let ended = if demoting {
                super::support::outlived(&mortal, demote(&location, false, &environment, &budget())).await
            } else {
                super::support::outlived(&mortal, adopt(&location, false, &environment, &budget())).await
            };
            mortal.kill();
            // Whatever stands, the catalog opens and takes a commit.
            create_schema(&shared, "between").await.unwrap();
            if demoting {
                demote(&at(&shared), false, &environment, &budget()).await.unwrap();
                assert_eq!(commit_log(&shared).await, None, "{writes}");
                assert!(!has_base(&shared).await);
            } else {
                adopt(&at(&shared), false, &environment, &budget()).await.unwrap();
                assert!(commit_log(&shared).await.is_some(), "{writes}");
                assert!(has_base(&shared).await, "{writes}");
            }
            create_schema(&shared, "after").await.unwrap();
            assert_eq!(
                kind(&create_schema(&shared, "between").await),
                ErrorKind::InvalidInput,
                "it is there"
            );
            assert_eq!(history(&shared).await, shown);
            if let Some(ended) = ended {
                ended.unwrap();
                assert!(writes > 2);
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_demoted_catalog_is_native_and_whoever_still_commits_to_its_log_finds_out() {
    let store = logged(Seed::small(11)).await;
    let session = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    session.commit(&schema("one")).await.unwrap();
    let reader = CatalogReader::open(&at(&store), Duration::from_millis(10), &budget()).await.unwrap();
    let mortal = Mortal::new(Arc::clone(&store));
    let watched = Location::new(Arc::clone(&mortal) as _, PATH);
    let planned = demote(&watched, true, &environment(), &budget()).await.unwrap();
    assert_eq!((planned.changed, planned.origin, mortal.writes()), (true, None, 0));
    demote(&at(&store), false, &environment(), &budget()).await.unwrap();
    assert!(!has_base(&store).await);
    assert_eq!(kind(&session.commit(&schema("late")).await), ErrorKind::AuthorityChanged);
    create_schema(&store, "native").await.unwrap();
    assert_eq!(slots(&store).await, [1, 2], "the commit, and the end of the log");
    finish(&store, 12).await;
    // The reader polls: on its way it may meet the migration.
    loop {
        match reader.read(|view| async move { view.schema_named("native").await }).await {
            Ok(Some(_)) => break,
            Ok(None) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Migration),
        }
        tokio::task::yield_now().await;
    }
    let again = demote(&at(&store), false, &environment(), &budget()).await.unwrap();
    assert!(!again.changed);
    let legacy = logged(Seed::small(10)).await;
    assert_eq!(kind(&demote(&at(&legacy), false, &environment(), &budget()).await), ErrorKind::Migration);
}

#[tokio::test]
async fn a_committer_of_an_earlier_log_that_thaws_under_a_later_one_has_lost() {
    let store = logged(Seed::small(11)).await;
    create_schema(&store, "one").await.unwrap();
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let frozen = Catalog::open(&location, &environment(), &budget()).await.unwrap();
    mortal.meddle(1, Meddle::HoldRequest);
    let late = tokio::spawn(async move { frozen.commit(&schema("late")).await });
    mortal.held.acquire().await.unwrap().forget();
    demote(&at(&store), false, &environment(), &budget()).await.unwrap();
    create_schema(&store, "native").await.unwrap();
    let adopted = adopt(&at(&store), false, &environment(), &budget()).await.unwrap();
    assert_eq!((adopted.last_slot, adopted.floor), (2, 0), "the numbers go on");
    truncate(&at(&store), 0, false, &environment(), &budget()).await.unwrap();
    create_schema(&store, "two").await.unwrap();
    mortal.released.add_permits(1);
    assert_eq!(kind(&late.await.unwrap()), ErrorKind::AuthorityChanged);
    assert_eq!(slots(&store).await, [2, 3], "the stray of the old log counts for nothing");
    let shown = history(&store).await;
    finish(&store, 12).await;
    assert_eq!(history(&store).await, shown);
    let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let view = catalog.read().await.unwrap();
    assert!(view.schema_named("late").await.unwrap().is_none());
    assert!(view.schema_named("two").await.unwrap().is_some());
}

#[tokio::test]
async fn a_committer_frozen_before_its_create_and_thawed_after_the_floor_has_passed_learns_that_it_lost() {
    let store = logged(Seed::small(11)).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let frozen = Catalog::open(&location, &environment(), &budget()).await.unwrap();
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    let behind = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    mortal.meddle(1, Meddle::HoldRequest);
    let late = tokio::spawn(async move { frozen.commit(&schema("late")).await });
    mortal.held.acquire().await.unwrap().forget();
    for number in 0..5 {
        create_schema(&store, &format!("passes {number}")).await.unwrap();
    }
    let planned = truncate(&at(&store), 0, true, &environment(), &budget()).await.unwrap();
    assert_eq!(slots(&store).await.len(), 5);
    let done = truncate(&at(&store), 0, false, &environment(), &budget()).await.unwrap();
    assert_eq!(planned, done);
    assert_eq!((done.floor, done.deleted), (5, 5));
    assert!(slots(&store).await.is_empty());
    // A session and a reader behind the floor go on from the index as it is now.
    behind.commit(&schema("behind")).await.unwrap();
    let all = reader.read(|view| async move { view.schemas(view.head().snapshot_id).await }).await.unwrap();
    let passed = all.iter().filter(|schema| schema.schema_name.starts_with("passes")).count();
    assert_eq!((passed, all.iter().filter(|schema| schema.schema_name == "behind").count()), (5, 1));
    // Its create succeeds, because slot 1 is gone; it has lost, and decides again on what is there now.
    mortal.released.add_permits(1);
    late.await.unwrap().unwrap();
    assert_eq!(slots(&store).await, [1, 6, 7]);
    let head = records(&dump(&store).await).head.unwrap();
    let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let all = catalog.read().await.unwrap().schemas(head.snapshot_id).await.unwrap();
    assert_eq!(all.iter().filter(|schema| schema.schema_name == "late").count(), 1);
    // The stray goes with the next truncation.
    truncate(&at(&store), 1, false, &environment(), &budget()).await.unwrap();
    assert_eq!(slots(&store).await, [7]);
}

#[tokio::test]
async fn a_committer_held_up_between_its_slot_and_its_look_at_the_floor_finds_that_it_has_won() {
    let store = logged(Seed::small(11)).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let slow = Catalog::open(&location, &environment(), &budget()).await.unwrap();
    mortal.meddle(1, Meddle::HoldAnswer);
    let won = tokio::spawn(async move { slow.commit(&schema("slow")).await });
    mortal.held.acquire().await.unwrap().forget();
    for number in 0..5 {
        create_schema(&store, &format!("passes {number}")).await.unwrap();
    }
    truncate(&at(&store), 4, false, &environment(), &budget()).await.unwrap();
    truncate(&at(&store), 0, false, &environment(), &budget()).await.unwrap();
    mortal.released.add_permits(1);
    won.await.unwrap().unwrap();
    let head = records(&dump(&store).await).head.unwrap();
    assert_eq!(commit_log(&store).await.unwrap().last_slot, 6, "it was not decided again");
    let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let all = catalog.read().await.unwrap().schemas(head.snapshot_id).await.unwrap();
    assert_eq!(all.iter().filter(|schema| schema.schema_name == "slow").count(), 1);
}

#[tokio::test]
async fn a_truncation_that_dies_anywhere_loses_nothing_that_was_acknowledged() {
    let store = logged(Seed::small(11)).await;
    for number in 0..6 {
        create_schema(&store, &format!("kept {number}")).await.unwrap();
    }
    let whole = dump(&store).await;
    for writes in 0.. {
        let shared = copied(&store).await;
        let mortal = Mortal::with_writes(Arc::clone(&shared), writes);
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let (environment, budget) = (environment(), budget());
        let work = truncate(&location, 2, false, &environment, &budget);
        let ended = super::support::outlived(&mortal, work).await;
        mortal.kill();
        assert!(dump(&shared).await == whole, "{writes}");
        truncate(&at(&shared), 2, false, &environment, &budget).await.unwrap();
        assert!(dump(&shared).await == whole, "{writes}");
        assert_eq!(slots(&shared).await, [5, 6]);
        if ended.is_some() {
            break;
        }
    }
    for point in ["catalog-log-based", "catalog-log-floored"] {
        let shared = copied(&store).await;
        let mortal = Mortal::new(Arc::clone(&shared));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let (environment, budget) = (environment(), budget());
        let work = truncate(&location, 2, false, &environment, &budget);
        let ended = super::support::outlived(&mortal, with_hook(killing(&mortal, point, 1), work)).await;
        assert!(ended.is_none(), "{point} is not reached");
        assert!(dump(&shared).await == whole, "{point}");
    }
}

#[tokio::test]
async fn format_ten_without_an_origin_takes_it_from_the_operator_or_the_first_slot() {
    let store = seeded(Seed::small(10)).await;
    let head = records(&dump(&store).await).head.unwrap();
    let mortal = Mortal::new(Arc::clone(&store));
    let watched = Location::new(Arc::clone(&mortal) as _, PATH);
    let refused = migrate(&watched, &Request::to(12), budget()).await;
    assert_eq!(kind(&refused), ErrorKind::Migration);
    assert!(refused.unwrap_err().next_step().unwrap().contains("--commit-log-origin"));
    for wrong in [0, head.batch_seq - 1, head.batch_seq + 1] {
        let asked = Request { commit_log_origin: Some(wrong), ..Request::to(12) };
        assert_eq!(kind(&migrate(&watched, &asked, budget()).await), ErrorKind::InvalidInput);
    }
    assert_eq!(mortal.writes(), 0, "refused before anybody is fenced");
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    assert_eq!(reader.read(|view| async move { Ok(view.format()) }).await.unwrap(), 10);
    assert_eq!(kind(&create_schema(&store, "no origin").await), ErrorKind::Migration);
    assert!(slots(&store).await.is_empty());
    assert_eq!(records(&dump(&store).await).format.unwrap().format_version, 10);

    for (origin, expected) in [(head.batch_seq, None), (head.batch_seq + 1, Some(ErrorKind::InvalidInput))] {
        let shared = copied(&store).await;
        let request = Request { commit_log_origin: Some(origin), ..Request::to(12) };
        let result = migrate(&at(&shared), &request, budget()).await;
        match expected {
            Some(expected) => assert_eq!(kind(&result), expected),
            None => {
                assert!(result.unwrap().done);
                let format = records(&dump(&shared).await).format.unwrap();
                assert_eq!(format.commit_log_batch_origin, Some(origin));
            }
        }
    }

    // A log that says it: the first slot was written while the origin was known.
    let told = copied(&store).await;
    stamp(&told, Some(head.batch_seq)).await;
    create_schema(&told, "first").await.unwrap();
    stamp(&told, None).await;
    assert_eq!(records(&dump(&told).await).format.unwrap().commit_log_batch_origin, None);
    let seen = reader_sees(&told, "first").await;
    assert!(seen);
    let wrong = Request { commit_log_origin: Some(head.batch_seq - 1), ..Request::to(12) };
    assert_eq!(kind(&migrate(&at(&told), &wrong, budget()).await), ErrorKind::InvalidInput);
    // What says the origin is not deleted.
    truncate(&at(&told), 0, false, &environment(), &budget()).await.unwrap();
    assert_eq!(slots(&told).await, [1]);
    finish(&told, 12).await;
    let format = records(&dump(&told).await).format.unwrap();
    assert_eq!((format.format_version, format.commit_log_batch_origin), (12, Some(head.batch_seq)));
}

async fn reader_sees(store: &Arc<dyn ObjectStore>, name: &str) -> bool {
    let reader = CatalogReader::open(&at(store), POLL, &budget()).await.unwrap();
    reader.read(|view| async move { view.schema_named(name).await }).await.unwrap().is_some()
}

#[tokio::test]
async fn a_stray_that_is_read_in_place_of_the_slot_that_was_listed_is_not_folded() {
    let store = logged(Seed::small(11)).await;
    let (late, behind) = (Mortal::new(Arc::clone(&store)), Mortal::new(Arc::clone(&store)));
    let through = |mortal: &Arc<Mortal>| Location::new(Arc::clone(mortal) as _, PATH);
    let frozen = Catalog::open(&through(&late), &environment(), &budget()).await.unwrap();
    let session = Catalog::open(&through(&behind), &environment(), &budget()).await.unwrap();
    late.meddle(1, Meddle::HoldRequest);
    let lost = tokio::spawn(async move { frozen.commit(&schema("late")).await });
    late.held.acquire().await.unwrap().forget();
    create_schema(&store, "first").await.unwrap();
    behind.hold_read();
    let read = tokio::spawn(async move { session.read().await });
    behind.held.acquire().await.unwrap().forget();
    truncate(&at(&store), 0, false, &environment(), &budget()).await.unwrap();
    late.released.add_permits(1);
    lost.await.unwrap().unwrap();
    behind.released.add_permits(1);
    let view = read.await.unwrap().unwrap();
    assert_eq!(view.head().batch_seq, 7 + 2);
    for name in ["first", "late"] {
        assert!(view.schema_named(name).await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_slot_that_is_further_below_the_floor_than_it_remembers_is_an_unknown_outcome() {
    let store = logged(Seed::small(11)).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let slow = Catalog::open(&location, &environment(), &budget()).await.unwrap();
    mortal.meddle(1, Meddle::HoldAnswer);
    let unknown = tokio::spawn(async move { slow.commit(&schema("slow")).await });
    mortal.held.acquire().await.unwrap().forget();
    let log = Log::of(&at(&store), &Deadline::of(&budget()));
    log.raise(Floor { sequence: 1, transaction_ids: Vec::new() }).await.unwrap();
    mortal.released.add_permits(1);
    assert_eq!(kind(&unknown.await.unwrap()), ErrorKind::OutcomeUnknown);
}

#[tokio::test]
async fn a_session_from_before_a_demotion_finds_out_wherever_it_stands() {
    let environment = environment();
    for truncated in [false, true] {
        for adopted in [false, true] {
            let store = logged(Seed::small(11)).await;
            let session = Catalog::open(&at(&store), &environment, &budget()).await.unwrap();
            for name in ["one", "two"] {
                create_schema(&store, name).await.unwrap();
            }
            if truncated {
                truncate(&at(&store), 0, false, &environment, &budget()).await.unwrap();
            }
            demote(&at(&store), false, &environment, &budget()).await.unwrap();
            if adopted {
                create_schema(&store, "native").await.unwrap();
                adopt(&at(&store), false, &environment, &budget()).await.unwrap();
                create_schema(&store, "three").await.unwrap();
            }
            let when = format!("truncated: {truncated}, adopted again: {adopted}");
            let (read, commit) = (session.read().await, session.commit(&schema("late")).await);
            assert_eq!(kind(&read), ErrorKind::AuthorityChanged, "{when}");
            assert_eq!(kind(&commit), ErrorKind::AuthorityChanged, "{when}");
            create_schema(&store, "four").await.unwrap();
            let catalog = Catalog::open(&at(&store), &environment, &budget()).await.unwrap();
            assert!(catalog.read().await.unwrap().schema_named("late").await.unwrap().is_none(), "{when}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_at_once_of_one_handle_all_go_on_after_a_truncation() {
    let store = logged(Seed::small(11)).await;
    let reader = Arc::new(CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap());
    for round in 0..3 {
        for number in 0..3 {
            create_schema(&store, &format!("{round}/{number}")).await.unwrap();
        }
        truncate(&at(&store), 0, false, &environment(), &budget()).await.unwrap();
        let reads = (0..16).map(|_| {
            let reader = Arc::clone(&reader);
            tokio::spawn(async move {
                reader.read(|view| async move { view.schemas(view.head().snapshot_id).await }).await
            })
        });
        for read in futures::future::join_all(reads).await {
            let schemas = read.unwrap().unwrap();
            let added = schemas.iter().filter(|schema| schema.schema_name.contains('/')).count();
            assert_eq!(added, 3 * (round + 1));
        }
    }
    reader.close().await.unwrap();
}

#[tokio::test]
async fn an_unfinished_directory_unit_is_abandoned_through_the_log_at_whatever_write_it_dies() {
    let seed = Seed { delete_files: 700, ..Seed::small(11) };
    let store = logged(seed).await;
    let (before, shown) = (content(&dump(&store).await), history(&store).await);
    super::support::dying_at(&store, &Request::to(12), budget(), "catalog-stepped", 2).await;
    let (registry, environment) = (Registry::shipped(), environment());
    for writes in 0.. {
        let shared = copied(&store).await;
        let mortal = Mortal::with_writes(Arc::clone(&shared), writes);
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let work = abandon(&location, &registry, &environment, budget());
        let ended = super::support::outlived(&mortal, work).await;
        mortal.kill();
        if records(&dump(&shared).await).marker.is_some() {
            abandon(&at(&shared), &registry, &environment, budget()).await.unwrap();
        }
        assert!(content(&dump(&shared).await) == before, "{writes}");
        create_schema(&shared, "after").await.unwrap();
        finish(&shared, 12).await;
        assert_eq!(history(&shared).await, shown, "{writes}");
        if ended.is_some() {
            assert!(writes > 2);
            break;
        }
    }
}
