//! Every durable record of the layout migration: items of v1 under `__lake_internal/`.
//!
//! The first three are shared, to the byte, with binaries already in the field; the others are JSON objects with a
//! `version`. A newer version is refused; fields that this version does not know survive a rewrite.

pub mod control;
pub mod plan;
pub mod reject;
pub mod segment;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, ErrorKind, Result};

/// The marker: v2 is the authority. Never changed or removed once there.
pub const MARKER_KEY: &str = "__lake_internal/dynamo-prefix-v2-authority";
/// The marker's only value.
pub const MARKER_VALUE: &[u8] = b"complete-v1";
/// The durable write barrier.
pub const BARRIER_KEY: &str = "__lake_internal/dynamo-prefix-v2-finalize-barrier";
/// The barrier's only value.
pub const BARRIER_VALUE: &[u8] = b"locked-v1";
/// A field migrator's scan cursor (UTF-8 `pk`); never written by this software.
pub const FOREIGN_CURSOR_KEY: &str = "__lake_internal/dynamo-prefix-v2-backfill-cursor";
/// Everything of ours begins with this.
pub const OWN_PREFIX: &str = "__lake_internal/dynamo-prefix-v2/";

/// Version of every record but the plan, whose version is [`plan::VERSION`].
pub const VERSION: u32 = 1;

/// A durable record of our own.
pub trait Record: Serialize + DeserializeOwned {
    /// The newest version of this record that this software reads and writes; it reads every older one.
    const NEWEST: u32 = VERSION;
}

/// A record and the exact bytes that it was read from, on which its next write is conditional.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<R> {
    /// The record.
    pub record: R,
    /// What is stored.
    pub bytes: Vec<u8>,
}

/// The bytes of a record.
pub fn encode<R: Record>(record: &R) -> Result<Vec<u8>> {
    serde_json::to_vec(record)
        .map_err(|error| Error::new(ErrorKind::Internal, "a record has no JSON form").because(error))
}

/// Reads a record; `key` is for the error.
///
/// `NewerRecord` where its version is newer, `Corruption` where it is not of the documented form.
pub fn decode<R: Record>(key: &str, bytes: &[u8]) -> Result<R> {
    let corrupt = |message: String| {
        Error::new(ErrorKind::Corruption, format!("record {key}: {message}"))
            .next("keep the item as it is and report it")
    };
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| corrupt(format!("not JSON: {error}")))?;
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    match version {
        Some(version) if version > u64::from(R::NEWEST) => Err(Error::new(
            ErrorKind::NewerRecord,
            format!("record {key} has version {version}; this binary knows {}", R::NEWEST),
        )
        .next("run the metashift version that wrote it, or a newer one")),
        Some(1..) => serde_json::from_value(value).map_err(|error| corrupt(error.to_string())),
        _ => Err(corrupt("no version".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::control::Control;
    use super::plan::Plan;
    use super::reject::{Reason, Reject};
    use super::segment::Segment;
    use super::*;

    /// Anything is a record that survives its codec, or typed.
    fn survives<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        match decode::<R>("k", bytes) {
            Ok(record) => assert_eq!(decode::<R>("k", &encode(&record).unwrap()).unwrap(), record),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corruption | ErrorKind::NewerRecord), "{error}");
            }
        }
    }

    fn survives_as_any(bytes: &[u8]) {
        survives::<Plan>(bytes);
        survives::<Segment>(bytes);
        survives::<Reject>(bytes);
        survives::<Control>(bytes);
    }

    /// Records as they are stored, to be bent.
    fn stored() -> Vec<Vec<u8>> {
        vec![
            encode(&Plan::first("f".to_owned(), 8)).unwrap(),
            encode(&Segment::default()).unwrap(),
            encode(&Reject::new("tbl/a", Reason::KeyTooLong, "detail")).unwrap(),
            encode(&Control::default()).unwrap(),
        ]
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_record_or_typed(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            survives_as_any(&bytes);
        }

        #[test]
        fn a_stored_record_with_bytes_changed_cut_or_put_in_is_a_record_or_typed(
            chosen in 0..4_usize,
            at in any::<prop::sample::Index>(),
            cut in 0..6_usize,
            put in "[0-9a-z\"{}:,.\\[\\]-]{0,6}",
        ) {
            let mut bytes = stored().remove(chosen);
            let begin = at.index(bytes.len());
            let end = (begin + cut).min(bytes.len());
            bytes.splice(begin..end, put.bytes());
            survives_as_any(&bytes);
        }
    }

    #[test]
    fn the_three_records_shared_with_the_field_are_pinned_to_the_byte() {
        assert_eq!(MARKER_KEY, "__lake_internal/dynamo-prefix-v2-authority");
        assert_eq!(MARKER_VALUE, b"complete-v1");
        assert_eq!(BARRIER_KEY, "__lake_internal/dynamo-prefix-v2-finalize-barrier");
        assert_eq!(BARRIER_VALUE, b"locked-v1");
        assert_eq!(FOREIGN_CURSOR_KEY, "__lake_internal/dynamo-prefix-v2-backfill-cursor");
    }

    #[test]
    fn a_newer_record_is_refused_and_a_broken_one_is_corruption() {
        let kind = |bytes: &[u8]| decode::<Control>("k", bytes).unwrap_err().kind();
        assert_eq!(kind(br#"{"version":2}"#), ErrorKind::NewerRecord);
        for bytes in [&b""[..], b"{}", b"[]", b"\xff", br#"{"version":"1"}"#, br#"{"version":1,"paused":3}"#]
        {
            assert_eq!(kind(bytes), ErrorKind::Corruption, "{bytes:?}");
        }
    }

    #[test]
    fn fields_of_another_version_survive_a_rewrite() {
        let control: Control =
            decode("k", br#"{"version":1,"paused":true,"writeUnits":null,"later":{"a":1}}"#).unwrap();
        let text = String::from_utf8(encode(&control).unwrap()).unwrap();
        assert!(text.contains(r#""later":{"a":1}"#), "{text}");
    }
}
