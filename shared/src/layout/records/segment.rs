//! One segment of one walk over a table: its cursor, state and totals.
//!
//! - `backfill/<generation>/<segment>`, `repair/<run>/<v1|v2>/<segment>`: created with the plan's transition, closed
//!   with the next one;
//! - `verify/<epoch>/<v1|v2>/<segment>`: created by the first page under the epoch's barrier;
//! - `rehearse/<run>/<v1|v2>/<segment>`, `survey/<run>/<segment>`: created by the first page.
//!
//! Every write is conditional on the exact bytes last read, and carries the writer's id, so that no two writes are
//! the same and a lost answer is recognised.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::digest::Digest;
use super::super::transaction::Side;
use super::{OWN_PREFIX, Record, VERSION};

/// Most mismatches that a record lists; more are counted.
pub const MOST_LISTED: usize = 25;

/// Most families that a verify record counts apart; the others are counted together under `""`.
pub const MOST_FAMILIES: usize = 100;

/// Most bytes of the keys that a record lists, as JSON: an item has at most 400 KB, and each write of the record pays for it.
pub const MAX_LISTED_BYTES: usize = 32 * 1024;

/// Most bytes of the names of the families that a record counts apart, as JSON.
pub const MAX_FAMILY_BYTES: usize = 16 * 1024;

/// Bytes of a text as JSON. A control character takes six.
fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX / 4, |json| json.len())
}

/// Which walk a segment belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Walk {
    /// Copying v1 to v2.
    Backfill {
        /// The plan's generation.
        generation: u64,
    },
    /// Making v2 follow v1.
    Repair {
        /// The plan's repair run.
        run: String,
        /// The table that is walked.
        side: Side,
    },
    /// Comparing online.
    Rehearse {
        /// Id of the rehearsal.
        run: String,
        /// The table that is walked.
        side: Side,
    },
    /// Comparing under the barrier.
    Verify {
        /// The cutover's epoch.
        epoch: String,
        /// The table that is walked.
        side: Side,
    },
    /// Counting and finding rejects, read-only.
    Survey {
        /// Id of the survey.
        run: String,
    },
}

impl Walk {
    /// The table that is walked.
    pub const fn side(&self) -> Side {
        match self {
            Self::Backfill { .. } | Self::Survey { .. } => Side::V1,
            Self::Repair { side, .. } | Self::Rehearse { side, .. } | Self::Verify { side, .. } => *side,
        }
    }

    /// Key of a segment's record.
    pub fn key(&self, segment: u32) -> String {
        match self {
            Self::Backfill { generation } => format!("{OWN_PREFIX}backfill/{generation}/{segment}"),
            Self::Repair { run, side } => format!("{OWN_PREFIX}repair/{run}/{}/{segment}", side.name()),
            Self::Rehearse { run, side } => format!("{OWN_PREFIX}rehearse/{run}/{}/{segment}", side.name()),
            Self::Verify { epoch, side } => format!("{OWN_PREFIX}verify/{epoch}/{}/{segment}", side.name()),
            Self::Survey { run } => format!("{OWN_PREFIX}survey/{run}/{segment}"),
        }
    }
}

/// State of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Not scanned to the end.
    Open,
    /// Scanned to the end.
    Done,
    /// Taken out of use; no worker writes to it again.
    Closed,
}

/// Where a scan goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Bucket of the last evaluated item, in v2.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bucket: Option<String>,
    /// Key of the last evaluated item.
    pub pk: String,
}

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MismatchKind {
    /// v1 has it, v2 has not.
    Missing,
    /// v2 has it, v1 has not.
    Extra,
    /// Both have it and the values differ.
    WrongValue,
    /// v2 has it in a bucket that the layout does not give the key.
    WrongBucket,
    /// It is no metadata record, in v1 or in v2.
    UnsupportedItem,
    /// Its key does not fit v2.
    KeyTooLong,
    /// It does not fit v2 with its bucket.
    ItemTooLarge,
}

