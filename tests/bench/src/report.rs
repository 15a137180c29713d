//! The result of a run: figures, then ratios.
use std::fmt::Write as _;

use serde::Serialize;

use crate::Effort;
use crate::ours::SIDEKIQ;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version that was measured.
    pub version: &'static str,
    /// The machine and the Redis: what a figure depends on.
    pub machine: Machine,
    /// Too short to be quoted.
    pub quick: bool,
    /// How often every contestant had its turn.
    pub rounds: u8,
    /// What Redis alone does.
    pub yardstick: Vec<Yardstick>,
    /// Acknowledged jobs a second.
    pub throughput: Vec<Throughput>,
    /// From the push to the start of the handler.
    pub pickup: Vec<Pickup>,
    /// Resident memory of our worker.
    pub memory: Option<Memory>,
    /// Peers that could not be measured.
    pub unavailable: Vec<Unavailable>,
    /// Ours over each peer's best, and over the yardstick.
    pub ratios: Vec<Ratio>,
}

/// The machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processors this process may use.
    pub cpus: usize,
    /// The version of redis-server.
    pub redis: String,
    /// What the kernel calls itself.
    pub kernel: String,
}

/// `redis-benchmark -t lpush`.
#[derive(Debug, Serialize)]
pub struct Yardstick {
    /// Commands a round trip.
    pub pipeline: u32,
    /// Pushes a second.
    pub pushes_per_second: f64,
}

/// One contestant.
#[derive(Debug, Serialize)]
pub struct Throughput {
    /// Whose.
    pub system: String,
    /// With what settings.
    pub setting: String,
    /// The median of the rounds.
    pub jobs_per_second: f64,
    /// The slowest round.
    pub slowest: f64,
    /// The fastest round.
    pub fastest: f64,
    /// Jobs counted in the round of the median.
    pub jobs: u64,
    /// The length of its window.
    pub seconds: f64,
    /// What a job costs Redis.
    pub busy: Option<Busy>,
}

/// What a job costs Redis when there is much to do.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit is part of each name in the JSON")]
pub struct Busy {
    /// Scripts called, by `INFO commandstats`.
    pub script_calls_per_job: f64,
    /// Round trips, as the worker counts them.
    pub round_trips_per_job: f64,
    /// Commands run by Redis, those inside scripts too.
    pub commands_per_job: f64,
}

/// Waits on an idle system.
#[derive(Debug, Serialize)]
pub struct Pickup {
    /// Whose.
    pub system: String,
    /// With what settings.
    pub setting: String,
    /// Jobs counted.
    pub jobs: u64,
    /// Half wait less.
    pub p50_ms: f64,
    /// Nine in ten wait less.
    pub p90_ms: f64,
    /// 99 in 100 wait less.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// Resident memory of our worker.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// With the default configuration and nothing to do.
    pub idle_mib: f64,
    /// With jobs in flight.
    pub loaded_mib: f64,
    /// The same, each posted over a connection of its own.
    pub posted_mib: f64,
    /// How many.
    pub loaded_jobs: u64,
    /// How large each.
    pub loaded_job_bytes: usize,
}

/// A peer that could not be measured.
#[derive(Debug, Serialize)]
pub struct Unavailable {
    /// Which.
    pub system: String,
    /// Why.
    pub reason: String,
}

/// Ours over another's.
#[derive(Debug, Serialize)]
pub struct Ratio {
    /// Of what.
    pub of: String,
    /// Over what.
    pub to: String,
    /// How many times.
    pub times: f64,
}

impl Report {
    /// A report on this machine, with nothing measured yet.
    pub fn new(quick: bool, effort: Effort) -> anyhow::Result<Self> {
        let redis = std::process::Command::new("redis-server").arg("--version").output()?;
        let words = String::from_utf8_lossy(&redis.stdout).into_owned();
        let version = words.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let redis = version.unwrap_or("?").to_owned();
        let kernel =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        Ok(Self {
            version: jobqueue::VERSION,
            machine: Machine { cpus: std::thread::available_parallelism()?.get(), redis, kernel },
            quick,
            rounds: effort.rounds,
            yardstick: Vec::new(),
            throughput: Vec::new(),
            pickup: Vec::new(),
            memory: None,
            unavailable: Vec::new(),
            ratios: Vec::new(),
        })
    }

