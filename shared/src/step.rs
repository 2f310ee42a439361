//! The shape of every step: state and budget in, outcome out.
//!
//! A step may be killed after any write and run again by anybody; its durable cursor is written with the work
//! it records, never before.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::environment::{Environment, elapsed};

/// The least time that a step leaves unused before its deadline, for its last flush and its answer.
pub const RESERVE: Duration = Duration::from_secs(10);

/// How long and how far one invocation may go.
#[derive(Debug, Clone)]
pub struct Budget {
    environment: Environment,
    stop_at: Option<Timestamp>,
    deadline: Option<Timestamp>,
    pages_left: Option<u32>,
}

impl Budget {
    /// No bound at all: one process, on an operator's machine.
    pub fn unbounded(environment: Environment) -> Self {
        Self { environment, stop_at: None, deadline: None, pages_left: None }
    }

    /// Stops so that the larger of 10 seconds and 5 % of the time until `deadline` is left.
    pub fn until(environment: Environment, deadline: Timestamp) -> Self {
        let total = elapsed(environment.now(), deadline);
        let reserve = RESERVE.max(total / 20).min(total);
        let stop_at = environment.now().saturating_add(total.saturating_sub(reserve)).unwrap_or(deadline);
        Self { environment, stop_at: Some(stop_at), deadline: Some(deadline), pages_left: None }
    }

    /// At most `pages` pages or batches from here.
    #[must_use]
    pub fn with_pages(mut self, pages: Option<u32>) -> Self {
        self.pages_left = pages;
        self
    }

    /// True once no further page may be started.
    pub fn is_spent(&self) -> bool {
        self.pages_left == Some(0) || self.stop_at.is_some_and(|at| self.environment.now() >= at)
    }

    /// True where the page that is being worked on is the last of this invocation.
    pub fn is_last_page(&self) -> bool {
        self.pages_left.is_some_and(|pages| pages <= 1)
    }

    /// True where the invocation is ended from outside at some time.
    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// Takes one page.
    pub fn take_page(&mut self) {
        if let Some(pages) = &mut self.pages_left {
            *pages = pages.saturating_sub(1);
        }
    }

    /// Time until the step has to stop; `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        self.stop_at.map(|at| elapsed(self.environment.now(), at))
    }

    /// Time until the invocation itself is ended from outside; `None` without a deadline.
    pub fn time_to_deadline(&self) -> Option<Duration> {
        self.deadline.map(|at| elapsed(self.environment.now(), at))
    }
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// There is more to do: run it again.
    Continue,
    /// Nothing is left to do.
    Done,
    /// The operator paused the run.
    Paused,
    /// Something that a person decides stands in the way; the details say what.
    Blocked,
}

/// How far the work is, in items (layout) or records (catalog).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Seen by a scan.
    pub scanned: u64,
    /// Written by this migration.
    pub copied: u64,
    /// Found equal on both sides.
    pub already_live: u64,
    /// Cannot move; a person decides.
    pub rejected: u64,
    /// Both copies exist and differ.
    pub diverged: u64,
    /// An estimate of the whole, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_total: Option<u64>,
}

impl std::ops::AddAssign for Progress {
    fn add_assign(&mut self, other: Self) {
        self.scanned += other.scanned;
        self.copied += other.copied;
        self.already_live += other.already_live;
        self.rejected += other.rejected;
        self.diverged += other.diverged;
        self.estimated_total = match (self.estimated_total, other.estimated_total) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

/// Capacity that the server says it charged, in DynamoDB request units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumed {
    /// Read request units.
    pub read_units: f64,
    /// Write request units.
    pub write_units: f64,
}

impl std::ops::AddAssign for Consumed {
    fn add_assign(&mut self, other: Self) {
        self.read_units += other.read_units;
        self.write_units += other.write_units;
    }
}

/// What every step answers; `details` holds what is particular to the step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepOutput {
    /// How the step ended.
    pub status: Status,
    /// How far the work is.
    pub progress: Progress,
    /// What this invocation was charged.
    pub consumed: Consumed,
    /// When running again before that many seconds is of no use.
    pub retry_after_seconds: Option<u32>,
    /// What is particular to the step.
    #[serde(flatten)]
    pub details: serde_json::Map<String, serde_json::Value>,
}

impl StepOutput {
    /// An answer with nothing in it but its status.
    pub fn new(status: Status) -> Self {
        Self {
            status,
            progress: Progress::default(),
            consumed: Consumed::default(),
            retry_after_seconds: None,
            details: serde_json::Map::new(),
        }
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_stops_while_ten_seconds_are_left() {
        let environment = Environment::system();
        let now = environment.now();
        assert!(Budget::until(environment.clone(), now + Duration::from_secs(3)).is_spent());
        assert!(!Budget::until(environment.clone(), now + Duration::from_secs(30)).is_spent());
        let long = Budget::until(environment, now + Duration::from_secs(900));
        assert!(long.time_left().is_some_and(|left| left <= Duration::from_secs(855)));
    }

    #[test]
    fn pages_run_out() {
        let mut budget = Budget::unbounded(Environment::system()).with_pages(Some(1));
        assert!(!budget.is_spent());
        budget.take_page();
        assert!(budget.is_spent());
    }

    #[test]
    fn an_output_puts_its_details_beside_its_status() {
        let output = StepOutput::new(Status::Done).with("epoch", "e1");
        let json = serde_json::to_value(&output).unwrap();
        assert_eq!(json["status"], "done");
        assert_eq!(json["epoch"], "e1");
        assert_eq!(json["retryAfterSeconds"], serde_json::Value::Null);
        assert_eq!(serde_json::from_value::<StepOutput>(json).unwrap(), output);
    }
}
