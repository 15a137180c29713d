//! Redis goes away, or its replies do, while workers serve Sidekiq's keys: jobs that wait, that fail and wait for their
//! retry, that are for later. Nobody keeps a list of what is done there, so the books are the handler's and the counters'.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

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
