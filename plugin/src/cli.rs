//! The command line: kubectl's flags, and a verb for each thing that people do with a queue.
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use jobqueue::outcome::Reason;

/// Look at the queues of a Kubernetes cluster, and repair them.
///
/// Flags are kubectl's. What a command may do is ruled by Kubernetes: `stats`, `list` and `explain` need to get
/// jobqueues; what reads or changes jobs runs inside of a pod of the queue and needs the right to exec there.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-jobqueue",
    bin_name = "kubectl jobqueue",
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = EXIT_CODES
)]
pub struct Cli {
    /// Print the versions of this program, the operator and the workers
    #[arg(long)]
    pub version: bool,
    /// Where and how to ask.
    #[command(flatten, next_help_heading = "Flags of every command")]
    pub target: Target,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the exit codes mean, as `--help` and the reference say it.
pub const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 failed, or something was found wrong; 2 the call is wrong; 3 no such queue, pod or job; \
4 not permitted; 5 the cluster or the pod cannot be reached; 130 interrupted.";

const ENQUEUE: &str = "\
Examples:
  kubectl jobqueue enqueue hello --arg filepath=/data/a.txt --arg filesize=12 --queue high
  kubectl jobqueue enqueue mails --arg class=WelcomeMail --arg 'args=[42]'    (protocol sidekiq)
  kubectl jobqueue enqueue hello --file jobs.ndjson";
const SCALE: &str = "\
Examples:
  kubectl jobqueue scale hello 3
  kubectl jobqueue scale hello --min 1 --max 20";
const REQUEUE: &str = "\
Selectors are combined: all of them must hold. Without any, all dead letters are meant.

Examples:
  kubectl jobqueue dlq requeue hello --reason timeout --dry-run
  kubectl jobqueue dlq requeue hello --match '*.pdf*' --rate 100";
const PURGE: &str = "\
Selectors are combined: all of them must hold. Without any, all dead letters are meant.

Examples:
  kubectl jobqueue dlq purge hello --older-than 720h
  kubectl jobqueue dlq purge hello --id 0190f2c4 --no-archive --yes";

/// Where and how to ask: kubectl's own flags.
#[derive(Debug, Clone, Default, Args)]
pub struct Target {
    /// The namespace; not given: that of the context
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The context of the kubeconfig file
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig file; not given: $KUBECONFIG, or ~/.kube/config
    #[arg(long, global = true, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// How long one request may take (30s, 1m); 0 is for ever
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub request_timeout: Duration,
    /// Ask as somebody else
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Ask as a member of this group; may be given several times, with --as
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub groups: Vec<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what waits, runs, is delayed and dead, and how many workers there are
    Stats(Stats),
    /// List the queues
    #[command(visible_alias = "ls")]
    List(List),
    /// Show a page about a queue: what it is, what it waits for, what happened last
    Describe(Name),
    /// Say why a queue has as many workers as it has
    Explain(Explain),
    /// Show the next jobs of a queue
    Peek(Peek),
    /// Show where a job is, and what happened to it
    Job(Job),
    /// Enqueue jobs, from a file or from single fields
    #[command(after_help = ENQUEUE)]
    Enqueue(Enqueue),
    /// Look at dead letters, bring them back, or delete them
    #[command(subcommand)]
    Dlq(Dlq),
    /// Let no worker take another job; those that run finish
    Pause(Names),
    /// Let workers take jobs again
    Resume(Names),
    /// Set how many workers there are (scaling.mode: Manual), or between what they may be (Auto)
    #[command(after_help = SCALE)]
    Scale(Scale),
    /// Let a worker finish its jobs, then delete its pod
    Drain(Drain),
    /// Print the logs of all workers, each line with the name of its pod
    Logs(Logs),
    /// Watch queues, workers and scaling live
    Top(Top),
    /// Look for what is wrong, and say how to put it right
    Doctor(Doctor),
    /// Write a support bundle: objects, events, logs and figures, with secrets masked
    Report(Report),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// What `kubectl_complete-jobqueue` asks: the words that may come next
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words so far, the last of them unfinished
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// The reference of this command line as Markdown
    #[command(name = "__reference", hide = true)]
    Reference,
}

/// A shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// For ~/.bashrc
    Bash,
    /// For ~/.zshrc
    Zsh,
    /// For ~/.config/fish/config.fish
    Fish,
}

