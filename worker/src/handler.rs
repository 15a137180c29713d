//! Handlers: what runs a job. Each turns one job into one [`Outcome`] and nothing else; what becomes of
//! the job is decided elsewhere, so a handler never sees Redis, retries or queues' keys.
pub mod by_type;
pub mod command;
pub mod function;
pub mod http;
pub mod simulate;

use jobqueue::job::Job;
use jobqueue::outcome::Outcome;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub use by_type::ByType;
pub use command::{Command, CommandSettings};
pub use function::Function;
pub use http::{Http, HttpSettings};
pub use simulate::{Simulate, SimulateSettings};

/// An error text is kept with the job for its whole life, so it has a bound of its own.
const ERROR_MAX: usize = 4 * 1024;

/// Read of an answer, and of what a program prints: more than a verdict needs, little enough to hold for every slot.
const ANSWER_MAX: usize = 64 * 1024;

/// What runs the jobs of this process: one of the three kinds of `worker.handler.kind`, or what embeds the worker.
#[derive(Debug)]
pub enum Handler {
    /// Takes as long as its file is large.
    Simulate(Simulate),
    /// Posts the job to a program that listens.
    Http(Box<Http>),
    /// Starts a program for each job.
    Command(Command),
    /// Calls a function.
    Function(Function),
    /// Asks another handler, by the type of the job.
    ByType(ByType),
}

/// What is known about one run besides the job itself.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The name of the queue it was reserved from.
    pub queue: Arc<str>,
    /// W3C trace context of the span around this run.
    pub traceparent: Option<String>,
    /// Correlates our log lines with those of the handler.
    pub request_id: Option<String>,
    /// Whether the job is given up if it fails now, where that is known.
    pub last_attempt: Option<bool>,
    /// The run must end by then, if that is earlier than the handler's own timeout.
    pub deadline: Option<Instant>,
}

impl Handler {
    /// The outcome of a job that needs no waiting at all. The lane asks this first: such a job costs
    /// neither a task nor a timer, which is most of the cost of a job that does nothing.
    pub fn instant(&self, job: &Job) -> Option<Outcome> {
        match self {
            Self::Simulate(simulate) => simulate.instant(job),
            Self::ByType(by_type) => {
                by_type.of(job).map_or_else(|| Some(ByType::none(job)), |handler| handler.instant(job))
            }
            Self::Http(_) | Self::Command(_) | Self::Function(_) => None,
        }
    }

    /// Runs one job to its end. Dropping the future stops the run: a connection is closed, a process
    /// group is killed.
    pub async fn handle(&self, job: &Job, call: &Call) -> Outcome {
        match self {
            Self::Simulate(simulate) => simulate.handle(job, call).await,
            // Boxed: a future is as large as the largest of its branches, and a thousand jobs in flight would each
            // pay for the buffers of a program that none of them runs.
            Self::Http(http) => Box::pin(http.handle(job, call)).await,
            Self::Command(command) => Box::pin(command.handle(job, call)).await,
            Self::Function(function) => function.handle(job, call),
            Self::ByType(by_type) => match by_type.of(job) {
                Some(handler) => Box::pin(handler.handle(job, call)).await,
                None => ByType::none(job),
            },
        }
    }

    /// Tells the application of a job that is given up without its own word (it timed out, or killed whoever ran it),
    /// where there is one to tell: it may object, or not be there.
    pub async fn bury(&self, obituary: &Job, call: &Call) -> Outcome {
        match self {
            Self::Http(http) => Box::pin(http.bury(obituary, call)).await,
            Self::ByType(by_type) => match by_type.of(obituary) {
                Some(handler) => Box::pin(handler.bury(obituary, call)).await,
                None => Outcome::Done,
            },
            Self::Simulate(_) | Self::Command(_) | Self::Function(_) => Outcome::Done,
        }
    }

