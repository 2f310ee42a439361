//! The DynamoDB prefix-isolated layout: from one HASH key (v1) to `bucket` and `pk` (v2).
//!
//! What a metadata node links is [`store::MetaStore`]. Everything else is the migrator's: bounded steps
//! ([`preflight`], [`backfill`], [`repair`], [`verify`], [`cutover`]) over durable [`records`], in the order that
//! [`run`] gives them on one machine and the state machines give them in AWS. Deciding is pure
//! ([`family`], [`cursor`], [`transaction`], [`outcome`], [`plan`]); only [`tables`] talks to DynamoDB.

pub mod backfill;
pub mod cloudwatch;
pub mod cursor;
pub mod cutover;
pub mod digest;
pub mod family;
pub mod generation;
pub mod input;
pub mod key;
pub mod outcome;
pub mod plan;
pub mod preflight;
pub mod records;
pub mod repair;
pub mod run;
pub mod status;
pub mod steps;
pub mod store;
pub mod survey;
pub mod tables;
pub mod transaction;
pub mod verify;
pub mod walk;

pub use family::Layout;
pub use store::{Authority, MetaStore, Mode, Mutation};
pub use tables::Tables;
