//! One lane: a worker id with its processing lists, its heartbeat and its share of the slots.
//!
//! While busy, one round trip both settles what finished and reserves what fits; when idle it parks on the queues
//! and wakes with the next push. It never holds more jobs than it has slots for.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::breaker;
use jobqueue::effects::{Decision, Verdict};
use jobqueue::job::{Fields, Job, NotAJob};
use jobqueue::outcome::{Failure, Outcome, Reason};
use jobqueue::protocol::Interruption;
use jobqueue::protocol::files::COMPLETED_ENTRY_MAX;
use jobqueue::store::{
    Cycle, Cycled, LaneHandle, QueueAsk, Returned, Session, Settlement, Status, StoreError, digest,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::failpoint;
use crate::handler::Call;
use crate::health::Dependency;
use crate::shared::{Beat, Shared};
use crate::shutdown::Shutdown;
use crate::slots::Permit;
use crate::traces::outcome_word;

pub mod parked;

use parked::{Arrival, Park, State};

/// An idle lane looks at the control keys this often.
const TICK: Duration = Duration::from_secs(1);
/// After the drain timeout this much is left to tell Redis; then the reaper has to.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What reaches a lane while it waits.
#[derive(Debug)]
pub enum Event {
    /// A job ran.
    Finished {
        /// Which.
        key: u64,
        /// How it ended.
        outcome: Outcome,
        /// How long it took.
        took: Duration,
    },
    /// A suspect has the slots it needs.
    Admitted {
        /// Which.
        key: u64,
        /// Its slots.
        permit: Permit,
    },
    /// A parked fetch answered.
    Parked {
        /// Which.
        park: usize,
        /// What.
        arrival: Arrival,
    },
}

/// How a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything was settled or released.
    Drained,
    /// Its lease was taken away: what it held is somebody else's.
    Lost,
    /// Redis did not answer in time to say goodbye: a reaper will.
    GaveUp,
}

struct Held {
    key: u64,
    raw: Bytes,
    reserved: Instant,
    phase: Phase,
    /// Kept until the job is settled, not only finished: whoever has all slots is alone in the lists too.
    permit: Option<Permit>,
    /// The job that tells whether a half-open breaker closes.
    probe: bool,
    refused: Option<Instant>,
    /// A parked fetch brought it (true: from the suspects), and no cycle has moved it to the held list yet.
    adopting: Option<bool>,
}

enum Phase {
    Waiting(Arc<Job>, JoinHandle<()>),
    Admitted(Arc<Job>),
    Running(Arc<Job>, JoinHandle<()>),
    Finished(Arc<Job>, Outcome, Duration),
    Rejected(NotAJob),
}

struct Planned {
    queue: usize,
    key: u64,
    verdict: Verdict,
}

/// One lane. See the module's documentation.
pub struct Lane {
    shared: Arc<Shared>,
    session: Session,
    handle: LaneHandle,
    index: usize,
    beat: Arc<Beat>,
    seq: u64,
    held: Vec<Vec<Held>>,
    next_key: u64,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
    parks: Vec<Park>,
    looked: bool,
    paused: bool,
    quiet: String,
    /// More may be waiting than the last cycle could take.
    hungry: bool,
    alone: Option<u64>,
    cycled: Instant,
    deadline: Option<Instant>,
}

impl Lane {
    /// Registers a lane, and starts its parked fetches if it is the one of its shard that parks: it then has two
    /// sessions a queue for them, for the queue itself and for its suspects.
    pub async fn open(
        shared: Arc<Shared>,
        mut session: Session,
        index: usize,
        park_sessions: Vec<Session>,
        beat: Arc<Beat>,
    ) -> Result<Self, StoreError> {
        let asked = Instant::now();
        let handle = session.register(&shared.registration).await?;
        failpoint::hit("after-register");
        beat.tick();
        beat.renewed(asked);
        beat.set_oldest(Bytes::new());
        beat.set_lane(Some(handle.clone()));
        let (sender, events) = mpsc::unbounded_channel();
        let side = shared.protocol.consuming_side();
        let mut parked = Vec::new();
        for (index, park_session) in park_sessions.into_iter().enumerate() {
            let (queue, suspects) = (index / 2, index % 2 == 1);
            let (keys, lists) = (&session.keys.queues[queue], &handle.lists[queue]);
            let (from, into) = if suspects {
                (keys.suspects.clone(), lists.parked_suspects.clone())
            } else {
                (keys.queue.clone(), lists.parked.clone())
            };
            parked.push(Park::start(
                index,
                queue,
                suspects,
                (from, into, side),
                park_session,
                sender.clone(),
            ));
        }
        let held = session.keys.queues.iter().map(|_| Vec::new()).collect();
        tracing::info!(worker_id = handle.id, "Opened a lane");
        Ok(Self {
            shared,
            session,
            handle,
            index,
            beat,
            seq: 0,
            held,
            next_key: 0,
            events,
            sender,
            parks: parked,
            looked: false,
            paused: false,
            quiet: String::new(),
            hungry: true,
            alone: None,
            cycled: Instant::now(),
            deadline: None,
        })
    }

