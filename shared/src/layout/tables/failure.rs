//! What one attempt's failure means, decided from error codes and never from a message.

use std::error::Error as StdError;
use std::fmt;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_get_items::TransactGetItemsError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::CancellationReason;
use aws_smithy_runtime_api::http::Response;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

use crate::layout::outcome::{Cancelled, Reason, classify};
use crate::{Error, ErrorKind};

/// What to do about `AccessDenied`.
pub(super) const GRANT_ACCESS: &str =
    "check the credentials and the policy; docs/operating.md lists the calls";

/// Codes of a signature that the server takes for one of another time, or of another secret.
const REFUSED_FOR_THEIR_TIME: [&str; 5] = [
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "RequestTimeTooSkewed",
    "RequestExpired",
    "RequestInTheFuture",
];

/// One attempt's failure.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Throughput was exceeded; nothing was applied.
    Throttled,
    /// Another request on an item was in progress; nothing was applied.
    Conflict,
    /// The same transaction is in progress from an earlier attempt.
    InProgress,
    /// The token was used for another request; nothing was applied.
    TokenUsed,
    /// The request may have been applied; the answer did not come.
    Lost(String),
    /// Nothing was applied and the next attempt may succeed.
    Passing(String),
    /// The transaction was cancelled for these reasons.
    Cancelled(Vec<Reason>),
    /// The server refused the signature and says what time it has; nothing was applied.
    Clock {
        /// The server's time.
        server: Timestamp,
        /// What it says.
        message: String,
    },
    /// The request was not sent: its token is too old.
    Late,
    /// The invocation ends.
    Ended {
        /// The request may have been applied.
        sent: bool,
    },
    /// No attempt will succeed.
    Fatal(Error),
}

