//! How one run of a job ended, in words that every handler and every protocol shares.
use std::time::Duration;

use bytes::Bytes;

/// The cause of an end for want of memory: as [`Outcome::HandlerDied`] and in `interrupted_by` of the job.
pub const OUT_OF_MEMORY: &str = "oom";

/// How one run of a job ended. A handler answers this; a protocol decides what becomes of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it had to do.
    Done,
    /// It did, and this is its result: JSON, kept where the protocol has a place for it.
    DoneWith(Bytes),
    /// It ran and failed: an attempt is spent.
    Failed(Failure),
    /// It asked to be run again after this time: an attempt is spent, the backoff is its own.
    RetryIn(Duration, Failure),
    /// It asked to be forgotten: neither retried nor kept among the dead letters. With a failure, if that is why.
    Discard(Option<Failure>),
    /// It asked for the dead letters at once.
    Kill(Failure),
    /// The handler died while running it (request sent, connection lost): an interruption, not a failure.
    HandlerDied(String),
    /// The handler could not be reached, nothing was sent: not the job's fault, no attempt is spent.
    HandlerUnavailable(String),
    /// The same, but of one of several handlers: jobs of the others go on, so this one is not to be in their way, and waits
    /// for so long apart from them.
    PutOff(Duration, String),
    /// We stopped it ourselves (shutdown, drain timeout): released, uncounted.
    Released,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Bounded: it labels metrics and dead letters.
    pub reason: Reason,
    /// For people: kept with the job, never logged (it may quote the job's own data).
    pub error: String,
    /// What the application raised, where it said so: a protocol may keep its parts.
    pub raised: Option<Box<Raised>>,
}

/// An exception of the application, in its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Raised {
    /// Its class.
    pub class: String,
    /// Its message.
    pub message: String,
    /// The lines of its backtrace, innermost first.
    pub backtrace: Vec<String>,
}

impl Failure {
    /// A failure for this reason, explained to people by `error`.
    pub fn new(reason: Reason, error: impl Into<String>) -> Self {
        Self { reason, error: error.into(), raised: None }
    }
}

/// The bounded set of reasons that label `jobs_failed_total` and dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The handler answered that the job failed.
    Handler,
    /// It answered nothing that says what became of the job: whether it ran, nobody knows.
    NoVerdict,
    /// The handler's own deadline passed.
    Timeout,
    /// Our code panicked while handling it.
    Panic,
    /// The payload is not a job: not JSON, a field of the wrong type, too deep.
    Malformed,
    /// The payload is larger than `worker.max_payload_bytes`.
    Oversize,
    /// The queue named a job that is not there.
    NoData,
    /// The process died `max_interruptions` times while it ran alone.
    Poison,
    /// As `Poison`, and each time the container ran out of memory.
    Oom,
    /// The handler asked for the dead letters.
    Killed,
}

impl Reason {
    /// Every reason, for bounded label sets and command-line selectors.
    pub const ALL: [Self; 10] = [
        Self::Handler,
        Self::NoVerdict,
        Self::Timeout,
        Self::Panic,
        Self::Malformed,
        Self::Oversize,
        Self::NoData,
        Self::Poison,
        Self::Oom,
        Self::Killed,
    ];

    /// The word for it in metrics, logs, dead letters and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::NoVerdict => "no-verdict",
            Self::Timeout => "timeout",
            Self::Panic => "panic",
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::NoData => "no-data",
            Self::Poison => "poison",
            Self::Oom => "oom",
            Self::Killed => "killed",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
