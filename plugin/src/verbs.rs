//! What can be done, a file a verb.
mod control;
mod data;
pub mod describe;
pub mod dlq;
mod doctor;
mod drain;
mod explain;
mod list;
mod logs;
mod report;
pub mod stats;

pub use control::patch;

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt as _;

use crate::cli::{Cli, Command};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::guests::Guests;
use crate::interrupt::Interrupt;
use crate::{completion, print, reference, top, version};

/// Does what was asked for.
pub async fn run(cli: Cli) -> Result<(), Error> {
    let Cli { target, version, command } = cli;
    if version {
        return version::run(&target).await;
    }
    // What needs no cluster.
    let command = match command {
        None => return Err(Error::Usage("say what to do; kubectl jobqueue --help lists the verbs".into())),
        Some(Command::Completion { shell }) => return print::text(completion::script(shell)),
        Some(Command::Complete { words }) => return print::text(&completion::run(&words).await),
        Some(Command::Reference) => return print::text(&reference::markdown()),
        Some(command) => command,
    };
    let guests = Guests::default();
    let left = guests.clone();
    let interrupt = Interrupt::listen(move || left.left())?;
    let cluster = interrupt.or(Cluster::connect(&target)).await?.hosting(guests);
    let outcome = AssertUnwindSafe(carry_out(&cluster, command, &interrupt)).catch_unwind().await;
    // On every way out: done, failed, interrupted or panicked.
    cluster.dismiss(None).await;
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

async fn carry_out(cluster: &Cluster, command: Command, interrupt: &Interrupt) -> Result<(), Error> {
    match command {
        Command::Stats(args) => stats::run(cluster, &args, interrupt).await,
        Command::List(args) => interrupt.or(list::run(cluster, &args)).await,
        Command::Describe(args) => interrupt.or(describe::run(cluster, &args)).await,
        Command::Explain(args) => interrupt.or(explain::run(cluster, &args)).await,
        Command::Peek(args) => data::peek(cluster, &args, interrupt).await,
        Command::Job(args) => data::job(cluster, &args, interrupt).await,
        Command::Enqueue(args) => data::enqueue(cluster, &args, interrupt).await,
        Command::Dlq(verb) => dlq::run(cluster, &verb, interrupt).await,
        Command::Pause(args) => interrupt.or(control::pause(cluster, &args, true)).await,
        Command::Resume(args) => interrupt.or(control::pause(cluster, &args, false)).await,
        Command::Scale(args) => interrupt.or(control::scale(cluster, &args)).await,
        Command::Drain(args) => drain::run(cluster, &args, interrupt).await,
        Command::Logs(args) => logs::run(cluster, &args, interrupt).await,
        Command::Top(args) => top::run(cluster, &args, interrupt).await,
        Command::Doctor(args) => doctor::run(cluster, &args, interrupt).await,
        Command::Report(args) => report::run(cluster, &args, interrupt).await,
        Command::Completion { .. } | Command::Complete { .. } | Command::Reference => Ok(()),
    }
}
