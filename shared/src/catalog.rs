//! SlateDB catalog formats and their migration.

pub mod key;
pub mod value;
