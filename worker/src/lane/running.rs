//! What happens to a job between its reservation and its settlement: admitted to slots, started, finished.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::breaker;
use jobqueue::effects::Decision;
use jobqueue::job::{Job, NotAJob};
use jobqueue::outcome::{Failure, Outcome, Reason};

use super::held::{Held, Phase, given, millis};
use super::{Event, Lane, TICK};
use crate::failpoint;
use crate::handler::Call;
use crate::shared::Shared;
use crate::slots::Permit;
use crate::traces::{outcome_word, traceparent_of};

impl Lane {
    /// A job is ours: runs it, or waits until it may. Answers whether it is a suspect.
    pub(super) fn admit(&mut self, queue: usize, raw: Bytes, permit: Permit) -> bool {
        let key = self.next_key;
        self.next_key += 1;
        let reserved = Instant::now();
        let probe = self.shared.breaker(queue).state(reserved) == breaker::State::HalfOpen;
        self.shared.queue_metrics[queue].jobs_consumed(1);
        self.shared.metrics.jobs_in_flight_changed(1);
        let at = self.held[queue].len();
        self.held[queue].push(Held {
            key,
            raw: raw.clone(),
            reserved,
            phase: Phase::Closed,
            permit: Some(permit),
            admitted: false,
            probe,
            refused: None,
            rests_until: None,
            adopting: None,
        });
        // What is only named is opened later, with all that came at the same time.
        if self.shared.protocol.records().is_some() {
            return false;
        }
        match self.shared.protocol.decode(raw) {
            Err((_, why)) => self.reject(queue, at, why),
            // What is not going to run needs no care.
            Ok(job) if job.fields.deaths == 0 || self.shared.protocol.condemned(&job).is_some() => {
                self.start(queue, at, Arc::new(job));
            }
            Ok(job) => {
                self.wait(queue, at, job);
                return true;
            }
        }
        false
    }

    /// It is not a job.
    pub(super) fn reject(&mut self, queue: usize, at: usize, why: NotAJob) {
        self.held[queue][at].phase = Phase::Rejected(why);
        self.give_probe_up(queue, at);
    }

    /// It is not to be run.
    pub(super) fn decide(&mut self, queue: usize, at: usize, decision: Decision) {
        self.held[queue][at].phase = Phase::Decided(decision);
        self.give_probe_up(queue, at);
    }

    /// What does not run says nothing about the handler: another may probe.
    fn give_probe_up(&mut self, queue: usize, at: usize) {
        if std::mem::take(&mut self.held[queue][at].probe) {
            self.shared.breaker(queue).abandoned();
        }
    }

    /// A suspect waits for the slots it needs.
    pub(super) fn wait(&mut self, queue: usize, at: usize, job: Job) {
        let held = &mut self.held[queue][at];
        // Gives its slot back first: two that each hold one and wait for the rest would wait for ever.
        held.permit = None;
        let key = held.key;
        let weight = self.shared.slots.weight(job.fields.deaths);
        let (slots, sender) = (self.shared.slots.clone(), self.sender.clone());
        let waiting = tokio::spawn(async move {
            if let Some(permit) = slots.acquire(weight).await {
                let _ = sender.send(Event::Admitted { key, permit });
            }
        });
        held.phase = Phase::Waiting(Arc::new(job), waiting);
    }

    /// An admitted job may start: at once, or after it was opened.
    pub(super) fn begin(&mut self, queue: usize, at: usize) {
        let Phase::Admitted(job) = &self.held[queue][at].phase else { return };
        if self.shared.protocol.records().is_some() {
            self.held[queue][at].phase = Phase::Closed;
        } else {
            self.start(queue, at, Arc::clone(job));
        }
    }

