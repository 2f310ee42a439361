//! `version-inline-tombstones` (8 → 9): a row delete becomes an immutable event, keyed by when it happened.

use bytes::Bytes;

use super::{Kind, Translation, Unit};
use crate::catalog::batch::Batch;
use crate::catalog::key::{Inline, Key, Operation, prefix, shown};
use crate::catalog::read::Range;
use crate::catalog::value::{RowDeletion, unframe};
use crate::{Error, ErrorKind, Result};

/// Moves `06 03 03` (table, row) to `06 09` (table, row, end snapshot of the value), the value byte for byte.
#[derive(Debug, Clone, Copy)]
pub struct VersionInlineTombstones;

impl Unit for VersionInlineTombstones {
    fn name(&self) -> &'static str {
        "version-inline-tombstones"
    }

    fn source_formats(&self) -> &'static [u64] {
        &[8]
    }

    fn to_format(&self) -> u64 {
        9
    }

    fn kind(&self) -> Kind {
        Kind::Rewriting
    }

    fn source(&self) -> Range {
        Range::prefix(prefix::LIVE_ROW_DELETES)
    }

    fn translate(&self, key: &Bytes, value: &Bytes) -> Result<Translation> {
        let Key::Inline(Inline::Live(Operation::RowDelete { table_id, row_id })) = Key::decode(key)? else {
            return Err(Error::new(ErrorKind::Corruption, format!("key {} is no row delete", shown(key))));
        };
        let RowDeletion { end_snapshot } = unframe(key, value)?;
        let moved = Key::Inline(Inline::RowTombstone { table_id, row_id, end_snapshot }).encode();
        let batch = Batch { puts: vec![(moved.into(), value.clone())], deletes: vec![key.clone()] };
        Ok(Translation { batch, claim: None })
    }
}
