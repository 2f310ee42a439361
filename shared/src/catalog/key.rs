//! Keys: an enum tree in `storekey`'s order-preserving encoding.
//!
//! One byte a level, 2 for the first variant, 3 for the second and so on; then the fields in order, integers as
//! big-endian `u64`, strings escaped and ended by a zero byte. The order of variants is permanent and new ones are
//! appended, because released catalogs hold these bytes.

use storekey::{BorrowDecode, BorrowReader, DecodeError, Encode, EncodeError, Writer};

use crate::{Error, ErrorKind, Result};

/// The longest key that SlateDB stores, in bytes: its row codec holds the length in 16 bits.
pub const LONGEST_KEY: usize = u16::MAX as usize;

/// A key of the catalog store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
pub enum Key {
    /// `02`: one of the system records.
    System(System),
    /// `03`: a snapshot.
    Snapshot(SnapshotId),
    /// `04`: what is current.
    Current(Current),
    /// `05`: an entity that ended, and the snapshot that ended it.
    History(Entity, u64),
    /// `06`: inline rows and what is known about them.
    Inline(Inline),
    /// `07`: secondary indexes, carried through untouched.
    Index(Opaque),
    /// `08`: the schema version of a table from a snapshot on.
    SchemaVersion {
        /// The table.
        table_id: u64,
        /// The first snapshot with this version.
        begin_snapshot: u64,
    },
    /// `09`: what a snapshot changed.
    Changelog(SnapshotId),
    /// `0a`: names of current schemas and tables (format 11).
    Name(Name),
    /// `0b`: a current delete file by the data file that it targets (format 12).
    DeleteTarget {
        /// The table of both files.
        table_id: u64,
        /// The file whose rows are deleted.
        data_file_id: u64,
        /// The file that lists the deleted rows.
        delete_file_id: u64,
    },
}

/// A snapshot's id as the whole of a key.
pub type SnapshotId = u64;

/// `02`: system records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
pub enum System {
    /// `02 02`: the format of the store.
    Format,
    /// `02 03`: the latest snapshot and the number of batches.
    Head,
    /// `02 04`: the marker of a running migration.
    Migration,
    /// `02 05`: state of maintenance.
    MaintenanceStatus,
}

/// `04`: current records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
pub enum Current {
    /// `04 02`: a current entity.
    Entity(Entity),
    /// `04 03`: a data file that waits for deletion.
    GarbageFile(u64),
}

/// What the catalog keeps versions of; the byte after `04 02` or `05`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
#[allow(missing_docs, reason = "the fields are the ids that their names say")]
pub enum Entity {
    /// `02`.
    Schema { schema_id: u64 },
    /// `03`.
    Table { table_id: u64 },
    /// `04`.
    View { view_id: u64 },
    /// `05`.
    Column { table_id: u64, column_id: u64 },
    /// `06`.
    Partition { table_id: u64, partition_id: u64 },
    /// `07`.
    File { table_id: u64, data_file_id: u64 },
    /// `08`.
    DeleteFile { table_id: u64, delete_file_id: u64 },
    /// `09`.
    FileColumnStats { table_id: u64, data_file_id: u64, column_id: u64 },
    /// `0a`.
    TableStats { table_id: u64 },
    /// `0b`.
    TableColumnStats { table_id: u64, column_id: u64 },
    /// `0c`.
    Tag { object_id: u64 },
    /// `0d`.
    Option { scope_kind: u64, scope_id: u64 },
    /// `0e`.
    Sort { table_id: u64, sort_id: u64 },
    /// `0f`.
    Macro { macro_id: u64 },
    /// `10`.
    Mapping { table_id: u64, mapping_id: u64 },
    /// `11`.
    Index { table_id: u64, index_id: u64 },
}

/// `06`: inline records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
#[allow(missing_docs, reason = "the fields are the ids that their names say")]
pub enum Inline {
    /// `06 02`: the Arrow schema of a table's inline rows.
    Schema { table_id: u64, schema_version: u64 },
    /// `06 03`: inline operations that are live.
    Live(Operation),
    /// `06 04`: inline operations that a flush to data files archived.
    Archived(Operation),
    /// `06 05`: the table of inline file deletes.
    FileDeleteTable { table_id: u64 },
    /// `06 06`: superseded by the chunk locator.
    ChunkRange { table_id: u64, row_id_end: u64 },
    /// `06 07`: an inline schema that was dropped.
    SchemaDropped { table_id: u64, schema_version: u64 },
    /// `06 08`: where the chunk with a row is.
    ChunkLocator { table_id: u64, row_id_end: u64, schema_version: u64, begin_snapshot: u64, chunk_seq: u64 },
    /// `06 09`: the deletion of a row (format 9).
    RowTombstone { table_id: u64, row_id: u64, end_snapshot: u64 },
}

