//! The migration protocols under a model checker.
//!
//! The model of the layout protocol drives the functions that production decides with: what is read from the two
//! tables goes through `metashift::layout`'s own decoders, transitions and transaction builders, and what they build
//! is evaluated as DynamoDB evaluates it. See `docs/model.md` for scopes and counts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate: whatever does not hold stops the check"
)]

pub mod answers;
pub mod catalog;
pub mod explore;
pub mod layout;
pub mod store;
