//! The layout migration against a DynamoDB-compatible server.

mod backfill_races;
mod migration;
mod store_authority;
mod store_limits;
mod store_mutations;
mod store_prefixes;
mod support;