/// The byte after `06 03` or `06 04`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
#[allow(missing_docs, reason = "the fields are the ids that their names say")]
pub enum Operation {
    /// `02`: a chunk of rows.
    Insert { table_id: u64, schema_version: u64, begin_snapshot: u64, chunk_seq: u64 },
    /// `03`: a row's deletion, overwritten by the next one (formats 1 to 8).
    RowDelete { table_id: u64, row_id: u64 },
    /// `04`: deletion of a row of a data file.
    FileDelete { table_id: u64, data_file_id: u64, row_id: u64 },
}

/// `0a`: the directory of current names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Encode, BorrowDecode)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Name {
    /// `0a 02`.
    Schema { name: String },
    /// `0a 03`.
    Table { schema_id: u64, name: String },
}

/// How much of a name an error shows.
const SHOWN: usize = 48;

impl Name {
    /// `NameTooLong` for a name whose key of so many bytes the store cannot hold.
    fn too_long(&self, bytes: usize) -> Error {
        let (what, name) = match self {
            Self::Schema { name } => ("schema".to_owned(), name),
            Self::Table { schema_id, name } => (format!("table of schema {schema_id}"), name),
        };
        let head: String = name.chars().take(SHOWN).flat_map(char::escape_debug).take(2 * SHOWN).collect();
        let message = format!(
            "{what} \"{head}{}\": a name of {} bytes needs a key of {bytes}, and the store holds {LONGEST_KEY}",
            if name.chars().count() > SHOWN { "…" } else { "" },
            name.len()
        );
        Error::new(ErrorKind::NameTooLong, message).next("choose a shorter name; a zero byte takes two")
    }
}

/// The rest of a key that this software does not look into.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opaque(pub Vec<u8>);

impl<F> Encode<F> for Opaque {
    fn encode<W: std::io::Write>(&self, writer: &mut Writer<W>) -> Result<(), EncodeError> {
        self.0.iter().try_for_each(|byte| writer.write_array([*byte]))
    }
}

impl<'de, F> BorrowDecode<'de, F> for Opaque {
    fn borrow_decode(reader: &mut BorrowReader<'de>) -> Result<Self, DecodeError> {
        let mut rest = Vec::new();
        while !reader.is_empty() {
            rest.extend(reader.read_array::<1>()?);
        }
        Ok(Self(rest))
    }
}

impl Key {
    /// The bytes of the key.
    pub fn encode(&self) -> Vec<u8> {
        encoded(self)
    }

    /// Reads a key; anything that [`Key::encode`] does not write is `Corruption`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let key: Self = storekey::decode_borrow(bytes)
            .map_err(|error| corrupt(bytes, &format!("is not one of this catalog ({error:?})")))?;
        // An escape before a byte that needs none decodes too, but would be a second key of the same name.
        if matches!(key, Self::Name(_)) && key.encode() != bytes {
            return Err(corrupt(bytes, "is not in its shortest form"));
        }
        Ok(key)
    }

    /// The bytes of the key; for more of them than SlateDB can store `NameTooLong` if it is made of a name, else `Corruption`.
    pub fn checked(&self) -> Result<Vec<u8>> {
        let bytes = self.encode();
        if bytes.len() > LONGEST_KEY {
            if let Self::Name(name) = self {
                return Err(name.too_long(bytes.len()));
            }
            return Err(Error::new(
                ErrorKind::Corruption,
                format!(
                    "a key of {} bytes would pass the store's limit of {LONGEST_KEY}: {}",
                    bytes.len(),
                    shown(&bytes)
                ),
            ));
        }
        Ok(bytes)
    }
}

/// What [`storekey`] writes for a part of a key, as a prefix to scan.
fn encoded<E: Encode>(part: &E) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    // Writing to memory does not fail, and no key has a length that the encoding cannot hold.
    let written = storekey::encode(&mut bytes, part);
    debug_assert!(written.is_ok());
    bytes
}

fn corrupt(bytes: &[u8], why: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("key {} {why}", shown(bytes)))
}

/// A key as an operator reads it: hexadecimal, cut after 64 bytes.
pub fn shown(bytes: &[u8]) -> String {
    let (head, cut) = bytes.split_at_checked(64).map_or((bytes, ""), |(head, _)| (head, "…"));
    format!("0x{}{cut}", hex::encode(head))
}

