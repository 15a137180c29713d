//! The engine of one test: a queue set of its own on a shared server, lanes that say what a test tells them to,
//! and a look at every place a job can be in.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use jobqueue::config::Config;
use jobqueue::effects::{Decision, Side};
use jobqueue::engine::Engine;
use jobqueue::keys::{Keys, QueueKeys};
use jobqueue::outcome::{Failure, Outcome, Reason};
use jobqueue::reaper::{self, Reaper};
use jobqueue::store::{
    Cycle, Cycled, Enqueue, LaneHandle, QueueAsk, Registration, Session, Settlement, Status, StoreError,
};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::redis_server::{Options, RedisServer, connect};

/// Jobs are taken from the right, as the `files` protocol does.
pub const CONSUMING: Side = Side::Right;
/// A lane's TTL where a test does not care: nothing expires while it runs.
const LONG_TTL_MS: u64 = 600_000;

/// The server that the tests of one binary share; each has keys of its own.
pub async fn shared_server() -> &'static RedisServer {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    SERVER.get_or_init(|| RedisServer::start(Options::default())).await
}

/// A prefix that no other test uses.
pub fn fresh_prefix() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A configuration as it would stand in a file.
pub fn config(tree: Value) -> Config {
    Config::from_value(tree).unwrap_or_else(|problems| panic!("{problems}")).config
}

/// A small job.
pub fn job(id: &str) -> Bytes {
    Bytes::from(json!({ "id": id }).to_string())
}

/// A job of about `size` bytes: from 4 KiB on it is settled by its position.
pub fn large_job(id: &str, size: usize) -> Bytes {
    Bytes::from(json!({ "id": id, "filling": "x".repeat(size) }).to_string())
}

/// The id of a job, however it is wrapped: in a delayed set, among the dead letters.
pub fn id_of(entry: &[u8]) -> String {
    let start = entry.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let object: Value = serde_json::from_slice(&entry[start..]).unwrap_or_default();
    match (object["id"].as_str(), object["raw"].as_str()) {
        (Some(id), _) => id.to_owned(),
        (None, Some(raw)) => raw.to_owned(),
        (None, None) => String::from_utf8_lossy(entry).into_owned(),
    }
}

/// The ids of jobs, in order.
pub fn ids(entries: &[Bytes]) -> Vec<String> {
    entries.iter().map(|entry| id_of(entry)).collect()
}

/// A failure that a handler would report.
pub fn failure() -> Outcome {
    Outcome::Failed(Failure::new(Reason::Handler, "no"))
}

/// A failure after which no retry helps.
pub fn kill() -> Outcome {
    Outcome::Kill(Failure::new(Reason::Killed, "no"))
}

/// A queue set with its own keys.
pub struct Bench {
    /// Its parts.
    pub engine: Engine,
    /// The keys of its first shard.
    pub keys: Keys,
    /// A client that is not ours: pushes jobs, breaks keys, looks.
    pub redis: MultiplexedConnection,
    prefix: String,
}

impl Bench {
    /// On the shared server.
    pub async fn new() -> Self {
        Self::on(shared_server().await, json!({})).await
    }

    /// On a server without TLS or password, with further configuration.
    pub async fn on(server: &RedisServer, extra: Value) -> Self {
        Self::through(server, server.addr(), extra).await
    }

    /// As [`Self::on`], but the engine connects to `addr`: a proxy.
    pub async fn through(server: &RedisServer, addr: SocketAddr, extra: Value) -> Self {
        let mut tree = json!({ "key_prefix": fresh_prefix(), "redis": { "addr": addr.to_string() } });
        merge(&mut tree, extra);
        let config = config(tree);
        let redis = connect(&format!("redis://{}/{}", server.addr(), config.redis.db)).await;
        let engine = Engine::new(&config);
        let keys = engine.shards[0].clone();
        Self { engine, keys, redis, prefix: config.prefix().to_owned() }
    }

    /// A session of its own.
    pub fn session(&self) -> Session {
        self.engine.session(&self.keys)
    }

    /// The keys of the highest priority.
    pub fn high(&self) -> QueueKeys {
        self.keys.queues[0].clone()
    }

    /// The keys of the lowest priority.
    pub fn low(&self) -> QueueKeys {
        self.keys.queues[1].clone()
    }

    /// A lane whose heartbeat outlives the test.
    pub async fn lane(&self) -> Lane {
        self.lane_with_ttl(LONG_TTL_MS).await
    }

