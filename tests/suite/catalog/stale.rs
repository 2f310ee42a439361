//! What a catalog no longer promises, or does not promise to us: an old view, an expired snapshot, a record with an end of its
//! own, somebody else's log.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::inspect::inspect;
use metashift::catalog::key::{Inline, Key, Operation};
use metashift::catalog::location::Location;
use metashift::catalog::seed::{self, LAST_SNAPSHOT, ROW_TABLE, Seed};
use metashift::catalog::store::TagExtractor;
use metashift::catalog::units::Registry;
use metashift::catalog::value::{RowDeletion, frame};
use metashift::{ErrorKind, Result};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutOptions};

use super::support::{
    Mortal, PATH, at, budget, copied, dump, environment, finish, kind, migrate, seeded, tamper,
};

const POLL: Duration = Duration::from_millis(20);

async fn newest_manifest(store: &Arc<dyn ObjectStore>) -> Path {
    let folder = Path::from(PATH).join("manifest");
    let mut names: Vec<Path> =
        store.list(Some(&folder)).map_ok(|object| object.location).try_collect().await.unwrap();
    names.retain(|name| name.as_ref().ends_with(".manifest"));
    names.sort();
    names.pop().unwrap()
}

/// Reads until an answer is an error, and says which; as long as it is none, it has to be the old one.
async fn ends(reader: &CatalogReader, format: u64) -> metashift::Error {
    let reading = async {
        loop {
            match reader.read(|view| async move { Ok(view.format()) }).await {
                Ok(seen) => assert_eq!(seen, format),
                Err(error) => return error,
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("it serves the old state for ever")
}

#[tokio::test]
async fn a_handle_whose_manifest_cannot_be_read_any_more_says_so_within_three_polls() {
    let store = seeded(Seed::small(11)).await;
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    // Another process migrates, and the manifest that says so is damaged: this handle sees neither.
    let elsewhere = copied(&store).await;
    finish(&elsewhere, 12).await;
    let newest = newest_manifest(&elsewhere).await;
    let bytes = elsewhere.get(&newest).await.unwrap().bytes().await.unwrap();
    store.put_opts(&newest, bytes.slice(..bytes.len() / 2).into(), PutOptions::default()).await.unwrap();
    let error = ends(&reader, 11).await;
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(newest.as_ref()), "{error}");
    reader.close().await.unwrap();
}

#[tokio::test]
async fn a_handle_that_is_cut_off_says_so_and_goes_on_once_it_is_not() {
    let store = seeded(Seed::small(11)).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    let reader = CatalogReader::open(&location, POLL, &budget()).await.unwrap();
    mortal.kill();
    assert_eq!(ends(&reader, 11).await.kind(), ErrorKind::Unavailable);
    finish(&store, 12).await;
    mortal.revive();
    assert_eq!(reader.read(|view| async move { Ok(view.format()) }).await.unwrap(), 12);
    reader.close().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_whose_record_is_gone_is_not_answered_for() {
    for format in [9, 11, 12] {
        let store = seeded(Seed::small(format)).await;
        let shown = seed::read_at(&at(&store), 4, &budget()).await.unwrap();
        // Expired as the catalog's own software does it: the record goes, some of what it showed may stay.
        tamper(&store, &[], &[Key::Snapshot(3).encode()]).await;
        let reader = CatalogReader::open(&at(&store), Duration::from_secs(3_600), &budget()).await.unwrap();
        let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
        let view = catalog.read().await.unwrap();
        for (at, there) in
            [(2, true), (3, false), (4, true), (LAST_SNAPSHOT, true), (LAST_SNAPSHOT + 1, false)]
        {
            let answers: Vec<Result<()>> = vec![
                reader.read(|view| async move { view.read_at(at).await }).await.map(drop),
                view.schemas(at).await.map(drop),
                view.tables(at).await.map(drop),
                view.delete_files(at).await.map(drop),
                view.rows(at).await.map(drop),
            ];
            for answer in answers {
                match answer {
                    Ok(()) => assert!(there, "{format}: {at}"),
                    Err(error) => {
                        assert!(!there && error.kind() == ErrorKind::InvalidInput, "{format}: {at}: {error}");
                        assert_eq!(error.message().contains("has expired"), at == 3, "{error}");
                    }
                }
            }
        }
        assert_eq!(view.read_at(4).await.unwrap(), shown);
        catalog.close().await.unwrap();
        reader.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_record_with_an_end_of_its_own_stops_a_migration_before_anything_is_changed() {
    let record =
        |row_id| Key::Inline(Inline::Live(Operation::RowDelete { table_id: ROW_TABLE, row_id })).encode();
    let store = seeded(Seed::small(8)).await;
    let db = slatedb::Db::builder(PATH, Arc::clone(&store))
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await
        .unwrap();
    let day = 24 * 3600 * 1000;
    let options = slatedb::config::PutOptions { ttl: slatedb::config::Ttl::ExpireAfterMillis(day) };
    let value = frame(&RowDeletion { end_snapshot: 5 });
    db.put_with_options(record(1), value, &options, &slatedb::config::WriteOptions::default()).await.unwrap();
    db.close().await.unwrap();
    let before = dump(&store).await;
    for to_format in [9, 12] {
        let dry =
            inspect(&at(&store), &Registry::shipped(), to_format, true, &environment(), &budget()).await;
        let ran = migrate(&at(&store), &Request::to(to_format), budget()).await;
        for refused in [dry.map(drop), ran.map(drop)] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Migration);
            assert!(refused.message().contains(&metashift::catalog::key::shown(&record(1))), "{refused}");
        }
    }
    assert!(dump(&store).await == before);
}

#[tokio::test]
async fn slots_beside_a_format_that_has_no_log_of_ours_stop_everybody() {
    for (format, name) in
        [(1, "00000000000000000001"), (8, "00000000000000000007"), (8, "head"), (9, "00000000000000000001")]
    {
        let store = seeded(Seed::small(format)).await;
        let path = Path::from(PATH).join("commits").join(name);
        store.put_opts(&path, "a slot of others".into(), PutOptions::default()).await.unwrap();
        let before = dump(&store).await;
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let (registry, environment) = (Registry::shipped(), environment());
        let mut answers = vec![
            ("status", inspect(&location, &registry, 12, false, &environment, &budget()).await.map(drop)),
            ("dry run", inspect(&location, &registry, 12, true, &environment, &budget()).await.map(drop)),
            ("run", migrate(&location, &Request::to(12), budget()).await.map(drop)),
            ("writer", Catalog::open(&location, &environment, &budget()).await.map(drop)),
        ];
        if format >= 9 {
            answers.push(("reader", CatalogReader::open(&location, POLL, &budget()).await.map(drop)));
        }
        for (who, answer) in answers {
            assert_eq!(kind(&answer), ErrorKind::ForeignLeftovers, "{format}, {who}");
            let error = answer.unwrap_err();
            assert!(error.message().contains(path.as_ref()) && error.next_step().is_some(), "{who}: {error}");
        }
        assert_eq!(mortal.writes(), 0);
        assert!(dump(&store).await == before);
        // Moved away, nothing is in the way.
        store.delete(&path).await.unwrap();
        finish(&store, 12).await;
    }
}
