//! The format gate: what a store's `sys/format` and `sys/migration` allow.
//!
//! Pure: every way of opening reads the two records and asks here before it does anything else.

use super::key::{Current, Entity, Key, System};
use super::value::{Format, Head, Migration, OptionScope, unframe};
use crate::{Error, ErrorKind, Result};

/// The oldest format in the field.
pub const OLDEST: u64 = 1;
/// The last format that an additive stamp reaches.
pub const LAST_ADDITIVE: u64 = 8;
/// The oldest format that this software reads: below it, row deletions are elsewhere.
pub const FLOOR: u64 = 9;
/// The legacy stamp of a commit-log catalog at 9's layout.
pub const LEGACY_COMMIT_LOG: u64 = 10;
/// The first format with names of current schemas and tables.
pub const NAMES: u64 = 11;
/// The first format with targets of current delete files.
pub const DELETE_TARGETS: u64 = 12;
/// The newest format that this software can name.
pub const NEWEST: u64 = 12;
/// What a fresh store is made with.
pub const BOOTSTRAP: u64 = 11;
/// Formats that a migration may be asked to reach.
pub const TARGETS: [u64; 3] = [9, 11, 12];

/// What this software writes as the writer of `sys/format`.
pub const WRITER: &str = concat!("metashift ", env!("CARGO_PKG_VERSION"));

/// The option by which a catalog says that its write-ahead log is in another object store.
pub const WAL_ELSEWHERE: &str = "wal_path";

/// The key of the options that hold for the whole catalog.
pub fn options_key() -> Vec<u8> {
    Key::Current(Current::Entity(Entity::Option { scope_kind: 0, scope_id: 0 })).encode()
}

/// The system records of a store, read together, and what its options say about its write-ahead log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SystemRecords {
    /// `sys/format`.
    pub format: Option<Format>,
    /// `sys/head`.
    pub head: Option<Head>,
    /// `sys/migration`.
    pub marker: Option<Migration>,
    /// Whether the catalog's options have [`WAL_ELSEWHERE`], whatever its value.
    pub wal_elsewhere: bool,
}

impl SystemRecords {
    /// Decodes the records from the framed values of format, head, marker and [`options_key`]; `Corruption` for what is none.
    pub fn decode(
        format: Option<&[u8]>,
        head: Option<&[u8]>,
        marker: Option<&[u8]>,
        options: Option<&[u8]>,
    ) -> Result<Self> {
        fn one<M: prost::Message + Default>(key: System, value: Option<&[u8]>) -> Result<Option<M>> {
            value.map(|value| unframe(&Key::System(key).encode(), value)).transpose()
        }
        let options: Option<OptionScope> = options.map(|value| unframe(&options_key(), value)).transpose()?;
        Ok(Self {
            format: one(System::Format, format)?,
            head: one(System::Head, head)?,
            marker: one(System::Migration, marker)?,
            wal_elsewhere: options.is_some_and(|scope| says_elsewhere(&scope)),
        })
    }

    /// `Migration` for a catalog whose write-ahead log is in another object store: commits that were acknowledged are there
    /// alone, and whoever opens the store without it skips them.
    pub fn whole(&self) -> Result<()> {
        if self.wal_elsewhere { Err(elsewhere(&format!("its options have {WAL_ELSEWHERE}"))) } else { Ok(()) }
    }

    /// The records of a store that somebody bootstrapped, coherent among themselves.
    ///
    /// A marker whose unit starts at another format than the store's, a marker without a format and a format of 0
    /// are `Corruption`; a newer format is `Migration`; else as [`Self::whole`].
    pub fn coherent(&self) -> Result<Option<&Format>> {
        self.whole()?;
        let Some(format) = &self.format else {
            return match &self.marker {
                Some(_) => Err(Error::new(ErrorKind::Corruption, "a migration marker without sys/format")),
                None => Ok(None),
            };
        };
        let version = format.format_version;
        if version > NEWEST {
            return Err(too_new(version));
        }
        if version < OLDEST {
            return Err(Error::new(ErrorKind::Corruption, format!("sys/format holds format {version}")));
        }
        if let Some(marker) = &self.marker
            && marker.from_format != version
        {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!(
                    "the store has format {version} but its migration marker says that it goes from {} to {}",
                    marker.from_format, marker.to_format
                ),
            ));
        }
        Ok(Some(format))
    }

    /// What ordinary reads and commits may do with the store; `None` when it has not been bootstrapped.
    ///
    /// `Migration` while a unit is under way, below [`FLOOR`] and above [`NEWEST`]; errors as those of [`Self::coherent`].
    pub fn gate(&self) -> Result<Option<&Format>> {
        let Some(format) = self.coherent()? else { return Ok(None) };
        if let Some(marker) = &self.marker {
            return Err(Error::new(
                ErrorKind::Migration,
                format!(
                    "the store has format {} and is being migrated to {}; it is read again once that has finished",
                    format.format_version, marker.to_format
                ),
            )
            .next("metashift catalog run"));
        }
        if format.format_version < FLOOR {
            return Err(Error::new(
                ErrorKind::Migration,
                format!(
                    "the store has format {}, below the floor {FLOOR} of what this version reads; it has to be migrated first, and this version can",
                    format.format_version
                ),
            )
            .next("metashift catalog run"));
        }
        Ok(Some(format))
    }
}