    /// Reserves, handles and settles until shutdown, then drains.
    pub async fn run(mut self, mut shutdown: Shutdown) -> (End, Session) {
        let end = loop {
            self.beat.tick();
            while let Ok(event) = self.events.try_recv() {
                self.take(event);
            }
            if shutdown.is_requested() {
                self.drain();
            }
            if self.past_deadline() {
                self.release_running().await;
            }
            if self.is_drained() {
                break self.close().await;
            }
            if self.must_unpark() {
                self.unpark().await;
            }
            if self.must_cycle() {
                if let Err(end) = self.cycle().await {
                    break end;
                }
                continue;
            }
            self.park();
            let wait = self.until_next();
            tokio::select! {
                Some(event) = self.events.recv() => self.take(event),
                () = self.shared.wake.notified(), if !self.hungry => self.hungry = true,
                () = shutdown.requested(), if self.deadline.is_none() => {}
                () = tokio::time::sleep(wait) => {}
            }
        };
        self.beat.set_lane(None);
        self.abandon().await;
        (end, self.session)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Finished { key, outcome, took } => {
                let Some((queue, at)) = self.find(key) else { return };
                if let Phase::Running(job, _) = &self.held[queue][at].phase {
                    self.finished(queue, at, Arc::clone(job), outcome, took);
                }
            }
            Event::Admitted { key, permit } => {
                let Some((queue, at)) = self.find(key) else { return };
                let total = self.shared.slots.total();
                let held = &mut self.held[queue][at];
                let phase =
                    std::mem::replace(&mut held.phase, Phase::Rejected(NotAJob::Malformed(String::new())));
                match phase {
                    Phase::Waiting(job, _) => {
                        let alone = permit.num_permits() == total as usize && job.fields.deaths > 0;
                        held.permit = Some(permit);
                        held.phase = Phase::Admitted(Arc::clone(&job));
                        if alone {
                            // Starts once the record says so: a crash must find it written down.
                            self.alone = Some(key);
                        } else {
                            self.start(queue, at, job);
                        }
                    }
                    other => held.phase = other,
                }
            }
            Event::Parked { park, arrival } => self.arrived(park, arrival),
        }
    }

    fn arrived(&mut self, park: usize, arrival: Arrival) {
        let queue = self.parks[park].queue;
        self.looked = false;
        match arrival {
            Arrival::Answered(None) => self.parks[park].state = State::Idle,
            Arrival::Broken => {
                self.parks[park].state = State::Idle;
                self.parks[park].cut_off = Some(Instant::now());
            }
            Arrival::Answered(Some(raw)) => {
                let welcome = self.may_reserve() && self.serves(queue);
                let permit = if welcome { self.shared.slots.take(1) } else { None };
                match permit {
                    Some(permit) => {
                        self.parks[park].state = State::Adopting;
                        self.admit(queue, raw, permit);
                        if let Some(held) = self.held[queue].last_mut() {
                            held.adopting = Some(self.parks[park].suspects);
                        }
                    }
                    None => self.parks[park].state = State::Releasing,
                }
                // More may have come at the same moment.
                self.hungry = true;
            }
        }
    }

    fn may_reserve(&self) -> bool {
        self.deadline.is_none() && !self.paused && self.quiet.is_empty()
    }

    /// A queue whose breaker is not closed is asked by cycles only, for one job at most.
    fn serves(&self, queue: usize) -> bool {
        self.shared.breaker(queue).state(Instant::now()) == breaker::State::Closed
    }

    /// A job is ours: runs it, or waits until it may.
    fn admit(&mut self, queue: usize, raw: Bytes, permit: Permit) {
        let key = self.next_key;
        self.next_key += 1;
        let reserved = Instant::now();
        let probe = self.shared.breaker(queue).state(reserved) == breaker::State::HalfOpen;
        let mut held = Held {
            key,
            raw: raw.clone(),
            reserved,
            phase: Phase::Rejected(NotAJob::Malformed(String::new())),
            permit: Some(permit),
            probe,
            refused: None,
            adopting: None,
        };
        self.shared.queue_metrics[queue].jobs_consumed(1);
        self.shared.metrics.jobs_in_flight_changed(1);
        match self.shared.protocol.decode(raw) {
            Err((_, why)) => {
                // Says nothing about the handler: another may probe.
                if probe {
                    self.shared.breaker(queue).abandoned();
                }
                held.phase = Phase::Rejected(why);
                self.held[queue].push(held);
            }
            Ok(job) => {
                let job = Arc::new(job);
                let deaths = job.fields.deaths;
                let weight = self.shared.slots.weight(deaths);
                if deaths == 0 {
                    held.phase = Phase::Admitted(Arc::clone(&job));
                    self.held[queue].push(held);
                    self.start(queue, self.held[queue].len() - 1, job);
                } else {
                    // Gives its slot back first: two that each hold one and wait for the rest would wait for ever.
                    held.permit = None;
                    let (slots, sender) = (self.shared.slots.clone(), self.sender.clone());
                    let task = tokio::spawn(async move {
                        if let Some(permit) = slots.acquire(weight).await {
                            let _ = sender.send(Event::Admitted { key, permit });
                        }
                    });
                    held.phase = Phase::Waiting(job, task);
                    self.held[queue].push(held);
                }
            }
        }
    }

    fn start(&mut self, queue: usize, at: usize, job: Arc<Job>) {
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
        let (shared, sender, running) = (Arc::clone(&self.shared), self.sender.clone(), Arc::clone(&job));
        let name = Arc::clone(metrics.name());
        let task = tokio::spawn(async move {
            let consumed = shared.tracer.consume(&running.fields, &name);
            let span = shared.tracer.process(&running.fields, &name, &consumed);
            consumed.end("reserved");
            let call = Call {
                queue: name,
                traceparent: span.traceparent(),
                request_id: Some(running.fields.id.clone()),
                deadline: None,
            };
            let handling = std::panic::AssertUnwindSafe(shared.handler.handle(&running, &call));
            let outcome = futures::FutureExt::catch_unwind(handling)
                .await
                .unwrap_or_else(|_| Outcome::Failed(Failure::new(Reason::Panic, "the handler panicked")));
            failpoint::hit("after-handle");
            span.end(outcome_word(&outcome));
            let _ = sender.send(Event::Finished { key, outcome, took: started.elapsed() });
        });
        self.held[queue][at].phase = Phase::Running(job, task);
    }

    fn finished(&mut self, queue: usize, at: usize, job: Arc<Job>, outcome: Outcome, took: Duration) {
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
            attempt = fields.retries + 1,
            duration_ms = millis(took),
            wait_ms = millis(held.reserved.elapsed().saturating_sub(took)),
            reason = failure.map(Reason::as_str),
            value = outcome_word(&outcome),
            "Job ran"
        );
        held.phase = Phase::Finished(job, outcome, took);
    }

    fn find(&self, key: u64) -> Option<(usize, usize)> {
        self.held
            .iter()
            .enumerate()
            .find_map(|(queue, held)| held.iter().position(|held| held.key == key).map(|at| (queue, at)))
    }

    fn holds_anything(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    fn must_cycle(&self) -> bool {
        let due = self.cycled.elapsed() >= TICK;
        let ready = |held: &Held| held.is_settleable() || matches!(held.phase, Phase::Admitted(_));
        let parks = (self.parks.iter()).any(|park| matches!(park.state, State::Adopting | State::Releasing));
        let look = self.may_park() && !self.looked && !self.hungry;
        due || parks
            || look
            || self.held.iter().flatten().any(ready)
            || (self.hungry && self.may_reserve() && self.room() > 0)
    }

    fn room(&self) -> usize {
        let held: usize = self.held.iter().map(Vec::len).sum();
        self.shared.slots.free().min(self.shared.settings.capacity.saturating_sub(held))
    }

    fn until_next(&self) -> Duration {
        let tick = TICK.saturating_sub(self.cycled.elapsed());
        match self.deadline {
            Some(deadline) => tick.min(deadline.saturating_duration_since(Instant::now())),
            None => tick,
        }
        .max(Duration::from_millis(1))
    }

    /// One round trip: settle what finished, reserve what fits.
    async fn cycle(&mut self) -> Result<(), End> {
        failpoint::hit("before-cycle");
        let permits = if self.may_reserve() { self.shared.slots.take(self.room()) } else { None };
        let free = permits.as_ref().map_or(0, Permit::num_permits);
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
        for (park, word) in self.parks.iter_mut().zip(words) {
            if park.state == word {
                park.cleared();
            }
        }
        self.looked = true;
        self.control(&cycled);
        let mut permits: Vec<Permit> = permits.into_iter().collect();
        permits.extend(self.settled(&plan, &cycled));
        let got = self.reserved(&cycled, permits, &claimed);
        self.hungry = room > 0 && got >= room && self.may_reserve();
        if self.hungry && self.shared.slots.free() > 0 {
            self.shared.wake.notify_waiters();
        }
        // The record says now that it runs alone.
        if !cycle.alone.is_empty()
            && let Some((queue, at)) = self.alone.and_then(|key| self.find(key))
            && let Phase::Admitted(job) = &self.held[queue][at].phase
        {
            let job = Arc::clone(job);
            self.start(queue, at, job);
        }
        let oldest = self.held.iter().flatten().min_by_key(|held| held.key);
        self.beat.set_oldest(oldest.map(oldest_job).unwrap_or_default());
        Ok(())
    }

    fn held_count(&self) -> usize {
        self.held.iter().map(Vec::len).sum()
    }

    /// What to say: decisions are made here, and carried out by one script.
    fn plan(&mut self, free: usize) -> (Cycle, Vec<Planned>, Vec<bool>) {
        let now = Instant::now();
        let now_ms = self.session.now_ms();
        // A slot whose job is settled by this call is free for the next in the same call.
        let room = if self.may_reserve() && !self.shared.slots.is_awaited() {
            free + self.held.iter().flatten().filter(|held| held.is_settleable()).count()
        } else {
            free
        };
        let mut cycle = Cycle { seq: self.seq + 1, room, ..Cycle::default() };
        let (mut by_position, mut by_bytes, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let mut claimed = Vec::new();
        let drained = !self.quiet.is_empty() && self.parks.iter().all(|park| park.state != State::Waiting);
        if drained {
            cycle.quiet.clone_from(&self.quiet);
        }
        for queue in 0..self.held.len() {
            // In the order in which the script adopts them: the queue's first, then its suspects'.
            self.held[queue].sort_by_key(|held| held.adopting);
            let keys = self.session.keys.queues[queue].clone();
            let mut ask = QueueAsk { expected: self.held[queue].len(), ..QueueAsk::default() };
            let mut breaker = self.shared.breaker(queue);
            let before = breaker.state(now);
            ask.limit = breaker.allows(room, now);
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
                if !held.is_settleable() {
                    continue;
                }
                held.refused = None;
                let unique = format!("{}-{}-{}", self.handle.id, cycle.seq, held.key);
                let decision = match &held.phase {
                    Phase::Finished(job, outcome, took) => {
                        cycle.busy_ms += u64::try_from(took.as_millis()).unwrap_or(0);
                        if let Outcome::HandlerDied(_) = outcome {
                            let how = Interruption::of_handler(self.alone == Some(held.key));
                            self.shared.protocol.interrupted(&held.raw, &keys, how, now_ms)
                        } else {
                            self.shared.protocol.settle(job, outcome, &keys, now_ms, &unique)
                        }
                    }
                    Phase::Rejected(why) => self.shared.protocol.reject(&held.raw, why, &keys, now_ms),
                    Phase::Waiting(..) | Phase::Admitted(_) | Phase::Running(..) => continue,
                };
                let Decision { verdict, effects } = decision;
                if matches!(verdict, Verdict::Retried | Verdict::Dead(_)) {
                    cycle.failed += 1;
                }
                let planned = Planned { queue, key: held.key, verdict };
                let large = held.raw.len() > COMPLETED_ENTRY_MAX;
                if verdict == Verdict::Done && !large {
                    ask.done.push(held.raw.clone());
                    done.push(planned);
                    last_done = position + 1;
                } else {
                    others += 1;
                    let position = large.then_some(position);
                    let settlement = Settlement { queue, raw: held.raw.clone(), position, effects };
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
    async fn say(&mut self, cycle: &Cycle) -> Result<Option<Cycled>, End> {
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
                    if self.deadline.is_some_and(|deadline| deadline + LAST_WORDS < Instant::now()) {
                        return Err(End::GaveUp);
                    }
                    let wait = if error.is_transient() { self.session.backoff() } else { TICK };
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    fn control(&mut self, cycled: &Cycled) {
        if self.paused != cycled.paused {
            let state = if cycled.paused { "paused" } else { "running" };
            tracing::info!(worker_id = self.handle.id, value = state, "Queue was paused or resumed");
            self.hungry = !cycled.paused;
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
            self.hungry = self.quiet.is_empty();
        }
    }

    /// Forgets what was settled; answers the slots that became free.
    fn settled(&mut self, plan: &[Planned], cycled: &Cycled) -> Vec<Permit> {
        let mut permits = Vec::with_capacity(plan.len());
        for (planned, status) in plan.iter().zip(&cycled.statuses) {
            let Some(at) = self.held[planned.queue].iter().position(|held| held.key == planned.key) else {
                continue;
            };
            match status {
                Status::Settled => {
                    let mut held = self.held[planned.queue].remove(at);
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
                Status::Refused => self.held[planned.queue][at].refused = Some(Instant::now()),
            }
        }
        for refusal in &cycled.refusals {
            let (key, reason) = (refusal.key.as_str(), refusal.reason.as_str());
            tracing::error!(key, reason, "Redis refused a job, it stays where it is");
        }
        let quiet_and_empty = !self.quiet.is_empty() && !self.holds_anything();
        let was = self.shared.drained[self.index].swap(quiet_and_empty, Ordering::SeqCst);
        if quiet_and_empty && self.shared.drained.iter().all(|lane| lane.load(Ordering::SeqCst)) {
            self.shared.readiness.drained();
        } else if was && !quiet_and_empty {
            self.shared.readiness.resumed();
        }
        if self.shared.slots.is_awaited() {
            permits.clear();
        }
        permits
    }

    fn dropped(&mut self, queue: usize, held: &Held) {
        self.shared.metrics.jobs_in_flight_changed(-1);
        if self.alone == Some(held.key) {
            self.alone = None;
        }
        if held.probe && !matches!(held.phase, Phase::Finished(..)) {
            self.shared.breaker(queue).abandoned();
        }
    }

    /// A job was settled: counts it, and says so.
    fn report(&self, held: &Held, planned: &Planned) {
        let metrics = &self.shared.queue_metrics[planned.queue];
        match planned.verdict {
            Verdict::Done | Verdict::Discarded => metrics.jobs_completed(1),
            Verdict::Retried => metrics.jobs_retried(1),
            Verdict::Dead(reason) => {
                if let Phase::Rejected(_) = held.phase {
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
        }
    }

    /// Takes over what a cycle brought; answers how many jobs are new.
    fn reserved(&mut self, cycled: &Cycled, mut permits: Vec<Permit>, claimed: &[bool]) -> usize {
        let mut got = 0;
        for (queue, returned) in cycled.queues.iter().enumerate() {
            let fresh = if returned.whole { self.resync(queue, returned) } else { returned.jobs.clone() };
            if claimed[queue] && fresh.is_empty() {
                self.shared.breaker(queue).abandoned();
            }
            for raw in fresh {
                got += 1;
                match one_of(&mut permits).or_else(|| self.shared.slots.take(1)) {
                    Some(permit) => self.admit(queue, raw, permit),
                    None => self.refuse(queue, raw),
                }
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
    fn refuse(&mut self, queue: usize, raw: Bytes) {
        let key = self.next_key;
        self.next_key += 1;
        self.shared.metrics.jobs_in_flight_changed(1);
        let job = Arc::new(Job { raw: raw.clone(), fields: Fields::default() });
        self.shared.breaker(queue).abandoned();
        let phase = Phase::Finished(job, Outcome::Released, Duration::ZERO);
        let held = Held {
            key,
            raw,
            reserved: Instant::now(),
            phase,
            permit: None,
            probe: false,
            refused: None,
            adopting: None,
        };
        self.held[queue].push(held);
    }

    /// The list was not what we believed: keep what is still there, in its order; answers what is new to us.
    fn resync(&mut self, queue: usize, returned: &Returned) -> Vec<Bytes> {
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

    fn may_park(&self) -> bool {
        !self.parks.is_empty() && self.may_reserve() && self.shared.slots.free() > 0
    }

    /// Idle: wait in Redis for the next job of every queue.
    fn park(&mut self) {
        let wait = self.shared.settings.park_timeout;
        let lease = self.beat.lease_left(self.shared.settings.ttl);
        if !self.may_park() || self.hungry || !self.looked || lease <= wait {
            return;
        }
        for at in 0..self.parks.len() {
            if self.serves(self.parks[at].queue) {
                self.parks[at].go(wait);
            }
        }
    }

    /// The connection of a fetch that waits for a job which nobody would run.
    fn unwelcome(&self, park: &Park) -> Option<i64> {
        let client = park.waiting_client()?;
        let welcome = self.may_reserve() && self.shared.slots.free() > 0 && self.serves(park.queue);
        (!welcome).then_some(client)
    }

    fn must_unpark(&self) -> bool {
        self.parks.iter().any(|park| self.unwelcome(park).is_some())
    }

    async fn unpark(&mut self) {
        let clients: Vec<i64> = self.parks.iter().filter_map(|park| self.unwelcome(park)).collect();
        for client in clients {
            if let Err(error) = self.session.unblock(client).await {
                // It ends by its own timeout; what it still brings is released.
                tracing::debug!(error = %error, "Could not unblock a parked fetch");
                break;
            }
        }
        // The answers are on their way; do not ask again before they are here.
        let answered = async {
            while self.must_unpark() {
                match self.events.recv().await {
                    Some(event) => self.take(event),
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(100), answered).await;
    }

    fn drain(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        self.deadline = Some(Instant::now() + self.shared.settings.drain_timeout);
        for held in self.held.iter_mut().flatten() {
            match &held.phase {
                Phase::Waiting(job, task) => {
                    task.abort();
                    held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                }
                Phase::Admitted(job) => {
                    held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                }
                Phase::Running(..) | Phase::Finished(..) | Phase::Rejected(_) => {}
            }
        }
    }

    fn past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// What still runs is stopped first, then given back: it must not run in two places.
    async fn release_running(&mut self) {
        let mut stopped = 0;
        for held in self.held.iter_mut().flatten() {
            if let Phase::Running(job, task) = &mut held.phase {
                task.abort();
                let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
                held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                stopped += 1;
            }
        }
        if stopped > 0 {
            failpoint::hit("before-release");
            tracing::info!(
                worker_id = self.handle.id,
                count = stopped,
                "Stopped running jobs and gave them back"
            );
        }
    }

    fn is_drained(&self) -> bool {
        self.deadline.is_some()
            && !self.holds_anything()
            && self.parks.iter().all(|park| park.state == State::Idle)
    }

    async fn close(&mut self) -> End {
        failpoint::hit("before-close");
        let cut_off = self.parks.iter().any(Park::may_still_deliver);
        let patience = Instant::now() + LAST_WORDS;
        loop {
            match self.session.close(&self.handle, cut_off).await {
                Ok(_) => return End::Drained,
                Err(error) if !error.is_transient() || Instant::now() > patience => return End::GaveUp,
                Err(_) => tokio::time::sleep(self.session.backoff()).await,
            }
        }
    }

    /// Stops whatever still runs: it is somebody else's now.
    async fn abandon(&mut self) {
        for queue in 0..self.held.len() {
            for mut held in std::mem::take(&mut self.held[queue]) {
                if let Phase::Running(_, task) | Phase::Waiting(_, task) = &mut held.phase {
                    task.abort();
                    let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
                }
                self.dropped(queue, &held);
            }
        }
    }
}

impl Held {
    /// The next cycle can say what becomes of it; what was refused is said again after a while.
    fn is_settleable(&self) -> bool {
        matches!(self.phase, Phase::Finished(..) | Phase::Rejected(_))
            && self.refused.is_none_or(|at| at.elapsed() >= TICK)
    }

    /// What we read of it; nothing when it is not a job.
    fn fields(&self) -> Option<&Fields> {
        match &self.phase {
            Phase::Waiting(job, _)
            | Phase::Admitted(job)
            | Phase::Running(job, _)
            | Phase::Finished(job, ..) => Some(&job.fields),
            Phase::Rejected(_) => None,
        }
    }
}

/// One slot of those at hand.
fn one_of(permits: &mut Vec<Permit>) -> Option<Permit> {
    loop {
        let last = permits.last_mut()?;
        match last.num_permits() {
            0 => drop(permits.pop()),
            1 => return permits.pop(),
            _ => return last.split(1),
        }
    }
}

/// A heartbeat's value: the oldest job in flight, unless it is large; then only who it is.
fn oldest_job(held: &Held) -> Bytes {
    if held.raw.len() <= COMPLETED_ENTRY_MAX {
        return held.raw.clone();
    }
    let id = held.fields().map_or("", |fields| fields.id.as_str());
    Bytes::from(serde_json::json!({ "id": id }).to_string())
}

/// Text that is there; an empty field of a job says nothing.
fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
