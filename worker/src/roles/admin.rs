//! `--role=admin`: look at queues and repair them. One connection a shard, no retries: a person waits. What is printed is
//! the contract of docs/admin.md.
mod dlq;
mod doctor;
mod drain;
mod enqueue;
mod interrupt;
mod job;
mod peek;
mod places;
mod progress;
mod stats;
mod table;

use std::io::{self, Write as _};
use std::process::ExitCode;

use jobqueue::config::{Config, Protocol as Format};
use jobqueue::connect::ConnectError;
use jobqueue::engine::Engine;
use jobqueue::layout::{self, LayoutError};
use jobqueue::protocol::sidekiq::names::Names;
use jobqueue::store::{Session, StoreError};
use serde_json::Value;

use crate::cli::{self, Command, Common, Dlq};
use crate::shutdown::Shutdown;
use interrupt::Reader;

/// The command line asks for something that does not exist, or for more care.
const EXIT_USAGE: u8 = 2;
/// Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
enum AdminError {
    #[error("{0}")]
    Usage(String),
    #[error("{}", advice(.0))]
    Store(#[from] StoreError),
    #[error("{0}")]
    Failed(String),
    #[error("cannot write the answer: {0}")]
    Output(#[from] io::Error),
}

/// How a command that ran ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// It ran, and part of what it was asked for does not exist.
    Incomplete,
    Interrupted,
}

/// What every command needs: the policy, a conversation with each shard, and whether to stop.
struct Admin<'a> {
    config: &'a Config,
    engine: Engine,
    shards: Vec<Session>,
    stop: Shutdown,
    /// What the other end says on stdin, where that matters.
    reader: Option<Reader>,
}

impl Admin<'_> {
    /// Queues and dead letters are Sidekiq's own.
    fn is_sidekiq(&self) -> bool {
        self.config.protocol == Format::Sidekiq
    }

    /// What Sidekiq calls its keys, where they are its own.
    fn names(&self) -> Option<Names> {
        self.is_sidekiq().then(|| Names::new(&self.config.sidekiq.namespace))
    }
}

/// Runs one command.
pub async fn run(config: &Config, command: Command) -> anyhow::Result<ExitCode> {
    let mut engine = Engine::new(config);
    let (stop, reader) = match interrupt::listen(listens_to_stdin(&command)) {
        Ok(listening) => listening,
        Err(error) => return Ok(failed(&AdminError::Failed(format!("cannot listen for signals: {error}")))),
    };
    // What another layout left behind has jobs and dead letters too.
    let mut layout = layout::Watch::new(&engine);
    let leftovers = match &command {
        Command::Job(_) => layout.remains().await,
        Command::Enqueue(_) => match layout.write_down().await {
            Ok(()) => layout.leftovers().await,
            Err(error) => Err(error),
        },
        _ => layout.leftovers().await,
    };
    match leftovers {
        Ok(leftovers) => engine.shards.extend(leftovers),
        Err(error) => return Ok(failed(&error.into())),
    }
    let shards = engine.shards.iter().map(|keys| engine.session(keys)).collect();
    let mut admin = Admin { config, engine, shards, stop, reader };
    let end = match command {
        Command::Stats(stats) => stats::run(&mut admin, &stats).await,
        Command::Peek(peek) => peek::run(&mut admin, &peek).await,
        Command::Job(wanted) => job::run(&mut admin, &wanted).await,
        Command::Enqueue(enqueue) => enqueue::run(&mut admin, &enqueue).await,
        Command::Dlq(Dlq::List(list)) => dlq::list::run(&mut admin, &list).await,
        Command::Dlq(Dlq::Show(show)) => dlq::list::show(&mut admin, &show).await,
        Command::Dlq(Dlq::Requeue(requeue)) | Command::RequeueDlq(requeue) => {
            dlq::requeue::run(&mut admin, &requeue).await
        }
        Command::Dlq(Dlq::Purge(purge)) => dlq::purge::run(&mut admin, &purge).await,
        Command::PurgeDlq(mut purge) => {
            purge.no_archive |= purge.archive.is_none() && !purge.acknowledged;
            dlq::purge::run(&mut admin, &purge).await
        }
        Command::Pause(common) => pause(&mut admin, common, true).await,
        Command::Resume(common) => pause(&mut admin, common, false).await,
        Command::Drain(wanted) => drain::run(&mut admin, &wanted).await,
        Command::Doctor(doctor) => doctor::run(&mut admin, &doctor).await,
        // Answered before a role is chosen: they need no Redis.
        Command::Config(_)
        | Command::Completion { .. }
        | Command::Install { .. }
        | Command::Health { .. }
        | Command::Wait => Ok(End::Done),
    };
    Ok(match end {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Incomplete) => ExitCode::FAILURE,
        Ok(End::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => failed(&error),
    })
}

