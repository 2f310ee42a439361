//! Stores that released `moraine` crates write, migrated by metashift and read back by `moraine`.
//!
//! What its API cannot produce is written at the byte level beside what it can: archived row deletes (a flush needs
//! Parquet files), and row deletes in bulk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metashift::ErrorKind;
use metashift::catalog::driver::{Report, Request, run};
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::key::{Inline, Key, Operation};
use metashift::catalog::location::Location;
use metashift::catalog::seed;
use metashift::catalog::store::TagExtractor;
use metashift::catalog::units::Registry;
use metashift::catalog::value::{InlineChunk, RowDeletion, frame};
use metashift::environment::Environment;
use metashift::step::Budget;
use object_store::ObjectStore;
use object_store::memory::InMemory;

type Store = Arc<dyn ObjectStore>;

fn environment() -> Environment {
    Environment::system()
}

fn budget() -> Budget {
    Budget::until(environment(), environment().now() + Duration::from_secs(120))
}

fn at(store: &Store) -> Location {
    Location::new(Arc::clone(store), "")
}

async fn migrate(store: &Store, to_format: u64) -> Report {
    let request = Request::to(to_format);
    let report =
        run(&at(store), &Registry::shipped(), &request, &environment(), budget(), &|_| {}).await.unwrap();
    assert!(report.done, "{report:?}");
    report
}

/// What one snapshot shows, in terms that every reader has: schemas, tables by schema, delete files by table, inline
/// rows by table (row, the snapshot that inserted it, its chunk).
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    schemas: Vec<(u64, String)>,
    tables: Vec<(u64, u64, String)>,
    delete_files: Vec<(u64, u64, u64, String)>,
    rows: BTreeMap<u64, Vec<(u64, u64, Vec<u8>)>>,
}

/// Ours, whatever the format.
async fn ours(store: &Store, snapshot: u64) -> Shown {
    let contents = seed::read_at(&at(store), snapshot, &budget()).await.unwrap();
    let mut shown = Shown {
        schemas: contents.schemas.into_iter().map(|schema| (schema.schema_id, schema.schema_name)).collect(),
        tables: contents
            .tables
            .into_iter()
            .map(|table| (table.schema_id, table.table_id, table.table_name))
            .collect(),
        delete_files: contents
            .delete_files
            .into_iter()
            .map(|file| (file.table_id, file.delete_file_id, file.data_file_id, file.path))
            .collect(),
        rows: BTreeMap::new(),
    };
    // A dropped table has no rows to be asked for, though its chunks are still there.
    let live: Vec<_> = shown.tables.iter().map(|(_, table, _)| *table).collect();
    for (table, chunks) in contents.rows.into_iter().filter(|(table, _)| live.contains(table)) {
        let mut rows: Vec<_> = chunks
            .into_iter()
            .flat_map(|chunk| {
                let body = chunk.body.to_vec();
                chunk.row_ids.into_iter().map(move |row| (row, chunk.begin_snapshot, body.clone()))
            })
            .collect();
        rows.sort();
        shown.rows.insert(table, rows);
    }
    shown.sort();
    shown
}

impl Shown {
    fn sort(&mut self) {
        self.schemas.sort();
        self.tables.sort();
        self.delete_files.sort();
        self.rows.retain(|_, rows| !rows.is_empty());
    }
}

/// The same, as one version of `moraine` answers it.
macro_rules! asked {
    ($name:ident, $moraine:ident) => {
        async fn $name(catalog: &$moraine::Catalog, snapshot: u64) -> Shown {
            let id = $moraine::SnapshotId::new(snapshot);
            let view = catalog.snapshot_at(id).await.unwrap();
            let mut shown = Shown::default();
            for schema in view.schemas() {
                shown.schemas.push((schema.id.get(), schema.name.clone()));
                for table in view.tables_in(schema.id) {
                    let table_id = table.id.get();
                    shown.tables.push((schema.id.get(), table_id, table.name.clone()));
                    for file in view.delete_files_of(table.id) {
                        shown.delete_files.push((
                            table_id,
                            file.id.get(),
                            file.data_file_id.get(),
                            file.path.clone(),
                        ));
                    }
                    let rows = catalog.recent_rows_at(table.id, id).await.unwrap();
                    let rows = rows
                        .iter()
                        .map(|row| (row.row_id, row.begin_snapshot.get(), row.chunk_body.as_ref().clone()));
                    shown.rows.insert(table_id, rows.collect());
                }
            }
            shown.sort();
            shown
        }
    };
}

