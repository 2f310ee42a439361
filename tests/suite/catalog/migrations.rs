//! What a migration brings about.

use metashift::ErrorKind;
use metashift::catalog::driver::Request;
use metashift::catalog::seed::Seed;
use metashift::catalog::value::Format;

use super::support::{at, budget, content, dump, finish, history, kind, migrate, records, seeded};

#[tokio::test]
async fn a_store_of_every_older_format_becomes_what_a_store_of_the_newer_format_is() {
    for target in [9, 11, 12] {
        let newer = content(&dump(&seeded(Seed::small(target)).await).await);
        for format in [8, 9, 11].into_iter().filter(|format| *format < target) {
            let store = seeded(Seed::small(format)).await;
            let report = finish(&store, target).await;
            assert_eq!((report.from_format, report.format), (format, target));
            let migrated = dump(&store).await;
            assert_eq!(content(&migrated), newer, "{format} to {target}");
            let records = records(&migrated);
            assert_eq!(records.marker, None);
            let format = records.format.unwrap();
            assert_eq!(format, Format { format_version: target, original_format: None, ..format.clone() });
        }
    }
}

#[tokio::test]
async fn a_store_of_formats_1_to_7_is_stamped_and_then_migrated_to_12() {
    for format in 1..8 {
        let store = seeded(Seed::small(format)).await;
        let before = history(&store).await;
        let report = finish(&store, 12).await;
        assert_eq!((report.from_format, report.format), (format, 12));
        assert_eq!(
            report.units,
            [
                "additive-stamp",
                "version-inline-tombstones",
                "index-current-names",
                "index-delete-file-targets"
            ]
        );
        assert_eq!(history(&store).await, before);
    }
}

#[tokio::test]
async fn every_snapshot_shows_the_same_before_and_after_a_migration() {
    let store = seeded(Seed { tombstones: 300, ..Seed::small(8) }).await;
    let before = history(&store).await;
    assert!(before.windows(2).all(|pair| pair[0] != pair[1]), "every snapshot of the seed differs");
    finish(&store, 12).await;
    assert_eq!(history(&store).await, before);
}

#[tokio::test]
async fn running_a_completed_migration_again_changes_nothing() {
    let store = seeded(Seed::small(8)).await;
    finish(&store, 12).await;
    let before = dump(&store).await;
    let report = finish(&store, 12).await;
    assert_eq!((report.records_moved, report.batches, report.resumed), (0, 0, false));
    assert!(report.units.is_empty());
    assert_eq!(dump(&store).await, before);
}

#[tokio::test]
async fn head_moves_once_a_batch_and_keeps_its_snapshot() {
    let store = seeded(Seed { tombstones: 600, ..Seed::small(8) }).await;
    let before = records(&dump(&store).await).head.unwrap();
    let report = finish(&store, 9).await;
    let after = records(&dump(&store).await).head.unwrap();
    assert_eq!(after.snapshot_id, before.snapshot_id);
    // Start, three steps of at most 256, finish.
    assert_eq!(report.batches, 5);
    assert_eq!(after.batch_seq, before.batch_seq + report.batches);
}

#[tokio::test]
async fn there_is_no_way_back_and_no_migration_of_what_is_no_catalog() {
    let store = seeded(Seed::small(12)).await;
    assert_eq!(kind(&migrate(&at(&store), &Request::to(11), budget()).await), ErrorKind::Migration);
    assert_eq!(kind(&migrate(&at(&store), &Request::to(10), budget()).await), ErrorKind::InvalidInput);
    let empty = super::support::memory();
    assert_eq!(kind(&migrate(&at(&empty), &Request::to(12), budget()).await), ErrorKind::InvalidInput);
}