/// One queue.
#[derive(Debug, Clone, Args)]
pub struct Name {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
}

/// Queues, each by its name or all with the same labels.
#[derive(Debug, Clone, Default, Args)]
pub struct Names {
    /// The `JobQueue`s
    #[arg(value_name = "NAME", value_parser = queue_name, required_unless_present = "selector")]
    pub names: Vec<String>,
    /// All queues with these labels (team=shop)
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    pub selector: Option<String>,
}

/// Which queues.
#[derive(Debug, Clone, Default, Args)]
pub struct Which {
    /// The `JobQueue`; not given: all of the namespace
    #[arg(value_parser = queue_name)]
    pub name: Option<String>,
    /// The queues of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only queues with these labels (team=shop)
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "name")]
    pub selector: Option<String>,
}

/// How objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table with more columns
    Wide,
    /// For scripts
    Json,
    /// For scripts and people
    Yaml,
    /// Only the names
    Name,
}

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataFormat {
    /// For scripts
    Json,
    /// For scripts and people
    Yaml,
}

/// `stats`.
#[derive(Debug, Clone, Args)]
pub struct Stats {
    /// Which queues.
    #[command(flatten)]
    pub which: Which,
    /// How to print them
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Ask Redis, through a pod of the queue, instead of reading the status
    #[arg(long)]
    pub live: bool,
    /// Look again every two seconds, in Redis, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
}

