//! Jobs outside of lanes: enqueue, promote and reap (both `move`), turn the dead letters, look.
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::control::{LANES, PAGES};
use super::ownership::claim;
use super::{
    Call, ENQUEUE, KEEP, LIMIT, MOVE, PAGE, PAGE_BYTES, PAGE_COUNT, Refusal, SNAPSHOT, Session, Status,
    StoreError, TURN, UNSEE, WIDEN, bytes, list, number, text, unexpected,
};
use crate::effects::{Effect, Side};
use crate::job;
use crate::protocol::async_jobs::Status as JobStatus;

/// An enqueue call that was not answered may be repeated for this long, through any outage, without adding
/// its jobs again. Answered calls leave no mark: see `enqueue.lua`.
const REPEATABLE: Duration = Duration::from_secs(24 * 3600);

/// So much of the oldest job is shown: all of it, as a rule. Enough to find its time of creation in.
const OLDEST_BYTES: usize = 64 * 1024;

/// A job to be enqueued.
#[derive(Debug, Clone)]
pub struct Enqueue {
    /// The queue's key.
    pub queue: String,
    /// The job.
    pub raw: Bytes,
    /// What was seen of it, and in which state: enqueued only if that differs from what is recorded.
    pub seen: Option<(String, String)>,
}

/// What a rate limit gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// How many of the wanted may go now.
    pub granted: u64,
    /// When the window resets.
    pub resets_in: Duration,
}

/// Which part of a key a page reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// A list from its head.
    Head,
    /// A list from its tail.
    Tail,
    /// A sorted set from its highest score.
    Newest,
    /// The due members of a sorted set whose scores are milliseconds.
    Due,
    /// The due members of a sorted set whose scores are seconds, with a fraction.
    DueSeconds,
}

/// Some entries of a key.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// All that the key holds.
    pub length: u64,
    /// The first of them.
    pub entries: Vec<Bytes>,
}

/// What becomes of one entry of a list that is turned.
#[derive(Debug, Clone)]
pub enum Turn {
    /// Back to the head, as it is.
    Keep,
    /// Away.
    Drop,
    /// Where these put it.
    Place(Vec<Effect>),
}

impl Turn {
    /// To another list.
    pub fn push(key: impl Into<String>, side: Side, bytes: Bytes) -> Self {
        Self::Place(vec![Effect::Push { key: key.into(), side, bytes }])
    }
}

/// What one look at the queues shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Redis' clock.
    pub now_ms: u64,
    /// reserved, done, failed, `busy_ms`, trimmed.
    pub counters: Vec<(String, u64)>,
    /// Dead letters.
    pub dead_letters: u64,
    /// Completed jobs kept.
    pub completed: u64,
    /// Lanes with a lease, whether their heartbeat stands or not.
    pub lanes: u64,
    /// Fenced lanes that are not forgotten yet.
    pub reaping: u64,
    /// Jobs held by lanes, the fenced ones too: those that run, and those that are parked or on their way back.
    /// Of the same instant as `waiting`, so a job that is being reserved stands in exactly one of them.
    pub in_flight: u64,
    /// Nobody reserves.
    pub paused: bool,
    /// One a queue.
    pub queues: Vec<QueueSnapshot>,
    /// Keys beside the queues' that cannot be read: what they hold counts as nothing.
    pub unfit: Vec<Refusal>,
    /// Each registered lane.
    pub open_lanes: Vec<LaneSnapshot>,
    /// Who has claimed the registry, or empty.
    pub owner: String,
}

impl Snapshot {
    /// A counter by its name; 0 when nothing was counted yet.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
    }
}

/// What one look at one lane shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Its id.
    pub lane: String,
    /// The uid of its pod, or empty.
    pub pod_uid: String,
    /// When its process started, by its node's clock.
    pub started_ms: u64,
    /// The `JobQueue` it belongs to, or empty.
    pub jobqueue_uid: String,
    /// Jobs it holds, parked ones too.
    pub held: u64,
    /// The `quiet` word it has obeyed, or empty.
    pub quiet: String,
    /// The breakers of its process, `high=open low=closed`.
    pub breakers: String,
}