/// Prefixes that are scanned.
pub mod prefix {
    /// Live inline row deletes, formats 1 to 8.
    pub const LIVE_ROW_DELETES: &[u8] = &[6, 3, 3];
    /// Live inline chunks.
    pub const LIVE_INSERTS: &[u8] = &[6, 3, 2];
    /// Archived inline chunks.
    pub const ARCHIVED_INSERTS: &[u8] = &[6, 4, 2];
    /// Row tombstones.
    pub const ROW_TOMBSTONES: &[u8] = &[6, 9];
    /// Current schemas.
    pub const CURRENT_SCHEMAS: &[u8] = &[4, 2, 2];
    /// Current tables.
    pub const CURRENT_TABLES: &[u8] = &[4, 2, 3];
    /// Current delete files.
    pub const CURRENT_DELETE_FILES: &[u8] = &[4, 2, 8];
    /// Ended schemas.
    pub const ENDED_SCHEMAS: &[u8] = &[5, 2];
    /// Ended tables.
    pub const ENDED_TABLES: &[u8] = &[5, 3];
    /// Ended delete files.
    pub const ENDED_DELETE_FILES: &[u8] = &[5, 8];
    /// Names of current schemas and tables.
    pub const NAMES: &[u8] = &[10];
    /// Targets of current delete files.
    pub const DELETE_TARGETS: &[u8] = &[11];

    /// A prefix followed by one id.
    pub fn of(kind: &[u8], id: u64) -> Vec<u8> {
        [kind, &id.to_be_bytes()].concat()
    }

