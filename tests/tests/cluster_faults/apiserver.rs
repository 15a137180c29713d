//! The API server goes away and comes back.
use std::time::Duration;

use e2e::kubernetes::{LOW, Namespace, decoded, job, kubectl, on_the_test_cluster, patiently, test_cluster};
use e2e::wait::eventually;
use redis::AsyncCommands as _;

use crate::{alone, await_operators, pass};

/// A connection to the managed Redis that needs no API server: through a port of a node.
async fn direct(space: &Namespace, queue: &str) -> redis::aio::MultiplexedConnection {
    let service = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: direct}}, spec: {{type: NodePort, ports: [{{port: 6379}}], \
         selector: {{jobqueue.dev/queue: {queue}, app.kubernetes.io/component: redis}}}}}}"
    );
    space.apply(&service).await;
    let port = space.get("service", "direct").await["spec"]["ports"][0]["nodePort"].as_i64().expect("a port");
    let path = "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}";
    let node = kubectl(&["get", "nodes", "-o", path]).await.expect("a node");
    let secret = space.get("secret", &format!("{queue}-redis")).await;
    let password = decoded(secret["data"]["password"].as_str().expect("a password"));
    let client = redis::Client::open(format!("redis://:{password}@{node}:{port}/")).expect("an address");
    patiently("a way to Redis", async || client.get_multiplexed_async_connection().await).await
}

async fn jobs_run_without_an_api_server(away: Duration) {
    let _turn = alone().await;
    if !on_the_test_cluster() {
        return;
    }
    let space = Namespace::create("apiserver").await;
    let worker = "{handler: {simulate: {base: 500ms, failGlob: '/data/1?.txt'}}}";
    let retry = "{maxRetries: 2, backoff: {base: 2s, max: 4s}}";
    space.queue("away", &format!("{{scaling: {{minReplicas: 2}}, worker: {worker}, retry: {retry}}}")).await;
    space.await_condition("away", "WorkersAvailable", "True/Available").await;
    let mut redis = direct(&space, "away").await;
    test_cluster(&["apiserver", "stop"]).await;
    let came = std::time::Instant::now();
    let jobs: Vec<String> = (0..40).map(|number| job(number).to_string()).collect();
    let _: u64 = redis.lpush(LOW, jobs).await.expect("pushed");
    // While nobody can ask Kubernetes for anything: jobs, retries and dead letters. Jobs 10 to 19 fail.
    eventually(away, "all jobs to end", async || {
        let completed: u64 = redis.llen("jobqueue:completed").await.map_err(|error| error.to_string())?;
        let dead: u64 = redis.llen("jobqueue:dead_letter").await.map_err(|error| error.to_string())?;
        if (completed, dead) == (30, 10) {
            Ok(())
        } else {
            Err(format!("{completed} completed, {dead} dead"))
        }
    })
    .await;
    pass(away.saturating_sub(came.elapsed())).await;
    test_cluster(&["apiserver", "start"]).await;
    await_operators(2).await;
    let managed = space.managed("away").await;
    managed.push(LOW, 100..110).await;
    patiently("ten more jobs", async || managed.count(&["LLEN", "jobqueue:completed"]).await == 40).await;
    space.queue("after", "{}").await;
    space.await_ready("after").await;
    space.await_ready("away").await;
    space.delete().await;
}

#[tokio::test]
async fn jobs_and_retries_run_while_the_api_server_is_away() {
    jobs_run_without_an_api_server(Duration::from_secs(25)).await;
}

#[tokio::test]
#[ignore = "long: a minute without an API server"]
async fn jobs_and_retries_run_while_the_api_server_is_away_for_a_minute() {
    jobs_run_without_an_api_server(Duration::from_secs(60)).await;
}
