//! `--role=producer`.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::redis::{Redis, eventually};
use crate::{HIGH, LOW, said, signal, worker};

fn tree(files: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..files {
        std::fs::write(dir.path().join(format!("{i}.txt")), "x").unwrap();
    }
    dir
}

fn producer(redis: &Redis, dir: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = worker(redis, &["--role=producer"]);
    command.env("PRODUCER_SCAN_DIR", dir).env("PRODUCER_RATE_LIMIT_PER_SEC", "0");
    command.envs(settings.iter().copied());
    command
}

fn once(redis: &Redis, dir: &Path, settings: &[(&str, &str)]) -> Output {
    producer(redis, dir, settings).arg("--once").output().unwrap()
}

/// Names what the producer of a directory has seen.
fn seen_name(dir: &Path) -> String {
    let hash = Sha256::digest(format!("producer\0{}", dir.display()));
    format!("{:016x}", u64::from_be_bytes(hash[..8].try_into().unwrap()))
}

/// How often each file was enqueued.
async fn enqueued(redis: &Redis) -> BTreeMap<String, u32> {
    let mut files = BTreeMap::new();
    for raw in redis.all(HIGH).await.into_iter().chain(redis.all(LOW).await) {
        let job: Value = serde_json::from_slice(&raw).unwrap();
        *files.entry(job["filepath"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    files
}

#[tokio::test]
async fn a_file_is_enqueued_once_per_state_by_its_priority() {
    let redis = Redis::start();
    let dir = tree(250);
    std::fs::write(dir.path().join("urgent.PDF"), "x").unwrap();
    for _ in 0..2 {
        let output = once(&redis, dir.path(), &[]);
        assert!(output.status.success(), "{}", said(&output.stderr));
        assert_eq!((redis.all(HIGH).await.len(), redis.all(LOW).await.len()), (1, 250));
    }
    std::fs::write(dir.path().join("7.txt"), "longer").unwrap();
    assert!(once(&redis, dir.path(), &[]).status.success());
    assert_eq!(redis.all(LOW).await.len(), 251);
    assert!(once(&redis, dir.path(), &[("PRODUCER_REMEMBER", "false")]).status.success());
    assert_eq!(redis.all(LOW).await.len(), 501, "without a memory each scan enqueues all");
}

#[tokio::test]
async fn shards_hold_each_file_once() {
    let redis = Redis::start();
    let dir = tree(300);
    for _ in 0..2 {
        let output = once(&redis, dir.path(), &[("WORKER_SHARDS", "3")]);
        assert!(output.status.success(), "{}", said(&output.stderr));
    }
    let mut lengths = Vec::new();
    for shard in 0..3 {
        lengths.push(redis.all(&format!("{{jobqueue:{shard}}}:low_priority")).await.len());
    }
    assert_eq!(lengths.iter().sum::<usize>(), 300, "{lengths:?}");
    assert!(lengths.iter().all(|length| *length > 50), "{lengths:?}");
}

#[tokio::test]
async fn no_file_is_enqueued_again_when_the_number_of_shards_changes() {
    let redis = Redis::start();
    let dir = tree(300);
    let places = || {
        let shards = (0..4).map(|shard| format!("{{jobqueue:{shard}}}:low_priority"));
        std::iter::once(LOW.to_owned()).chain(shards).collect::<Vec<_>>()
    };
    // The first as a version that did not write down where it remembers.
    for (round, shards) in ["1", "3", "4", "2", "1"].into_iter().enumerate() {
        let output = once(&redis, dir.path(), &[("WORKER_SHARDS", shards)]);
        assert!(output.status.success(), "{}", said(&output.stderr));
        let mut all = 0;
        for place in places() {
            all += redis.all(&place).await.len();
        }
        assert_eq!(all, 300, "with {shards} shards");
        if round == 0 {
            let mut session = redis.session();
            let mark = session.keys.seen_layout(&seen_name(dir.path()));
            assert_eq!(session.unlink(&mark).await.unwrap(), 1);
            // Workers of the next layout may have started first.
            session.unlink("jobqueue:layout").await.unwrap();
        }
    }
    std::fs::write(dir.path().join("7.txt"), "longer").unwrap();
    assert!(once(&redis, dir.path(), &[]).status.success());
    assert_eq!(redis.all(LOW).await.len(), 301, "what changes is enqueued");
}

#[tokio::test]
async fn an_outage_in_the_middle_of_a_scan_loses_and_doubles_nothing() {
    let redis = Redis::start();
    let dir = tree(5000);
    let settings =
        [("PRODUCER_REMEMBER", "false"), ("REDIS_READ_TIMEOUT", "200ms"), ("REDIS_DIAL_TIMEOUT", "200ms")];
    let mut child = producer(&redis, dir.path(), &settings).arg("--once").spawn().unwrap();
    eventually("some are enqueued", async || !redis.all(LOW).await.is_empty()).await;
    redis.signal("-STOP");
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let waits = log.by_ref().map_while(Result::ok).any(|line| line.contains("Could not enqueue"));
    redis.signal("-CONT");
    assert!(waits, "the producer was done before the outage: raise the number of files");
    for _ in log {}
    assert!(child.wait().unwrap().success());
    let files = enqueued(&redis).await;
    assert_eq!(files.len(), 5000);
    assert!(files.values().all(|times| *times == 1), "a call that was repeated added nothing");
}

#[tokio::test]
async fn a_key_of_the_wrong_type_is_named_and_waited_for() {
    let redis = Redis::start();
    let dir = tree(3);
    let mut session = redis.session();
    session.set(LOW, "not a list").await.unwrap();
    let mut child = producer(&redis, dir.path(), &[]).arg("--once").spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let named =
        log.by_ref().map_while(Result::ok).any(|line| line.contains(LOW) && line.contains("must be a list"));
    assert!(named);
    session.unlink(LOW).await.unwrap();
    for _ in log {}
    assert!(child.wait().unwrap().success());
    assert_eq!(redis.all(LOW).await.len(), 3);
}

#[tokio::test]
async fn the_rate_limit_is_kept() {
    let redis = Redis::start();
    let dir = tree(50);
    let began = Instant::now();
    let output = once(&redis, dir.path(), &[("PRODUCER_RATE_LIMIT_PER_SEC", "20")]);
    assert!(output.status.success(), "{}", said(&output.stderr));
    assert_eq!(redis.all(LOW).await.len(), 50);
    assert!(began.elapsed() >= Duration::from_secs(2), "20 now, 20 a second later, 10 two seconds later");
}

#[tokio::test]
async fn a_missing_directory_fails_one_scan_and_is_waited_for_otherwise() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let failed = once(&redis, &data, &[]);
    assert_eq!(failed.status.code(), Some(1));
    let log = said(&failed.stderr);
    assert!(log.contains("Could not read the directory to scan"), "{log}");
    assert!(!log.contains(data.to_str().unwrap()), "no path in logs: {log}");

    let child = producer(&redis, &data, &[("PRODUCER_RESCAN_INTERVAL", "50ms")]).spawn().unwrap();
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("a.txt"), "x").unwrap();
    eventually("the file is enqueued", async || redis.all(LOW).await.len() == 1).await;
    signal(&child, "-TERM");
    assert!(child.wait_with_output().unwrap().status.success());
}

#[tokio::test]
async fn a_producer_that_runs_once_forgets_files_that_are_gone() {
    let redis = Redis::start();
    let dir = tree(20);
    let seen = format!("jobqueue:seen:{}", seen_name(dir.path()));
    assert!(once(&redis, dir.path(), &[]).status.success());
    for gone in 0..5 {
        std::fs::remove_file(dir.path().join(format!("{gone}.txt"))).unwrap();
    }
    assert!(once(&redis, dir.path(), &[]).status.success());
    assert_eq!(redis.command::<usize>(&["HLEN", &seen]), 15);
    for left in 5..20 {
        std::fs::remove_file(dir.path().join(format!("{left}.txt"))).unwrap();
    }
    assert!(once(&redis, dir.path(), &[]).status.success());
    assert_eq!(
        redis.command::<usize>(&["HLEN", &seen]),
        15,
        "an empty directory may be one that is not mounted"
    );
}

#[tokio::test]
async fn a_producer_does_not_forget_the_files_of_another_directory_under_the_same_path_and_name() {
    let redis = Redis::start();
    let home = tempfile::tempdir().unwrap();
    let [path, ours, theirs] = ["inbox", "ours", "theirs"].map(|name| home.path().join(name));
    let seen = format!("jobqueue:seen:{}", seen_name(&path));
    for (at, mine) in [&ours, &theirs].into_iter().enumerate() {
        std::fs::create_dir(mine).unwrap();
        for n in 0..3 {
            std::fs::write(mine.join(format!("{at}-{n}.txt")), "x").unwrap();
        }
    }
    // As it would be mounted on each of two hosts.
    let scan = |mounted: &Path| {
        std::fs::rename(mounted, &path).unwrap();
        let output = once(&redis, &path, &[]);
        std::fs::rename(&path, mounted).unwrap();
        assert!(output.status.success(), "{}", said(&output.stderr));
        said(&output.stdout) + &said(&output.stderr)
    };
    assert!(!scan(&ours).contains("producer.name"));
    for mounted in [&theirs, &ours, &theirs] {
        let told = scan(mounted);
        assert!(told.contains("Forgot no files") && told.contains("producer.name"), "{told}");
    }
    assert_eq!(redis.command::<usize>(&["HLEN", &seen]), 6);
    let files = enqueued(&redis).await;
    assert_eq!((files.len(), files.values().max()), (6, Some(&1)), "{files:?}");
    // Once the other has not been heard of for long enough, its files are gone.
    let places = format!("jobqueue:seen-in:{}", seen_name(&path));
    assert!(redis.command::<i64>(&["PTTL", &places]) > 0, "it lapses with them");
    redis.command::<()>(&["DEL", &places]);
    assert!(!scan(&ours).contains("Forgot no files"));
    assert_eq!(redis.command::<usize>(&["HLEN", &seen]), 3);
}

#[tokio::test]
async fn files_that_are_gone_are_forgotten() {
    let redis = Redis::start();
    let dir = tree(3);
    let child = producer(&redis, dir.path(), &[("PRODUCER_RESCAN_INTERVAL", "50ms")]).spawn().unwrap();
    eventually("all are enqueued", async || redis.all(LOW).await.len() == 3).await;
    let mut session = redis.session();
    let seen = session.keys.seen(&seen_name(dir.path()));
    assert_eq!(session.hash_len(&seen).await.unwrap(), 3);
    std::fs::remove_file(dir.path().join("1.txt")).unwrap();
    eventually("it is forgotten", async || redis.session().hash_len(&seen).await.unwrap() == 2).await;
    signal(&child, "-INT");
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(redis.all(LOW).await.len(), 3);
}
