//! Redis goes away, or its replies do, while workers serve Sidekiq's keys: jobs that wait, that fail and wait for their
//! retry, that are for later. Nobody keeps a list of what is done there, so the books are the handler's and the counters'.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use e2e::child::free_port;
use e2e::{
    AppendOnly, Behaviour, Fault, Options, Proxy, Recorder, RedisServer, Worker, WorkerOptions, eventually,
};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
/// Of this many jobs one fails once, one for good, and two are for later.
const KINDS: usize = 10;

/// The jobs of one test, and what is to become of them.
#[derive(Default)]
struct Load {
    /// How often each is run.
    runs: BTreeMap<String, usize>,
    dead: Vec<String>,
}

impl Load {
    /// Pushes more, as Sidekiq's clients do.
    async fn push(&mut self, redis: &mut MultiplexedConnection, recorder: &Recorder, count: usize) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        for _ in 0..count {
            let number = self.runs.len();
            let jid = format!("{number:024x}");
            let mut job = json!({ "class": "A", "args": [number], "jid": jid, "queue": "default", "retry": 5, "created_at": now });
            let (kind, mut runs) = (number % KINDS, 1);
            match kind {
                0 => {
                    recorder.behave(&jid, [Behaviour::Fail("once".into())]);
                    runs = 2;
                }
                1 => {
                    recorder.behave(&jid, [Behaviour::Fail("for good".into())]);
                    job["retry"] = json!(0);
                    self.dead.push(jid.clone());
                }
                _ => {}
            }
            if kind == 2 || kind == 3 {
                let later = now + f64::from(fastrand::u16(..3000)) / 1000.0;
                redis.zadd::<_, _, _, ()>("schedule", job.to_string(), later).await.unwrap();
            } else {
                redis.lpush::<_, _, ()>("queue:default", job.to_string()).await.unwrap();
            }
            self.runs.insert(jid, runs);
        }
    }

    /// Waits until all have ended, then looks at what became of each.
    async fn close(self, redis: &mut MultiplexedConnection, recorder: &Recorder) {
        let left = "local held = 0 \
            for _, key in ipairs(redis.call('KEYS', 'jobqueue:sidekiq:worker:*')) do \
              if redis.call('TYPE', key).ok == 'list' then held = held + redis.call('LLEN', key) end \
            end \
            return { redis.call('LLEN', 'queue:default'), redis.call('ZCARD', 'retry'), redis.call('ZCARD', 'schedule'), held }";
        eventually(SOON, "all jobs to have ended", async || {
            let left: Vec<usize> =
                redis::cmd("EVAL").arg(left).arg(0).query_async(&mut *redis).await.unwrap();
            if left == [0, 0, 0, 0] { Ok(()) } else { Err(left) }
        })
        .await;
        let mut ran: BTreeMap<String, usize> = BTreeMap::new();
        for run in recorder.runs().into_iter().filter(|run| run.path == "/jobs/execute") {
            *ran.entry(run.id).or_default() += 1;
        }
        let other: Vec<_> = (self.runs.iter())
            .map(|(jid, runs)| (jid, *runs, ran.get(jid).copied().unwrap_or(0)))
            .filter(|(_, wanted, found)| wanted != found)
            .collect();
        assert!(other.is_empty() && ran.len() == self.runs.len(), "(jid, runs wanted, runs): {other:?}");

        let dead: Vec<String> = redis.zrange("dead", 0, -1).await.unwrap();
        let jid = |job: &String| {
            let job: serde_json::Value = serde_json::from_str(job).unwrap();
            job["jid"].as_str().unwrap().to_owned()
        };
        let mut dead: Vec<String> = dead.iter().map(jid).collect();
        dead.sort();
        assert_eq!(dead, self.dead);
        // Whatever was settled twice counts twice: here, and where Sidekiq's page reads it.
        let runs: usize = self.runs.values().sum();
        let failed = runs - self.runs.len() + self.dead.len();
        let counted = figures(redis, &["HMGET", "jobqueue:sidekiq:counters", "done", "failed"]).await;
        assert_eq!(counted, (runs - failed, failed));
        eventually(SOON, "Sidekiq's own figures", async || {
            let shown = figures(redis, &["MGET", "stat:processed", "stat:failed"]).await;
            if shown == (runs, failed) { Ok(()) } else { Err((shown, runs, failed)) }
        })
        .await;
    }
}

/// Two numbers; nothing is 0.
async fn figures(redis: &mut MultiplexedConnection, words: &[&str]) -> (usize, usize) {
    let mut command = redis::Cmd::new();
    command.arg(words);
    let (one, two): (Option<usize>, Option<usize>) = command.query_async(redis).await.unwrap();
    (one.unwrap_or_default(), two.unwrap_or_default())
}

fn options(recorder: &Recorder) -> WorkerOptions {
    WorkerOptions::new("worker")
        .recorded_by(recorder)
        .env("PROTOCOL", "sidekiq")
        .env("SIDEKIQ_RETRY", "exponential")
        .env("WORKER_BACKOFF_BASE", "200ms")
        .env("WORKER_COUNT", 10)
}

