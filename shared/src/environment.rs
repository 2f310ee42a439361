//! Time, randomness and ids: what a step takes from outside, passed in so that tests decide it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// Wall clock, in UTC.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// A source of random 128-bit numbers.
pub trait Entropy: fmt::Debug + Send + Sync {
    /// The next number.
    fn next(&self) -> u128;
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The operating system's random numbers, by way of a generator seeded from them.
#[derive(Debug, Clone, Copy)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(clippy::disallowed_methods, reason = "the one place that draws randomness")]
    fn next(&self) -> u128 {
        rand::random()
    }
}

/// What a step takes from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub entropy: Arc<dyn Entropy>,
}

impl Environment {
    /// The operating system's clock and randomness.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A new random number of 128 bits.
    pub fn number(&self) -> u128 {
        self.entropy.next()
    }

    /// A new random id: 32 lower-case hex digits (128 bits).
    pub fn id(&self) -> String {
        format!("{:032x}", self.number())
    }

    /// A random time from zero to `limit`: full jitter, so that many who lost together do not come back together.
    pub fn jitter(&self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let drawn = u64::try_from(self.entropy.next() & u128::from(u64::MAX)).unwrap_or(0);
        Duration::from_nanos(if nanos == 0 { 0 } else { drawn % nanos })
    }
}

/// Time from `earlier` to `later`; zero where `later` is not later.
pub fn elapsed(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or(Duration::ZERO)
}
