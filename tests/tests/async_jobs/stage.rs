//! A queue of async jobs on a Redis of its own keys, clients that follow the documented layout, and a runner that does
//! what a worker's lane does, step by step.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use bytes::Bytes;
use e2e::engine::{Bench, Lane, shared_server};
use jobqueue::effects::{Decision, Effect, Side, Verdict};
use jobqueue::job::{Data, Job};
use jobqueue::keys::QueueKeys;
use jobqueue::outcome::Outcome;
use jobqueue::promoter;
use jobqueue::protocol::{Protocol, Start};
use jobqueue::store::{PageKind, Session, Settlement, Status, StoreError, Turn};
use jobqueue::submission::{self, Cancel};
use redis::AsyncCommands as _;
use serde_json::{Value, json};
use std::sync::Arc;

/// A configuration of the protocol whose retries are due at once.
pub fn config() -> Value {
    json!({ "protocol": "async", "worker": { "backoff": { "base": "0ms", "max": "0ms" } } })
}

/// A queue set.
pub async fn bench() -> Bench {
    Bench::on(shared_server().await, config()).await
}

/// The keys of the one queue.
pub fn queue(bench: &Bench) -> QueueKeys {
    bench.keys.queues[0].clone()
}

/// Creates a job as the seed's client does: two commands, and nothing else.
pub async fn create(bench: &mut Bench, id: &str) {
    let job = json!({
        "id": id, "type": "email", "payload": { "n": 12_345_678_901_234_567_890_u64 }, "status": "pending",
        "created_at": "2026-01-01T00:00:00Z", "mine": 1.50,
    });
    let queue = queue(bench);
    bench.redis.set::<_, _, ()>(queue.jobs.data(id), job.to_string()).await.unwrap();
    bench.redis.rpush::<_, _, ()>(&queue.queue, id).await.unwrap();
}

/// A job as anyone can read it.
pub async fn job(bench: &mut Bench, id: &str) -> Value {
    let key = queue(bench).jobs.data(id);
    let json: Option<String> = bench.redis.get(key).await.unwrap();
    json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
}

/// How long it still lives, if that is known.
pub async fn lives_for(bench: &mut Bench, id: &str) -> Option<i64> {
    let left: i64 = bench.redis.pttl(queue(bench).jobs.data(id)).await.unwrap();
    (left >= 0).then_some(left)
}

/// Brings everything back that is delayed: retries are due at once, by Redis' clock.
pub async fn promote(bench: &Bench) {
    let mut session = bench.session();
    while session.snapshot(Side::Left).await.unwrap().queues[0].delayed > 0 {
        promoter::pass(&mut session, &bench.engine.protocol).await.unwrap();
    }
}

/// The ids under a status.
pub async fn listed(bench: &mut Bench, status: &str) -> Vec<String> {
    bench.redis.zrange(queue(bench).jobs.index(status), 0, -1).await.unwrap()
}

/// Cancels a job as the API does: read, decided, written if it is still the same, else again; `false` when it is over.
pub async fn cancel(session: &mut Session, id: &str) -> bool {
    loop {
        let key = session.keys.jobs().data(id);
        let Data::Is(raw) = session.data(vec![key], usize::MAX).await.unwrap().remove(0) else {
            panic!("{id} is gone")
        };
        match submission::cancel(&raw, session.now_ms()) {
            Cancel::Write { from, bytes } => {
                if session.cancel(id, from, &raw, &bytes).await.unwrap() {
                    return true;
                }
            }
            Cancel::Finished(_) => return false,
            other => panic!("{other:?}"),
        }
    }
}

/// Revives the oldest dead letter, as `dlq requeue` does; answers how many were.
pub async fn revive(session: &mut Session, bench: &Bench) -> Result<usize, StoreError> {
    let (queue, protocol) = (queue(bench), bench.engine.protocol.clone());
    let Some(letter) = session.page(&queue.dead_letters, PageKind::Tail, 1).await?.entries.pop() else {
        return Ok(0);
    };
    let (origin, id) = protocol.revive(&letter);
    assert_eq!(origin.as_deref(), Some(queue.queue.as_str()));
    let records = protocol.records().unwrap();
    let data = session.named(records, std::slice::from_ref(&id)).await?.remove(0);
    let now_ms = session.now_ms();
    let mut effects = records.revived(&records.read(&id, data).unwrap(), &queue, now_ms);
    effects.push(Effect::Push { key: queue.queue.clone(), side: Side::Right, bytes: id });
    session.turn(&queue.dead_letters, &[(letter, Turn::Place(effects))]).await
}

