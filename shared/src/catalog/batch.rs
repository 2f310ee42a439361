//! A batch: what is written together or not at all, and the state that it was decided on.

use bytes::Bytes;
use prost::Message;

use super::format::SystemRecords;
use super::key::{Key, System};
use super::value::{Head, Migration, frame};
use crate::Result;

/// The state that a batch was decided on. It commits only on exactly this state.
#[derive(Debug, Clone, PartialEq)]
pub struct Anchor {
    /// `sys/head`; every batch moves it, so nothing else can have changed while it stands.
    pub head: Head,
    /// `sys/migration`, with its cursor.
    pub marker: Option<Migration>,
}

impl Anchor {
    /// Whether a state with these records is the one that it names. A catalog that is not there yet is at head (0, 0).
    pub fn is(&self, records: &SystemRecords) -> bool {
        records.head.unwrap_or_default() == self.head && records.marker == self.marker
    }

    /// The anchor after a batch that keeps the snapshot and leaves `marker`.
    #[must_use]
    pub fn advanced(&self, marker: Option<Migration>) -> Self {
        let head = Head { batch_seq: self.head.batch_seq + 1, ..self.head };
        Self { head, marker }
    }
}

/// Puts, then deletes, of one atomic write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Keys and values to put, in order.
    pub puts: Vec<(Bytes, Bytes)>,
    /// Keys to delete, after the puts.
    pub deletes: Vec<Bytes>,
}

impl Batch {
    /// Puts a message under a key; `Corruption` for a key that the store cannot hold.
    pub fn put<M: Message>(&mut self, key: &Key, message: &M) -> Result<()> {
        self.puts.push((key.checked()?.into(), frame(message)));
        Ok(())
    }

    /// Puts a system record.
    pub fn put_system<M: Message>(&mut self, key: System, message: &M) {
        self.puts.push((Key::System(key).encode().into(), frame(message)));
    }

    /// Deletes a key.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.deletes.push(key.into());
    }

    /// Bytes of all its keys and values.
    pub fn bytes(&self) -> u64 {
        let puts = self.puts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let deletes = self.deletes.iter().map(Bytes::len).sum::<usize>();
        (puts + deletes) as u64
    }
}
