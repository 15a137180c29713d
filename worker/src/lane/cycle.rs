//! The cycle: says what finished, hears what is new. Decisions are made here, one script carries them out.
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use jobqueue::breaker;
use jobqueue::effects::{Decision, Verdict};
use jobqueue::fetch;
use jobqueue::keys::QueueKeys;
use jobqueue::outcome::Outcome;
use jobqueue::protocol::files::COMPLETED_ENTRY_MAX;
use jobqueue::protocol::{Interruption, Protocol, behind_the_others, returned};
use jobqueue::store::{
    Cycle, Cycled, PAGE_BYTES, QueueAsk, Returned, Settlement, Status, StoreError, digest,
};

use super::held::{Held, Phase, Planned, forget, given, millis, oldest_job, one_of};
use super::parked::State;
use super::running::failure;
use super::{End, Lane, TICK};
use crate::failpoint;
use crate::health::Dependency;
use crate::slots::{self, Permit};

/// What a cycle brought.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Got {
    jobs: usize,
    bytes: usize,
    suspect: bool,
}

impl Got {
    /// More may be waiting: slots, bytes or the one suspect of a cycle were used up.
    fn is_all_that_fits(self, room: usize) -> bool {
        room > 0 && (self.jobs >= room || self.bytes >= PAGE_BYTES || self.suspect)
    }
}

/// What a decision is made of, beside the job.
struct Judge<'a> {
    protocol: &'a dyn Protocol,
    lane: &'a str,
    keys: &'a QueueKeys,
    now_ms: u64,
}

impl Judge<'_> {
    /// What becomes of a job that has ended; nothing yet of one that has not.
    fn decide(&self, held: &Held, alone: bool, unique: &str) -> Option<Decision> {
        let &Self { protocol, lane, keys, now_ms } = self;
        Some(match &held.phase {
            Phase::Finished(job, Outcome::HandlerDied(why), _) => {
                let how = Interruption::of_handler(why, alone);
                match protocol.records() {
                    Some(records) => records.interrupted(job, lane, keys, how, now_ms),
                    None => protocol.interrupted(&held.raw, keys, how, now_ms),
                }
            }
            Phase::Finished(job, outcome, _) => {
                let decision = protocol.settle(job, outcome, keys, now_ms, unique);
                match outcome {
                    Outcome::HandlerUnavailable(_) if held.probe => {
                        behind_the_others(decision, keys, protocol.consuming_side())
                    }
                    _ => decision,
                }
            }
            Phase::Rejected(why) => protocol.reject(&held.raw, why, keys, now_ms),
            Phase::Decided(decision) => decision.clone(),
            Phase::Closed
            | Phase::Waiting(..)
            | Phase::Admitted(_)
            | Phase::Running(..)
            | Phase::Outdated(..) => return None,
        })
    }
}