/// What one look at one queue shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// In the queue.
    pub waiting: u64,
    /// In its suspects.
    pub suspects: u64,
    /// In its delayed set.
    pub delayed: u64,
    /// Of those, due.
    pub due: u64,
    /// The next to be reserved; its first 64 KiB.
    pub oldest: Bytes,
    /// Keys of it that cannot be read: what they hold counts as nothing.
    pub unfit: Vec<Refusal>,
    /// Nobody may fetch from it, by a word of another program: Sidekiq's set `paused`.
    pub paused: bool,
    /// Its breaker is known to have been open a cooldown ago or later.
    pub breaker: bool,
}

impl QueueSnapshot {
    /// How long the next job has waited at `now_ms`, by what it says of itself.
    pub fn oldest_age(&self, now_ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(now_ms.saturating_sub(job::waits_since_ms(&self.oldest)?)))
    }
}

impl Session {
    /// Enqueues a page of jobs in one step; answers which were new. `call_id` names this call: repeated, it adds nothing.
    pub async fn enqueue(
        &mut self,
        call_id: &str,
        seen_key: &str,
        producing: Side,
        jobs: &[Enqueue],
    ) -> Result<Vec<bool>, StoreError> {
        let mark = self.keys.enqueued(call_id);
        let answered = self.answered.clone().unwrap_or_else(|| mark.clone());
        let mut call = Call::new(vec![mark.clone(), seen_key.to_owned(), answered]);
        call.arg(REPEATABLE.as_millis().to_string()).arg(producing.letter()).arg(jobs.len());
        for job in jobs {
            let queue = call.key(&job.queue);
            let (field, state) = job.seen.as_ref().map_or(("", ""), |(field, state)| (field, state));
            call.arg(queue).arg(&job.raw[..]).arg(field).arg(state);
        }
        let mut reply = list(self.eval(&ENQUEUE, &call).await?)?.into_iter();
        let statuses = reply.next().map(bytes).unwrap_or_default();
        if let Some(unfit) = reply.next() {
            return Err(Refusal::read(unfit)?.into());
        }
        self.replicated().await?;
        self.answered = Some(mark);
        Ok(statuses.iter().map(|status| *status == b'1').collect())
    }

    /// Takes up to `wanted` from a limit of `limit` a second.
    pub async fn limit(&mut self, key: &str, limit: u64, wanted: u64) -> Result<Granted, StoreError> {
        let mut call = Call::new(vec![key.to_owned()]);
        call.arg(limit).arg(wanted);
        let reply = match self.eval(&LIMIT, &call).await {
            // Whatever else it holds, it is not a counter.
            Err(StoreError::Unexpected(reason)) => {
                return Err(StoreError::Unfit {
                    key: key.to_owned(),
                    reason: format!("must be a counter: {reason}"),
                });
            }
            reply => reply?,
        };
        match list(reply)?.as_slice() {
            [granted, left] => Ok(Granted {
                granted: number(granted).unwrap_or(0),
                resets_in: Duration::from_millis(number(left).unwrap_or(1000)),
            }),
            _ => Err(unexpected("limit")),
        }
    }

    /// Reads a page, bounded by count and bytes.
    pub async fn page(&mut self, key: &str, kind: PageKind, count: usize) -> Result<Page, StoreError> {
        self.page_after(key, kind, 0, count).await
    }

    /// Reads the page after the first `skip` entries.
    pub async fn page_after(
        &mut self,
        key: &str,
        kind: PageKind,
        skip: u64,
        count: usize,
    ) -> Result<Page, StoreError> {
        let mut call = Call::new(vec![key.to_owned()]);
        let word = match kind {
            PageKind::Head => "head",
            PageKind::Tail => "tail",
            PageKind::Newest => "newest",
            PageKind::Due => "due",
            PageKind::DueSeconds => "due-seconds",
        };
        call.arg(word).arg(count).arg(PAGE_BYTES).arg(skip);
        let mut reply = list(self.eval(&PAGE, &call).await?)?.into_iter();
        let (Some(seconds), Some(micros), Some(length)) = (reply.next(), reply.next(), reply.next()) else {
            return Err(unexpected("page"));
        };
        self.saw_time(&seconds, &micros);
        Ok(Page { length: number(&length).unwrap_or(0), entries: reply.map(bytes).collect() })
    }

