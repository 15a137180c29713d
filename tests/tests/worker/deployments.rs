//! The worker on every kind of Redis: TLS, Sentinel, Cluster, shards. It is killed half-way, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{CONSUMING, config, enqueue};
use e2e::ledger::{ids, job};
use e2e::proxy::Rule;
use e2e::{
    Behaviour, Cluster, Fault, Options, Proxy, Recorder, RedisServer, Sentinel, Tls, Worker, WorkerOptions,
    eventually,
};
use jobqueue::engine::Engine;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const JOBS: usize = 30;

/// A queue set as a client and as a worker see it.
struct Deployment {
    engine: Engine,
    options: WorkerOptions,
    recorder: Recorder,
}

impl Deployment {
    async fn new(tree: Value) -> Self {
        let recorder = Recorder::start().await;
        let yaml = tree.to_string();
        let options = WorkerOptions::new("worker").config(&yaml).recorded_by(&recorder);
        Self { engine: Engine::new(&config(tree)), options, recorder }
    }

    async fn enqueue(&self, all: &[String]) {
        for id in all {
            let keys = self.engine.shard_of(id);
            let raw = Bytes::from(job(id).to_string());
            let mut session = self.engine.session(keys);
            let jobs = enqueue(&keys.queues[1].queue, &[raw]);
            session.enqueue(id, &keys.seen("test"), CONSUMING.opposite(), &jobs).await.unwrap();
        }
    }

    async fn running(&self, count: usize) {
        eventually(SOON, "running jobs", async || {
            let running = self.recorder.running().len();
            if running == count { Ok(()) } else { Err(running) }
        })
        .await;
    }

    /// Waits until every shard together has completed so many, and nothing else is left anywhere.
    async fn completed(&self, count: u64) {
        eventually(SOON, "all jobs to be completed", async || {
            let (mut completed, mut left) = (0, 0);
            for keys in &self.engine.shards {
                let mut session = self.engine.session(keys);
                let snapshot =
                    session.persist(async |session| session.snapshot(CONSUMING).await).await.unwrap();
                completed += snapshot.completed;
                left += snapshot.in_flight + snapshot.dead_letters;
                left += snapshot
                    .queues
                    .iter()
                    .map(|queue| queue.waiting + queue.suspects + queue.delayed)
                    .sum::<u64>();
            }
            if (completed, left) == (count, 0) { Ok(()) } else { Err((completed, left)) }
        })
        .await;
    }

    /// A worker is killed with all of its slots full, another finishes, and drains when it is asked to.
    async fn survives_a_kill(&self) {
        self.recorder.by_default(Behaviour::Hold);
        let all = ids("job", JOBS);
        self.enqueue(&all).await;
        let mut killed = Worker::spawn(&self.options);
        self.running(16).await;
        killed.kill9();
        self.recorder.release_all();
        let mut second = Worker::spawn(&self.options);
        self.completed(JOBS as u64).await;
        for id in &all {
            assert!((1..=2).contains(&self.recorder.starts(id)), "{id}: {}", self.recorder.starts(id));
        }
        second.sigterm();
        assert!(second.wait_exit(SOON).await.success());
    }
}

#[tokio::test]
async fn a_worker_works_over_tls_with_a_certificate_of_its_own() {
    let server = RedisServer::start(Options { tls: Tls::Mutual, ..Options::default() }).await;
    let files = server.certificates();
    let tls = json!({
        "enabled": true, "ca_file": files.ca, "cert_file": files.client_cert, "key_file": files.client_key,
    });
    let redis = json!({ "addr": server.addr().to_string(), "tls": tls });
    Deployment::new(json!({ "redis": redis })).await.survives_a_kill().await;
}

#[tokio::test]
async fn a_worker_serves_every_shard_of_one_redis() {
    let server = RedisServer::start(Options::default()).await;
    let redis = json!({ "addr": server.addr().to_string() });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": { "shards": 3 } })).await;
    deployment.survives_a_kill().await;
    for keys in &deployment.engine.shards {
        assert_ne!(server.cli(&["LLEN", &keys.completed()]), "0", "each shard had jobs");
    }
}

