//! Many queues.
use std::time::{Duration, Instant};

use e2e::audit::Audit;
use e2e::kubernetes::{Namespace, OPERATOR_NAMESPACE, kubectl, on_the_test_cluster, queue, run};
use e2e::wait::eventually;
use serde_json::json;

use crate::{alone, await_operators, leader, pass};

const QUEUES: usize = 1000;
const PODS: usize = 5000;
const MEMORY: f64 = 200.0 * 1024.0 * 1024.0;
const MIB: f64 = 1024.0 * 1024.0;
/// A node without a kubelet.
const NODE: &str = "jobqueue-test-fake";

#[tokio::test]
#[ignore = "long: a thousand queues"]
async fn a_thousand_queues_at_rest_cost_little_memory_and_no_write_also_among_many_pods() {
    if !on_the_test_cluster() {
        return;
    }
    let _turn = alone().await;
    let space = Namespace::create("thousand").await;
    let redis = space.external("store").await;
    let began = Instant::now();
    let all: Vec<String> = (0..QUEUES)
        .map(|number| {
            queue(&format!("queue-{number}"), &space.on("store", &format!("keyPrefix: queue-{number}")))
        })
        .collect();
    for page in all.chunks(100) {
        space.apply(&page.join("---\n")).await;
    }
    eventually(Duration::from_secs(600), "all queues to be ready", async || {
        pass(Duration::from_secs(2)).await;
        let path =
            "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}";
        let states = space.kubectl(&["get", "jobqueues", "-o", path]).await?;
        let ready = states.lines().filter(|state| *state == "True").count();
        if ready == QUEUES { Ok(()) } else { Err(format!("{ready} of {QUEUES}")) }
    })
    .await;
    println!("{QUEUES} queues were Ready after {:.0?}", began.elapsed());
    let metrics = metrics().await;
    println!(
        "of {} reconciles 99 % took at most {} s",
        figure(&metrics, "controller_runtime_reconcile_time_seconds_count"),
        quantile(&metrics, "controller_runtime_reconcile_time_seconds", 0.99)
    );
    at_rest(&format!("{QUEUES} queues")).await;

    fake_pods(&space).await;
    at_rest(&format!("{QUEUES} queues among {PODS} pods")).await;
    // Who begins to lead has to read all of it.
    let before = leader().await.expect("a leader");
    kubectl(&["-n", OPERATOR_NAMESPACE, "delete", "pod", &before]).await.expect("deleted");
    await_operators(2).await;
    at_rest("a new leader").await;

    // One of them wakes up as if it were alone.
    redis.push("queue-500:low_priority", 0..3).await;
    eventually(Duration::from_secs(120), "its jobs", async || {
        redis.count(&["LLEN", "queue-500:completed"]).await == 3
    })
    .await;
    space
        .kubectl(&["delete", "replicaset", "fake", "--cascade=foreground", "--timeout=300s"])
        .await
        .expect("deleted");
    kubectl(&["delete", "node", NODE]).await.expect("deleted");
    space.kubectl(&["delete", "jobqueues", "--all", "--wait=false"]).await.expect("deleted");
    eventually(Duration::from_secs(300), "no queues", async || {
        pass(Duration::from_secs(2)).await;
        let left = space.list("jobqueues", "").await;
        if left.is_empty() { Ok(()) } else { Err(left.len()) }
    })
    .await;
    space.delete().await;
}

/// For a minute nothing but the lease is written, and the leader is as small as it should be.
async fn at_rest(what: &str) {
    // What the last changes led to comes to its end.
    pass(Duration::from_secs(40)).await;
    let audit = Audit::begin().await;
    pass(Duration::from_secs(60)).await;
    assert_eq!(audit.writes(), [], "{what}");
    let memory = figure(&metrics().await, "process_resident_memory_bytes");
    println!("{what}: the leader takes {:.0} MiB", memory / MIB);
    assert!(memory <= MEMORY, "{what}: {memory} bytes");
}

/// Pods that nobody runs, on a node that nobody is: some of them look like workers of ours, all of them are large.
async fn fake_pods(space: &Namespace) {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE }, "spec": { "unschedulable": true } });
    run("kubectl", &["create", "-f", "-"], Some(&node.to_string())).await.expect("a node");
    let labels = json!({
        "app.kubernetes.io/name": "jobqueue", "app.kubernetes.io/managed-by": "jobqueue-operator",
        "jobqueue.dev/queue": "nobody", "app.kubernetes.io/component": "worker",
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "fake" },
        "spec": {
            "replicas": PODS,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels, "annotations": { "filling": "x".repeat(16 * 1024) } },
                "spec": {
                    "nodeName": NODE,
                    // Nobody would say that they have stopped.
                    "terminationGracePeriodSeconds": 0,
                    "automountServiceAccountToken": false,
                    "tolerations": [{ "operator": "Exists" }],
                    "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
                    "containers": [{ "name": "none", "image": "localhost/none:1",
                        "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }],
                },
            },
        },
    });
    space.apply(&set.to_string()).await;
    let began = Instant::now();
    eventually(Duration::from_secs(600), "all pods", async || {
        pass(Duration::from_secs(2)).await;
        let path = "jsonpath={.status.replicas}";
        let made = space.kubectl(&["get", "replicaset", "fake", "-o", path]).await?;
        if made == PODS.to_string() { Ok(()) } else { Err(made) }
    })
    .await;
    println!("{PODS} pods were there after {:.0?}", began.elapsed());
}

/// What the leader says of itself.
async fn metrics() -> String {
    let pod = leader().await.expect("a leader");
    let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
    kubectl(&["get", "--raw", &path]).await.expect("metrics")
}

fn figure(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

/// The bound of the first bucket of a histogram that so large a part of all lies below.
fn quantile(metrics: &str, name: &str, part: f64) -> String {
    let all = figure(metrics, &format!("{name}_count"));
    let buckets = metrics.lines().filter_map(|line| {
        let (bound, count) = line.strip_prefix(&format!("{name}_bucket{{le=\""))?.split_once("\"} ")?;
        Some((bound.to_owned(), count.parse::<f64>().ok()?))
    });
    let mut buckets = buckets.collect::<Vec<_>>().into_iter();
    buckets.find(|(_, count)| *count >= all * part).map_or_else(|| "+Inf".into(), |(bound, _)| bound)
}
