//! A Redis that users run themselves.
use e2e::certificates::Certificates;
use e2e::kubernetes::{LOW, Namespace, patiently};
use serde_json::json;

#[tokio::test]
async fn an_external_redis_is_used_with_tls_and_an_acl_user_of_a_secret() {
    let space = Namespace::create("tls").await;
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::generate(dir.path());
    let text = |path| std::fs::read_to_string(path).unwrap();
    let secrets = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "server" }, "stringData": {
            "ca.crt": text(&certificates.ca), "tls.crt": text(&certificates.server_cert), "tls.key": text(&certificates.server_key),
            "client.crt": text(&certificates.client_cert), "client.key": text(&certificates.client_key),
        }},
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "client" }, "stringData": {
            "username": "orders", "password": "sesame", "ca.crt": text(&certificates.ca),
            "tls.crt": text(&certificates.client_cert), "tls.key": text(&certificates.client_key),
        }},
    ]});
    space.apply(&secrets.to_string()).await;
    let server = [
        "--port",
        "0",
        "--tls-port",
        "6379",
        "--tls-cert-file",
        "/tls/tls.crt",
        "--tls-key-file",
        "/tls/tls.key",
        "--tls-ca-cert-file",
        "/tls/ca.crt",
        "--user",
        "orders",
        "on",
        ">sesame",
        "~*",
        "&*",
        "+@all",
        "--user",
        "default",
        "off",
    ];
    // Whoever shows no certificate is not let in. The server's own is for servers only, so redis-cli has the client's.
    let server = [&server[..], &["--tls-auth-clients", "yes"]].concat();
    let tls = ["--tls", "--cacert", "/tls/ca.crt", "--cert", "/tls/client.crt", "--key", "/tls/client.key"];
    let flags = [&tls[..], &["--no-auth-warning", "--user", "orders", "--pass", "sesame"]].concat();
    let flags = flags.into_iter().map(str::to_owned).collect();
    let redis = space.external_with("store", &server, flags, Some("server")).await;
    let address = format!("store.{}:6379", space.name);
    let external =
        format!("{{address: \"{address}\", secretRef: {{name: client}}, tls: {{serverName: localhost}}}}");
    space.queue("orders", &format!("{{redis: {{external: {external}}}}}")).await;
    space.await_ready("orders").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    space.delete().await;
}

#[tokio::test]
async fn a_missing_secret_stalls_the_queue_until_it_is_created() {
    let space = Namespace::create("secret").await;
    space.external_with("store", &["--requirepass", "sesame"], vec![], None).await;
    let external = format!("{{address: \"store.{}:6379\", secretRef: {{name: later}}}}", space.name);
    space.queue("orders", &format!("{{redis: {{external: {external}}}}}")).await;
    let stalled = space.await_condition("orders", "Stalled", "True/SecretNotFound").await;
    assert!(stalled.contains("spec.redis.external.secretRef: there is no Secret later"), "{stalled}");
    space
        .kubectl(&["create", "secret", "generic", "later", "--from-literal=pass=sesame"])
        .await
        .expect("created");
    let stalled = space.await_condition("orders", "Stalled", "True/InvalidSecret").await;
    assert!(stalled.contains("Secret later has no key password: add it"), "{stalled}");
    let added = r#"{"stringData": {"password": "sesame"}}"#;
    space.kubectl(&["patch", "secret", "later", "--type=merge", "-p", added]).await.expect("added");
    space.await_ready("orders").await;
    space.delete().await;
}

