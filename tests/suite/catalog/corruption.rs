//! Corruption is typed and found before the marker stands; a directory unit can be taken back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metashift::ErrorKind;
use metashift::catalog::abandon::abandon;
use metashift::catalog::driver::Request;
use metashift::catalog::handle::{Catalog, CatalogReader};
use metashift::catalog::inspect::inspect;
use metashift::catalog::key::{Current, Entity, Inline, Key, Name, Operation, System};
use metashift::catalog::location::Location;
use metashift::catalog::seed::{ROW_TABLE, Seed};
use metashift::catalog::units::Registry;
use metashift::catalog::value::{Migration, NameEntry, Schema, Table, frame};
use object_store::ObjectStore;

use super::support::{
    Mortal, PATH, at, budget, content, copied, dump, dying_at, environment, finish, kind, memory, migrate,
    records, seeded, tamper,
};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn current(entity: Entity) -> Vec<u8> {
    Key::Current(Current::Entity(entity)).encode()
}

fn table(table_id: u64) -> Vec<u8> {
    current(Entity::Table { table_id })
}

fn row_delete(row_id: u64) -> Vec<u8> {
    Key::Inline(Inline::Live(Operation::RowDelete { table_id: ROW_TABLE, row_id })).encode()
}

fn marker(from_format: u64, to_format: u64, cursor: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let marker = Migration {
        from_format,
        to_format,
        cursor: Bytes::copy_from_slice(cursor),
        original_format: Some(from_format),
    };
    (Key::System(System::Migration).encode(), frame(&marker).to_vec())
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    [b"MRNE\0", bytes].concat()
}

/// Everything that is planted in a store of format 8, and what a run to 12 says about it.
fn plants() -> Vec<(&'static str, Rows, u64)> {
    let name =
        Table { table_id: ROW_TABLE + 900, schema_id: 1, table_name: "table_0_".into(), ..Table::default() };
    let twin = Table { table_id: ROW_TABLE + 901, ..name.clone() };
    vec![
        ("wrong magic", vec![(row_delete(0), b"MRNF\0\x08\x05".to_vec())], 9),
        ("a newer encoding", vec![(row_delete(0), b"MRNE\x01\x08\x05".to_vec())], 9),
        ("a truncated header", vec![(row_delete(0), b"MRN".to_vec())], 9),
        ("a truncated message", vec![(row_delete(0), framed(&[8]))], 9),
        ("a short key in the range", vec![(vec![6, 3, 3, 0, 0], framed(&[8, 5]))], 9),
        ("a long key in the range", vec![([row_delete(0), vec![1]].concat(), framed(&[8, 5]))], 9),
        ("an id that is not the key's", vec![(table(ROW_TABLE), frame(&twin).to_vec())], 11),
        (
            "two tables with one name",
            vec![
                (table(ROW_TABLE + 900), frame(&name).to_vec()),
                (table(ROW_TABLE + 901), frame(&twin).to_vec()),
            ],
            11,
        ),
        (
            "a delete file that is none",
            vec![(current(Entity::DeleteFile { table_id: ROW_TABLE, delete_file_id: 1 }), framed(&[8]))],
            12,
        ),
    ]
}

#[tokio::test]
async fn a_system_record_that_does_not_decode_is_corruption_for_everybody_who_looks() {
    for record in [System::Format, System::Head, System::Migration] {
        let store = seeded(Seed::small(11)).await;
        tamper(&store, &[(Key::System(record).encode(), b"rubbish".to_vec())], &[]).await;
        let (registry, what) = (Registry::shipped(), format!("{record:?}"));
        let looked = inspect(&at(&store), &registry, 12, false, &environment(), &budget()).await;
        assert_eq!(kind(&looked), ErrorKind::Corruption, "{what}");
        let ran = migrate(&at(&store), &Request::to(12), budget()).await;
        assert_eq!(kind(&ran), ErrorKind::Corruption, "{what}");
        let opened = Catalog::open(&at(&store), &environment(), &budget()).await;
        assert_eq!(kind(&opened), ErrorKind::Corruption, "{what}");
        let read = CatalogReader::open(&at(&store), Duration::from_secs(10), &budget()).await;
        assert_eq!(kind(&read), ErrorKind::Corruption, "{what}");
    }
}

