//! `dlq`: looked at, brought back, deleted, and interrupted at any point.
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use e2e::kubernetes::{LOW, Namespace, patiently};
use e2e::process::binary;
use serde_json::Value;

use crate::support::{FAILING, all_ids, bury, command, file, jobqueue, waiting};
use crate::terminal::Terminal;

#[tokio::test]
async fn dead_letters_are_listed_shown_requeued_and_purged_by_selectors() {
    let space = Namespace::create("letters").await;
    space.queue("hello", FAILING).await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    jobqueue(
        &space,
        &["enqueue", "hello", "--arg", "id=bad", "--arg", "filepath=/bad/a", "--arg", "filesize=0"],
    )
    .await
    .ok();
    patiently("a dead letter", async || redis.count(&["LLEN", "jobqueue:dead_letter"]).await == 1).await;
    jobqueue(&space, &["pause", "hello"]).await.ok();
    bury(&redis, 250).await;

    let list = jobqueue(&space, &["dlq", "list", "hello", "--count", "3"]).await.ok();
    assert!(list.contains("job-249") && list.lines().count() == 4, "{list}");
    let list = jobqueue(&space, &["dlq", "list", "hello", "--id", "bad", "-o", "json"]).await.json();
    assert_eq!(list["letters"].as_array().map(Vec::len), Some(1), "{list}");
    let shown = jobqueue(&space, &["dlq", "show", "hello", "bad", "-o", "json"]).await.json();
    assert_eq!(shown[0]["id"], "bad", "{shown}");
    for one in [
        &["dlq", "show", "hello", "nobody"][..],
        &["dlq", "show", "hello", "--", "-nobody"],
        &["job", "hello", "--", "-nobody"],
        &["dlq", "list", "hello", "--id", "nobody"],
        &["dlq", "list", "hello", "--id", "bad", "--look-at", "1"],
        &["dlq", "requeue", "hello", "--id", "nobody"],
        &["dlq", "purge", "hello", "--id", "nobody", "--yes", "--no-archive"],
    ] {
        jobqueue(&space, one).await.failed(3);
    }

    let dry = jobqueue(&space, &["dlq", "requeue", "hello", "--match", "job-1", "--dry-run", "-o", "json"])
        .await
        .json();
    assert_eq!((&dry["matched"], waiting(&redis).await), (&111.into(), 0), "{dry}");
    let some = jobqueue(&space, &["dlq", "requeue", "hello", "--id", "job-7", "-o", "json"]).await.json();
    assert_eq!((&some["requeued"], waiting(&redis).await), (&1.into(), 1), "{some}");

    let refused = jobqueue(&space, &["dlq", "purge", "hello"]).await.failed(2);
    assert!(refused.contains("add --yes"), "{refused}");
    let directory = tempfile::tempdir().expect("a directory");
    let archive = file(&directory, "letters.ndjson");
    let path = archive.to_str().expect("text");
    let purged = jobqueue(
        &space,
        &[
            "dlq",
            "purge",
            "hello",
            "--reason",
            "handler",
            "--rate",
            "1000",
            "--yes",
            "--archive",
            path,
            "-o",
            "json",
        ],
    )
    .await
    .json();
    assert_eq!(
        (&purged["deleted"], redis.count(&["LLEN", "jobqueue:dead_letter"]).await),
        (&250.into(), 0),
        "{purged}"
    );
    let lines: Vec<Value> = std::fs::read_to_string(&archive)
        .expect("an archive")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 250);
    // The archive is what can be enqueued again.
    let again = jobqueue(&space, &["dlq", "purge", "hello", "--yes", "--archive", path]).await.failed(2);
    assert!(again.contains("nothing was deleted"), "an archive is never overwritten: {again}");
    space.delete().await;
}

#[tokio::test]
async fn a_hundred_thousand_dead_letters_come_back_and_ctrl_c_loses_and_doubles_none() {
    const COUNT: u32 = 100_000;
    let space = Namespace::create("thousands").await;
    space.queue("hello", "{paused: true, scaling: {minReplicas: 1}, redis: {managed: {resources: {limits: {memory: 512Mi}}}}}").await;
    space.await_ready("hello").await;
    let redis = space.managed("hello").await;
    bury(&redis, COUNT).await;
    let mut expected: Vec<String> = (0..COUNT).map(|number| format!("job-{number}")).collect();
    expected.sort();

    let mut before = u64::from(COUNT);
    for attempt in 0.. {
        let mut child = command(&space, &["dlq", "requeue", "hello", "--yes", "--rate", "40000"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("started");
        // At a random point of it, also before it has begun and after its end.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(100..1500))).await;
        let process = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap_or(0)).expect("an id"));
        if let Some(process) = process {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
        }
        let ended = child.wait().await.expect("ended");
        let left = redis.count(&["LLEN", "jobqueue:dead_letter"]).await;
        // Before kubectl has become the plugin, and before that listens, the signal itself ends it: nothing has begun.
        let unbegun = ended.signal() == Some(rustix::process::Signal::INT.as_raw()) && left == before;
        assert!(matches!(ended.code(), Some(0 | 130)) || unbegun, "{ended:?}, {before} -> {left}");
        before = left;
        println!("interrupted with {left} dead letters left");
        assert_eq!(all_ids(&redis).await, expected, "every job in one place, once");
        if attempt == 4 || left == 0 {
            break;
        }
    }
    let done = jobqueue(&space, &["dlq", "requeue", "hello", "--yes", "-o", "json"]).await.json();
    println!("the rest: {done}");
    assert_eq!(redis.count(&["LLEN", LOW]).await, u64::from(COUNT));
    assert_eq!(all_ids(&redis).await, expected);

    // All of them at once, for the time it takes.
    redis.ask(&["DEL", LOW]).await.expect("deleted");
    bury(&redis, COUNT).await;
    let done = jobqueue(&space, &["dlq", "requeue", "hello", "--yes", "-o", "json"]).await.json();
    println!("all: {done}");
    assert_eq!((&done["requeued"], waiting(&redis).await), (&COUNT.into(), u64::from(COUNT)));
    assert_eq!(all_ids(&redis).await, expected);
    space.delete().await;
}