    /// Computes the ratios: once everything is measured.
    #[must_use]
    pub fn with_ratios(mut self) -> Self {
        let mut ratios = Vec::new();
        if let Some(ours) = self.throughput.iter().find(|row| row.system == "jobqueue") {
            if let Some(row) = self.throughput.iter().find(|row| row.setting == SIDEKIQ) {
                ratios.push(Ratio {
                    of: "protocol sidekiq".to_owned(),
                    to: "protocol files".to_owned(),
                    times: row.jobs_per_second / ours.jobs_per_second,
                });
            }
            let mut to = |to: String, other: f64| {
                ratios.push(Ratio { of: "jobqueue".to_owned(), to, times: ours.jobs_per_second / other });
            };
            for (system, best) in best_of_peers(&self.throughput) {
                to(system, best);
            }
            for yardstick in &self.yardstick {
                to(format!("redis-benchmark LPUSH -P {}", yardstick.pipeline), yardstick.pushes_per_second);
            }
        }
        self.ratios = ratios;
        self
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "jobqueue {}, {} cores, Redis {}, Linux {}, loopback, 200-byte jobs, no-op handlers, median of {} round(s)\n",
            self.version, self.machine.cpus, self.machine.redis, self.machine.kernel, self.rounds
        );
        if self.quick {
            text.push_str("A quick run: its windows are too short for its figures to be quoted.\n");
        }
        self.print_throughput(&mut text);
        self.print_pickup(&mut text);
        if let Some(memory) = &self.memory {
            let _ = writeln!(
                text,
                "\nResident memory of the worker: {:.1} MiB idle; with {} jobs of {} bytes in flight {:.1} MiB, posted \
                 over HTTP {:.1} MiB",
                memory.idle_mib,
                memory.loaded_jobs,
                memory.loaded_job_bytes,
                memory.loaded_mib,
                memory.posted_mib
            );
        }
        for peer in &self.unavailable {
            let _ = writeln!(text, "\nNot measured: {}: {}", peer.system, peer.reason);
        }
        if !self.ratios.is_empty() {
            text.push('\n');
        }
        for ratio in &self.ratios {
            let _ = writeln!(text, "{} / {} = {:.2}x", ratio.of, ratio.to, ratio.times);
        }
        text
    }

    fn print_throughput(&self, text: &mut String) {
        if self.throughput.is_empty() {
            return;
        }
        let mut rows = vec![
            ["acknowledged", "jobs/s", "slowest", "fastest", "window", "trips/job", "commands/job"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for row in &self.throughput {
            let trips = row.busy.as_ref().map(|busy| format!("{:.4}", busy.round_trips_per_job));
            let commands = row.busy.as_ref().map(|busy| format!("{:.2}", busy.commands_per_job));
            rows.push(vec![
                format!("{}: {}", row.system, row.setting),
                thousands(row.jobs_per_second),
                thousands(row.slowest),
                thousands(row.fastest),
                format!("{:.1} s", row.seconds),
                trips.unwrap_or_default(),
                commands.unwrap_or_default(),
            ]);
        }
        for row in &self.yardstick {
            let name = format!("redis-benchmark LPUSH -P {}, 50 clients", row.pipeline);
            rows.push(vec![name, thousands(row.pushes_per_second)]);
        }
        grid(text, &rows);
    }

    fn print_pickup(&self, text: &mut String) {
        if self.pickup.is_empty() {
            return;
        }
        let head = ["push to handler start, idle, 200/s", "p50", "p90", "p99", "max"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.pickup {
            let ms = |value: f64| format!("{value:.2} ms");
            let name = format!("{}: {}", row.system, row.setting);
            rows.push(vec![name, ms(row.p50_ms), ms(row.p90_ms), ms(row.p99_ms), ms(row.max_ms)]);
        }
        grid(text, &rows);
    }
}

fn best_of_peers(rows: &[Throughput]) -> Vec<(String, f64)> {
    let mut best: Vec<(String, f64)> = Vec::new();
    for row in rows.iter().filter(|row| row.system != "jobqueue") {
        match best.iter_mut().find(|(system, _)| *system == row.system) {
            Some((_, rate)) => *rate = rate.max(row.jobs_per_second),
            None => best.push((row.system.clone(), row.jobs_per_second)),
        }
    }
    best
}

fn grid(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    text.push('\n');
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ =
                if column == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The middle of sorted values.
pub fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert!((median(&[1.0, 5.0, 9.0]) - 5.0).abs() < f64::EPSILON);
        assert!((median(&[1.0, 5.0]) - 3.0).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
    }

    #[test]
    fn large_figures_are_grouped() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(123.0), "123");
    }
}
