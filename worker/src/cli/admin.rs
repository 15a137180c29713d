//! The arguments of the admin role's commands: docs/admin.md is their contract.
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jobqueue::config::Duration;

/// So many entries of one place are looked at, unless told otherwise: a second or two.
const LOOK_AT: u64 = 100_000;

/// What every command has.
#[derive(Debug, Clone, Copy, Args)]
pub struct Common {
    /// A table for people, or JSON or YAML for scripts.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Stop when stdin ends, as on Ctrl-C: for whoever runs this at the other end of an exec.
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// How answers are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For scripts.
    Json,
    /// For scripts that people read.
    Yaml,
}

/// How far a long command got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// A bar on stderr, when that is a terminal.
    #[default]
    Auto,
    /// JSON lines on stderr.
    Json,
    /// Not shown.
    None,
}

/// Figures.
#[derive(Debug, Args)]
pub struct Stats {
    /// Look again after so many seconds, until stopped.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub watch: Option<std::time::Duration>,
    /// How to print them.
    #[command(flatten)]
    pub common: Common,
}

fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let rule = "must be a number of seconds between 0.1 and 86400";
    let seconds: f64 = text.parse().map_err(|_| rule.to_owned())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err(rule.to_owned());
    }
    Ok(std::time::Duration::from_secs_f64(seconds))
}

/// Which jobs to show.
#[derive(Debug, Args)]
pub struct Peek {
    /// A queue by its name (high, low, ...) or key, `delayed`, `completed` or `dead`; all queues when not given.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub queue: String,
    /// How many.
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub count: u64,
    /// How to print them.
    #[command(flatten)]
    pub common: Common,
}

/// Which job to find.
#[derive(Debug, Args)]
pub struct FindJob {
    /// The job's id (Sidekiq's: its jid).
    pub id: String,
    /// Look at no more than so many entries of each place.
    #[arg(long, value_name = "N", default_value_t = LOOK_AT, value_parser = clap::value_parser!(u64).range(1..))]
    pub look_at: u64,
    /// How to print what was found.
    #[command(flatten)]
    pub common: Common,
}

/// Jobs to enqueue.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["from", "file", "arg"]))]
pub struct Enqueue {
    /// A file with a JSON object, an array of them, or one after the other; `-` is stdin.
    #[arg(value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// The same, as a flag.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A field of one job; a value that is JSON is taken as such, everything else is text.
    #[arg(long, value_name = "KEY=VALUE")]
    pub arg: Vec<String>,
    /// The queue, by name or key; otherwise the job says which.
    #[arg(long)]
    pub queue: Option<String>,
    /// How long the input is: one that was cut off on its way is refused, because its end alone does not tell.
    #[arg(long, value_name = "N", hide = true)]
    pub bytes: Option<u64>,
    /// How to print the result.
    #[command(flatten)]
    pub common: Common,
}

/// What to do about dead letters.
#[derive(Debug, Subcommand)]
pub enum Dlq {
    /// List them, the newest first.
    List(DlqList),
    /// Show one as it stands in Redis.
    Show(DlqShow),
    /// Put them back into the queues they came from.
    Requeue(Requeue),
    /// Delete them; each is in the archive before.
    Purge(Purge),
}

/// Which dead letters are meant: those that meet all of it.
#[derive(Debug, Clone, Default, Args)]
pub struct Selectors {
    /// Only this job; may be given several times.
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
    /// Only jobs that died for this reason (handler, no-verdict, timeout, panic, malformed, oversize, no-data, poison, oom, killed; with
    /// protocol sidekiq also a class of exception).
    #[arg(long, value_name = "REASON")]
    pub reason: Option<String>,
    /// Only jobs that died longer ago than this, such as 90m or 24h.
    #[arg(long, value_name = "DURATION")]
    pub older_than: Option<Duration>,
    /// Only letters that contain this text, or match it when it has a `*` or a `?`.
    #[arg(long, value_name = "TEXT")]
    pub r#match: Option<String>,
    /// No more than so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

/// Which dead letters to list.
#[derive(Debug, Args)]
pub struct DlqList {
    /// Which.
    #[command(flatten)]
    pub selectors: Selectors,
    /// With the letters themselves.
    #[arg(long)]
    pub full: bool,
    /// Look at no more than so many.
    #[arg(long, value_name = "N", default_value_t = LOOK_AT, value_parser = clap::value_parser!(u64).range(1..))]
    pub look_at: u64,
    /// How to print them.
    #[command(flatten)]
    pub common: Common,
}

/// Which dead letter to show.
#[derive(Debug, Args)]
pub struct DlqShow {
    /// The job's id (Sidekiq's: its jid).
    pub id: String,
    /// Look at no more than so many.
    #[arg(long, value_name = "N", default_value_t = LOOK_AT, value_parser = clap::value_parser!(u64).range(1..))]
    pub look_at: u64,
    /// How to print it.
    #[command(flatten)]
    pub common: Common,
}

/// Which dead letters to requeue, and how fast.
#[derive(Debug, Args)]
pub struct Requeue {
    /// Which.
    #[command(flatten)]
    pub selectors: Selectors,
    /// At most this many a second.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Not needed: a requeue loses nothing.
    #[arg(long, hide = true)]
    pub yes: bool,
    /// How to show how far it got.
    #[arg(long, value_enum, default_value_t)]
    pub progress: Progress,
    /// How to print the result.
    #[command(flatten)]
    pub common: Common,
}

/// Which dead letters to delete, and where they are kept.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Purge {
    /// Which.
    #[command(flatten)]
    pub selectors: Selectors,
    /// Yes, delete them: without an archive this cannot be undone.
    #[arg(long)]
    pub yes: bool,
    /// Write them here first, one a line; `-` is stdout.
    #[arg(long, value_name = "FILE", conflicts_with = "no_archive")]
    pub archive: Option<PathBuf>,
    /// Keep no archive.
    #[arg(long)]
    pub no_archive: bool,
    /// Delete only what the reader of stdout has acknowledged on stdin: how many lines it has stored so far.
    #[arg(long, conflicts_with = "no_archive")]
    pub acknowledged: bool,
    /// At most this many a second.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// How to show how far it got.
    #[arg(long, value_enum, default_value_t)]
    pub progress: Progress,
    /// How to print the result.
    #[command(flatten)]
    pub common: Common,
}

/// How thoroughly to look.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Scan no more than so many keys.
    #[arg(long, value_name = "KEYS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub look_at: u64,
    /// How to print the findings.
    #[command(flatten)]
    pub common: Common,
}

/// Whom to wait for.
#[derive(Debug, Args)]
pub struct Drain {
    /// The process: the uid of its pod, or host-pid where there is none.
    pub process: String,
    /// How long to wait; then it takes jobs again. Not given: as long as its jobs take.
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Duration>,
    /// How far it got.
    #[arg(long, value_enum, default_value_t)]
    pub progress: Progress,
    /// How to print the result.
    #[command(flatten)]
    pub common: Common,
}
