//! A function of the program that embeds the worker: for a handler written in Rust, and for whoever has to see
//! the moment at which a job starts, as the benchmark does.
use super::Call;
use jobqueue::job::Job;
use jobqueue::outcome::Outcome;

type Run = dyn Fn(&Job, &Call) -> Outcome + Send + Sync;

/// The handler that calls a function. It runs on the runtime's threads: it must not block.
pub struct Function(Box<Run>);

impl Function {
    /// A handler that calls `run` once a job.
    pub fn new(run: impl Fn(&Job, &Call) -> Outcome + Send + Sync + 'static) -> Self {
        Self(Box::new(run))
    }

    pub(super) fn handle(&self, job: &Job, call: &Call) -> Outcome {
        (self.0)(job, call)
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Function")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::super::{Call, Handler};
    use super::*;

    #[tokio::test]
    async fn a_function_is_given_the_job_and_decides_what_becomes_of_it() {
        let handler = Handler::Function(Function::new(|job, _| match job.fields.id.as_str() {
            "1" => Outcome::Done,
            _ => Outcome::Discard(None),
        }));
        assert_eq!(handler.handle(&job(r#"{"id":"1"}"#), &Call::default()).await, Outcome::Done);
        assert_eq!(handler.handle(&job(r#"{"id":"2"}"#), &Call::default()).await, Outcome::Discard(None));
        assert_eq!(handler.instant(&job(r#"{"id":"1"}"#)), None, "only a task of its own may take its time");
    }
}