#[tokio::test]
async fn corrupt_records_are_found_before_the_marker_of_their_unit_stands_and_nothing_of_it_is_written() {
    for (what, puts, unit_reaches) in plants() {
        let store = seeded(Seed::small(8)).await;
        tamper(&store, &puts, &[]).await;
        // The dry run finds it first, whichever unit it is of, and writes nothing at all.
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let dry = inspect(&location, &Registry::shipped(), 12, true, &environment(), &budget()).await;
        assert_eq!(kind(&dry), ErrorKind::Corruption, "{what}");
        assert_eq!(mortal.writes(), 0);

        let before = content(&dump(&store).await);
        let refused = migrate(&at(&store), &Request::to(unit_reaches), budget()).await;
        assert_eq!(kind(&refused), ErrorKind::Corruption, "{what}");
        assert!(refused.unwrap_err().message().contains("0x"), "{what} names no key");
        let after = dump(&store).await;
        assert_eq!(records(&after).marker, None, "{what}");
        // Also what would stop a later unit is found before the first, which cannot be taken back.
        assert_eq!(content(&after), before, "{what}");
        assert_eq!(records(&after).format.unwrap().format_version, 8, "{what}");
    }
}

/// A store of a format with 24 tables and a schema whose names no key of format 11 holds; and the keys of all.
async fn with_long_names(format: u64) -> (Arc<dyn ObjectStore>, Vec<Vec<u8>>) {
    let store = seeded(Seed::small(format)).await;
    let schema = Schema { schema_id: 77, schema_name: "s".repeat(65_600), ..Schema::default() };
    let mut puts = vec![(current(Entity::Schema { schema_id: 77 }), frame(&schema).to_vec())];
    for table_id in 0..24 {
        let table_id = ROW_TABLE + 800 + table_id;
        let table_name = format!("t{table_id}{}", "\0".repeat(33_000));
        let long = Table { table_id, schema_id: 3, table_name, ..Table::default() };
        puts.push((table(table_id), frame(&long).to_vec()));
    }
    tamper(&store, &puts, &[]).await;
    (store, puts.into_iter().map(|(key, _)| key).collect())
}

#[tokio::test]
async fn names_that_format_11_cannot_hold_are_listed_before_anything_is_changed() {
    for format in [3, 8, 9] {
        let (store, keys) = with_long_names(format).await;
        let before = dump(&store).await;
        for to_format in [11, 12] {
            let dry =
                inspect(&at(&store), &Registry::shipped(), to_format, true, &environment(), &budget()).await;
            let ran = migrate(&at(&store), &Request::to(to_format), budget()).await;
            for refused in [dry.map(drop), ran.map(drop)] {
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::NameTooLong, "{refused}");
                let named = keys
                    .iter()
                    .filter(|key| refused.message().contains(&metashift::catalog::key::shown(key)));
                assert_eq!(named.count(), 10, "{refused}");
                assert!(refused.message().ends_with("; and 15 more"), "{refused}");
                assert!(
                    refused.message().contains("schema \"ssss") && refused.message().len() < 4_000,
                    "{refused}"
                );
                assert!(refused.next_step().unwrap().starts_with("rename them"), "{refused}");
            }
        }
        assert!(dump(&store).await == before, "{format}");
        // Format 9 keeps such names.
        if format < 9 {
            finish(&store, 9).await;
        }
    }
}

#[tokio::test]
async fn a_commit_of_a_name_that_no_key_holds_is_refused_by_its_kind() {
    let store = seeded(Seed::small(11)).await;
    let name = "\0".repeat(40_000);
    let refused = super::support::create_schema(&store, &name).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NameTooLong);
}

#[tokio::test]
async fn two_names_are_named_in_the_refusal() {
    let (_, puts, _) = plants().into_iter().find(|(what, ..)| what.starts_with("two tables")).unwrap();
    let store = seeded(Seed::small(9)).await;
    tamper(&store, &puts, &[]).await;
    let refused = migrate(&at(&store), &Request::to(11), budget()).await.unwrap_err();
    for (key, _) in &puts {
        let shown = metashift::catalog::key::shown(key);
        assert!(refused.message().contains(&shown), "{refused} does not name {shown}");
    }
}

#[tokio::test]
async fn corrupt_system_records_are_corruption() {
    let head = Key::System(System::Head).encode();
    let format = Key::System(System::Format).encode();
    let plants: Vec<(&str, Rows, Vec<Vec<u8>>)> = vec![
        ("a marker of another format", vec![marker(9, 11, b"")], vec![]),
        ("a cursor outside of the range", vec![marker(8, 9, &[6, 4, 3, 0])], vec![]),
        ("a cursor that is no key", vec![marker(8, 9, &[6, 3, 3, 0])], vec![]),
        ("a missing head", vec![], vec![head.clone()]),
        ("a missing head under a marker", vec![marker(8, 9, b"")], vec![head.clone()]),
        ("a format of other bytes", vec![(format.clone(), b"format".to_vec())], vec![]),
        ("a marker without a format", vec![marker(8, 9, b"")], vec![format]),
        ("a head of other bytes", vec![(head, framed(&[8]))], vec![]),
    ];
    for (what, puts, deletes) in plants {
        let store = seeded(Seed::small(8)).await;
        tamper(&store, &puts, &deletes).await;
        let mortal = Mortal::new(Arc::clone(&store));
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let refused = migrate(&location, &Request::to(12), budget()).await;
        assert_eq!(kind(&refused), ErrorKind::Corruption, "{what}");
        assert_eq!(mortal.writes(), 0, "{what}");
    }
}