    /// Moves due members of a sorted set: each only if it is still there.
    pub async fn promote(
        &mut self,
        set: &str,
        moves: &[(Bytes, Vec<Effect>)],
    ) -> Result<Vec<Status>, StoreError> {
        let mut call = Call::new(vec![self.keys.counters(), set.to_owned()]);
        call.arg("").arg(moves.len());
        let (statuses, refusals) = self.moved(call, "z", moves).await?.unwrap_or_default();
        log(refusals);
        Ok(statuses)
    }

    /// Takes members out of a sorted set, each only if it is still there, to where their effects place them: as `promote`,
    /// a page a step, all in one round trip; and for a person, who is told what was refused.
    pub async fn take(
        &mut self,
        set: &str,
        moves: &[(Bytes, Vec<Effect>)],
    ) -> Result<(Vec<Status>, Option<Refusal>), StoreError> {
        let (mut statuses, mut refused) = (Vec::with_capacity(moves.len()), None);
        let calls: Vec<Call> = moves
            .chunks(PAGE_COUNT)
            .map(|page| {
                let mut call = Call::new(vec![self.keys.counters(), set.to_owned()]);
                call.arg("").arg(page.len());
                self.moves(call, "z", page)
            })
            .collect();
        for reply in self.eval_all(&MOVE, &calls).await? {
            let (page, mut refusals) = what_moved(reply)?.unwrap_or_default();
            statuses.extend(page);
            refused = refusals.pop().or(refused);
        }
        Ok((statuses, refused))
    }

    /// Moves jobs out of a fenced lane's list: each only if it is still there, none if the lane has its lease.
    pub async fn reap(
        &mut self,
        lane: &str,
        from: &str,
        moves: &[(Bytes, Vec<Effect>)],
    ) -> Result<Option<Vec<Status>>, StoreError> {
        let mut call = Call::new(vec![self.keys.record(lane), from.to_owned()]);
        call.arg("fenced").arg(moves.len());
        let Some((statuses, refusals)) = self.moved(call, "l", moves).await? else { return Ok(None) };
        log(refusals);
        Ok(Some(statuses))
    }

    async fn moved(
        &mut self,
        call: Call,
        kind: &str,
        moves: &[(Bytes, Vec<Effect>)],
    ) -> Result<Option<Moved>, StoreError> {
        let call = self.moves(call, kind, moves);
        what_moved(self.eval(&MOVE, &call).await?)
    }

    fn moves(&self, mut call: Call, kind: &str, moves: &[(Bytes, Vec<Effect>)]) -> Call {
        let counters = self.keys.counters();
        for (member, effects) in moves {
            call.arg(2).arg(kind).arg(&member[..]);
            call.effects(effects, &counters);
        }
        call
    }

    /// Turns a page of a list from its tail: answers how many entries were still the expected ones.
    pub async fn turn(&mut self, key: &str, entries: &[(Bytes, Turn)]) -> Result<usize, StoreError> {
        Ok(self.turn_pages(key, &[entries]).await?.into_iter().sum())
    }

    /// The same for pages that follow each other, each a step of its own, in one round trip. One that stops does not stop
    /// those behind it: they look at the tail as well.
    pub async fn turn_pages(
        &mut self,
        key: &str,
        pages: &[&[(Bytes, Turn)]],
    ) -> Result<Vec<usize>, StoreError> {
        let counters = self.keys.counters();
        let call = |page: &&[(Bytes, Turn)]| {
            let mut call = Call::new(vec![key.to_owned(), counters.clone()]);
            call.arg(page.len());
            for (entry, turn) in *page {
                call.arg(&entry[..]);
                match turn {
                    Turn::Keep => call.arg("k").effects(&[], &counters),
                    Turn::Drop => call.arg("m").effects(&[], &counters),
                    Turn::Place(effects) => call.arg("m").effects(effects, &counters),
                }
            }
            call
        };
        let calls: Vec<Call> = pages.iter().map(call).collect();
        let (mut turned, mut refused) = (Vec::with_capacity(pages.len()), None);
        for reply in self.eval_all(&TURN, &calls).await? {
            let mut reply = list(reply)?.into_iter();
            let count = reply.next().as_ref().and_then(number).unwrap_or(0);
            turned.push(usize::try_from(count).unwrap_or(0));
            if let Some(unfit) = reply.next() {
                refused = Some(Refusal::read(unfit)?);
            }
        }
        match refused {
            Some(refusal) if turned.iter().all(|count| *count == 0) => Err(refusal.into()),
            _ => Ok(turned),
        }
    }

