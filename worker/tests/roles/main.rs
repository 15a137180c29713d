//! The admin and producer roles: the real binary against a real Redis.
#![allow(clippy::unwrap_used, clippy::expect_used)]
mod admin;
mod by_hand;
mod dlq;
mod doctor;
mod drain;
mod interrupted;
mod producer;
mod redis;
mod sidekiq;

use std::process::{Child, Command, Output, Stdio};

use bytes::Bytes;
use redis::Redis;
use serde_json::{Value, json};

const DEAD: &str = "jobqueue:dead_letter";
const HIGH: &str = "jobqueue:high_priority";
const LOW: &str = "jobqueue:low_priority";

fn worker(redis: &Redis, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
    command.env_clear().env("REDIS_ADDR", redis.addr()).env("OBSERVABILITY_METRICS_PORT", "0");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(redis: &Redis, args: &[&str]) -> Output {
    worker(redis, args).output().unwrap()
}

fn said(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
}

/// The answer of a command that did what it was asked for.
fn answered(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn letter(id: &str, reason: &str, queue: &str) -> Vec<u8> {
    let letter = json!({
        "id": id, "priority": "low", "retries": 4, "error": "boom", "reason": reason,
        "failed_at": "2026-01-01T00:00:00Z", "origin_queue": queue,
    });
    letter.to_string().into_bytes()
}

fn ids(entries: &[Bytes]) -> Vec<String> {
    let id = |raw: &Bytes| serde_json::from_slice::<Value>(raw).unwrap()["id"].as_str().unwrap().to_owned();
    entries.iter().map(id).collect()
}