#[tokio::test]
async fn a_queue_that_is_stalled_is_paused_and_scaled_all_the_same() {
    let space = Namespace::create("stalled").await;
    let flags = ["--no-auth-warning", "-a", "sesame"].map(str::to_owned).to_vec();
    let redis = space.external_with("store", &["--requirepass", "sesame"], flags, None).await;
    let login = ["create", "secret", "generic", "login", "--from-literal=password=sesame"];
    space.kubectl(&login).await.expect("created");
    let external = format!("{{address: \"store.{}:6379\", secretRef: {{name: login}}}}", space.name);
    space.queue("orders", &format!("{{redis: {{external: {external}}}, scaling: {{minReplicas: 2}}}}")).await;
    space.await_condition("orders", "WorkersAvailable", "True/Available: 2 of 2").await;
    redis.push(LOW, 0..1).await;
    redis.await_completed(0..1).await;
    space.kubectl(&["delete", "secret", "login"]).await.expect("deleted");
    // Secrets have no watch.
    space.kubectl(&["annotate", "jobqueue", "orders", "looked-at=again"]).await.expect("annotated");
    space.await_condition("orders", "Stalled", "True/SecretNotFound").await;
    space.patch("orders", r#"{"spec": {"paused": true}}"#).await;
    patiently("the mark that stops the workers", async || {
        match redis.count(&["EXISTS", "jobqueue:paused"]).await {
            1 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    redis.push(LOW, 1..4).await;
    // By the time that the figures are told, the worker has asked for jobs many times.
    patiently("three waiting jobs in the status", async || {
        let status = space.get("jobqueue", "orders").await["status"].clone();
        if status["waiting"] == 3 { Ok(()) } else { Err(status["waiting"].clone()) }
    })
    .await;
    assert_eq!(redis.count(&["LLEN", LOW]).await, 3);
    space.patch("orders", r#"{"spec": {"scaling": {"mode": "Manual"}, "replicas": 1}}"#).await;
    // Not more: a pod that is new would wait for the Secret.
    space.await_asked_for("orders", 1).await;
    space.await_condition("orders", "WorkersAvailable", "True/Available: 1 of 1").await;
    assert!(space.condition("orders", "Stalled").await.starts_with("True/SecretNotFound"), "all the while");
    space.patch("orders", r#"{"spec": {"paused": false}}"#).await;
    redis.await_completed(0..4).await;
    space.kubectl(&login).await.expect("created");
    space.await_ready("orders").await;
    space.delete().await;
}

#[tokio::test]
async fn a_wrong_password_is_told_and_a_right_one_is_taken_up() {
    let space = Namespace::create("password").await;
    space.external_with("store", &["--requirepass", "sesame"], vec![], None).await;
    space
        .kubectl(&["create", "secret", "generic", "login", "--from-literal=password=wrong"])
        .await
        .expect("created");
    let external = format!("{{address: \"store.{}:6379\", secretRef: {{name: login}}}}", space.name);
    space.queue("orders", &format!("{{redis: {{external: {external}}}}}")).await;
    space.await_condition("orders", "Ready", "False/RedisAuthFailed").await;
    let stalled = space.await_condition("orders", "Stalled", "True/RedisAuthFailed").await;
    let place =
        "refused the credentials: check username and password in the Secret of spec.redis.external.secretRef";
    assert!(stalled.contains(place), "{stalled}");
    let right = r#"{"stringData": {"password": "sesame"}}"#;
    space.kubectl(&["patch", "secret", "login", "--type=merge", "-p", right]).await.expect("changed");
    space.await_ready("orders").await;
    assert_eq!(space.condition("orders", "Stalled").await, "-/-: -");
    space.delete().await;
}

#[tokio::test]
async fn a_user_who_may_not_use_the_keys_is_told_which() {
    let space = Namespace::create("denied").await;
    let server = ["--protected-mode", "no", "--user", "orders", "on", ">sesame", "~other:*", "&*", "+@all"];
    space.external_with("store", &server, vec![], None).await;
    let login = ["--from-literal=username=orders", "--from-literal=password=sesame"];
    space.kubectl(&[&["create", "secret", "generic", "login"], &login[..]].concat()).await.expect("created");
    let external = format!("{{address: \"store.{}:6379\", secretRef: {{name: login}}}}", space.name);
    space.queue("orders", &format!("{{redis: {{external: {external}}}}}")).await;
    let stalled = space.await_condition("orders", "Stalled", "True/RedisAuthFailed").await;
    assert!(stalled.contains("denies access to key jobqueue:"), "{stalled}");
    space.delete().await;
}

#[tokio::test]
async fn the_second_queue_on_the_same_keys_stalls_until_the_first_is_deleted() {
    let space = Namespace::create("conflict").await;
    let redis = space.external("store").await;
    space.queue("first", &space.on("store", "")).await;
    space.await_ready("first").await;
    space.queue("second", &space.on("store", "")).await;
    let stalled = space.await_condition("second", "Stalled", "True/KeyConflict").await;
    assert!(stalled.contains(&format!("belongs to JobQueue {}/first", space.name)), "{stalled}");
    space.kubectl(&["delete", "jobqueue", "first"]).await.expect("deleted");
    space.await_ready("second").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    // The second is the owner now, for everybody.
    space.queue("third", &space.on("store", "")).await;
    let stalled = space.await_condition("third", "Stalled", "True/KeyConflict").await;
    assert!(stalled.contains(&format!("belongs to JobQueue {}/second", space.name)), "{stalled}");
    space.delete().await;
}

#[tokio::test]
async fn a_queue_whose_keys_are_anothers_never_has_a_worker_or_a_producer() {
    let space = Namespace::create("hands-off").await;
    let redis = space.external("store").await;
    space.queue("first", &space.on("store", "paused: true")).await;
    space.await_ready("first").await;
    let second = "scaling: {minReplicas: 2}, producer: {volume: {emptyDir: {}}}, queues: [{name: other}]";
    space.queue("second", &space.on("store", second)).await;
    // Other lists, but one prefix: registry, dead letters and all else would be shared.
    space.await_condition("second", "Stalled", "True/KeyConflict").await;
    redis.push(LOW, 0..3).await;
    for part in ["worker", "producer"] {
        let replicas = space.get("deployment", &format!("second-{part}")).await["spec"]["replicas"].clone();
        assert_eq!(replicas, 0, "{part}");
    }
    space.kubectl(&["delete", "jobqueue", "first"]).await.expect("deleted");
    space.await_condition("second", "WorkersAvailable", "True/Available").await;
    patiently("the producer", async || {
        space.get("deployment", "second-producer").await["spec"]["replicas"] == 1
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn another_prefix_is_another_queue_in_the_same_redis() {
    let space = Namespace::create("prefix").await;
    let redis = space.external("store").await;
    space.queue("first", &space.on("store", "")).await;
    space.queue("second", &space.on("store", "keyPrefix: other")).await;
    space.await_ready("first").await;
    space.await_ready("second").await;
    redis.push("other:low_priority", 0..3).await;
    patiently("completed jobs", async || redis.count(&["LLEN", "other:completed"]).await == 3).await;
    assert_eq!(redis.completed().await.unwrap(), [""; 0]);
    space.delete().await;
}

#[tokio::test]
async fn the_pause_of_a_deleted_queue_does_not_outlive_it() {
    let space = Namespace::create("outlived").await;
    let redis = space.external("store").await;
    space.queue("first", &space.on("store", "paused: true")).await;
    space.await_condition("first", "Ready", "True/Paused").await;
    redis.push(LOW, 0..3).await;
    space.kubectl(&["delete", "jobqueue", "first"]).await.expect("deleted");
    space.queue("second", &space.on("store", "")).await;
    space.await_ready("second").await;
    redis.await_completed(0..3).await;
    space.delete().await;
}

#[tokio::test]
async fn a_queue_that_is_created_again_under_its_name_owns_its_keys_again() {
    let space = Namespace::create("again").await;
    let redis = space.external("store").await;
    space.queue("orders", &space.on("store", "")).await;
    space.await_ready("orders").await;
    space.kubectl(&["delete", "jobqueue", "orders"]).await.expect("deleted");
    space.queue("orders", &space.on("store", "")).await;
    space.await_ready("orders").await;
    redis.push(LOW, 0..1).await;
    redis.await_completed(0..1).await;
    let uid = space.get("jobqueue", "orders").await["metadata"]["uid"].as_str().unwrap().to_owned();
    patiently("the claim of the new queue", async || {
        let keys = redis.ask(&["KEYS", "*owner*"]).await?;
        let mut owners = vec![];
        for key in keys.lines() {
            owners.push(redis.ask(&["GET", key]).await?);
        }
        if !owners.is_empty() && owners.iter().all(|owner| owner.ends_with(&uid)) {
            Ok(())
        } else {
            Err(format!("{owners:?}, not {uid}"))
        }
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn a_list_of_another_queue_that_is_added_changes_nothing_until_it_is_free() {
    let space = Namespace::create("added").await;
    let redis = space.external("store").await;
    let first = "keyPrefix: one, queues: [{name: own}, {name: mail, key: mail}]";
    space.queue("first", &space.on("store", first)).await;
    space.await_ready("first").await;
    let second = "keyPrefix: two, queues: [{name: own}], scaling: {minReplicas: 1}";
    space.queue("second", &space.on("store", second)).await;
    space.await_condition("second", "WorkersAvailable", "True/Available: 1 of 1").await;
    let workers = space.workers("second").await;
    let added = r#"{"spec": {"queues": [{"name": "own"}, {"name": "mail", "key": "mail"}]}}"#;
    space.patch("second", added).await;
    let stalled = space.await_condition("second", "Stalled", "True/KeyConflict").await;
    let told = format!("The queue mail in this Redis belongs to JobQueue {}/first", space.name);
    assert!(stalled.contains(&told), "{stalled}");
    // The workers that it has go on as they were, and are looked after.
    redis.push("two:own", 0..3).await;
    redis.await_completed_in("two:completed", 0..3).await;
    assert_eq!((space.asked_for("second").await, space.workers("second").await), (1, workers));
    space.kubectl(&["delete", "jobqueue", "first"]).await.expect("deleted");
    patiently("the change to take place", async || {
        let config = space.get("configmap", "second-config").await["data"]["config.yaml"].clone();
        config.as_str().unwrap_or_default().contains("mail")
    })
    .await;
    space.await_ready("second").await;
    assert_eq!(space.condition("second", "Stalled").await, "-/-: -");
    redis.push("mail", 3..5).await;
    redis.await_completed_in("two:completed", 0..5).await;
    space.delete().await;
}
