//! `drain`: a process finishes what it has, takes nothing more, and can then be ended.
use std::process::{Child, Stdio};

use serde_json::json;

use crate::redis::{Redis, eventually};
use crate::{HIGH, answered, run, worker};

const POD: &str = "0190-pod";

/// Ends with the test, however that ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process in the pod, which runs one job at a time, each of them for a second.
fn process(redis: &Redis) -> Process {
    let mut command = worker(redis, &["--role=worker"]);
    command.env("WORKER_POD_UID", POD).env("WORKER_COUNT", "1").env("WORKER_HANDLER_SIMULATE_BASE", "1s");
    Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

async fn push(redis: &Redis, count: usize) {
    let job =
        |n: usize| json!({ "id": n.to_string(), "filepath": "/a", "filesize": 0 }).to_string().into_bytes();
    redis.push(HIGH, &(0..count).map(job).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn a_drained_process_has_finished_its_job_and_takes_no_other() {
    let redis = Redis::start();
    let _process = process(&redis);
    push(&redis, 3).await;
    eventually("a job that runs", async || redis.command::<usize>(&["LLEN", HIGH]) == 2).await;
    let answer = answered(&run(&redis, &["drain", POD, "-o", "json"]));
    assert_eq!(answer, json!({ "process": POD, "drained": true }));
    let left = redis.command::<usize>(&["LLEN", HIGH]);
    let done = redis.command::<usize>(&["LLEN", "jobqueue:completed"]);
    // It may have taken one more before it heard of it; what it took it has finished.
    assert!(left >= 1 && left + done == 3, "{left} wait, {done} are done");
}

#[tokio::test]
async fn a_drain_that_is_given_up_lets_the_process_take_jobs_again() {
    let redis = Redis::start();
    let _process = process(&redis);
    push(&redis, 20).await;
    eventually("a job that runs", async || redis.command::<usize>(&["LLEN", HIGH]) < 20).await;
    let output = run(&redis, &["drain", POD, "--timeout", "1ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(redis.command::<usize>(&["EXISTS", &format!("jobqueue:quiet:{POD}")]), 0);
    let left = redis.command::<usize>(&["LLEN", HIGH]);
    eventually("another job taken", async || redis.command::<usize>(&["LLEN", HIGH]) < left).await;
}