asked!(asked_061, moraine_061);
asked!(asked_070, moraine_070);

/// A history written through one version of `moraine`: schemas, tables, a rename, a drop, inline rows, deletes in
/// several snapshots, data files and delete files.
macro_rules! written {
    ($name:ident, $moraine:ident) => {
        async fn $name(store: &Store) -> ($moraine::Catalog, u64) {
            use $moraine::{Catalog, CatalogOptions, ColumnDef, DataFile, DeleteFile, InlineChunk};
            let mut options = CatalogOptions::default();
            options.flush_interval = Duration::from_millis(1);
            let catalog = Catalog::open(Arc::clone(store), options).await.unwrap();
            let column = ColumnDef {
                name: "id".into(),
                column_type: "BIGINT".into(),
                nulls_allowed: true,
                default_value: None,
                children: Vec::new(),
            };
            let columns = std::slice::from_ref(&column);
            catalog
                .commit(|transaction| {
                    for schema in ["sales", "stock"] {
                        let schema = transaction.create_schema(schema)?;
                        for table in ["orders", "parts", "old"] {
                            transaction.create_table(schema, table, columns)?;
                        }
                    }
                    Ok(())
                })
                .await
                .unwrap();
            let tables: Vec<_> = {
                let view = catalog.snapshot().await.unwrap();
                view.schemas()
                    .into_iter()
                    .flat_map(|schema| view.tables_in(schema.id))
                    .map(|table| table.id)
                    .collect()
            };
            for round in 0..3_u8 {
                catalog
                    .commit(|transaction| {
                        for table in &tables {
                            let chunk = InlineChunk {
                                schema_version: 1,
                                arrow_schema: vec![1, 2, 3],
                                arrow_body: vec![round; 4],
                                row_count: 10,
                            };
                            transaction.inline_insert(*table, &chunk, &[])?;
                        }
                        Ok(())
                    })
                    .await
                    .unwrap();
            }
            for row in [0, 7, 12, 29] {
                catalog
                    .commit(|transaction| {
                        tables
                            .iter()
                            .take(4)
                            .try_for_each(|table| transaction.inline_delete(*table, row, &[]))
                    })
                    .await
                    .unwrap();
            }
            catalog
                .commit(|transaction| {
                    for (number, table) in tables.iter().enumerate().take(3) {
                        let file = DataFile {
                            path: format!("data-{number}.parquet"),
                            path_is_relative: true,
                            file_format: "parquet".into(),
                            record_count: 10,
                            file_size_bytes: 100,
                            footer_size: 10,
                            encryption_key: None,
                            partition_values: Vec::new(),
                            column_stats: Vec::new(),
                        };
                        let file = transaction.register_data_file(*table, file, &[])?;
                        let delete = DeleteFile {
                            data_file_id: file,
                            path: format!("delete-{number}.parquet"),
                            path_is_relative: true,
                            format: "parquet".into(),
                            delete_count: 1,
                            file_size_bytes: 10,
                            footer_size: 1,
                            encryption_key: None,
                        };
                        transaction.register_delete_file(*table, delete, &[])?;
                    }
                    Ok(())
                })
                .await
                .unwrap();
            catalog.commit(|transaction| transaction.rename_table(tables[1], "renamed")).await.unwrap();
            catalog.commit(|transaction| transaction.drop_table(tables[2])).await.unwrap();
            let last = catalog.snapshot().await.unwrap().current_snapshot().id.get();
            (catalog, last)
        }
    };
}

written!(written_061, moraine_061);
written!(written_070, moraine_070);

