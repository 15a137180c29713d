//! Redis goes away, or its replies do: no live worker's job is reaped, and each is settled once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use e2e::ledger::{HIGH, LOW, ids};
use e2e::{
    AppendOnly, Behaviour, Fault, Ledger, Options, Proxy, Recorder, RedisServer, Worker, WorkerOptions,
    eventually,
};

const TTL: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(30);

/// How Redis goes away.
enum Away {
    Stopped,
    Killed,
}

/// 100 jobs are in flight in two workers, Redis is away for three TTLs; half of the jobs end meanwhile, half
/// only when a reaper has had all the time it needs to be wrong about them.
async fn outage(away: Away) {
    let options = Options { appendonly: AppendOnly::Always, ..Options::default() };
    let mut server = RedisServer::start(options).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let all = ids("job", 100);
    ledger.enqueue(HIGH, &all).await;
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("WORKER_HANDLER_HTTP_TIMEOUT", "5m")
        .env("WORKER_COUNT", 60);
    let workers = [Worker::spawn(&options), Worker::spawn(&options)];
    eventually(SOON, "100 running jobs", async || {
        let running = recorder.running().len();
        if running == 100 { Ok(()) } else { Err(running) }
    })
    .await;

    match away {
        Away::Stopped => server.pause(),
        Away::Killed => server.kill9(),
    }
    for id in &all[..50] {
        recorder.release(id);
    }
    tokio::time::sleep(3 * TTL).await;
    match away {
        Away::Stopped => server.resume(),
        Away::Killed => server.restart().await,
    }
    let mut ledger = Ledger::of(&server).await;
    ledger.until_completed(SOON, 50).await;
    tokio::time::sleep(TTL + TTL).await;
    recorder.release_all();
    let places = ledger.until_completed(SOON, 100).await;
    places.assert_exactly(&all);
    assert_eq!(places.counts(), [0, 0, 0, 0, 100, 0]);
    assert!(recorder.duplicates().is_empty(), "each ran once: {:?}", recorder.duplicates());
    for worker in &workers {
        assert_eq!(worker.metric("jobs_reaped_total", &[]).await, Some(0.0));
        assert_eq!(worker.metric("jobs_interrupted_total", &[]).await, Some(0.0));
    }
}

#[tokio::test]
async fn a_redis_that_hangs_for_three_ttls_costs_no_job() {
    outage(Away::Stopped).await;
}

#[tokio::test]
async fn a_redis_that_crashes_and_is_back_after_three_ttls_costs_no_job() {
    outage(Away::Killed).await;
}