    /// One look at the queues, of one instant. A key that cannot be read does not hide the others: it is named. More lanes
    /// than one step looks at are looked at in further ones, a moment later.
    pub async fn snapshot(&mut self, side: Side) -> Result<Snapshot, StoreError> {
        let queues = self.keys.queues.iter().flat_map(|queue| {
            let ours = [&queue.queue, &queue.suspects, &queue.delayed].map(Clone::clone);
            ours.into_iter().chain([self.keys.breaker(&queue.name)])
        });
        let call = self.look(side, queues.collect(), 0);
        let mut snapshot = self.snapshot_of(&call).await?;
        let mut seen: HashSet<String> = snapshot.open_lanes.iter().map(|lane| lane.lane.clone()).collect();
        for page in 1..PAGES {
            if snapshot.lanes <= u64::try_from(page * LANES).unwrap_or(u64::MAX) {
                break;
            }
            let call = self.look(side, Vec::new(), page * LANES);
            let more = self.snapshot_of(&call).await?.open_lanes;
            // A lease that was renewed meanwhile has moved its lane to the end.
            for lane in more.into_iter().filter(|lane| seen.insert(lane.lane.clone())) {
                snapshot.in_flight += lane.held;
                snapshot.open_lanes.push(lane);
            }
        }
        Ok(snapshot)
    }

    /// The call of a look at these queues' keys, and at a page of lanes.
    fn look(&self, side: Side, queues: Vec<String>, first: usize) -> Call {
        let mut keys = vec![
            self.keys.counters(),
            self.keys.dead_letters(),
            self.keys.completed(),
            self.keys.lanes(),
            self.keys.reaping(),
            self.keys.paused(),
            self.keys.paused_queues().unwrap_or_else(|| self.keys.paused()),
        ];
        keys.extend(queues);
        let mut call = Call::new(keys);
        call.arg(side.letter()).arg(OLDEST_BYTES).arg(self.keys.record("")).arg(LANES);
        call.arg(self.keys.dead_letters_kind());
        call.arg(if self.keys.names_jobs() { self.keys.jobs().data("") } else { String::new() });
        call.arg(self.keys.completed_kind()).arg(first).arg(claim(&self.keys.lanes()));
        for queue in &self.keys.queues {
            call.arg(&queue.name);
        }
        call
    }

