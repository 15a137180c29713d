//! The admin and producer roles: the real binary against a real Redis.
#![allow(clippy::unwrap_used, clippy::expect_used)]
mod admin;
mod producer;
mod redis;

use std::process::{Child, Command, Output, Stdio};

use redis::Redis;

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
