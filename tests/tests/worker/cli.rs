//! The command line: what it prints and how it ends, without any Redis.

use std::process::Output;

use e2e::WorkerOptions;

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let options = args.iter().fold(WorkerOptions::new(""), |options, arg| options.arg(*arg));
    let output = options.output();
    let (stdout, stderr) = said(&output);
    (output.status.code(), stdout, stderr)
}

#[test]
fn version_is_that_of_the_workspace() {
    let (code, stdout, stderr) = run(&["--version"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout, format!("worker {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_names_every_role_and_command() {
    let (code, stdout, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for word in
        ["--role", "--config", "producer", "worker", "all", "api", "admin", "stats", "peek", "purge-dlq"]
    {
        assert!(stdout.contains(word), "{word} is missing:\n{stdout}");
    }
    assert!(
        ["requeue-dlq", "dlq", "job", "enqueue", "doctor", "config", "completion"]
            .iter()
            .all(|word| stdout.contains(word)),
        "{stdout}"
    );
}

#[test]
fn completion_is_a_script_for_the_shell() {
    let (code, stdout, stderr) = run(&["completion", "bash"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(
        stdout.contains("_worker()") && stdout.contains("requeue-dlq") && stdout.contains("--older-than"),
        "{stdout}"
    );
}

#[test]
fn a_missing_role_is_a_mistake_that_is_named() {
    let (code, stdout, stderr) = run(&[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("--role is missing: producer, worker, all, api or admin"), "{stderr}");
}

#[test]
fn an_unknown_role_is_a_mistake_that_is_named() {
    let (code, _, stderr) = run(&["--role=wroker"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("wroker") && stderr.contains("possible values"), "{stderr}");
}

#[test]
fn the_admin_role_needs_a_command() {
    let (code, _, stderr) = run(&["--role=admin"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--role=admin needs a command: stats, peek"), "{stderr}");
}

#[test]
fn every_mistake_of_a_configuration_is_said_at_once() {
    let config =
        "worker: {count: 0, heartbeat_ttl: 4s, priorities: [high, odd], cuont: 3}\nredis: {addr: nowhere}";
    let output = WorkerOptions::new("worker").config(config).env("WORKER_MAX_RETRIES", "many").output();
    let (stdout, stderr) = said(&output);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(2), ""));
    let expected = [
        ("worker.count = 0", "at least 1"),
        ("worker.heartbeat_ttl = 4s", "must be at least 5s"),
        ("worker.priorities = \"odd\"", "has no entry in worker.queues.odd"),
        ("worker.cuont = 3", "did you mean worker.count?"),
        ("redis.addr = \"nowhere\"", "must be a host and a port"),
        ("worker.max_retries = \"many\"", "set by WORKER_MAX_RETRIES"),
    ];
    for (problem, rule) in expected {
        let line = stderr.lines().find(|line| line.starts_with(problem));
        assert!(line.is_some_and(|line| line.contains(rule)), "{problem}: ... {rule} is missing:\n{stderr}");
    }
    assert_eq!(stderr.lines().count(), expected.len(), "one line each:\n{stderr}");
}

#[test]
fn a_missing_configuration_file_means_the_defaults() {
    let (code, stdout, stderr) = run(&["--config=/nonexistent/worker.yaml", "config", "check"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("heartbeat_ttl: 30s"), "{stdout}");
    assert!(stderr.contains("does not exist: defaults are used"), "{stderr}");
}

#[test]
fn config_check_prints_what_is_in_force_and_masks_secrets() {
    let options = WorkerOptions::new("")
        .config("redis: {password: hunter2-file}\nobservability: {tracing: {endpoint: 'http://user:hunter2-url@otel:4318'}}")
        .env("REDIS_PASSWORD", "hunter2-env")
        .env("WORKER_COUNT", 33)
        .arg("config")
        .arg("check");
    let output = options.output();
    let (stdout, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stdout.contains("count: 33") && stdout.contains("jobqueue:high_priority"), "{stdout}");
    assert!(!stdout.contains("hunter2") && !stderr.contains("hunter2"), "{stdout}{stderr}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = WorkerOptions::new("worker").env("OBSERVABILITY_METRICS_PORT", port).output();
    let (_, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains(&format!("observability.metrics_port = {port}: address in use")), "{stderr}");
}

#[test]
fn the_api_role_says_that_it_serves_protocol_async_only() {
    let (code, _, stderr) = run(&["--role=api"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--role=api serves protocol async"), "{stderr}");
}

#[test]
fn only_files_have_a_producer() {
    for protocol in ["async", "sidekiq"] {
        let output = WorkerOptions::new("producer").env("PROTOCOL", protocol).output();
        assert_eq!(output.status.code(), Some(2), "{protocol}");
        let expected =
            format!("protocol = {protocol}: its clients enqueue their own jobs, there is no producer");
        assert!(said(&output).1.contains(&expected), "{}", said(&output).1);
    }
}

#[test]
fn what_sidekiqs_own_tools_do_is_left_to_them() {
    for (args, message) in [
        (vec!["--role=producer"], "protocol = sidekiq: its clients enqueue their own jobs"),
        (vec!["--role=all"], "protocol = sidekiq: its clients enqueue their own jobs"),
    ] {
        let options = args.iter().fold(WorkerOptions::new(""), |options, arg| options.arg(*arg));
        let output = options.env("PROTOCOL", "sidekiq").env("WORKER_HANDLER_KIND", "simulate").output();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).1.contains(message), "{args:?}: {}", said(&output).1);
    }
}

#[test]
fn sidekiq_on_a_cluster_is_refused_with_the_reason() {
    let options = WorkerOptions::new("worker").env("PROTOCOL", "sidekiq").env("REDIS_CLUSTER", "true");
    let output = options.output();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).1.contains("Sidekiq's own client cannot use Redis Cluster"), "{}", said(&output).1);
}

#[test]
fn a_worker_of_sidekiqs_queues_without_a_handler_does_not_start_and_others_look() {
    let (message, env) =
        ("worker.handler.kind = \"\": must be set with protocol sidekiq", ("PROTOCOL", "sidekiq"));
    for options in [WorkerOptions::new("worker"), WorkerOptions::new("").arg("config").arg("check")] {
        let output = options.env(env.0, env.1).output();
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).1.contains(message), "{}", said(&output).1);
    }
    let output =
        WorkerOptions::new("").arg("stats").env(env.0, env.1).env("REDIS_ADDR", "127.0.0.1:1").output();
    assert!(!said(&output).1.contains("worker.handler"), "{}", said(&output).1);
}
