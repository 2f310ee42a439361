//! Values: `MRNE`, one byte of encoding version, then a protobuf message.
//!
//! Fields are only ever added, and a value that a migration moves is moved as the bytes it is.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::key::shown;
use crate::{Error, ErrorKind, Result};

/// What every value starts with.
pub const MAGIC: [u8; 4] = *b"MRNE";
/// The one encoding of values that is in the field.
pub const ENCODING: u8 = 0;
const HEADER: usize = MAGIC.len() + 1;

/// `sys/format`: which layout the keys have, and who wrote it last.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Format {
    /// Layout of the keys, 1 to 12.
    #[prost(uint64, tag = "1")]
    pub format_version: u64,
    /// Name and version of the software that wrote this record.
    #[prost(string, tag = "2")]
    pub writer_version: String,
    /// `batch_seq` at which a commit log was adopted; absent in a native catalog.
    #[prost(uint64, optional, tag = "3")]
    pub commit_log_batch_origin: Option<u64>,
    /// The format before the run of migrations that is under way; cleared by its last finish.
    #[prost(uint64, optional, tag = "4")]
    pub original_format: Option<u64>,
}

/// `sys/head`: what every batch moves.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Head {
    /// The latest snapshot.
    #[prost(uint64, tag = "1")]
    pub snapshot_id: u64,
    /// Number of batches so far.
    #[prost(uint64, tag = "2")]
    pub batch_seq: u64,
}

/// `sys/migration`: a unit that has started and not finished.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Migration {
    /// Format before the unit.
    #[prost(uint64, tag = "1")]
    pub from_format: u64,
    /// Format after the unit.
    #[prost(uint64, tag = "2")]
    pub to_format: u64,
    /// The last source key that is done; empty at the start.
    #[prost(bytes = "bytes", tag = "3")]
    pub cursor: Bytes,
    /// The format before the whole run.
    #[prost(uint64, optional, tag = "4")]
    pub original_format: Option<u64>,
}

/// A schema.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs, reason = "field names of the field's own messages")]
pub struct Schema {
    #[prost(uint64, tag = "1")]
    pub schema_id: u64,
    #[prost(string, tag = "2")]
    pub uuid: String,
    #[prost(uint64, tag = "3")]
    pub begin_snapshot: u64,
    #[prost(uint64, optional, tag = "4")]
    pub end_snapshot: Option<u64>,
    #[prost(string, tag = "5")]
    pub schema_name: String,
    #[prost(string, tag = "6")]
    pub path: String,
    #[prost(bool, tag = "7")]
    pub path_is_relative: bool,
}

/// A table.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs, reason = "field names of the field's own messages")]
pub struct Table {
    #[prost(uint64, tag = "1")]
    pub table_id: u64,
    #[prost(string, tag = "2")]
    pub uuid: String,
    #[prost(uint64, tag = "3")]
    pub begin_snapshot: u64,
    #[prost(uint64, optional, tag = "4")]
    pub end_snapshot: Option<u64>,
    #[prost(uint64, tag = "5")]
    pub schema_id: u64,
    #[prost(string, tag = "6")]
    pub table_name: String,
    #[prost(string, tag = "7")]
    pub path: String,
    #[prost(bool, tag = "8")]
    pub path_is_relative: bool,
    #[prost(uint64, tag = "9")]
    pub next_column_id: u64,
}

/// A file that lists deleted rows of a data file.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs, reason = "field names of the field's own messages")]
pub struct DeleteFile {
    #[prost(uint64, tag = "1")]
    pub delete_file_id: u64,
    #[prost(uint64, tag = "2")]
    pub table_id: u64,
    #[prost(uint64, tag = "3")]
    pub begin_snapshot: u64,
    #[prost(uint64, optional, tag = "4")]
    pub end_snapshot: Option<u64>,
    #[prost(uint64, tag = "5")]
    pub data_file_id: u64,
    #[prost(string, tag = "6")]
    pub path: String,
    #[prost(bool, tag = "7")]
    pub path_is_relative: bool,
    #[prost(string, tag = "8")]
    pub format: String,
    #[prost(uint64, tag = "9")]
    pub delete_count: u64,
    #[prost(uint64, tag = "10")]
    pub file_size_bytes: u64,
    #[prost(uint64, tag = "11")]
    pub footer_size: u64,
    #[prost(string, optional, tag = "12")]
    pub encryption_key: Option<String>,
    #[prost(uint64, optional, tag = "13")]
    pub partial_max: Option<u64>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(missing_docs, reason = "field names of the field's own messages")]
