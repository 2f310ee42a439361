//! The step's deadline around every wait: SlateDB's own waits have none.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use object_store::Error as ObjectError;
use slatedb::{CloseReason, Error as StoreError, ErrorKind as StoreErrorKind};

use super::guard::{Failure, lasting, unwrapped};
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
    failure: Option<Failure>,
}

impl Deadline {
    /// The deadline of an invocation.
    pub fn of(budget: &Budget) -> Self {
        Self { budget: budget.clone(), failure: None }
    }

    /// The same deadline, under which every wait for SlateDB ends with the first write that no retry helps.
    pub(crate) fn ending_with(&self, failure: Failure) -> Self {
        Self { failure: Some(failure), ..self.clone() }
    }

    async fn failed(&self) -> Error {
        if let Some(failure) = &self.failure
            && let Ok(told) = failure.clone().wait_for(Option::is_some).await
            && let Some(error) = &*told
        {
            return error.clone();
        }
        std::future::pending().await
    }

    /// Waits for SlateDB until the deadline, then is a `Timeout` that says what it waited for. Its own errors are those of
    /// [`classify`].
    pub async fn wait<T>(
        &self,
        what: &str,
        future: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T> {
        let mut future = std::pin::pin!(future);
        // Most rows of a scan are there already; they cost neither a timer nor a look at the clock.
        if let Poll::Ready(answer) = futures::poll!(future.as_mut()) {
            return answer.map_err(|error| self.told().unwrap_or_else(|| classify(what, error)));
        }
        tokio::select! {
            biased;
            answer = self.bounded(what, future) => match answer {
                Ok(Ok(answer)) => Ok(answer),
                // What closed the database is more than that it is closed.
                Ok(Err(error)) => Err(self.told().unwrap_or_else(|| classify(what, error))),
                Err(timeout) => Err(timeout),
            },
            error = self.failed() => Err(error),
        }
    }

    /// The first write that no retry helps, if there was one.
    fn told(&self) -> Option<Error> {
        self.failure.as_ref().and_then(|failure| failure.borrow().clone())
    }

    /// Waits for the object store until the deadline. What is absent is `None`.
    pub(crate) async fn object<T>(
        &self,
        what: &str,
        future: impl Future<Output = Result<T, ObjectError>> + Send,
    ) -> Result<Option<T>> {
        match self.bounded(what, future).await? {
            Ok(there) => Ok(Some(there)),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(classify_object(what, error)),
        }
    }

    /// Time that is left for waiting.
    pub(crate) fn left(&self) -> Duration {
        self.budget.time_to_deadline().map_or(LONGEST_WAIT, |left| left.saturating_sub(ANSWER))
    }

    async fn bounded<T>(&self, what: &str, future: impl Future<Output = T> + Send) -> Result<T> {
        let left = self.left();
        tokio::time::timeout(left, future).await.map_err(|_| {
            Error::new(
                ErrorKind::Timeout,
                format!("{what}: the store did not answer within the {} s left", left.as_secs()),
            )
            .next("run the same command again; it resumes")
        })
    }
}

/// What an error of the object store means here.
pub(crate) fn classify_object(what: &str, error: ObjectError) -> Error {
    if let Some((kind, next)) = lasting(&error) {
        return Error::new(kind, format!("{what}: {error}")).next(next).because(error);
    }
    let kind = match &error {
        ObjectError::NotSupported { .. }
        | ObjectError::NotImplemented { .. }
        | ObjectError::InvalidPath { .. }
        | ObjectError::UnknownConfigurationKey { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{what}: {error}")).because(error)
}

/// What a SlateDB error means here.
pub fn classify(what: &str, error: StoreError) -> Error {
    if let Some((cause, (kind, next))) = object_cause(&error).and_then(|cause| Some((cause, lasting(cause)?)))
    {
        return Error::new(kind, format!("{what}: {cause}")).next(next).because(error);
    }
    let (kind, next) = match error.kind() {
        StoreErrorKind::Transaction => (ErrorKind::Contended, None),
        StoreErrorKind::Closed(CloseReason::Fenced) => {
            (ErrorKind::Fenced, Some("another process opened this catalog for writing; see what it does"))
        }
        StoreErrorKind::Closed(_) => (ErrorKind::Unavailable, Some("run the same command again; it resumes")),
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

/// The object store's error that is behind another one.
pub(crate) fn object_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a ObjectError> {
    let mut source = Some(error);
    while let Some(cause) = source {
        // SlateDB shares it among those who wait.
        let found = cause.downcast_ref::<ObjectError>();
        if let Some(found) = found.or_else(|| cause.downcast_ref::<Arc<ObjectError>>().map(AsRef::as_ref)) {
            return Some(unwrapped(found));
        }
        source = cause.source();
    }
    None
}

/// Whether an object is not there that a state rests on: it is lost, or a collector of another process has removed what
/// only an older manifest names.
pub(crate) fn has_vanished(error: &Error) -> bool {
    error.kind() == ErrorKind::Corruption && matches!(object_cause(error), Some(ObjectError::NotFound { .. }))
}