impl Lane {
    /// One round trip: settle what finished, reserve what fits.
    pub(super) async fn cycle(&mut self) -> Result<(), End> {
        failpoint::hit("before-cycle");
        let permits = if self.may_reserve() { self.shared.slots.take(self.room()) } else { None };
        let free = permits.as_ref().map_or(0, Permit::num_permits);
        if free > 0 {
            self.shared.shares.waits(self.index, false);
        }
        let (cycle, plan, claimed) = self.plan(free);
        let room = cycle.room;
        let words: Vec<_> = self.parks.iter().map(|park| park.state).collect();
        let answer = self.say(&cycle).await?;
        self.cycled = Instant::now();
        let Some(cycled) = answer else {
            let count = self.held_count();
            tracing::warn!(worker_id = self.handle.id, count, "Lost the lease, what it held runs elsewhere");
            for (queue, _) in claimed.iter().enumerate().filter(|(_, claimed)| **claimed) {
                self.shared.breaker(queue).abandoned();
            }
            return Err(End::Lost);
        };
        self.held.iter_mut().flatten().for_each(|held| held.adopting = None);
        failpoint::hit("after-cycle");
        self.seq = cycle.seq;
        if cycle.stopping {
            self.told.get_or_insert(self.cycled);
        }
        for (park, word) in self.parks.iter_mut().zip(words) {
            if park.state == word {
                park.cleared();
            }
        }
        self.looked = true;
        let resumed = self.control(&cycled);
        let mut permits: Vec<Permit> = permits.into_iter().collect();
        permits.extend(self.settled(&plan, &cycled));
        let got = self.reserved(&cycled, permits, &claimed);
        // Who was paused has not asked yet, and must before it parks: parked fetches know no priority.
        // Nor has who had no room; where that lasts until somebody makes room, it asks for its turn.
        let unasked = resumed || room == 0 && (self.hungry || self.shared.are_short());
        self.hungry = self.may_reserve() && (unasked || got.is_all_that_fits(room));
        if self.shared.slots.free() > 0 {
            let others = if self.hungry { &self.shared.wake } else { &self.shared.freed };
            others.notify_waiters();
        }
        // The record says now that it runs alone.
        if !cycle.alone.is_empty()
            && let Some((queue, at)) = self.alone.and_then(|key| self.find(key))
        {
            self.begin(queue, at);
        }
        let oldest = self.held.iter().flatten().min_by_key(|held| held.key);
        self.beat.set_oldest(oldest.map(oldest_job).unwrap_or_default());
        Ok(())
    }

    /// How many settlements the next call carries, and how many of them give a slot back: what it says is bounded by bytes
    /// as its answer is. One always goes.
    fn due(&self) -> (usize, usize) {
        let apart = self.shared.protocol.records().is_some();
        let mut bytes = 0;
        let fits = |held: &&Held| {
            let first = bytes == 0;
            bytes += held.weight(apart);
            first || bytes <= PAGE_BYTES
        };
        let due = self.held.iter().flatten().filter(|held| held.is_settleable()).take_while(fits);
        due.fold((0, 0), |(due, slots), held| (due + 1, slots + usize::from(held.permit.is_some())))
    }

