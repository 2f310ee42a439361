//! SlateDB catalog formats and their migration.
//!
//! # Errors
//!
//! Whatever reads a store can end with `Timeout` at the deadline, `Unavailable` and `AccessDenied` from the object store,
//! `Corruption` for bytes that no version writes, and `InvalidInput` for a SlateDB database that is no catalog. Whatever holds
//! the writer, as a [`authority::Native`] or [`authority::Folder`] does, can also end with `Fenced`: another process took it,
//! and everything acknowledged before counts. A function's documentation names the kinds that come on top, and what
//! `Corruption` or `InvalidInput` means there if it is more than this.

pub mod abandon;
pub mod authority;
pub mod batch;
pub(crate) mod bootstrap;
pub mod checkpoints;
pub mod commit;
pub mod deadline;
pub mod driver;
pub mod format;
pub(crate) mod guard;
pub mod handle;
pub mod inspect;
pub mod key;
pub mod location;
pub mod log;
pub mod read;
pub mod seed;
pub mod sound;
pub mod step;
pub mod store;
pub mod units;
pub mod value;
pub mod view;