/// A difference between the tables.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mismatch {
    /// The key.
    pub key: String,
    /// What differs.
    pub kind: MismatchKind,
}

/// Progress of one segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Segment {
    /// 1.
    pub version: u32,
    /// Segments of the walk; 0 in a record of an earlier version.
    #[serde(default, skip_serializing_if = "is_none")]
    pub total: u32,
    /// The plan's generation when the record was made; `None` without a plan and in a record of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Open, done or closed.
    pub state: State,
    /// Where the scan goes on; `None` at the start and at the end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cursor: Option<Position>,
    /// Id of the last write: the worker's id and a number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub writer: Option<String>,
    /// When the walk's first worker wrote it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_at: Option<jiff::Timestamp>,
    /// When it was last written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub updated_at: Option<jiff::Timestamp>,
    /// User items scanned.
    #[serde(default)]
    pub scanned: u64,
    /// Bytes of the user items scanned: keys and values.
    #[serde(default)]
    pub bytes: u64,
    /// Items written (backfill) or changed (repair; in a dry run: that would be).
    #[serde(default)]
    pub copied: u64,
    /// Items found equal.
    #[serde(default)]
    pub already_live: u64,
    /// Outstanding rejects.
    #[serde(default)]
    pub rejected: u64,
    /// Outstanding diverged keys.
    #[serde(default)]
    pub diverged: u64,
    /// Reject records ever written; the next one's number.
    #[serde(default)]
    pub rejects_recorded: u64,
    /// Reject records re-read since the scan ended; a run that was stopped in the middle goes on there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rechecked: u64,
    /// Differences found.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mismatched: u64,
    /// The first [`MOST_LISTED`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
    /// Digest of the items counted, where a verification takes one.
    #[serde(default, skip_serializing_if = "Digest::is_zero")]
    pub digest: Digest,
    /// Items by family, where a verification counts v2.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub families: BTreeMap<String, u64>,
    /// True where every key was compared with the other table, not only counted and digested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// True in a comparison that began after the marker was published.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_marker: bool,
    /// Read request units, up to the page before this write.
    #[serde(default)]
    pub read_units: f64,
    /// Write request units, this write included.
    #[serde(default)]
    pub write_units: f64,
    /// Transactions that lost to another one.
    #[serde(default)]
    pub conflicts: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_none(total: &u32) -> bool {
    *total == 0
}

impl Record for Segment {}

impl Default for Segment {
    fn default() -> Self {
        Self {
            version: VERSION,
            total: 0,
            generation: None,
            state: State::Open,
            cursor: None,
            writer: None,
            started_at: None,
            updated_at: None,
            scanned: 0,
            bytes: 0,
            copied: 0,
            already_live: 0,
            rejected: 0,
            diverged: 0,
            rejects_recorded: 0,
            rechecked: 0,
            mismatched: 0,
            mismatches: Vec::new(),
            digest: Digest::default(),
            families: BTreeMap::new(),
            exact: false,
            after_marker: false,
            read_units: 0.0,
            write_units: 0.0,
            conflicts: 0,
            extra: Map::new(),
        }
    }
}

impl Segment {
    /// The record of a segment that no worker has walked yet.
    pub fn of_walk(total: u32, generation: Option<u64>) -> Self {
        Self { total, generation, ..Self::default() }
    }

    /// True where this record is of a walk over so many segments, in this generation of the plan.
    ///
    /// A record of an earlier version does not say, and is none.
    pub fn is_of(&self, total: u32, generation: Option<u64>) -> bool {
        self.total == total && self.generation == generation
    }

    /// Counts a difference, and lists it while there is room.
    pub fn add_mismatch(&mut self, mismatch: Mismatch) {
        self.mismatched += 1;
        let listed = || self.mismatches.iter().map(|one| json_bytes(&one.key)).sum::<usize>();
        if self.mismatches.len() < MOST_LISTED && listed() + json_bytes(&mismatch.key) <= MAX_LISTED_BYTES {
            self.mismatches.push(mismatch);
        }
    }

