//! Jobs that the lists only name: read, and marked as started, before they run; and read again when somebody changed
//! them while they ran. One round trip for each, for all that came at the same time.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::effects::{Decision, Effect, Verdict};
use jobqueue::job::{Data, Job, NotAJob};
use jobqueue::protocol::{Records, Start};
use jobqueue::store::{Started, Status, StoreError};

use super::held::{Held, Phase};
use super::{End, Lane};
use crate::failpoint;
use crate::health::Dependency;

/// A job that may be started: where it is held, as it is then, and what that changes.
struct Opened {
    queue: usize,
    key: u64,
    job: Job,
    change: (usize, Bytes, Vec<Effect>),
}

impl Lane {
    pub(super) fn must_open(&self) -> bool {
        self.shared.protocol.records().is_some() && self.held.iter().flatten().any(Held::is_to_be_opened)
    }

    /// Opens as much as is read at once; the next turn of the loop goes on.
    pub(super) async fn open_held(&mut self) -> Result<(), End> {
        let protocol = Arc::clone(&self.shared.protocol);
        let Some(records) = protocol.records() else { return Ok(()) };
        self.drop_repeated();
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        for (queue, held) in self.held.iter_mut().enumerate() {
            for held in held.iter_mut().filter(|held| held.is_to_be_opened()) {
                held.refused = None;
                entries.push(held.raw.clone());
                places.push((queue, held.key));
            }
        }
        let trips = self.session.round_trips;
        let read = self.session.named(records, &entries).await;
        self.shared.metrics.redis_round_trips(self.session.round_trips - trips);
        let Some(data) = self.answered(read).await else { return Ok(()) };
        let mut opened = Vec::new();
        for ((queue, key), data) in places.into_iter().zip(data) {
            opened.extend(self.read(records, queue, key, data));
        }
        if opened.is_empty() {
            return Ok(());
        }
        self.mark(opened).await
    }

    /// What was read: a job that may be started, or what else becomes of it.
    fn read(&mut self, records: &dyn Records, queue: usize, key: u64, data: Data) -> Option<Opened> {
        let (_, at) = self.find(key)?;
        let keys = self.session.keys.queues[queue].clone();
        let held = &mut self.held[queue][at];
        let read = records.read(&held.raw, data);
        if let Phase::Outdated(_, outcome) = &held.phase {
            held.phase = match read {
                Ok(job) => match records.disowned(&job, &self.handle.id, &keys, self.session.now_ms()) {
                    Some(decision) => Phase::Decided(decision),
                    // Its time was counted when it was settled first.
                    None => Phase::Finished(Arc::new(job), outcome.clone(), Duration::ZERO),
                },
                // Somebody removed it while it ran: there is nothing left to write into.
                Err(why @ NotAJob::NoData) => {
                    let now_ms = self.session.now_ms();
                    let mut effects = self.shared.protocol.reject(&held.raw, &why, &keys, now_ms).effects;
                    // What a burial tidies up, without the letter: it did run.
                    effects.retain(|effect| matches!(effect, Effect::Unindex { .. }));
                    Phase::Decided(Decision { verdict: Verdict::Dropped, effects })
                }
                Err(why) => Phase::Rejected(why),
            };
            return None;
        }
        let job = match read {
            Ok(job) => job,
            Err(why) => {
                self.reject(queue, at, why);
                return None;
            }
        };
        match records.start(&job, &self.handle.id, &keys, self.session.now_ms()) {
            Start::Drop(decision) => {
                self.decide(queue, at, decision);
                None
            }
            Start::Run(..) if job.fields.deaths > 0 && !held.admitted => {
                self.wait(queue, at, job);
                // At most one suspect was taken; others of its queue may wait behind it.
                self.hungry = true;
                None
            }
            Start::Run(job, effects) => {
                Some(Opened { queue, key, job: *job, change: (queue, held.raw.clone(), effects) })
            }
        }
    }

    /// Marks them as started, then starts them: a crash in between leaves a run that a reaper takes back.
    async fn mark(&mut self, opened: Vec<Opened>) -> Result<(), End> {
        failpoint::hit("before-start");
        let changes: Vec<_> = opened.iter().map(|opened| opened.change.clone()).collect();
        let trips = self.session.round_trips;
        // Said again as it is when the answer was lost: what was started then is ours.
        let started = loop {
            self.beat.tick();
            let answer = self.session.start(&self.handle, &changes).await;
            if let Some(answer) = self.answered(answer).await {
                break answer;
            }
            if self.is_out_of_time() {
                return Err(End::GaveUp);
            }
        };
        self.shared.metrics.redis_round_trips(self.session.round_trips - trips);
        let Some(Started { statuses, refusals }) = started else {
            let count = self.held_count();
            tracing::warn!(worker_id = self.handle.id, count, "Lost the lease, what it held runs elsewhere");
            return Err(End::Lost);
        };
        failpoint::hit("after-start");
        for (opened, status) in opened.into_iter().zip(statuses) {
            let Some((queue, at)) = self.find(opened.key) else { continue };
            match status {
                Status::Settled => self.start(queue, at, Arc::new(opened.job)),
                // Somebody was faster: it is read again in the next turn.
                Status::Changed => {}
                Status::Refused => self.held[queue][at].refused = Some(Instant::now()),
                Status::NotHeld => {
                    let held = self.held[opened.queue].remove(at);
                    tracing::warn!(worker_id = self.handle.id, "A reserved job was not held any more");
                    self.dropped(queue, &held);
                }
            }
        }
        for refusal in &refusals {
            let (key, reason) = (refusal.key.as_str(), refusal.reason.as_str());
            tracing::error!(key, reason, "Redis refused to start a job, it stays where it is");
        }
        Ok(())
    }

    /// The same id twice in one lane, from whichever queues: the one that is further counts, else the first.
    fn drop_repeated(&mut self) {
        let begun = self.held.iter().flatten().filter(|held| is_begun(held));
        let mut met: HashSet<Bytes> = begun.map(|held| held.raw.clone()).collect();
        for queue in 0..self.held.len() {
            for at in 0..self.held[queue].len() {
                let held = &self.held[queue][at];
                if matches!(held.phase, Phase::Closed) && !met.insert(held.raw.clone()) {
                    self.decide(queue, at, Decision { verdict: Verdict::Dropped, effects: Vec::new() });
                }
            }
        }
    }

    /// The answer, if Redis gave one; otherwise waits until it may be asked again.
    async fn answered<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        self.shared.metrics.redis_answers(false);
        self.shared.readiness.dependency("redis", Dependency::Down);
        tracing::warn!(worker_id = self.handle.id, error = %error, "Could not start jobs, trying again");
        self.drain_if_asked();
        let wait = if error.is_transient() { self.session.backoff() } else { super::TICK };
        tokio::time::sleep(wait).await;
        None
    }
}

/// It has been opened, and is not over with.
fn is_begun(held: &Held) -> bool {
    matches!(
        held.phase,
        Phase::Waiting(..)
            | Phase::Admitted(_)
            | Phase::Running(..)
            | Phase::Finished(..)
            | Phase::Outdated(..)
    )
}
