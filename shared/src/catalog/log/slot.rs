//! One slot of the log, and whether it may follow a state. Pure.
//!
//! Slot n, from 1, is the batch that makes `head.batch_seq` = origin + n. Once created it never changes.

use bytes::Bytes;
use prost::Message;

use crate::catalog::batch::Batch;
use crate::catalog::format::{SystemRecords, options_key, says_elsewhere};
use crate::catalog::key::{Key, LONGEST_KEY, System};
use crate::catalog::value::{Format, Head, Migration, OptionScope, decoded, frame};
use crate::{Error, ErrorKind, Result};

/// Bytes of a transaction id.
const ID: usize = 16;

/// A slot: a batch, who sent it, and what it was decided on. Framed like every value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommitSlot {
    /// 16 random bytes, by which a sender whose answer was lost finds its own slot.
    #[prost(bytes = "bytes", tag = "1")]
    pub transaction_id: Bytes,
    /// `head.batch_seq` that the batch was decided on.
    #[prost(uint64, tag = "2")]
    pub base_batch_seq: u64,
    /// What it puts, in order.
    #[prost(message, repeated, tag = "3")]
    pub puts: Vec<Put>,
    /// What it deletes, after the puts.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub deletes: Vec<Bytes>,
}

/// One put of a slot.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Put {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The framed value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

impl CommitSlot {
    /// The slot of a batch that was decided on `base_batch_seq`.
    pub fn new(transaction_id: u128, base_batch_seq: u64, batch: Batch) -> Self {
        Self {
            transaction_id: Bytes::copy_from_slice(&transaction_id.to_be_bytes()),
            base_batch_seq,
            puts: batch.puts.into_iter().map(|(key, value)| Put { key, value }).collect(),
            deletes: batch.deletes,
        }
    }

    /// The bytes of the object.
    pub fn encode(&self) -> Bytes {
        frame(self)
    }

    /// Reads the object of a sequence; anything that no sender writes is `Corruption`.
    pub fn decode(sequence: u64, bytes: &[u8]) -> Result<Self> {
        let slot: Self = decoded(bytes).map_err(|why| corrupt(sequence, &why))?;
        if slot.transaction_id.len() != ID {
            return Err(corrupt(sequence, "its transaction id is not 16 bytes"));
        }
        let keys = slot.puts.iter().map(|put| &put.key).chain(&slot.deletes);
        if keys.into_iter().any(|key| key.is_empty() || key.len() > LONGEST_KEY) {
            return Err(corrupt(sequence, "it has a key that the store cannot hold"));
        }
        Ok(slot)
    }

    /// What it changes, in the order in which it happens.
    pub fn changes(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>)> {
        let puts = self.puts.iter().map(|put| (&put.key, Some(&put.value)));
        puts.chain(self.deletes.iter().map(|key| (key, None)))
    }

    /// The last thing that it does to a key.
    fn change_of(&self, key: &[u8]) -> Option<(&Bytes, Option<&Bytes>)> {
        self.changes().filter(|(changed, _)| ***changed == *key).last()
    }

    /// The last thing that it does to a system key.
    fn change(&self, key: System) -> Option<(&Bytes, Option<&Bytes>)> {
        self.change_of(&Key::System(key).encode())
    }

    fn wal_elsewhere(&self, sequence: u64, before: bool) -> Result<bool> {
        match self.change_of(&options_key()) {
            None => Ok(before),
            Some((_, None)) => Ok(false),
            Some((_, Some(value))) => {
                let options: OptionScope = decoded(value).map_err(|why| corrupt(sequence, &why))?;
                Ok(says_elsewhere(&options))
            }
        }
    }

    fn message<M: Message + Default>(&self, sequence: u64, key: System, old: Option<M>) -> Result<Option<M>> {
        match self.change(key) {
            None => Ok(old),
            Some((_, None)) => Ok(None),
            Some((_, Some(value))) => decoded(value).map(Some).map_err(|why| corrupt(sequence, &why)),
        }
    }

    /// The system records after this slot on a state with `records` in the log that began at `origin`. A slot that was
    /// decided on another state, that does not move head by one, or that stands in a unit without being part of it is
    /// `Corruption`; one that makes a newer format is `Migration`.
    pub fn follow(&self, records: &SystemRecords, origin: u64, sequence: u64) -> Result<SystemRecords> {
        let before = records.head.unwrap_or_default();
        if self.base_batch_seq != before.batch_seq
            || before.batch_seq.checked_add(1) != origin.checked_add(sequence)
        {
            return Err(corrupt(
                sequence,
                &format!(
                    "it was decided on batch {} and follows batch {} of a log that began at {origin}",
                    self.base_batch_seq, before.batch_seq
                ),
            ));
        }
        let after = SystemRecords {
            format: self.message::<Format>(sequence, System::Format, records.format.clone())?,
            head: self.message::<Head>(sequence, System::Head, records.head)?,
            marker: self.message::<Migration>(sequence, System::Migration, records.marker.clone())?,
            wal_elsewhere: self.wal_elsewhere(sequence, records.wal_elsewhere)?,
        };
        if after.head.map(|head| head.batch_seq) != Some(before.batch_seq + 1) {
            return Err(corrupt(sequence, "it does not move head by one batch"));
        }
        if after
            .coherent()?
            .and_then(|format| format.commit_log_batch_origin)
            .is_some_and(|other| other != origin)
        {
            return Err(corrupt(sequence, "it says that the log began elsewhere"));
        }
        if let Some(marker) = &records.marker
            && !self.is_part_of(marker, records, &after)
        {
            return Err(corrupt(
                sequence,
                &format!(
                    "it is no part of the migration from {} to {} that it stands in",
                    marker.from_format, marker.to_format
                ),
            ));
        }
        Ok(after)
    }