/// `list`.
#[derive(Debug, Clone, Args)]
pub struct List {
    /// The queues of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only queues with these labels (team=shop)
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// How to print them
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// `explain`.
#[derive(Debug, Clone, Args)]
pub struct Explain {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// How to print it
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `peek`.
#[derive(Debug, Clone, Args)]
pub struct Peek {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// One of its queues (high, low, ...), `delayed`, `completed` or `dead`; not given: all queues
    #[arg(long, value_name = "QUEUE")]
    pub queue: Option<String>,
    /// How many
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub count: u64,
    /// How to print them
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `job`.
#[derive(Debug, Clone, Args)]
pub struct Job {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// The id of the job; behind a `--` if it begins with a `-`
    pub id: String,
    /// Look at no more than this many entries of each list
    #[arg(long, value_name = "N", default_value_t = LOOK_AT, value_parser = clap::value_parser!(u64).range(1..))]
    pub look_at: u64,
    /// How to print it
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `enqueue`.
#[derive(Debug, Clone, Args)]
pub struct Enqueue {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// A file with a job, or with one a line; `-` is the standard input
    #[arg(short, long, value_name = "PATH", required_unless_present = "arg")]
    pub file: Option<PathBuf>,
    /// A field of the job, such as `filepath=/data/a.txt`; may be given several times
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "file")]
    pub arg: Vec<String>,
    /// One of its queues; not given: the one that the job names, or the last
    #[arg(long, value_name = "QUEUE")]
    pub queue: Option<String>,
    /// How to print the result
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// About dead letters.
#[derive(Debug, Clone, Subcommand)]
pub enum Dlq {
    /// List dead letters, the newest first
    List(DlqList),
    /// Show one dead letter whole
    Show(Job),
    /// Put dead letters back into the queues they came from
    #[command(after_help = REQUEUE)]
    Requeue(Requeue),
    /// Delete dead letters, after an archive of them was written
    #[command(after_help = PURGE)]
    Purge(Purge),
}

/// Which dead letters.
#[derive(Debug, Clone, Default, Args)]
pub struct Selector {
    /// Only this job; may be given several times
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
    /// Only jobs that died for this reason (with Sidekiq also a class of exception)
    #[arg(long, value_name = "REASON", value_parser = Reasons)]
    pub reason: Option<String>,
    /// Only jobs that died longer ago than this (30m, 24h)
    #[arg(long, value_name = "DURATION")]
    pub older_than: Option<String>,
    /// Only jobs whose JSON contains this text; with `*` or `?` in it, a pattern for all of it ('*.pdf*')
    #[arg(long = "match", value_name = "TEXT")]
    pub contains: Option<String>,
}

/// `dlq list`.
#[derive(Debug, Clone, Args)]
pub struct DlqList {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// Which of its dead letters.
    #[command(flatten)]
    pub selector: Selector,
    /// How many
    #[arg(short, long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub count: u64,
    /// Look at no more than this many dead letters
    #[arg(long, value_name = "N", default_value_t = LOOK_AT, value_parser = clap::value_parser!(u64).range(1..))]
    pub look_at: u64,
    /// How to print them
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `dlq requeue`.
#[derive(Debug, Clone, Args)]
pub struct Requeue {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// Which of its dead letters.
    #[command(flatten)]
    pub selector: Selector,
    /// At most this many a second
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// How to print the result
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `dlq purge`.
#[derive(Debug, Clone, Args)]
pub struct Purge {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// Which of its dead letters.
    #[command(flatten)]
    pub selector: Selector,
    /// Where to write them before they are deleted, one a line; not given: NAME-dead-letters-TIME.ndjson
    #[arg(long, value_name = "PATH", conflicts_with = "no_archive")]
    pub archive: Option<PathBuf>,
    /// Write no archive: what is deleted is gone
    #[arg(long)]
    pub no_archive: bool,
    /// At most this many a second
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// How to print the result
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `scale`.
#[derive(Debug, Clone, Args)]
pub struct Scale {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// How many workers (scaling.mode: Manual)
    #[arg(value_name = "N", value_parser = clap::value_parser!(i32).range(0..=10_000))]
    pub replicas: Option<i32>,
    /// The fewest workers (scaling.mode: Auto)
    #[arg(long, value_name = "N", conflicts_with = "replicas", value_parser = clap::value_parser!(i32).range(0..=10_000))]
    pub min: Option<i32>,
    /// The most workers (scaling.mode: Auto)
    #[arg(long, value_name = "N", conflicts_with = "replicas", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub max: Option<i32>,
}

/// `drain`.
#[derive(Debug, Clone, Args)]
pub struct Drain {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// The worker's pod (kubectl jobqueue top shows them)
    pub pod: String,
    /// How long to wait for its jobs, after that it takes jobs again; 0 is for ever
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
}

/// `logs`.
#[derive(Debug, Clone, Args)]
pub struct Logs {
    /// The `JobQueue`
    #[arg(value_parser = queue_name)]
    pub name: String,
    /// Go on as new lines come, also those of new workers
    #[arg(short, long)]
    pub follow: bool,
    /// How many lines of each worker; -1 is all of them
    #[arg(long, value_name = "LINES", default_value_t = 100, allow_negative_numbers = true)]
    pub tail: i64,
    /// Only lines younger than this (5m)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<Duration>,
    /// The container: `worker`, or your application's, such as `app`
    #[arg(short, long, value_name = "NAME", default_value = "worker")]
    pub container: String,
}

/// `top`.
#[derive(Debug, Clone, Args)]
pub struct Top {
    /// The `JobQueue` to begin with
    #[arg(value_parser = queue_name)]
    pub name: Option<String>,
    /// The queues of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only queues with these labels (team=shop)
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
}

/// `doctor`.
#[derive(Debug, Clone, Args)]
pub struct Doctor {
    /// Which queues.
    #[command(flatten)]
    pub which: Which,
    /// How to print what was found
    #[arg(short, long, value_enum)]
    pub output: Option<DataFormat>,
}

/// `report`.
#[derive(Debug, Clone, Args)]
pub struct Report {
    /// Which queues.
    #[command(flatten)]
    pub which: Which,
    /// The file to write; not given: jobqueue-report-TIME.tar.gz
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// How many lines of each log; -1 is all of them
    #[arg(long, value_name = "LINES", default_value_t = 2000, allow_negative_numbers = true)]
    pub tail: i64,
}

/// So many entries of one list are looked at, unless told otherwise: a second or two.
pub const LOOK_AT: u64 = 100_000;

/// A reason: ours are offered, and anything is taken, because Sidekiq's are classes that only its jobs know. A worker
/// that has none of that name says so.
#[derive(Debug, Clone, Copy)]
struct Reasons;

impl TypedValueParser for Reasons {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Reason::ALL.into_iter().map(|reason| PossibleValue::new(reason.as_str()))))
    }
}

/// The name of a queue, as kubectl takes and prints it: `hello`, `jobqueue/hello`, `jobqueue.jobqueue.dev/hello`.
fn queue_name(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once('/').unwrap_or(("jobqueue", text));
    let is_ours = matches!(kind.split_once('.'), None | Some((_, "jobqueue.dev" | "v1alpha1.jobqueue.dev")))
        && matches!(kind.split('.').next(), Some("jobqueue" | "jobqueues" | "jobq"));
    match (is_ours, name.is_empty()) {
        (true, false) => Ok(name.to_owned()),
        (true, true) => Err("the name of a JobQueue is missing".into()),
        (false, _) => Err(format!("{kind} is no JobQueue; say hello or jobqueue/hello")),
    }
}

/// A duration as everywhere here: `500ms`, `30s`, `1h30m`, `0`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jobqueue::config::Duration = text.parse().map_err(|error| format!("{error}"))?;
    Ok(parsed.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_kubectl_stand_before_or_behind_the_verb() {
        let before = Cli::parse_from(["kubectl-jobqueue", "-n", "a", "stats", "hello"]);
        let behind = Cli::parse_from(["kubectl-jobqueue", "stats", "hello", "-n", "a"]);
        assert_eq!(before.target.namespace, behind.target.namespace);
        assert_eq!(before.target.request_timeout, Duration::from_secs(30));
    }

    #[test]
    fn a_queue_is_called_as_kubectl_calls_it() {
        for text in [
            "hello",
            "jobqueue/hello",
            "jobqueues/hello",
            "jobq/hello",
            "jobqueue.jobqueue.dev/hello",
            "jobqueues.v1alpha1.jobqueue.dev/hello",
        ] {
            assert_eq!(queue_name(text).as_deref(), Ok("hello"), "{text}");
        }
        for text in ["pod/hello", "jobqueue/", "jobqueue.example.com/hello", ""] {
            assert!(queue_name(text).is_err(), "{text}");
        }
        for line in [&["describe", "jobq/a"][..], &["stats", "jobq/a"], &["dlq", "show", "jobq/a", "1"]] {
            let cli = Cli::try_parse_from([&["kubectl-jobqueue"], line].concat()).unwrap();
            assert!(format!("{cli:?}").contains("\"a\""), "{cli:?}");
        }
    }

    #[test]
    fn several_queues_are_paused_by_name_or_by_label() {
        let names = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["kubectl-jobqueue", "pause"], words].concat()).ok()?;
            let Some(Command::Pause(names)) = cli.command else { panic!("{cli:?}") };
            Some((names.names, names.selector))
        };
        assert_eq!(names(&["jobq/a", "b"]), Some((vec!["a".into(), "b".into()], None)));
        assert_eq!(names(&["-l", "team=shop"]), Some((vec![], Some("team=shop".into()))));
        assert_eq!((names(&[]), names(&["a", "-l", "team=shop"])), (None, None));
    }

