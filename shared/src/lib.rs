//! Crash-safe migrations of lake metadata.
//!
//! Two independent migrations live here, each as bounded steps that may be stopped after any write and
//! run again by anybody:
//!
//! - [`layout`]: a DynamoDB metadata table with one HASH key to a prefix-isolated companion table;
//! - [`catalog`]: a SlateDB catalog from an older on-disk format to a newer one.
//!
//! Neither knows the other; both use [`step`], [`error`], [`environment`] and [`telemetry`]. Each has a feature of its
//! own, `layout` and `catalog`, both on by default; `crash-points` is for tests.
//!
//! # For a metadata node
//!
//! A node that reads and writes the table while it is migrated links this crate with the feature `layout` alone, opens a
//! `layout::MetaStore` in dual mode and uses its `get`, `list`, `cas` and `guarded_mutate`: it dual-writes, follows the
//! authority by itself, and gives the record of the metric `WriterMode` that the rollout check reads. The example
//! `metadata_node` (`shared/examples/metadata_node.rs`) is such a node, complete:
//!
//! ```sh
//! cargo run --package metashift --example metadata_node
//! ```
//!
//! # What stays compatible
//!
//! Semantic versioning covers what a node uses: [`Error`] and [`error`], [`environment`], and of `layout` the names `MetaStore`,
//! `Mode`, `Authority`, `Mutation`, `Layout` and `Tables` with what they give back; what may grow, [`ErrorKind`] first of all, is
//! `#[non_exhaustive]`. It covers the durable bytes too: records carry a version, and a newer one is refused. `Tables::new` takes
//! the client of `aws-sdk-dynamodb` 1. Everything else is public for the migrator's own command, functions and tests, and may
//! change with any minor version.
//!
//! # Errors, units, times
//!
//! Every fallible function gives an [`Error`]. Its [`ErrorKind`] says what went wrong and its [`error::Class`] what the
//! caller does next; where a function's documentation names kinds, they are the ones to handle apart from the ones that any
//! request can end with (`AccessDenied`, `Throttled`, `Unavailable`, `OutcomeUnknown`). Units are DynamoDB request units
//! as the server charged them, sizes are bytes, durations seconds, and times RFC 3339 in UTC.

#[cfg(feature = "aws")]
pub mod aws;
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
