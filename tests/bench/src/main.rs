//! Acknowledged jobs a second, pickup latency, round trips a job, memory: ours and the peers' in one run.
//!
//! Machines differ and shared ones vary by the minute, so no figure means much alone: everything that is compared
//! runs in turn on the same machine, several rounds of it, and the last lines are ratios. What is measured, and
//! how, is told in docs/benchmarks.md.
mod contest;
mod jobs;
mod memory;
mod ours;
mod peers;
mod pickup;
mod report;
mod yardstick;

use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::report::Report;

/// Measure jobqueue, and its peers beside it.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    /// A run of a minute, to see that everything works: its figures are too short to be quoted.
    #[arg(long)]
    quick: bool,

    /// How to print the result.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,

    /// Which other systems to measure: those need go, npm or Debian's ruby-sidekiq.
    #[arg(long, value_enum, default_value_t = Peers::Asynq)]
    peers: Peers,

    /// How often every contestant has its turn; the median is reported.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=20))]
    rounds: Option<u8>,

    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For scripts.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peers {
    /// None.
    None,
    /// asynq, by the Go toolchain.
    Asynq,
    /// `BullMQ` (npm) and Sidekiq (Debian's package) too.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Acknowledged jobs a second.
    Throughput,
    /// From the push to the start of the handler.
    Pickup,
    /// Resident memory.
    Memory,
}

/// How long things are looked at.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// The window in which acknowledgements are counted.
    window: Duration,
    /// How long jobs are pushed at an idle system.
    pickup: Duration,
    /// How often every contestant has its turn.
    rounds: u8,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let (window, pickup, rounds) = if cli.quick { (1, 2, 1) } else { (4, 10, 3) };
    let effort = Effort {
        window: Duration::from_secs(window),
        pickup: Duration::from_secs(pickup),
        rounds: cli.rounds.unwrap_or(rounds),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(run(&cli, effort))?;
    match cli.output {
        Format::Table => print!("{}", report.table()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(())
}

async fn run(cli: &Cli, effort: Effort) -> anyhow::Result<Report> {
    let wants = |part: Part| cli.only.is_empty() || cli.only.contains(&part);
    let mut report = Report::new(cli.quick, effort)?;
    let (peers, unavailable) = peers::prepare(cli.peers);
    report.unavailable = unavailable;
    if wants(Part::Throughput) {
        report.yardstick = yardstick::measure(cli.quick).await?;
        report.throughput = contest::run(&peers, effort).await?;
    }
    if wants(Part::Pickup) {
        report.pickup = pickup::measure(&peers, effort.pickup).await?;
    }
    if wants(Part::Memory) {
        report.memory = memory::measure().await?;
    }
    Ok(report.with_ratios())
}

/// Says on standard error what goes on: a run takes minutes.
fn progress(what: &str) {
    eprintln!("bench: {what}");
}
