//! A lane's life: register, extend, close; and its end by others: fence, forget.
use redis::{Cmd, Value};
use serde::{Deserialize, Serialize};

use super::cycle::LaneHandle;
use super::{
    CLOSE, Call, EXTEND, FENCE, FORGET, NUMBER, ORPHAN, REGISTER, Session, StoreError, list, number, text,
    unexpected,
};
use crate::keys::QueueKeys;

/// Who opens a lane.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    /// `hostname-PID`: the lane's number is added.
    pub process: String,
    /// What `quiet` is named by: the pod's uid, else the process.
    pub control: String,
    /// The `JobQueue` this worker belongs to.
    pub jobqueue_uid: String,
    /// The pod this worker runs in.
    pub pod_uid: String,
    /// When the process started, by this node's clock: milliseconds since the epoch.
    pub started_ms: u64,
    /// How long the heartbeat lives.
    pub ttl_ms: u64,
}

/// The lists of a lane as its record names them: a reaper may have another configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLists {
    /// The queue's name.
    pub name: String,
    /// The queue's key.
    pub queue: String,
    /// All of the lane's lists for it.
    pub lists: Vec<String>,
}

/// What a lane's record says.
#[derive(Debug, Clone, Default)]
pub struct LaneRecord {
    /// It has its lease.
    pub leased: bool,
    /// The digest of the suspect that ran alone in its process, or empty.
    pub alone: String,
    /// Why it was fenced.
    pub fenced: String,
    /// See [`Registration`].
    pub pod_uid: String,
    /// See [`Registration`].
    pub jobqueue_uid: String,
    /// See [`Registration`].
    pub started_ms: u64,
    /// See [`Registration`].
    pub process: String,
    /// The `quiet` word its process has obeyed.
    pub quiet: String,
    /// Jobs held after the last cycle.
    pub held: u64,
    /// Breaker states of its process.
    pub breakers: String,
    /// Its lists.
    pub lists: Vec<RecordedLists>,
}

/// What came of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// It has no lease any more.
    Fenced,
    /// It has a heartbeat.
    Alive,
    /// There is no such lane.
    Gone,
}

/// What a look at a fenced lane came to.
#[derive(Debug)]
pub enum Rest {
    /// It was empty for long enough, or there was nothing of it any more.
    Forgotten,
    /// It holds nothing, but one more job may arrive. Or it has its lease.
    Empty,
    /// What its record says, and its lists that are not known to be empty.
    Holds(Box<LaneRecord>, Vec<String>),
}

impl Session {
    /// Opens a lane under a number that was never used before.
    pub async fn register(&mut self, who: &Registration) -> Result<LaneHandle, StoreError> {
        self.may_park().await?;
        loop {
            let call = Call::new(vec![self.keys.lane_seq(), self.keys.counters()]);
            let number = number(&self.eval(&NUMBER, &call).await?).ok_or_else(|| unexpected("lane_seq"))?;
            let id = format!("{}-{number}", who.process);
            let token = uuid::Uuid::new_v4().simple().to_string();
            if let Some(handle) = self.register_as(who, id, token).await? {
                return Ok(handle);
            }
        }
    }