#[tokio::test]
async fn a_requeue_at_full_speed_that_is_stopped_in_the_middle_says_what_it_did() {
    const COUNT: u32 = 100_000;
    let space = Namespace::create("halfway").await;
    space.queue("hello", "{paused: true, scaling: {minReplicas: 1}, redis: {managed: {resources: {limits: {memory: 512Mi}}}}}").await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("hello").await;
    let mut expected: Vec<String> = (0..COUNT).map(|number| format!("job-{number}")).collect();
    expected.sort();
    // Where the middle is depends on the machine: whoever came too early waits longer the next time, and the other way round.
    let (mut early, mut late) = (Duration::ZERO, Duration::from_secs(8));
    let mut ends = vec![];
    for _ in 0..16 {
        redis.ask(&["DEL", LOW, "jobqueue:dead_letter"]).await.expect("deleted");
        bury(&redis, COUNT).await;
        let mut child = command(&space, &["dlq", "requeue", "hello", "--yes", "-o", "json"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("started");
        let middle = (early + late) / 2;
        tokio::time::sleep(middle).await;
        let process = child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(process) = process {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
        }
        let mut answer = String::new();
        let mut stdout = child.stdout.take().expect("a pipe");
        tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut answer).await.expect("an answer");
        let code = child.wait().await.expect("ended").code();
        let (back, left) = (waiting(&redis).await, redis.count(&["LLEN", "jobqueue:dead_letter"]).await);
        assert_eq!(back + left, u64::from(COUNT));
        assert_eq!(all_ids(&redis).await, expected, "every job in one place, once");
        ends.push((middle, code, back));
        if back == 0 {
            early = middle;
        } else if left == 0 {
            late = middle;
        } else {
            assert_eq!(code, Some(130), "{ends:?}");
            let said: Value = serde_json::from_str(&answer).expect("what was done");
            assert_eq!((&said["requeued"], &said["interrupted"]), (&back.into(), &true.into()), "{said}");
            println!("stopped in the middle: {ends:?}");
            space.delete().await;
            return;
        }
    }
    panic!("never stopped in the middle: {ends:?}");
}

#[tokio::test]
async fn after_ctrl_c_the_command_in_the_pod_has_ended_too() {
    const COUNT: u32 = 20_000;
    let space = Namespace::create("interrupted").await;
    space.queue("hello", "{paused: true, scaling: {minReplicas: 1}}").await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("hello").await;
    bury(&redis, COUNT).await;
    // Slow enough that there is work left for a minute after the first look, fast enough that each look would see it done.
    let mut child = command(&space, &["dlq", "requeue", "hello", "--yes", "--rate", "300", "-o", "json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("started");
    patiently("the first letters", async || waiting(&redis).await > 0).await;
    let process = i32::try_from(child.id().expect("it runs")).expect("an id");
    let process = rustix::process::Pid::from_raw(process).expect("an id");
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("told");
    let mut answer = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut answer).await.expect("an answer");
    assert_eq!(child.wait().await.expect("ended").code(), Some(130));
    let said: Value = serde_json::from_str(&answer).expect("what was done");
    assert_eq!(said["interrupted"], true, "{said}");
    // Five equal looks, 200 ms apart at least: in that time the command would have moved hundreds.
    let mut looks: Vec<u64> = vec![];
    let moved = patiently("figures at rest", async || {
        looks.push(waiting(&redis).await);
        match looks.last_chunk::<5>() {
            Some(last) if last.iter().all(|look| *look == last[0]) => Ok(last[0]),
            _ => Err(looks.clone()),
        }
    })
    .await;
    assert_eq!(said["requeued"], moved, "it said what it did, and did no more: {said}");
    let left = redis.count(&["LLEN", "jobqueue:dead_letter"]).await;
    assert!(left > 0 && moved + left == u64::from(COUNT), "{moved} and {left}");
    space.delete().await;
}

#[tokio::test]
async fn a_person_sees_how_far_a_long_requeue_has_come() {
    const COUNT: u32 = 100_000;
    let space = Namespace::create("progress").await;
    space.queue("hello", "{paused: true, scaling: {minReplicas: 1}, redis: {managed: {resources: {limits: {memory: 512Mi}}}}}").await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("hello").await;
    bury(&redis, COUNT).await;
    let requeue = format!(
        "{} dlq requeue hello --yes --rate 20000 -n {}",
        binary("kubectl-jobqueue").display(),
        space.name
    );
    let terminal = Terminal::start(120, 24, &requeue).await;
    let screen = terminal.shows(&["Requeued █", "░", "% ", "of 100000", "/s, ", "s left"]).await;
    println!("{screen}");
    let screen = terminal
        .shows(&["100%", "100000 of 100000 dead letters of hello requeued in ", "ended with 0"])
        .await;
    println!("{screen}");
    assert_eq!(waiting(&redis).await, u64::from(COUNT));

    // Nobody looks at a pipe: nothing but the answer.
    bury(&redis, 1).await;
    let ended = jobqueue(&space, &["dlq", "requeue", "hello", "--yes"]).await;
    assert!(ended.code == 0 && ended.err.is_empty() && !ended.out.contains('█'), "{ended:#?}");
    space.delete().await;
}
