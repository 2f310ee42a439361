//! SlateDB catalog formats and their migration.

pub mod authority;
pub mod batch;
pub mod checkpoints;
pub mod deadline;
pub mod driver;
pub mod format;
pub mod key;
pub mod location;
pub mod read;
pub mod store;
pub mod units;
pub mod value;