#[tokio::test]
async fn a_worker_started_before_its_redis_waits_for_it() {
    let mut server = RedisServer::start(Options::default()).await;
    server.kill9();
    let worker = Worker::spawn(&WorkerOptions::new("worker").redis(server.addr()));
    let (status, body) = worker.get("/readyz").await;
    assert_eq!(status, 503, "{body}");
    assert_eq!(worker.get("/healthz").await.0, 200, "a restart would not help");
    server.restart().await;
    let mut ledger = Ledger::of(&server).await;
    ledger.enqueue(LOW, &ids("job", 5)).await;
    ledger.until_completed(SOON, 5).await;
    assert_eq!(worker.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn random_lost_replies_under_load_lose_double_and_strand_nothing() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    let options = WorkerOptions::new("worker")
        .redis(proxy.addr())
        .recorded_by(&recorder)
        .env("WORKER_BACKOFF_BASE", "50ms")
        .env("CIRCUIT_BREAKER_MIN_SAMPLES", 100_000);
    let workers = [Worker::spawn(&options), Worker::spawn(&options)];
    for worker in &workers {
        worker.wait_for_log("Opened a lane").await;
    }
    let rules = [
        proxy.on(Fault::LoseReply, 0, usize::MAX, |_| fastrand::u8(..) < 6),
        proxy.on(Fault::LoseCommand, 0, usize::MAX, |_| fastrand::u8(..) < 2),
    ];
    let all = ids("job", 1200);
    for (n, page) in all.chunks(3).enumerate() {
        // Every 30th fails once, so that jobs are delayed and promoted as well.
        if n % 10 == 0 {
            recorder.behave(&page[0], [Behaviour::Fail("once".into())]);
        }
        ledger.enqueue(if n % 2 == 0 { HIGH } else { LOW }, page).await;
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let lost: usize = rules.iter().map(|rule| rule.hits()).sum();
    proxy.clear();
    let places = ledger.until_completed(SOON, all.len()).await;
    places.assert_exactly(&all);
    assert_eq!(places.counts(), [0, 0, 0, 0, all.len(), 0]);
    for (id, runs) in recorder.duplicates() {
        let failed = places.completed.iter().any(|job| job["id"] == *id && job["retries"] == 1);
        assert!(failed && runs == 2, "{id} ran {runs} times");
    }
    assert!(lost > 20, "only {lost} replies and commands were lost");
    println!("{lost} replies and commands lost under load: {} jobs, each settled once", all.len());
}

#[tokio::test]
async fn a_producer_whose_password_is_refused_for_a_while_goes_on_afterwards() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let inbox = server.dir().join("inbox");
    std::fs::create_dir(&inbox).unwrap();
    server.cli(&["ACL", "SETUSER", "p", "on", ">one", "~*", "&*", "+@all"]);
    let options = WorkerOptions::new("producer")
        .redis(server.addr())
        .env("REDIS_USERNAME", "p")
        .env("REDIS_PASSWORD", "one")
        .env("PRODUCER_SCAN_DIR", inbox.display())
        .env("PRODUCER_RESCAN_INTERVAL", "50ms")
        .env("OBSERVABILITY_LOG_LEVEL", "debug");
    let mut producer = Worker::spawn(&options);
    producer.wait_for_log("Found nothing new").await;
    server.cli(&["ACL", "SETUSER", "p", "resetpass", ">two"]);
    server.cli(&["CLIENT", "KILL", "USER", "p"]);
    producer.wait_for_log("Could not write the layout down, trying again").await;
    assert!(producer.exit_status().is_none());
    server.cli(&["ACL", "SETUSER", "p", "resetpass", ">one"]);
    std::fs::write(inbox.join("a.txt"), "content").unwrap();
    ledger.until(SOON, "the file", |places| places.waiting.len() == 1).await;
}

/// The scripts as the worker sends them.
const SCRIPTS: [(&str, &str); 9] = [
    ("register", include_str!("../../../queue/src/scripts/register.lua")),
    (
        "cycle",
        concat!(
            include_str!("../../../queue/src/scripts/effects.lua"),
            include_str!("../../../queue/src/scripts/cycle.lua")
        ),
    ),
    (
        "move",
        concat!(
            include_str!("../../../queue/src/scripts/effects.lua"),
            include_str!("../../../queue/src/scripts/move.lua")
        ),
    ),
    ("extend", include_str!("../../../queue/src/scripts/extend.lua")),
    ("fence", include_str!("../../../queue/src/scripts/fence.lua")),
    ("forget", include_str!("../../../queue/src/scripts/forget.lua")),
    ("page", include_str!("../../../queue/src/scripts/page.lua")),
    ("snapshot", include_str!("../../../queue/src/scripts/snapshot.lua")),
    ("close", include_str!("../../../queue/src/scripts/close.lua")),
];

/// A worker that is restarted in its pod (fence, move, forget), with jobs that fail once (move, page), and that
/// is told to stop at the end (close): the first two replies to one of the scripts never arrive.
async fn reply_lost(name: &str, source: &str) {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let options = WorkerOptions::new("worker")
        .recorded_by(&recorder)
        .env("WORKER_POD_UID", "pod")
        .env("WORKER_BACKOFF_BASE", "50ms")
        .env("OBSERVABILITY_QUEUE_SAMPLE_INTERVAL", "500ms");
    let all = ids("job", 40);
    ledger.enqueue(LOW, &all).await;
    let mut first = Worker::spawn(&options.clone().redis(server.addr()));
    ledger.until(SOON, "running jobs", |places| places.held.len() == 16).await;
    eventually(SOON, "running jobs", async || recorder.running().len() == 16).await;
    let killed = recorder.running();
    first.kill9();
    for id in &all[..10] {
        recorder.behave(id, [Behaviour::Fail("once".into())]);
    }
    recorder.release_all();

    let sha: String = ledger.command(&["SCRIPT", "LOAD", source]).await;
    let rule = proxy.on(Fault::LoseReply, 0, 2, is_script(sha.into()));
    let mut second = Worker::spawn(&options.redis(proxy.addr()));
    let places = ledger.until_completed(SOON, all.len()).await;
    places.assert_exactly(&all);
    // A fence that is repeated finds the lane gone from the registry: there is no second reply to lose.
    let lost = if name == "fence" { 1 } else { 2 };
    if name != "close" {
        eventually(SOON, &format!("{lost} lost replies to {name}"), async || rule.hits() == lost).await;
    }
    second.sigterm();
    let status = second.wait_exit(SOON).await;
    assert!(status.success(), "{name}: {status}");
    assert_eq!(rule.hits(), lost, "{name}");
    let places = ledger.places().await;
    places.assert_exactly(&all);
    assert_eq!(places.counts(), [0, 0, 0, 0, all.len(), 0], "{name}");
    for id in &all {
        let expected = 1 + usize::from(killed.contains(id)) + usize::from(all[..10].contains(id));
        assert_eq!(
            recorder.starts(id),
            expected,
            "{name}: {id}: once done, and once for each time it was killed or failed"
        );
    }
    // Every lane is gone, but for those whose registration nobody heard of: they hold nothing and expire.
    let unheard = if name == "register" { 2 } else { 0 };
    assert_eq!(ledger.command::<usize>(&["ZCARD", "jobqueue:lanes"]).await, unheard, "{name}");
    assert_eq!(ledger.command::<Vec<String>>(&["KEYS", "jobqueue:worker:*"]).await.len(), 0, "{name}");
}

fn is_script(sha: Arc<str>) -> impl Fn(&[Bytes]) -> bool + Send + Sync + 'static {
    move |command| command.get(1).is_some_and(|word| *word == sha.as_bytes())
}