    async fn snapshot_of(&mut self, call: &Call) -> Result<Snapshot, StoreError> {
        let reply = list(self.eval(&SNAPSHOT, call).await?)?;
        let [
            seconds,
            micros,
            counters,
            dead,
            completed,
            lanes,
            reaping,
            in_flight,
            paused,
            queues,
            unfit,
            open_lanes,
            owner,
        ] = reply.as_slice()
        else {
            return Err(unexpected("snapshot"));
        };
        let refusals = |value: Value| list(value)?.into_iter().map(Refusal::read).collect::<Result<_, _>>();
        let mut counted = Vec::new();
        let mut fields = list(counters.clone())?.into_iter();
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            counted.push((text(name), number(&value).unwrap_or(0)));
        }
        let queue = |value: Value| {
            let mut parts = list(value)?.into_iter();
            let mut count = || parts.next().as_ref().and_then(number).unwrap_or(0);
            let (waiting, suspects, delayed, due) = (count(), count(), count(), count());
            Ok(QueueSnapshot {
                waiting,
                suspects,
                delayed,
                due,
                oldest: parts.next().map(bytes).unwrap_or_default(),
                unfit: parts.next().map(refusals).transpose()?.unwrap_or_default(),
                paused: parts.next().as_ref().and_then(number) == Some(1),
                breaker: parts.next().as_ref().and_then(number) == Some(1),
            })
        };
        let lane = |value: Value| {
            let mut parts = list(value)?.into_iter();
            let mut part = || parts.next().map(text).unwrap_or_default();
            let (lane, pod_uid, started, jobqueue_uid) = (part(), part(), part(), part());
            Ok(LaneSnapshot {
                lane,
                pod_uid,
                started_ms: started.parse().unwrap_or(0),
                jobqueue_uid,
                held: part().parse().unwrap_or(0),
                quiet: part(),
                breakers: part(),
            })
        };
        let count = |value: &Value| number(value).unwrap_or(0);
        let snapshot = Snapshot {
            now_ms: count(seconds) * 1000 + count(micros) / 1000,
            counters: counted,
            dead_letters: count(dead),
            completed: count(completed),
            lanes: count(lanes),
            reaping: count(reaping),
            in_flight: count(in_flight),
            paused: count(paused) == 1,
            queues: list(queues.clone())?.into_iter().map(queue).collect::<Result<_, StoreError>>()?,
            unfit: refusals(unfit.clone())?,
            open_lanes: list(open_lanes.clone())?.into_iter().map(lane).collect::<Result<_, StoreError>>()?,
            owner: text(owner.clone()),
        };
        self.saw_time(seconds, micros);
        Ok(snapshot)
    }

    /// The lengths of some lists, in one round trip.
    pub async fn lengths(&mut self, lists: &[String]) -> Result<Vec<u64>, StoreError> {
        let length = |list: &String| {
            let mut get = Cmd::new();
            get.arg("LLEN").arg(list);
            get
        };
        match self.query_all(lists.iter().map(length).collect()).await {
            Ok(lengths) => Ok(lengths.iter().map(|length| number(length).unwrap_or(0)).collect()),
            Err(StoreError::Unexpected(reason)) => Err(self.unfit(lists, reason).await),
            Err(error) => Err(error),
        }
    }

    /// Takes a mark that lapses by itself, or renews one that is ours; `false` when another has it. Who has it keeps it also
    /// on a full Redis.
    pub async fn keep(&mut self, key: &str, who: &str, ttl: Duration) -> Result<bool, StoreError> {
        let mut call = Call::new(vec![key.to_owned()]);
        call.arg(who).arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        Ok(number(&self.eval(&KEEP, &call).await?) == Some(1))
    }

    /// Whether a key exists.
    pub async fn exists(&mut self, key: &str) -> Result<bool, StoreError> {
        let mut get = Cmd::new();
        get.arg("EXISTS").arg(key);
        Ok(number(&self.query(&get).await?) == Some(1))
    }

    /// Reads a string.
    pub async fn get(&mut self, key: &str) -> Result<Option<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("GET").arg(key);
        let value = self.query(&get).await?;
        Ok((value != Value::Nil).then(|| text(value)))
    }

    /// Writes down how many shards there are, unless that many are written down already; answers what is then.
    pub async fn widen(&mut self, version: &str, shards: u16, text: &str) -> Result<String, StoreError> {
        let mut call = Call::new(vec![self.keys.layout(), self.keys.counters()]);
        call.arg(version).arg(shards).arg(text);
        Ok(super::text(self.eval(&WIDEN, &call).await?))
    }

    /// Whether the shard holds no job that somebody would still have to run, and no dead letter that somebody may
    /// want to look at or to requeue. A lane that holds nothing does not count: else those who serve the shard because
    /// of each other's lanes would do so for ever.
    pub async fn is_empty(&mut self) -> Result<bool, StoreError> {
        let seen = self.snapshot(Side::Left).await?;
        let none = |queue: &QueueSnapshot| {
            queue.waiting + queue.suspects + queue.delayed == 0 && queue.unfit.is_empty()
        };
        let held = seen.in_flight + seen.reaping + seen.dead_letters;
        Ok(held == 0 && seen.unfit.is_empty() && seen.queues.iter().all(none))
    }

    /// Whether the shard has jobs that are over and can still be read: their lists lapse with the last of them.
    pub async fn has_finished(&mut self) -> Result<bool, StoreError> {
        if !self.keys.names_jobs() {
            return Ok(false);
        }
        let jobs = self.keys.jobs();
        let mut get = Cmd::new();
        get.arg("EXISTS");
        for status in JobStatus::ALL.into_iter().filter(|status| status.is_over()) {
            get.arg(jobs.index(status.as_str()));
        }
        Ok(number(&self.query(&get).await?) != Some(0))
    }

    /// Deletes a key in the background of Redis.
    pub async fn unlink(&mut self, key: &str) -> Result<u64, StoreError> {
        let mut unlink = Cmd::new();
        unlink.arg("UNLINK").arg(key);
        Ok(number(&self.query(&unlink).await?).unwrap_or(0))
    }

    /// One page of a keyspace scan: the next cursor and the keys.
    pub async fn scan(
        &mut self,
        cursor: &str,
        glob: &str,
        count: usize,
    ) -> Result<(String, Vec<String>), StoreError> {
        self.scan_of(cursor, glob, count, Some("list")).await
    }

    /// The same for keys of every type.
    pub async fn scan_any(
        &mut self,
        cursor: &str,
        glob: &str,
        count: usize,
    ) -> Result<(String, Vec<String>), StoreError> {
        self.scan_of(cursor, glob, count, None).await
    }

    async fn scan_of(
        &mut self,
        cursor: &str,
        glob: &str,
        count: usize,
        kind: Option<&str>,
    ) -> Result<(String, Vec<String>), StoreError> {
        let mut scan = Cmd::new();
        scan.arg("SCAN").arg(cursor).arg("MATCH").arg(glob).arg("COUNT").arg(count);
        if let Some(kind) = kind {
            scan.arg("TYPE").arg(kind);
        }
        let mut reply = list(self.query(&scan).await?)?.into_iter();
        let cursor = text(reply.next().unwrap_or(Value::Nil));
        let keys = reply.next().map(list).transpose()?.unwrap_or_default();
        Ok((cursor, keys.into_iter().map(text).collect()))
    }

    /// Waits on a list and moves the next job into another; `None` after the timeout or an unblock.
    pub async fn park(
        &mut self,
        from: &str,
        into: &str,
        side: Side,
        wait: Duration,
    ) -> Result<Option<Bytes>, StoreError> {
        let mut park = Cmd::new();
        park.arg("BLMOVE").arg(from).arg(into).arg(side.word()).arg("RIGHT").arg(wait.as_secs_f64());
        match self.query(&park).await? {
            Value::Nil => Ok(None),
            value => Ok(Some(bytes(value))),
        }
    }

    /// Wakes a parked connection.
    pub async fn unblock(&mut self, client_id: i64) -> Result<(), StoreError> {
        let mut unblock = Cmd::new();
        unblock.arg("CLIENT").arg("UNBLOCK").arg(client_id);
        self.query(&unblock).await.map(drop)
    }

    /// One page of a hash: the next cursor ("0" after the last) and the fields.
    pub async fn hash_scan(
        &mut self,
        key: &str,
        cursor: &str,
        count: usize,
    ) -> Result<(String, Vec<String>), StoreError> {
        let mut scan = Cmd::new();
        scan.arg("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(count);
        let mut reply = list(self.query(&scan).await?)?.into_iter();
        let cursor = text(reply.next().unwrap_or(Value::Nil));
        let fields = reply.next().map(list).transpose()?.unwrap_or_default();
        Ok((cursor, fields.into_iter().step_by(2).map(text).collect()))
    }

    /// Removes fields of a hash.
    pub async fn hash_remove(&mut self, key: &str, fields: &[String]) -> Result<(), StoreError> {
        let mut remove = Cmd::new();
        remove.arg("HDEL").arg(key).arg(fields);
        self.query(&remove).await.map(drop)
    }

    /// Writes down that `place` is where files come from that one memory is kept of, for as long as `ttl`; answers how many
    /// such places there are.
    pub async fn seen_in(&mut self, key: &str, place: &str, ttl: Duration) -> Result<u64, StoreError> {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let now_ms = self.now_ms();
        let [mut add, mut lapse, mut expire, mut count] = [(); 4].map(|()| Cmd::new());
        add.arg("ZADD").arg(key).arg(now_ms).arg(place);
        lapse.arg("ZREMRANGEBYSCORE").arg(key).arg("-inf").arg(now_ms.saturating_sub(ttl));
        expire.arg("PEXPIRE").arg(key).arg(ttl);
        count.arg("ZCARD").arg(key);
        let answers = match self.query_all(vec![add, lapse, expire, count]).await {
            Err(StoreError::Unexpected(reason)) => return Err(self.unfit(&[key.to_owned()], reason).await),
            answers => answers?,
        };
        answers.last().and_then(number).ok_or_else(|| unexpected("ZCARD"))
    }

    /// Forgets files of a memory, unless another place than `place` has files in it; `false` when it has.
    pub async fn unsee(
        &mut self,
        seen: &str,
        places: &str,
        place: &str,
        files: &[String],
    ) -> Result<bool, StoreError> {
        let mut call = Call::new(vec![seen.to_owned(), places.to_owned()]);
        call.arg(place).arg(files);
        Ok(number(&self.eval(&UNSEE, &call).await?) == Some(1))
    }

    /// Sets fields of a hash, those that it does not have yet.
    pub async fn hash_add(&mut self, key: &str, fields: &[(String, String)]) -> Result<(), StoreError> {
        let add = |(field, value): &(String, String)| {
            let mut add = Cmd::new();
            add.arg("HSETNX").arg(key).arg(field).arg(value);
            add
        };
        self.query_all(fields.iter().map(add).collect()).await.map(drop)
    }

    /// How many fields a hash has.
    pub async fn hash_len(&mut self, key: &str) -> Result<u64, StoreError> {
        let mut get = Cmd::new();
        get.arg("HLEN").arg(key);
        Ok(number(&self.query(&get).await?).unwrap_or(0))
    }

    /// The values of some fields of a hash.
    pub async fn hash_get(
        &mut self,
        key: &str,
        fields: &[String],
    ) -> Result<Vec<Option<String>>, StoreError> {
        let mut get = Cmd::new();
        get.arg("HMGET").arg(key).arg(fields);
        let values = match self.query(&get).await {
            Err(StoreError::Unexpected(reason)) => return Err(self.unfit(&[key.to_owned()], reason).await),
            values => list(values?)?,
        };
        Ok(values.into_iter().map(|value| (value != Value::Nil).then(|| text(value))).collect())
    }

    /// Sets a key for ever.
    pub async fn set(&mut self, key: &str, value: &str) -> Result<(), StoreError> {
        let mut set = Cmd::new();
        set.arg("SET").arg(key).arg(value);
        self.query(&set).await.map(drop)
    }
}

/// What became of jobs that were to be moved, and what refused them.
type Moved = (Vec<Status>, Vec<Refusal>);

fn what_moved(reply: Value) -> Result<Option<Moved>, StoreError> {
    let mut reply = list(reply)?.into_iter();
    match reply.next().map(text).as_deref() {
        Some("OK") => {}
        Some("HELD") => return Ok(None),
        _ => return Err(unexpected("move")),
    }
    let statuses = reply.next().map(bytes).unwrap_or_default();
    let errors = reply.next().map(list).transpose()?.unwrap_or_default();
    let refusals = errors.into_iter().map(Refusal::read).collect::<Result<_, _>>()?;
    Ok(Some((Status::all(&statuses), refusals)))
}

/// A key that refuses one job refuses them all: it is named once.
fn log(refusals: Vec<Refusal>) {
    let mut by_key: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for Refusal { key, reason } in refusals {
        by_key.entry(key).or_insert((reason, 0)).1 += 1;
    }
    for (key, (reason, count)) in by_key {
        tracing::error!(key, reason, count, "Could not move jobs, they stay where they were");
    }
}
