//! What requests were charged, as the server says, and how many there were.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use aws_sdk_dynamodb::types::ConsumedCapacity;

use super::failure::Failure;
use crate::step::Consumed;

/// Counts of one step, or of one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// Request units charged.
    pub consumed: Consumed,
    /// Answered requests by operation; scans apart by table (`Scan v1`, `Scan v2`).
    pub requests: BTreeMap<&'static str, u64>,
    /// Attempts that were throttled.
    pub throttled: u64,
    /// Attempts that met another request in progress.
    pub conflicts: u64,
    /// Attempts whose answer was lost or that failed in passing.
    pub failures: u64,
}

impl Usage {
    /// Answered requests of all operations.
    pub fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }
}

/// Collects [`Usage`].
#[derive(Debug, Default)]
pub struct Meter(Mutex<Usage>);

impl Meter {
    /// What was counted so far.
    pub fn usage(&self) -> Usage {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, operation: &'static str, read_units: f64, write_units: f64) {
        let mut usage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *usage.requests.entry(operation).or_default() += 1;
        usage.consumed += Consumed { read_units, write_units };
    }

    pub(super) fn read(&self, operation: &'static str, capacity: Option<&ConsumedCapacity>) {
        self.count(operation, capacity.map_or(0.0, units), 0.0);
    }

    pub(super) fn reads(&self, operation: &'static str, capacity: &[ConsumedCapacity]) {
        self.count(operation, capacity.iter().map(units).sum(), 0.0);
    }

    pub(super) fn writes(&self, operation: &'static str, capacity: &[ConsumedCapacity]) {
        self.count(operation, 0.0, capacity.iter().map(units).sum());
    }

    pub(super) fn failed(&self, failure: &Failure) {
        let mut usage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Failure::Throttled => usage.throttled += 1,
            Failure::Conflict | Failure::InProgress => usage.conflicts += 1,
            Failure::Lost(_) | Failure::Passing(_) | Failure::Clock { .. } | Failure::Ended { .. } => {
                usage.failures += 1;
            }
            Failure::Cancelled(_) | Failure::Fatal(_) | Failure::TokenUsed | Failure::Late => {}
        }
    }
}

fn units(capacity: &ConsumedCapacity) -> f64 {
    capacity.capacity_units().unwrap_or(0.0)
}
