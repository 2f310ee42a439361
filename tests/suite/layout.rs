//! The layout migration against a DynamoDB-compatible server.

mod migration;
mod support;