pub struct Snapshot {
    #[prost(uint64, tag = "1")]
    pub snapshot_id: u64,
    #[prost(int64, tag = "2")]
    pub snapshot_time_micros: i64,
    #[prost(uint64, tag = "3")]
    pub schema_version: u64,
    #[prost(uint64, tag = "4")]
    pub next_catalog_id: u64,
    #[prost(uint64, tag = "5")]
    pub next_file_id: u64,
    #[prost(string, tag = "7")]
    pub changes_made: String,
    #[prost(string, optional, tag = "8")]
    pub author: Option<String>,
    #[prost(string, optional, tag = "9")]
    pub message: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub extra: Option<String>,
    #[prost(uint64, repeated, tag = "11")]
    pub field_11: Vec<u64>,
    #[prost(uint64, repeated, tag = "12")]
    pub field_12: Vec<u64>,
}

/// Options of a scope.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OptionScope {
    /// Value by name.
    #[prost(btree_map = "string, string", tag = "1")]
    pub options: BTreeMap<String, String>,
}

/// When a row was deleted: an inline row delete (formats 1 to 8) or a row tombstone (from 9).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RowDeletion {
    /// The first snapshot without the row.
    #[prost(uint64, tag = "1")]
    pub end_snapshot: u64,
}

/// Rows kept in the catalog itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct InlineChunk {
    /// Arrow rows; opaque here.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// Id of the first row.
    #[prost(uint64, tag = "2")]
    pub row_id_start: u64,
    /// Number of rows.
    #[prost(uint64, tag = "3")]
    pub row_count: u64,
    /// The data file that a flush moved the rows to.
    #[prost(uint64, optional, tag = "4")]
    pub data_file_id: Option<u64>,
}

/// Which chunk holds the rows up to the one in the key.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct InlineChunkLocator {
    /// Id of the first row.
    #[prost(uint64, tag = "1")]
    pub row_id_start: u64,
    /// As in the chunk's key.
    #[prost(uint64, tag = "2")]
    pub schema_version: u64,
    /// As in the chunk's key.
    #[prost(uint64, tag = "3")]
    pub begin_snapshot: u64,
    /// As in the chunk's key.
    #[prost(uint64, tag = "4")]
    pub chunk_seq: u64,
}

/// The id that a name of a current schema or table stands for.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NameEntry {
    /// A schema's or a table's id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// A delete file's target; everything is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DeleteTargetEntry {}

/// A message in its frame.
pub fn frame<M: Message>(message: &M) -> Bytes {
    let mut bytes = Vec::with_capacity(HEADER + message.encoded_len());
    bytes.extend(MAGIC);
    bytes.push(ENCODING);
    // Writing to a growing buffer does not fail.
    bytes.extend(message.encode_to_vec());
    bytes.into()
}

/// The message in a frame; `Corruption` for anything else. `key` is only for the error.
pub fn unframe<M: Message + Default>(key: &[u8], value: &[u8]) -> Result<M> {
    decoded(value)
        .map_err(|why| Error::new(ErrorKind::Corruption, format!("value of key {}: {why}", shown(key))))
}