#[tokio::test]
async fn a_shard_that_alone_has_jobs_gets_most_slots_in_order_of_priority_and_leaves_the_others_some() {
    let server = RedisServer::start(Options::default()).await;
    let redis = json!({ "addr": server.addr().to_string() });
    let worker = json!({ "shards": 4, "count": 12 });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": worker })).await;
    deployment.recorder.by_default(Behaviour::Hold);
    let [high, low] = [0, 1].map(|queue| deployment.engine.shards[0].queues[queue].queue.clone());
    for number in 0..20 {
        server.cli(&["LPUSH", &low, &job(&format!("low-{number}")).to_string()]);
        server.cli(&["LPUSH", &high, &job(&format!("high-{number}")).to_string()]);
    }
    let mut worker = Worker::spawn(&deployment.options);
    deployment.running(9).await;
    assert!(deployment.recorder.running().iter().all(|id| id.starts_with("high")), "strictly by priority");
    for shard in 1..4 {
        let key = &deployment.engine.shards[shard].queues[1].queue;
        server.cli(&["LPUSH", key, &job(&format!("other-{shard}")).to_string()]);
    }
    deployment.running(12).await;
    for shard in 1..4 {
        assert_eq!(
            deployment.recorder.starts(&format!("other-{shard}")),
            1,
            "beside the backlog of the first"
        );
    }
    deployment.recorder.by_default(Behaviour::Succeed);
    deployment.recorder.release_all();
    deployment.completed(43).await;
    worker.sigterm();
    assert!(worker.wait_exit(SOON).await.success());
}

/// How many of the first half of the runs were of each group of jobs: of those whose id begins with it and a `-`.
fn early(recorder: &Recorder, groups: usize) -> Vec<usize> {
    let runs = recorder.runs();
    let of = |group: usize| {
        let begins = format!("{group}-");
        runs[..runs.len() / 2].iter().filter(|run| run.id.starts_with(&begins)).count()
    };
    (0..groups).map(of).collect()
}

#[tokio::test]
async fn every_shard_is_served_while_all_of_them_have_a_backlog() {
    let server = RedisServer::start(Options::default()).await;
    let redis = json!({ "addr": server.addr().to_string() });
    let worker = json!({ "shards": 5, "count": 16 });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": worker })).await;
    deployment.recorder.by_default(Behaviour::Slow(Duration::from_millis(20)));
    for (shard, keys) in deployment.engine.shards.iter().enumerate() {
        for number in 0..100 {
            server.cli(&["LPUSH", &keys.queues[1].queue, &job(&format!("{shard}-{number}")).to_string()]);
        }
    }
    let _worker = Worker::spawn(&deployment.options);
    deployment.completed(500).await;
    let early = early(&deployment.recorder, 5);
    assert!(early.iter().all(|runs| *runs >= 25), "of 250 runs: {early:?}");
}

#[tokio::test]
async fn shards_of_another_layout_have_their_turns_where_there_are_fewer_slots() {
    let server = RedisServer::start(Options::default()).await;
    let redis = json!({ "addr": server.addr().to_string() });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": { "count": 1 } })).await;
    server.cli(&["SET", "{jobqueue:0}:layout", "v1 2 tagged"]);
    let queues = ["jobqueue:low_priority", "{jobqueue:0}:low_priority", "{jobqueue:1}:low_priority"];
    for (group, queue) in queues.iter().enumerate() {
        for number in 0..40 {
            server.cli(&["LPUSH", queue, &job(&format!("{group}-{number}")).to_string()]);
        }
    }
    let _worker = Worker::spawn(&deployment.options);
    eventually(SOON, "all runs", async || deployment.recorder.answered() == 120).await;
    let early = early(&deployment.recorder, 3);
    assert!(early.iter().all(|runs| *runs >= 10), "of 60 runs: {early:?}");
}

#[tokio::test]
async fn a_shard_that_is_away_keeps_no_other_from_its_turn() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let redis = json!({ "addr": proxy.addr().to_string() });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": { "count": 1 } })).await;
    server.cli(&["SET", "{jobqueue:0}:layout", "v1 2 tagged"]);
    deployment.recorder.behave("first", [Behaviour::Hold]);
    server.cli(&["LPUSH", "{jobqueue:0}:low_priority", &job("0-1").to_string()]);
    server.cli(&["LPUSH", "{jobqueue:1}:low_priority", &job("1-1").to_string()]);
    let worker = Worker::spawn(&deployment.options);
    eventually(SOON, "the others", async || deployment.recorder.answered() == 2).await;
    server.cli(&["LPUSH", "jobqueue:low_priority", &job("first").to_string()]);
    deployment.recorder.wait_started("first", 1).await;
    let _away = away(&proxy, 1);
    worker.wait_for_log("Could not settle, trying again").await;
    deployment.recorder.release_all();
    server.cli(&["LPUSH", "{jobqueue:0}:low_priority", &job("0-2").to_string()]);
    server.cli(&["LPUSH", "jobqueue:low_priority", &job("second").to_string()]);
    eventually(SOON, "the turns of the others", async || deployment.recorder.answered() == 5).await;
}

