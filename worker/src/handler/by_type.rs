//! Chooses a handler by the type of the job: `async.handlers`. They share one queue, so each has a breaker of its own: a
//! handler that is not there, or fails all the time, keeps nobody from the others.
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jobqueue::breaker::{self, Breaker};
use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};

use super::Handler;

/// A job whose handler is not there waits so long, or until the breaker lets another one try.
const PUT_OFF: Duration = Duration::from_secs(1);

/// Handlers by type, and the one of all other types.
#[derive(Debug)]
pub struct ByType {
    by_type: HashMap<String, Typed>,
    default: Option<Box<Typed>>,
}

/// The handler of one type.
#[derive(Debug)]
struct Typed {
    name: String,
    handler: Handler,
    breaker: Mutex<Breaker>,
}

/// A run that its breaker let through, and hears of.
#[derive(Debug)]
pub struct Attempt<'a> {
    typed: &'a Typed,
    /// It tells whether a half-open breaker closes; nobody else may try until it has ended, in whatever way.
    probes: bool,
}

impl ByType {
    /// A handler that asks these; the one named `default` runs what has none of its own.
    pub fn new(handlers: HashMap<String, Handler>, settings: breaker::Settings) -> Self {
        let now = Instant::now();
        let typed = |(name, handler): (String, Handler)| {
            let breaker = Mutex::new(Breaker::new(settings, now));
            (name.clone(), Typed { name, handler, breaker })
        };
        let mut by_type: HashMap<_, _> = handlers.into_iter().map(typed).collect();
        let default = by_type.remove("default").map(Box::new);
        Self { by_type, default }
    }

    fn typed(&self, job: &Job) -> Option<&Typed> {
        self.by_type.get(&job.fields.kind).or(self.default.as_deref())
    }

    pub(super) fn of(&self, job: &Job) -> Option<&Handler> {
        self.typed(job).map(|typed| &typed.handler)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Handler> {
        self.by_type.values().chain(self.default.as_deref()).map(|typed| &typed.handler)
    }

    /// Begins to run a job, unless the breaker of its type is open: what becomes of it then.
    pub(super) fn attempt(&self, job: &Job) -> Option<Result<Attempt<'_>, Outcome>> {
        let (typed, now) = (self.typed(job)?, Instant::now());
        let mut breaker = typed.breaker();
        if breaker.allows(1, now) == 0 {
            let wait = breaker.open_for(now).max(PUT_OFF);
            return Some(Err(Outcome::PutOff(
                wait,
                "the handler of this type is left alone for a while".into(),
            )));
        }
        let probes = breaker.state(now) == breaker::State::HalfOpen;
        breaker.fetched(now);
        drop(breaker);
        Some(Ok(Attempt { typed, probes }))
    }

    /// No retry helps a job that nobody can run. Not `Reason::Killed`, which is a handler's own word: none was asked, and
    /// nothing was learned about the health of any.
    pub(super) fn none(job: &Job) -> Outcome {
        let kind: String = job.fields.kind.chars().take(100).collect();
        let error = format!("async.handlers has no handler for the type {kind:?}, and no default");
        Outcome::Kill(Failure::new(Reason::Handler, error))
    }
}

