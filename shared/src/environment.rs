//! Time, randomness and ids: what a step takes from outside, passed in so that tests decide it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// Wall clock, in UTC, and a clock that nobody sets.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// Time since some moment before, by a clock that is never set and that counts the time a machine sleeps. The wall
    /// clock's where there is no other.
    fn boot(&self) -> Duration {
        elapsed(Timestamp::UNIX_EPOCH, self.now())
    }
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

    fn boot(&self) -> Duration {
        // Elsewhere the monotonic clock is the one that counts sleep, or there is none.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = ClockId::CLOCK_BOOTTIME;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = ClockId::CLOCK_MONOTONIC;
        clock_gettime(clock).map_or_else(|_| elapsed(Timestamp::UNIX_EPOCH, self.now()), Duration::from)
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

/// A moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// On the wall clock, which somebody may set.
    pub wall: Timestamp,
    /// On [`Clock::boot`].
    pub boot: Duration,
}

impl Moment {
    /// Time from `earlier` to here, by the clock that says more.
    pub fn since(self, earlier: Self) -> Duration {
        elapsed(earlier.wall, self.wall).max(self.boot.saturating_sub(earlier.boot))
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

    /// The current moment on both clocks.
    pub fn moment(&self) -> Moment {
        Moment { wall: self.clock.now(), boot: self.clock.boot() }
    }

    /// Time since a moment, by the clock that says more.
    pub fn since(&self, moment: Moment) -> Duration {
        self.moment().since(moment)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_since_a_moment_is_what_the_clock_says_that_went_further() {
        let moment = |wall: i64, boot: u64| Moment {
            wall: Timestamp::from_second(wall).unwrap(),
            boot: Duration::from_secs(boot),
        };
        for (later, seconds) in
            [((1010, 60), 10), ((1000, 60), 10), ((1010, 50), 10), ((400, 60), 10), ((1700, 50), 700)]
        {
            let since = moment(later.0, later.1).since(moment(1000, 50));
            assert_eq!(since, Duration::from_secs(seconds), "{later:?}");
        }
    }

    #[test]
    fn the_systems_boot_clock_runs() {
        let environment = Environment::system();
        let moment = environment.moment();
        assert!(moment.boot > Duration::ZERO);
        assert!(environment.since(moment) < Duration::from_secs(3600));
    }
}