    #[test]
    fn a_negative_number_of_lines_is_taken_with_and_without_a_sign_of_equality() {
        for line in
            [&["logs", "a", "--tail=-1"][..], &["logs", "a", "--tail", "-1"], &["report", "--tail", "-1"]]
        {
            assert!(Cli::try_parse_from([&["kubectl-jobqueue"], line].concat()).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn a_reason_may_be_a_class_of_exception() {
        let reason = |text: &str| {
            let cli =
                Cli::try_parse_from(["kubectl-jobqueue", "dlq", "list", "hello", "--reason", text]).unwrap();
            let Some(Command::Dlq(Dlq::List(list))) = cli.command else { panic!("{cli:?}") };
            list.selector.reason
        };
        assert_eq!(reason("Net::ReadTimeout").as_deref(), Some("Net::ReadTimeout"));
        assert_eq!(reason("timeout").as_deref(), Some("timeout"));
    }

    #[test]
    fn a_number_of_workers_and_bounds_for_it_exclude_each_other() {
        assert!(Cli::try_parse_from(["kubectl-jobqueue", "scale", "hello", "3", "--max", "4"]).is_err());
        assert!(Cli::try_parse_from(["kubectl-jobqueue", "scale", "hello", "--max", "4"]).is_ok());
    }
}
