//! What happens to a job between its reservation and its settlement: admitted to slots, started, finished.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::breaker;
use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};

use super::held::{Held, Phase, given, millis};
use super::{Event, Lane};
use crate::failpoint;
use crate::handler::Call;
use crate::slots::Permit;
use crate::traces::outcome_word;

impl Lane {
    /// A job is ours: runs it, or waits until it may. Answers whether it is a suspect.
    pub(super) fn admit(&mut self, queue: usize, raw: Bytes, permit: Permit) -> bool {
        let key = self.next_key;
        self.next_key += 1;
        let reserved = Instant::now();
        let probe = self.shared.breaker(queue).state(reserved) == breaker::State::HalfOpen;
        self.shared.queue_metrics[queue].jobs_consumed(1);
        self.shared.metrics.jobs_in_flight_changed(1);
        let (phase, permit) = match self.shared.protocol.decode(raw.clone()) {
            Err((_, why)) => {
                // Says nothing about the handler: another may probe.
                if probe {
                    self.shared.breaker(queue).abandoned();
                }
                (Phase::Rejected(why), Some(permit))
            }
            Ok(job) if job.fields.deaths == 0 => (Phase::Admitted(Arc::new(job)), Some(permit)),
            Ok(job) => {
                // Gives its slot back first: two that each hold one and wait for the rest would wait for ever.
                drop(permit);
                let weight = self.shared.slots.weight(job.fields.deaths);
                let (slots, sender) = (self.shared.slots.clone(), self.sender.clone());
                let waiting = tokio::spawn(async move {
                    if let Some(permit) = slots.acquire(weight).await {
                        let _ = sender.send(Event::Admitted { key, permit });
                    }
                });
                (Phase::Waiting(Arc::new(job), waiting), None)
            }
        };
        let suspect = matches!(phase, Phase::Waiting(..));
        let start = if let Phase::Admitted(job) = &phase { Some(Arc::clone(job)) } else { None };
        self.held[queue].push(Held {
            key,
            raw,
            reserved,
            phase,
            permit,
            probe,
            refused: None,
            adopting: None,
        });
        if let Some(job) = start {
            self.start(queue, self.held[queue].len() - 1, job);
        }
        suspect
    }

    /// Hands a job to the handler; one that needs no waiting is finished at once, without a task.
    pub(super) fn start(&mut self, queue: usize, at: usize, job: Arc<Job>) {
        failpoint::hit("before-handle");
        let started = Instant::now();
        let key = self.held[queue][at].key;
        let metrics = &self.shared.queue_metrics[queue];
        metrics.job_waited(started.duration_since(self.held[queue][at].reserved));
        let tracer = &self.shared.tracer;
        if !tracer.is_on()
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
        let last_attempt = self.shared.protocol.is_last_attempt(&job, self.session.now_ms());
        let task = tokio::spawn(async move {
            let consumed = shared.tracer.consume(&running.fields, &name);
            let span = shared.tracer.process(&running.fields, &name, &consumed);
            consumed.end("reserved");
            let call = Call {
                queue: name,
                traceparent: span.traceparent(),
                request_id: Some(running.fields.id.clone()),
                last_attempt,
                deadline: None,
            };
            let handling = std::panic::AssertUnwindSafe(shared.handler.handle(&running, &call));
            let outcome = futures::FutureExt::catch_unwind(handling)
                .await
                .unwrap_or_else(|_| Outcome::Failed(Failure::new(Reason::Panic, "the handler panicked")));
            let outcome = match (outcome, &shared.coroner) {
                (Outcome::HandlerDied(why), Some(coroner)) => {
                    Outcome::HandlerDied(coroner.cause().await.unwrap_or(why))
                }
                (outcome, _) => outcome,
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
        match self.shared.protocol.breaker_sample(&outcome) {
            Some(ok) => self.shared.sampled(queue, ok, held.probe),
            None if held.probe => self.shared.breaker(queue).abandoned(),
            None => {}
        }
        let failure = match &outcome {
            Outcome::Failed(failure) | Outcome::RetryIn(_, failure) | Outcome::Kill(failure) => {
                Some(failure.reason)
            }
            _ => None,
        };
        if let Some(reason) = failure {
            self.shared.queue_metrics[queue].jobs_failed(reason, 1);
        }
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
            value = outcome_word(&outcome),
            "Job ran"
        );
        held.phase = Phase::Finished(job, outcome, took);
    }
}