impl Typed {
    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt<'_> {
    /// It has ended; `sample` is what that says about the handler. Who found nobody there waits apart from the others.
    pub fn ended(mut self, sample: Option<bool>, outcome: Outcome) -> Outcome {
        let now = Instant::now();
        let mut breaker = self.typed.breaker();
        if let Some(ok) = sample
            && (self.probes || breaker.state(now) == breaker::State::Closed)
        {
            self.probes = false;
            if breaker.record(ok, now) {
                let (value, key) = (breaker.state(now).as_str(), &*self.typed.name);
                tracing::warn!(key, value, "The breaker of one type of jobs changed");
            }
        }
        let wait = breaker.open_for(now).max(PUT_OFF);
        drop(breaker);
        match outcome {
            Outcome::HandlerUnavailable(why) => Outcome::PutOff(wait, why),
            outcome => outcome,
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.probes {
            self.typed.breaker().abandoned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Call, Function};
    use super::*;
    use bytes::Bytes;

    fn named(name: &'static str) -> Handler {
        Handler::Function(Function::new(move |_, _| Outcome::DoneWith(Bytes::from_static(name.as_bytes()))))
    }

    const SETTINGS: breaker::Settings = breaker::Settings {
        failure_threshold: 0.5,
        window: Duration::from_secs(60),
        cooldown: Duration::ZERO,
        min_samples: 3,
    };

    fn job(kind: &str) -> Job {
        let fields = jobqueue::job::Fields { id: "1".into(), kind: kind.into(), ..Default::default() };
        Job { raw: Bytes::new(), fields }
    }

    #[tokio::test]
    async fn a_job_goes_to_the_handler_of_its_type_or_to_the_default() {
        let handlers = HashMap::from([("email".into(), named("a")), ("default".into(), named("b"))]);
        let handler = Handler::ByType(ByType::new(handlers, SETTINGS));
        for (kind, answer) in [("email", "a"), ("resize", "b"), ("", "b")] {
            let outcome = handler.handle(&job(kind), &Call::default()).await;
            assert_eq!(outcome, Outcome::DoneWith(answer.into()), "{kind}");
        }
    }

    #[tokio::test]
    async fn without_a_default_another_type_fails_for_good_and_names_it() {
        let handler = Handler::ByType(ByType::new(HashMap::from([("email".into(), named("a"))]), SETTINGS));
        let outcome = handler.handle(&job("resize"), &Call::default()).await;
        assert!(
            matches!(&outcome, Outcome::Kill(failure) if failure.error.contains("resize") && failure.reason != Reason::Killed),
            "{outcome:?}"
        );
        assert_eq!(handler.instant(&job("resize")), Some(outcome));
        assert_eq!(handler.instant(&job("email")), None);
    }

    fn unavailable(handler: &ByType, kind: &str) -> Outcome {
        let gone = Outcome::HandlerUnavailable("refused".into());
        handler.attempt(&job(kind)).unwrap().unwrap().ended(Some(false), gone)
    }

    #[test]
    fn a_handler_that_is_not_there_opens_the_breaker_of_its_own_type_alone() {
        let handlers = || HashMap::from([("email".into(), named("a")), ("resize".into(), named("b"))]);
        let settings = breaker::Settings { cooldown: Duration::from_secs(3600), ..SETTINGS };
        let handler = ByType::new(handlers(), settings);
        for _ in 0..2 {
            assert_eq!(unavailable(&handler, "email"), Outcome::PutOff(PUT_OFF, "refused".into()));
        }
        let Outcome::PutOff(wait, _) = unavailable(&handler, "email") else { panic!("put off") };
        assert!(wait > Duration::from_secs(3000), "until the breaker is half-open: {wait:?}");
        assert!(matches!(handler.attempt(&job("email")), Some(Err(Outcome::PutOff(..)))));
        let resize = handler.attempt(&job("resize")).unwrap().unwrap();
        assert_eq!(resize.ended(Some(true), Outcome::Done), Outcome::Done);
    }

    #[test]
    fn one_job_at_a_time_tries_again_whatever_became_of_the_last() {
        let handler = ByType::new(HashMap::from([("email".into(), named("a"))]), SETTINGS);
        (0..3).for_each(|_| _ = unavailable(&handler, "email"));
        let probe = handler.attempt(&job("email")).unwrap().unwrap();
        assert!(handler.attempt(&job("email")).unwrap().is_err(), "one at a time");
        drop(probe);
        let probe = handler.attempt(&job("email")).unwrap().unwrap();
        probe.ended(None, Outcome::Released);
        let probe = handler.attempt(&job("email")).unwrap().unwrap();
        probe.ended(Some(true), Outcome::Done);
        let both = [(); 2].map(|()| handler.attempt(&job("email")).unwrap());
        assert!(both.iter().all(Result::is_ok), "it is closed");
    }
}
