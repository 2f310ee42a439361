//! The DynamoDB prefix-isolated layout.
