//! What changes a queue: pause, resume, scale, enqueue, drain.
use e2e::kubernetes::{LOW, Namespace, patiently};

use crate::support::{file, jobqueue};

#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let space = Namespace::create("pausing").await;
    space.queue("hello", "{}").await;
    space.await_ready("hello").await;
    assert!(jobqueue(&space, &["pause", "hello"]).await.ok().contains("hello paused"));
    assert_eq!(space.get("jobqueue", "hello").await["spec"]["paused"], true);
    assert!(jobqueue(&space, &["pause", "hello"]).await.ok().contains("already"));
    assert!(jobqueue(&space, &["resume", "hello"]).await.ok().contains("hello resumed"));
    assert_eq!(space.get("jobqueue", "hello").await["spec"]["paused"], false);
    space.delete().await;
}

#[tokio::test]
async fn scale_is_obeyed_where_it_rules_and_refused_where_it_does_not() {
    let space = Namespace::create("scaled").await;
    space.queue("manual", "{scaling: {mode: Manual}, replicas: 0}").await;
    space.queue("auto", "{keyPrefix: other}").await;
    space.await_ready("manual").await;
    jobqueue(&space, &["scale", "manual", "2"]).await.ok();
    space.await_asked_for("manual", 2).await;
    let refused = jobqueue(&space, &["scale", "auto", "2"]).await.failed(2);
    assert!(refused.contains("scaling.mode: Auto") && refused.contains("--min"), "{refused}");
    jobqueue(&space, &["scale", "auto", "--min", "1", "--max", "3"]).await.ok();
    let scaling = space.get("jobqueue", "auto").await["spec"]["scaling"].clone();
    assert_eq!((&scaling["minReplicas"], &scaling["maxReplicas"]), (&1.into(), &3.into()));
    space.await_asked_for("auto", 1).await;
    space.delete().await;
}

#[tokio::test]
async fn jobs_are_enqueued_from_arguments_and_files_also_without_workers() {
    let space = Namespace::create("enqueued").await;
    space.queue("hello", "{paused: true}").await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    let said = jobqueue(
        &space,
        &[
            "enqueue",
            "hello",
            "--arg",
            "id=one",
            "--arg",
            "filepath=/a",
            "--arg",
            "filesize=1",
            "--queue",
            "low",
        ],
    )
    .await
    .ok();
    assert!(said.contains("job/one enqueued in low"), "{said}");
    let directory = tempfile::tempdir().expect("a directory");
    let path = file(&directory, "jobs.json");
    std::fs::write(&path, "{\"id\":\"two\",\"filepath\":\"/b\",\"filesize\":0,\"priority\":\"high\"}\n{\"id\":\"three\",\"filepath\":\"/c\",\"filesize\":0,\"priority\":\"low\"}\n").expect("written");
    jobqueue(&space, &["enqueue", "hello", "--file", path.to_str().expect("text")]).await.ok();
    assert_eq!(redis.count(&["LLEN", LOW]).await, 2);
    let bad = jobqueue(&space, &["enqueue", "hello", "--arg", "filesize=many"]).await.failed(2);
    assert!(bad.contains("filesize"), "{bad}");
    jobqueue(&space, &["enqueue", "hello", "--file", "/nowhere"]).await.failed(2);
    jobqueue(&space, &["resume", "hello"]).await.ok();
    patiently("all of them done", async || {
        let ids = redis.completed().await?;
        if ids == ["one", "three", "two"] { Ok(()) } else { Err(format!("{ids:?}")) }
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn a_drained_worker_finishes_its_jobs_before_it_goes() {
    let space = Namespace::create("drained").await;
    space.queue("hello", "{scaling: {mode: Manual}, replicas: 2, worker: {concurrency: 1, handler: {simulate: {base: 8s}}}}").await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    redis.push(LOW, 0..4).await;
    redis.await_running(2).await;
    let worker = space.workers("hello").await.remove(0);
    let missing = jobqueue(&space, &["drain", "hello", "nobody"]).await.failed(3);
    assert!(missing.contains(&worker), "it names those there are: {missing}");
    jobqueue(&space, &["drain", "hello", &worker]).await.ok();
    redis.await_completed(0..4).await;
    for (id, job) in redis.completed_jobs().await {
        assert!(
            job["interruptions"].as_u64().unwrap_or(0) == 0 && job["interrupted_by"].is_null(),
            "{id}: {job}"
        );
    }
    assert!(!space.workers("hello").await.contains(&worker));
    space.delete().await;
}
