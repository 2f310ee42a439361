//! Catalog migrations through the command and the library.

mod support;

mod bounds;
mod checkpoints;
mod corruption;
mod crashes;
mod fencing;
mod log_commits;
mod log_lifecycle;
mod migrations;
mod processes;
mod readers;
mod registry;
mod s3;
