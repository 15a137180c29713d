//! Our worker as a contestant: the release binary, with the settings that are named.
use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::{AppendOnly, Options, RedisServer, Worker, WorkerOptions};
use redis::aio::MultiplexedConnection;

use crate::contest::SIZE;
use crate::jobs;
use crate::report::Busy;

/// Where `files` jobs are pushed.
pub const QUEUE: &str = "jobqueue:low_priority";
const COMPLETED: &str = "jobqueue:completed";
/// A producer that runs beside the worker keeps about this many jobs waiting.
const BACKLOG: u64 = 10_000;

/// One setting of ours.
#[derive(Debug, Clone, Copy)]
pub struct Ours {
    /// In words.
    pub setting: &'static str,
    /// Persistence of Redis.
    pub appendonly: AppendOnly,
    /// `worker.count` and `worker.completed_max`; the defaults when `None`.
    pub tuned: Option<(u32, i64)>,
    /// Jobs are pushed while others are worked on, instead of all before.
    pub fed: bool,
    /// Sidekiq's jobs in Sidekiq's keys.
    pub sidekiq: bool,
}

/// The row of the protocol `sidekiq`, which is compared with the first.
pub const SIDEKIQ: &str = "protocol sidekiq, count 200, no AOF";

/// Every setting that is measured; the first is the one that ratios are about.
pub fn cases() -> Vec<Ours> {
    let tuned = Some((200, 0));
    let ours = |setting, appendonly, tuned, fed| Ours { setting, appendonly, tuned, fed, sidekiq: false };
    let sidekiq = ours(SIDEKIQ, AppendOnly::Off, tuned, false);
    vec![
        ours("count 200, keeps no completed jobs, no AOF", AppendOnly::Off, tuned, false),
        Ours { sidekiq: true, ..sidekiq },
        ours("the first, pushed while it works", AppendOnly::Off, tuned, true),
        ours("default configuration, no AOF", AppendOnly::Off, None, false),
        ours("count 200, keeps no completed jobs, AOF everysec", AppendOnly::EverySec, tuned, false),
        ours("count 200, keeps no completed jobs, AOF always", AppendOnly::Always, tuned, false),
    ]
}

/// The configuration of a worker whose handler takes no time.
pub fn config(tuned: Option<(u32, i64)>) -> String {
    let tuned = tuned.map_or_else(String::new, |(count, completed_max)| {
        format!("  count: {count}\n  completed_max: {completed_max}\n")
    });
    format!("worker:\n{tuned}  handler: {{kind: simulate, simulate: {{base: 0ms, per_mib: 0ms}}}}\n")
}

impl Ours {
    /// The Redis it is measured on.
    pub fn redis(&self) -> Options {
        Options { appendonly: self.appendonly, ..Options::default() }
    }

    /// Starts the worker.
    pub fn worker(&self, server: &RedisServer) -> Worker {
        let protocol = if self.sidekiq { "sidekiq" } else { "files" };
        let options = WorkerOptions::new("worker").config(&config(self.tuned)).env("PROTOCOL", protocol);
        Worker::spawn(&options.redis(server.addr()))
    }

