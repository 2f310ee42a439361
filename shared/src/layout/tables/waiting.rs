//! How long a request is tried again: by what it cost, not by what the clock did meanwhile.

use std::time::Duration;

use super::Tables;
use crate::environment::Moment;

/// First pause after a failure; doubled each time up to [`LONGEST_PAUSE`], the actual pause drawn from zero to it.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Most that one attempt counts: 2 s to connect, 5 s for the answer, and what a busy machine adds. One that took longer
/// says that the process did not run.
const MOST_OF_AN_ATTEMPT: Duration = Duration::from_secs(8);

/// What a busy machine adds to a pause.
const LATE: Duration = Duration::from_secs(1);

/// The end of the invocation that a request belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    set_at: Moment,
    left: Duration,
}

/// The patience of one request.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    tables: &'a Tables,
    spent: Duration,
    pause: Duration,
    looked_at: Moment,
}

impl Limit {
    pub(super) fn new(set_at: Moment, left: Duration) -> Self {
        Self { set_at, left }
    }
}

impl Tables {
    /// Time until the invocation's end, `None` where nothing ends it. A process that stood still has less.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let limit = self.limit?;
        Some(limit.left.saturating_sub(self.environment.since(limit.set_at)))
    }
}

impl<'a> Waiting<'a> {
    pub(super) fn new(tables: &'a Tables) -> Self {
        Self { tables, spent: Duration::ZERO, pause: FIRST_PAUSE, looked_at: tables.environment.moment() }
    }

    /// Counts what has passed since the last look, `most` at most: a process that was stopped, or whose machine slept,
    /// has waited for nothing.
    fn count(&mut self, most: Duration) {
        let now = self.tables.environment.moment();
        self.spent += now.boot.saturating_sub(self.looked_at.boot).min(most);
        self.looked_at = now;
    }

    fn is_over(&self, ahead: Duration) -> bool {
        self.spent + ahead > self.tables.patience || self.tables.time_left().is_some_and(|left| left <= ahead)
    }

    /// Waits after an attempt that failed; `false`: no further attempt is made.
    pub(super) async fn again(&mut self) -> bool {
        self.count(MOST_OF_AN_ATTEMPT);
        if self.is_over(self.pause) {
            return false;
        }
        let pause = self.tables.environment.jitter(self.pause);
        tokio::time::sleep(pause).await;
        self.count(pause + LATE);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        // Much may have happened in the pause.
        !self.is_over(Duration::ZERO)
    }
}
