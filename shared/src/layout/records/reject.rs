//! `reject/<generation>/<segment>/<n>`: a key that backfill could not move, and why.
//!
//! Written in the transaction that moves the segment's cursor past the key, deleted in the one that finds the reason
//! gone. The segment's `rejectsRecorded` enumerates them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Record, VERSION};

/// Key of the n-th reject of a segment.
pub fn key(generation: u64, segment: u32, n: u64) -> String {
    format!("__lake_internal/dynamo-prefix-v2/reject/{generation}/{segment}/{n}")
}

/// Most characters of a reject's detail.
pub const MAX_DETAIL_CHARS: usize = 500;

/// Why a key cannot move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// Over 1,024 bytes.
    KeyTooLong,
    /// Over 409,600 bytes with its bucket.
    ItemTooLarge,
    /// `val` is missing or not binary, or there are further attributes.
    UnsupportedItem,
    /// Both copies exist and differ, or only v2 has one.
    Diverged,
}

/// A key that cannot move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reject {
    /// 1.
    pub version: u32,
    /// The key.
    pub key: String,
    /// Why.
    pub reason: Reason,
    /// What exactly, for a person.
    pub detail: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Record for Reject {}

impl Reject {
    /// A reject of this version. A detail over [`MAX_DETAIL_CHARS`] is cut: names of attributes have up to 64 KB each.
    pub fn new(key: impl Into<String>, reason: Reason, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if let Some((end, _)) = detail.char_indices().nth(MAX_DETAIL_CHARS) {
            detail.truncate(end);
            detail.push('…');
        }
        Self { version: VERSION, key: key.into(), reason, detail, extra: Map::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn names_of_60_kilobytes_leave_a_record_that_fits_an_item() {
        let detail = vec!["\u{1}".repeat(60_000); 5].join(", ");
        let reject = Reject::new("\u{1}".repeat(2048), Reason::UnsupportedItem, detail);
        assert!(encode(&reject).unwrap().len() < 20_000);
    }

    proptest! {
        #[test]
        fn it_survives_its_codec(key in ".{0,40}", detail in ".{0,20}") {
            let reject = Reject::new(key, Reason::Diverged, detail);
            prop_assert_eq!(decode::<Reject>("k", &encode(&reject).unwrap()).unwrap(), reject);
        }
    }
}
