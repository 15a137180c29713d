//! What goes and what stays when a queue is deleted, and that a deletion always comes to its end.
use e2e::kubernetes::{LOW, Namespace, kubectl, patiently};

#[tokio::test]
async fn retain_keeps_volume_and_password_and_a_new_queue_of_the_name_finds_the_jobs() {
    let space = Namespace::create("retain").await;
    space.queue("kept", "{replicas: 0, scaling: {mode: Manual}}").await;
    space.await_ready("kept").await;
    space.managed("kept").await.push(LOW, 0..20).await;
    space.kubectl(&["delete", "jobqueue", "kept"]).await.expect("deleted");
    patiently("no pods", async || space.list("pods", "jobqueue.dev/queue=kept").await.is_empty()).await;
    assert!(space.find("pvc", "kept-redis").await.is_some());
    assert!(space.find("secret", "kept-redis").await.is_some());
    assert!(space.find("deployment", "kept-worker").await.is_none());
    space.queue("kept", "{}").await;
    space.await_ready("kept").await;
    space.managed("kept").await.await_completed(0..20).await;
    space.delete().await;
}

#[tokio::test]
async fn delete_removes_the_managed_redis_with_volume_and_password() {
    let space = Namespace::create("delete").await;
    space.queue("gone", "{deletionPolicy: Delete, scaling: {minReplicas: 1}}").await;
    space.await_ready("gone").await;
    space.kubectl(&["delete", "jobqueue", "gone", "--timeout=110s"]).await.expect("deleted");
    for kind in ["pvc", "secret", "statefulset", "deployment", "service", "configmap", "pod"] {
        patiently(kind, async || {
            let left = space.list(kind, "jobqueue.dev/queue=gone").await;
            if left.is_empty() {
                Ok(())
            } else {
                Err(left.iter().map(|one| one["metadata"]["name"].clone()).collect::<Vec<_>>())
            }
        })
        .await;
    }
    space.delete().await;
}

#[tokio::test]
async fn delete_removes_the_keys_in_an_external_redis_and_no_others() {
    let space = Namespace::create("keys").await;
    let redis = space.external("store").await;
    redis.ask(&["SET", "jobqueued:other", "mine"]).await.expect("set");
    space.queue("gone", &space.on("store", "deletionPolicy: Delete")).await;
    space.await_ready("gone").await;
    redis.push(LOW, 0..10).await;
    redis.await_completed(0..10).await;
    // More than one page of them.
    let many = "for n = 1, 5000 do redis.call('SET', 'jobqueue:enqueued:' .. n, '1') end return 5000";
    assert_eq!(redis.count(&["EVAL", many, "0"]).await, 5000);
    space.kubectl(&["delete", "jobqueue", "gone", "--timeout=110s"]).await.expect("deleted");
    assert_eq!(redis.ask(&["KEYS", "*"]).await.unwrap(), "jobqueued:other");
    space.delete().await;
}

#[tokio::test]
async fn a_queue_whose_keys_are_anothers_is_deleted_at_once_and_leaves_them() {
    let space = Namespace::create("anothers").await;
    let redis = space.external("store").await;
    space.queue("first", &space.on("store", "")).await;
    space.await_ready("first").await;
    // One list in common, one of its own.
    let spec = "deletionPolicy: Delete, queues: [{name: mine, key: 'jobqueue:mine'}, {name: low, key: 'jobqueue:low_priority'}]";
    space.queue("second", &space.on("store", spec)).await;
    space.await_condition("second", "Stalled", "True/KeyConflict").await;
    redis.push(LOW, 0..5).await;
    redis.await_completed(0..5).await;
    space.kubectl(&["delete", "jobqueue", "second", "--timeout=40s"]).await.expect("deleted");
    let left = space.events("KeysLeft").await;
    assert!(left.len() == 1 && left[0].contains("belongs to"), "{left:?}");
    assert_ne!(redis.ask(&["GET", "jobqueue:low_priority:owner"]).await.unwrap(), "");
    assert_eq!(redis.completed_jobs().await.len(), 5);
    space.delete().await;
}

#[tokio::test]
async fn a_deletion_does_not_wait_for_ever_for_a_redis_that_is_gone() {
    let space = Namespace::create("unreachable").await;
    space.external("store").await;
    space.queue("gone", &space.on("store", "deletionPolicy: Delete")).await;
    space.await_ready("gone").await;
    space.kubectl(&["delete", "pod", "store"]).await.expect("deleted");
    space.kubectl(&["delete", "jobqueue", "gone", "--timeout=110s"]).await.expect("deleted");
    let left = space.events("KeysLeft").await;
    assert!(left.len() == 1 && left[0].starts_with("Deleted without its keys in Redis"), "{left:?}");
    space.delete().await;
}

