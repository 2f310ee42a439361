//! The floor of the log: slots up to it may be deleted, and one that appears there later counts for nothing.

use bytes::Bytes;
use prost::Message;

use crate::catalog::value::{decoded, frame};
use crate::{Error, ErrorKind, Result};

/// How many of the slots at the floor are remembered by id.
pub const REMEMBERED: u64 = 1_024;

/// `commits/floor`. Raised only, and always before anything is deleted. Framed like every value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Floor {
    /// The highest sequence that may be deleted; 0 if none.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Transaction ids of the last slots up to it, newest last: a sender that was held up between its slot and its look
    /// at the floor finds out here that the slot was folded.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub transaction_ids: Vec<Bytes>,
}

impl Floor {
    /// The bytes of the object.
    pub fn encode(&self) -> Bytes {
        frame(self)
    }

    /// Reads the object; anything that [`Self::encode`] does not write is `Corruption`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decoded(bytes)
            .map_err(|why| Error::new(ErrorKind::Corruption, format!("the floor of the commit log: {why}")))
    }

    /// Whether the slot at a sequence at or below the floor that was folded had this id; `None` where that is forgotten.
    pub fn remembers(&self, sequence: u64, transaction_id: &[u8]) -> Option<bool> {
        let back = usize::try_from(self.sequence.checked_sub(sequence)?).ok()?;
        self.transaction_ids.iter().rev().nth(back).map(|id| id == transaction_id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_floor_remembers_whose_the_last_folded_slots_were() {
        let floor = Floor {
            sequence: 9,
            transaction_ids: vec![Bytes::from_static(b"eight"), Bytes::from_static(b"nine")],
        };
        assert_eq!(Floor::decode(&floor.encode()).unwrap(), floor);
        assert_eq!((floor.remembers(9, b"nine"), floor.remembers(8, b"eight")), (Some(true), Some(true)));
        assert_eq!((floor.remembers(9, b"eight"), floor.remembers(8, b"nine")), (Some(false), Some(false)));
        assert_eq!((floor.remembers(7, b"eight"), floor.remembers(10, b"nine")), (None, None));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_floor_or_corruption(bytes: Vec<u8>) {
            let framed = [b"MRNE\x00", bytes.as_slice()].concat();
            for bytes in [bytes.as_slice(), framed.as_slice()] {
                if let Err(error) = Floor::decode(bytes) {
                    prop_assert_eq!(error.kind(), ErrorKind::Corruption);
                }
            }
        }
    }
}
