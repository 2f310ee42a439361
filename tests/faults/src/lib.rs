//! A proxy in front of a DynamoDB or S3 endpoint that makes requests fail by rule.
//!
//! A test starts a [`Proxy`] in its own process and adds [`Rule`]s while requests pass. The binary of the same name
//! stands between a server and anything else; its rules come in over its control path ([`control`]).

mod answer;
pub mod control;
mod proxy;
pub mod rule;

pub use proxy::{Kept, Proxy, Statistics};
pub use rule::{Fault, Rule};