    /// Hands a job to the handler; one that needs no waiting is finished at once, without a task.
    pub(super) fn start(&mut self, queue: usize, at: usize, job: Arc<Job>) {
        failpoint::hit("before-handle");
        let started = Instant::now();
        let key = self.held[queue][at].key;
        let metrics = &self.shared.queue_metrics[queue];
        let waited = started.duration_since(self.held[queue][at].reserved);
        metrics.job_waited(waited);
        let condemned = self.shared.protocol.condemned(&job);
        let tracer = &self.shared.tracer;
        if condemned.is_none()
            && !tracer.is_on()
            && let Some(outcome) = self.shared.handler.instant(&job)
        {
            self.finished(queue, at, job, outcome, started.elapsed());
            return;
        }
        if let Some(presence) = &self.shared.presence {
            presence.started((self.index, key), metrics.name(), &job);
        }
        let (shared, sender, running) = (Arc::clone(&self.shared), self.sender.clone(), Arc::clone(&job));
        let name = Arc::clone(metrics.name());
        let started_ms = self.session.now_ms();
        let last_attempt = self.shared.protocol.is_last_attempt(&job, started_ms);
        let runs = self.shared.metrics.job_runs();
        let task = tokio::spawn(async move {
            // Also when it is stopped.
            let _runs = runs;
            let consumed = shared.tracer.consume(&running.fields, &name, waited);
            let span = shared.tracer.process(&running.fields, &name, &consumed);
            consumed.end("reserved");
            let call = Call {
                queue: name,
                traceparent: span.traceparent().or_else(|| traceparent_of(&running.fields)),
                request_id: Some(running.fields.id.clone()),
                last_attempt,
                deadline: None,
            };
            let outcome = match condemned {
                Some(failure) => Outcome::Kill(failure),
                None => shared.run(&running, &call).await,
            };
            // Boxed: it is rare, and the task lives as long as its job.
            let is_last = |failure: &Failure| {
                let now_ms = started_ms.saturating_add(millis(started.elapsed()));
                shared.protocol.is_last_failure(&running, failure, now_ms) == Some(true)
            };
            let outcome = match last_words_for(&outcome, &call, is_last) {
                Some(failure) => Box::pin(shared.bury(&running, failure, outcome, &call)).await,
                None => outcome,
            };
            failpoint::hit("after-handle");
            span.end(outcome_word(&outcome));
            let _ = sender.send(Event::Finished { key, outcome, took: started.elapsed() });
        });
        self.held[queue][at].phase = Phase::Running(job, task);
    }

    pub(super) fn finished(
        &mut self,
        queue: usize,
        at: usize,
        job: Arc<Job>,
        outcome: Outcome,
        took: Duration,
    ) {
        let held = &mut self.held[queue][at];
        self.shared.queue_metrics[queue].job_ran(took);
        let sample = self.shared.protocol.breaker_sample(&outcome);
        match sample.filter(|_| !self.shared.handler.has_breakers()) {
            Some(ok) => self.shared.sampled(queue, ok, held.probe),
            None if held.probe => self.shared.breaker(queue).abandoned(),
            None => {}
        }
        // It goes back uncounted: without a pause it would be run again and again, as fast as it can be said.
        if matches!(outcome, Outcome::HandlerUnavailable(_) | Outcome::Released) {
            held.rests_until = Some(Instant::now() + TICK);
        }
        let failure = failure(&outcome);
        if let Some(reason) = failure {
            self.shared.queue_metrics[queue].jobs_failed(reason, 1);
        }
        // Of the transport, so it quotes nothing of the job.
        let unreached = match &outcome {
            Outcome::HandlerDied(why) | Outcome::HandlerUnavailable(why) | Outcome::PutOff(_, why) => {
                Some(why.as_str())
            }
            _ => None,
        };
        let fields = &job.fields;
        tracing::debug!(
            job_id = fields.id,
            request_id = fields.id,
            trace_id = given(&fields.trace_id),
            span_id = given(&fields.span_id),
            queue = &**self.shared.queue_metrics[queue].name(),
            attempt = fields.retries.saturating_add(1),
            duration_ms = millis(took),
            wait_ms = millis(held.reserved.elapsed().saturating_sub(took)),
            reason = failure.map(Reason::as_str),
            error = unreached,
            value = outcome_word(&outcome),
            "Job ran"
        );
        held.phase = Phase::Finished(job, outcome, took);
    }
}

/// Why a run failed, if it did.
pub(super) fn failure(outcome: &Outcome) -> Option<Reason> {
    match outcome {
        Outcome::Failed(failure)
        | Outcome::RetryIn(_, failure)
        | Outcome::Kill(failure)
        | Outcome::Discard(Some(failure)) => Some(failure.reason),
        _ => None,
    }
}

/// Of what a job is given up without a word of its application: it was never asked, has not answered, or answered what
/// it answers of a job that will be retried. `is_last` is whether it is the last attempt by now: the time in which a job
/// may be retried can end while it runs.
fn last_words_for(outcome: &Outcome, call: &Call, is_last: impl Fn(&Failure) -> bool) -> Option<Failure> {
    let told = call.last_attempt == Some(true);
    let (failure, asked) = match outcome {
        Outcome::Kill(failure) => (failure, true),
        Outcome::Failed(failure) | Outcome::RetryIn(_, failure) if told || is_last(failure) => {
            (failure, told)
        }
        _ => return None,
    };
    // By its own word: it has said them.
    let said = asked && (failure.raised.is_some() || failure.reason == Reason::Killed);
    (!said).then(|| failure.clone())
}

