//! What changes nothing: stats, list, describe, explain, peek, job, logs, doctor, report, versions, completion.
use std::io::Read as _;

use e2e::kubernetes::{LOW, Namespace, PATIENCE, decoded, patiently, run};

use crate::support::{bury, command, file, jobqueue, jobqueue_with, path, stranger};

#[tokio::test]
async fn each_verb_that_looks_answers_for_a_queue_with_workers() {
    let space = Namespace::create("looking").await;
    space.queue("hello", "{scaling: {mode: Manual}, replicas: 1, worker: {concurrency: 1, handler: {simulate: {base: 10m}}}}").await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    redis.push(LOW, 0..3).await;
    redis.await_running(1).await;
    patiently("figures in the status", async || {
        let stats = jobqueue(&space, &["stats", "hello", "-o", "json"]).await.json();
        if stats["waiting"] == 2 && stats["inFlight"] == 1 { Ok(()) } else { Err(stats) }
    })
    .await;

    let stats = jobqueue(&space, &["stats"]).await.ok();
    assert!(stats.starts_with("NAME") && stats.contains("hello") && stats.contains("1/1"), "{stats}");
    let live = jobqueue(&space, &["stats", "hello", "--live", "-o", "json"]).await.json();
    assert_eq!(
        (&live["waiting"], &live["inFlight"], &live["live"]),
        (&2.into(), &1.into(), &true.into()),
        "{live}"
    );

    let list = jobqueue(&space, &["list", "-A", "-o", "wide"]).await.ok();
    assert!(list.starts_with("NAMESPACE") && list.contains(&space.name), "{list}");
    assert_eq!(jobqueue(&space, &["list", "-o", "name"]).await.ok(), "jobqueue.jobqueue.dev/hello\n");
    assert_eq!(jobqueue(&space, &["list", "-l", "a=b", "-o", "name"]).await.ok(), "");
    let yaml = jobqueue(&space, &["list", "-o", "yaml"]).await.ok();
    assert!(yaml.contains("kind: List") && !yaml.contains("managedFields"), "{yaml}");

    let page = jobqueue(&space, &["describe", "hello"]).await.ok();
    assert!(page.contains("Conditions:") && page.contains("Waits for:"), "{page}");
    let page = jobqueue(&space, &["explain", "hello"]).await.ok();
    assert!(page.contains("scaling.mode is Manual: spec.replicas rules, and is 1"), "{page}");

    let peek = jobqueue(&space, &["peek", "hello", "--queue", "low", "--count", "1"]).await.ok();
    assert!(peek.contains("job-1") && !peek.contains("job-2"), "{peek}");
    let job = jobqueue(&space, &["job", "hello", "job-0"]).await.ok();
    let worker = space.workers("hello").await.remove(0);
    assert!(job.contains(&format!("runs in pod {worker}")), "{job}");
    let job = jobqueue(&space, &["job", "hello", "job-2"]).await.ok();
    assert!(job.contains("waits in queue low, behind 1 job"), "{job}");
    let missing = jobqueue(&space, &["job", "hello", "nobody"]).await.failed(3);
    assert!(missing.contains("has no job nobody"), "{missing}");

    let logs = jobqueue(&space, &["logs", "hello"]).await.ok();
    assert!(
        logs.lines().all(|line| line.starts_with(&format!("[{worker}] ")))
            && logs.contains("Serving metrics"),
        "{logs}"
    );
    let versions = jobqueue(&space, &["--version"]).await.ok();
    assert!(
        versions.contains("client    0.")
            && versions.contains("operator  0.")
            && versions.contains("workers   0."),
        "{versions}"
    );
    space.delete().await;
}