/// Whatever concerns this shard is answered as by a Cluster that has lost its node.
fn away(proxy: &Proxy, shard: u16) -> Arc<Rule> {
    let tag = format!("{{jobqueue:{shard}}}:");
    let down = Fault::Answer(Bytes::from_static(b"-CLUSTERDOWN The cluster is down\r\n"));
    proxy.on(down, 0, usize::MAX, move |command| command.iter().any(|word| word.starts_with(tag.as_bytes())))
}

#[tokio::test]
async fn a_shard_that_is_away_at_the_start_keeps_nobody_from_the_others_whose_jobs_are_drained() {
    for shard in [0, 1] {
        let server = RedisServer::start(Options::default()).await;
        let proxy = Proxy::start(server.addr()).await;
        let rule = away(&proxy, shard);
        let redis = json!({ "addr": proxy.addr().to_string() });
        let deployment =
            Deployment::new(json!({ "redis": redis, "worker": { "shards": 3, "pod_uid": "pod" } })).await;
        deployment.recorder.by_default(Behaviour::Hold);
        for (number, keys) in deployment.engine.shards.iter().enumerate() {
            server.cli(&["LPUSH", &keys.queues[1].queue, &job(&format!("job-{number}")).to_string()]);
        }
        let mut worker = Worker::spawn(&deployment.options);
        deployment.running(2).await;
        worker.sigterm();
        worker
            .wait_for_log("Stopping: no new jobs, what runs may finish; signal again to stop at once")
            .await;
        assert_eq!(deployment.recorder.running().len(), 2, "they may finish");
        deployment.recorder.release_all();
        assert!(worker.wait_exit(SOON).await.success());
        let completed = |keys: &jobqueue::keys::Keys| server.cli(&["LLEN", &keys.completed()]) == "1";
        assert_eq!(deployment.engine.shards.iter().filter(|keys| completed(keys)).count(), 2);
        rule.remove();
        let _again = Worker::spawn(&deployment.options);
        deployment.completed(3).await;
    }
}

#[tokio::test]
async fn what_the_layout_says_is_served_once_its_shard_is_back() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let rule = away(&proxy, 0);
    let redis = json!({ "addr": proxy.addr().to_string() });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": { "shards": 2 } })).await;
    deployment.recorder.by_default(Behaviour::Hold);
    server.cli(&["SET", "{jobqueue:0}:layout", "v1 3 tagged"]);
    for shard in 0..3 {
        let queue = format!("{{jobqueue:{shard}}}:low_priority");
        server.cli(&["LPUSH", &queue, &job(&format!("job-{shard}")).to_string()]);
    }
    let mut worker = Worker::spawn(&deployment.options);
    deployment.running(1).await;
    assert_eq!(deployment.recorder.running(), ["job-1"]);
    rule.remove();
    deployment.running(3).await;
    deployment.recorder.release_all();
    deployment.completed(2).await;
    eventually(SOON, "the shard of the earlier layout", async || {
        server.cli(&["LLEN", "{jobqueue:2}:completed"]) == "1"
    })
    .await;
    worker.sigterm();
    assert!(worker.wait_exit(SOON).await.success());
}

#[tokio::test]
async fn a_worker_serves_every_shard_of_a_cluster() {
    let cluster = Cluster::start().await;
    let redis = json!({ "addr": cluster.addrs()[2].to_string(), "cluster": true });
    let deployment = Deployment::new(json!({ "redis": redis, "worker": { "shards": 4 } })).await;
    deployment.survives_a_kill().await;
}

#[tokio::test]
async fn a_worker_follows_sentinel_to_the_new_master_with_its_jobs() {
    let mut group = Sentinel::start_with_password(1, Some("s3ntinel")).await;
    let addrs: Vec<String> = group.addrs().iter().map(ToString::to_string).collect();
    let sentinel = json!({ "master": Sentinel::MASTER, "addrs": addrs, "password": "s3ntinel" });
    let deployment = Deployment::new(json!({ "redis": { "sentinel": sentinel } })).await;
    deployment.recorder.by_default(Behaviour::Hold);
    let all = ids("job", JOBS);
    deployment.enqueue(&all).await;
    let mut worker = Worker::spawn(&deployment.options);
    deployment.running(16).await;
    // What the replica does not have yet would be lost with the master: that is reliability.md's matter.
    let mut master = group.master().connection().await;
    let replicated: i64 = redis::cmd("WAIT").arg(1).arg(10_000).query_async(&mut master).await.unwrap();
    assert_eq!(replicated, 1);
    let old = group.kill_master();
    assert_ne!(group.wait_failover(old).await, old);
    deployment.recorder.release_all();
    deployment.completed(JOBS as u64).await;
    for id in &all {
        assert!(
            (1..=2).contains(&deployment.recorder.starts(id)),
            "{id}: {}",
            deployment.recorder.starts(id)
        );
    }
    worker.sigterm();
    assert!(worker.wait_exit(SOON).await.success());
}
