//! A node that is cut off: its processes live, and nobody can tell.
use std::time::{Duration, Instant};

use e2e::kubernetes::{
    LOW, Namespace, OPERATOR_NAMESPACE, kubectl, on_the_test_cluster, patiently, test_cluster,
};
use futures::FutureExt as _;
use serde_json::{Value, json};

use crate::{alone, leader, pass};

/// How long a job takes.
const JOB: Duration = Duration::from_secs(20);
/// How long a heartbeat lives.
const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_jobs_of_a_cut_off_node_run_elsewhere_once_their_heartbeats_are_gone_and_are_settled_once() {
    let _turn = alone().await;
    if !on_the_test_cluster() {
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
    // The reaper that is measured is not one that has just begun.
    led_from(&nodes[0]).await;
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
    await_ready(&nodes[1]).await;
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

#[tokio::test]
async fn the_jobs_of_a_node_that_is_marked_out_of_service_run_elsewhere_at_once() {
    let _turn = alone().await;
    if !on_the_test_cluster() {
        return;
    }
    let space = Namespace::create("outofservice").await;
    // Heartbeats live for ten minutes: only what is said of the node can have brought the jobs back.
    let worker = "{concurrency: 5, heartbeatTtl: 10m, handler: {simulate: {base: 30s}}, template: {spec: {nodeSelector: \
                  {kubernetes.io/hostname: NODE}}}}";
    let nodes = nodes().await;
    let redis = space.external_on("redis", &nodes[0]).await;
    let spec = |node: &str| {
        space.on("redis", &format!("worker: {}, scaling: {{minReplicas: 1}}", worker.replace("NODE", node)))
    };
    space.queue("lost", &spec(&nodes[1])).await;
    space.await_condition("lost", "WorkersAvailable", "True/Available: 1 of 1").await;
    redis.push(LOW, 0..5).await;
    redis.await_running(5).await;
    // As after a power failure: nobody hears of the node, and somebody who has been there says that it is down.
    test_cluster(&["cut", &nodes[1]]).await;
    let marked = Instant::now();
    let mark = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    let rescue = async {
        kubectl(&["taint", "node", &nodes[1], mark]).await.expect("marked");
        space.queue("lost", &spec(&nodes[0])).await;
        patiently("5 jobs that run elsewhere", async || {
            let held = redis.held().await;
            let again = held.iter().filter(|job| job["interrupted_by"] == "node-lost").count();
            if again == 5 { Ok(()) } else { Err(held) }
        })
        .await;
        println!("5 jobs of a lost node ran elsewhere {:.1?} after it was marked", marked.elapsed());
    };
    // Whatever was found: the tests after this one need the node.
    let found = std::panic::AssertUnwindSafe(rescue).catch_unwind().await;
    test_cluster(&["heal", &nodes[1]]).await;
    await_ready(&nodes[1]).await;
    let unmarked = kubectl(&["taint", "node", &nodes[1], &format!("{mark}-")]).await;
    if let Err(panic) = found {
        std::panic::resume_unwind(panic);
    }
    unmarked.expect("the mark is gone");
    redis.await_completed(0..5).await;
    for (id, job) in redis.completed_jobs().await {
        assert_eq!((&job["interrupted_by"], &job["retries"]), (&json!("node-lost"), &json!(0)), "{id}");
        assert!(job["deaths"].is_null(), "{id} is above suspicion");
    }
    space.delete().await;
}

/// Waits until a node is well.
async fn await_ready(node: &str) {
    patiently("the node", async || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let status = kubectl(&["get", "node", node, "-o", ready]).await?;
        if status == "True" { Ok(()) } else { Err(status) }
    })
    .await;
}

/// Waits until an operator on this node leads, and sends those that lead elsewhere away.
async fn led_from(node: &str) {
    patiently("a leader on the node that stays", async || {
        let leader = leader().await?;
        let place = ["-n", OPERATOR_NAMESPACE, "get", "pod", &leader, "-o", "jsonpath={.spec.nodeName}"];
        let there = kubectl(&place).await?;
        if there == node {
            return Ok(());
        }
        kubectl(&["-n", OPERATOR_NAMESPACE, "delete", "pod", &leader]).await?;
        Err(format!("{leader} led from {there}"))
    })
    .await;
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