    /// The first byte string after everything that starts with `prefix`; `None` after `ff…`.
    pub fn end(prefix: &[u8]) -> Option<Vec<u8>> {
        let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
        let mut end = prefix.get(..=last)?.to_vec();
        *end.last_mut()? += 1;
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(text: &str, fields: &[u64]) -> Vec<u8> {
        let mut bytes = hex::decode(text.replace(' ', "")).unwrap();
        bytes.extend(fields.iter().flat_map(|field| field.to_be_bytes()));
        bytes
    }

    fn every_kind() -> Vec<(Key, Vec<u8>)> {
        use Entity as E;
        use Inline as I;
        use Operation as O;
        let current = |entity| Key::Current(Current::Entity(entity));
        let entities = [
            (E::Schema { schema_id: 1 }, "02", vec![1]),
            (E::Table { table_id: 2 }, "03", vec![2]),
            (E::View { view_id: 3 }, "04", vec![3]),
            (E::Column { table_id: 1, column_id: 2 }, "05", vec![1, 2]),
            (E::Partition { table_id: 1, partition_id: 2 }, "06", vec![1, 2]),
            (E::File { table_id: 1, data_file_id: 2 }, "07", vec![1, 2]),
            (E::DeleteFile { table_id: 1, delete_file_id: 2 }, "08", vec![1, 2]),
            (E::FileColumnStats { table_id: 1, data_file_id: 2, column_id: 3 }, "09", vec![1, 2, 3]),
            (E::TableStats { table_id: 1 }, "0a", vec![1]),
            (E::TableColumnStats { table_id: 1, column_id: 2 }, "0b", vec![1, 2]),
            (E::Tag { object_id: 1 }, "0c", vec![1]),
            (E::Option { scope_kind: 0, scope_id: 0 }, "0d", vec![0, 0]),
            (E::Sort { table_id: 1, sort_id: 2 }, "0e", vec![1, 2]),
            (E::Macro { macro_id: 1 }, "0f", vec![1]),
            (E::Mapping { table_id: 1, mapping_id: 2 }, "10", vec![1, 2]),
            (E::Index { table_id: 1, index_id: 2 }, "11", vec![1, 2]),
        ];
        let operations = [
            (
                O::Insert { table_id: 7, schema_version: 3, begin_snapshot: 11, chunk_seq: 0 },
                "02",
                vec![7, 3, 11, 0],
            ),
            (O::RowDelete { table_id: 7, row_id: 4 }, "03", vec![7, 4]),
            (O::FileDelete { table_id: 7, data_file_id: 5, row_id: 4 }, "04", vec![7, 5, 4]),
        ];
        let mut all = vec![
            (Key::System(System::Format), bytes("02 02", &[])),
            (Key::System(System::Head), bytes("02 03", &[])),
            (Key::System(System::Migration), bytes("02 04", &[])),
            (Key::System(System::MaintenanceStatus), bytes("02 05", &[])),
            (Key::Snapshot(5), bytes("03", &[5])),
            (Key::Current(Current::GarbageFile(6)), bytes("04 03", &[6])),
            (Key::Inline(I::Schema { table_id: 1, schema_version: 2 }), bytes("06 02", &[1, 2])),
            (Key::Inline(I::FileDeleteTable { table_id: 1 }), bytes("06 05", &[1])),
            (Key::Inline(I::ChunkRange { table_id: 1, row_id_end: 2 }), bytes("06 06", &[1, 2])),
            (Key::Inline(I::SchemaDropped { table_id: 1, schema_version: 2 }), bytes("06 07", &[1, 2])),
            (
                Key::Inline(I::ChunkLocator {
                    table_id: 1,
                    row_id_end: 2,
                    schema_version: 3,
                    begin_snapshot: 4,
                    chunk_seq: 5,
                }),
                bytes("06 08", &[1, 2, 3, 4, 5]),
            ),
            (
                Key::Inline(I::RowTombstone { table_id: 1, row_id: 2, end_snapshot: 3 }),
                bytes("06 09", &[1, 2, 3]),
            ),
            (Key::Index(Opaque(vec![9, 0, 1, 255])), bytes("07 09 00 01 ff", &[])),
            (Key::SchemaVersion { table_id: 1, begin_snapshot: 2 }, bytes("08", &[1, 2])),
            (Key::Changelog(8), bytes("09", &[8])),
            (Key::Name(Name::Schema { name: "main".into() }), bytes("0a 02 6d 61 69 6e 00", &[])),
            (
                Key::Name(Name::Table { schema_id: 5, name: "t".into() }),
                [bytes("0a 03", &[5]), vec![0x74, 0]].concat(),
            ),
            (Key::Name(Name::Schema { name: String::new() }), bytes("0a 02 00", &[])),
            (Key::Name(Name::Schema { name: "a\0b".into() }), bytes("0a 02 61 01 00 62 00", &[])),
            (Key::DeleteTarget { table_id: 1, data_file_id: 2, delete_file_id: 3 }, bytes("0b", &[1, 2, 3])),
        ];
        for (entity, kind, fields) in entities {
            all.push((current(entity), bytes(&format!("0402{kind}"), &fields)));
            all.push((Key::History(entity, 9), bytes(&format!("05{kind}"), &[fields, vec![9]].concat())));
        }
        for (operation, kind, fields) in operations {
            all.push((Key::Inline(I::Live(operation)), bytes(&format!("0603{kind}"), &fields)));
            all.push((Key::Inline(I::Archived(operation)), bytes(&format!("0604{kind}"), &fields)));
        }
        all
    }

    #[test]
    fn every_kind_of_key_has_the_bytes_of_its_golden_vector() {
        for (key, golden) in every_kind() {
            assert_eq!(hex::encode(key.encode()), hex::encode(&golden), "{key:?}");
            assert_eq!(Key::decode(&golden).unwrap(), key);
        }
    }

    #[test]
    fn unknown_bytes_missing_fields_and_trailing_bytes_are_corruption() {
        for text in [
            "", "00", "01", "0c", "02", "0206", "0203ff", "0402", "040212", "040201", "0604", "060305",
            "0a04",
        ] {
            let refused = Key::decode(&hex::decode(text).unwrap()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corruption, "{text}");
        }
        for (key, golden) in every_kind() {
            if matches!(key, Key::Index(_)) {
                continue;
            }
            let longer = [golden.as_slice(), &[7]].concat();
            assert_eq!(Key::decode(&longer).unwrap_err().kind(), ErrorKind::Corruption, "{key:?}");
            let shorter = &golden[..golden.len() - 1];
            assert_eq!(Key::decode(shorter).unwrap_err().kind(), ErrorKind::Corruption, "{key:?}");
        }
    }

    #[test]
    fn a_name_in_another_than_its_shortest_form_is_corruption() {
        let refused = Key::decode(&[10, 2, 1, b'a', 0]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption);
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_byte_string_without_it() {
        assert_eq!(prefix::end(&[6, 3, 3]), Some(vec![6, 3, 4]));
        assert_eq!(prefix::end(&[6, 0xff]), Some(vec![7]));
        assert_eq!(prefix::end(&[0xff]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_what_decodes_encodes_back(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }

        #[test]
        fn likely_bytes_never_panic_and_what_decodes_encodes_back(
            head in proptest::collection::vec(1_u8..20, 0..4),
            tail in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = [head, tail].concat();
            if let Ok(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }

        #[test]
        fn names_round_trip_and_keep_their_order(a in ".{0,40}", b in ".{0,40}", schema in any::<u64>()) {
            let key = |name: &str| Key::Name(Name::Table { schema_id: schema, name: name.to_owned() });
            let (first, second) = (key(&a).encode(), key(&b).encode());
            prop_assert_eq!(Key::decode(&first).unwrap(), key(&a));
            prop_assert_eq!(first.cmp(&second), a.as_bytes().cmp(b.as_bytes()));
        }
    }
}
