//! What changes a queue: pause, resume, scale, enqueue, drain.
use e2e::kubernetes::{LOW, Namespace, patiently};

use crate::support::{file, jobqueue, jobqueue_with, stranger};

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

    // Several at once, by their names or labels; one that is not there keeps no other from it.
    space.queue("other", "{keyPrefix: other}").await;
    let some = jobqueue(&space, &["pause", "hello", "nobody", "jobq/other"]).await;
    assert!(some.code == 3 && some.err.contains("no JobQueue nobody"), "{some:#?}");
    assert!(some.out.contains("/hello paused") && some.out.contains("/other paused"), "{some:#?}");
    space.kubectl(&["label", "jobqueue", "other", "team=shop"]).await.expect("labelled");
    let resumed = jobqueue(&space, &["resume", "-l", "team=shop"]).await.ok();
    assert!(resumed.contains("/other resumed") && !resumed.contains("/hello"), "{resumed}");
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

/// The first of these jobs that runs, and the worker that runs it.
async fn run_by(space: &Namespace, ids: &[&str]) -> (String, String) {
    patiently("a job that runs", async || {
        let workers = space.workers("hello").await;
        for id in ids {
            let job = jobqueue(space, &["job", "hello", id]).await.out;
            if let Some(worker) = workers.iter().find(|worker| job.contains(&format!("runs in pod {worker}")))
            {
                return Ok(((*id).to_owned(), worker.clone()));
            }
        }
        Err(workers)
    })
    .await
}

#[tokio::test]
async fn a_drained_worker_finishes_its_jobs_before_it_goes() {
    let space = Namespace::create("drained").await;
    // A pod that is merely deleted has one second for a job of fifteen, and gives it to another.
    space.queue("hello", "{scaling: {mode: Manual}, replicas: 2, worker: {concurrency: 1, drainTimeout: 1s, handler: {simulate: {base: 15s}}}}").await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    redis.push(LOW, 0..3).await;
    redis.await_running(2).await;
    let (id, worker) = run_by(&space, &["job-0", "job-1"]).await;
    let missing = jobqueue(&space, &["drain", "hello", "nobody"]).await.failed(3);
    assert!(missing.contains(&worker), "it names those there are: {missing}");
    jobqueue(&space, &["drain", "hello", &worker]).await.ok();
    let done = redis.completed().await.expect("Redis answers");
    assert!(done.contains(&id), "what it ran was done when it went, not given to another: {done:?}");
    redis.await_completed(0..3).await;
    for (id, job) in redis.completed_jobs().await {
        assert!(
            job["interruptions"].as_u64().unwrap_or(0) == 0 && job["interrupted_by"].is_null(),
            "{id}: {job}"
        );
    }
    assert!(!space.workers("hello").await.contains(&worker));
    space.delete().await;
}

#[tokio::test]
async fn who_may_not_delete_pods_is_told_before_anything_is_drained() {
    let space = Namespace::create("undrained").await;
    space.queue("hello", "{scaling: {mode: Manual}, replicas: 1}").await;
    space.await_ready("hello").await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    let worker = space.workers("hello").await.remove(0);
    let guest = stranger(&space, "guest", Some("jobqueue-view")).await;
    // Everything that draining takes, but not the end of it.
    let exec = ["create", "role", "exec", "--verb=get,create", "--resource=pods/exec"];
    space.kubectl(&exec).await.expect("a role");
    let account = format!("--serviceaccount={}:guest", space.name);
    space.kubectl(&["create", "rolebinding", "exec", "--role=exec", &account]).await.expect("bound");
    let refused = jobqueue_with(&space, &["drain", "hello", &worker], Some(guest.path())).await.failed(4);
    assert!(refused.contains(&format!("cannot delete pod {worker}")), "{refused}");
    // It said nothing beside that one line, so nobody was told to be quiet; and the worker takes jobs.
    let redis = space.managed("hello").await;
    redis.push(LOW, 0..1).await;
    redis.await_completed(0..1).await;
    space.delete().await;
}
