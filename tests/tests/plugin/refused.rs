//! What cannot be done is told in one line, with an exit code of its own.
use e2e::kubernetes::{Namespace, patiently, run};

use crate::support::{file, jobqueue, jobqueue_with, stranger};

/// Every verb that takes the name of a queue; `top` needs a terminal, see screen.rs.
const VERBS: [&[&str]; 18] = [
    &["stats", "NAME"],
    &["stats", "NAME", "--live"],
    &["describe", "NAME"],
    &["explain", "NAME"],
    &["peek", "NAME"],
    &["job", "NAME", "1"],
    &["enqueue", "NAME", "--arg", "filepath=/a"],
    &["dlq", "list", "NAME"],
    &["dlq", "show", "NAME", "1"],
    &["dlq", "requeue", "NAME", "--yes"],
    &["dlq", "purge", "NAME", "--yes"],
    &["pause", "NAME"],
    &["resume", "NAME"],
    &["scale", "NAME", "1"],
    &["drain", "NAME", "pod"],
    &["logs", "NAME"],
    &["doctor", "NAME"],
    &["report", "NAME"],
];

/// Everything that asks Redis and waits for its answer; `doctor` and `report` have more to say than that it is away.
const ASKING: [&[&str]; 10] = [
    &["stats", "hello", "--live"],
    &["stats", "hello", "-w"],
    &["peek", "hello"],
    &["job", "hello", "1"],
    &["enqueue", "hello", "--arg", "filepath=/a", "--arg", "filesize=0"],
    &["dlq", "list", "hello"],
    &["dlq", "show", "hello", "1"],
    &["dlq", "requeue", "hello", "--yes"],
    &["dlq", "purge", "hello", "--yes", "--no-archive"],
    // Where nothing can be read nothing is archived.
    &["dlq", "purge", "hello", "--yes", "--archive", "ARCHIVE"],
];

/// That Redis is away is told by everything that asks it.
async fn assert_away_is_told(space: &Namespace) {
    let directory = tempfile::tempdir().expect("a directory");
    let (archive, report) = (file(&directory, "letters.ndjson"), file(&directory, "report.tar.gz"));
    let (archive, report) = (archive.to_str().expect("text"), report.to_str().expect("text"));
    for one in ASKING {
        let words: Vec<&str> =
            one.iter().map(|word| if *word == "ARCHIVE" { archive } else { word }).collect();
        let said = jobqueue(space, &words).await.failed(1);
        assert!(said.contains("cannot reach Redis at"), "{one:?}: {said}");
    }
    assert!(!std::path::Path::new(archive).exists(), "nothing was archived");
    let found = jobqueue(space, &["doctor", "hello"]).await;
    assert!(found.code == 1 && found.out.contains("[redis]"), "{found:#?}");
    // What else there is to know is worth a report, which says in place of the figures why they are not there.
    jobqueue(space, &["report", "hello", "-o", report]).await.ok();
    let why = ["-xzOf", report, "--wildcards", "*/hello/stats.error.txt"];
    let why = run("tar", &why, None).await.expect("a file that says why");
    assert!(why.contains("cannot reach Redis at"), "{why}");
}

