//! The error vocabulary.
//!
//! A kind's name is what the state machines' Retry and Catch match and what an operator reads; its class says
//! what the caller does next and is the exit code of the command.

use std::fmt;
use std::sync::Arc;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Never happens: report it.
    Internal,
    /// Change the input or the surroundings, then run again.
    FixInput,
    /// A person has to look before anything goes on.
    StopAndLook,
    /// The same call may succeed later.
    RetryLater,
    /// Somebody else does this work.
    SomebodyElse,
    /// The durable state does not allow it.
    RefusedByState,
    /// The user stopped it; the same command resumes.
    Stopped,
}

impl Class {
    /// Every class, by exit code.
    pub const ALL: &'static [Self] = &[
        Self::Internal,
        Self::FixInput,
        Self::StopAndLook,
        Self::RetryLater,
        Self::SomebodyElse,
        Self::RefusedByState,
        Self::Stopped,
    ];

    /// What the caller does next, or what happened, in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Internal => "never happens: report it",
            Self::FixInput => "fix the input",
            Self::StopAndLook => "stop and look",
            Self::RetryLater => "retry later",
            Self::SomebodyElse => "somebody else has it",
            Self::RefusedByState => "refused by state",
            Self::Stopped => "stopped by Ctrl-C, SIGTERM or SIGHUP, resumable",
        }
    }

    /// The kinds of this class, in the order of the documentation; none for [`Self::Stopped`], which is no error.
    pub fn kinds(self) -> impl Iterator<Item = ErrorKind> {
        ErrorKind::ALL.iter().copied().filter(move |kind| kind.class() == self)
    }

    /// Exit code of the `metashift` command.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::FixInput => 2,
            Self::StopAndLook => 3,
            Self::RetryLater => 4,
            Self::SomebodyElse => 5,
            Self::RefusedByState => 6,
            Self::Stopped => 130,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident => $class:ident,)*) => {
        /// What went wrong, named by what is to be done about it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind { $($(#[$doc])* $name,)* }

        impl ErrorKind {
            /// Every kind, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name that Retry and Catch match.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// What the caller does next.
            pub const fn class(self) -> Class {
                match self { $(Self::$name => Class::$class,)* }
            }
        }
    };
}

kinds! {
    /// A state that cannot be; report it with the message.
    Internal => Internal,
    /// The input is not of the documented form.
    InvalidInput => FixInput,
    /// The key is empty, too long for any table, or internal.
    InvalidKey => FixInput,
    /// The key fits v1 (2,048 bytes) but not the RANGE key of v2 (1,024 bytes).
    KeyTooLong => FixInput,
    /// The item fits v1 but not v2, whose `bucket` attribute takes it over 409,600 bytes.
    ItemTooLarge => FixInput,
    /// The item is no metadata record: `val` missing, not binary, or further attributes.
    UnsupportedItem => FixInput,
    /// The prefix names no complete family (it has no `/`) or is internal.
    InvalidPrefix => FixInput,
    /// The page cursor is not one that this prefix and layout gave out.
    InvalidCursor => FixInput,
    /// The layout differs from the one that the plan was made with.
    LayoutMismatch => FixInput,
    /// The input differs from the durable plan, or there is no plan.
    PlanMismatch => FixInput,
    /// A table is missing or is not of the documented shape.
    TableMismatch => FixInput,
    /// A durable record was written by a newer version; use that version.
    NewerRecord => FixInput,
    /// Credentials are missing or do not allow the call.
    AccessDenied => FixInput,
    /// The two copies of a key differ; repair, then go on.
    Divergence => StopAndLook,
    /// Verification found differences; the report names them.
    VerificationFailed => StopAndLook,
    /// Keys that cannot move stand in the way of finalization.
    BlockedByRejects => StopAndLook,
    /// Copies that differ stand in the way of finalization.
    BlockedByDivergence => StopAndLook,
    /// The cutover ran past its deadline; the barrier was released unless the run holds it.
    CutoverExpired => StopAndLook,
    /// Nothing shows that every writer is dual-capable, or, after the marker, that v1 holds nothing that v2 lacks.
    RolloutNotReady => StopAndLook,
    /// Stored bytes that no version of this software writes.
    Corruption => StopAndLook,
    /// Names that the target format cannot hold; rename them.
    NameTooLong => StopAndLook,
    /// Other transactions kept winning; nothing was changed.
    Contended => RetryLater,
    /// The table's throughput was exceeded for longer than the bounded retries.
    Throttled => RetryLater,
    /// Writers are paused by a finalization.
    BarrierHeld => RetryLater,
    /// The authority moved while a prefix was read; start the prefix again.
    AuthorityChanged => RetryLater,
    /// The store does not answer or answers with a transient error.
    Unavailable => RetryLater,
    /// The answer was lost and nothing tells whether the write landed.
    OutcomeUnknown => RetryLater,
    /// The step's time ran out inside a single wait.
    Timeout => RetryLater,
    /// Another worker has taken this work over.
    Superseded => SomebodyElse,
    /// Another process opened the catalog's writer.
    Fenced => SomebodyElse,
    /// The catalog's format or a running migration refuses this.
    Migration => RefusedByState,
    /// The marker is published: v2 is the authority for good.
    AlreadyFinalized => RefusedByState,
    /// A migrator that is not ours left records here.
    ForeignLeftovers => RefusedByState,
}