    /// Where its jobs are pushed.
    pub const fn queue(&self) -> &'static str {
        if self.sidekiq { "queue:default" } else { QUEUE }
    }

    /// Its job of this number.
    pub fn job(&self, number: u64) -> String {
        if self.sidekiq { jobs::sidekiq(number, SIZE) } else { jobs::job(number, SIZE) }
    }

    /// Where it counts.
    const fn counters(&self) -> &'static str {
        if self.sidekiq { "jobqueue:sidekiq:counters" } else { "jobqueue:counters" }
    }

    /// Acknowledgements so far.
    pub async fn acked(&self, redis: &mut MultiplexedConnection) -> anyhow::Result<u64> {
        let done: Option<u64> =
            redis::cmd("HGET").arg(self.counters()).arg("done").query_async(redis).await?;
        Ok(done.unwrap_or_default())
    }

    /// Every job was acknowledged once, none is left anywhere, and what was to be kept is kept.
    pub async fn check(&self, redis: &mut MultiplexedConnection, total: u64) -> anyhow::Result<()> {
        let done = self.acked(redis).await?;
        ensure!(done == total, "{done} acknowledgements of {total} jobs");
        let failed: Option<u64> =
            redis::cmd("HGET").arg(self.counters()).arg("failed").query_async(redis).await?;
        ensure!(failed.is_none(), "{failed:?} jobs failed");
        let (keys, mut kept) = (all_keys(redis).await?, 0);
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query_async(redis).await?;
            let is_registry = key.ends_with(":lanes");
            ensure!(kind != "zset" || is_registry, "{key} holds jobs");
            if kind == "list" {
                ensure!(key == COMPLETED, "{key} holds jobs");
                kept = self.check_completed(redis, total).await?;
            }
        }
        let keeps = if self.sidekiq { Some((0, 0)) } else { self.tuned };
        let keeps = keeps.map_or(10_000, |(_, completed_max)| u64::try_from(completed_max).unwrap_or(total));
        ensure!(kept == keeps.min(total), "{kept} jobs are kept as completed, should be {keeps}");
        Ok(())
    }

    async fn check_completed(&self, redis: &mut MultiplexedConnection, total: u64) -> anyhow::Result<u64> {
        let entries: Vec<Vec<u8>> =
            redis::cmd("LRANGE").arg(COMPLETED).arg(0).arg(-1).query_async(redis).await?;
        let mut numbers = HashSet::new();
        for entry in &entries {
            let job = jobqueue::job::Job::decode(entry.clone().into(), usize::MAX);
            let job = job.map_err(|(_, why)| why).context("an entry of the completed list")?;
            let number = jobs::number(&job.fields.id).filter(|number| *number < total);
            ensure!(
                number.is_some_and(|number| jobs::job(number, SIZE).as_bytes() == entry),
                "a job has changed"
            );
            ensure!(numbers.insert(number), "job {number:?} was completed twice");
        }
        Ok(u64::try_from(entries.len())?)
    }
}

/// What a job costs Redis when there is much to do: since `CONFIG RESETSTAT`, in which the acknowledgements
/// went from the first figure to the second.
pub async fn busy(
    redis: &mut MultiplexedConnection,
    worker: &Worker,
    (from, to): (u64, u64),
    trips_before: f64,
) -> anyhow::Result<Busy> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(redis).await?;
    let trips = worker.metric("redis_round_trips_total", &[]).await.unwrap_or_default() - trips_before;
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let jobs = (to - from).max(1) as f64;
    let calls = |wanted: Option<&str>| -> f64 {
        let of_line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls: f64 = rest.split_once(',')?.0.parse().ok()?;
            (wanted.is_none_or(|wanted| wanted == name)).then_some(calls)
        };
        stats.lines().filter_map(of_line).sum()
    };
    Ok(Busy {
        script_calls_per_job: calls(Some("evalsha")) / jobs,
        round_trips_per_job: trips / jobs,
        commands_per_job: calls(None) / jobs,
    })
}

/// Pushes jobs as fast as they are taken.
pub async fn feed(ours: Ours, mut redis: MultiplexedConnection, total: u64) -> anyhow::Result<()> {
    let mut pushed = 0;
    while pushed < total {
        let waiting: u64 = redis::cmd("LLEN").arg(ours.queue()).query_async(&mut redis).await?;
        if waiting >= BACKLOG {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let next = (pushed + BACKLOG / 4).min(total);
        jobs::push(&mut redis, ours.queue(), pushed..next, |number| ours.job(number)).await?;
        pushed = next;
    }
    Ok(())
}

async fn all_keys(redis: &mut MultiplexedConnection) -> anyhow::Result<Vec<String>> {
    let (mut keys, mut cursor) = (Vec::new(), 0u64);
    loop {
        let page: (u64, Vec<String>) =
            redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(1000).query_async(redis).await?;
        keys.extend(page.1);
        cursor = page.0;
        if cursor == 0 {
            return Ok(keys);
        }
    }
}
