//! The layout migration against a DynamoDB-compatible server.

mod backfill_races;
mod cutovers;
mod migration;
mod rejects;
mod store_authority;
mod store_limits;
mod store_mutations;
mod store_prefixes;
mod support;
mod verification;
