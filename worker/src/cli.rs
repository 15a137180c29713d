//! The command line.
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use jobqueue::outcome::Reason;

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
    /// Show how many jobs wait, run, are delayed, completed and dead.
    Stats(Output),
    /// Show the next jobs of a queue, or the newest dead letters.
    Peek(Peek),
    /// Delete every dead letter.
    PurgeDlq(Purge),
    /// Put dead letters back into the queues they came from.
    RequeueDlq(Requeue),
    /// Let no worker take another job, until `resume`; jobs that run finish.
    Pause(Output),
    /// Let workers take jobs again.
    Resume(Output),
    /// Look at the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Copy this program to a path: how it gets into a container of somebody else's image.
    Install {
        /// Where to.
        path: PathBuf,
    },
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

/// How answers are printed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output {
    /// A table for people, or JSON for scripts.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
}

/// How answers are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For scripts.
    Json,
}

/// Which jobs to show.
#[derive(Debug, Args)]
pub struct Peek {
    /// A queue by its name (high, low, ...) or key, `completed` or `dead`; all queues when not given.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub queue: String,
    /// How many.
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub count: u64,
    /// How to print them.
    #[command(flatten)]
    pub output: Output,
}

/// Deleting dead letters.
#[derive(Debug, Args)]
pub struct Purge {
    /// Yes, delete them: this cannot be undone.
    #[arg(long)]
    pub yes: bool,
    /// How to print the result.
    #[command(flatten)]
    pub output: Output,
}

/// Which dead letters to requeue, and how fast.
#[derive(Debug, Args)]
pub struct Requeue {
    /// Only this job; may be given several times.
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
    /// Only jobs that died for this reason.
    #[arg(long, value_name = "REASON", value_parser = PossibleValuesParser::new(Reason::ALL.map(Reason::as_str)))]
    pub reason: Option<String>,
    /// At most this many a second.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// How to print the result.
    #[command(flatten)]
    pub output: Output,
}
