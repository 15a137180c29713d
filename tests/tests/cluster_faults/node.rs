//! A node that is cut off: its processes live, and nobody can tell.
use std::time::{Duration, Instant};

use e2e::kubernetes::{LOW, Namespace, kubectl, patiently, test_cluster};
use serde_json::{Value, json};

use crate::{alone, pass};

/// How long a job takes.
const JOB: Duration = Duration::from_secs(20);
/// How long a heartbeat lives.
const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_jobs_of_a_cut_off_node_run_elsewhere_once_their_heartbeats_are_gone_and_are_settled_once() {
    let _turn = alone().await;
    if test_cluster(&["kubeconfig"]).await.is_none() {
        return;
    }
    let space = Namespace::create("cutoff").await;
    // Redis on the first node, the worker of before on the second: only the worker is cut off. After that each job takes
    // two of ten slots, because any of them may have killed the worker.
    let worker = format!(
        "{{concurrency: 10, heartbeatTtl: {}s, handler: {{simulate: {{base: {}s}}}}, template: {{spec: {{nodeSelector: \
         {{kubernetes.io/hostname: NODE}}}}}}}}",
        TTL.as_secs(),
        JOB.as_secs()
    );
    let nodes = nodes().await;
    let redis = space.external_on("redis", &nodes[0]).await;
    let spec = |node: &str| {
        space.on("redis", &format!("worker: {}, scaling: {{minReplicas: 1}}", worker.replace("NODE", node)))
    };
    space.queue("cutoff", &spec(&nodes[1])).await;
    space.await_condition("cutoff", "WorkersAvailable", "True/Available: 1 of 1").await;
    redis.push(LOW, 0..5).await;
    redis.await_running(5).await;
    let cut = Instant::now();
    test_cluster(&["cut", &nodes[1]]).await;
    // Somebody moves the workers to a node that is well.
    space.queue("cutoff", &spec(&nodes[0])).await;
    let from_there = |jobs: &[Value]| jobs.iter().filter(|job| job["interrupted_by"] == "heartbeat").count();
    patiently("5 jobs that were given back", async || {
        let waiting = redis.ask(&["LRANGE", "jobqueue:low_priority:suspects", "0", "-1"]).await?;
        let mut jobs: Vec<Value> =
            waiting.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        jobs.extend(redis.held().await);
        if from_there(&jobs) == 5 { Ok(()) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    let took = cut.elapsed();
    println!("5 jobs of a cut-off node were given back {took:.1?} after the cut (TTL {TTL:?})");
    assert!(took <= TTL + Duration::from_secs(5), "{took:.1?}");
    patiently("5 jobs that run elsewhere", async || {
        let held = redis.held().await;
        if from_there(&held) == 5 { Ok(()) } else { Err(held) }
    })
    .await;
    println!("5 jobs of a cut-off node ran elsewhere {:.1?} after the cut", cut.elapsed());
    // Not before the cut-off worker has finished them all: what it says of them when it is back must not be accepted. One
    // that comes back sooner hears that they are lost, and says nothing.
    pass((JOB + Duration::from_secs(3)).saturating_sub(cut.elapsed())).await;
    test_cluster(&["heal", &nodes[1]]).await;
    redis.await_completed(0..5).await;
    patiently("the node", async || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let status = kubectl(&["get", "node", &nodes[1], "-o", ready]).await?;
        if status == "True" { Ok(()) } else { Err(status) }
    })
    .await;
    // Every lane of before is forgotten: its worker is back, knows that its lease is lost, and has opened a new one.
    patiently("no fenced lanes", async || match redis.count(&["ZCARD", "jobqueue:reaping"]).await {
        0 => Ok(()),
        some => Err(some),
    })
    .await;
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "done"]).await, 5, "each job was settled once");
    assert_eq!(redis.completed().await.expect("completed jobs").len(), 5);
    for (id, job) in redis.completed_jobs().await {
        assert_eq!(job["interrupted_by"], json!("heartbeat"), "{id}");
    }
    space.delete().await;
}

/// The names of the cluster's two nodes, the one first that must stay: names are looked up there.
async fn nodes() -> Vec<String> {
    let names = kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]).await.expect("nodes");
    let dns = ["-n", "kube-system", "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"];
    let dns = kubectl(&dns).await.expect("the pods of the cluster itself");
    let mut names: Vec<String> = names.split(' ').map(str::to_owned).collect();
    assert!(names.len() >= 2, "{names:?}");
    names.sort_by_key(|name| !dns.split(' ').any(|node| node == name));
    names
}