#[tokio::test]
async fn each_verb_that_looks_answers_for_a_queue_that_never_had_a_worker() {
    let space = Namespace::create("empty").await;
    // Paused from the start, so that no job that is pushed here ever brings a worker.
    space.queue("hello", "{paused: true, scaling: {minReplicas: 0}}").await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    redis.push(LOW, 7..9).await;
    bury(&redis, 3).await;

    let peek = jobqueue(&space, &["peek", "hello"]).await.ok();
    assert!(peek.contains("job-7") && peek.contains("job-8"), "{peek}");
    let job = jobqueue(&space, &["job", "hello", "job-8"]).await.ok();
    assert!(job.contains("waits in queue low, behind 1 job"), "{job}");
    let letters = jobqueue(&space, &["dlq", "list", "hello"]).await.ok();
    assert!(letters.contains("job-0") && letters.contains("simulated"), "{letters}");
    let letter = jobqueue(&space, &["dlq", "show", "hello", "job-0", "-o", "json"]).await.json();
    assert_eq!(letter[0]["id"], "job-0", "{letter}");
    let back = jobqueue(&space, &["dlq", "requeue", "hello", "--id", "job-1"]).await.ok();
    assert!(back.starts_with("1 of 3 dead letters of hello requeued"), "{back}");
    let purge = ["dlq", "purge", "hello", "--id", "job-2", "--yes", "--no-archive"];
    let gone = jobqueue(&space, &purge).await.ok();
    assert!(gone.starts_with("1 of 2 dead letters of hello deleted"), "{gone}");
    assert_eq!(
        (redis.count(&["LLEN", LOW]).await, redis.count(&["LLEN", "jobqueue:dead_letter"]).await),
        (3, 1)
    );
    let nobody = jobqueue(&space, &["drain", "hello", "nobody"]).await.failed(3);
    assert!(nobody.contains("has no worker nobody: it has none"), "{nobody}");
    let logs = jobqueue(&space, &["logs", "hello"]).await;
    assert!(logs.code == 0 && logs.out.is_empty() && logs.err.contains("has no workers now"), "{logs:#?}");
    let stats = jobqueue(&space, &["stats"]).await.ok();
    assert!(stats.starts_with("NAME") && stats.contains("hello") && stats.contains("0/0"), "{stats}");
    let list = jobqueue(&space, &["list"]).await.ok();
    assert!(list.starts_with("NAME") && list.contains("hello") && list.contains("0/0"), "{list}");
    let page = jobqueue(&space, &["explain", "jobqueue/hello"]).await.ok();
    assert!(page.to_lowercase().contains("paused"), "{page}");
    let page = jobqueue(&space, &["describe", "jobqueue.jobqueue.dev/hello"]).await.ok();
    assert!(page.contains("Conditions:") && page.to_lowercase().contains("paused"), "{page}");
    let directory = tempfile::tempdir().expect("a directory");
    let archive = file(&directory, "report.tar.gz");
    let archive = archive.to_str().expect("text");
    jobqueue(&space, &["report", "hello", "-o", archive]).await.ok();
    let names = run("tar", &["-tzf", archive], None).await.expect("an archive");
    assert!(names.contains("hello/stats.yaml") && names.contains("hello/doctor.yaml"), "{names}");

    assert!(space.workers("hello").await.is_empty(), "none came for any of that");
    let admins = "jobqueue.dev/queue=hello,app.kubernetes.io/component=admin";
    patiently("no guest", async || {
        space.list("pods", admins).await.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn no_pod_is_left_however_early_a_command_is_interrupted_and_what_others_left_is_cleared_away() {
    let space = Namespace::create("guests").await;
    space.queue("hello", "{paused: true}").await;
    space.await_ready("hello").await;
    let admins = "jobqueue.dev/queue=hello,app.kubernetes.io/component=admin";
    for _ in 0..5 {
        let mut doctor = command(&space, &["doctor", "hello"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("started");
        // At a random point: before its pod is asked for, while it is being made, while it starts, and afterwards.
        tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(50..1500))).await;
        let process = doctor.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(process) = process {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
        }
        doctor.wait().await.expect("ended");
        // It does not end before its pod is on its way out: none comes afterwards.
        let left = space.list("pods", admins).await;
        assert!(left.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null()), "{left:#?}");
    }
    // One that ended by its deadline, of somebody whose machine was switched off.
    let image = e2e::kubernetes::given("REDIS_IMAGE");
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "left-behind", "labels": { "jobqueue.dev/queue": "hello", "app.kubernetes.io/component": "admin" } },
        "spec": {
            "restartPolicy": "Never",
            "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "admin", "image": image, "command": ["redis-server", "--version"],
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    });
    space.apply(&object.to_string()).await;
    patiently("a pod that has ended", async || {
        space.get("pod", "left-behind").await["status"]["phase"] == "Succeeded"
    })
    .await;
    jobqueue(&space, &["stats", "hello", "--live"]).await.ok();
    patiently("it to be gone", async || space.find("pod", "left-behind").await.is_none()).await;
    space.delete().await;
}

