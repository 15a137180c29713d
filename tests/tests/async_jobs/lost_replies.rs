//! The reply to each script of an async job is lost after Redis has carried it out: nothing is lost, doubled or forgotten.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use e2e::Proxy;
use e2e::engine::{Bench, failure, kill, load_script, shared_server};
use e2e::proxy::Rule;
use jobqueue::effects::Verdict;
use jobqueue::job::Data;
use jobqueue::outcome::Outcome;
use jobqueue::store::{Status, StoreError};
use jobqueue::submission::{self, Cancel};
use serde_json::json;

use crate::stage::{Runner, config, create, job, lives_for, queue, revive};

/// A queue set through a proxy, and the same one beside it.
struct Cut {
    bench: Bench,
    safe: Bench,
    proxy: Proxy,
}

async fn cut() -> Cut {
    let server = shared_server().await;
    let proxy = Proxy::start(server.addr()).await;
    let mut tree = config();
    tree["key_prefix"] = e2e::engine::fresh_prefix().into();
    let bench = Bench::through(server, proxy.addr(), tree.clone()).await;
    let safe = Bench::on(server, tree).await;
    Cut { bench, safe, proxy }
}

impl Cut {
    async fn lose(&mut self, script: &str) -> Arc<Rule> {
        let sha = load_script(&mut self.safe.redis, script).await;
        self.proxy.drop_reply_once(move |command| command.len() > 1 && command[1] == sha.as_bytes())
    }
}

#[tokio::test]
async fn of_a_start_find_the_job_started_by_the_same_words() {
    let mut cut = cut().await;
    create(&mut cut.safe, "a").await;
    let mut runner = Runner::new(&cut.bench).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    for script in ["data", "start"] {
        let rule = cut.lose(script).await;
        let (_, effects) = runner.decide_start(&entry).await.unwrap();
        assert_eq!(runner.start(&entry, effects).await, Status::Settled);
        assert_eq!(rule.hits(), 1, "{script}");
        // As it was before, for the next.
        if script == "data" {
            let opened = runner.open(&entry).await.unwrap();
            runner.finish(&entry, opened, &Outcome::Released).await;
            runner.lane.reserve(1).await;
        }
    }
    let started = job(&mut cut.safe, "a").await;
    assert_eq!((&started["status"], &started["worker"]), (&json!("running"), &json!(runner.lane.handle.id)));
}

#[tokio::test]
async fn of_a_settlement_settle_once() {
    for (outcome, verdict, status) in [
        (Outcome::Done, Verdict::Done, "completed"),
        (failure(), Verdict::Retried, "pending"),
        (Outcome::Released, Verdict::Released, "pending"),
    ] {
        let mut cut = cut().await;
        create(&mut cut.safe, "a").await;
        let mut runner = Runner::new(&cut.bench).await;
        let entry = runner.lane.reserve(1).await.remove(0);
        let opened = runner.open(&entry).await.unwrap();
        let rule = cut.lose("cycle").await;
        assert_eq!(runner.finish(&entry, opened, &outcome).await, verdict);
        assert_eq!(rule.hits(), 1);
        let seen = job(&mut cut.safe, "a").await;
        assert_eq!(seen["status"], status);
        let attempts = i32::from(verdict != Verdict::Released);
        assert_eq!(seen["attempts"], attempts, "{verdict:?}");
        let places = cut.safe.places().await;
        let elsewhere: Vec<_> = places.keys().filter(|place| !place.starts_with("index:")).collect();
        assert_eq!(elsewhere.len(), usize::from(verdict != Verdict::Done), "{places:?}");
        assert_eq!(lives_for(&mut cut.safe, "a").await.is_some(), verdict == Verdict::Done);
    }
}

#[tokio::test]
async fn of_a_rescue_bring_each_job_back_once() {
    let mut cut = cut().await;
    for n in 0..150 {
        create(&mut cut.safe, &n.to_string()).await;
    }
    let mut runner = Runner::new(&cut.safe).await;
    for entry in runner.lane.reserve(150).await {
        runner.open(&entry).await.unwrap();
    }
    cut.safe.session().fence(&runner.lane.handle.id, true, "heartbeat").await.unwrap();
    let rule = cut.lose("move").await;
    let mut reaper = cut.bench.reaper(Duration::from_millis(50));
    let lost = reaper.pass().await.unwrap_err();
    assert!(matches!(lost, StoreError::Lost(_)), "{lost}");
    assert_eq!(rule.hits(), 1);
    reaper.pass().await.unwrap();
    let waiting = cut.safe.list(&queue(&cut.safe).queue).await;
    let expected: Vec<Bytes> = (0..150).map(|n: i32| Bytes::from(n.to_string())).collect();
    assert_eq!(waiting, expected, "in their order");
    for n in [0, 149] {
        let back = job(&mut cut.safe, &n.to_string()).await;
        assert_eq!((&back["status"], &back["deaths"]), (&json!("pending"), &json!(1)), "counted once");
    }
}

#[tokio::test]
async fn of_a_cancel_cancel_once() {
    let mut cut = cut().await;
    create(&mut cut.safe, "a").await;
    let mut session = cut.bench.session();
    let keys = queue(&cut.safe).jobs;
    let Data::Is(raw) = session.data(vec![keys.data("a")], usize::MAX).await.unwrap().remove(0) else {
        panic!("no job")
    };
    let Cancel::Write { from, bytes } = submission::cancel(&raw, 1) else { panic!("over") };
    let index = keys.index("cancelled");
    let rule = cut.proxy.drop_reply_once(move |words| words.iter().any(|word| *word == index.as_bytes()));
    let lost = session.cancel("a", from, &raw, &bytes).await.unwrap_err();
    assert!(matches!(lost, StoreError::Lost(_)), "{lost}");
    assert_eq!(rule.hits(), 1);
    assert!(session.cancel("a", from, &raw, &bytes).await.unwrap(), "the same words find their own work");
    assert_eq!(job(&mut cut.safe, "a").await["status"], "cancelled");
}

#[tokio::test]
async fn of_a_revival_revive_once() {
    let mut cut = cut().await;
    create(&mut cut.safe, "a").await;
    let mut runner = Runner::new(&cut.safe).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    let opened = runner.open(&entry).await.unwrap();
    runner.finish(&entry, opened, &kill()).await;
    let rule = cut.lose("turn").await;
    let mut session = cut.bench.session();
    let lost = revive(&mut session, &cut.bench).await.unwrap_err();
    assert!(matches!(lost, StoreError::Lost(_)), "{lost}");
    assert_eq!(rule.hits(), 1);
    assert_eq!(revive(&mut session, &cut.bench).await.unwrap(), 0, "no letter is left");
    assert_eq!(cut.safe.list(&queue(&cut.safe).queue).await, ["a"]);
    let revived = job(&mut cut.safe, "a").await;
    assert_eq!((&revived["status"], &revived["attempts"]), (&json!("pending"), &json!(0)));
}
