//! The command line.
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

mod admin;

pub use admin::{
    Common, Dlq, DlqList, DlqShow, Doctor, Drain, Enqueue, FindJob, Format, Peek, Progress, Purge, Requeue,
    Selectors, Stats,
};

/// Reliable background jobs on Redis: enqueue files, run jobs, look after queues.
///
/// Everything is configured by a YAML file and environment variables (`WORKER_COUNT`, `REDIS_ADDR`, ...): see
/// `worker config check` and docs/configuration.md.
#[derive(Debug, Parser)]
#[command(name = "worker", version = jobqueue::VERSION, propagate_version = true)]
pub struct Cli {
    /// What this process does.
    #[arg(long, value_enum, global = true)]
    pub role: Option<Role>,

    /// The configuration file; a missing one means the defaults.
    #[arg(long, value_name = "PATH", env = "WORKER_CONFIG", global = true)]
    pub config: Option<PathBuf>,

    /// The producer scans once instead of again and again.
    #[arg(long, global = true)]
    pub once: bool,

    /// A command: those of the admin role, or one about the worker itself.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Scan a directory and enqueue its files.
    Producer,
    /// Run jobs.
    Worker,
    /// Both, in one process: for development and small deployments.
    All,
    /// Serve the HTTP jobs API (protocol async).
    Api,
    /// Look at queues and repair them.
    Admin,
}

/// Commands of the admin role, and some about the worker itself.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show how many jobs wait, run, are delayed, completed and dead, and who runs them.
    Stats(Stats),
    /// Show the next jobs of a queue, or the newest dead letters.
    Peek(Peek),
    /// Find a job: where it is, and what happened to it.
    Job(FindJob),
    /// Enqueue jobs by hand.
    Enqueue(Enqueue),
    /// Look at the dead letters, put them back, or delete them.
    #[command(subcommand)]
    Dlq(Dlq),
    /// Put dead letters back into the queues they came from: `dlq requeue`.
    RequeueDlq(Requeue),
    /// Delete dead letters: `dlq purge`, without an archive unless one is named.
    PurgeDlq(Purge),
    /// Let no worker take another job, until `resume`; jobs that run finish.
    Pause(Common),
    /// Let workers take jobs again.
    Resume(Common),
    /// Let a process take no more jobs, and wait until it holds none; then it can be ended.
    Drain(Drain),
    /// Look for what is wrong, or will be, and say what to do about it.
    Doctor(Doctor),
    /// Look at the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Copy this program to a path: how it gets into a container of somebody else's image.
    Install {
        /// Where to.
        path: PathBuf,
    },
    /// Ask the worker on this machine how it is: ends with 0 when it is well. For health checks of containers.
    Health {
        /// Whether it takes jobs, rather than whether it lives.
        #[arg(long)]
        ready: bool,
    },
    /// Do nothing until told to stop: keeps a pod open for commands that run in it.
    Wait,
    /// Print a completion script for a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// About the configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Print the effective configuration, secrets masked, or every problem with it.
    Check,
}
