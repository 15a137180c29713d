//! Gives the jobs of dead lanes back. Runs in the operator for every queue, or in the workers when there is
//! none; harmless when several run: fencing is one atomic step, and each job moves only from where it was read.
//!
//! A lane is fenced only after two looks at an absent heartbeat, 2 s apart, by a reaper whose own connection has
//! stood for a whole TTL: after an outage every live lane has had the time to renew.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::effects::Verdict;
use crate::keys::QueueKeys;
use crate::protocol::{Interruption, Protocol};
use crate::store::{
    Fenced, LaneRecord, PAGE_COUNT, PageKind, RecordedLists, Rest, Session, Status, StoreError, digest,
};

/// Time between the two looks.
const SECOND_LOOK: Duration = Duration::from_secs(2);
/// Redis' clock and ours may drift apart by this much between two passes.
const CLOCK_STEP_MS: u64 = 1_000;
/// Lanes looked at in one pass.
const LANES: usize = 1000;
/// What a process that was started again in place says of its predecessor's end: it knows no more of it.
pub const RESTARTED: &str = "restarted";

/// How a reaper works.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The heartbeats' TTL.
    pub ttl: Duration,
    /// The parked fetches' timeout.
    pub park_timeout: Duration,
    /// Between two pages, ± 50 %.
    pub page_delay: Duration,
    /// `COUNT` of the audit's scan.
    pub scan_count: usize,
    /// Pages of that scan in one pass, as far as its time allows.
    pub scan_pages: usize,
    /// A pass ends after this time, and the next goes on where it stopped. Half of it is for fencing, so that many
    /// dead lanes cannot keep the jobs of those that are fenced already.
    pub pass_budget: Duration,
    /// So long do lanes that were fenced by their successor wait for somebody who saw their process die to say why.
    /// None where there is nobody.
    pub cause_wait: Duration,
}

/// What one pass did: (queue's name, where the job went), one entry a job.
#[derive(Debug, Clone, Default)]
pub struct Reaped {
    /// Lanes fenced.
    pub fenced: usize,
    /// Jobs moved.
    pub moved: Vec<(String, Verdict)>,
    /// The time was up before all was done: come again at once.
    pub more: bool,
}

/// The reaper of one shard.
pub struct Reaper {
    session: Session,
    protocol: Arc<dyn Protocol>,
    settings: Settings,
    memory: Memory,
}

/// What a reaper remembers from one pass to the next.
struct Memory {
    looks: HashMap<String, Instant>,
    orphans: HashMap<String, Instant>,
    trouble: Instant,
    seen: Option<(u64, Instant)>,
    cursor: String,
    unexplained: HashMap<String, Instant>,
    /// What passes have done that ended with an error: told by the next that does not.
    untold: Reaped,
}

/// One pass, and what it works with.
struct Pass<'a> {
    session: &'a mut Session,
    protocol: &'a Arc<dyn Protocol>,
    settings: Settings,
    memory: &'a mut Memory,
}

/// Whether a death was brought about from outside the process: its jobs are then above suspicion.
pub fn is_outside(cause: &str) -> bool {
    matches!(cause, "shutdown" | "deleted" | "evicted" | "preempted" | "node-lost")
}

impl Reaper {
    /// A reaper that has not looked yet.
    pub fn new(session: Session, protocol: Arc<dyn Protocol>, settings: Settings) -> Self {
        Self { session, protocol, settings, memory: Memory::new() }
    }

    /// Whether somebody central does this work.
    pub async fn is_relieved(&mut self) -> Result<bool, StoreError> {
        let central = self.session.keys.central();
        let answer = self.session.exists(&central).await;
        let relieved = self.memory.heed(answer)?;
        if relieved {
            // Whoever comes back looks twice again: what was seen before is old.
            self.memory.looks.clear();
        }
        Ok(relieved)
    }

