//! The step's deadline around every wait: SlateDB's own waits have none.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use slatedb::{CloseReason, Error as StoreError, ErrorKind as StoreErrorKind};

use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// The longest single wait of a run without a deadline: as long as a Lambda may live.
pub const LONGEST_WAIT: Duration = Duration::from_mins(15);

/// Time kept for answering after a wait ran out.
const ANSWER: Duration = Duration::from_secs(1);

/// Bounds the waits of one invocation.
#[derive(Debug, Clone)]
pub struct Deadline {
    budget: Budget,
}

impl Deadline {
    /// The deadline of an invocation.
    pub fn of(budget: &Budget) -> Self {
        Self { budget: budget.clone() }
    }

    /// Waits for SlateDB until the deadline, then is a `Timeout` that says what it waited for.
    pub async fn wait<T>(
        &self,
        what: &str,
        future: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T> {
        let mut future = std::pin::pin!(future);
        // Most rows of a scan are there already; they cost neither a timer nor a look at the clock.
        if let Poll::Ready(answer) = futures::poll!(future.as_mut()) {
            return answer.map_err(|error| classify(what, error));
        }
        let left = self.budget.time_to_deadline().map_or(LONGEST_WAIT, |left| left.saturating_sub(ANSWER));
        match tokio::time::timeout(left, future).await {
            Ok(answer) => answer.map_err(|error| classify(what, error)),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                format!("{what}: the store did not answer within the {} s left", left.as_secs()),
            )
            .next("run the same command again; it resumes")),
        }
    }
}

/// What a SlateDB error means here.
pub fn classify(what: &str, error: StoreError) -> Error {
    let (kind, next) = match error.kind() {
        StoreErrorKind::Transaction => (ErrorKind::Contended, None),
        StoreErrorKind::Closed(CloseReason::Fenced) => {
            (ErrorKind::Fenced, Some("another process opened this catalog for writing; see what it does"))
        }
        StoreErrorKind::Closed(_) => (ErrorKind::Unavailable, Some("run the same command again; it resumes")),
        StoreErrorKind::Unavailable if is_denied(&error) => (ErrorKind::AccessDenied, None),
        StoreErrorKind::Unavailable => (ErrorKind::Unavailable, None),
        StoreErrorKind::Data => (ErrorKind::Corruption, None),
        StoreErrorKind::Invalid => (ErrorKind::InvalidInput, None),
        _ => (ErrorKind::Internal, None),
    };
    let classified = Error::new(kind, format!("{what}: {error}")).because(error);
    match next {
        Some(next) => classified.next(next),
        None => classified,
    }
}

fn is_denied(error: &StoreError) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        let text = cause.downcast_ref::<object_store::Error>();
        if let Some(
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. },
        ) = text
        {
            return true;
        }
        source = cause.source();
    }
    false
}