#[tokio::test]
async fn a_marker_of_a_unit_that_is_not_carried_is_refused_without_a_write() {
    let store = seeded(Seed::small(9)).await;
    tamper(&store, &[marker(9, 12, b"")], &[]).await;
    let mortal = Mortal::new(Arc::clone(&store));
    let location = Location::new(Arc::clone(&mortal) as _, PATH);
    assert_eq!(kind(&migrate(&location, &Request::to(12), budget()).await), ErrorKind::Migration);
    assert_eq!(mortal.writes(), 0);
}

#[tokio::test]
async fn a_leftover_entry_is_overwritten_and_one_of_a_live_record_is_corruption() {
    let entry = |id| {
        let name = Name::Table { schema_id: 0, name: "table_0_".into() };
        (Key::Name(name).encode(), frame(&NameEntry { id }).to_vec())
    };
    // An entry whose record is gone, and one whose record has another name by now.
    for leftover in [ROW_TABLE + 777, ROW_TABLE + 3] {
        let store = seeded(Seed::small(9)).await;
        tamper(&store, &[entry(leftover)], &[]).await;
        finish(&store, 11).await;
        let migrated = dump(&store).await;
        assert!(migrated.iter().any(|(key, value)| (key.to_vec(), value.to_vec()) == entry(ROW_TABLE)));
    }
    // A marker already stands, so the pass before the start does not run; the step finds the rival.
    let rival = Table { table_id: ROW_TABLE + 777, table_name: "table_0_".into(), ..Table::default() };
    let store = seeded(Seed::small(9)).await;
    let puts = [entry(rival.table_id), (table(rival.table_id), frame(&rival).to_vec()), marker(9, 11, b"")];
    tamper(&store, &puts, &[]).await;
    assert_eq!(kind(&migrate(&at(&store), &Request::to(11), budget()).await), ErrorKind::Corruption);
}

#[tokio::test]
async fn a_directory_unit_can_be_abandoned_and_run_again() {
    let store = seeded(Seed { schemas: 300, tables: 600, ..Seed::small(9) }).await;
    let before = content(&dump(&store).await);
    let whole = copied(&store).await;
    finish(&whole, 12).await;
    migrate(&at(&store), &Request::to(12), budget().with_pages(Some(2))).await.unwrap();
    assert!(records(&dump(&store).await).marker.is_some());
    let done = abandon(&at(&store), &Registry::shipped(), &environment(), budget()).await.unwrap();
    assert_eq!((done.unit.as_str(), done.format, done.entries), ("index-current-names", 9, 512));
    let after = dump(&store).await;
    assert_eq!(content(&after), before);
    assert_eq!(records(&after).marker, None);
    finish(&store, 12).await;
    assert_eq!(content(&dump(&store).await), content(&dump(&whole).await));
}

#[tokio::test]
async fn an_abandon_that_crashes_leaves_a_store_that_a_run_completes() {
    let seed = Seed { schemas: 300, tables: 600, ..Seed::small(9) };
    let store = seeded(seed).await;
    let whole = copied(&store).await;
    finish(&whole, 12).await;
    migrate(&at(&store), &Request::to(12), budget().with_pages(Some(3))).await.unwrap();
    for writes in 0.. {
        let shared = copied(&store).await;
        let mortal = Mortal::with_writes(Arc::clone(&shared), writes);
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let work = async {
            abandon(&location, &Registry::shipped(), &environment(), budget())
                .await
                .map(|_| metashift::catalog::driver::Report::default())
        };
        let ended = super::support::until_death(&mortal, work).await;
        mortal.kill();
        finish(&shared, 12).await;
        assert!(content(&dump(&shared).await) == content(&dump(&whole).await), "dead after {writes} writes");
        if let super::support::Ended::Lived(result) = ended {
            result.unwrap();
            break;
        }
    }
}

#[tokio::test]
async fn the_rewriting_unit_cannot_be_abandoned_and_nothing_can_be_when_nothing_runs() {
    let store: Arc<dyn ObjectStore> = seeded(Seed { tombstones: 600, ..Seed::small(8) }).await;
    assert_eq!(
        kind(&abandon(&at(&store), &Registry::shipped(), &environment(), budget()).await),
        ErrorKind::Migration
    );
    dying_at(&store, &Request::to(9), budget(), "catalog-started", 1).await;
    let before = dump(&store).await;
    assert_eq!(
        kind(&abandon(&at(&store), &Registry::shipped(), &environment(), budget()).await),
        ErrorKind::Migration
    );
    assert_eq!(dump(&store).await, before);
    assert_eq!(
        kind(&abandon(&at(&memory()), &Registry::shipped(), &environment(), budget()).await),
        ErrorKind::Migration
    );
}
