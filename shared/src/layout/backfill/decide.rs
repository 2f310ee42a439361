//! What is to be done with one scanned key: pure.

use super::super::family::Layout;
use super::super::key::check_v2_item;
use super::super::records::reject::{Reason, Reject};
use super::super::records::segment::{Position, Segment};
use super::super::tables::{Content, Item};
use crate::ErrorKind;

/// A scanned key and what is to be done with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where the scan goes on after it.
    pub position: Position,
    /// What is to be done.
    pub verdict: Verdict,
}

/// What is to be done with a scanned key.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// A record of the migrator: nothing, and it is not counted.
    Internal,
    /// v2 has an equal copy, of so many bytes of key and value: nothing.
    AlreadyLive(u64),
    /// v1 has it and v2 has not: copy this value.
    Copy(Vec<u8>),
    /// Neither has it any more: nothing.
    Gone,
    /// It cannot move: record why.
    Reject(Reject),
    /// The copies were read apart and differ: read both at one moment.
    Differs,
}

impl Verdict {
    /// Adds `key`, which was dealt with, to its segment's totals.
    pub fn count(&self, key: &str, segment: &mut Segment) {
        match self {
            Self::Internal | Self::Differs => {}
            Self::Gone => segment.scanned += 1,
            Self::AlreadyLive(bytes) => {
                segment.scanned += 1;
                segment.already_live += 1;
                segment.bytes += bytes;
            }
            Self::Copy(value) => {
                segment.scanned += 1;
                segment.copied += 1;
                segment.bytes += (key.len() + value.len()) as u64;
            }
            Self::Reject(reject) => {
                segment.scanned += 1;
                segment.rejects_recorded += 1;
                if reject.reason == Reason::Diverged {
                    segment.diverged += 1;
                } else {
                    segment.rejected += 1;
                }
            }
        }
    }
}

/// Judges a scanned item and the copy that was read for it a moment later.
pub fn first(layout: &Layout, v1: &Item, v2: Option<&Item>) -> Verdict {
    match movable(layout, v1) {
        Err(reject) => Verdict::Reject(reject),
        Ok(value) => match v2 {
            None => Verdict::Copy(value.to_vec()),
            Some(copy) if copy.value() == Some(value) => already_live(&v1.key, value),
            Some(_) => Verdict::Differs,
        },
    }
}

/// Judges both copies as they were at one moment.
pub fn settled(layout: &Layout, key: &str, v1: Option<&Item>, v2: Option<&Item>) -> Verdict {
    let diverged = |detail: &str| Verdict::Reject(Reject::new(key, Reason::Diverged, detail));
    match (v1, v2) {
        (None, None) => Verdict::Gone,
        (None, Some(_)) => diverged("only the new table has it"),
        (Some(v1), v2) => match (movable(layout, v1), v2) {
            (Err(reject), _) => Verdict::Reject(reject),
            (Ok(value), None) => Verdict::Copy(value.to_vec()),
            (Ok(value), Some(copy)) if copy.value() == Some(value) => already_live(key, value),
            (Ok(_), Some(_)) => diverged("the values differ"),
        },
    }
}

fn already_live(key: &str, value: &[u8]) -> Verdict {
    Verdict::AlreadyLive((key.len() + value.len()) as u64)
}

/// The value of an item that v2 can hold, or why it cannot.
pub fn movable<'a>(layout: &Layout, item: &'a Item) -> Result<&'a [u8], Reject> {
    let value = match &item.content {
        Content::Value(value) => value,
        Content::Unsupported(detail) => {
            return Err(Reject::new(&item.key, Reason::UnsupportedItem, detail));
        }
    };
    check_v2_item(layout, &item.key, value.len()).map(|()| value.as_slice()).map_err(|error| {
        let reason =
            if error.kind() == ErrorKind::ItemTooLarge { Reason::ItemTooLarge } else { Reason::KeyTooLong };
        let detail = match reason {
            Reason::ItemTooLarge => format!("{} bytes of value", value.len()),
            _ => format!("{} bytes of key", item.key.len()),
        };
        Reject::new(&item.key, reason, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(value: &[u8]) -> Item {
        Item { key: "t/k".to_owned(), bucket: None, content: Content::Value(value.to_vec()) }
    }

    fn reason(verdict: &Verdict) -> Option<Reason> {
        match verdict {
            Verdict::Reject(reject) => Some(reject.reason),
            _ => None,
        }
    }

    #[test]
    fn a_copy_that_differs_is_never_overwritten() {
        let layout = Layout::default();
        assert_eq!(first(&layout, &item(b"a"), Some(&item(b"b"))), Verdict::Differs);
        let both = settled(&layout, "t/k", Some(&item(b"a")), Some(&item(b"b")));
        assert_eq!(reason(&both), Some(Reason::Diverged));
    }

    #[test]
    fn a_deleted_key_stays_deleted() {
        let layout = Layout::default();
        assert_eq!(settled(&layout, "t/k", None, None), Verdict::Gone);
        assert_eq!(reason(&settled(&layout, "t/k", None, Some(&item(b"a")))), Some(Reason::Diverged));
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let layout = Layout::default();
        assert_eq!(first(&layout, &item(b""), None), Verdict::Copy(Vec::new()));
        assert_eq!(first(&layout, &item(b""), Some(&item(b""))), Verdict::AlreadyLive(3));
    }

    #[test]
    fn what_v2_cannot_hold_is_rejected_with_its_reason() {
        let layout = Layout::default();
        let mut long = item(b"v");
        long.key = "k".repeat(1025);
        assert_eq!(reason(&first(&layout, &long, None)), Some(Reason::KeyTooLong));
        assert_eq!(reason(&first(&layout, &item(&vec![0; 409_590]), None)), Some(Reason::ItemTooLarge));
        let mut odd = item(b"");
        odd.content = Content::Unsupported("val is missing".to_owned());
        assert_eq!(reason(&first(&layout, &odd, None)), Some(Reason::UnsupportedItem));
    }
}