#[tokio::test]
async fn a_queue_that_never_had_its_secret_can_be_deleted() {
    let space = Namespace::create("secretless").await;
    let external = "{address: 'store.invalid:6379', secretRef: {name: never}}";
    space.queue("gone", &format!("{{deletionPolicy: Delete, redis: {{external: {external}}}}}")).await;
    space.await_condition("gone", "Stalled", "True/SecretNotFound").await;
    space.kubectl(&["delete", "jobqueue", "gone", "--timeout=110s"]).await.expect("deleted");
    space.delete().await;
}

#[tokio::test]
async fn a_namespace_with_a_queue_to_be_deleted_terminates() {
    let space = Namespace::create("terminated").await;
    space.queue("gone", "{deletionPolicy: Delete, scaling: {minReplicas: 1}}").await;
    space.queue("kept", "{}").await;
    space.await_ready("gone").await;
    space.await_ready("kept").await;
    kubectl(&["delete", "namespace", &space.name, "--timeout=110s"]).await.expect("terminated");
}

#[tokio::test]
async fn what_is_not_the_queues_survives_its_deletion() {
    let space = Namespace::create("foreign").await;
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: shop-redis}\nstringData: {theirs: kept}\n";
    space.apply(secret).await;
    space.queue("shop", "{deletionPolicy: Delete}").await;
    let stalled = space.await_condition("shop", "Stalled", "True/NameConflict").await;
    assert!(stalled.contains("Secret shop-redis exists and does not belong to this JobQueue"), "{stalled}");
    space.kubectl(&["delete", "jobqueue", "shop"]).await.expect("deleted");
    assert_eq!(space.get("secret", "shop-redis").await["data"]["theirs"], "a2VwdA==");
    space.delete().await;
}

#[tokio::test]
async fn a_deletion_does_not_wait_for_ever_for_a_pod_that_does_not_stop() {
    let space = Namespace::create("stuck-pod").await;
    space
        .queue("gone", "{deletionPolicy: Delete, scaling: {minReplicas: 1}, worker: {drainTimeout: 1s}}")
        .await;
    space.await_condition("gone", "WorkersAvailable", "True/Available").await;
    let pods = space.list("pods", "app.kubernetes.io/component=worker").await;
    let pod = pods[0]["metadata"]["name"].as_str().expect("a name");
    let patch = |finalizers: &str| format!(r#"{{"metadata": {{"finalizers": {finalizers}}}}}"#);
    let held = patch(r#"["jobqueue.dev/test"]"#);
    space.kubectl(&["patch", "pod", pod, "--type=merge", "-p", &held]).await.expect("held");
    space.kubectl(&["delete", "jobqueue", "gone", "--timeout=110s"]).await.expect("deleted");
    assert!(space.find("pod", pod).await.is_some(), "the pod is still there");
    let left = space.events("PodsLeft").await;
    assert!(left.len() == 1 && left[0].ends_with(pod), "{left:?}");
    space.kubectl(&["patch", "pod", pod, "--type=merge", "-p", &patch("null")]).await.expect("released");
    space.delete().await;
}

#[tokio::test]
async fn jobs_of_another_program_are_given_back_whatever_has_become_of_them() {
    let space = Namespace::create("given-back").await;
    let redis = space.external("store").await;
    let spec = "protocol: sidekiq, worker: {handler: {simulate: {}}}, deletionPolicy: Delete, \
                replicas: 0, scaling: {mode: Manual}";
    space.queue("gone", &space.on("store", spec)).await;
    space.await_ready("gone").await;
    // A lane that was fenced by its successor a moment ago, so that its cause may still become known, and a suspect.
    let prefix = format!("jobqueue:{}:gone", space.name);
    let list = format!("{prefix}:worker:9-1:default:processing");
    let lists = format!(r#"[{{"name":"default","queue":"queue:default","lists":["{list}"]}}]"#);
    let job = |id: &str| {
        format!(r#"{{"class":"Mail","args":[],"jid":"{id}","queue":"default","retry":true,"created_at":1}}"#)
    };
    let (held, suspected) = (job("000000000000000000000001"), job("000000000000000000000002"));
    let record = format!("{prefix}:lane:9-1");
    redis.ask(&["LPUSH", &format!("{prefix}:suspects:default"), &suspected]).await.expect("pushed");
    redis.ask(&["LPUSH", &list, &held]).await.expect("pushed");
    redis.ask(&["HSET", &record, "fenced", "restarted", "lists", &lists, "keys", &list]).await.expect("set");
    redis.ask(&["ZADD", &format!("{prefix}:reaping"), "1", "9-1"]).await.expect("added");
    space.kubectl(&["delete", "jobqueue", "gone", "--timeout=110s"]).await.expect("deleted");
    let queued = redis.ask(&["LRANGE", "queue:default", "0", "-1"]).await.expect("jobs");
    for id in ["000000000000000000000001", "000000000000000000000002"] {
        assert_eq!(queued.matches(id).count(), 1, "{queued}");
    }
    let left = redis.ask(&["KEYS", &format!("{prefix}:*")]).await.expect("keys");
    assert_eq!(left, "", "and nothing else is left");
    space.delete().await;
}