/// A lane that opens, runs and settles.
pub struct Runner {
    pub lane: Lane,
    protocol: Arc<dyn Protocol>,
    queue: QueueKeys,
    settled: u64,
}

impl Runner {
    pub async fn new(bench: &Bench) -> Self {
        let (lane, protocol) = (bench.lane().await, bench.engine.protocol.clone());
        Self { lane, protocol, queue: queue(bench), settled: 0 }
    }

    /// Reads a job and marks it as started; `None` when it is not to be run, and then it is not held any more.
    pub async fn open(&mut self, entry: &Bytes) -> Option<Job> {
        loop {
            let decision = match self.decide_start(entry).await {
                Ok((job, effects)) => match self.start(entry, effects).await {
                    Status::Settled => return Some(job),
                    Status::Changed => continue,
                    status => panic!("{status:?}"),
                },
                Err(decision) => decision,
            };
            self.carry_out(entry, decision).await;
            return None;
        }
    }

    /// What a start changes, or what becomes of the entry instead.
    pub async fn decide_start(&mut self, entry: &Bytes) -> Result<(Job, Vec<Effect>), Decision> {
        let protocol = Arc::clone(&self.protocol);
        let job = self.read(entry).await?;
        let (lane, now_ms) = (self.lane.handle.id.clone(), self.lane.session.now_ms());
        match protocol.records().unwrap().start(&job, &lane, &self.queue, now_ms) {
            Start::Run(job, effects) => Ok((*job, effects)),
            Start::Drop(decision) => Err(decision),
        }
    }

    async fn read(&mut self, entry: &Bytes) -> Result<Job, Decision> {
        let protocol = Arc::clone(&self.protocol);
        let records = protocol.records().unwrap();
        let data = loop {
            match self.lane.session.named(records, std::slice::from_ref(entry)).await {
                Ok(mut data) => break data.remove(0),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        };
        let now_ms = self.lane.session.now_ms();
        records.read(entry, data).map_err(|why| protocol.reject(entry, &why, &self.queue, now_ms))
    }

    /// Says that a job is started, until it is answered.
    pub async fn start(&mut self, entry: &Bytes, effects: Vec<Effect>) -> Status {
        let jobs = [(0, entry.clone(), effects)];
        loop {
            match self.lane.session.start(&self.lane.handle, &jobs).await {
                Ok(started) => return started.unwrap().statuses[0],
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    }

    /// Settles a run, and reads the job again as often as somebody has changed it.
    pub async fn finish(&mut self, entry: &Bytes, mut job: Job, outcome: &Outcome) -> Verdict {
        let protocol = Arc::clone(&self.protocol);
        loop {
            self.settled += 1;
            let unique = format!("{}-{}", self.lane.handle.id, self.settled);
            let now_ms = self.lane.session.now_ms();
            let decision = protocol.settle(&job, outcome, &self.queue, now_ms, &unique);
            if let Some(verdict) = self.carry_out(entry, decision).await {
                return verdict;
            }
            job = match self.read(entry).await {
                Ok(job) => job,
                Err(decision) => return self.carry_out(entry, decision).await.unwrap(),
            };
            let lane = self.lane.handle.id.clone();
            if let Some(decision) = protocol.records().unwrap().disowned(&job, &lane, &self.queue, now_ms) {
                return self.carry_out(entry, decision).await.unwrap();
            }
        }
    }

    /// `None` when the job was changed, and the decision has to be made again.
    pub async fn carry_out(&mut self, entry: &Bytes, decision: Decision) -> Option<Verdict> {
        let Decision { verdict, effects } = decision;
        let mut cycle = self.lane.next();
        cycle.settlements =
            vec![Settlement { queue: 0, raw: entry.clone(), position: None, verdict, effects }];
        match self.lane.cycle(&cycle).await.statuses[0] {
            Status::Settled => Some(verdict),
            Status::Changed => None,
            status => panic!("{status:?}"),
        }
    }

    /// Reserves and runs whatever waits, with success; answers how many ran.
    pub async fn run_all(&mut self) -> usize {
        let mut ran = 0;
        loop {
            let entries = self.lane.reserve(16).await;
            if entries.is_empty() {
                return ran;
            }
            for entry in entries {
                if let Some(job) = self.open(&entry).await {
                    ran += 1;
                    self.finish(&entry, job, &Outcome::Done).await;
                }
            }
        }
    }
}