#[tokio::test]
async fn a_reply_lost_after_each_script_committed_loses_doubles_and_strands_nothing() {
    futures::future::join_all(SCRIPTS.map(|(name, source)| reply_lost(name, source))).await;
}

#[tokio::test]
async fn a_reply_lost_by_a_parked_fetch_brings_its_job_at_once() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    let worker = Worker::spawn(&WorkerOptions::new("worker").redis(proxy.addr()).recorded_by(&recorder));
    worker.wait_for_log("Opened a lane").await;
    for n in 1..=5 {
        eventually(SOON, "parked fetches", async || {
            server.cli(&["INFO", "clients"]).contains("blocked_clients:4")
        })
        .await;
        let rule = proxy.drop_reply_once(|command| command[0] == "BLMOVE" && command[1] == LOW);
        // The one that waits was sent before the rule: the next is the one that is lost.
        eventually(SOON, "a lost fetch", async || {
            ledger.enqueue(LOW, &ids(&format!("job-{n}-{}", rule.hits()), 1)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            rule.hits() > 0
        })
        .await;
    }
    let places = ledger.until(SOON, "all done", |places| places.counts()[..4] == [0, 0, 0, 0]).await;
    let answered = recorder.runs().len();
    assert_eq!(places.completed.len(), answered, "none ran twice, none was lost");
    assert_eq!(worker.metric("jobs_reaped_total", &[]).await, Some(0.0));
}