    /// A pass on a connection that several reapers share, by the rules and settings of this moment: whoever reaps for others
    /// outlives their changes.
    pub async fn pass_on(
        &mut self,
        session: &mut Session,
        protocol: &Arc<dyn Protocol>,
        settings: Settings,
    ) -> Result<Reaped, StoreError> {
        Pass { session, protocol, settings, memory: &mut self.memory }.run().await
    }

    /// Fences what is dead, then empties what is fenced. What a pass did before it failed is told by the next.
    pub async fn pass(&mut self) -> Result<Reaped, StoreError> {
        self.own().run().await
    }

    /// Moves every job of a fenced lane; forgets one that was empty once nothing can arrive any more.
    pub async fn empty(&mut self, lane: &str, reaped: &mut Reaped) -> Result<(), StoreError> {
        self.own().empty(lane, reaped).await
    }

    fn own(&mut self) -> Pass<'_> {
        let Self { session, protocol, settings, memory } = self;
        Pass { session, protocol, settings: *settings, memory }
    }
}

impl Memory {
    fn new() -> Self {
        Self {
            looks: HashMap::new(),
            orphans: HashMap::new(),
            trouble: Instant::now(),
            seen: None,
            cursor: "0".into(),
            unexplained: HashMap::new(),
            untold: Reaped::default(),
        }
    }

    /// Whatever Redis suffers from, the lanes suffer from it too: their time starts anew.
    fn heed<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if answer.as_ref().is_err_and(StoreError::is_transient) {
            self.start_anew(Instant::now());
        }
        answer
    }

    fn start_anew(&mut self, now: Instant) {
        self.trouble = now;
        self.looks.clear();
        // What was found stays found: a turn of the scan may take hours.
        for first in self.orphans.values_mut() {
            *first = now;
        }
    }
}