    /// Every batch of a unit writes or ends its marker, and none makes a snapshot.
    fn is_part_of(&self, marker: &Migration, before: &SystemRecords, after: &SystemRecords) -> bool {
        let same = |next: &Migration| {
            next.from_format == marker.from_format
                && next.to_format == marker.to_format
                && next.original_format == marker.original_format
        };
        self.change(System::Migration).is_some()
            && after.marker.as_ref().is_none_or(same)
            && after.head.map(|head| head.snapshot_id) == before.head.map(|head| head.snapshot_id)
    }
}

pub(super) fn corrupt(sequence: u64, why: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("slot {sequence} of the commit log: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records(marker: Option<Migration>) -> SystemRecords {
        SystemRecords {
            format: Some(Format {
                format_version: 11,
                commit_log_batch_origin: Some(40),
                ..Format::default()
            }),
            head: Some(Head { snapshot_id: 7, batch_seq: 42 }),
            marker,
            wal_elsewhere: false,
        }
    }

    fn slot(base: u64, head: Head) -> CommitSlot {
        let mut batch = Batch::default();
        batch.put_system(System::Head, &head);
        CommitSlot::new(5, base, batch)
    }

    fn refused(slot: &CommitSlot, records: &SystemRecords, sequence: u64) {
        assert_eq!(slot.follow(records, 40, sequence).unwrap_err().kind(), ErrorKind::Corruption, "{slot:?}");
    }

    #[test]
    fn the_bytes_of_a_slot_are_these() {
        let batch = Batch {
            puts: vec![(Bytes::from_static(b"\x02\x03"), Bytes::from_static(b"v"))],
            deletes: vec![Bytes::from_static(b"\x02\x04")],
        };
        let slot = CommitSlot::new(1, 42, batch);
        let expected = "4d524e4500\
            0a1000000000000000000000000000000001\
            102a\
            1a070a020203120176\
            22020204";
        assert_eq!(hex::encode(slot.encode()), expected);
        assert_eq!(CommitSlot::decode(3, &slot.encode()).unwrap(), slot);
    }

    #[test]
    fn a_slot_follows_only_the_state_that_it_was_decided_on() {
        let next = Head { snapshot_id: 8, batch_seq: 43 };
        let after = slot(42, next).follow(&records(None), 40, 3).unwrap();
        assert_eq!((after.head, after.marker), (Some(next), None));
        refused(&slot(41, next), &records(None), 3);
        refused(&slot(42, next), &records(None), 4);
        refused(&slot(42, Head { snapshot_id: 8, batch_seq: 44 }), &records(None), 3);
        refused(&CommitSlot::new(1, 42, Batch::default()), &records(None), 3);
        refused(&slot(u64::MAX, next), &records(None), u64::MAX);
    }

    #[test]
    fn a_log_says_one_origin_for_good() {
        let mut batch = Batch::default();
        batch.put_system(System::Head, &Head { snapshot_id: 7, batch_seq: 43 });
        for (origin, allowed) in [(Some(40), true), (None, true), (Some(41), false)] {
            let mut batch = batch.clone();
            let format = Format { commit_log_batch_origin: origin, ..records(None).format.unwrap() };
            batch.put_system(System::Format, &format);
            assert_eq!(
                CommitSlot::new(1, 42, batch).follow(&records(None), 40, 3).is_ok(),
                allowed,
                "{origin:?}"
            );
        }
    }

    #[test]
    fn between_start_and_finish_every_slot_belongs_to_the_unit() {
        let marker =
            Migration { from_format: 11, to_format: 12, original_format: Some(11), ..Migration::default() };
        let running = records(Some(marker.clone()));
        let same = Head { snapshot_id: 7, batch_seq: 43 };
        let with = |marker: Option<&Migration>, head: Head| {
            let mut batch = Batch::default();
            batch.put_system(System::Head, &head);
            match marker {
                Some(marker) => batch.put_system(System::Migration, marker),
                None => batch.delete(Key::System(System::Migration).encode()),
            }
            CommitSlot::new(1, 42, batch)
        };
        let further = Migration { cursor: Bytes::from_static(b"k"), ..marker.clone() };
        with(Some(&further), same).follow(&running, 40, 3).unwrap();
        assert_eq!(with(None, same).follow(&running, 40, 3).unwrap().marker, None);
        refused(&slot(42, same), &running, 3);
        refused(&with(Some(&further), Head { snapshot_id: 8, batch_seq: 43 }), &running, 3);
        refused(&with(Some(&Migration { to_format: 13, ..marker }), same), &running, 3);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_slot_or_corruption(bytes: Vec<u8>) {
            let framed = [b"MRNE\x00", bytes.as_slice()].concat();
            for bytes in [bytes.as_slice(), framed.as_slice()] {
                match CommitSlot::decode(1, bytes) {
                    Ok(slot) => prop_assert_eq!(slot.transaction_id.len(), ID),
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corruption),
                }
            }
        }
    }
}
