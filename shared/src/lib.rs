//! Crash-safe migrations of lake metadata.
//!
//! Two independent migrations live here, each as bounded steps that may be stopped after any write and
//! run again by anybody:
//!
//! - [`layout`]: a DynamoDB metadata table with one HASH key to a prefix-isolated companion table;
//! - [`catalog`]: a SlateDB catalog from an older on-disk format to a newer one.
//!
//! Neither knows the other; both use [`step`], [`error`], [`environment`] and [`telemetry`].

#[cfg(feature = "catalog")]
pub mod catalog;
pub mod crash;
pub mod environment;
pub mod error;
#[cfg(feature = "layout")]
pub mod layout;
pub mod step;
pub mod telemetry;

pub use error::{Error, ErrorKind, Result};