    /// A lane whose heartbeat lasts `ttl_ms`.
    pub async fn lane_with_ttl(&self, ttl_ms: u64) -> Lane {
        self.lane_of(registration(ttl_ms)).await
    }

    /// A lane of this process.
    pub async fn lane_of(&self, who: Registration) -> Lane {
        let mut session = self.session();
        let handle =
            session.persist(async |session| session.register(&who).await).await.expect("register a lane");
        Lane {
            session,
            handle,
            engine: self.engine.clone(),
            seq: 0,
            held: vec![Vec::new(); self.keys.queues.len()],
            settled: 0,
        }
    }

    /// A reaper that waits for nothing it does not have to.
    pub fn reaper(&self, ttl: Duration) -> Reaper {
        Reaper::new(self.session(), self.engine.protocol.clone(), reaper_settings(ttl))
    }

    /// Pushes jobs as any client does; the first is the first to be served.
    pub async fn push(&mut self, queue: &str, jobs: &[Bytes]) {
        for job in jobs {
            self.redis.lpush::<_, _, ()>(queue, &job[..]).await.expect("push a job");
        }
    }

    /// A list from its head.
    pub async fn list(&mut self, key: &str) -> Vec<Bytes> {
        let entries: Vec<Vec<u8>> = self.redis.lrange(key, 0, -1).await.expect("read a list");
        entries.into_iter().map(Bytes::from).collect()
    }

    /// The ids in a list, from its head.
    pub async fn ids(&mut self, key: &str) -> Vec<String> {
        ids(&self.list(key).await)
    }

    /// The ids in a sorted set.
    pub async fn delayed(&mut self, key: &str) -> Vec<String> {
        let entries: Vec<Vec<u8>> = self.redis.zrange(key, 0, -1).await.expect("read a sorted set");
        entries.iter().map(|entry| id_of(entry)).collect()
    }

    /// Every place with jobs in it, by the key without its prefix: the ids, a list from its head.
    pub async fn places(&mut self) -> BTreeMap<String, Vec<String>> {
        let entries = self.entries().await;
        entries.into_iter().map(|(place, entries)| (place, ids(&entries))).collect()
    }

    /// As [`Self::places`], byte for byte.
    pub async fn entries(&mut self) -> BTreeMap<String, Vec<Bytes>> {
        let found = entries(&mut self.redis, &self.prefix).await;
        let bytes = |entries: Vec<Vec<u8>>| entries.into_iter().map(Bytes::from).collect();
        found.into_iter().map(|(key, entries)| (self.place(&key), bytes(entries))).collect()
    }

    /// What [`Self::places`] calls a key.
    pub fn place(&self, key: &str) -> String {
        key.strip_prefix(&format!("{}:", self.prefix)).unwrap_or(key).to_owned()
    }

    /// How often each id is anywhere.
    pub async fn census(&mut self) -> BTreeMap<String, usize> {
        let mut census = BTreeMap::new();
        for id in self.places().await.into_values().flatten() {
            *census.entry(id).or_insert(0) += 1;
        }
        census
    }

    /// Each of these ids is in exactly one place, and nothing else is.
    pub async fn assert_conserved(&mut self, expected: &[&str]) {
        let mut wanted = BTreeMap::new();
        for id in expected {
            *wanted.entry((*id).to_owned()).or_insert(0) += 1;
        }
        let places = self.places().await;
        assert_eq!(self.census().await, wanted, "in {places:#?}");
    }
}

/// Who opens the lanes of a test.
pub fn registration(ttl_ms: u64) -> Registration {
    Registration { process: "host-1".into(), control: "host-1".into(), ttl_ms, ..Registration::default() }
}

/// A reaper in a hurry.
pub fn reaper_settings(ttl: Duration) -> reaper::Settings {
    reaper::Settings {
        ttl,
        park_timeout: Duration::from_millis(100),
        page_delay: Duration::ZERO,
        scan_count: 10_000,
        scan_pages: usize::MAX,
        pass_budget: Duration::from_secs(60),
        cause_wait: Duration::ZERO,
    }
}

