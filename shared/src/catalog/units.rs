//! Migration units: what one record of an older format becomes in the next.
//!
//! A unit is a pure translation of one source record. Scanning, bounds, cursor, marker and commit are the driver's,
//! the same for every unit.

use bytes::Bytes;

use super::batch::Batch;
use super::format;
use super::key::{Key, shown};
use super::read::Range;
use crate::{Error, ErrorKind, Result};

mod delete_targets;
mod names;
mod registry;
mod tombstones;

pub use delete_targets::IndexDeleteFileTargets;
pub use names::IndexCurrentNames;
pub use registry::{Registry, Stage};
pub use tombstones::VersionInlineTombstones;

/// Most source records of one step.
pub const STEP_RECORDS: usize = 256;
/// A step ends after the record with which the keys that it puts pass this many bytes.
pub const STEP_KEY_BYTES: usize = 1024 * 1024;

/// What a unit does to the keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Moves keys; cannot be taken back.
    Rewriting,
    /// Adds derived entries under a prefix that nothing else uses; they can be dropped again.
    Directory {
        /// Prefix of the entries.
        entries: Bytes,
    },
}

/// A directory key that at most one live record may claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The directory key.
    pub key: Bytes,
    /// The claiming record's id.
    pub id: u64,
}

/// What becomes of one source record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Translation {
    /// What to put before what to delete.
    pub batch: Batch,
    /// The directory key that the record claims, if it has to be the only one.
    pub claim: Option<Claim>,
}

/// A named step from one format to the next.
pub trait Unit: Send + Sync {
    /// Its name, in reports and errors.
    fn name(&self) -> &'static str;
    /// Formats that it starts from.
    fn source_formats(&self) -> &'static [u64];
    /// The format that it reaches.
    fn to_format(&self) -> u64;
    /// What it does to the keyspace.
    fn kind(&self) -> Kind;
    /// The source records, walked in key order; a cursor is a key of this range.
    fn source(&self) -> Range;
    /// Translates one source record, or refuses it as `Corruption`, and as `NameTooLong` where the format has no key for it.
    /// Deterministic and idempotent.
    fn translate(&self, key: &Bytes, value: &Bytes) -> Result<Translation>;
    /// The directory that the unit claims keys of; `None` where every source record has a key of its own.
    fn directory(&self) -> Option<&dyn Directory> {
        None
    }
}

/// A directory in which two live records may not claim one key.
pub trait Directory: Send + Sync {
    /// The id that an entry holds; `Corruption` for what is no entry.
    fn id(&self, entry_key: &[u8], entry_value: &[u8]) -> Result<u64>;
    /// The source key of the record with an id that an entry may stand for; `Corruption` for what is no entry.
    fn record(&self, entry_key: &[u8], id: u64) -> Result<Bytes>;
}

/// `Corruption` for a cursor that no step of the unit can have written.
pub fn check_cursor(unit: &dyn Unit, cursor: &[u8]) -> Result<()> {
    if cursor.is_empty() || unit.source().contains(cursor) && Key::decode(cursor).is_ok() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corruption,
        format!("the cursor {} of {} is no key of its source range", shown(cursor), unit.name()),
    ))
}

/// A record whose key and value disagree.
fn disagreement(key: &[u8], what: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("{what} of key {} is not the one in its value", shown(key)))
}

/// The shipped units, oldest first.
pub fn shipped() -> Vec<Box<dyn Unit>> {
    const { assert!(format::NEWEST == 12) }
    vec![Box::new(VersionInlineTombstones), Box::new(IndexCurrentNames), Box::new(IndexDeleteFileTargets)]
}
