//! A catalog whose write-ahead log is in another object store is refused wherever it is looked at, and once more under the
//! writer's own epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metashift::ErrorKind;
use metashift::Result;
use metashift::catalog::abandon::abandon;
use metashift::catalog::authority::{CommitAuthority, Native};
use metashift::catalog::batch::Batch;
use metashift::catalog::commit::Change;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{self, Request};
use metashift::catalog::format::options_key;
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::inspect::inspect;
use metashift::catalog::key::{Key, System};
use metashift::catalog::location::Location;
use metashift::catalog::log::Log;
use metashift::catalog::log::lifecycle::{adopt, create, demote, truncate};
use metashift::catalog::log::slot::CommitSlot;
use metashift::catalog::seed::{LAST_SNAPSHOT, Seed};
use metashift::catalog::store::{Ending, TagExtractor, look};
use metashift::catalog::units::Registry;
use metashift::catalog::value::{Head, OptionScope, frame};
use object_store::{ObjectStore, PutOptions};

use super::support::{
    Mortal, PATH, at, budget, commit_log, copied, dump, environment, epoch, kind, logged, memory, migrate,
    seeded, slots, tamper,
};

const POLL: Duration = Duration::from_millis(20);

fn options(path: Option<&str>) -> Vec<u8> {
    let mut options = BTreeMap::from([("encrypted".to_owned(), "false".to_owned())]);
    options.extend(path.map(|path| ("wal_path".to_owned(), path.to_owned())));
    frame(&OptionScope { options }).to_vec()
}

async fn record(store: &Arc<dyn ObjectStore>) {
    tamper(store, &[(options_key(), options(Some("s3://elsewhere/wal")))], &[]).await;
}

/// What every way to look at a store answers, of a store on which nothing is under way.
async fn answers(location: &Location) -> Vec<(&'static str, Result<()>)> {
    let (environment, budget, registry) = (environment(), budget(), Registry::shipped());
    let status = inspect(location, &registry, 12, false, &environment, &budget).await;
    let dry_run = inspect(location, &registry, 12, true, &environment, &budget).await;
    let reader = CatalogReader::open(location, POLL, &budget).await;
    let writer = Catalog::open(location, &environment, &budget).await;
    vec![
        ("look", look(location, &Deadline::of(&budget)).await.map(drop)),
        ("status", status.map(drop)),
        ("dry run", dry_run.map(drop)),
        ("run", migrate(location, &Request::to(12), budget.clone()).await.map(drop)),
        ("reader", reader.map(drop)),
        ("writer", writer.map(drop)),
        ("create", create(location, &environment, &budget).await.map(drop)),
        ("adopt, dry", adopt(location, true, &environment, &budget).await.map(drop)),
        ("adopt", adopt(location, false, &environment, &budget).await.map(drop)),
        ("demote", demote(location, false, &environment, &budget).await.map(drop)),
        ("truncate", truncate(location, 1, false, &environment, &budget).await.map(drop)),
        ("abandon", abandon(location, &registry, &environment, budget).await.map(drop)),
    ]
}

#[tokio::test]
async fn a_store_that_says_that_its_log_is_elsewhere_is_refused_by_all_and_nothing_is_written() {
    for format in [8, 9, 11, 12] {
        let store = seeded(Seed::small(format)).await;
        record(&store).await;
        let (before, taken) = (dump(&store).await, epoch_of(&store).await);
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        for (who, answer) in answers(&location).await {
            let error = answer.expect_err(who);
            assert_eq!(error.kind(), ErrorKind::Migration, "{format}, {who}: {error}");
            assert!(error.message().contains("wal_path"), "{format}, {who}: {error}");
            assert!(error.next_step().is_some_and(|next| next.contains("log back into the store")), "{who}");
        }
        assert_eq!(mortal.writes(), 0, "{format}");
        assert!(dump(&store).await == before && epoch_of(&store).await == taken, "{format}");
    }
}

/// The epoch as the manifest has it; `look` refuses this store.
async fn epoch_of(store: &Arc<dyn ObjectStore>) -> u64 {
    let admin = slatedb::admin::AdminBuilder::new(PATH, Arc::clone(store)).build();
    admin.read_manifest(None).await.unwrap().unwrap().writer_epoch()
}

