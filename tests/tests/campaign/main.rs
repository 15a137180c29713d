//! A campaign of faults: workers are killed, stopped and cut off, replies are lost, Redis is killed, all at once and for
//! minutes, while jobs are pushed, run, fail and crash their workers. Then the books are closed ([`books`]): no
//! acknowledged job may be lost, none settled twice, and every second run of a job must have a fault of its own worker
//! to explain it.
//!
//! `CAMPAIGN_SEED` repeats a campaign's choices (not its timing), `CAMPAIGN_FAULTS` changes its length.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
mod books;
mod faults;
mod load;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::ledger::Ledger;
use e2e::recorder::Behaviour;
use e2e::{AppendOnly, Options, Recorder, RedisServer};

use books::Books;
use faults::{Seat, Tally};

/// Workers at once.
const SEATS: usize = 5;
/// The shortest heartbeat TTL there is.
const TTL: Duration = Duration::from_secs(5);
/// How long it may take until everything has ended that can end.
const RECOVERY: Duration = Duration::from_secs(180);

#[tokio::test]
async fn a_short_campaign_of_faults_loses_no_job_and_explains_every_second_run() {
    campaign(60).await;
}

#[tokio::test]
#[ignore = "long: a thousand faults"]
async fn a_thousand_faults_lose_no_job_and_explain_every_second_run() {
    campaign(1000).await;
}

async fn campaign(faults: usize) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CAMPAIGN_SEED").unwrap_or_else(|| fastrand::u64(..));
    let faults = number("CAMPAIGN_FAULTS").map_or(faults, |count| usize::try_from(count).unwrap());
    println!("{faults} faults, CAMPAIGN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut redis =
        RedisServer::start(Options { appendonly: AppendOnly::Always, ..Options::default() }).await;
    let addr = redis.addr();
    let recorder = Arc::new(Recorder::start().await);
    recorder.by_default(Behaviour::Slow(Duration::from_millis(20)));
    let tally = Tally::new(faults);
    let began = Instant::now();

    let mut seats = Vec::new();
    for seat in 0..SEATS {
        seats.push(Seat::take(seat, addr, Arc::clone(&recorder)).await);
    }
    let over = Cell::new(false);
    let pushing = load::push(addr, &recorder, random.fork(), || over.get());
    let suffering = async {
        let outages = faults::outages(&mut redis, &tally, random.fork());
        let faults = seats.iter_mut().map(|seat| seat.suffer(&tally, random.fork()));
        futures::future::join(outages, futures::future::join_all(faults.collect::<Vec<_>>())).await;
        over.set(true);
    };
    let (pushed, ()) = futures::future::join(pushing, suffering).await;
    println!("{} faults in {:.0?}", tally.faults().len(), began.elapsed());

    // The workers are well from now on: they finish everything, but for what kills them.
    let mut ledger = Ledger::of(&redis).await;
    let still = Instant::now();
    let places = faults::while_guarded(&mut seats, &tally, async {
        ledger.until(RECOVERY, "every job to have ended", |places| places.counts()[..4] == [0; 4]).await
    })
    .await;
    println!("all had ended {:.1?} after the last fault", still.elapsed());
    let counted = async |ledger: &mut Ledger, name: &str| {
        ledger.command::<Option<u64>>(&["HGET", "jobqueue:counters", name]).await.unwrap_or_default()
    };
    let done = counted(&mut ledger, "done").await;
    let books = Books { pushed, faults: tally.faults(), runs: recorder.runs(), places, done };
    match books.close() {
        Ok(summary) => println!("{summary}"),
        Err(wrong) => panic!("CAMPAIGN_SEED={seed}: {} findings:\n{}", wrong.len(), wrong.join("\n")),
    }
}