fn verb(verb: &[&'static str], name: &'static str) -> Vec<&'static str> {
    verb.iter().map(|word| if *word == "NAME" { name } else { word }).collect()
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_said_to_by_every_verb() {
    let space = Namespace::create("missing").await;
    for one in VERBS {
        let said = jobqueue(&space, &verb(one, "nobody")).await.failed(3);
        assert!(said.contains("there is no JobQueue nobody in namespace"), "{one:?}: {said}");
    }
    space.delete().await;
}

#[tokio::test]
async fn who_may_only_look_is_told_which_right_is_missing() {
    let space = Namespace::create("forbidden").await;
    space.queue("hello", "{scaling: {mode: Manual}, replicas: 1}").await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    let nobody = stranger(&space, "nobody", None).await;
    for one in VERBS {
        let said = jobqueue_with(&space, &verb(one, "hello"), Some(nobody.path())).await.failed(4);
        assert!(said.contains("cannot get resource \"jobqueues\""), "{one:?}: {said}");
    }
    for one in [&["list"][..], &["stats"], &["doctor"], &["report"], &["list", "-A"]] {
        let said = jobqueue_with(&space, one, Some(nobody.path())).await.failed(4);
        assert!(said.contains("cannot list resource \"jobqueues\""), "{one:?}: {said}");
    }
    let viewer = stranger(&space, "viewer", Some("jobqueue-view")).await;
    for one in [
        &["stats", "hello"][..],
        &["list"],
        &["explain", "hello"],
        &["describe", "hello"],
        &["logs", "hello"],
    ] {
        jobqueue_with(&space, one, Some(viewer.path())).await.ok();
    }
    for one in [
        &["peek", "hello"][..],
        &["stats", "hello", "--live"],
        &["job", "hello", "1"],
        &["dlq", "list", "hello"],
        &["dlq", "show", "hello", "1"],
        &["dlq", "requeue", "hello", "--yes"],
        &["dlq", "purge", "hello", "--yes", "--no-archive"],
        &["enqueue", "hello", "--arg", "filepath=/a"],
    ] {
        let said = jobqueue_with(&space, one, Some(viewer.path())).await.failed(4);
        assert!(said.contains("pods/exec"), "{one:?}: {said}");
    }
    // Nor the Secrets, whose values are then not known: a report says so, where it is written and where it is read.
    let directory = tempfile::tempdir().expect("a directory");
    let archive = file(&directory, "report.tar.gz");
    let archive = archive.to_str().expect("text");
    let report = jobqueue_with(&space, &["report", "hello", "-o", archive], Some(viewer.path())).await;
    assert!(report.code == 0 && report.err.contains("/hello-redis ("), "{report:#?}");
    assert!(report.out.contains("not all secrets are masked"), "{report:#?}");
    let readme = run("tar", &["-xzOf", archive, "--wildcards", "*/README.txt"], None).await.expect("a file");
    assert!(readme.contains("/hello-redis ("), "{readme}");
    // The queue alone, without its events.
    let looker = stranger(&space, "looker", None).await;
    let role = ["create", "role", "looker", "--verb=get", "--resource=jobqueues.jobqueue.dev"];
    space.kubectl(&role).await.expect("a role");
    let account = format!("--serviceaccount={}:looker", space.name);
    space.kubectl(&["create", "rolebinding", "looker", "--role=looker", &account]).await.expect("bound");
    let page = jobqueue_with(&space, &["describe", "hello"], Some(looker.path())).await.ok();
    assert!(page.contains("not shown: cannot list the events of jobqueue hello"), "{page}");
    // And who may may ask as somebody who may not.
    let user = format!("--as=system:serviceaccount:{}:nobody", space.name);
    let said =
        jobqueue(&space, &["describe", "hello", &user, "--as-group=system:authenticated"]).await.failed(4);
    assert!(said.contains("cannot get resource \"jobqueues\""), "{said}");
    for one in [&["pause", "hello"][..], &["scale", "hello", "2"]] {
        jobqueue_with(&space, one, Some(viewer.path())).await.failed(4);
    }
    let editor = stranger(&space, "editor", Some("jobqueue-edit")).await;
    for one in [&["peek", "hello"][..], &["pause", "hello"], &["stats", "hello", "--live"]] {
        jobqueue_with(&space, one, Some(editor.path())).await.ok();
    }
    space.delete().await;
}

#[tokio::test]
async fn who_may_not_make_a_pod_is_told_so_while_a_queue_has_none() {
    let space = Namespace::create("podless").await;
    space.queue("hello", "{paused: true}").await;
    space.await_ready("hello").await;
    let guest = stranger(&space, "guest", Some("jobqueue-view")).await;
    // Everything that it takes while there are workers, and not what it takes while there are none.
    for (name, resource) in [("exec", "pods/exec"), ("look", "deployments.apps")] {
        let resource = format!("--resource={resource}");
        space.kubectl(&["create", "role", name, "--verb=get,create", &resource]).await.expect("a role");
        let (role, account) = (format!("--role={name}"), format!("--serviceaccount={}:guest", space.name));
        space.kubectl(&["create", "rolebinding", name, &role, &account]).await.expect("bound");
    }
    for one in [
        &["peek", "hello"][..],
        &["job", "hello", "1"],
        &["stats", "hello", "--live"],
        &["stats", "hello", "-w"],
        &["enqueue", "hello", "--arg", "filepath=/a"],
        &["dlq", "list", "hello"],
        &["dlq", "requeue", "hello", "--yes"],
        &["dlq", "purge", "hello", "--yes", "--no-archive"],
    ] {
        let said = jobqueue_with(&space, one, Some(guest.path())).await.failed(4);
        assert!(
            said.contains("cannot create a pod") && said.contains("ask for the right"),
            "{one:?}: {said}"
        );
    }
    // Nothing is wrong with the queue, but nobody could look.
    let found = jobqueue_with(&space, &["doctor", "hello"], Some(guest.path())).await;
    assert!(
        found.code == 4 && found.out.contains("[redis]") && found.out.contains("ask for the right"),
        "{found:#?}"
    );
    space.delete().await;
}

#[tokio::test]
async fn redis_away_is_told_by_everything_that_asks_it_and_by_nothing_else() {
    let space = Namespace::create("away").await;
    let redis = space.external("redis").await;
    space.queue("hello", &space.on("redis", "scaling: {mode: Manual}, replicas: 1")).await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    drop(redis);
    space.kubectl(&["delete", "pod", "redis", "--wait=true"]).await.expect("deleted");
    assert_away_is_told(&space).await;
    let worker = space.workers("hello").await.remove(0);
    let drained = jobqueue(&space, &["drain", "hello", &worker]).await;
    assert!(drained.code == 1 && drained.err.contains("cannot reach Redis at"), "{drained:#?}");
    assert_eq!(space.workers("hello").await, [worker], "it was not deleted");
    for one in [
        &["stats", "hello"][..],
        &["list"],
        &["explain", "hello"],
        &["describe", "hello"],
        &["logs", "hello"],
        &["pause", "hello"],
        &["resume", "hello"],
        &["scale", "hello", "1"],
    ] {
        jobqueue(&space, one).await.ok();
    }
    space.delete().await;
}

#[tokio::test]
async fn redis_away_is_told_also_by_a_queue_that_has_no_pods() {
    let space = Namespace::create("lonely").await;
    let redis = space.external("redis").await;
    space.queue("hello", &space.on("redis", "paused: true")).await;
    space.await_ready("hello").await;
    drop(redis);
    space.kubectl(&["delete", "pod", "redis", "--wait=true"]).await.expect("deleted");
    assert_away_is_told(&space).await;
    let admins = "jobqueue.dev/queue=hello,app.kubernetes.io/component=admin";
    patiently("no guest", async || {
        space.list("pods", admins).await.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_and_a_wrong_call_have_their_own_codes() {
    let space = Namespace::create("wrong").await;
    let said = jobqueue(&space, &["stats", "--kubeconfig", "/nowhere"]).await.failed(5);
    assert!(said.contains("kubeconfig"), "{said}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let config = r#"{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],
        "clusters":[{"name":"x","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"x","user":{}}]}"#;
    std::fs::write(file.path(), config).expect("written");
    let said = jobqueue_with(&space, &["stats"], Some(file.path())).await.failed(5);
    assert!(said.contains("does not answer"), "{said}");
    assert_eq!(jobqueue(&space, &["stats", "--nonsense"]).await.code, 2);
    let said = jobqueue(&space, &["top"]).await.failed(2);
    assert!(said.contains("needs a terminal"), "{said}");
    space.delete().await;
}
