//! SlateDB catalog formats and their migration.

pub mod abandon;
pub mod authority;
pub mod batch;
pub(crate) mod bootstrap;
pub mod checkpoints;
pub mod commit;
pub mod deadline;
pub mod driver;
pub mod format;
pub mod handle;
pub mod inspect;
pub mod key;
pub mod location;
pub mod log;
pub mod read;
pub mod seed;
pub mod step;
pub mod store;
pub mod units;
pub mod value;
pub mod view;
