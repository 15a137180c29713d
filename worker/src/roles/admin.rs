//! `--role=admin`: look at queues and repair them. One connection a shard, no retries: a person waits.
mod peek;
mod requeue;
mod stats;
mod table;

use std::io::{self, Write as _};
use std::process::ExitCode;

use jobqueue::config::Config;
use jobqueue::connect::ConnectError;
use jobqueue::engine::Engine;
use jobqueue::layout::{self, LayoutError};
use jobqueue::store::{Session, StoreError};

use crate::cli::{Command, Format, Output, Purge};
use crate::shutdown::{Shutdown, shutdown};

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

/// What every command needs: the policy, and a conversation with each shard.
struct Admin {
    engine: Engine,
    shards: Vec<Session>,
}

/// Runs one command.
pub async fn run(config: &Config, command: Command) -> anyhow::Result<ExitCode> {
    let mut engine = Engine::new(config);
    if engine.shards[0].queues_are_foreign()
        && let Some(what) = of_dead_letters(&command)
    {
        return Ok(failed(&AdminError::Usage(format!(
            "{what}: with protocol sidekiq dead jobs are Sidekiq's own, nothing was touched: use the page Dead of \
             Sidekiq's web interface, or Sidekiq::DeadSet"
        ))));
    }
    if !matches!(command, Command::Config(_) | Command::Completion { .. }) {
        // What an earlier layout left behind has jobs and dead letters too.
        match layout::leftovers(&engine).await {
            Ok(leftovers) => engine.shards.extend(leftovers),
            Err(error) => return Ok(failed(&error.into())),
        }
    }
    let shards = engine.shards.iter().map(|keys| engine.session(keys)).collect();
    let mut admin = Admin { engine, shards };
    let end = match command {
        Command::Stats(output) => stats::run(&mut admin, output).await,
        Command::Peek(peek) => peek::run(&mut admin, &peek).await,
        Command::PurgeDlq(purge) => purge_dlq(&mut admin, &purge).await,
        Command::RequeueDlq(requeue) => requeue::run(&mut admin, &requeue, on_interrupt()?).await,
        Command::Pause(output) => pause(&mut admin, output, true).await,
        Command::Resume(output) => pause(&mut admin, output, false).await,
        // Answered before a role is chosen: they need no Redis.
        Command::Config(_) | Command::Completion { .. } | Command::Install { .. } => Ok(End::Done),
    };
    Ok(match end {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Incomplete) => ExitCode::FAILURE,
        Ok(End::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => failed(&error),
    })
}

/// Commands about lists that a protocol whose queues are another program's does not have.
fn of_dead_letters(command: &Command) -> Option<&'static str> {
    match command {
        Command::PurgeDlq(_) => Some("purge-dlq"),
        Command::RequeueDlq(_) => Some("requeue-dlq"),
        Command::Peek(peek) if peek.queue == "dead" => Some("peek --queue dead"),
        Command::Peek(peek) if peek.queue == "completed" => Some("peek --queue completed"),
        _ => None,
    }
}

fn failed(error: &AdminError) -> ExitCode {
    eprintln!("Error: {error}");
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

async fn purge_dlq(admin: &mut Admin, purge: &Purge) -> Result<End, AdminError> {
    if !purge.yes {
        let mut letters = 0;
        for session in &mut admin.shards {
            letters +=
                session.page(&session.keys.dead_letters(), jobqueue::store::PageKind::Head, 0).await?.length;
        }
        return Err(AdminError::Usage(format!(
            "purge-dlq would delete {letters} dead letters for ever, nothing was deleted: add --yes to do it, \
             or look at them with: worker peek --queue dead"
        )));
    }
    let mut deleted = 0;
    for session in &mut admin.shards {
        deleted += session.purge(&session.keys.dead_letters()).await?;
    }
    answer(
        purge.output,
        || format!("Deleted {deleted} dead letters\n"),
        || serde_json::json!({ "deleted": deleted }),
    )?;
    Ok(End::Done)
}

async fn pause(admin: &mut Admin, output: Output, paused: bool) -> Result<End, AdminError> {
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
    answer(output, || said.to_owned(), || serde_json::json!({ "paused": paused }))?;
    Ok(End::Done)
}

/// Prints an answer; whoever closed the pipe (`| head`) has seen enough.
fn answer(
    output: Output,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> serde_json::Value,
) -> Result<(), AdminError> {
    let text = match output.output {
        Format::Table => text(),
        Format::Json => table::json(&json()),
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
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

/// Ctrl-C and SIGTERM ask to stop after the current step; a second one ends the process at once.
fn on_interrupt() -> io::Result<Shutdown> {
    use tokio::signal::unix::{SignalKind, signal};
    let (stopper, stopping) = shutdown();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        for again in [false, true] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if again {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
            stopper.stop();
        }
    });
    Ok(stopping)
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