async fn plant(store: &Store, puts: &[(Vec<u8>, Vec<u8>)]) {
    let db = slatedb::Db::builder("", Arc::clone(store))
        .with_segment_extractor(Arc::new(TagExtractor))
        .build()
        .await
        .unwrap();
    for (key, value) in puts {
        db.put(key, value).await.unwrap();
    }
    db.flush().await.unwrap();
    db.close().await.unwrap();
}

async fn open_070(store: &Store) -> moraine_070::Result<moraine_070::Catalog> {
    moraine_070::Catalog::open(Arc::clone(store), moraine_070::CatalogOptions::default()).await
}

async fn open_061(store: &Store) -> moraine_061::Result<moraine_061::Catalog> {
    moraine_061::Catalog::open(Arc::clone(store), moraine_061::CatalogOptions::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_of_both_releases_decodes() {
    for newer in [false, true] {
        let store: Store = Arc::new(InMemory::new());
        if newer {
            written_070(&store).await.0.close().await.unwrap();
        } else {
            written_061(&store).await.0.close().await.unwrap();
        }
        let dump = seed::dump(&at(&store), &budget()).await.unwrap();
        assert!(dump.len() > 60);
        for (key, _) in dump {
            assert_eq!(Key::decode(&key).unwrap().encode(), key);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_0_6_1_migrated_by_us_to_9_answers_the_same_in_0_7_0_at_every_snapshot() {
    let store: Store = Arc::new(InMemory::new());
    let (catalog, last) = written_061(&store).await;
    let mut before = Vec::new();
    for snapshot in 0..=last {
        before.push(asked_061(&catalog, snapshot).await);
    }
    catalog.close().await.unwrap();
    assert!(before.windows(2).all(|pair| pair[0] != pair[1]), "every snapshot differs");
    // Our visibility rules against its answers, before anything is migrated.
    for (snapshot, shown) in before.iter().enumerate() {
        assert_eq!(&ours(&store, snapshot as u64).await, shown, "snapshot {snapshot} before");
    }
    // What its API does not write: an archived row delete, of a row whose chunk is live.
    let archived = Operation::RowDelete { table_id: 3, row_id: 1_000 };
    let planted = Key::Inline(Inline::Archived(archived)).encode();
    plant(&store, &[(planted.clone(), frame(&RowDeletion { end_snapshot: 3 }).to_vec())]).await;

    let report = migrate(&store, 9).await;
    assert!(report.from_format <= 8);
    assert_eq!(report.records_moved, 16);
    let dump = seed::dump(&at(&store), &budget()).await.unwrap();
    assert!(dump.iter().any(|(key, _)| *key == planted), "archived row deletes stay");

    let catalog = open_070(&store).await.unwrap();
    for (snapshot, shown) in before.iter().enumerate() {
        assert_eq!(&asked_070(&catalog, snapshot as u64).await, shown, "snapshot {snapshot} in 0.7.0");
        assert_eq!(&ours(&store, snapshot as u64).await, shown, "snapshot {snapshot} after");
    }
    // And it is a live catalog: 0.7.0 commits to it.
    catalog.commit(|transaction| transaction.create_schema("afterwards").map(|_| ())).await.unwrap();
    catalog.close().await.unwrap();
    let reader = CatalogReader::open(&at(&store), Duration::from_secs(10), &budget()).await.unwrap();
    let named = reader.read(|view| async move { view.schema_named("afterwards").await }).await.unwrap();
    assert!(named.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_0_7_0_at_9_migrated_by_us_to_12_shows_what_0_7_0_showed() {
    let store: Store = Arc::new(InMemory::new());
    let (catalog, last) = written_070(&store).await;
    let mut before = Vec::new();
    for snapshot in 0..=last {
        before.push(asked_070(&catalog, snapshot).await);
    }
    catalog.close().await.unwrap();
    for (snapshot, shown) in before.iter().enumerate() {
        assert_eq!(&ours(&store, snapshot as u64).await, shown, "snapshot {snapshot} before");
    }
    let report = migrate(&store, 12).await;
    assert_eq!(report.from_format, 9);
    for (snapshot, shown) in before.iter().enumerate() {
        assert_eq!(&ours(&store, snapshot as u64).await, shown, "snapshot {snapshot} after");
    }
    let catalog = Catalog::open(&at(&store), &environment(), &budget()).await.unwrap();
    let view = catalog.read().await.unwrap();
    let last = before.last().unwrap();
    for (id, name) in &last.schemas {
        assert_eq!(view.schema_named(name).await.unwrap().unwrap().schema_id, *id);
    }
    for (schema, id, name) in &last.tables {
        assert_eq!(view.table_named(*schema, name).await.unwrap().unwrap().table_id, *id);
    }
    for (table, delete_file, data_file, _) in &last.delete_files {
        let found = view.delete_files_of(*table, *data_file).await.unwrap();
        assert_eq!(found.iter().map(|file| file.delete_file_id).collect::<Vec<_>>(), [*delete_file]);
    }
    catalog.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_releases_refuse_our_marker_and_formats_11_and_12() {
    // The marker of 8 to 9, on a store that 0.6.1 wrote.
    let store: Store = Arc::new(InMemory::new());
    written_061(&store).await.0.close().await.unwrap();
    stop_under_marker(&store, 9).await;
    assert!(matches!(open_061(&store).await, Err(moraine_061::Error::Migration(_))));
    let options = moraine_061::CatalogOptions::default();
    let read_only = moraine_061::Catalog::open_read_only(Arc::clone(&store), options).await;
    assert!(matches!(read_only, Err(moraine_061::Error::Migration(_))));
    assert!(matches!(open_070(&store).await, Err(moraine_070::Error::Migration(_))));
    // Finished, it is 9: too new for 0.6.1.
    migrate(&store, 9).await;
    assert!(matches!(open_061(&store).await, Err(moraine_061::Error::Migration(_))));

    // The marker of 9 to 11 on the same store, then 11 and 12.
    stop_under_marker(&store, 11).await;
    for to_format in [11, 12] {
        let refused = open_070(&store).await;
        assert!(matches!(refused, Err(moraine_070::Error::Migration(_))), "before {to_format}");
        let options = moraine_070::CatalogOptions::default();
        let refused = moraine_070::Catalog::open_read_only(Arc::clone(&store), options).await;
        assert!(matches!(refused, Err(moraine_070::Error::Migration(_))), "before {to_format}");
        migrate(&store, to_format).await;
    }
    assert!(matches!(open_070(&store).await, Err(moraine_070::Error::Migration(_))), "at 12");
    assert!(matches!(open_061(&store).await, Err(moraine_061::Error::Migration(_))));
}

/// Runs until the marker stands, and no further.
async fn stop_under_marker(store: &Store, to_format: u64) {
    for _ in 0..2 {
        // Where the additive stamp comes first, the second run starts the unit.
        let request = Request::to(to_format);
        let stop = request.stop.clone();
        let registry = Registry::shipped();
        let observe = |_: &Report| stop.ask();
        let report = run(&at(store), &registry, &request, &environment(), budget(), &observe).await.unwrap();
        assert!(!report.done);
        match Catalog::open(&at(store), &environment(), &budget()).await {
            Err(error) if error.message().contains("is being migrated") => {
                assert_eq!(error.kind(), ErrorKind::Migration);
                return;
            }
            _ => {}
        }
    }
    panic!("no marker stands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_were_flushed_to_files_answer_the_same_before_and_after() {
    use moraine_061::{
        Catalog as Released, CatalogOptions, DataFile, FlushedDataFile, InlineChunk, SnapshotId,
    };
    let store: Store = Arc::new(InMemory::new());
    let catalog = Released::open(Arc::clone(&store), CatalogOptions::default()).await.unwrap();
    let column = moraine_061::ColumnDef {
        name: "id".into(),
        column_type: "BIGINT".into(),
        nulls_allowed: true,
        default_value: None,
        children: Vec::new(),
    };
    catalog
        .commit(|transaction| {
            let main = transaction.schema_by_name("main").unwrap();
            transaction.create_table(main.id, "t", std::slice::from_ref(&column)).map(|_| ())
        })
        .await
        .unwrap();
    let view = catalog.snapshot().await.unwrap();
    let table = view.tables_in(view.schemas()[0].id)[0].id;
    for round in 0..2_u8 {
        catalog
            .commit(|transaction| {
                let chunk = InlineChunk {
                    schema_version: 1,
                    arrow_schema: vec![1],
                    arrow_body: vec![round; 2],
                    row_count: 5,
                };
                transaction.inline_insert(table, &chunk, &[]).map(|_| ())
            })
            .await
            .unwrap();
    }
    catalog.commit(|transaction| transaction.inline_delete(table, 3, &[])).await.unwrap();
    catalog
        .commit(|transaction| {
            let file = DataFile {
                path: "flushed.parquet".into(),
                path_is_relative: true,
                file_format: "parquet".into(),
                record_count: 10,
                file_size_bytes: 100,
                footer_size: 10,
                encryption_key: None,
                partition_values: Vec::new(),
                column_stats: Vec::new(),
            };
            let flushed = FlushedDataFile {
                file,
                row_id_start: 0,
                begin_snapshot: SnapshotId::new(2),
                partial_max: Some(SnapshotId::new(3)),
            };
            transaction.flush_inlined_data(table, 1, &[flushed]).map(|_| ())
        })
        .await
        .unwrap();
    let last = catalog.snapshot().await.unwrap().current_snapshot().id.get();
    let mut before = Vec::new();
    for snapshot in 0..=last {
        before.push(asked_061(&catalog, snapshot).await);
    }
    catalog.close().await.unwrap();
    for (snapshot, shown) in before.iter().enumerate() {
        assert_eq!(&ours(&store, snapshot as u64).await, shown, "snapshot {snapshot} before");
    }
    migrate(&store, 9).await;
    let catalog = open_070(&store).await.unwrap();
    for (snapshot, shown) in before.iter().enumerate() {
        assert_eq!(&asked_070(&catalog, snapshot as u64).await, shown, "snapshot {snapshot} in 0.7.0");
        assert_eq!(&ours(&store, snapshot as u64).await, shown, "snapshot {snapshot} after");
    }
    catalog.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archived_chunks_and_row_deletes_count_for_neither_release_nor_us() {
    // Neither release's API archives anything, so these are written at the byte level.
    let archived = |operation| Key::Inline(Inline::Archived(operation)).encode();
    let chunk = InlineChunk { body: "old".into(), row_id_start: 500, row_count: 4, data_file_id: Some(0) };
    let insert = Operation::Insert { table_id: 2, schema_version: 1, begin_snapshot: 3, chunk_seq: 0 };
    let of_archived = Operation::RowDelete { table_id: 2, row_id: 501 };
    let of_live = Operation::RowDelete { table_id: 2, row_id: 5 };
    let deleted_at = |end_snapshot| frame(&RowDeletion { end_snapshot }).to_vec();
    let plants = [
        (archived(insert), frame(&chunk).to_vec()),
        (archived(of_archived), deleted_at(5)),
        (archived(of_live), deleted_at(4)),
    ];
    let older: Store = Arc::new(InMemory::new());
    let (catalog, last) = written_061(&older).await;
    catalog.close().await.unwrap();
    plant(&older, &plants).await;
    let catalog = open_061(&older).await.unwrap();
    for snapshot in 0..=last {
        assert_eq!(
            ours(&older, snapshot).await,
            asked_061(&catalog, snapshot).await,
            "snapshot {snapshot} in 0.6.1"
        );
    }
    catalog.close().await.unwrap();
    let newer: Store = Arc::new(InMemory::new());
    let (catalog, last) = written_070(&newer).await;
    catalog.close().await.unwrap();
    plant(&newer, &plants).await;
    let catalog = open_070(&newer).await.unwrap();
    for snapshot in 0..=last {
        assert_eq!(
            ours(&newer, snapshot).await,
            asked_070(&catalog, snapshot).await,
            "snapshot {snapshot} in 0.7.0"
        );
    }
    catalog.close().await.unwrap();
}
