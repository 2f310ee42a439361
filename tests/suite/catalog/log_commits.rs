//! Who wins a slot of the commit log, and what everybody else makes of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metashift::ErrorKind;
use metashift::catalog::authority::{Commit, CommitAuthority, Folder, Session};
use metashift::catalog::batch::{Anchor, Batch};
use metashift::catalog::commit::Change;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{Report, Request};
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::key::System;
use metashift::catalog::location::Location;
use metashift::catalog::log::slot::CommitSlot;
use metashift::catalog::log::{Log, lifecycle};
use metashift::catalog::seed::Seed;
use metashift::catalog::store::{Ending, system_records};
use metashift::catalog::value::{Format, Head};
use metashift::step::Budget;
use object_store::{ObjectStore, PutOptions};
use tokio::sync::Semaphore;

use super::support::{
    Ended, Meddle, Mortal, PATH, at, budget, commit_log, copied, create_schema, dump, dying_at, environment,
    epoch, finish, history, is_lost_race, kind, logged, migrate, records, slots, until_death,
};

const POLL: Duration = Duration::from_secs(3600);

fn seed(format: u64) -> Seed {
    Seed { schemas: 20, tables: 280, delete_files: 400, ..Seed::small(format) }
}

/// What an uninterrupted migration makes of a store.
async fn uninterrupted(store: &Arc<dyn ObjectStore>, target: u64) -> Vec<(bytes::Bytes, bytes::Bytes)> {
    let other = copied(store).await;
    finish(&other, target).await;
    dump(&other).await
}

async fn session(store: &Arc<dyn ObjectStore>) -> Catalog {
    Catalog::open(&at(store), &environment(), &budget()).await.unwrap()
}

fn schema(name: impl Into<String>) -> [Change; 1] {
    [Change::CreateSchema { name: name.into() }]
}

async fn has_schema(catalog: &Catalog, name: &str) -> bool {
    catalog.read().await.unwrap().schema_named(name).await.unwrap().is_some()
}

