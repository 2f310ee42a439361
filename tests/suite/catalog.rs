//! Catalog migrations through the command and the library.

mod support;

mod bounds;
mod checkpoints;
mod corruption;
mod crashes;
mod damage;
mod durable;
mod fencing;
mod foreign_wal;
mod log_commits;
mod log_lifecycle;
mod migrations;
mod open_readers;
mod outside;
mod processes;
mod readers;
mod refusals;
mod registry;
mod s3;
mod stale;
