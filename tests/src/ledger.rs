//! Where the jobs of a `files` queue set are, read in one atomic look: the books that every test of faults is
//! closed with. A job is in exactly one place; an id that stands in two, or in none, is what we look for.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

use crate::redis_server::RedisServer;
use crate::wait::eventually;

/// The default key of the queue `high`.
pub const HIGH: &str = "jobqueue:high_priority";
/// The default key of the queue `low`.
pub const LOW: &str = "jobqueue:low_priority";
/// The default key of the dead letters.
pub const DEAD: &str = "jobqueue:dead_letter";
/// The default key of the completed jobs.
pub const COMPLETED: &str = "jobqueue:completed";

/// One look at everything, for a handful of keys.
const LOOK: &str = "
local function all(pattern)
  local entries = {}
  for _, key in ipairs(redis.call('KEYS', pattern)) do
    for _, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do entries[#entries + 1] = entry end
  end
  return entries
end
local delayed = {}
for _, key in ipairs(redis.call('KEYS', 'jobqueue:delayed:*')) do
  for _, entry in ipairs(redis.call('ZRANGE', key, 0, -1)) do delayed[#delayed + 1] = entry end
end
return { all('jobqueue:*_priority'), all('jobqueue:*:suspects'), delayed, all('jobqueue:worker:*:processing'),
  all('jobqueue:completed'), all('jobqueue:dead_letter') }";

/// The jobs of one Redis.
#[derive(Clone, Debug)]
pub struct Ledger {
    connection: MultiplexedConnection,
}

/// The entries of each place, as they stand there.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// In a queue.
    pub waiting: Vec<Value>,
    /// Among a queue's suspects.
    pub suspects: Vec<Value>,
    /// In a delayed set.
    pub delayed: Vec<Value>,
    /// In a lane's list.
    pub held: Vec<Value>,
    /// Completed, the newest first.
    pub completed: Vec<Value>,
    /// Dead letters, the newest first.
    pub dead: Vec<Value>,
}

impl Places {
    /// How many stand in each: waiting, suspects, delayed, held, completed, dead.
    pub fn counts(&self) -> [usize; 6] {
        [
            self.waiting.len(),
            self.suspects.len(),
            self.delayed.len(),
            self.held.len(),
            self.completed.len(),
            self.dead.len(),
        ]
    }

    /// How often each id stands anywhere.
    pub fn by_id(&self) -> BTreeMap<String, usize> {
        let places = [&self.waiting, &self.suspects, &self.delayed, &self.held, &self.completed, &self.dead];
        let mut ids = BTreeMap::new();
        for entry in places.into_iter().flatten() {
            *ids.entry(id_of(entry)).or_default() += 1;
        }
        ids
    }

    /// Every one of these ids stands in exactly one place, and no other does: nothing lost, nothing doubled.
    #[track_caller]
    pub fn assert_exactly(&self, ids: &[String]) {
        let by_id = self.by_id();
        let lost: Vec<_> = ids.iter().filter(|id| !by_id.contains_key(*id)).collect();
        let doubled: Vec<_> = by_id.iter().filter(|(_, count)| **count > 1).collect();
        assert!(lost.is_empty() && doubled.is_empty(), "lost {lost:?}, doubled {doubled:?}");
        assert_eq!(by_id.len(), ids.len(), "strangers among {by_id:?}");
    }
}

/// The id of a job.
pub fn id_of(entry: &Value) -> String {
    entry["id"].as_str().unwrap_or_default().to_owned()
}

/// `NAME-1`, `NAME-2`, ... up to `count`.
pub fn ids(name: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{name}-{n}")).collect()
}

/// A job as a producer writes it.
pub fn job(id: &str) -> Value {
    json!({
        "id": id, "filepath": format!("/data/{id}.txt"), "filesize": 0, "priority": "low", "retries": 0,
        "creation_time": "2026-01-01T00:00:00Z", "trace_id": "", "span_id": "",
    })
}

impl Ledger {
    /// The books of this server.
    pub async fn of(server: &RedisServer) -> Self {
        Self { connection: server.connection().await }
    }

    /// Pushes a job for each id, as any client would.
    pub async fn enqueue(&mut self, queue: &str, ids: &[String]) {
        for page in ids.chunks(100) {
            let jobs: Vec<String> = page.iter().map(|id| job(id).to_string()).collect();
            self.push(queue, &jobs).await;
        }
    }

    /// Pushes bytes, whatever they are.
    pub async fn push(&mut self, queue: &str, entries: &[impl AsRef<[u8]>]) {
        let mut push = redis::cmd("LPUSH");
        push.arg(queue);
        for entry in entries {
            push.arg(entry.as_ref());
        }
        push.query_async::<()>(&mut self.connection).await.expect("push jobs");
    }

    /// Sends any command; for what no method says better.
    pub async fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Where everything is.
    pub async fn places(&mut self) -> Places {
        let mut look = redis::cmd("EVAL");
        look.arg(LOOK).arg(0);
        let found: Vec<Vec<Vec<u8>>> = look.query_async(&mut self.connection).await.expect("read all places");
        let mut found =
            found.into_iter().map(|entries| entries.iter().map(|entry| read(entry)).collect::<Vec<Value>>());
        let mut next = || found.next().expect("six places");
        Places {
            waiting: next(),
            suspects: next(),
            delayed: next(),
            held: next(),
            completed: next(),
            dead: next(),
        }
    }

    /// Waits until `there`, naming the counts last seen.
    #[track_caller]
    pub fn until(
        &mut self,
        timeout: Duration,
        what: &str,
        there: impl Fn(&Places) -> bool,
    ) -> impl Future<Output = Places> {
        eventually(timeout, what, async move || {
            let places = self.places().await;
            if there(&places) { Ok(places) } else { Err(places.counts()) }
        })
    }

    /// Waits until this many jobs are completed.
    #[track_caller]
    pub fn until_completed(&mut self, timeout: Duration, count: usize) -> impl Future<Output = Places> {
        self.until(timeout, "all jobs to be completed", move |places| places.completed.len() >= count)
    }
}

/// An entry as JSON; a delayed one stands behind a tag that makes it unique.
fn read(entry: &[u8]) -> Value {
    let untagged = entry.iter().position(|byte| *byte == b'|').map_or(entry, |at| &entry[at + 1..]);
    let parsed = serde_json::from_slice(entry).or_else(|_| serde_json::from_slice(untagged));
    parsed.unwrap_or_else(|_| json!({ "id": String::from_utf8_lossy(entry) }))
}