impl Failure {
    /// An attempt's failure, of any operation.
    pub(super) fn of<E>(error: &SdkError<E, Response>) -> Self
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        match error {
            SdkError::ServiceError(service) => {
                let (code, message) = (service.err().code(), service.err().message());
                if code.is_some_and(|code| REFUSED_FOR_THEIR_TIME.contains(&code))
                    && let Some(server) = date(service.raw())
                {
                    return Self::Clock { server, message: message.unwrap_or("no message").to_owned() };
                }
                Self::of_code(code, message, service.raw().status().as_u16())
            }
            SdkError::ResponseError(response) if response.raw().status().as_u16() < 500 => {
                Self::Lost("the answer is not one of DynamoDB".to_owned())
            }
            SdkError::TimeoutError(_) => Self::Lost("no answer in time".to_owned()),
            SdkError::ConstructionFailure(_) => Self::of_construction(&chain(error)),
            SdkError::DispatchFailure(dispatch) => {
                let text = chain(error);
                // The SDK hands out no type for these two; the words are its own and a test holds them.
                if text.contains("credentials") || text.contains("identity") {
                    Self::of_construction(&text)
                } else if text.contains("tcp connect error") || text.contains("dns error") {
                    Self::Passing(format!("cannot connect: {text}"))
                } else if dispatch.is_io() || dispatch.is_timeout() {
                    Self::Lost(text)
                } else {
                    Self::Lost(format!("the connection failed: {text}"))
                }
            }
            _ => Self::Lost(chain(error)),
        }
    }

    fn of_construction(text: &str) -> Self {
        let next = "set AWS credentials and a region, for example AWS_PROFILE and AWS_REGION";
        Self::Fatal(if text.contains("credentials") || text.contains("identity") {
            Error::new(ErrorKind::AccessDenied, "no usable AWS credentials were found").next(next)
        } else {
            Error::new(ErrorKind::InvalidInput, format!("the request could not be made: {text}")).next(next)
        })
    }

    fn of_code(code: Option<&str>, message: Option<&str>, status: u16) -> Self {
        let message = message.unwrap_or("no message");
        let fatal =
            |kind: ErrorKind, next: &str| Self::Fatal(Error::new(kind, message.to_owned()).next(next));
        match code.unwrap_or_default() {
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "Throttling"
            | "RequestLimitExceeded" => Self::Throttled,
            "TransactionConflictException" => Self::Conflict,
            "TransactionInProgressException" => Self::InProgress,
            "ResourceNotFoundException" => fatal(
                ErrorKind::TableMismatch,
                "check --table and --region; metashift layout plan looks at both tables",
            ),
            "AccessDeniedException"
            | "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "SignatureDoesNotMatch"
            | "RequestTimeTooSkewed"
            | "RequestExpired"
            | "RequestInTheFuture"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "ExpiredTokenException" => fatal(ErrorKind::AccessDenied, GRANT_ACCESS),
            "ValidationException" | "SerializationException" => fatal(
                ErrorKind::InvalidInput,
                "check --table and --companion; metashift layout plan looks at both tables",
            ),
            "UnknownOperationException" => {
                fatal(ErrorKind::Unavailable, "this server does not offer the call")
            }
            "IdempotentParameterMismatchException" => Self::TokenUsed,
            _ if status >= 500 => Self::Lost(format!("HTTP {status}: {message}")),
            other => {
                Self::Fatal(Error::new(ErrorKind::Internal, format!("HTTP {status} {other}: {message}")))
            }
        }
    }

    pub(super) fn of_transact_write(error: &SdkError<TransactWriteItemsError, Response>) -> Self {
        if let SdkError::ServiceError(service) = error
            && let TransactWriteItemsError::TransactionCanceledException(cancelled) = service.err()
        {
            return Self::Cancelled(cancelled.cancellation_reasons().iter().map(reason).collect());
        }
        Self::of(error)
    }

    pub(super) fn of_transact_get(error: &SdkError<TransactGetItemsError, Response>) -> Self {
        if let SdkError::ServiceError(service) = error
            && let TransactGetItemsError::TransactionCanceledException(cancelled) = service.err()
        {
            let reasons: Vec<_> = cancelled.cancellation_reasons().iter().map(reason).collect();
            return match classify(&reasons) {
                Cancelled::Conflict => Self::Conflict,
                Cancelled::Throttled => Self::Throttled,
                Cancelled::AccessDenied(_) => {
                    Self::Fatal(Error::new(ErrorKind::AccessDenied, "TransactGetItems").next(GRANT_ACCESS))
                }
                Cancelled::Invalid(_) => {
                    Self::Fatal(Error::new(ErrorKind::InvalidInput, format!("TransactGetItems: {reasons:?}")))
                }
                _ => Self::Passing(format!("the read was cancelled: {reasons:?}")),
            };
        }
        Self::of(error)
    }

    /// A signature that was refused, and not for its time.
    pub(super) fn signature(message: &str) -> Self {
        Self::Fatal(Error::new(ErrorKind::AccessDenied, message.to_owned()).next(GRANT_ACCESS))
    }

    /// True where the request may have been applied all the same.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Ended { sent: true })
    }

    /// True where another attempt needs a token of its own.
    pub(super) fn needs_token(&self) -> bool {
        matches!(self, Self::Clock { .. } | Self::Late)
    }

    /// A request that the SDK could not build: a mistake of ours.
    pub(super) fn build(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Fatal(Error::new(ErrorKind::Internal, "a request could not be built").because(error))
    }

    /// True where another attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self, Self::Fatal(_) | Self::Cancelled(_) | Self::TokenUsed | Self::Ended { .. })
    }

    /// The typed error once no further attempt is made.
    pub(super) fn into_error(self, what: &str) -> Error {
        match self {
            Self::Fatal(error) => {
                let named = Error::new(error.kind(), format!("{what}: {}", error.message()));
                match error.next_step() {
                    Some(next) => named.next(next),
                    None => named,
                }
            }
            Self::Clock { server, message } => Error::new(
                ErrorKind::AccessDenied,
                format!("{what}: {message} (the server's clock says {server})"),
            )
            .next("set this machine's clock, or check the credentials"),
            Self::Late => Error::new(ErrorKind::Unavailable, format!("{what}: {self}")).next("run it again"),
            Self::Ended { .. } => Error::new(ErrorKind::Timeout, format!("{what}: {self}"))
                .next("run it again; it goes on where it stopped"),
            Self::TokenUsed => Error::new(ErrorKind::Internal, format!("{what}: {self}")).next("report this"),
            Self::Throttled => Error::new(ErrorKind::Throttled, format!("{what}: throughput was exceeded"))
                .next("run it again, or lower the rate: metashift layout throttle --write-units N"),
            Self::Conflict | Self::InProgress => {
                Error::new(ErrorKind::Contended, format!("{what}: other requests kept winning"))
                    .next("run it again")
            }
            Self::Lost(text) | Self::Passing(text) => {
                Error::new(ErrorKind::Unavailable, format!("{what}: {text}"))
                    .next("check the endpoint, the region and the network, then run it again")
            }
            Self::Cancelled(reasons) => {
                Error::new(ErrorKind::Internal, format!("{what}: cancelled: {reasons:?}"))
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttled => f.write_str("throughput was exceeded"),
            Self::Conflict => f.write_str("another request was in progress"),
            Self::InProgress => f.write_str("the same transaction was in progress"),
            Self::TokenUsed => f.write_str("a token was used for two requests"),
            Self::Lost(text) | Self::Passing(text) => f.write_str(text),
            Self::Cancelled(reasons) => write!(f, "cancelled: {reasons:?}"),
            Self::Clock { message, .. } => f.write_str(message),
            Self::Late => f.write_str("the process did not run while its request waited"),
            Self::Ended { .. } => f.write_str("the step's time is over"),
            Self::Fatal(error) => error.fmt(f),
        }
    }
}

/// The `Date` of an answer.
fn date(answer: &Response) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new();
    PARSER.parse_timestamp(answer.headers().get("date")?).ok()
}

fn reason(reason: &CancellationReason) -> Reason {
    let current = reason.item().and_then(|item| item.get("val")).and_then(|value| value.as_b().ok());
    Reason::from_code(reason.code(), current.map(|value| value.clone().into_inner()))
}

fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_own_meaning() {
        let kind = |code: &str, status: u16| match Failure::of_code(Some(code), Some("m"), status) {
            Failure::Fatal(error) => error.kind().name().to_owned(),
            other => other.to_string(),
        };
        assert_eq!(kind("ThrottlingException", 400), "throughput was exceeded");
        assert_eq!(kind("ProvisionedThroughputExceededException", 400), "throughput was exceeded");
        assert_eq!(kind("TransactionInProgressException", 400), "the same transaction was in progress");
        assert_eq!(kind("TransactionConflictException", 400), "another request was in progress");
        assert_eq!(kind("ResourceNotFoundException", 400), "TableMismatch");
        assert_eq!(kind("AccessDeniedException", 400), "AccessDenied");
        assert_eq!(kind("ValidationException", 400), "InvalidInput");
        assert_eq!(kind("IdempotentParameterMismatchException", 400), "a token was used for two requests");
        assert_eq!(kind("InternalServerError", 500), "HTTP 500: m");
        assert_eq!(kind("", 503), "HTTP 503: m");
        assert_eq!(kind("Whatever", 418), "Internal");
    }
}