/// All lists and delayed sets below a prefix, read in one step.
async fn entries(redis: &mut MultiplexedConnection, prefix: &str) -> Vec<(String, Vec<Vec<u8>>)> {
    // The registry's sets hold lanes, not jobs.
    const LOOK: &str = r"
        local found = {}
        for _, glob in ipairs({ ARGV[1] .. ':*', '{' .. ARGV[1] .. ':*' }) do
          for _, key in ipairs(redis.call('KEYS', glob)) do
            local kind, entries = redis.call('TYPE', key).ok, nil
            if kind == 'list' then entries = redis.call('LRANGE', key, 0, -1) end
            if kind == 'zset' and not key:find(':lanes$') and not key:find(':reaping$') then
              entries = redis.call('ZRANGE', key, 0, -1)
            end
            if entries then found[#found + 1] = { key, entries } end
          end
        end
        return found";
    let mut look = redis::cmd("EVAL");
    look.arg(LOOK).arg(0).arg(prefix);
    look.query_async(redis).await.expect("look at all places")
}

/// Lays `over` over `base`, object by object.
fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

/// A lane that does what a test tells it to, and keeps the same books as the worker's.
pub struct Lane {
    /// Its connection.
    pub session: Session,
    /// Its lease.
    pub handle: LaneHandle,
    /// The last answered call.
    pub seq: u64,
    /// What it believes to hold, a queue.
    pub held: Vec<Vec<Bytes>>,
    engine: Engine,
    settled: u64,
}

impl Lane {
    /// The next call, which asks for nothing yet.
    pub fn next(&self) -> Cycle {
        let ask = |held: &Vec<Bytes>| QueueAsk { expected: held.len(), ..QueueAsk::default() };
        Cycle { seq: self.seq + 1, queues: self.held.iter().map(ask).collect(), ..Cycle::default() }
    }

    /// The next call, which reserves up to `room` jobs from any queue.
    pub fn asking(&self, room: usize) -> Cycle {
        let mut cycle = self.next();
        cycle.room = room;
        for ask in &mut cycle.queues {
            (ask.limit, ask.suspects) = (room, room);
        }
        cycle
    }

    /// Says it once; the answer is entered in the books.
    pub async fn say(&mut self, cycle: &Cycle) -> Result<Option<Cycled>, StoreError> {
        let (side, max) = (self.engine.protocol.consuming_side(), self.engine.completed_max);
        let answer = self.session.cycle(&self.handle, cycle, side, max).await?;
        if let Some(cycled) = &answer {
            self.enter(cycle, cycled);
        }
        Ok(answer)
    }

    /// Says it until it is answered, as the worker does.
    pub async fn cycle(&mut self, cycle: &Cycle) -> Cycled {
        loop {
            match self.say(cycle).await {
                Ok(answer) => return answer.expect("the lease is ours"),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    }

    /// Reserves up to `room` jobs.
    pub async fn reserve(&mut self, room: usize) -> Vec<Bytes> {
        let cycle = self.asking(room);
        let cycled = self.cycle(&cycle).await;
        cycled.queues.into_iter().flat_map(|queue| queue.jobs).collect()
    }

    /// A settlement of a held job, as the protocol decides it. Large ones are named by position.
    pub fn settlement(&mut self, queue: usize, raw: &Bytes, outcome: &Outcome) -> Settlement {
        let at = self.held[queue].iter().position(|held| held == raw).expect("held");
        let Decision { verdict, effects } = self.decide(queue, raw, outcome);
        let position = (raw.len() > 4096).then_some(at);
        Settlement { queue, raw: raw.clone(), position, verdict, effects }
    }

    /// What the protocol decides for a job.
    pub fn decide(&mut self, queue: usize, raw: &Bytes, outcome: &Outcome) -> Decision {
        self.settled += 1;
        let unique = format!("{}-{}", self.handle.id, self.settled);
        let keys = self.session.keys.queues[queue].clone();
        let now_ms = self.session.now_ms();
        match self.engine.protocol.decode(raw.clone()) {
            Ok(job) => self.engine.protocol.settle(&job, outcome, &keys, now_ms, &unique),
            Err((raw, why)) => self.engine.protocol.reject(&raw, &why, &keys, now_ms),
        }
    }

    /// Settles one job, by itself.
    pub async fn settle(&mut self, queue: usize, raw: &Bytes, outcome: &Outcome) -> Cycled {
        let mut cycle = self.next();
        if *outcome == Outcome::Done && raw.len() <= 4096 {
            cycle.queues[queue].done.push(raw.clone());
        } else {
            cycle.settlements.push(self.settlement(queue, raw, outcome));
        }
        self.cycle(&cycle).await
    }

    fn enter(&mut self, cycle: &Cycle, cycled: &Cycled) {
        self.seq = cycle.seq;
        let settlements = cycle
            .settlements
            .iter()
            .map(|settlement| (settlement.queue, &settlement.raw, settlement.position));
        let done = (cycle.queues.iter().enumerate())
            .flat_map(|(queue, ask)| ask.done.iter().map(move |raw| (queue, raw, None)));
        let gone: Vec<_> = (settlements.chain(done).zip(&cycled.statuses))
            .filter(|(_, status)| !matches!(status, Status::Refused | Status::Changed))
            .map(|(settled, _)| settled)
            .collect();
        // In the order of the script: positions are those before the call, then the first of equal bytes goes.
        let mut positions: Vec<_> =
            gone.iter().filter_map(|(queue, _, at)| at.map(|at| (*queue, at))).collect();
        positions.sort_unstable();
        for (queue, at) in positions.into_iter().rev() {
            self.held[queue].remove(at);
        }
        for (queue, raw, _) in gone.into_iter().filter(|(_, _, at)| at.is_none()) {
            if let Some(at) = self.held[queue].iter().position(|held| held == raw) {
                self.held[queue].remove(at);
            }
        }
        for (held, returned) in self.held.iter_mut().zip(&cycled.queues) {
            if returned.whole {
                held.clear();
            }
            held.extend(returned.jobs.iter().cloned());
        }
    }
}

/// Jobs to be enqueued in one call.
pub fn enqueue(queue: &str, jobs: &[Bytes]) -> Vec<Enqueue> {
    jobs.iter().map(|raw| Enqueue { queue: queue.to_owned(), raw: raw.clone(), seen: None }).collect()
}

/// The scripts of the engine by name, as they are sent.
pub const SCRIPTS: [(&str, &str); 28] = [
    ("widen", include_str!("../../queue/src/scripts/widen.lua")),
    ("cancel", include_str!("../../queue/src/scripts/cancel.lua")),
    ("create", include_str!("../../queue/src/scripts/create.lua")),
    ("disown", include_str!("../../queue/src/scripts/disown.lua")),
    ("list", include_str!("../../queue/src/scripts/list.lua")),
    ("number", include_str!("../../queue/src/scripts/number.lua")),
    (
        "cycle",
        concat!(
            include_str!("../../queue/src/scripts/effects.lua"),
            include_str!("../../queue/src/scripts/cycle.lua")
        ),
    ),
    (
        "move",
        concat!(
            include_str!("../../queue/src/scripts/effects.lua"),
            include_str!("../../queue/src/scripts/move.lua")
        ),
    ),
    ("beat", include_str!("../../queue/src/scripts/beat.lua")),
    ("depart", include_str!("../../queue/src/scripts/depart.lua")),
    ("register", include_str!("../../queue/src/scripts/register.lua")),
    ("extend", include_str!("../../queue/src/scripts/extend.lua")),
    ("close", include_str!("../../queue/src/scripts/close.lua")),
    ("fence", include_str!("../../queue/src/scripts/fence.lua")),
    ("forget", include_str!("../../queue/src/scripts/forget.lua")),
    ("orphan", include_str!("../../queue/src/scripts/orphan.lua")),
    (
        "start",
        concat!(
            include_str!("../../queue/src/scripts/effects.lua"),
            include_str!("../../queue/src/scripts/start.lua")
        ),
    ),
    ("data", include_str!("../../queue/src/scripts/data.lua")),
    (
        "turn",
        concat!(
            include_str!("../../queue/src/scripts/effects.lua"),
            include_str!("../../queue/src/scripts/turn.lua")
        ),
    ),
    ("enqueue", include_str!("../../queue/src/scripts/enqueue.lua")),
    ("keep", include_str!("../../queue/src/scripts/keep.lua")),
    ("limit", include_str!("../../queue/src/scripts/limit.lua")),
    ("unsee", include_str!("../../queue/src/scripts/unsee.lua")),
    ("page", include_str!("../../queue/src/scripts/page.lua")),
    ("scored", include_str!("../../queue/src/scripts/scored.lua")),
    ("own", include_str!("../../queue/src/scripts/own.lua")),
    ("snapshot", include_str!("../../queue/src/scripts/snapshot.lua")),
    ("drained", include_str!("../../queue/src/scripts/drained.lua")),
];

/// Loads a script, so that the next call by its SHA is carried out; answers the SHA.
pub async fn load_script(redis: &mut MultiplexedConnection, name: &str) -> String {
    let (_, source) = SCRIPTS.iter().find(|(known, _)| *known == name).expect("a script of that name");
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(source);
    load.query_async(redis).await.expect("load a script")
}
