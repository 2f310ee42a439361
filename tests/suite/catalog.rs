//! Catalog migrations through the command and the library.

mod support;

mod bounds;
mod checkpoints;
mod corruption;
mod crashes;
mod fencing;
mod migrations;
mod processes;
mod readers;
mod registry;
mod s3;