/// Whether the end of stdin ends this command. Not where stdin is what it reads.
fn listens_to_stdin(command: &Command) -> bool {
    match command {
        Command::Enqueue(enqueue) if enqueue::reads_stdin(enqueue) => false,
        Command::Enqueue(cli::Enqueue { common, .. })
        | Command::Stats(cli::Stats { common, .. })
        | Command::Peek(cli::Peek { common, .. })
        | Command::Job(cli::FindJob { common, .. })
        | Command::Dlq(
            Dlq::List(cli::DlqList { common, .. })
            | Dlq::Show(cli::DlqShow { common, .. })
            | Dlq::Requeue(cli::Requeue { common, .. }),
        )
        | Command::RequeueDlq(cli::Requeue { common, .. })
        | Command::Pause(common)
        | Command::Resume(common)
        | Command::Drain(cli::Drain { common, .. })
        | Command::Doctor(cli::Doctor { common, .. }) => common.until_stdin_closes,
        Command::Dlq(Dlq::Purge(purge)) | Command::PurgeDlq(purge) => {
            purge.common.until_stdin_closes || purge.acknowledged
        }
        Command::Config(_)
        | Command::Completion { .. }
        | Command::Install { .. }
        | Command::Health { .. }
        | Command::Wait => false,
    }
}

fn failed(error: &AdminError) -> ExitCode {
    eprintln!("Error: {}", table::whole(&error.to_string()));
    if matches!(error, AdminError::Usage(_)) { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
}

impl From<LayoutError> for AdminError {
    fn from(error: LayoutError) -> Self {
        match error {
            LayoutError::Store(error) => Self::Store(error),
            newer @ LayoutError::Newer { .. } => Self::Failed(newer.to_string()),
        }
    }
}

async fn pause(admin: &mut Admin<'_>, common: Common, paused: bool) -> Result<End, AdminError> {
    for session in &mut admin.shards {
        let key = session.keys.paused();
        if paused {
            session.set(&key, &jiff::Timestamp::now().to_string()).await?;
        } else {
            session.unlink(&key).await?;
        }
    }
    let said = if paused {
        "Paused: no worker takes another job, those that run finish; worker resume ends it\n"
    } else {
        "Resumed: workers take jobs again\n"
    };
    answer(common, || said.to_owned(), || serde_json::json!({ "paused": paused }))?;
    Ok(End::Done)
}

/// Prints an answer; whoever closed the pipe (`| head`) has seen enough.
fn answer(
    common: Common,
    text: impl FnOnce() -> String,
    value: impl FnOnce() -> Value,
) -> Result<(), AdminError> {
    let text = match common.output {
        cli::Format::Table => text(),
        cli::Format::Json => table::json(&value()),
        cli::Format::Yaml => table::yaml(&value()),
    };
    print(&text).map(drop)
}

/// Prints; `false` when nobody reads any more.
fn print(text: &str) -> Result<bool, AdminError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// An error in one line that says what to do.
fn advice(error: &StoreError) -> String {
    let advice = match error {
        StoreError::Connect(ConnectError::Unreachable { .. }) => {
            "check that it runs, and redis.addr (REDIS_ADDR) or redis.url"
        }
        StoreError::Connect(ConnectError::Loading { .. }) | StoreError::Later(_) => "try again in a moment",
        StoreError::Lost(_) => "check its health and run this again",
        _ => "",
    };
    let separator = if advice.is_empty() { "" } else { "; " };
    format!("{error}{separator}{advice}").replace(['\r', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_that_says_what_to_do() {
        let away = ConnectError::Unreachable { address: "r:6379".into(), reason: "refused\nreally".into() };
        let said = advice(&away.into());
        assert_eq!(
            said,
            "cannot reach Redis at r:6379: refused really; check that it runs, and redis.addr (REDIS_ADDR) or redis.url"
        );
        let full = advice(&StoreError::OutOfMemory("OOM".into()));
        assert!(full.ends_with("make room (OOM)"), "{full}");
    }
}