    /// What to say: decisions are made here, and carried out by one script.
    pub(super) fn plan(&mut self, free: usize) -> (Cycle, Vec<Planned>, Vec<bool>) {
        let now = Instant::now();
        let now_ms = self.session.now_ms();
        // In the order in which the script adopts them: the queue's first, then its suspects'.
        self.held.iter_mut().for_each(|held| held.sort_by_key(|held| held.adopting));
        let (mut due, given_back) = self.due();
        // A slot whose job is settled by this call is free for the next in the same call.
        let room = if self.may_reserve() && !self.shared.slots.is_awaited() {
            // But for those that other lanes have waited for.
            let ours = given_back.saturating_sub(self.shared.shares.before(self.index));
            free + slots::again(ours, self.occupied(), free, self.shared.share(self.index))
        } else {
            free
        };
        let orders = fetch::orders(&self.shared.settings.weights, room, |below| fastrand::u64(0..below));
        let stopping = self.deadline.is_some();
        let mut cycle = Cycle { seq: self.seq + 1, stopping, room, orders, ..Cycle::default() };
        let (mut by_position, mut by_bytes, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let mut claimed = Vec::new();
        let drained = !self.quiet.is_empty() && self.parks.iter().all(|park| park.state != State::Waiting);
        if drained {
            cycle.quiet.clone_from(&self.quiet);
        }
        for queue in 0..self.held.len() {
            let protocol = &*self.shared.protocol;
            let judge =
                Judge { protocol, lane: &self.handle.id, keys: &self.session.keys.queues[queue], now_ms };
            let mut ask = QueueAsk { expected: self.held[queue].len(), ..QueueAsk::default() };
            let mut breaker = self.shared.breaker(queue);
            let before = breaker.state(now);
            let waits = self.shared.is_paused(queue) || self.stuck[queue];
            ask.limit = if waits { 0 } else { breaker.allows(room, now) };
            ask.suspects = ask.limit.min(1);
            let probes = before == breaker::State::HalfOpen && ask.limit > 0;
            if probes {
                breaker.fetched(now);
            }
            // A cooldown ends by itself: nobody else says that an open breaker has become half-open. Said while the
            // breaker is locked, so that it cannot overwrite a change that another lane has just reported.
            self.shared.queue_metrics[queue].breaker_is(before);
            drop(breaker);
            for park in self.parks.iter().filter(|park| park.queue == queue) {
                let word = park.word(ask.limit > 0);
                if park.suspects { ask.parked_suspects = word } else { ask.parked = word }
            }
            claimed.push(probes);
            let (mut others, mut last_done) = (0, 0);
            for (position, held) in self.held[queue].iter_mut().enumerate() {
                if due == 0 || !held.is_settleable() {
                    continue;
                }
                due -= 1;
                // What was refused is said again, but its time was counted the first time.
                let first = held.refused.take().is_none();
                held.rests_until = None;
                // Only what is put into a sorted set needs a name of its own there.
                let unique = match &held.phase {
                    Phase::Finished(_, Outcome::Done, _) => String::new(),
                    _ => format!("{}-{}-{}", self.handle.id, cycle.seq, held.key),
                };
                if let (true, Phase::Finished(_, _, took)) = (first, &held.phase) {
                    cycle.busy_ms += millis(*took);
                }
                let Some(decision) = judge.decide(held, self.alone == Some(held.key), &unique) else {
                    continue;
                };
                let Decision { verdict, effects } = decision;
                let planned = Planned { queue, key: held.key, verdict };
                let large = held.raw.len() > COMPLETED_ENTRY_MAX;
                if verdict == Verdict::Done && effects.is_empty() && !large {
                    ask.done.push(held.raw.clone());
                    done.push(planned);
                    last_done = position + 1;
                } else {
                    others += 1;
                    let position = large.then_some(position);
                    let settlement = Settlement { queue, raw: held.raw.clone(), position, verdict, effects };
                    if large {
                        by_position.push((settlement, planned));
                    } else {
                        by_bytes.push((settlement, planned));
                    }
                }
            }
            ask.done_at_head = others == 0 && last_done == ask.done.len();
            cycle.queues.push(ask);
        }
        let (settlements, mut plan): (Vec<_>, Vec<_>) = by_position.into_iter().chain(by_bytes).unzip();
        cycle.settlements = settlements;
        plan.extend(done);
        let alone = self.alone.filter(|key| plan.iter().all(|planned| planned.key != *key));
        cycle.alone = alone
            .and_then(|key| self.find(key))
            .map(|(queue, at)| digest(&self.held[queue][at].raw))
            .unwrap_or_default();
        (cycle, plan, claimed)
    }

    /// Repeats the same words until Redis answers: an equal sequence number changes nothing twice.
    pub(super) async fn say(&mut self, cycle: &Cycle) -> Result<Option<Cycled>, End> {
        let side = self.shared.protocol.consuming_side();
        loop {
            self.beat.tick();
            let trips = self.session.round_trips;
            let answer =
                self.session.cycle(&self.handle, cycle, side, self.shared.settings.completed_max).await;
            self.shared.metrics.redis_round_trips(self.session.round_trips - trips);
            match answer {
                Ok(answer) => {
                    self.shared.metrics.redis_answers(true);
                    self.shared.readiness.dependency("redis", Dependency::Up);
                    return Ok(answer);
                }
                Err(error) => {
                    self.shared.metrics.redis_answers(false);
                    self.shared.readiness.dependency("redis", Dependency::Down);
                    tracing::warn!(worker_id = self.handle.id, error = %error, "Could not settle, trying again");
                    // Whoever cannot take its turn does not keep the others from theirs.
                    self.shared.shares.waits(self.index, false);
                    self.drain_if_asked();
                    if self.is_out_of_time() {
                        return Err(End::GaveUp);
                    }
                    let wait = if error.is_transient() { self.session.backoff() } else { TICK };
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Obeys the control keys; answers whether it may reserve again.
    pub(super) fn control(&mut self, cycled: &Cycled) -> bool {
        let before = self.may_reserve();
        if self.paused != cycled.paused {
            let state = if cycled.paused { "paused" } else { "running" };
            tracing::info!(worker_id = self.handle.id, value = state, "Queue was paused or resumed");
        }
        self.paused = cycled.paused;
        if self.quiet != cycled.quiet {
            let word = if cycled.quiet.is_empty() { "resumed" } else { "quiet" };
            tracing::info!(
                worker_id = self.handle.id,
                value = word,
                "Worker was told to be quiet or to resume"
            );
            self.quiet.clone_from(&cycled.quiet);
        }
        !before && self.may_reserve()
    }

    /// Forgets what was settled; answers the slots that became free.
    pub(super) fn settled(&mut self, plan: &[Planned], cycled: &Cycled) -> Vec<Permit> {
        let mut permits = Vec::with_capacity(plan.len());
        for (planned, status) in plan.iter().zip(&cycled.statuses) {
            let Some(at) = self.held[planned.queue].iter().position(|held| held.key == planned.key) else {
                continue;
            };
            match status {
                Status::Settled => {
                    let mut held = forget(&mut self.held[planned.queue], at);
                    self.report(&held, planned);
                    self.dropped(planned.queue, &held);
                    permits.extend(held.permit.take());
                }
                Status::NotHeld => {
                    let held = self.held[planned.queue].remove(at);
                    let queue = &**self.shared.queue_metrics[planned.queue].name();
                    tracing::warn!(worker_id = self.handle.id, queue, "A finished job was not held any more");
                    self.dropped(planned.queue, &held);
                }
                Status::Refused => {
                    let held = &mut self.held[planned.queue][at];
                    held.refused = Some(Instant::now());
                    // It has run: it needs no slot any more, and other queues, or a suspect that waits for all of them, do.
                    permits.extend(held.permit.take());
                    // Nor is it alone any more.
                    if self.alone == Some(planned.key) {
                        self.alone = None;
                    }
                }
                Status::Changed => {
                    let held = &mut self.held[planned.queue][at];
                    if let Phase::Finished(job, outcome, _) = &held.phase {
                        held.phase = Phase::Outdated(Arc::clone(job), outcome.clone());
                    }
                }
            }
        }
        for refusal in &cycled.refusals {
            let (key, reason) = (refusal.key.as_str(), refusal.reason.as_str());
            let error = StoreError::from(refusal.clone());
            tracing::error!(key, reason, %error, "Redis refused a job, it stays where it is");
        }
        self.tell_stuck();
        let is_drained = !self.quiet.is_empty() && !self.holds_anything();
        self.shared.lane_drained(self.index, is_drained);
        if self.shared.slots.is_awaited() {
            permits.clear();
        }
        permits
    }

    /// So many jobs of a queue are refused that no more are taken from it until they are settled. The bound is one for each
    /// slot of the lane's: they are said again every second, and all of them have to be remembered.
    fn is_stuck(&self, queue: usize) -> bool {
        let refused = self.held[queue].iter().filter(|held| held.refused.is_some()).count();
        refused >= self.shared.share(self.index)
    }

    /// Says when a queue comes to a standstill, and when it goes on.
    fn tell_stuck(&mut self) {
        for queue in 0..self.held.len() {
            let is = self.is_stuck(queue);
            if std::mem::replace(&mut self.stuck[queue], is) == is {
                continue;
            }
            let (worker_id, queue) = (&self.handle.id, &**self.shared.queue_metrics[queue].name());
            if is {
                tracing::error!(
                    worker_id,
                    queue,
                    count = self.shared.share(self.index),
                    "Takes no more jobs of a queue: Redis refuses what becomes of them"
                );
            } else {
                tracing::info!(worker_id, queue, "Takes jobs of the queue again");
                self.hungry = true;
            }
        }
    }

    /// A job was settled: counts it, and says so.
    pub(super) fn report(&self, held: &Held, planned: &Planned) {
        let metrics = &self.shared.queue_metrics[planned.queue];
        if let (Some(presence), Phase::Finished(..)) = (&self.shared.presence, &held.phase) {
            presence.settled(planned.verdict);
        }
        match planned.verdict {
            Verdict::Done | Verdict::Discarded => metrics.jobs_completed(1),
            // Counted as failed when it ended.
            Verdict::GivenUp => {}
            Verdict::Retried => metrics.jobs_retried(1),
            Verdict::Dead(reason) => {
                // A run that failed was counted when it ended; one that was interrupted too often, or never began, was not.
                let counted =
                    matches!(&held.phase, Phase::Finished(_, outcome, _) if failure(outcome).is_some());
                if !counted {
                    metrics.jobs_failed(reason, 1);
                }
                metrics.jobs_dead_lettered(1);
                let fields = held.fields();
                tracing::warn!(
                    job_id = fields.map(|fields| fields.id.as_str()),
                    trace_id = fields.and_then(|fields| given(&fields.trace_id)),
                    span_id = fields.and_then(|fields| given(&fields.span_id)),
                    queue = &**metrics.name(),
                    reason = reason.as_str(),
                    "Gave a job up"
                );
            }
            Verdict::Released => metrics.jobs_released(1),
            Verdict::Suspected => metrics.jobs_interrupted(1),
            Verdict::Dropped => metrics.jobs_dropped(1),
        }
    }

    /// Takes over what a cycle brought; answers what is new.
    pub(super) fn reserved(&mut self, cycled: &Cycled, mut permits: Vec<Permit>, claimed: &[bool]) -> Got {
        let mut got = Got::default();
        for (queue, returned) in cycled.queues.iter().enumerate() {
            let fresh = if returned.whole { self.resync(queue, returned) } else { returned.jobs.clone() };
            let mut admitted = false;
            for raw in fresh {
                got.jobs += 1;
                got.bytes += raw.len();
                match one_of(&mut permits).or_else(|| self.shared.slots.take(1)) {
                    Some(permit) => {
                        admitted = true;
                        got.suspect |= self.admit(queue, raw, permit);
                    }
                    None => self.refuse(queue, raw),
                }
            }
            // Only who claimed the probe may give it up: another lane's may be under way.
            if claimed[queue] && !admitted {
                self.shared.breaker(queue).abandoned();
            }
            if returned.whole {
                // As in Redis: large jobs are settled by their place.
                let mut unordered = std::mem::take(&mut self.held[queue]);
                for raw in &returned.jobs {
                    if let Some(at) = unordered.iter().position(|held| held.raw == *raw) {
                        self.held[queue].push(unordered.remove(at));
                    }
                }
            }
        }
        got
    }

    /// A job without a slot (a lost reply, a ghost of a parked fetch): goes back, uncounted.
    pub(super) fn refuse(&mut self, queue: usize, raw: Bytes) {
        let key = self.next_key;
        self.next_key += 1;
        self.shared.metrics.jobs_in_flight_changed(1);
        let (keys, side) = (&self.session.keys.queues[queue], self.shared.protocol.consuming_side());
        let phase = Phase::Decided(returned(raw.clone(), keys, side));
        let held = Held {
            key,
            raw,
            reserved: Instant::now(),
            phase,
            permit: None,
            admitted: false,
            probe: false,
            refused: None,
            rests_until: None,
            adopting: None,
        };
        self.held[queue].push(held);
    }

    /// The list was not what we believed: keep what is still there, in its order; answers what is new to us.
    pub(super) fn resync(&mut self, queue: usize, returned: &Returned) -> Vec<Bytes> {
        let mut before = std::mem::take(&mut self.held[queue]);
        let mut fresh = Vec::new();
        for raw in &returned.jobs {
            match before.iter().position(|held| held.raw == *raw) {
                Some(at) => self.held[queue].push(before.remove(at)),
                None => fresh.push(raw.clone()),
            }
        }
        let name = &**self.shared.queue_metrics[queue].name();
        tracing::warn!(
            worker_id = self.handle.id,
            queue = name,
            count = before.len(),
            "Held jobs were not as expected"
        );
        for held in before {
            if let Phase::Running(_, task) | Phase::Waiting(_, task) = &held.phase {
                task.abort();
            }
            self.dropped(queue, &held);
        }
        fresh
    }
}