#[tokio::test]
async fn commits_that_are_in_another_log_alone_are_not_migrated_away() {
    let (store, elsewhere) = (seeded(Seed::small(9)).await, memory());
    record(&store).await;
    // The catalog's own software goes on with its log elsewhere, and is killed before a flush.
    let db = slatedb::Db::builder(PATH, Arc::clone(&store))
        .with_wal_object_store(Arc::clone(&elsewhere))
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await
        .unwrap();
    let head = Head { snapshot_id: LAST_SNAPSHOT + 1, batch_seq: LAST_SNAPSHOT + 9 };
    db.put(Key::System(System::Head).encode(), frame(&head)).await.unwrap();
    db.flush_with_options(slatedb::config::FlushOptions { flush_type: slatedb::config::FlushType::Wal })
        .await
        .unwrap();
    let acknowledged = db.get(Key::System(System::Head).encode()).await.unwrap().unwrap();
    assert_eq!(acknowledged, frame(&head));
    let survives = copied(&store).await;
    drop(db);
    // Without the other store the commit is not to be seen: this is why it is refused.
    let shown = dump(&survives).await;
    let shown = shown.iter().find(|(key, _)| *key == Key::System(System::Head).encode()).unwrap();
    assert_ne!(shown.1, frame(&head));
    for (who, answer) in answers(&at(&survives)).await {
        assert_eq!(kind(&answer), ErrorKind::Migration, "{who}");
    }
}

#[tokio::test]
async fn it_is_looked_up_again_under_the_writers_own_epoch() {
    for format in [8, 9, 11] {
        let store = seeded(Seed::small(format)).await;
        let taken = epoch(&store).await;
        // The look has passed; only then does the catalog's own software move its log.
        record(&store).await;
        let before = dump(&store).await;
        let native = Native::open(&at(&store), taken + 1, Deadline::of(&budget())).await.unwrap();
        let registry = Registry::shipped();
        let ran =
            driver::migrate(&native, &registry, &Request::to(12), &environment(), budget(), &|_| {}).await;
        native.close(Ending::Abandoned).await.unwrap();
        assert_eq!(kind(&ran), ErrorKind::Migration, "{format}");
        assert!(dump(&store).await == before, "{format}");
    }
}

#[tokio::test]
async fn an_open_handle_refuses_as_soon_as_it_is_recorded() {
    let store = seeded(Seed::small(11)).await;
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    let moved = Head { snapshot_id: LAST_SNAPSHOT, batch_seq: 900 };
    let head = (Key::System(System::Head).encode(), frame(&moved).to_vec());
    tamper(&store, &[head, (options_key(), options(Some("")))], &[]).await;
    let below = reader.reader().await;
    let mut seen = below.subscribe();
    let answer = loop {
        match reader.read(|view| async move { Ok(view.head()) }).await {
            Ok(head) => assert_ne!(head, moved),
            Err(error) => break error,
        }
        seen.changed().await.unwrap();
    };
    assert_eq!(answer.kind(), ErrorKind::Migration);
    reader.close().await.unwrap();
}

#[tokio::test]
async fn a_slot_that_records_it_is_refused_also_by_those_who_hold_the_index_from_before() {
    let store = logged(Seed::small(11)).await;
    let session = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let reader = CatalogReader::open(&at(&store), POLL, &budget()).await.unwrap();
    let head = session.read().await.unwrap().head();
    let next = Head { batch_seq: head.batch_seq + 1, ..head };
    let batch = Batch {
        puts: vec![
            (Key::System(System::Head).encode().into(), frame(&next)),
            (options_key().into(), options(Some("s3://elsewhere/wal")).into()),
        ],
        deletes: Vec::new(),
    };
    let sequence =
        slots(&store).await.last().copied().unwrap_or(0).max(commit_log(&store).await.unwrap().last_slot) + 1;
    let log = Log::of(&at(&store), &Deadline::of(&budget()));
    let slot = CommitSlot::new(7, head.batch_seq, batch).encode();
    store.put_opts(&log.path(sequence), slot.into(), PutOptions::default()).await.unwrap();
    for (who, answer) in answers(&at(&store)).await {
        assert_eq!(kind(&answer), ErrorKind::Migration, "{who}");
    }
    let read = reader.read(|view| async move { Ok(view.head()) }).await;
    assert_eq!(kind(&read), ErrorKind::Migration);
    let committed = session.commit(&[Change::CreateSchema { name: "after".to_owned() }]).await;
    assert_eq!(kind(&committed), ErrorKind::Migration);
    reader.close().await.unwrap();
    session.close().await.unwrap();
}
