//! The table's time: the `Date` of an answer, whatever the clock of this machine says.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};

use super::failure::Failure;
use super::{Side, Tables};
use crate::Result;
use crate::layout::records::BARRIER_KEY;

/// Keeps the header of the answer.
#[derive(Debug, Clone, Default)]
struct DateOfAnswer(Arc<Mutex<Option<String>>>);

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for DateOfAnswer {
    fn name(&self) -> &'static str {
        "DateOfAnswer"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date").map(str::to_owned);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = date;
        Ok(())
    }
}

impl Tables {
    /// What time the server has, to the second; `None` where it does not say. One eventually consistent read.
    pub async fn time(&self) -> Result<Option<Timestamp>> {
        let kept = DateOfAnswer::default();
        let what = format!("reading the time of {}", self.name(Side::V1));
        self.attempt(&what, || async {
            self.client
                .get_item()
                .table_name(self.name(Side::V1))
                .set_key(Some(self.primary_key(Side::V1, BARRIER_KEY)))
                .customize()
                .interceptor(kept.clone())
                .send()
                .await
                .map_err(|error| Failure::of(&error))
        })
        .await?;
        let date = kept.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let time = date.and_then(|date| DateTimeParser::new().parse_timestamp(&date).ok());
        if let Some(time) = time {
            let ahead = time.as_millisecond().saturating_sub(self.environment().now().as_millisecond());
            self.ahead.store(ahead, Ordering::Relaxed);
        }
        Ok(time)
    }

    /// The table's time by this machine's clock, corrected by what [`Self::time`] last saw.
    pub fn now(&self) -> Timestamp {
        let now = self.environment().now();
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::Relaxed));
        now.checked_add(ahead).unwrap_or(now)
    }
}
