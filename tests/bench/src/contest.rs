//! Acknowledged jobs a second, ours and the peers' by the same rules.
//!
//! A contestant has a queue filled with distinct jobs, then its worker is started. Acknowledgements are read from
//! Redis, by us, while it works: the window opens when the warm-up jobs are acknowledged, and closes when the
//! last job is. Then nothing may be left anywhere, and the number of acknowledgements must be exact.
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use e2e::RedisServer;
use redis::aio::MultiplexedConnection;

use crate::Effort;
use crate::ours::{self, Ours};
use crate::peers::Peer;
use crate::progress;
use crate::report::{Busy, Throughput, median};

/// The size of a job.
pub const SIZE: usize = 200;
/// One job in this many is warm-up.
const WARM_UP: u64 = 10;
/// Jobs from which the size of the real run is estimated.
const TRIAL: u64 = 20_000;
/// Jobs in Redis at most, about 1 GiB of them.
const MOST: u64 = 4_000_000;
/// However slow it is: more than this is not waited for.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks at the acknowledgements: 0.1 % of a window, and no load to speak of.
const LOOK: Duration = Duration::from_millis(4);

enum Contestant<'a> {
    Ours(Ours),
    Peer(&'a Peer, usize),
}

/// What one turn of one contestant brought.
struct Turn {
    jobs: u64,
    seconds: f64,
    busy: Option<Busy>,
}

/// Every contestant, several rounds.
pub async fn run(peers: &[Peer], effort: Effort) -> anyhow::Result<Vec<Throughput>> {
    let mut contestants: Vec<Contestant> = ours::cases().into_iter().map(Contestant::Ours).collect();
    for peer in peers {
        contestants.extend(peer.concurrency.iter().map(|concurrency| Contestant::Peer(peer, *concurrency)));
    }
    let mut sizes = Vec::new();
    for contestant in &contestants {
        let trial = contestant.turn(TRIAL).await.with_context(|| contestant.name())?;
        sizes.push(jobs_for(&trial, effort));
    }
    let mut turns: Vec<Vec<Turn>> = contestants.iter().map(|_| Vec::new()).collect();
    for round in 1..=effort.rounds {
        for (at, contestant) in contestants.iter().enumerate() {
            let mut turn = contestant.turn(sizes[at]).await.with_context(|| contestant.name())?;
            if turn.seconds < 0.75 * effort.window.as_secs_f64() {
                // The trial was much slower, the window is too short.
                sizes[at] = jobs_for(&turn, effort);
                turn = contestant.turn(sizes[at]).await.with_context(|| contestant.name())?;
            }
            progress(&format!(
                "round {round}: {}: {} jobs in {:.1} s, {:.0} jobs/s",
                contestant.name(),
                turn.jobs,
                turn.seconds,
                rate(&turn)
            ));
            turns[at].push(turn);
        }
    }
    Ok(contestants.iter().zip(turns).map(|(contestant, turns)| summary(contestant, turns)).collect())
}

/// How many jobs fill the window at the rate of this turn, and some more: what a trial counts is mostly start.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of jobs")]
fn jobs_for(turn: &Turn, effort: Effort) -> u64 {
    ((rate(turn) * effort.window.as_secs_f64() * 1.4) as u64).clamp(TRIAL, MOST)
}

fn summary(contestant: &Contestant<'_>, mut turns: Vec<Turn>) -> Throughput {
    turns.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let rates: Vec<f64> = turns.iter().map(rate).collect();
    let middle = turns.len() / 2;
    let Turn { jobs, seconds, busy } = turns.swap_remove(middle);
    Throughput {
        system: contestant.system().to_owned(),
        setting: contestant.setting(),
        jobs_per_second: median(&rates),
        slowest: rates.first().copied().unwrap_or_default(),
        fastest: rates.last().copied().unwrap_or_default(),
        jobs,
        seconds,
        busy,
    }
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
fn rate(turn: &Turn) -> f64 {
    turn.jobs as f64 / turn.seconds
}

impl Contestant<'_> {
    fn system(&self) -> &str {
        match self {
            Self::Ours(_) => "jobqueue",
            Self::Peer(peer, _) => peer.name,
        }
    }

    fn setting(&self) -> String {
        match self {
            Self::Ours(ours) => ours.setting.to_owned(),
            Self::Peer(_, concurrency) => format!("concurrency {concurrency}, no AOF"),
        }
    }

    fn name(&self) -> String {
        format!("{} ({})", self.system(), self.setting())
    }

    async fn turn(&self, jobs: u64) -> anyhow::Result<Turn> {
        match self {
            Self::Ours(ours) => ours_turn(ours, jobs).await,
            Self::Peer(peer, concurrency) => peer_turn(peer, *concurrency, jobs).await,
        }
    }
}

async fn ours_turn(ours: &Ours, jobs: u64) -> anyhow::Result<Turn> {
    let server = RedisServer::start(ours.redis()).await;
    let mut redis = server.connection().await;
    let total = jobs + jobs / WARM_UP;
    let feeder = if ours.fed {
        Some(tokio::spawn(ours::feed(*ours, server.connection().await, total)))
    } else {
        crate::jobs::push(&mut redis, ours.queue(), 0..total, |number| ours.job(number)).await?;
        None
    };
    let worker = ours.worker(&server);
    let acked = async |redis: &mut MultiplexedConnection| ours.acked(redis).await;
    let (opened, before) = reached(&mut redis, jobs / WARM_UP, acked).await?;
    redis::cmd("CONFIG").arg("RESETSTAT").query_async::<()>(&mut redis).await?;
    let trips = worker.metric("redis_round_trips_total", &[]).await.unwrap_or_default();
    let counted = ours.acked(&mut redis).await?;
    let (closed, after) = reached(&mut redis, total, acked).await?;
    let busy = ours::busy(&mut redis, &worker, (counted, after), trips).await?;
    if let Some(feeder) = feeder {
        feeder.await??;
    }
    ours.check(&mut redis, total).await?;
    Ok(Turn { jobs: after - before, seconds: (closed - opened).as_secs_f64(), busy: Some(busy) })
}

async fn peer_turn(peer: &Peer, concurrency: usize, jobs: u64) -> anyhow::Result<Turn> {
    let server = RedisServer::start(e2e::Options::default()).await;
    let mut redis = server.connection().await;
    let total = jobs + jobs / WARM_UP;
    peer.enqueue(&server, total)?;
    let acked = async |redis: &mut MultiplexedConnection| peer.acked(redis, total).await;
    ensure!(acked(&mut redis).await? == 0, "{} jobs are gone before the worker starts", peer.name);
    let worker = peer.work(&server, concurrency);
    let (opened, before) = reached(&mut redis, jobs / WARM_UP, acked).await?;
    let (closed, after) = reached(&mut redis, total, acked).await?;
    peer.stop(worker).await;
    peer.check(&mut redis, total).await?;
    Ok(Turn { jobs: after - before, seconds: (closed - opened).as_secs_f64(), busy: None })
}

/// Waits until this many jobs are acknowledged: when that was seen, and how many it were.
async fn reached(
    redis: &mut MultiplexedConnection,
    jobs: u64,
    mut acked: impl AsyncFnMut(&mut MultiplexedConnection) -> anyhow::Result<u64>,
) -> anyhow::Result<(Instant, u64)> {
    let since = Instant::now();
    loop {
        let seen = acked(redis).await?;
        let now = Instant::now();
        if seen >= jobs {
            return Ok((now, seen));
        }
        ensure!(now - since < PATIENCE, "only {seen} of {jobs} jobs were acknowledged in {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
}
