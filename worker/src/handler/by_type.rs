//! Chooses a handler by the type of the job: `async.handlers`.
use std::collections::HashMap;

use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};

use super::Handler;

/// Handlers by type, and the one of all other types.
#[derive(Debug)]
pub struct ByType {
    by_type: HashMap<String, Handler>,
    default: Option<Box<Handler>>,
}

impl ByType {
    /// A handler that asks these; the one named `default` runs what has none of its own.
    pub fn new(mut handlers: HashMap<String, Handler>) -> Self {
        let default = handlers.remove("default").map(Box::new);
        Self { by_type: handlers, default }
    }

    pub(super) fn of(&self, job: &Job) -> Option<&Handler> {
        self.by_type.get(&job.fields.kind).or(self.default.as_deref())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Handler> {
        self.by_type.values().chain(self.default.as_deref())
    }

    /// No retry helps a job that nobody can run. Not `Reason::Killed`, which is a handler's own word: none was asked, and
    /// nothing was learned about the health of any.
    pub(super) fn none(job: &Job) -> Outcome {
        let kind: String = job.fields.kind.chars().take(100).collect();
        let error = format!("async.handlers has no handler for the type {kind:?}, and no default");
        Outcome::Kill(Failure::new(Reason::Handler, error))
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

    fn job(kind: &str) -> Job {
        let fields = jobqueue::job::Fields { id: "1".into(), kind: kind.into(), ..Default::default() };
        Job { raw: Bytes::new(), fields }
    }

    #[tokio::test]
    async fn a_job_goes_to_the_handler_of_its_type_or_to_the_default() {
        let handlers = HashMap::from([("email".into(), named("a")), ("default".into(), named("b"))]);
        let handler = Handler::ByType(ByType::new(handlers));
        for (kind, answer) in [("email", "a"), ("resize", "b"), ("", "b")] {
            let outcome = handler.handle(&job(kind), &Call::default()).await;
            assert_eq!(outcome, Outcome::DoneWith(answer.into()), "{kind}");
        }
    }

    #[tokio::test]
    async fn without_a_default_another_type_fails_for_good_and_names_it() {
        let handler = Handler::ByType(ByType::new(HashMap::from([("email".into(), named("a"))])));
        let outcome = handler.handle(&job("resize"), &Call::default()).await;
        assert!(
            matches!(&outcome, Outcome::Kill(failure) if failure.error.contains("resize") && failure.reason != Reason::Killed),
            "{outcome:?}"
        );
        assert_eq!(handler.instant(&job("resize")), Some(outcome));
        assert_eq!(handler.instant(&job("email")), None);
    }
}