#[tokio::test]
async fn a_migrated_catalog_stays_one_and_its_log_holds_exactly_the_batches_that_were_run() {
    for (from, units) in [(10, 2), (11, 1)] {
        let store = logged(seed(from)).await;
        create_schema(&store, "tail").await.unwrap();
        let (before, shown) = (records(&dump(&store).await), history(&store).await);
        let report = finish(&store, 12).await;
        assert_eq!((report.from_format, report.units.len(), report.final_checkpoint), (from, units, None));
        let after = records(&dump(&store).await);
        let (was, is) = (before.format.unwrap(), after.format.unwrap());
        assert_eq!((is.format_version, is.original_format), (12, None));
        assert_eq!(is.commit_log_batch_origin, was.commit_log_batch_origin);
        assert_eq!(after.head.unwrap().batch_seq, before.head.unwrap().batch_seq + report.batches);
        assert_eq!(slots(&store).await.len() as u64, 1 + report.batches);
        assert_eq!(commit_log(&store).await.unwrap().unfolded, 0);
        assert_eq!(history(&store).await, shown);
        assert_eq!(create_schema(&store, "tail").await.unwrap_err().kind(), ErrorKind::InvalidInput);
        create_schema(&store, "later").await.unwrap();
        let again = finish(&store, 12).await;
        assert_eq!(again.batches, 0);
        assert_eq!(commit_log(&store).await.unwrap().unfolded, 0, "a run with nothing to do folds");
    }
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_sent_again_until_its_fate_is_known() {
    let store = logged(seed(10)).await;
    let expected = uninterrupted(&store, 12).await;
    for how in [Meddle::LoseAnswer, Meddle::Drop] {
        // Starts, steps and finishes of both units.
        for nth in 1..=8 {
            let shared = copied(&store).await;
            let mortal = Mortal::new(Arc::clone(&shared));
            mortal.meddle(nth, how);
            let location = Location::new(Arc::clone(&mortal) as _, PATH);
            assert!(migrate(&location, &Request::to(12), budget()).await.unwrap().done, "{how:?} {nth}");
            assert!(dump(&shared).await == expected, "{how:?} {nth}: some batch was run twice or not at all");
        }
    }
    for how in [Meddle::LoseAnswer, Meddle::Drop] {
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let catalog = Catalog::open(&location, &environment(), &budget()).await.unwrap();
        mortal.meddle(1, how);
        let before = records(&dump(&store).await).head.unwrap();
        catalog.commit(&schema(format!("{how:?}"))).await.unwrap();
        let after = records(&dump(&store).await).head.unwrap();
        assert_eq!(after.batch_seq, before.batch_seq + 1, "{how:?}");
    }
}

#[tokio::test]
async fn a_create_that_lands_long_after_its_sender_has_died_is_a_slot_or_nothing() {
    let store = logged(seed(11)).await;
    let expected = uninterrupted(&store, 12).await;
    for nth in 1..=4 {
        for resumed_first in [false, true] {
            let shared = copied(&store).await;
            let mortal = Mortal::new(Arc::clone(&shared));
            mortal.meddle(nth, Meddle::HoldRequest);
            let location = Location::new(Arc::clone(&mortal) as _, PATH);
            let late = tokio::spawn(async move { migrate(&location, &Request::to(12), budget()).await });
            mortal.held.acquire().await.unwrap().forget();
            // Its sender dies; the request is under way.
            mortal.kill();
            if resumed_first {
                finish(&shared, 12).await;
            }
            mortal.released.add_permits(1);
            mortal.arrived.acquire().await.unwrap().forget();
            late.abort();
            finish(&shared, 12).await;
            assert!(dump(&shared).await == expected, "{nth}, resumed first: {resumed_first}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_without_an_answer_is_given_up_only_at_the_deadline() {
    let store = logged(Seed::small(11)).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let until = environment().now() + Duration::from_secs(30);
    let catalog =
        Catalog::open(&location, &environment(), &Budget::until(environment(), until)).await.unwrap();
    mortal.drop_slots();
    let unknown = catalog.commit(&schema("lost")).await;
    assert_eq!(kind(&unknown), ErrorKind::OutcomeUnknown);
    assert!(slots(&store).await.is_empty());
}

/// A folder that takes a store's index.
async fn folder(store: &Arc<dyn ObjectStore>) -> Arc<Folder> {
    let deadline = Deadline::of(&budget());
    let folder = Folder::open(&at(store), epoch(store).await, None, &environment(), &deadline).await;
    Arc::new(folder.unwrap())
}

/// Runs to 12 in a log with `rival` called before every commit.
async fn raced<F, A>(store: &Arc<dyn ObjectStore>, rival: F) -> (u64, metashift::Result<Report>)
where
    F: Fn(u64) -> A + Send + Sync,
    A: Future<Output = ()> + Send,
{
    super::support::raced(folder(store).await, 12, rival).await
}

#[tokio::test]
async fn a_committer_that_takes_the_slot_just_before_start_makes_the_start_decide_again() {
    let store = logged(seed(10)).await;
    let rival = session(&store).await;
    let (lost, result) = raced(&store, |commit| {
        let rival = &rival;
        async move {
            if commit <= 3 {
                rival.commit(&schema(format!("raced_{commit}"))).await.unwrap();
            }
        }
    })
    .await;
    assert!(result.unwrap().done);
    assert_eq!(lost, 3);
    for commit in 1..=3 {
        assert!(has_schema(&rival, &format!("raced_{commit}")).await, "{commit}");
    }
    assert_eq!(commit_log(&store).await.unwrap().unfolded, 0);
}

#[tokio::test]
async fn a_slot_taken_by_another_migrator_in_the_middle_of_a_unit_is_folded_and_gone_on_from() {
    let store = logged(seed(10)).await;
    let expected = uninterrupted(&store, 12).await;
    // Before the start, each of the steps and the finish of the first unit, and the start of the second.
    for at_commit in 1..=5 {
        let shared = copied(&store).await;
        let (lost, result) = raced(&shared, |commit| {
            let shared = Arc::clone(&shared);
            async move {
                if commit == at_commit {
                    // One batch, or the rest of the unit, of a migrator that then stops.
                    let one = budget().with_pages(Some(1));
                    migrate(&at(&shared), &Request::to(12), one).await.unwrap();
                }
            }
        })
        .await;
        assert_eq!(lost, 1, "commit {at_commit}");
        // The other one has the index. What this one wins still counts; it learns at its next flush.
        assert_eq!(kind(&result), ErrorKind::Fenced, "commit {at_commit}");
        finish(&shared, 12).await;
        assert!(dump(&shared).await == expected, "commit {at_commit}: a record twice, or missing");
    }
}

#[tokio::test]
async fn a_committer_beside_the_steps_and_the_finish_is_refused_and_the_run_goes_on() {
    let store = logged(seed(10)).await;
    let expected = uninterrupted(&store, 12).await;
    let (rival, refused) = (session(&store).await, AtomicU64::new(0));
    let (lost, result) = raced(&store, |commit| {
        let (rival, refused) = (&rival, &refused);
        async move {
            // 1 and 5 are the starts, before which no marker stands.
            if ![1, 5].contains(&commit) {
                let late = rival.commit(&schema(format!("late {commit}"))).await;
                assert_eq!(kind(&late), ErrorKind::Migration, "{commit}");
                refused.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    assert!(result.unwrap().done);
    assert_eq!((lost, refused.load(Ordering::SeqCst)), (0, 6));
    assert!(dump(&store).await == expected);
}

#[tokio::test]
async fn a_folder_that_has_folded_the_end_of_the_log_writes_nothing_behind_it() {
    let store = logged(seed(11)).await;
    let late = folder(&store).await;
    // What a demotion writes, by somebody who does not take the index.
    let before = records(&dump(&store).await);
    let native = Format { commit_log_batch_origin: None, ..before.format.unwrap() };
    let last = Anchor { head: before.head.unwrap(), marker: None };
    let mut batch = Batch::default();
    batch.put_system(System::Format, &native);
    batch.put_system(System::Head, &last.advanced(None).head);
    let beside = Session::open(&at(&store), &environment(), &Deadline::of(&budget())).await.unwrap();
    assert_eq!(beside.commit(&last, batch).await.unwrap(), Commit::Committed);
    let records = system_records(late.pin().await.unwrap().as_ref()).await.unwrap();
    let anchor = Anchor { head: records.head.unwrap(), marker: None };
    let mut batch = Batch::default();
    batch.put_system(System::Head, &anchor.advanced(None).head);
    assert_eq!(kind(&late.commit(&anchor, batch).await), ErrorKind::AuthorityChanged);
    assert_eq!(slots(&store).await, [1]);
    late.close(Ending::Abandoned).await.unwrap();
}

#[tokio::test]
async fn a_migrator_that_is_overtaken_by_a_truncation_is_fenced_and_by_a_demotion_refuses_to_go_on() {
    let store = logged(seed(11)).await;
    let (lost, overtaken) = raced(&store, |commit| {
        let store = &store;
        async move {
            if commit == 1 {
                create_schema(store, "overtakes").await.unwrap();
                lifecycle::truncate(&at(store), 0, false, &environment(), &budget()).await.unwrap();
            }
        }
    })
    .await;
    assert_eq!((lost, kind(&overtaken)), (1, ErrorKind::Fenced));
    let (lost, demoted) = raced(&store, |commit| {
        let store = &store;
        async move {
            if commit == 1 {
                lifecycle::demote(&at(store), false, &environment(), &budget()).await.unwrap();
            }
        }
    })
    .await;
    assert_eq!((lost, kind(&demoted)), (1, ErrorKind::AuthorityChanged));
    // The first run's create came after the floor had passed: it counts for nothing.
    assert_eq!(slots(&store).await, [1, 2], "nothing behind the end of the log");
    let records = records(&dump(&store).await);
    assert_eq!((records.format.unwrap().format_version, records.marker), (11, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_migrators_at_once_each_ends_done_or_fenced_and_the_work_is_done_once() {
    let store = logged(seed(10)).await;
    let expected = uninterrupted(&store, 12).await;
    for round in 0..3 {
        let shared = copied(&store).await;
        let runs = [0, 1, 2].map(|_| {
            let location = at(&shared);
            tokio::spawn(async move { migrate(&location, &Request::to(12), budget()).await })
        });
        for result in futures::future::join_all(runs).await {
            if let Err(error) = result.unwrap() {
                assert!(
                    is_lost_race(&error) || error.kind() == ErrorKind::Contended,
                    "round {round}: {error}"
                );
            }
        }
        finish(&shared, 12).await;
        assert!(dump(&shared).await == expected, "round {round}");
    }
}

#[tokio::test]
async fn a_committer_and_a_reader_meet_the_marker_as_soon_as_its_slot_is_won() {
    let store = logged(seed(11)).await;
    let catalog = session(&store).await;
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    // Dead between winning the start's slot and folding it: the index knows nothing of it.
    dying_at(&store, &Request::to(12), budget(), "catalog-log-won", 1).await;
    assert_eq!(kind(&catalog.commit(&schema("late")).await), ErrorKind::Migration);
    assert_eq!(kind(&reader.read(|_| async { Ok(()) }).await), ErrorKind::Migration);
    assert_eq!(kind(&Catalog::open(&at(&store), &environment(), &budget()).await), ErrorKind::Migration);
    assert_eq!(kind(&CatalogReader::open(&at(&store), POLL, &budget()).await), ErrorKind::Migration);
    finish(&store, 12).await;
    catalog.commit(&schema("after")).await.unwrap();
    assert_eq!(reader.read(|view| async move { Ok(view.format()) }).await.unwrap(), 12);
}

#[tokio::test]
async fn a_reader_sees_a_commit_as_soon_as_its_slot_is_acknowledged() {
    let store = logged(seed(11)).await;
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    let (one, other) = (session(&store).await, session(&store).await);
    for number in 0..20 {
        let (writer, beside) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let name = &format!("schema {number}");
        writer.commit(&schema(name)).await.unwrap();
        assert!(has_schema(beside, name).await);
        let seen = reader.read(|view| async move { view.schema_named(name).await }).await.unwrap();
        assert!(seen.is_some(), "{name}");
    }
    assert_eq!(commit_log(&store).await.unwrap().unfolded, 20);
}

#[tokio::test]
async fn a_pinned_view_stands_still_while_the_log_and_the_index_go_on() {
    let store = logged(seed(11)).await;
    let catalog = session(&store).await;
    let view = catalog.read().await.unwrap();
    let before = view.read_at(6).await.unwrap();
    create_schema(&store, "later").await.unwrap();
    finish(&store, 12).await;
    assert_eq!((view.format(), view.read_at(6).await.unwrap()), (11, before));
    assert!(view.schema_named("later").await.unwrap().is_none());
    assert_eq!(catalog.read().await.unwrap().format(), 12);
}

/// Puts a slot there by hand.
async fn plant(store: &Arc<dyn ObjectStore>, sequence: u64, bytes: bytes::Bytes) {
    let path = Log::of(&at(store), &Deadline::of(&budget())).path(sequence);
    store.put_opts(&path, bytes.into(), PutOptions::default()).await.unwrap();
}

fn slot(base: u64, head: Head) -> bytes::Bytes {
    let mut batch = Batch::default();
    batch.put_system(System::Head, &head);
    CommitSlot::new(7, base, batch).encode()
}

#[tokio::test]
async fn a_foreign_slot_a_wrong_base_a_gap_and_rubbish_are_corruption_and_nothing_is_folded_from_them() {
    let store = logged(seed(11)).await;
    let head = records(&dump(&store).await).head.unwrap();
    let next = Head { batch_seq: head.batch_seq + 1, ..head };
    let running = copied(&store).await;
    dying_at(&running, &Request::to(12), budget(), "catalog-started", 1).await;
    let after = Head { snapshot_id: head.snapshot_id + 1, batch_seq: head.batch_seq + 2 };
    for (what, store, sequence, bytes) in [
        ("a commit between start and finish", &running, 2, slot(next.batch_seq, after)),
        ("a base behind", &store, 1, slot(head.batch_seq - 1, next)),
        ("a base ahead", &store, 1, slot(head.batch_seq + 1, next)),
        ("a gap", &store, 2, slot(next.batch_seq, after)),
        ("rubbish", &store, 1, bytes::Bytes::from_static(b"rubbish")),
        ("nothing", &store, 1, bytes::Bytes::new()),
    ] {
        let shared = copied(store).await;
        plant(&shared, sequence, bytes).await;
        let refused = migrate(&at(&shared), &Request::to(12), budget()).await;
        assert_eq!(kind(&refused), ErrorKind::Corruption, "{what}");
        assert!(refused.unwrap_err().message().contains("slot"), "{what}");
        let opened = Catalog::open(&at(&shared), &environment(), &budget()).await;
        assert_eq!(kind(&opened), ErrorKind::Corruption, "{what}");
        let read = CatalogReader::open(&at(&shared), POLL, &budget()).await;
        assert_eq!(kind(&read), ErrorKind::Corruption, "{what}");
        // Without what was planted, the store is as it was.
        let path = Log::of(&at(&shared), &Deadline::of(&budget())).path(sequence);
        object_store::ObjectStoreExt::delete(shared.as_ref(), &path).await.unwrap();
        assert!(dump(&shared).await == dump(store).await, "{what}");
    }
}

#[tokio::test]
async fn rubbish_in_the_place_of_the_wanted_slot_is_corruption_at_once() {
    let store = logged(Seed::small(11)).await;
    let catalog = session(&store).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let held = Catalog::open(&location, &environment(), &budget()).await.unwrap();
    mortal.meddle(1, Meddle::HoldRequest);
    let late = tokio::spawn(async move { held.commit(&schema("late")).await });
    mortal.held.acquire().await.unwrap().forget();
    plant(&store, 1, bytes::Bytes::from_static(b"rubbish")).await;
    mortal.released.add_permits(1);
    assert_eq!(kind(&late.await.unwrap()), ErrorKind::Corruption);
    assert_eq!(kind(&catalog.commit(&schema("next")).await), ErrorKind::Corruption);
}

#[tokio::test]
async fn a_run_that_dies_between_winning_a_slot_and_folding_it_or_before_the_flush_is_completed() {
    let store = logged(seed(10)).await;
    let expected = uninterrupted(&store, 12).await;
    for point in ["catalog-log-won", "catalog-log-folded"] {
        for times in 1..=8 {
            let shared = copied(&store).await;
            let ended = dying_at(&shared, &Request::to(12), budget(), point, times).await;
            assert!(matches!(ended, Ended::Died), "{point} {times}: {ended:?}");
            assert_eq!(slots(&shared).await.len() as u64, times, "{point}: every won slot is there");
            finish(&shared, 12).await;
            assert!(dump(&shared).await == expected, "{point} {times}");
        }
    }
}

#[tokio::test]
async fn a_dead_run_of_an_empty_disk_costs_no_slot() {
    let store = logged(seed(11)).await;
    let mortal = Mortal::with_writes(Arc::clone(&store), 0);
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let ended = until_death(&mortal, migrate(&location, &Request::to(12), budget())).await;
    assert!(matches!(ended, Ended::Died));
    assert!(slots(&store).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_committers_race_for_a_thousand_slots_and_every_acknowledged_transaction_is_there_once() {
    let store = logged(Seed::small(12)).await;
    let origin = commit_log(&store).await.unwrap().origin.unwrap();
    let (won, tries) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
    let committers = (0..10).map(|committer| {
        let (store, won, tries) = (Arc::clone(&store), Arc::clone(&won), Arc::clone(&tries));
        tokio::spawn(async move {
            let catalog = session(&store).await;
            let mut acknowledged = BTreeMap::new();
            let mut number = 0;
            while won.available_permits() < 1_000 {
                let name = format!("{committer}/{number}");
                tries.fetch_add(1, Ordering::SeqCst);
                match catalog.commit(&schema(&name)).await {
                    Ok(snapshot) => {
                        won.add_permits(1);
                        acknowledged.insert(snapshot, name);
                        number += 1;
                    }
                    // Lost to others as often as it tries: nothing of it is there, and the same name may be sent again.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Contended, "{error}"),
                }
            }
            catalog.close().await.unwrap();
            acknowledged
        })
    });
    let mut acknowledged = BTreeMap::new();
    for committer in futures::future::join_all(committers).await {
        for (snapshot, name) in committer.unwrap() {
            assert_eq!(acknowledged.insert(snapshot, name), None, "two won snapshot {snapshot}");
        }
    }
    let slots = slots(&store).await;
    assert!(acknowledged.len() >= 1_000);
    assert_eq!(slots.len(), acknowledged.len(), "one winner a slot, and no slot without one");
    assert_eq!(slots, (1..=slots.len() as u64).collect::<Vec<_>>());
    assert!(tries.load(Ordering::SeqCst) < 2 * 1_000, "retries are bounded");
    let head = records(&dump(&store).await).head.unwrap();
    assert_eq!(head.batch_seq, origin + slots.len() as u64);
    let view = session(&store).await.read().await.unwrap();
    let mut names: Vec<_> = view.schemas(head.snapshot_id).await.unwrap();
    names.retain(|schema| schema.schema_name.contains('/'));
    let found: BTreeMap<_, _> =
        names.into_iter().map(|schema| (schema.begin_snapshot, schema.schema_name)).collect();
    assert_eq!(found, acknowledged);
}