/// The refusal of a format that this software cannot name.
pub fn too_new(version: u64) -> Error {
    Error::new(
        ErrorKind::Migration,
        format!("the store has format {version}; this version reads {FLOOR} to {NEWEST}"),
    )
    .next("use a newer version of metashift")
}

/// Whether options of a whole catalog say that its write-ahead log is in another object store.
pub(crate) fn says_elsewhere(options: &OptionScope) -> bool {
    options.options.contains_key(WAL_ELSEWHERE)
}

/// The refusal of a store that is not whole without another one.
pub(crate) fn elsewhere(why: &str) -> Error {
    Error::new(
        ErrorKind::Migration,
        format!("this catalog keeps its write-ahead log in another object store ({why}); commits that were acknowledged are there alone and would be lost"),
    )
    .next("stop its writers, take the log back into the store with the catalog software that moved it there, so that this is no longer recorded, then run the same command again")
}

/// Whether a catalog's truth is a commit log.
pub fn is_commit_log(format: &Format) -> bool {
    format.format_version == LEGACY_COMMIT_LOG || format.commit_log_batch_origin.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(version: u64, marker: Option<(u64, u64)>) -> SystemRecords {
        SystemRecords {
            format: Some(Format { format_version: version, ..Format::default() }),
            head: Some(Head::default()),
            marker: marker.map(|(from_format, to_format)| Migration {
                from_format,
                to_format,
                ..Migration::default()
            }),
            wal_elsewhere: false,
        }
    }

    #[test]
    fn a_log_in_another_store_is_refused_at_every_format_whatever_its_path_is() {
        for (options, refused) in [
            (&[("encrypted", "false")][..], false),
            (&[("encrypted", "false"), ("wal_path", "s3://other/wal")][..], true),
            (&[("wal_path", "")][..], true),
        ] {
            let options =
                options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let options = crate::catalog::value::frame(&OptionScope { options });
            let decoded = SystemRecords::decode(None, None, None, Some(&options)).unwrap();
            assert_eq!(decoded.wal_elsewhere, refused);
        }
        for version in [0, 8, 9, 10, 11, 12, 13] {
            let records = SystemRecords { wal_elsewhere: true, ..records(version, None) };
            let refusal = records.gate().unwrap_err();
            assert_eq!(refusal.kind(), ErrorKind::Migration);
            assert!(refusal.message().contains("wal_path") && refusal.next_step().is_some(), "{refusal}");
        }
        let fresh = SystemRecords { wal_elsewhere: true, ..SystemRecords::default() };
        assert_eq!(fresh.gate().unwrap_err().kind(), ErrorKind::Migration);
    }

    #[test]
    fn formats_nine_to_twelve_without_a_marker_open() {
        for version in 9..=12 {
            assert_eq!(records(version, None).gate().unwrap().unwrap().format_version, version);
        }
        assert!(SystemRecords::default().gate().unwrap().is_none());
    }

    #[test]
    fn a_refusal_names_the_format_the_floor_and_the_command() {
        for version in 1..9 {
            let refused = records(version, None).gate().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Migration);
            assert!(refused.message().contains(&format!("format {version}")), "{refused}");
            assert!(refused.message().contains("floor 9"), "{refused}");
            assert_eq!(refused.next_step(), Some("metashift catalog run"));
        }
    }

    #[test]
    fn a_newer_format_is_refused_also_with_a_marker() {
        for marker in [None, Some((13, 14))] {
            assert_eq!(records(13, marker).gate().unwrap_err().kind(), ErrorKind::Migration);
        }
    }

    #[test]
    fn a_marker_refuses_readers_and_one_of_another_format_is_corruption() {
        assert_eq!(records(11, Some((11, 12))).gate().unwrap_err().kind(), ErrorKind::Migration);
        assert_eq!(records(9, Some((8, 9))).gate().unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(records(0, None).gate().unwrap_err().kind(), ErrorKind::Corruption);
        let headless = SystemRecords { format: None, ..records(9, Some((9, 11))) };
        assert_eq!(headless.gate().unwrap_err().kind(), ErrorKind::Corruption);
    }
}
