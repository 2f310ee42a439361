//! Embedded DynamoDB-compatible server, seeded tables and live writers, for the demo and the tests.

pub mod compare;
pub mod seed;
pub mod server;
pub mod workload;

pub use server::Server;
pub use workload::Workload;