impl ErrorKind {
    /// Exit code of the `metashift` command.
    pub const fn exit_code(self) -> u8 {
        self.class().exit_code()
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error: its kind, what happened to what, and what to do next.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    next: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `message` says what happened, to which key or object.
    ///
    /// Both texts are cut at [`MOST_TEXT_BYTES`]: what a server says has no bound of its own.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: cut(message.into()), next: None, source: None }
    }

    /// Adds what to do next, as a command or a sentence.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(cut(next.into()));
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What went wrong, by what is to be done about it.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What happened, without the kind's name and without the next step.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do next.
    pub fn next_step(&self) -> Option<&str> {
        self.next.as_deref()
    }
}

/// Most bytes of an error's message, and of its next step; an execution's history takes 32 KB of a whole answer.
pub const MOST_TEXT_BYTES: usize = 4096;

/// A text that is not too long, or its beginning and how long it was.
fn cut(mut text: String) -> String {
    if text.len() > MOST_TEXT_BYTES {
        let end = format!("… ({} bytes)", text.len());
        text.truncate(text.floor_char_boundary(MOST_TEXT_BYTES - end.len()));
        text.push_str(&end);
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        if let Some(next) = &self.next {
            write!(f, "; next: {next}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_name_and_a_documented_exit_code() {
        let mut names: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorKind::ALL.len());
        for kind in ErrorKind::ALL {
            assert!((1..=6).contains(&kind.exit_code()), "{kind}");
        }
    }

    #[test]
    fn a_text_without_a_bound_is_cut_at_a_character() {
        for text in ["x".repeat(1 << 20), "ä".repeat(3000), "\u{1f980}".repeat(2000)] {
            let error = Error::new(ErrorKind::Unavailable, text.clone()).next(text.clone());
            for cut in [error.message(), error.next_step().unwrap()] {
                assert!((MOST_TEXT_BYTES - 4..=MOST_TEXT_BYTES).contains(&cut.len()), "{}", cut.len());
                assert!(cut.ends_with(&format!("… ({} bytes)", text.len())));
            }
        }
        let whole = "x".repeat(MOST_TEXT_BYTES);
        assert_eq!(Error::new(ErrorKind::Unavailable, whole.clone()).message(), whole);
    }

    #[test]
    fn an_error_shows_kind_message_and_next_step_in_one_line() {
        let error = Error::new(ErrorKind::KeyTooLong, "key of 1,025 bytes").next("metashift layout rejects");
        assert_eq!(error.to_string(), "KeyTooLong: key of 1,025 bytes; next: metashift layout rejects");
    }
}
