//! `index-delete-file-targets` (11 → 12): current delete files by the data file that they target.

use bytes::Bytes;

use super::{Kind, Translation, Unit, disagreement};
use crate::catalog::batch::Batch;
use crate::catalog::key::{Current, Entity, Key, prefix, shown};
use crate::catalog::read::Range;
use crate::catalog::value::{DeleteFile, DeleteTargetEntry, frame, unframe};
use crate::{Error, ErrorKind, Result};

/// Puts `0b` (table, data file, delete file) for every current delete file.
#[derive(Debug, Clone, Copy)]
pub struct IndexDeleteFileTargets;

impl Unit for IndexDeleteFileTargets {
    fn name(&self) -> &'static str {
        "index-delete-file-targets"
    }

    fn source_formats(&self) -> &'static [u64] {
        &[11]
    }

    fn to_format(&self) -> u64 {
        12
    }

    fn kind(&self) -> Kind {
        Kind::Directory { entries: Bytes::from_static(prefix::DELETE_TARGETS) }
    }

    fn source(&self) -> Range {
        Range::prefix(prefix::CURRENT_DELETE_FILES)
    }

    fn translate(&self, key: &Bytes, value: &Bytes) -> Result<Translation> {
        let Key::Current(Current::Entity(Entity::DeleteFile { table_id, delete_file_id })) =
            Key::decode(key)?
        else {
            let what = format!("key {} is no current delete file", shown(key));
            return Err(Error::new(ErrorKind::Corruption, what));
        };
        let file: DeleteFile = unframe(key, value)?;
        if (file.table_id, file.delete_file_id) != (table_id, delete_file_id) {
            return Err(disagreement(key, "the id"));
        }
        let entry = Key::DeleteTarget { table_id, data_file_id: file.data_file_id, delete_file_id }.encode();
        let batch = Batch { puts: vec![(entry.into(), frame(&DeleteTargetEntry {}))], deletes: Vec::new() };
        Ok(Translation { batch, claim: None })
    }
}