impl Pass<'_> {
    async fn run(&mut self) -> Result<Reaped, StoreError> {
        let mut reaped = Reaped { more: false, ..std::mem::take(&mut self.memory.untold) };
        let outcome = self.work(&mut reaped).await;
        match self.memory.heed(outcome) {
            Ok(()) => Ok(reaped),
            Err(error) => {
                self.memory.untold = reaped;
                Err(error)
            }
        }
    }

    async fn work(&mut self, reaped: &mut Reaped) -> Result<(), StoreError> {
        let started = Instant::now();
        self.session.time().await?;
        let now_ms = self.session.now_ms();
        if let Some((ms, at)) = self.memory.seen.replace((now_ms, started)) {
            // Redis' clock was set, or its machine slept: heartbeats lapsed that nobody could have renewed.
            let passed = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            if now_ms.abs_diff(ms).abs_diff(passed) > CLOCK_STEP_MS || now_ms < ms {
                tracing::warn!(reason = "clock", "Redis' clock was set, giving every lane a whole TTL");
                self.memory.start_anew(started);
            }
        }
        let done = reaped.fenced + reaped.moved.len();
        let (half, end) = (started + self.settings.pass_budget / 2, started + self.settings.pass_budget);
        let expired = self.session.expired(now_ms, LANES).await?;
        self.memory.looks.retain(|lane, _| expired.contains(lane));
        for page in expired.chunks(PAGE_COUNT) {
            if !self.fence_page(page, started, half, reaped).await? {
                reaped.more = reaped.fenced + reaped.moved.len() > done;
                break;
            }
        }
        let reaping = self.session.reaping(LANES).await?;
        self.memory.unexplained.retain(|lane, _| reaping.contains(lane));
        for page in reaping.chunks(PAGE_COUNT) {
            if !self.empty_page(page, end, reaped).await? {
                // What did not help now will not help at once: others wait for this task too.
                reaped.more = reaped.fenced + reaped.moved.len() > done;
                return Ok(());
            }
        }
        match self.audit(end).await {
            // Who may not scan still reaps.
            Err(error) if !error.is_transient() => {
                tracing::error!(error = %error, "Could not look for lists that no lane claims");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Looks at some lanes whose lease has expired, and fences those that were seen dead before; answers whether it came to
    /// the end in time.
    async fn fence_page(
        &mut self,
        lanes: &[String],
        started: Instant,
        end: Instant,
        reaped: &mut Reaped,
    ) -> Result<bool, StoreError> {
        for (lane, alive) in lanes.iter().zip(self.session.heartbeats(lanes).await?) {
            if alive {
                self.memory.looks.remove(lane);
                continue;
            }
            let first = *self.memory.looks.entry(lane.clone()).or_insert(started);
            if started.duration_since(first) < SECOND_LOOK || !self.may_fence() {
                continue;
            }
            match self.session.fence(lane, false, "heartbeat").await {
                Ok(Fenced::Fenced) => {
                    let reason = "heartbeat";
                    tracing::warn!(worker_id = lane, reason, "Fenced a lane whose heartbeat was gone");
                    self.memory.looks.remove(lane);
                    reaped.fenced += 1;
                }
                Ok(_) => {}
                // A record of one lane that cannot be used must not protect the others.
                Err(error) if !error.is_transient() => {
                    tracing::error!(worker_id = lane, error = %error, "Could not fence a dead lane, its jobs stay in its lists");
                }
                Err(error) => return Err(error),
            }
            if Instant::now() > end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn may_fence(&self) -> bool {
        let since =
            self.session.connected_since().map_or_else(Instant::now, |at| at.max(self.memory.trouble));
        since.elapsed() >= self.settings.ttl
    }

    /// Empties those of some fenced lanes that hold jobs; answers whether it came to the end in time. Most hold none, and wait
    /// until they may be forgotten: all of a page take one round trip, however often they are looked at.
    async fn empty_page(
        &mut self,
        lanes: &[String],
        end: Instant,
        reaped: &mut Reaped,
    ) -> Result<bool, StoreError> {
        let found = self.session.forget(lanes, self.quiet_ms()).await?;
        let mut looked_at = Vec::new();
        for (lane, rest) in lanes.iter().zip(found) {
            let outcome = match rest {
                Ok(Rest::Forgotten | Rest::Empty) => continue,
                Ok(Rest::Holds(record, lists)) => {
                    if record.fenced == RESTARTED && !self.has_waited(lane) {
                        continue;
                    }
                    self.empty_lists(lane, &record, &lists, Some(end), reaped).await
                }
                Err(error) => Err(error),
            };
            match outcome {
                // A key of one dead lane that cannot be used must not keep the jobs of the others.
                Err(error) if !error.is_transient() => {
                    tracing::error!(worker_id = lane, error = %error, "Could not empty a dead lane, its jobs stay in its lists");
                }
                outcome => outcome?,
            }
            looked_at.push(lane.as_str());
            if Instant::now() > end {
                self.session.put_back(&looked_at).await?;
                return Ok(false);
            }
        }
        self.session.put_back(&looked_at).await?;
        Ok(true)
    }

    async fn empty(&mut self, lane: &str, reaped: &mut Reaped) -> Result<(), StoreError> {
        for rest in self.session.forget(&[lane.to_owned()], self.quiet_ms()).await? {
            if let Rest::Holds(record, lists) = rest?
                && (record.fenced != RESTARTED || self.has_waited(lane))
            {
                self.empty_lists(lane, &record, &lists, None, reaped).await?;
            }
        }
        Ok(())
    }

    /// So long has a lane to be empty before it is forgotten.
    fn quiet_ms(&self) -> u64 {
        u64::try_from(self.settings.park_timeout.as_millis()).unwrap_or(u64::MAX).saturating_mul(2)
    }

    /// Moves the jobs of those lists of a lane that are not known to be empty.
    async fn empty_lists(
        &mut self,
        lane: &str,
        record: &LaneRecord,
        full: &[String],
        end: Option<Instant>,
        reaped: &mut Reaped,
    ) -> Result<(), StoreError> {
        let mut failed = None;
        for queue in &record.lists {
            // What was parked came last, and goes back first.
            for list in queue.lists.iter().rev().filter(|list| full.contains(list)) {
                match self.empty_list(lane, record, (queue, list), end, reaped).await {
                    Err(error) if !error.is_transient() => failed = Some(error),
                    Err(error) => return Err(error),
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether whoever may know why this lane's process died has had the time to say so.
    fn has_waited(&mut self, lane: &str) -> bool {
        let since = *self.memory.unexplained.entry(lane.to_owned()).or_insert_with(Instant::now);
        since.elapsed() >= self.settings.cause_wait
    }

    /// Moves the jobs of one list, as far as the time allows: whether it came to the end.
    async fn empty_list(
        &mut self,
        lane: &str,
        record: &LaneRecord,
        (queue, list): (&RecordedLists, &str),
        end: Option<Instant>,
        reaped: &mut Reaped,
    ) -> Result<bool, StoreError> {
        loop {
            // The newest first: each goes to the consuming end, so the oldest ends up as the next one out.
            let page = self.session.page(list, PageKind::Tail, PAGE_COUNT).await?;
            if page.entries.is_empty() {
                return Ok(true);
            }
            let (cause, outside) = (record.fenced.as_str(), is_outside(&record.fenced));
            let mut entries = page.entries;
            let protocol = Arc::clone(self.protocol);
            let data = match protocol.records() {
                None => None,
                Some(records) => Some(self.session.named(records, &entries).await?),
            };
            // The page is as long as what could be read of what it names.
            if let Some(data) = &data {
                entries.truncate(data.len());
            }
            let mut data = data.into_iter().flatten();
            let now_ms = self.session.now_ms();
            let decisions: Vec<_> = entries
                .into_iter()
                .map(|raw| {
                    let queue = self.queue_of(queue, &raw);
                    // Whoever ran alone had every slot: what else the lane held had not been started.
                    let alone = !record.alone.is_empty() && record.alone == digest(&raw);
                    let how = Interruption { cause, outside, alone };
                    let decision = match (protocol.records(), data.next()) {
                        (Some(records), Some(data)) => match records.read(&raw, data) {
                            Ok(job) => records.interrupted(&job, lane, &queue, how, now_ms),
                            Err(why) => protocol.reject(&raw, &why, &queue, now_ms),
                        },
                        _ => protocol.interrupted(&raw, &queue, how, now_ms),
                    };
                    (queue.name, raw, decision)
                })
                .collect();
            let asked: Vec<_> =
                decisions.iter().map(|(_, raw, decision)| (raw.clone(), decision.effects.clone())).collect();
            // The lane has its lease after all (cannot be: ids are never used twice): leave it alone.
            let Some(statuses) = self.session.reap(lane, list, &asked).await? else { return Ok(true) };
            let before = reaped.moved.len();
            for ((name, _, decision), status) in decisions.into_iter().zip(statuses) {
                if status == Status::Settled {
                    reaped.moved.push((name, decision.verdict));
                }
            }
            let moved = reaped.moved.len() - before;
            if moved == 0 || page.length <= moved as u64 {
                return Ok(true);
            }
            if end.is_some_and(|end| Instant::now() > end) {
                return Ok(false);
            }
            let delay = self.settings.page_delay.mul_f64(fastrand::f64() + 0.5);
            tokio::time::sleep(delay).await;
        }
    }

    /// The queue a job goes back to: the one its list belongs to; for an orphaned list what the job itself says.
    fn queue_of(&self, recorded: &RecordedLists, raw: &Bytes) -> QueueKeys {
        let ours = &self.session.keys.queues;
        let job = if recorded.queue.is_empty() { self.protocol.decode(raw.clone()).ok() } else { None };
        let fields = job.map(|job| job.fields).unwrap_or_default();
        let known = ours.iter().find(|queue| {
            if recorded.queue.is_empty() {
                queue.queue == fields.origin_queue
            } else {
                queue.queue == recorded.queue
            }
        });
        let named = ours.iter().find(|queue| queue.name == fields.priority || queue.name == recorded.name);
        if let Some(queue) = known {
            return queue.clone();
        }
        // A queue that is not configured any more keeps its jobs under its own key.
        let own = |template: QueueKeys| QueueKeys {
            name: recorded.name.clone(),
            queue: recorded.queue.clone(),
            suspects: format!("{}:suspects", recorded.queue),
            ..template
        };
        match named.or(ours.last()) {
            Some(queue) if recorded.queue.is_empty() => queue.clone(),
            Some(queue) => own(queue.clone()),
            None => own(QueueKeys {
                name: String::new(),
                queue: String::new(),
                suspects: String::new(),
                delayed: String::new(),
                completed: self.session.keys.completed(),
                dead_letters: self.session.keys.dead_letters(),
                counters: self.session.keys.counters(),
                jobs: self.session.keys.jobs(),
            }),
        }
    }

    /// A part of a slow scan for processing lists that no record names.
    async fn audit(&mut self, end: Instant) -> Result<(), StoreError> {
        let found: Vec<String> = self.memory.orphans.keys().cloned().collect();
        for page in found.chunks(PAGE_COUNT) {
            self.judge_each(page).await?;
        }
        let glob = self.session.keys.processing_glob();
        for page in 0..self.settings.scan_pages {
            if page > 0 {
                let delay = self.settings.page_delay.mul_f64(fastrand::f64() + 0.5);
                if Instant::now() + delay > end {
                    return Ok(());
                }
                tokio::time::sleep(delay).await;
            }
            let (cursor, lists) =
                self.session.scan(&self.memory.cursor, &glob, self.settings.scan_count).await?;
            self.memory.cursor = cursor;
            self.judge_each(&lists).await?;
            if self.memory.cursor == "0" {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A record that cannot be used is told, and keeps nobody from the next page.
    async fn judge_each(&mut self, lists: &[String]) -> Result<(), StoreError> {
        match self.judge(lists).await {
            Err(error) if !error.is_transient() => {
                tracing::error!(error = %error, "Could not look for lists that no lane claims");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Takes charge of those of these lists that nobody has claimed for a while.
    async fn judge(&mut self, lists: &[String]) -> Result<(), StoreError> {
        let named = lists.iter().filter_map(|list| {
            let (lane, queue) = self.session.keys.holder_of(list)?;
            Some((list.clone(), lane.to_owned(), queue.to_owned()))
        });
        let named: Vec<_> = named.collect();
        let lanes: Vec<String> = named.iter().map(|(_, lane, _)| lane.clone()).collect();
        for ((list, lane, queue), (record, alive)) in
            named.into_iter().zip(self.session.look_at(&lanes).await?)
        {
            // Somebody deleted the registry before this lane died, or that of the fenced ones: nobody would look at it there.
            match &record {
                Some(record) if !record.leased => self.session.enlist_fenced(&lane).await?,
                Some(_) if !alive => self.session.enlist(&lane).await?,
                _ => {}
            }
            if record.is_some() || alive {
                self.memory.orphans.remove(&list);
                continue;
            }
            let first = *self.memory.orphans.entry(list.clone()).or_insert_with(Instant::now);
            if first.elapsed() < SECOND_LOOK || !self.may_fence() {
                continue;
            }
            let ours = self.session.keys.queues.iter().find(|known| known.name == queue);
            let recorded = RecordedLists {
                queue: ours.map(|queue| queue.queue.clone()).unwrap_or_default(),
                name: queue,
                lists: vec![list.clone()],
            };
            if self.session.orphan(&lane, &[recorded]).await? {
                let reason = "orphan";
                tracing::warn!(worker_id = lane, reason, "Took charge of a list that no lane claims");
            }
            self.memory.orphans.remove(&list);
        }
        Ok(())
    }
}