#[tokio::test]
async fn explain_fills_in_the_formula_of_a_queue_that_scaled() {
    let space = Namespace::create("explained").await;
    space.queue("burst", "{worker: {handler: {simulate: {base: 200ms}}}}").await;
    space.await_ready("burst").await;
    let redis = space.managed("burst").await;
    redis.push(LOW, 0..250).await;
    patiently("the decision", async || {
        let page = jobqueue(&space, &["explain", "burst"]).await.ok();
        let told = page.contains("(250 waiting + 0 running) / 100 backlogPerWorker = 3")
            && page.contains("250 jobs, 100 a worker");
        if told { Ok(()) } else { Err(page) }
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn stats_are_watched_until_somebody_stops_it_and_no_pod_is_left() {
    let space = Namespace::create("watched").await;
    space.queue("hello", "{}").await;
    space.await_ready("hello").await;
    let mut watch = command(&space, &["stats", "hello", "-w"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines =
        tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(watch.stdout.take().expect("a pipe")));
    let live = async {
        while let Some(line) = lines.next_line().await.expect("text") {
            if line.starts_with("hello") && line.contains("live") {
                return;
            }
        }
        panic!("it ended");
    };
    tokio::time::timeout(PATIENCE, live).await.expect("live figures");
    let admins = "jobqueue.dev/queue=hello,app.kubernetes.io/component=admin";
    assert_eq!(space.list("pods", admins).await.len(), 1, "a queue without workers has a guest");
    let process = rustix::process::Pid::from_raw(i32::try_from(watch.id().expect("it runs")).expect("an id"))
        .expect("an id");
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("told");
    assert_eq!(watch.wait().await.expect("ended").code(), Some(130));
    patiently("no guest", async || {
        space.list("pods", admins).await.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    space.delete().await;
}

#[tokio::test]
async fn queues_that_come_and_go_come_and_go_in_the_watched_stats() {
    let space = Namespace::create("coming").await;
    let mut watch = command(&space, &["stats", "-w"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("started, though there is no queue yet");
    let mut lines =
        tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(watch.stdout.take().expect("a pipe")));
    // The names of a page: what stands between two headers.
    let mut until = async |what: &str, wanted: &[&str]| {
        let found = async {
            let mut names: Option<Vec<String>> = None;
            while let Some(line) = lines.next_line().await.expect("text") {
                let name = line.split_whitespace().next().unwrap_or_default().to_owned();
                match &mut names {
                    _ if line.starts_with("NAME") => names = Some(vec![]),
                    Some(names) => names.push(name),
                    None => {}
                }
                if names.as_ref().is_some_and(|names| names == wanted) {
                    return;
                }
            }
            panic!("it ended before {what}");
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{what}"));
    };
    space.queue("one", "{}").await;
    until("the first", &["one"]).await;
    space.queue("two", "{keyPrefix: other}").await;
    until("the second", &["one", "two"]).await;
    space.kubectl(&["delete", "jobqueue", "one"]).await.expect("deleted");
    until("one less", &["two"]).await;
    let process = rustix::process::Pid::from_raw(i32::try_from(watch.id().expect("it runs")).expect("an id"))
        .expect("an id");
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("told");
    assert_eq!(watch.wait().await.expect("ended").code(), Some(130));
    space.delete().await;
}

#[tokio::test]
async fn make_installs_what_kubectl_finds() {
    let directory = tempfile::tempdir().expect("a directory");
    let (built, installed) = (directory.path().join("target/release"), directory.path().join("bin"));
    std::fs::create_dir_all(&built).expect("a directory");
    std::fs::copy(e2e::process::binary("kubectl-jobqueue"), built.join("kubectl-jobqueue")).expect("copied");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    // What cargo would build is built already.
    let bin = format!("BIN={}", installed.display());
    let target = format!("CARGO_TARGET_DIR={}/target", directory.path().display());
    let make = ["-u", "MAKEFLAGS", "make", "-C", root, "install-plugin", "CARGO=true", &target, &bin];
    let said = run("env", &make, None).await.expect("installed");
    assert!(said.contains("to your PATH"), "{said}");
    let path = format!("PATH={}:{}", installed.display(), std::env::var("PATH").expect("a PATH"));
    let found = run("env", &[&path, "kubectl", "plugin", "list"], None).await.unwrap_or_else(|error| error);
    assert!(found.contains(&installed.join("kubectl-jobqueue").display().to_string()), "{found}");
    let help = run("env", &[&path, "kubectl", "jobqueue", "--help"], None).await.expect("help");
    assert!(help.contains("kubectl jobqueue"), "{help}");
    let words = ["kubectl_complete-jobqueue", "completion", ""];
    let offered = run("env", &[&[path.as_str()][..], &words].concat(), None).await.expect("words");
    assert!(offered.contains("fish"), "{offered}");
}

#[tokio::test]
async fn logs_are_followed_from_worker_to_worker() {
    let space = Namespace::create("followed").await;
    space.queue("hello", "{scaling: {mode: Manual}, replicas: 1}").await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    let first = space.workers("hello").await.remove(0);
    let mut follow = command(&space, &["logs", "hello", "-f"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines =
        tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(follow.stdout.take().expect("a pipe")));
    let mut heard: Vec<String> = vec![];
    let mut until = async |what: &str, heard: &mut Vec<String>, is: &dyn Fn(&str) -> bool| {
        let found = async {
            while let Some(line) = lines.next_line().await.expect("text") {
                heard.push(line);
                if heard.last().is_some_and(|line| is(line)) {
                    return;
                }
            }
            panic!("it ended before {what}: {heard:#?}");
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{what}"));
    };
    let of_first = format!("[{first}] ");
    let begins = |line: &str| line.starts_with(&of_first) && line.contains("Serving metrics");
    until("the first worker", &mut heard, &begins).await;
    // The time that the kubelet writes before each line is not the worker's.
    assert!(
        heard.iter().all(|line| line.strip_prefix(&of_first).is_some_and(|rest| rest.starts_with('{'))),
        "{heard:#?}"
    );
    space.kubectl(&["delete", "pod", &first, "--wait=false"]).await.expect("deleted");
    let another = |line: &str| !line.starts_with(&of_first) && line.contains("Serving metrics");
    until("the worker that follows", &mut heard, &another).await;
    let unique: std::collections::HashSet<&String> = heard.iter().collect();
    assert_eq!(unique.len(), heard.len(), "no line twice: {heard:#?}");
    let process = i32::try_from(follow.id().expect("it runs")).expect("an id");
    let process = rustix::process::Pid::from_raw(process).expect("an id");
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("told");
    assert_eq!(follow.wait().await.expect("ended").code(), Some(130));
    space.delete().await;
}

#[tokio::test]
async fn doctor_finds_what_is_wrong_and_says_how_to_put_it_right() {
    let space = Namespace::create("doctor").await;
    space.queue("hello", "{redis: {managed: {storage: {ephemeral: {}}}}, paused: true, worker: {drainTimeout: 5s, handler: {http: {url: 'http://nobody.example'}}}}").await;
    space.await_ready("hello").await;
    let found = jobqueue(&space, &["doctor", "hello"]).await;
    assert!(found.out.contains("worker.drainTimeout") || found.out.contains("[drain]"), "{found:#?}");
    assert!(
        found.out.contains("[durable]")
            && found.out.contains("fix: ")
            && found.out.contains("kubectl jobqueue resume"),
        "{found:#?}"
    );
    let viewer = stranger(&space, "viewer", Some("jobqueue-view")).await;
    let found = jobqueue_with(&space, &["doctor", "hello"], Some(viewer.path())).await;
    assert!(found.out.contains("[rights]") && found.out.contains("create pods/exec"), "{found:#?}");
    space.delete().await;
}

#[tokio::test]
async fn a_report_has_everything_but_the_secrets() {
    let space = Namespace::create("report").await;
    space.queue("hello", "{scaling: {minReplicas: 1}, worker: {template: {spec: {containers: [{name: worker, env: [{name: MY_TOKEN, value: plainly-visible}]}]}}}}").await;
    space.await_ready("hello").await;
    let (written, unpacked) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
    let archive = file(&written, "report.tar.gz");
    let (archive, folder) = (archive.to_str().expect("text"), unpacked.path().to_str().expect("text"));
    jobqueue(&space, &["report", "hello", "--tail", "-1", "-o", archive]).await.ok();
    run("tar", &["-xzf", archive, "-C", folder], None).await.expect("an archive");
    let names = run("find", &[folder, "-type", "f"], None).await.expect("files");
    for part in [
        "hello/jobqueue.yaml",
        "hello/events.yaml",
        "hello/secret-hello-redis.yaml",
        "hello/stats.yaml",
        "hello/doctor.yaml",
        "hello/logs/hello-redis-0-redis.log",
        "operator/jobqueue-operator.yaml",
    ] {
        assert!(names.contains(part), "{part}\n{names}");
    }
    let events = names.lines().find(|name| name.ends_with("hello/events.yaml")).expect("events");
    let events = std::fs::read_to_string(events).expect("text");
    assert!(
        events.contains("reason: Scheduled") && events.contains("kind: Pod"),
        "of its pods too: {events}"
    );
    let secret = space.get("secret", "hello-redis").await;
    let encoded = secret["data"]["password"].as_str().expect("a password").to_owned();
    let password = decoded(&encoded);
    for name in names.lines() {
        let mut text = String::new();
        std::fs::File::open(name).expect("a file").read_to_string(&mut text).expect("text");
        for word in [encoded.as_str(), password.as_str(), "plainly-visible"] {
            assert!(!text.contains(word), "{name} has a secret");
        }
    }
    space.delete().await;
}

#[tokio::test]
async fn names_of_queues_are_completed_from_the_cluster() {
    let space = Namespace::create("completed").await;
    space.queue("hello", "{}").await;
    space.queue("helper", "{keyPrefix: other}").await;
    let plugin = e2e::process::binary("kubectl-jobqueue");
    // Whoever presses a key does not wait long: a cluster that is busy may answer the next time.
    patiently("the names", async || {
        let words = ["__complete", "--", "-n", &space.name, "stats", "hel"];
        let answer = run(plugin.to_str().expect("text"), &words, None).await;
        if answer.as_deref() == Ok("hello\nhelper\n:4\n") { Ok(()) } else { Err(answer) }
    })
    .await;
    // As bash does when somebody presses Tab.
    let script = "source <(kubectl-jobqueue completion bash); COMP_WORDS=(kubectl-jobqueue -n \"$1\" stats hel); \
        COMP_CWORD=4; _kubectl_jobqueue; printf '%s\\n' \"${COMPREPLY[@]}\"; complete -p kubectl-jobqueue";
    patiently("names in bash", async || {
        let answer = spoken("bash", &["-c", script, "bash", &space.name]).await;
        if answer.starts_with("hello\nhelper\n") && answer.contains("-F _kubectl_jobqueue") {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await;
    // What kubectl runs, and kubectl itself.
    let complete = ["-n", &space.name, "stats", "hel"];
    patiently("names by kubectl_complete-jobqueue", async || {
        let answer = spoken("kubectl_complete-jobqueue", &complete).await;
        if answer == "hello\nhelper\n:4\n" { Ok(()) } else { Err(answer) }
    })
    .await;
    patiently("names by kubectl", async || {
        let answer = spoken("kubectl", &[&["__complete", "jobqueue"][..], &complete].concat()).await;
        if answer.starts_with("hello\nhelper\n") { Ok(()) } else { Err(answer) }
    })
    .await;
    for shell in ["zsh", "fish"] {
        let script = jobqueue(&space, &["completion", shell]).await.ok();
        assert!(script.contains("__complete"));
        // Where there is that shell, it reads its script.
        let found = std::env::split_paths(&path()).any(|folder| folder.join(shell).exists());
        if found {
            run(shell, &["-n", "-c", &script], None).await.unwrap_or_else(|error| panic!("{shell}: {error}"));
        }
    }
    space.delete().await;
}

/// What a program answers that has the plugin and what is installed beside it on its PATH.
async fn spoken(program: &str, arguments: &[&str]) -> String {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubectl");
    let output = tokio::process::Command::new("env")
        .args([&format!("PATH={beside}:{}", path()), program])
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .await
        .expect("it ran");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