    /// Has whoever runs these jobs stop them, where that takes more than to drop their futures, and waits until it has.
    /// Answers whether it did: then their futures end by themselves, with what became of them. It has no bound of its
    /// own; the caller's is how long it can wait.
    pub async fn stop(&self, jobs: &[Arc<Job>]) -> bool {
        match self {
            Self::Http(http) => Box::pin(http.stop(jobs)).await,
            // Of protocol async, whose applications know no such request.
            Self::ByType(_) | Self::Simulate(_) | Self::Command(_) | Self::Function(_) => false,
        }
    }

    /// Lets these jobs know that they will be stopped, where they can look: who ends at a good place need not be.
    pub async fn warn(&self, jobs: &[Arc<Job>]) {
        if let Self::Http(http) = self {
            Box::pin(http.warn(jobs)).await;
        }
    }

    /// Begins to run a job where its type has a breaker of its own: what becomes of the job when that is open.
    pub fn attempt(&self, job: &Job) -> Option<Result<by_type::Attempt<'_>, Outcome>> {
        match self {
            Self::ByType(by_type) => by_type.attempt(job),
            Self::Http(_) | Self::Simulate(_) | Self::Command(_) | Self::Function(_) => None,
        }
    }

    /// Whether each type of jobs has a breaker of its own, and that of the queue has nothing to say.
    pub fn has_breakers(&self) -> bool {
        matches!(self, Self::ByType(_))
    }

    /// Whether jobs are posted to a program that may die by itself.
    pub fn posts(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::ByType(by_type) => by_type.all().any(Self::posts),
            Self::Simulate(_) | Self::Command(_) | Self::Function(_) => false,
        }
    }
}

impl Call {
    /// When a run with this timeout has to end.
    fn ends_by(&self, timeout: Duration) -> Instant {
        // A timeout beyond what the clock can hold is no timeout: a year is as good.
        let now = Instant::now();
        let own = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(365 * 86_400));
        self.deadline.map_or(own, |deadline| deadline.min(own))
    }
}

/// The first part of a text from outside, small enough to be kept with the job.
fn head(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(ERROR_MAX)]);
    // Bounded again: each invalid byte grew to three when it was replaced.
    let end = (0..=text.len().min(ERROR_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].trim().to_owned()
}

/// The last part of a text from outside: where programs write what went wrong.
fn tail(bytes: &[u8]) -> String {
    let mut cut = &bytes[bytes.len().saturating_sub(ERROR_MAX)..];
    if cut.len() < bytes.len() {
        // A cut may fall into a character; its rest would show as a replacement character.
        let rest = cut.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
        cut = &cut[rest..];
    }
    let text = String::from_utf8_lossy(cut);
    let start = text.len().saturating_sub(ERROR_MAX);
    let start = (start..=text.len()).find(|start| text.is_char_boundary(*start));
    text[start.unwrap_or(0)..].trim().to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bytes::Bytes;

    /// A job as a producer would write it.
    pub(crate) fn job(json: &str) -> Job {
        Job::decode(Bytes::copy_from_slice(json.as_bytes()), 1 << 20).expect("a job")
    }

    #[test]
    fn an_error_text_is_bounded_and_whole_characters_survive_the_cut() {
        let long = "é".repeat(ERROR_MAX);
        assert_eq!(head(long.as_bytes()), "é".repeat(ERROR_MAX / 2));
        assert_eq!(tail(&long.as_bytes()[..long.len() - 1]).chars().next(), Some('é'));
        assert!(tail(&[0xff; 3 * ERROR_MAX]).len() <= ERROR_MAX);
        assert!(head(&[0xff; 3 * ERROR_MAX]).len() <= ERROR_MAX);
        assert_eq!(tail(b"  short \n"), "short");
    }

    #[test]
    fn the_earlier_of_timeout_and_deadline_ends_a_run() {
        let now = Instant::now();
        let call = Call { deadline: Some(now + Duration::from_secs(1)), ..Call::default() };
        assert_eq!(call.ends_by(Duration::from_secs(60)), now + Duration::from_secs(1));
        assert!(call.ends_by(Duration::from_millis(1)) < now + Duration::from_secs(1));
        assert!(Call::default().ends_by(Duration::MAX) > now);
    }
}