#[tokio::test]
async fn a_redis_that_crashes_in_the_middle_of_sidekiq_jobs_costs_none_and_settles_none_twice() {
    let mut server =
        RedisServer::start(Options { appendonly: AppendOnly::Always, ..Options::default() }).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Slow(Duration::from_millis(50)));
    let options = options(&recorder).redis(server.addr());
    let workers = [Worker::spawn(&options), Worker::spawn(&options)];
    for worker in &workers {
        worker.wait_for_log("Opened a lane").await;
    }
    let mut load = Load::default();
    for _ in 0..4 {
        let before = recorder.runs().len();
        load.push(&mut server.connection().await, &recorder, 200).await;
        eventually(SOON, "half of them to have run", async || recorder.runs().len() >= before + 100).await;
        server.kill9();
        server.restart().await;
    }
    load.close(&mut server.connection().await, &recorder).await;
    for worker in &workers {
        assert_eq!(worker.metric("jobs_reaped_total", &[]).await, Some(0.0));
    }
}

async fn push(redis: &mut MultiplexedConnection, queue: &str, jid: &str, retry: bool) {
    let job =
        json!({ "class": "A", "args": [], "jid": jid, "queue": queue, "retry": retry, "created_at": 1.5 });
    redis.lpush::<_, _, ()>(format!("queue:{queue}"), job.to_string()).await.unwrap();
}

/// Whatever listens there in its place knows neither the path nor the words.
#[tokio::test]
async fn what_answers_in_place_of_the_application_opens_the_breaker_and_loses_no_job() {
    let server = RedisServer::start(Options::default()).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Answer(200, json!({ "welcome": true })));
    let options = options(&recorder).redis(server.addr()).env("CIRCUIT_BREAKER_COOLDOWN_PERIOD", "300ms");
    let worker = Worker::spawn(&options);
    let mut redis = server.connection().await;
    // Of jobs that are never retried, and not among the dead when they fail.
    for number in 0..100 {
        push(&mut redis, "default", &format!("j{number}"), false).await;
    }
    worker.wait_for_log("Breaker opened").await;
    recorder.by_default(Behaviour::Succeed);
    eventually(SOON, "all to have ended", async || {
        let done = figures(&mut redis, &["HMGET", "jobqueue:sidekiq:counters", "done", "failed"]).await;
        let dead: usize = redis.zcard("dead").await.unwrap();
        if dead > 0 && done == (100 - dead, dead) { Ok(()) } else { Err((done, dead)) }
    })
    .await;
}

/// What keeps it from reading which queues are paused is the type of the key: until that is known, nothing is taken.
#[tokio::test]
async fn no_job_is_taken_before_it_is_known_which_queues_are_paused() {
    let server = RedisServer::start(Options::default()).await;
    let recorder = Recorder::start().await;
    let mut redis = server.connection().await;
    redis.set::<_, _, ()>("paused", "no set").await.unwrap();
    push(&mut redis, "held", "held", true).await;
    push(&mut redis, "default", "free", true).await;
    let options = options(&recorder).redis(server.addr()).env("WORKER_PRIORITIES", "held,default");
    let worker = Worker::spawn(&options);
    worker.wait_for_log("Could not read which queues are paused, taking no jobs before that").await;
    let mut change = redis::pipe();
    change.atomic().del("paused").sadd("paused", "held");
    change.query_async::<()>(&mut redis).await.unwrap();
    recorder.wait_answered(1).await;
    assert_eq!(recorder.starts("free"), 1, "the first to run, though the other comes before it");
    redis.del::<_, ()>("paused").await.unwrap();
    recorder.wait_started("held", 1).await;
}

#[tokio::test]
async fn a_node_of_a_redis_cluster_is_refused_by_its_plain_address() {
    // The bus has its port 10,000 higher, which may be none.
    let config = vec!["cluster-enabled yes".to_owned(), format!("cluster-port {}", free_port())];
    let server = RedisServer::start(Options { config, ..Options::default() }).await;
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .env("PROTOCOL", "sidekiq")
        .env("WORKER_HANDLER_KIND", "simulate");
    let output = tokio::task::spawn_blocking(move || options.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is a node of a Redis Cluster, which protocol sidekiq cannot use"), "{said}");
}

#[tokio::test]
async fn random_lost_replies_under_sidekiqs_load_lose_and_double_nothing() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let recorder = Recorder::start().await;
    let options = options(&recorder).redis(proxy.addr());
    let workers = [Worker::spawn(&options), Worker::spawn(&options)];
    for worker in &workers {
        worker.wait_for_log("Opened a lane").await;
    }
    let rules = [
        proxy.on(Fault::LoseReply, 0, usize::MAX, |_| fastrand::u8(..) < 6),
        proxy.on(Fault::LoseCommand, 0, usize::MAX, |_| fastrand::u8(..) < 2),
    ];
    let mut redis = server.connection().await;
    let mut load = Load::default();
    // As many as it takes until enough was lost on the way.
    eventually(SOON, "lost replies", async || {
        load.push(&mut redis, &recorder, 10).await;
        let lost: usize = rules.iter().map(|rule| rule.hits()).sum();
        if lost > 30 { Ok(()) } else { Err(lost) }
    })
    .await;
    proxy.clear();
    load.close(&mut redis, &recorder).await;
}
