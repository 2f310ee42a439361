//! `index-current-names` (9 → 11, 10 → 11): exact names of current schemas and tables.

use bytes::Bytes;

use super::{Claim, Directory, Kind, Translation, Unit, disagreement};
use crate::catalog::batch::Batch;
use crate::catalog::key::{Current, Entity, Key, Name, prefix, shown};
use crate::catalog::read::Range;
use crate::catalog::value::{NameEntry, Schema, Table, frame, unframe};
use crate::{Error, ErrorKind, Result};

/// Puts `0a 02` (name) for every current schema and `0a 03` (schema, name) for every current table.
#[derive(Debug, Clone, Copy)]
pub struct IndexCurrentNames;

impl Unit for IndexCurrentNames {
    fn name(&self) -> &'static str {
        "index-current-names"
    }

    fn source_formats(&self) -> &'static [u64] {
        &[9, 10]
    }

    fn to_format(&self) -> u64 {
        11
    }

    fn kind(&self) -> Kind {
        Kind::Directory { entries: Bytes::from_static(prefix::NAMES) }
    }

    /// Schemas, then tables: their prefixes follow each other.
    fn source(&self) -> Range {
        Range {
            start: Range::prefix(prefix::CURRENT_SCHEMAS).start,
            end: Range::prefix(prefix::CURRENT_TABLES).end,
        }
    }

    fn translate(&self, key: &Bytes, value: &Bytes) -> Result<Translation> {
        let (name, id) = match Key::decode(key)? {
            Key::Current(Current::Entity(Entity::Schema { schema_id })) => {
                let schema: Schema = unframe(key, value)?;
                if schema.schema_id != schema_id {
                    return Err(disagreement(key, "the id"));
                }
                (Name::Schema { name: schema.schema_name }, schema_id)
            }
            Key::Current(Current::Entity(Entity::Table { table_id })) => {
                let table: Table = unframe(key, value)?;
                if table.table_id != table_id {
                    return Err(disagreement(key, "the id"));
                }
                (Name::Table { schema_id: table.schema_id, name: table.table_name }, table_id)
            }
            _ => {
                let what = format!("key {} is no current schema or table", shown(key));
                return Err(Error::new(ErrorKind::Corruption, what));
            }
        };
        let entry: Bytes = Key::Name(name).checked()?.into();
        let batch = Batch { puts: vec![(entry.clone(), frame(&NameEntry { id }))], deletes: Vec::new() };
        Ok(Translation { batch, claim: Some(Claim { key: entry, id }) })
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}

impl Directory for IndexCurrentNames {
    fn id(&self, entry_key: &[u8], entry_value: &[u8]) -> Result<u64> {
        unframe::<NameEntry>(entry_key, entry_value).map(|entry| entry.id)
    }

    fn record(&self, entry_key: &[u8], id: u64) -> Result<Bytes> {
        let entity = match Key::decode(entry_key)? {
            Key::Name(Name::Schema { .. }) => Entity::Schema { schema_id: id },
            Key::Name(Name::Table { .. }) => Entity::Table { table_id: id },
            _ => {
                let what = format!("key {} is no name", shown(entry_key));
                return Err(Error::new(ErrorKind::Corruption, what));
            }
        };
        Ok(Key::Current(Current::Entity(entity)).encode().into())
    }
}
