//! Suites that cross crates: store contract, steps under faults, kills of real processes.
//!
//! Compiled as one integration test of the `metashift-cli` package (`cargo test -p metashift-cli --test suite
//! --all-features`), so that `env!("CARGO_BIN_EXE_metashift")` is the command, built with crash points.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(clippy::pedantic, clippy::type_complexity, reason = "pedantry is for what ships")]

mod catalog;
mod environment;
mod fault_proxy;
mod faults_on_s3;
mod http;
mod layout;
mod ministack;