    /// Counts an item of a family.
    pub fn count_family(&mut self, family: &str) {
        if let Some(count) = self.families.get_mut(family) {
            *count += 1;
        } else {
            let listed: usize = self.families.keys().map(|family| json_bytes(family)).sum();
            let fits = self.families.len() < MOST_FAMILIES && listed + json_bytes(family) <= MAX_FAMILY_BYTES;
            let name = if fits { family } else { "" };
            *self.families.entry(name.to_owned()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn the_keys_are_pinned() {
        let side = Side::V2;
        for (walk, key) in [
            (Walk::Backfill { generation: 3 }, "backfill/3/7"),
            (Walk::Repair { run: "r".to_owned(), side }, "repair/r/v2/7"),
            (Walk::Rehearse { run: "r".to_owned(), side: Side::V1 }, "rehearse/r/v1/7"),
            (Walk::Verify { epoch: "e".to_owned(), side }, "verify/e/v2/7"),
            (Walk::Survey { run: "s".to_owned() }, "survey/s/7"),
        ] {
            assert_eq!(walk.key(7), format!("__lake_internal/dynamo-prefix-v2/{key}"));
        }
    }

    #[test]
    fn mismatches_beyond_the_list_are_still_counted() {
        let mut segment = Segment::default();
        for n in 0..30 {
            segment.add_mismatch(Mismatch { key: n.to_string(), kind: MismatchKind::Missing });
        }
        assert_eq!((segment.mismatched, segment.mismatches.len()), (30, MOST_LISTED));
    }

    #[test]
    fn families_beyond_the_list_are_counted_together() {
        let mut segment = Segment::default();
        for n in 0..150 {
            segment.count_family(&format!("family-{n}"));
        }
        assert_eq!(segment.families.values().sum::<u64>(), 150);
        assert_eq!(segment.families.get(""), Some(&50));
    }

    #[test]
    fn the_longest_keys_and_families_leave_a_record_far_below_an_item() {
        let mut segment = Segment::default();
        for n in 0..200 {
            let long = format!("{}{n}", "\u{1}".repeat(2000));
            segment.count_family(&long);
            segment.add_mismatch(Mismatch { key: long, kind: MismatchKind::Missing });
        }
        assert_eq!((segment.mismatched, segment.families.values().sum::<u64>()), (200, 200));
        segment.cursor = Some(Position { bucket: Some("\u{1}".repeat(2048)), pk: "\u{1}".repeat(2048) });
        assert!(encode(&segment).unwrap().len() < 100_000, "{}", encode(&segment).unwrap().len());
    }

    #[test]
    fn a_record_without_mismatches_fits_one_write_unit() {
        let mut digest = Digest::default();
        digest.add("secret", "key", b"value");
        let segment = Segment {
            digest,
            cursor: Some(Position { bucket: None, pk: "k".repeat(300) }),
            writer: Some("w".repeat(40)),
            total: 256,
            generation: Some(u64::from(u32::MAX)),
            scanned: u64::from(u32::MAX),
            bytes: u64::from(u32::MAX),
            copied: u64::from(u32::MAX),
            ..Segment::default()
        };
        assert!(encode(&segment).unwrap().len() < 900);
    }

    proptest! {
        #[test]
        fn it_survives_its_codec(pk in ".{0,60}", scanned in 0_u64..1 << 60, done: bool) {
            let segment = Segment {
                state: if done { State::Done } else { State::Open },
                cursor: Some(Position { bucket: Some(format!("b#{pk}")), pk }),
                scanned,
                ..Segment::default()
            };
            prop_assert_eq!(decode::<Segment>("k", &encode(&segment).unwrap()).unwrap(), segment);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode::<Segment>("k", &bytes);
        }
    }
}