    /// Whether the user may park a fetch and unblock it: no script may, so these two are tried apart from all else.
    /// Redis looks at a user's rights before it looks at the words: at a client that is nobody, and at no direction.
    async fn may_park(&mut self) -> Result<(), StoreError> {
        self.unblock(0).await?;
        let key = self.keys.tried("");
        let mut park = Cmd::new();
        park.arg("BLMOVE").arg(&key).arg(&key).arg("NOWHERE").arg("RIGHT").arg(0);
        match self.query(&park).await {
            Ok(_) | Err(StoreError::Unexpected(_) | StoreError::OutOfMemory(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn register_as(
        &mut self,
        who: &Registration,
        id: String,
        token: String,
    ) -> Result<Option<LaneHandle>, StoreError> {
        let lists = self.keys.lists(&id);
        let recorded: Vec<RecordedLists> = (self.keys.queues.iter().zip(&lists))
            .map(|(queue, lists)| RecordedLists {
                name: queue.name.clone(),
                queue: queue.queue.clone(),
                lists: vec![lists.held.clone(), lists.parked.clone(), lists.parked_suspects.clone()],
            })
            .collect();
        let mut touched = vec![self.keys.record(&id), self.keys.heartbeat(&id), self.keys.lanes()];
        touched.push(self.keys.tried(&id));
        let lane_lists: Vec<_> = recorded.iter().flat_map(|queue| queue.lists.clone()).collect();
        let count = lane_lists.len();
        touched.extend(lane_lists);
        touched.extend([self.keys.paused(), self.keys.quiet(&who.control), self.keys.counters()]);
        touched.extend(self.keys.queues.iter().flat_map(|queue| {
            let QueueKeys { name: _, queue, suspects, delayed, completed, dead_letters, counters, jobs } =
                queue;
            let ours = [queue, suspects, delayed, completed, dead_letters, counters];
            ours.map(Clone::clone).into_iter().chain([jobs.data(""), jobs.index("pending"), jobs.idem("")])
        }));
        let mut call = Call::new(touched);
        call.arg(&id).arg(&token).arg(who.ttl_ms).arg(count);
        call.arg("process").arg(&who.process).arg("pod").arg(&who.pod_uid);
        call.arg("jobqueue").arg(&who.jobqueue_uid).arg("start").arg(who.started_ms);
        let parked = lists.iter().flat_map(|lists| [lists.parked.as_str(), &lists.parked_suspects]);
        call.arg("keys").arg(joined(&recorded)).arg("parked").arg(parked.collect::<Vec<_>>().join("\n"));
        let recorded = serde_json::to_string(&recorded).map_err(|error| unexpected(&error.to_string()))?;
        call.arg("lists").arg(recorded);
        let reply = list(self.eval(&REGISTER, &call).await?)?;
        let [ok, time @ ..] = reply.as_slice() else { return Err(unexpected("register")) };
        if let (Value::BulkString(_), [command]) = (ok, time) {
            return Err(StoreError::Denied { what: format!("command {}", text(command.clone())) });
        }
        if number(ok) != Some(1) {
            return Ok(None);
        }
        if let [seconds, micros] = time {
            self.saw_time(seconds, micros);
        }
        let mut keys = vec![
            self.keys.record(&id),
            self.keys.paused(),
            self.keys.quiet(&who.control),
            self.keys.counters(),
            self.keys.completed(),
        ];
        for (queue, lists) in self.keys.queues.iter().zip(&lists) {
            keys.extend([queue.queue.clone(), queue.suspects.clone()]);
            keys.extend([lists.held.clone(), lists.parked.clone(), lists.parked_suspects.clone()]);
        }
        Ok(Some(LaneHandle { id, token, lists, counters: self.keys.counters(), keys }))
    }

    /// Renews the heartbeats of a process' lanes: (lane, oldest job in flight). Answers who still has its lease.
    pub async fn extend(
        &mut self,
        lanes: &[(&LaneHandle, &[u8])],
        ttl_ms: u64,
        breakers: &str,
    ) -> Result<Vec<bool>, StoreError> {
        let mut keys = vec![self.keys.lanes()];
        for (lane, _) in lanes {
            keys.extend([self.keys.record(&lane.id), self.keys.heartbeat(&lane.id)]);
        }
        let mut call = Call::new(keys);
        call.arg(ttl_ms).arg(breakers);
        for (lane, oldest) in lanes {
            call.arg(&lane.id).arg(&lane.token).arg(*oldest);
        }
        let reply = list(self.eval(&EXTEND, &call).await?)?;
        let [seconds, micros, held @ ..] = reply.as_slice() else { return Err(unexpected("extend")) };
        self.saw_time(seconds, micros);
        Ok(held.iter().map(|held| number(held) == Some(1)).collect())
    }

    /// Closes a drained lane. `cut_off`: a parked fetch never answered and may still deliver.
    pub async fn close(&mut self, lane: &LaneHandle, cut_off: bool) -> Result<bool, StoreError> {
        let mut keys = vec![
            self.keys.record(&lane.id),
            self.keys.heartbeat(&lane.id),
            self.keys.lanes(),
            self.keys.reaping(),
        ];
        for lists in &lane.lists {
            keys.extend([lists.held.clone(), lists.parked.clone(), lists.parked_suspects.clone()]);
        }
        let mut call = Call::new(keys);
        call.arg(&lane.id).arg(&lane.token).arg(if cut_off { "1" } else { "" });
        Ok(number(&self.eval(&CLOSE, &call).await?) == Some(1))
    }

    /// Takes a lane's lease away, if its heartbeat is gone or its process is `certain`ly dead.
    pub async fn fence(&mut self, lane: &str, certain: bool, cause: &str) -> Result<Fenced, StoreError> {
        let mut call = Call::new(vec![
            self.keys.record(lane),
            self.keys.heartbeat(lane),
            self.keys.lanes(),
            self.keys.reaping(),
        ]);
        call.arg(lane).arg(if certain { "certain" } else { "expired" }).arg(cause);
        match text(self.eval(&FENCE, &call).await?).as_str() {
            "FENCED" => Ok(Fenced::Fenced),
            "ALIVE" => Ok(Fenced::Alive),
            "GONE" => Ok(Fenced::Gone),
            other => Err(unexpected(other)),
        }
    }

    /// Looks at a page of fenced lanes in one round trip: what each holds; one whose lists have been empty for `empty_ms` is
    /// forgotten. A record that cannot be read is no reason to overlook the others.
    pub async fn forget(
        &mut self,
        lanes: &[String],
        empty_ms: u64,
    ) -> Result<Vec<Result<Rest, StoreError>>, StoreError> {
        let call = |lane: &String| {
            let mut call = Call::new(vec![self.keys.record(lane), self.keys.reaping()]);
            call.arg(lane).arg(empty_ms);
            call
        };
        let calls: Vec<Call> = lanes.iter().map(call).collect();
        let replies = match calls.as_slice() {
            [] => Vec::new(),
            calls => self.eval_all(&FORGET, calls).await?,
        };
        let rest = |(lane, reply): (&String, Value)| match reply {
            Value::Array(parts) => {
                let mut parts = parts.into_iter();
                let fields = parts.next().unwrap_or(Value::Nil);
                let record = record(fields)?.unwrap_or_default();
                Ok(Rest::Holds(Box::new(record), parts.map(text).collect()))
            }
            Value::Int(1) => Ok(Rest::Forgotten),
            Value::Int(_) => Ok(Rest::Empty),
            reason => Err(StoreError::Unfit { key: self.keys.record(lane), reason: text(reason) }),
        };
        Ok(lanes.iter().zip(replies).map(rest).collect())
    }

    /// Puts fenced lanes that were looked at behind those that were not: a reaper whose time is up begins with the latter.
    pub async fn put_back(&mut self, lanes: &[&str]) -> Result<(), StoreError> {
        if lanes.is_empty() {
            return Ok(());
        }
        let now_ms = self.now_ms();
        let mut add = Cmd::new();
        add.arg("ZADD").arg(self.keys.reaping()).arg("XX");
        for lane in lanes {
            add.arg(now_ms).arg(*lane);
        }
        match self.query(&add).await {
            // Full: they stay where they are, and only the order suffers.
            Err(StoreError::OutOfMemory(_)) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Takes charge of lists that no lane claims; `false` when one does after all.
    pub async fn orphan(&mut self, lane: &str, lists: &[RecordedLists]) -> Result<bool, StoreError> {
        let mut call =
            Call::new(vec![self.keys.record(lane), self.keys.heartbeat(lane), self.keys.reaping()]);
        let joined = joined(lists);
        let lists = serde_json::to_string(lists).map_err(|error| unexpected(&error.to_string()))?;
        call.arg(lane).arg(lists).arg(joined);
        Ok(number(&self.eval(&ORPHAN, &call).await?) == Some(1))
    }

    /// Reads Redis' clock.
    pub async fn time(&mut self) -> Result<(), StoreError> {
        let mut time = Cmd::new();
        time.arg("TIME");
        match list(self.query(&time).await?)?.as_slice() {
            [seconds, micros] => {
                self.saw_time(seconds, micros);
                Ok(())
            }
            _ => Err(unexpected("TIME")),
        }
    }

    /// A lane's record; `None` when there is none.
    pub async fn lane(&mut self, lane: &str) -> Result<Option<LaneRecord>, StoreError> {
        let mut get = Cmd::new();
        get.arg("HGETALL").arg(self.keys.record(lane));
        record(self.query(&get).await?)
    }

    /// The records of a page of lanes, each with whether its heartbeat stands, in one round trip.
    pub async fn look_at(&mut self, lanes: &[String]) -> Result<Vec<(Option<LaneRecord>, bool)>, StoreError> {
        let mut gets = Vec::with_capacity(2 * lanes.len());
        for lane in lanes {
            let (mut read, mut left) = (Cmd::new(), Cmd::new());
            read.arg("HGETALL").arg(self.keys.record(lane));
            left.arg("PTTL").arg(self.keys.heartbeat(lane));
            gets.extend([read, left]);
        }
        let mut answers = self.query_all(gets).await?.into_iter();
        let mut seen = Vec::with_capacity(lanes.len());
        while let (Some(fields), Some(left)) = (answers.next(), answers.next()) {
            seen.push((record(fields)?, stands(&left)));
        }
        Ok(seen)
    }

    /// One page of the registry, or of the fenced lanes: the next cursor ("0" after the last) and the lanes.
    /// Unlike a range it misses none that is there all the time, whatever renews its lease meanwhile; it may
    /// show one twice.
    pub async fn scan_lanes(
        &mut self,
        fenced: bool,
        cursor: &str,
        count: usize,
    ) -> Result<(String, Vec<String>), StoreError> {
        let key = if fenced { self.keys.reaping() } else { self.keys.lanes() };
        let mut scan = Cmd::new();
        scan.arg("ZSCAN").arg(&key).arg(cursor).arg("COUNT").arg(count);
        let reply = match self.query(&scan).await {
            Err(StoreError::Unexpected(reason)) => return Err(self.unfit(&[key], reason).await),
            reply => list(reply?)?,
        };
        let mut reply = reply.into_iter();
        let cursor = text(reply.next().unwrap_or(Value::Nil));
        let members = reply.next().map(list).transpose()?.unwrap_or_default();
        Ok((cursor, members.into_iter().step_by(2).map(text).collect()))
    }

    /// Up to a page of lanes whose lease has expired by Redis' clock.
    pub async fn expired(&mut self, now_ms: u64, count: usize) -> Result<Vec<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("ZRANGEBYSCORE")
            .arg(self.keys.lanes())
            .arg("-inf")
            .arg(now_ms)
            .arg("LIMIT")
            .arg(0)
            .arg(count);
        Ok(list(self.query(&get).await?)?.into_iter().map(text).collect())
    }

    /// Puts a lane into the registry, as one whose lease has expired; one that is there stays as it is.
    pub async fn enlist(&mut self, lane: &str) -> Result<(), StoreError> {
        let mut add = Cmd::new();
        add.arg("ZADD").arg(self.keys.lanes()).arg("NX").arg(self.now_ms()).arg(lane);
        self.query(&add).await.map(drop)
    }

    /// Puts a fenced lane among those to be reaped; one that is there stays where it is.
    pub async fn enlist_fenced(&mut self, lane: &str) -> Result<(), StoreError> {
        let mut add = Cmd::new();
        add.arg("ZADD").arg(self.keys.reaping()).arg("NX").arg(self.now_ms()).arg(lane);
        match self.query(&add).await {
            // Full: as a rule it is there already, and otherwise it is found again.
            Err(StoreError::OutOfMemory(_)) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Up to `count` lanes, from `offset`, in the order of their lease's expiry.
    pub async fn lanes(&mut self, offset: usize, count: usize) -> Result<Vec<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("ZRANGE").arg(self.keys.lanes()).arg(offset).arg(offset + count.saturating_sub(1));
        Ok(list(self.query(&get).await?)?.into_iter().map(text).collect())
    }

    /// Up to `count` fenced lanes: first those that nobody has looked at for the longest time, last those that are empty.
    pub async fn reaping(&mut self, count: usize) -> Result<Vec<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("ZRANGE").arg(self.keys.reaping()).arg(0).arg(count.saturating_sub(1));
        Ok(list(self.query(&get).await?)?.into_iter().map(text).collect())
    }

    /// Which of a page of lanes have a heartbeat that stands, in one round trip.
    pub async fn heartbeats(&mut self, lanes: &[String]) -> Result<Vec<bool>, StoreError> {
        let left = |lane: &String| {
            let mut left = Cmd::new();
            left.arg("PTTL").arg(self.keys.heartbeat(lane));
            left
        };
        let commands = lanes.iter().map(left).collect();
        Ok(self.query_all(commands).await?.iter().map(stands).collect())
    }

    /// Whether a lane's heartbeat stands (one without a TTL does not count).
    pub async fn heartbeat(&mut self, lane: &str) -> Result<bool, StoreError> {
        let mut get = Cmd::new();
        get.arg("PTTL").arg(self.keys.heartbeat(lane));
        Ok(stands(&self.query(&get).await?))
    }
}

/// The lists of a lane for a script to read, which reads no JSON.
fn joined(lists: &[RecordedLists]) -> String {
    let all: Vec<&str> = lists.iter().flat_map(|queue| &queue.lists).map(String::as_str).collect();
    all.join("\n")
}

fn stands(left: &Value) -> bool {
    matches!(left, Value::Int(left) if *left > 0)
}

fn record(fields: Value) -> Result<Option<LaneRecord>, StoreError> {
    let fields = list(fields)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let mut record = LaneRecord::default();
    let mut fields = fields.into_iter();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        let value = text(value);
        match text(name).as_str() {
            "token" => record.leased = true,
            "alone" => record.alone = value,
            "fenced" => record.fenced = value,
            "pod" => record.pod_uid = value,
            "jobqueue" => record.jobqueue_uid = value,
            "start" => record.started_ms = value.parse().unwrap_or(0),
            "process" => record.process = value,
            "quiet" => record.quiet = value,
            "held" => record.held = value.parse().unwrap_or(0),
            "breakers" => record.breakers = value,
            "lists" => record.lists = serde_json::from_str(&value).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Some(record))
}
