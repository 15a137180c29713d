//! The peers: small programs of ours on their libraries, built into a cache beside the binaries.
//!
//! A program does one of three things: `enqueue ADDR COUNT`, `work ADDR CONCURRENCY` until SIGTERM, and
//! `pickup ADDR RATE COUNT`, which prints what each job waited in microseconds, a line a job. How many jobs are
//! acknowledged is read from Redis by us, with the same clock for everyone.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::RedisServer;
use e2e::child::ChildProcess;
use redis::aio::MultiplexedConnection;

use crate::Peers;
use crate::progress;
use crate::report::Unavailable;

const ASYNQ: &str = include_str!("../peers/asynq/main.go");
const ASYNQ_MODULE: &str = include_str!("../peers/asynq/go.mod");
const BULLMQ: &str = include_str!("../peers/bullmq/main.js");
const BULLMQ_PACKAGE: &str = include_str!("../peers/bullmq/package.json");
const SIDEKIQ: &str = include_str!("../peers/sidekiq/main.rb");

/// Another system.
#[derive(Debug)]
pub struct Peer {
    /// What it is called.
    pub name: &'static str,
    /// With how many jobs at once it is measured.
    pub concurrency: &'static [usize],
    program: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Asynq,
    BullMq,
    Sidekiq,
}

/// Builds the peers that are wanted; those that cannot be built, and why.
pub fn prepare(wanted: Peers) -> (Vec<Peer>, Vec<Unavailable>) {
    let kinds: &[Kind] = match wanted {
        Peers::None => &[],
        Peers::Asynq => &[Kind::Asynq],
        Peers::All => &[Kind::Asynq, Kind::BullMq, Kind::Sidekiq],
    };
    let (mut peers, mut unavailable) = (Vec::new(), Vec::new());
    for kind in kinds {
        let (name, concurrency): (_, &[usize]) = match kind {
            Kind::Asynq => ("asynq", &[50, 200]),
            Kind::BullMq => ("BullMQ", &[50]),
            Kind::Sidekiq => ("Sidekiq", &[10]),
        };
        progress(&format!("preparing {name}"));
        match build(*kind) {
            Ok(program) => peers.push(Peer { name, concurrency, program, kind: *kind }),
            Err(error) => {
                let reason = format!("{error:#}");
                progress(&format!("{name} is not available: {reason}"));
                unavailable.push(Unavailable { system: name.to_owned(), reason });
            }
        }
    }
    (peers, unavailable)
}

fn build(kind: Kind) -> anyhow::Result<Vec<String>> {
    let exe = std::env::current_exe()?;
    let cache = exe.parent().context("a directory")?.join("bench-peers");
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    match kind {
        Kind::Asynq => {
            let dir = cache.join("asynq");
            write(&dir, &[("main.go", ASYNQ), ("go.mod", ASYNQ_MODULE)])?;
            tool(&dir, "go", &["mod", "tidy"])?;
            tool(&dir, "go", &["build", "-o", "asynq-bench", "."])?;
            Ok(vec![text(dir.join("asynq-bench"))])
        }
        Kind::BullMq => {
            let dir = cache.join("bullmq");
            write(&dir, &[("main.js", BULLMQ), ("package.json", BULLMQ_PACKAGE)])?;
            tool(&dir, "npm", &["install", "--no-audit", "--no-fund", "--no-package-lock"])?;
            Ok(vec!["node".to_owned(), text(dir.join("main.js"))])
        }
        Kind::Sidekiq => {
            let dir = cache.join("sidekiq");
            write(&dir, &[("main.rb", SIDEKIQ)])?;
            let program = vec!["ruby".to_owned(), text(dir.join("main.rb"))];
            tool(&dir, "ruby", &["main.rb", "version"]).context("needs Debian's package ruby-sidekiq")?;
            Ok(program)
        }
    }
}

fn write(dir: &Path, files: &[(&str, &str)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (name, text) in files {
        // `go mod tidy` completes its file: it is written anew only when ours has changed.
        let (path, origin) = (dir.join(name), dir.join(format!("{name}.origin")));
        if std::fs::read_to_string(&origin).ok().as_deref() != Some(text) {
            std::fs::write(path, text)?;
            std::fs::write(origin, text)?;
        }
    }
    Ok(())
}

fn tool(dir: &Path, program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).current_dir(dir).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{program} does not start"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    ensure!(output.status.success(), "{program} {}: {last}", args.join(" "));
    Ok(())
}

