//! The stub handler: a job takes a time proportional to its file's size, and fails if its path says so.
//! It is what a new queue runs until its user has written something better, and what benchmarks run.
use super::Call;
use globset::{Glob, GlobMatcher};
use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};
use std::time::Duration;

const MIB: u128 = 1024 * 1024;

/// `worker.handler.simulate`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimulateSettings {
    /// What every job takes.
    pub base: Duration,
    /// What each MiB of its file adds.
    pub per_mib: Duration,
    /// Jobs whose path matches fail; empty matches none. `*` also matches `/` here, so `*.bad` means any
    /// file of that ending, wherever it lies.
    pub fail_glob: String,
}

/// `fail_glob` is not a glob.
#[derive(Debug, thiserror::Error)]
#[error("worker.handler.simulate.fail_glob: {value:?} is not a glob: {rule}")]
pub struct BadFailGlob {
    /// What was given.
    pub value: String,
    /// The rule it breaks.
    pub rule: String,
}

/// The handler that does nothing for a while.
#[derive(Debug)]
pub struct Simulate {
    base: Duration,
    per_mib: Duration,
    fail: Option<GlobMatcher>,
}

impl Simulate {
    /// A handler with these settings.
    pub fn new(settings: &SimulateSettings) -> Result<Self, BadFailGlob> {
        let fail = match settings.fail_glob.as_str() {
            "" => None,
            value => Some(
                Glob::new(value)
                    .map_err(|error| BadFailGlob { value: value.to_owned(), rule: error.kind().to_string() })?
                    .compile_matcher(),
            ),
        };
        Ok(Self { base: settings.base, per_mib: settings.per_mib, fail })
    }

    /// The outcome, if the job takes no time.
    pub(super) fn instant(&self, job: &Job) -> Option<Outcome> {
        self.duration(job.fields.filesize).is_zero().then(|| self.outcome(job))
    }

    pub(super) async fn handle(&self, job: &Job, call: &Call) -> Outcome {
        let duration = self.duration(job.fields.filesize);
        if duration.is_zero() {
            return self.outcome(job);
        }
        let ends = call.ends_by(duration);
        tokio::time::sleep_until(ends).await;
        if call.deadline.is_some_and(|deadline| deadline == ends) {
            return Outcome::Failed(Failure::new(Reason::Timeout, "the deadline passed"));
        }
        self.outcome(job)
    }

    fn duration(&self, filesize: u64) -> Duration {
        if self.per_mib.is_zero() {
            return self.base;
        }
        let nanos = self.per_mib.as_nanos().saturating_mul(u128::from(filesize)) / MIB;
        self.base.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    fn outcome(&self, job: &Job) -> Outcome {
        match &self.fail {
            Some(glob) if glob.is_match(&job.fields.filepath) => {
                Outcome::Failed(Failure::new(Reason::Handler, "filepath matches fail_glob"))
            }
            _ => Outcome::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;

    fn simulate(base: u64, per_mib: u64, fail_glob: &str) -> Simulate {
        let settings = SimulateSettings {
            base: Duration::from_millis(base),
            per_mib: Duration::from_millis(per_mib),
            fail_glob: fail_glob.into(),
        };
        Simulate::new(&settings).unwrap()
    }

    #[test]
    fn a_job_takes_the_base_and_a_share_for_each_mib() {
        let simulate = simulate(10, 100, "");
        assert_eq!(simulate.duration(0), Duration::from_millis(10));
        assert_eq!(simulate.duration(1024 * 1024), Duration::from_millis(110));
        assert_eq!(simulate.duration(512 * 1024), Duration::from_millis(60));
        assert!(simulate.duration(u64::MAX) > Duration::from_secs(86_400));
    }

    #[test]
    fn a_job_without_duration_is_answered_at_once() {
        let handler = super::super::Handler::Simulate(simulate(0, 100, "*.bad"));
        assert_eq!(handler.instant(&job(r#"{"id":"1","filepath":"/a/b.txt"}"#)), Some(Outcome::Done));
        assert!(matches!(
            handler.instant(&job(r#"{"id":"1","filepath":"/a/b.bad"}"#)),
            Some(Outcome::Failed(Failure { reason: Reason::Handler, .. }))
        ));
        assert_eq!(handler.instant(&job(r#"{"id":"1","filesize":1048576}"#)), None);
    }

    #[tokio::test]
    async fn a_job_with_a_duration_takes_that_long() {
        let simulate = simulate(2, 1, "");
        let started = tokio::time::Instant::now();
        let outcome = simulate.handle(&job(r#"{"id":"1","filesize":10485760}"#), &Call::default()).await;
        assert_eq!(outcome, Outcome::Done);
        assert!(started.elapsed() >= Duration::from_millis(12));
    }

    #[tokio::test]
    async fn a_deadline_before_the_end_is_a_timeout() {
        let call = Call { deadline: Some(tokio::time::Instant::now()), ..Call::default() };
        let outcome = simulate(3_600_000, 0, "").handle(&job(r#"{"id":"1"}"#), &call).await;
        assert!(matches!(outcome, Outcome::Failed(Failure { reason: Reason::Timeout, .. })));
    }

    #[test]
    fn a_bad_glob_is_named_with_its_key_and_rule() {
        let settings = SimulateSettings { fail_glob: "a[".into(), ..SimulateSettings::default() };
        let message = Simulate::new(&settings).unwrap_err().to_string();
        assert!(
            message.contains("fail_glob") && message.contains("a[") && message.contains("unclosed"),
            "{message}"
        );
    }
}