/// The message in a frame, or what is wrong with it.
pub(crate) fn decoded<M: Message + Default>(value: &[u8]) -> Result<M, String> {
    let Some((header, message)) = value.split_at_checked(HEADER) else {
        return Err(format!("{} bytes, shorter than its header", value.len()));
    };
    match header.split_last() {
        Some((&ENCODING, magic)) if magic == MAGIC => {}
        Some((encoding, magic)) if magic == MAGIC => {
            return Err(format!("encoding {encoding}, newer than {ENCODING}"));
        }
        _ => return Err("does not start with MRNE".to_owned()),
    }
    M::decode(message).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn golden<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, hexadecimal: &str) {
        let framed = frame(message);
        assert_eq!(hex::encode(&framed), format!("4d524e4500{hexadecimal}"));
        assert_eq!(&unframe::<M>(b"k", &framed).unwrap(), message);
    }

    #[test]
    fn every_message_has_the_bytes_of_its_golden_vector() {
        golden(
            &Format {
                format_version: 11,
                writer_version: "w".into(),
                commit_log_batch_origin: Some(0),
                original_format: Some(8),
            },
            "080b12017718002008",
        );
        golden(&Head { snapshot_id: 3, batch_seq: 300 }, "080310ac02");
        golden(
            &Migration {
                from_format: 8,
                to_format: 9,
                cursor: Bytes::from_static(&[6, 3, 3]),
                original_format: Some(1),
            },
            "080810091a030603032001",
        );
        golden(
            &Schema {
                schema_id: 1,
                uuid: "u".into(),
                begin_snapshot: 2,
                end_snapshot: Some(0),
                schema_name: "s".into(),
                path: "p".into(),
                path_is_relative: true,
            },
            "08011201751802200 02a01733201703801".replace(' ', "").as_str(),
        );
        golden(
            &Table {
                table_id: 1,
                uuid: "u".into(),
                begin_snapshot: 2,
                end_snapshot: Some(3),
                schema_id: 4,
                table_name: "t".into(),
                path: "p".into(),
                path_is_relative: true,
                next_column_id: 5,
            },
            "08011201751802200328043201743a017040014805",
        );
        golden(
            &DeleteFile {
                delete_file_id: 1,
                table_id: 2,
                begin_snapshot: 3,
                end_snapshot: Some(4),
                data_file_id: 5,
                path: "p".into(),
                path_is_relative: true,
                format: "f".into(),
                delete_count: 6,
                file_size_bytes: 7,
                footer_size: 8,
                encryption_key: Some("k".into()),
                partial_max: Some(9),
            },
            "080110021803200428053201703801420166480650075808 62016b6809".replace(' ', "").as_str(),
        );
        golden(
            &Snapshot {
                snapshot_id: 1,
                snapshot_time_micros: 2,
                schema_version: 3,
                next_catalog_id: 4,
                next_file_id: 5,
                changes_made: "c".into(),
                author: Some("a".into()),
                message: Some("m".into()),
                extra: Some("e".into()),
                field_11: vec![6],
                field_12: vec![7, 8],
            },
            "080110021803200428053a01634201614a016d5201655a01066202 0708".replace(' ', "").as_str(),
        );
        golden(&OptionScope { options: BTreeMap::from([("a".into(), "b".into())]) }, "0a060a0161120162");
        golden(&RowDeletion { end_snapshot: 9 }, "0809");
        golden(
            &InlineChunk {
                body: Bytes::from_static(b"xy"),
                row_id_start: 1,
                row_count: 2,
                data_file_id: Some(3),
            },
            "0a027879100118022003",
        );
        golden(
            &InlineChunkLocator { row_id_start: 1, schema_version: 2, begin_snapshot: 3, chunk_seq: 4 },
            "0801100218032004",
        );
        golden(&NameEntry { id: 5 }, "0805");
        golden(&DeleteTargetEntry {}, "");
    }

    #[test]
    fn wrong_magic_a_short_header_a_newer_encoding_and_a_torn_message_are_corruption() {
        for hexadecimal in
            ["", "4d524e45", "4d524e4600", "00524e4500", "4d524e4501", "4d524e45000a05", "4d524e450008"]
        {
            let refused = unframe::<Migration>(b"k", &hex::decode(hexadecimal).unwrap()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corruption, "{hexadecimal}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_in_every_message_are_a_value_or_corruption(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let framed = [&MAGIC[..], &[ENCODING], &bytes].concat();
            for value in [&bytes, &framed] {
                macro_rules! try_each {
                    ($($message:ty),*) => {$(
                        if let Err(error) = unframe::<$message>(b"k", value) {
                            prop_assert_eq!(error.kind(), ErrorKind::Corruption);
                        }
                    )*};
                }
                try_each!(Format, Head, Migration, Schema, Table, DeleteFile, Snapshot, OptionScope, RowDeletion,
                    InlineChunk, NameEntry, DeleteTargetEntry);
            }
        }

        #[test]
        fn a_marker_round_trips(from in any::<u64>(), to in any::<u64>(), cursor in proptest::collection::vec(any::<u8>(), 0..60), original in any::<Option<u64>>()) {
            let marker = Migration { from_format: from, to_format: to, cursor: cursor.into(), original_format: original };
            prop_assert_eq!(unframe::<Migration>(b"k", &frame(&marker)).unwrap(), marker);
        }
    }
}