impl Peer {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).args(args).stdin(Stdio::null());
        command
    }

    /// Enqueues distinct jobs of the size of ours.
    pub fn enqueue(&self, server: &RedisServer, count: u64) -> anyhow::Result<()> {
        let output = self.command(&["enqueue", &server.addr().to_string(), &count.to_string()]).output()?;
        ensure!(output.status.success(), "enqueue: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Starts its worker.
    pub fn work(&self, server: &RedisServer, concurrency: usize) -> ChildProcess {
        let mut command = self.command(&["work", &server.addr().to_string(), &concurrency.to_string()]);
        ChildProcess::spawn(command.stdout(Stdio::null()))
    }

    /// Stops its worker.
    pub async fn stop(&self, mut worker: ChildProcess) {
        worker.terminate();
        worker.wait_exit(Duration::from_secs(40)).await;
    }

    /// What each of `count` jobs waited on an idle system, in microseconds.
    pub fn pickup(&self, server: &RedisServer, rate: u32, count: u32) -> anyhow::Result<Vec<u64>> {
        let (rate, count) = (rate.to_string(), count.to_string());
        let output = self.command(&["pickup", &server.addr().to_string(), &rate, &count]).output()?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "pickup: {}", String::from_utf8_lossy(&output.stderr));
        stdout
            .lines()
            .map(|line| line.parse().with_context(|| format!("not microseconds: {line:?}")))
            .collect()
    }

    /// How many of `total` jobs are acknowledged.
    pub async fn acked(&self, redis: &mut MultiplexedConnection, total: u64) -> anyhow::Result<u64> {
        let lengths = |keys: [&str; 2]| {
            let mut pipe = redis::pipe();
            pipe.atomic().cmd("LLEN").arg(keys[0]).cmd("LLEN").arg(keys[1]);
            pipe
        };
        match self.kind {
            Kind::Asynq => {
                // Its script for a finished task counts it here in the same step that removes it.
                let done: Option<u64> =
                    redis::cmd("GET").arg("asynq:{default}:processed").query_async(redis).await?;
                Ok(done.unwrap_or_default())
            }
            Kind::BullMq => {
                // Finished jobs are removed: what neither waits nor is active is acknowledged.
                let left: (u64, u64) =
                    lengths(["bull:bench:wait", "bull:bench:active"]).query_async(redis).await?;
                Ok(total.saturating_sub(left.0 + left.1))
            }
            Kind::Sidekiq => {
                // It knows no acknowledgement: a job is gone once it is fetched.
                let left: u64 = redis::cmd("LLEN").arg("queue:default").query_async(redis).await?;
                Ok(total.saturating_sub(left))
            }
        }
    }

    /// Every job was done, none is left; asked after its worker has stopped.
    pub async fn check(&self, redis: &mut MultiplexedConnection, total: u64) -> anyhow::Result<()> {
        let acked = self.acked(redis, total).await?;
        ensure!(acked == total, "{acked} acknowledgements of {total} jobs");
        let (left, counted): (&[&str], Option<&str>) = match self.kind {
            Kind::Asynq => (
                &[
                    "asynq:{default}:pending",
                    "asynq:{default}:active",
                    "asynq:{default}:retry",
                    "asynq:{default}:archived",
                ],
                None,
            ),
            Kind::BullMq => (&["bull:bench:delayed", "bull:bench:failed", "bull:bench:stalled"], None),
            Kind::Sidekiq => (&["retry", "dead"], Some("stat:processed")),
        };
        for key in left {
            let exists: u8 = redis::cmd("EXISTS").arg(key).query_async(redis).await?;
            ensure!(exists == 0, "{key} is not empty");
        }
        if let Some(key) = counted {
            let done: Option<u64> = redis::cmd("GET").arg(key).query_async(redis).await?;
            ensure!(done == Some(total), "{key} is {done:?}, should be {total}");
        }
        Ok(())
    }
}
