//! A cancel against everything else that can become of a job, at the same time: whoever was told that a job is cancelled
//! finds it cancelled for ever, and a job that nobody cancelled is over in the end.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::engine::{Bench, failure, kill};
use jobqueue::outcome::Outcome;
use jobqueue::reaper::Reaped;
use jobqueue::store::Session;

use crate::stage::{Runner, bench, cancel, create, job, lives_for, promote, queue};

/// What happens to the job meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rival {
    Finish,
    Retry,
    Bury,
    Release,
    Reap,
}

const RIVALS: [Rival; 5] = [Rival::Finish, Rival::Retry, Rival::Bury, Rival::Release, Rival::Reap];

async fn run(runner: &mut Runner, bench: &Bench, rival: Rival) {
    for entry in runner.lane.reserve(4).await {
        let Some(opened) = runner.open(&entry).await else { continue };
        let outcome = match rival {
            Rival::Finish => Outcome::Done,
            Rival::Retry => failure(),
            Rival::Bury => kill(),
            Rival::Release => Outcome::Released,
            Rival::Reap => {
                let dead = std::mem::replace(runner, Runner::new(bench).await);
                let mut session = bench.session();
                session.fence(&dead.lane.handle.id, true, "heartbeat").await.unwrap();
                let mut reaper = bench.reaper(Duration::from_millis(50));
                let held = dead.lane.handle.lists[0].held.clone();
                while session.lengths(std::slice::from_ref(&held)).await.unwrap() != [0] {
                    reaper.empty(&dead.lane.handle.id, &mut Reaped::default()).await.unwrap();
                }
                return;
            }
        };
        runner.finish(&entry, opened, &outcome).await;
    }
}

/// One job, one cancel, one rival; answers what the job came to, and how long that took.
async fn round(
    bench: &mut Bench,
    (runner, session): (&mut Runner, &mut Session),
    id: &str,
    rival: Rival,
    wait: Duration,
) -> (&'static str, Duration) {
    create(bench, id).await;
    let by_the_api = async {
        tokio::time::sleep(wait).await;
        cancel(session, id).await
    };
    let to_its_end = async {
        let began = Instant::now();
        run(runner, bench, rival).await;
        promote(bench).await;
        runner.run_all().await;
        began.elapsed()
    };
    let (cancelled, took) = tokio::join!(by_the_api, to_its_end);
    // A cancel that came between two reads of its runner leaves an id behind.
    runner.run_all().await;
    let status = job(bench, id).await["status"].as_str().unwrap().to_owned();
    let left = bench.list(&queue(bench).queue).await;
    assert!(left.is_empty(), "{rival:?}: {left:?}");
    assert!(lives_for(bench, id).await.is_some(), "{rival:?}: {status} for ever");
    if cancelled {
        assert_eq!(status, "cancelled", "{rival:?}: a cancel was undone");
        return ("cancelled", took);
    }
    let over = if rival == Rival::Bury { "failed" } else { "completed" };
    assert_eq!(status, over, "{rival:?}: lost");
    (over, took)
}

async fn rounds(count: usize, seed: u64) -> BTreeMap<(Rival, &'static str), usize> {
    let mut bench = bench().await;
    let mut runner = Runner::new(&bench).await;
    let mut session = bench.session();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ends = BTreeMap::new();
    // As long as each rival takes here, so that a cancel meets every moment of it.
    let mut typical = BTreeMap::new();
    for n in 0..count {
        let rival = RIVALS[n % RIVALS.len()];
        let typical = typical.entry(rival).or_insert(Duration::from_millis(2));
        // Early more often than late: most of it happens while the job is not over yet.
        let wait = typical.mul_f64(1.5 * random.f64() * random.f64());
        let id = format!("job-{n}");
        let (end, took) = Box::pin(round(&mut bench, (&mut runner, &mut session), &id, rival, wait)).await;
        *typical = (*typical * 7 + took) / 8;
        *ends.entry((rival, end)).or_insert(0) += 1;
    }
    ends
}

async fn race(total: usize) {
    const SIDE_BY_SIDE: usize = 8;
    let tasks = (0..SIDE_BY_SIDE).map(|seed| rounds(total / SIDE_BY_SIDE, seed as u64));
    let mut ends: BTreeMap<(Rival, &str), usize> = BTreeMap::new();
    for (end, count) in futures::future::join_all(tasks).await.into_iter().flatten() {
        *ends.entry(end).or_insert(0) += count;
    }
    println!("{total} cancels: {ends:?}");
    for rival in RIVALS {
        let won = ends.keys().filter(|(who, _)| *who == rival).count();
        assert_eq!(won, 2, "{rival:?} and its cancel each won some: {ends:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_is_never_undone_and_no_job_is_lost_whatever_it_races_with() {
    race(1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: ten thousand races"]
async fn a_cancel_is_never_undone_and_no_job_is_lost_in_ten_thousand_races() {
    race(10_000).await;
}
