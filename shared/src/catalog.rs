//! SlateDB catalog formats and their migration.
