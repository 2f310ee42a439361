//! Readers meet the marker: unavailable, never partial.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use metashift::ErrorKind;
use metashift::catalog::authority::{CommitAuthority, Native};
use metashift::catalog::commit::Change;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{self, Report, Request};
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::key::{Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::seed::{LAST_SNAPSHOT, ROW_TABLE, Seed};
use metashift::catalog::store::Ending;
use metashift::catalog::units::Registry;
use metashift::catalog::value::{Head, Migration, frame, unframe};
use metashift::catalog::view::View;
use object_store::ObjectStore;

use super::support::{
    Mortal, PATH, at, budget, copied, dump, dying_at, environment, epoch, finish, history, kind, migrate,
    records, seeded, tamper,
};

const POLL: Duration = Duration::from_millis(10);

async fn reader(store: &Arc<dyn ObjectStore>) -> CatalogReader {
    CatalogReader::open(&at(store), POLL, &budget()).await.unwrap()
}

/// Waits until a reader sees head move away from `from`.
async fn head_moved(reader: &CatalogReader, from: Head) {
    head_is(reader, |head| head != from).await;
}

async fn head_is(reader: &CatalogReader, wanted: impl Fn(Head) -> bool) {
    let below = reader.reader().await;
    let mut status = below.subscribe();
    let key = Key::System(System::Head).encode();
    while !wanted(unframe(&key, &below.get(&key).await.unwrap().unwrap()).unwrap()) {
        // A change of the log alone need not be announced, so the wait is bounded by the poll.
        let _ = tokio::time::timeout(POLL, status.changed()).await;
    }
}

#[tokio::test]
async fn at_every_seam_a_session_a_fresh_reader_and_a_reader_from_before_refuse_or_see_everything() {
    for (from, target) in [(9, 11), (11, 12)] {
        let seed = Seed { schemas: 20, tables: 400, delete_files: 600, ..Seed::small(from) };
        let store = seeded(seed).await;
        let shown = history(&store).await;
        for (point, times, pages, refuses) in [
            ("catalog-started", 1, None, true),
            ("catalog-flushed", 1, Some(1), true),
            ("catalog-flushed", 2, Some(1), true),
            ("catalog-finished", 1, None, false),
        ] {
            let shared = copied(&store).await;
            let before = reader(&shared).await;
            assert_eq!(before.read(|view| async move { view.read_at(5).await }).await.unwrap(), shown[5]);
            for _ in 0..times {
                dying_at(&shared, &Request::to(target), budget().with_pages(pages), point, 1).await;
            }
            let head = records(&dump(&shared).await).head.unwrap();
            head_is(&before, |seen| seen == head).await;
            let read = |view: View| async move { view.read_at(5).await };
            let fresh = CatalogReader::open(&at(&shared), POLL, &budget()).await;
            let session = Catalog::open(&at(&shared), &environment(), &budget()).await;
            if refuses {
                assert_eq!(kind(&before.read(read).await), ErrorKind::Migration, "{point} {times}");
                assert_eq!(kind(&fresh), ErrorKind::Migration, "{point} {times}");
                assert_eq!(kind(&session), ErrorKind::Migration, "{point} {times}");
            } else {
                assert_eq!(before.read(read).await.unwrap(), shown[5]);
                assert_eq!(fresh.unwrap().read(read).await.unwrap(), shown[5]);
                assert_eq!(session.unwrap().read().await.unwrap().read_at(5).await.unwrap(), shown[5]);
            }
        }
    }
}

#[tokio::test]
async fn a_read_that_the_marker_overtakes_refuses_instead_of_serving_the_view_it_had() {
    let store = seeded(Seed::small(9)).await;
    let reader = reader(&store).await;
    let overtaken = AtomicU32::new(0);
    let result = reader
        .read(|view| {
            let (store, reader, overtaken) = (&store, &reader, &overtaken);
            async move {
                let schemas = view.schemas(LAST_SNAPSHOT).await?;
                if overtaken.fetch_add(1, Ordering::SeqCst) == 0 {
                    dying_at(store, &Request::to(11), budget(), "catalog-started", 1).await;
                    head_moved(reader, view.head()).await;
                }
                view.tables(LAST_SNAPSHOT).await?;
                Ok(schemas.len())
            }
        })
        .await;
    assert_eq!(kind(&result), ErrorKind::Migration);
    assert_eq!(overtaken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_read_that_a_commit_overtakes_is_repeated_on_the_newer_state() {
    let store = seeded(Seed::small(11)).await;
    let reader = reader(&store).await;
    let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let runs = AtomicU32::new(0);
    let (snapshot, named) = reader
        .read(|view| {
            let (reader, catalog, runs) = (&reader, &catalog, &runs);
            async move {
                if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                    catalog.commit(&[Change::CreateSchema { name: "new".into() }]).await?;
                    head_moved(reader, view.head()).await;
                }
                Ok((view.head().snapshot_id, view.schema_named("new").await?.is_some()))
            }
        })
        .await
        .unwrap();
    assert_eq!((snapshot, named), (LAST_SNAPSHOT + 1, true));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_marker_rides_the_head_and_one_planted_under_an_unmoved_head_goes_unseen() {
    let store = seeded(Seed::small(9)).await;
    let warm = reader(&store).await;
    warm.read(|view| async move { view.schemas(0).await }).await.unwrap();
    let head = records(&dump(&store).await).head.unwrap();

    // The divergence form: what a start must never do.
    let marker = Migration { from_format: 9, to_format: 11, ..Migration::default() };
    let key = Key::System(System::Migration).encode();
    tamper(&store, &[(key.clone(), frame(&marker).to_vec())], &[]).await;
    while warm.reader().await.get(&key).await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(
        warm.read(|view| async move { view.schemas(0).await }).await.is_ok(),
        "the absence is remembered"
    );
    assert_eq!(kind(&CatalogReader::open(&at(&store), POLL, &budget()).await), ErrorKind::Migration);
    tamper(&store, &[], std::slice::from_ref(&key)).await;
    while warm.reader().await.get(&key).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }

    // What a start does.
    dying_at(&store, &Request::to(11), budget(), "catalog-started", 1).await;
    head_moved(&warm, head).await;
    assert_eq!(kind(&warm.read(|view| async move { view.schemas(0).await }).await), ErrorKind::Migration);
}

/// Runs to 11 with a committer of the same process that gets in before the first `races` commits.
async fn raced(store: &Arc<dyn ObjectStore>, races: u64) -> (u64, metashift::Result<Report>) {
    let native = Native::open(&at(store), epoch(store).await, Deadline::of(&budget())).await.unwrap();
    let native = Arc::new(native);
    let rival = Catalog::over(Arc::clone(&native) as _, environment());
    super::support::raced(native, 11, |commit| {
        let rival = &rival;
        async move {
            if commit <= races {
                let name = format!("raced_{commit}");
                rival.commit(&[Change::CreateTable { schema_id: 1, name }]).await.unwrap();
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_start_that_races_commits_is_decided_again_and_misses_none_of_them() {
    let store = seeded(Seed::small(9)).await;
    let (lost, result) = raced(&store, 3).await;
    assert!(result.unwrap().done);
    assert_eq!(lost, 3);
    let reader = reader(&store).await;
    for number in 1..=3 {
        let name = &format!("raced_{number}");
        let found = reader.read(|view| async move { view.table_named(1, name).await }).await.unwrap();
        assert!(found.is_some(), "{name}");
    }
    assert_eq!(records(&dump(&store).await).format.unwrap().format_version, 11);
}

#[tokio::test]
async fn a_start_that_always_loses_ends_contended_and_leaves_no_marker() {
    let store = seeded(Seed::small(9)).await;
    let (_, result) = raced(&store, u64::MAX).await;
    assert_eq!(kind(&result), ErrorKind::Contended);
    let records = records(&dump(&store).await);
    assert_eq!((records.format.unwrap().format_version, records.marker), (9, None));
}

#[tokio::test]
async fn a_committer_that_meets_the_marker_refuses() {
    let store = seeded(Seed::small(9)).await;
    let deadline = Deadline::of(&budget());
    let native = Arc::new(Native::open(&at(&store), epoch(&store).await, deadline).await.unwrap());
    let catalog = Catalog::over(Arc::clone(&native) as _, environment());
    let pages = budget().with_pages(Some(0));
    let registry = Registry::shipped();
    // No page left: the run ends before its start, and a commit goes through.
    let request = Request::to(11);
    driver::migrate(native.as_ref(), &registry, &request, &environment(), pages, &|_| {}).await.unwrap();
    catalog.commit(&[Change::CreateSchema { name: "in time".into() }]).await.unwrap();
    native.close(Ending::Complete).await.unwrap();
    dying_at(&store, &Request::to(11), budget(), "catalog-started", 1).await;
    let late = Catalog::open(&at(&store), &environment(), &budget()).await;
    assert_eq!(kind(&late), ErrorKind::Migration);
}

#[tokio::test]
async fn names_and_targets_are_found_through_the_directories_and_by_scans_alike() {
    let seed = Seed { tables: 40, delete_files: 60, ..Seed::small(9) };
    let mut answers = Vec::new();
    for format in [9, 11, 12] {
        let store = seeded(Seed { format, ..seed }).await;
        let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
        let view = catalog.read().await.unwrap();
        let mut answer = Vec::new();
        for name in ["main", "schema_3_", "schema_", "none"] {
            answer.push(format!("{:?}", view.schema_named(name).await.unwrap()));
        }
        for number in 0..40 {
            for name in [format!("table_{number}_"), format!("renamed_{number}_")] {
                answer.push(format!("{:?}", view.table_named(number % 6, &name).await.unwrap()));
            }
            for file in 60..100 {
                answer.push(format!("{:?}", view.delete_files_of(ROW_TABLE + number, file).await.unwrap()));
            }
        }
        answers.push(answer);
        catalog.close().await.unwrap();
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    assert!(answers[0].iter().filter(|answer| answer.contains("path")).count() > 60);
}

#[tokio::test]
async fn commits_keep_the_directories_of_their_format_so_that_a_later_migration_finds_the_same() {
    let changes: Vec<Vec<Change>> = vec![
        vec![
            Change::CreateSchema { name: "a".into() },
            Change::CreateTable { schema_id: 1, name: "t".into() },
        ],
        vec![Change::RenameTable { table_id: ROW_TABLE + 3, name: "other".into() }],
        vec![Change::DropTable { table_id: ROW_TABLE + 4 }],
        vec![Change::CreateTable { schema_id: 4, name: "table_4_".into() }],
        vec![Change::AddDeleteFile { table_id: ROW_TABLE, data_file_id: 77, path: "x".into() }],
        vec![Change::DropDeleteFile { table_id: ROW_TABLE, delete_file_id: 1 }],
        vec![
            Change::InlineInsert { table_id: ROW_TABLE + 3, row_count: 5, body: "five".into() },
            Change::InlineInsert { table_id: ROW_TABLE + 3, row_count: 2, body: "two".into() },
        ],
        vec![Change::InlineDelete { table_id: ROW_TABLE + 3, row_id: 6 }],
    ];
    let mut directories = Vec::new();
    for format in [9, 11, 12] {
        let store = seeded(Seed::small(format)).await;
        let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
        for changes in &changes {
            catalog.commit(changes).await.unwrap();
        }
        let view = catalog.read().await.unwrap();
        let rows = view.rows(view.head().snapshot_id).await.unwrap();
        let ids: Vec<_> = rows[&(ROW_TABLE + 3)].iter().flat_map(|rows| rows.row_ids.clone()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        let taken = catalog.commit(&[Change::CreateSchema { name: "a".into() }]).await;
        assert_eq!(kind(&taken), ErrorKind::InvalidInput);
        catalog.close().await.unwrap();
        finish(&store, 12).await;
        let dump = dump(&store).await;
        directories.push(dump.into_iter().filter(|(key, _)| key[0] >= 10).collect::<Vec<_>>());
    }
    assert_eq!(directories[0], directories[1]);
    assert_eq!(directories[0], directories[2]);
}

#[tokio::test]
async fn a_reader_that_loses_a_race_with_a_garbage_collector_opens_again_once() {
    let store = seeded(Seed::small(11)).await;
    let shown = history(&store).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let reader = CatalogReader::open(&location, Duration::from_secs(3_600), &budget()).await.unwrap();
    mortal.miss(1);
    assert_eq!(reader.read(|view| async move { view.read_at(5).await }).await.unwrap(), shown[5]);
    mortal.miss(u64::MAX);
    assert_eq!(kind(&reader.read(|view| async move { view.read_at(5).await }).await), ErrorKind::Corruption);
    mortal.miss(0);
    assert_eq!(reader.read(|view| async move { view.read_at(5).await }).await.unwrap(), shown[5]);
    // A look before a run is no different.
    mortal.miss(1);
    assert!(migrate(&location, &Request::to(12), budget()).await.unwrap().done);
}
