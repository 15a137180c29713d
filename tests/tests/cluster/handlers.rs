//! What runs the jobs, and where they come from.
use e2e::kubernetes::{LOW, Namespace, given, job, patiently};

#[tokio::test]
async fn an_app_beside_the_worker_runs_the_jobs() {
    let space = Namespace::create("app").await;
    let image = given("APP_IMAGE");
    let template = format!("{{spec: {{containers: [{{name: app, image: '{image}'}}]}}}}");
    let worker = format!("{{handler: {{http: {{}}}}, app: {{healthPath: /health}}, template: {template}}}");
    space.queue("thumbs", &format!("{{worker: {worker}}}")).await;
    space.await_ready("thumbs").await;
    let redis = space.managed("thumbs").await;
    let mut jobs: Vec<_> = (0..6).map(job).collect();
    for job in &mut jobs {
        job["duration_ms"] = 500.into();
    }
    redis.push_all(LOW, &jobs).await;
    redis.await_completed(0..6).await;
    let pods = space.list("pods", "app.kubernetes.io/component=worker").await;
    let app = &pods[0]["spec"]["initContainers"][0];
    assert_eq!((&app["name"], &app["restartPolicy"]), (&"app".into(), &"Always".into()));
    let pod = pods[0]["metadata"]["name"].as_str().unwrap();
    let log = space.kubectl(&["logs", pod, "-c", "app"]).await.expect("the app's log");
    assert_eq!(log.matches("attempt=1 status=200").count(), 6, "{log}");
    space.delete().await;
}

#[tokio::test]
async fn a_program_of_the_users_image_runs_for_each_job() {
    let space = Namespace::create("command").await;
    let image = given("REDIS_IMAGE");
    let template = format!("{{spec: {{containers: [{{name: worker, image: '{image}'}}]}}}}");
    let worker = format!("{{handler: {{command: {{argv: [redis-cli, --version]}}}}, template: {template}}}");
    space.queue("command", &format!("{{worker: {worker}}}")).await;
    space.await_ready("command").await;
    let redis = space.managed("command").await;
    redis.push(LOW, 0..5).await;
    redis.await_completed(0..5).await;
    let pods = space.list("pods", "app.kubernetes.io/component=worker").await;
    assert_eq!(pods[0]["spec"]["containers"][0]["image"], image.as_str());
    assert_eq!(pods[0]["spec"]["initContainers"][0]["image"], given("WORKER_IMAGE").as_str());
    space.delete().await;
}

#[tokio::test]
async fn the_files_of_a_volume_become_jobs_and_are_completed() {
    let space = Namespace::create("inbox").await;
    let files = ["--from-literal=a.txt=one", "--from-literal=b.pdf=two", "--from-literal=c.tmp=three"];
    space.kubectl(&[&["create", "configmap", "inbox"][..], &files].concat()).await.expect("created");
    space.queue("inbox", "{producer: {volume: {configMap: {name: inbox}}, rescanInterval: 1s}}").await;
    space.await_ready("inbox").await;
    let redis = space.managed("inbox").await;
    let completed = patiently("two completed files", async || {
        let lines = redis.ask(&["LRANGE", "jobqueue:completed", "0", "-1"]).await.unwrap_or_default();
        if lines.lines().count() >= 2 { Ok(lines) } else { Err(lines) }
    })
    .await;
    assert!(completed.contains("/data/a.txt") && completed.contains("/data/b.pdf"), "{completed}");
    assert!(!completed.contains("c.tmp"), "{completed}");
    space.delete().await;
}

#[tokio::test]
async fn a_queue_whose_jobs_all_fail_says_so_until_they_do_not() {
    let space = Namespace::create("breaker").await;
    let worker = "{handler: {simulate: {failGlob: '/data/*'}}}";
    let breaker = "{minSamples: 5, cooldown: 10m}";
    let spec = format!(
        "{{worker: {worker}, circuitBreaker: {breaker}, retry: {{maxRetries: 0}}, scaling: {{minReplicas: 1}}}}"
    );
    space.queue("orders", &spec).await;
    space.await_condition("orders", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("orders").await;
    redis.push(LOW, 0..60).await;
    let told = space.await_condition("orders", "HandlerHealthy", "False/BreakerOpen").await;
    assert!(told.contains(": low."), "{told}");
    let queues = space.get("jobqueue", "orders").await["status"]["queues"].clone();
    let breakers: Vec<_> =
        queues.as_array().into_iter().flatten().map(|one| one["breaker"].clone()).collect();
    assert_eq!(breakers.iter().filter(|state| **state == "open").count(), 1, "{queues}");
    patiently("the gauge", async || {
        let open = space.metric("jobqueue_breaker_open", "orders").await;
        if (open - 1.0).abs() < 0.5 { Ok(()) } else { Err(open) }
    })
    .await;
    // Those that wait were spared.
    let dead = redis.count(&["LLEN", "jobqueue:dead_letter"]).await;
    assert!((5..60).contains(&dead), "{dead} of 60 failed");
    space.patch("orders", r#"{"spec": {"worker": {"handler": {"simulate": {"failGlob": null}}}}}"#).await;
    patiently("the others to be completed", async || {
        let completed = redis.count(&["LLEN", "jobqueue:completed"]).await;
        if completed == 60 - dead { Ok(()) } else { Err(completed) }
    })
    .await;
    space.await_condition("orders", "HandlerHealthy", "True/BreakersClosed").await;
    space.delete().await;
}
