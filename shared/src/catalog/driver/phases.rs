//! The batches of a migration that are not steps: pure functions of the system records they were decided on.

use bytes::Bytes;

use crate::catalog::batch::{Anchor, Batch};
use crate::catalog::format::{LAST_ADDITIVE, SystemRecords, WRITER};
use crate::catalog::key::{Key, System};
use crate::catalog::value::{Format, Head, Migration};
use crate::{Error, ErrorKind, Result};

/// Format and head of a catalog; without head there is nothing to anchor on.
pub(crate) fn initialized(records: &SystemRecords) -> Result<(&Format, Head)> {
    match (records.coherent()?, records.head) {
        (Some(format), Some(head)) => Ok((format, head)),
        _ => Err(Error::new(ErrorKind::Corruption, "the catalog has a format but no head")),
    }
}

/// The format before the run that these records are part of.
pub(crate) fn original(records: &SystemRecords) -> u64 {
    let format = records.format.as_ref();
    let noted = records.marker.as_ref().and_then(|marker| marker.original_format);
    noted
        .or_else(|| format.and_then(|format| format.original_format))
        .or_else(|| format.map(|format| format.format_version))
        .unwrap_or_default()
}

fn moved(records: &SystemRecords) -> Result<(Anchor, Batch)> {
    let (_, head) = initialized(records)?;
    let anchor = Anchor { head, marker: records.marker.clone() };
    let mut batch = Batch::default();
    batch.put_system(System::Head, &anchor.advanced(None).head);
    Ok((anchor, batch))
}

/// The additive stamp: format 8, no marker, no key moved.
pub(crate) fn stamp(records: &SystemRecords) -> Result<(Anchor, Batch)> {
    let (format, _) = initialized(records)?;
    let (anchor, mut batch) = moved(records)?;
    batch.put_system(
        System::Format,
        &Format {
            format_version: LAST_ADDITIVE,
            writer_version: WRITER.to_owned(),
            original_format: Some(original(records)),
            ..format.clone()
        },
    );
    Ok((anchor, batch))
}

/// Start: the marker, and head moved with it, so that no warm reader can miss it.
pub(crate) fn start(records: &SystemRecords, to_format: u64) -> Result<(Anchor, Batch)> {
    let (format, _) = initialized(records)?;
    let (anchor, mut batch) = moved(records)?;
    batch.put_system(
        System::Migration,
        &Migration {
            from_format: format.format_version,
            to_format,
            cursor: Bytes::new(),
            original_format: Some(original(records)),
        },
    );
    Ok((anchor, batch))
}

/// Finish: format flipped and marker gone in one batch; the last one of a run forgets where the run began. A commit log
/// keeps its origin; format 10 may not have said it.
pub(crate) fn finish(records: &SystemRecords, target: u64, origin: Option<u64>) -> Result<(Anchor, Batch)> {
    initialized(records)?;
    let Some(marker) = &records.marker else {
        return Err(Error::new(ErrorKind::Internal, "a unit without a marker cannot finish"));
    };
    let (anchor, mut batch) = moved(records)?;
    let more = marker.to_format != target;
    batch.put_system(
        System::Format,
        &Format {
            format_version: marker.to_format,
            writer_version: WRITER.to_owned(),
            commit_log_batch_origin: origin,
            original_format: more.then(|| original(records)),
        },
    );
    batch.delete(Key::System(System::Migration).encode());
    Ok((anchor, batch))
}

/// Forgets where an earlier run began, when the store already is what is asked for.
pub(crate) fn forget(records: &SystemRecords) -> Result<(Anchor, Batch)> {
    let (format, _) = initialized(records)?;
    let (anchor, mut batch) = moved(records)?;
    batch.put_system(System::Format, &Format { original_format: None, ..format.clone() });
    Ok((anchor, batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::value::unframe;

    fn records(version: u64) -> SystemRecords {
        SystemRecords {
            format: Some(Format {
                format_version: version,
                writer_version: "0.6.1".into(),
                commit_log_batch_origin: Some(4),
                original_format: None,
            }),
            head: Some(Head { snapshot_id: 7, batch_seq: 40 }),
            marker: None,
            wal_elsewhere: false,
        }
    }

    fn put<M: prost::Message + Default>(batch: &Batch, key: System) -> Option<M> {
        let key = Key::System(key).encode();
        batch.puts.iter().find(|(at, _)| *at == key).map(|(at, value)| unframe(at, value).unwrap())
    }

    #[test]
    fn the_marker_rides_a_moved_head() {
        let (anchor, batch) = start(&records(9), 11).unwrap();
        assert_eq!(anchor.head, Head { snapshot_id: 7, batch_seq: 40 });
        assert_eq!(put::<Head>(&batch, System::Head), Some(Head { snapshot_id: 7, batch_seq: 41 }));
        let marker: Migration = put(&batch, System::Migration).unwrap();
        assert_eq!((marker.from_format, marker.to_format, marker.original_format), (9, 11, Some(9)));
        assert!(marker.cursor.is_empty());
        assert!(batch.deletes.is_empty());
    }

    #[test]
    fn the_flip_and_the_end_of_the_marker_are_one_batch_that_keeps_the_origin() {
        let marker =
            Migration { from_format: 9, to_format: 11, original_format: Some(3), ..Migration::default() };
        let running = SystemRecords { marker: Some(marker.clone()), ..records(9) };
        for (target, original) in [(11, None), (12, Some(3))] {
            let (anchor, batch) = finish(&running, target, Some(4)).unwrap();
            assert_eq!(anchor.marker.as_ref(), Some(&marker));
            let format: Format = put(&batch, System::Format).unwrap();
            assert_eq!((format.format_version, format.original_format), (11, original));
            assert_eq!(format.commit_log_batch_origin, Some(4));
            assert_eq!(batch.deletes, [Key::System(System::Migration).encode()]);
        }
    }

    #[test]
    fn the_stamp_notes_where_the_run_began_and_leaves_no_marker() {
        let (_, batch) = stamp(&records(3)).unwrap();
        let format: Format = put(&batch, System::Format).unwrap();
        assert_eq!((format.format_version, format.original_format), (8, Some(3)));
        assert_eq!(put::<Migration>(&batch, System::Migration), None);
    }

    #[test]
    fn without_head_nothing_starts() {
        let headless = SystemRecords { head: None, ..records(8) };
        assert_eq!(start(&headless, 9).unwrap_err().kind(), ErrorKind::Corruption);
    }
}
