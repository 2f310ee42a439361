//! The layout migration against a DynamoDB-compatible server.

mod backfill_races;
mod commands;
mod controls;
mod cutovers;
mod executions;
mod faults_on_reads;
mod faults_on_writes;
mod foreign;
mod frozen;
mod histories;
mod kills;
mod migration;
mod operators;
mod refusals;
mod rejects;
mod repairs;
mod signals;
mod store_authority;
mod store_limits;
mod store_mutations;
mod store_plan;
mod store_prefixes;
pub(crate) mod support;
mod transitions;
mod verification;
