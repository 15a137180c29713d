//! Many queues.
use std::time::{Duration, Instant};

use e2e::kubernetes::{Audit, Namespace, OPERATOR_NAMESPACE, kubectl, queue};
use e2e::wait::eventually;
use serde_json::Value;

use crate::{alone, leader, pass};

const QUEUES: usize = 1000;
const MEMORY: f64 = 200.0 * 1024.0 * 1024.0;

#[tokio::test]
#[ignore = "long: a thousand queues"]
async fn a_thousand_queues_at_rest_cost_little_memory_and_no_write() {
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
    // What the last changes led to comes to its end.
    pass(Duration::from_secs(40)).await;
    let audit = Audit::begin().await;
    pass(Duration::from_secs(60)).await;
    if let Some(audit) = audit {
        let writes = audit
            .requests()
            .into_iter()
            .filter(|request| request.is_write() && !request.resource.ends_with("/leases"));
        assert_eq!(writes.collect::<Vec<_>>(), []);
    }
    let memory = metric("process_resident_memory_bytes").await;
    println!("the leader takes {:.0} MiB", memory / 1024.0 / 1024.0);
    assert!(memory <= MEMORY, "{memory} bytes");
    // One of them wakes up as if it were alone.
    redis.push("queue-500:low_priority", 0..3).await;
    eventually(Duration::from_secs(120), "its jobs", async || {
        redis.count(&["LLEN", "queue-500:completed"]).await == 3
    })
    .await;
    space.kubectl(&["delete", "jobqueues", "--all", "--wait=false"]).await.expect("deleted");
    eventually(Duration::from_secs(300), "no queues", async || {
        pass(Duration::from_secs(2)).await;
        let left = space.list("jobqueues", "").await;
        if left.is_empty() { Ok(()) } else { Err(left.len()) }
    })
    .await;
    space.delete().await;
}

/// A figure of the leader.
async fn metric(name: &str) -> f64 {
    let pod = leader().await.expect("a leader");
    let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
    let text = kubectl(&["get", "--raw", &path]).await.expect("metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {:?}", Value::from(text)))
}
