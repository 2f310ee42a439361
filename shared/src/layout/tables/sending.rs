//! One transaction's requests: the same bytes every time, never late.
//!
//! A token stands for one request for ten minutes; what comes later under it is a new request. So nothing is sent
//! under a token that was first used more than [`MOST_TOKEN_AGE`] ago, by the larger of two clocks: one that counts
//! the time a machine sleeps, and the wall clock as the server's answers have corrected it. The age is looked at after
//! a request is signed: one that waits longer between that look and its departure carries a signature that DynamoDB
//! refuses by then.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::TimeSource;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeTransmitInterceptorContextMut, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::ConfigBag;
use jiff::{SignedDuration, Timestamp};

use crate::environment::{Environment, Moment, elapsed};

/// Age of a token after which nothing is sent under it: a signature is good for five minutes more, and a token stands
/// for its request for ten.
pub(crate) const MOST_TOKEN_AGE: Duration = Duration::from_secs(240);

/// A signature that is further than this from the server's time is refused for its time; DynamoDB allows five minutes.
const MOST_SKEW: Duration = Duration::from_secs(240);

/// The environment's time with what the server's answers say of it: what requests are signed with.
///
/// The SDK has a correction of its own, which takes over from every answer, one to another request among them. It is
/// off: a token's age has to see each correction, or a machine that stood still would sign an old token's request with
/// a time that is good.
#[derive(Debug, Clone)]
pub(super) struct ServerClock {
    environment: Environment,
    /// Milliseconds by which the server is ahead.
    ahead: Arc<AtomicI64>,
}

impl ServerClock {
    pub(super) fn new(environment: Environment) -> Self {
        Self { environment, ahead: Arc::default() }
    }

    /// The time, corrected.
    pub(super) fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::SeqCst));
        let now = self.environment.now();
        now.checked_add(ahead).unwrap_or(now)
    }

    fn moment(&self) -> Moment {
        Moment { wall: self.now(), ..self.environment.moment() }
    }

    fn since(&self, moment: Moment) -> Duration {
        self.moment().since(moment)
    }

    /// Takes the server's time from an answer that refused a request signed at `signed`; `false` where time does not
    /// explain the refusal.
    pub(super) fn correct(&self, server: Timestamp, signed: Timestamp) -> bool {
        if server.duration_since(signed).unsigned_abs() < MOST_SKEW {
            return false;
        }
        let ahead = server.duration_since(self.environment.now());
        self.ahead.store(i64::try_from(ahead.as_millis()).unwrap_or_default(), Ordering::SeqCst);
        tracing::warn!(
            seconds = ahead.as_secs(),
            "this machine's clock is not the server's; signatures are corrected"
        );
        true
    }
}

impl TimeSource for ServerClock {
    fn now(&self) -> SystemTime {
        let since = elapsed(Timestamp::UNIX_EPOCH, ServerClock::now(self));
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Everything that is sent under one token for one body.
#[derive(Debug, Clone)]
pub(super) struct Sending(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    token: String,
    born: Moment,
    clock: ServerClock,
    body: OnceLock<Vec<u8>>,
    late: AtomicBool,
}

impl Sending {
    pub(super) fn new(token: String, clock: &ServerClock) -> Self {
        Self::born_at(token, clock.moment(), clock)
    }

    fn born_at(token: String, born: Moment, clock: &ServerClock) -> Self {
        let (body, late) = (OnceLock::new(), AtomicBool::new(false));
        Self(Arc::new(Inner { token, born, clock: clock.clone(), body, late }))
    }

    /// The same token, of the same age, for another body.
    pub(super) fn of_another_body(&self) -> Self {
        Self::born_at(self.0.token.clone(), self.0.born, &self.0.clock)
    }

    pub(super) fn token(&self) -> &str {
        &self.0.token
    }

    /// True once a request was not sent because its token is too old.
    pub(super) fn is_late(&self) -> bool {
        self.0.late.load(Ordering::SeqCst)
    }
}

impl Intercept for Sending {
    fn name(&self) -> &'static str {
        "Sending"
    }

    /// The first body is kept, every later one is made equal to it.
    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request_mut();
        let built = request.body().bytes().ok_or("a request whose body is not in memory")?;
        let first = self.0.body.get_or_init(|| built.to_vec());
        if first != built {
            if first.len() != built.len() {
                return Err("two requests under one token".into());
            }
            *request.body_mut() = SdkBody::from(first.clone());
        }
        Ok(())
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.0.clock.since(self.0.born) > MOST_TOKEN_AGE {
            self.0.late.store(true, Ordering::SeqCst);
            return Err("the token is too old".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::environment::{Clock, SystemEntropy};

    /// Wall clock and boot clock, in seconds.
    #[derive(Debug, Default)]
    struct Hands(Mutex<(i64, u64)>);

    impl Clock for Hands {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(1_800_000_000 + self.0.lock().unwrap().0).unwrap()
        }

        fn boot(&self) -> Duration {
            Duration::from_secs(self.0.lock().unwrap().1)
        }
    }

    fn clock() -> (Arc<Hands>, ServerClock) {
        let hands = Arc::new(Hands::default());
        let environment = Environment { clock: Arc::clone(&hands) as _, entropy: Arc::new(SystemEntropy) };
        (hands, ServerClock::new(environment))
    }

    #[test]
    fn a_tokens_age_is_what_either_clock_says_and_every_correction_counts() {
        for (wall, boot, age) in [(300, 300, 300), (300, 0, 300), (0, 300, 300), (-3600, 30, 30), (30, 0, 30)]
        {
            let (hands, clock) = clock();
            let born = clock.moment();
            *hands.0.lock().unwrap() = (wall, boot);
            assert_eq!(clock.since(born), Duration::from_secs(age), "{wall} {boot}");
        }
        // Neither clock has seen that the machine stood still; the server's answer to another request says so.
        let (_, clock) = clock();
        let born = clock.moment();
        assert!(clock.correct(clock.now() + Duration::from_secs(720), clock.now()));
        assert_eq!(clock.since(born), Duration::from_secs(720));
    }

    #[test]
    fn only_a_time_that_explains_the_refusal_is_taken() {
        for (server, taken) in
            [(0, false), (239, false), (-239, false), (240, true), (-240, true), (90_000, true)]
        {
            let (_, clock) = clock();
            let signed = clock.now();
            let says = signed + SignedDuration::from_secs(server);
            assert_eq!(clock.correct(says, signed), taken, "{server}");
            assert_eq!(clock.now(), if taken { says } else { signed }, "{server}");
        }
    }
}