impl Shared {
    /// Has the handler run a job.
    async fn run(&self, job: &Job, call: &Call) -> Outcome {
        let attempt = match self.handler.attempt(job).transpose() {
            Ok(attempt) => attempt,
            Err(put_off) => return put_off,
        };
        let handling = std::panic::AssertUnwindSafe(self.handler.handle(job, call));
        let outcome = futures::FutureExt::catch_unwind(handling)
            .await
            .unwrap_or_else(|_| Outcome::Failed(Failure::new(Reason::Panic, "the handler panicked")));
        let outcome = match attempt {
            Some(attempt) => attempt.ended(self.protocol.breaker_sample(&outcome), outcome),
            None => outcome,
        };
        match (outcome, &self.coroner) {
            (Outcome::HandlerDied(why), Some(coroner)) => {
                // Boxed: it is rare, asks Redis, and would take 6 KB of each job's task.
                Outcome::HandlerDied(Box::pin(coroner.cause()).await.unwrap_or(why))
            }
            (outcome, _) => outcome,
        }
    }

    /// Lets the application say its last words of a job that is given up. What it says of one that kills is heard and
    /// changes nothing.
    async fn bury(&self, job: &Job, failure: Failure, outcome: Outcome, call: &Call) -> Outcome {
        let Some(raw) = self.protocol.obituary(job, &failure) else { return outcome };
        let kills = matches!(failure.reason, Reason::Poison | Reason::Oom);
        let obituary = Job { raw, fields: job.fields.clone() };
        let mut said = self.handler.bury(&obituary, call).await;
        if let Outcome::HandlerDied(_) = said {
            // A connection that was kept died with the program that the job has killed: the next one is new.
            said = self.handler.bury(&obituary, call).await;
        }
        match said {
            // It has not run: it can wait in its queue until somebody is there to be told.
            unavailable @ Outcome::HandlerUnavailable(_) if kills => unavailable,
            Outcome::Released if kills => Outcome::Released,
            // Nor does one disappear of which nobody knows whether it ever ran.
            Outcome::Discard(_) if !kills && failure.reason != Reason::NoVerdict => {
                Outcome::Discard(Some(failure))
            }
            said => {
                tracing::debug!(
                    job_id = job.fields.id,
                    reason = failure.reason.as_str(),
                    value = outcome_word(&said),
                    "Told the application of a job that is given up"
                );
                outcome
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jobqueue::outcome::Raised;

    use super::*;

    #[test]
    fn last_words_are_asked_for_when_the_application_did_not_know_that_they_were_due() {
        let raised = Failure {
            raised: Some(Box::new(Raised { class: "Boom".into(), ..Raised::default() })),
            ..Failure::new(Reason::Handler, "Boom")
        };
        let late = Failure::new(Reason::Timeout, "no answer");
        let failed = Outcome::Failed;
        let retry = |failure| Outcome::RetryIn(Duration::from_secs(1), failure);
        let killed = Outcome::Kill(Failure::new(Reason::Killed, "by its own word"));
        let poison = Outcome::Kill(Failure::new(Reason::Poison, "died"));
        let table = [
            // What became of it, what the application was told, whether it is the last now; whether it is told.
            (failed(raised.clone()), Some(false), false, false),
            (failed(raised.clone()), Some(true), true, false),
            (failed(raised.clone()), Some(false), true, true),
            (retry(raised), Some(false), true, true),
            (failed(late.clone()), Some(false), false, false),
            (failed(late.clone()), Some(false), true, true),
            (failed(late.clone()), Some(true), true, true),
            (failed(late), None, false, false),
            (killed, Some(false), true, false),
            (poison, None, false, true),
            (Outcome::Done, Some(true), true, false),
            (Outcome::Discard(None), Some(true), true, false),
        ];
        for (outcome, last_attempt, now, told) in table {
            let call = Call { last_attempt, ..Call::default() };
            let words = last_words_for(&outcome, &call, |_| now);
            assert_eq!(words.is_some(), told, "{outcome:?} {last_attempt:?} {now}");
        }
    }
}
