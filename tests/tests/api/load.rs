//! How much it takes, measured: prints, and asserts only that nothing failed.
use std::time::{Duration, Instant};

use crate::scene::{Scene, command};
use serde_json::json;

/// Requests at once.
const CLIENTS: usize = 64;
/// How long.
const TIME: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for ten seconds; best with JOBQUEUE_BIN_DIR=target/release"]
async fn jobs_are_created_as_fast_as_they_are_asked_for() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    scene.create("warm").await;
    let calls = async |redis: &mut redis::aio::MultiplexedConnection| {
        let info: String = command(redis, &["INFO", "stats"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.unwrap().trim().parse::<f64>().unwrap()
    };
    let evals = async |redis: &mut redis::aio::MultiplexedConnection| {
        let info: String = command(redis, &["INFO", "commandstats"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0.0, |line| line.split(',').next().unwrap().parse::<f64>().unwrap())
    };
    let (before, evals_before) = (calls(&mut redis).await, evals(&mut redis).await);
    let until = Instant::now() + TIME;
    let clients = (0..CLIENTS).map(|_| {
        let (client, url) = (scene.client.clone(), scene.url("/jobs"));
        let body =
            json!({ "type": "email", "payload": { "to": "someone@example.org", "text": "x".repeat(100) } });
        let body = body.to_string();
        tokio::spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let started = Instant::now();
                let request = client.post(&url).header("content-type", "application/json").body(body.clone());
                let answer = request.send().await.unwrap();
                assert_eq!(answer.status().as_u16(), 201);
                answer.bytes().await.unwrap();
                took.push(started.elapsed());
            }
            took
        })
    });
    let mut took: Vec<Duration> =
        futures::future::join_all(clients).await.into_iter().flat_map(Result::unwrap).collect();
    took.sort();
    let count = took.len();
    let at = |share: f64| {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank"
        )]
        let rank = (count as f64 * share) as usize;
        took[rank.min(count - 1)]
    };
    #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
    let number = count as f64;
    let (after, evals_after) = (calls(&mut redis).await, evals(&mut redis).await);
    println!(
        "{:.0} POST/s with {CLIENTS} clients, no error: p50 {:?}, p99 {:?}, most {:?}; a request cost {:.3} script calls, {:.1} commands inside them",
        number / TIME.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0),
        (evals_after - evals_before) / number,
        (after - before) / number,
    );
    let queued: usize = command(&mut redis, &["LLEN", "jobs:queue"]).await;
    assert_eq!(queued, count + 1);
}
