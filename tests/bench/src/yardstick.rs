//! What this machine's Redis does with the plainest write there is: figures of other machines compare by the
//! ratio to this one.
use std::process::Command;

use anyhow::{Context, ensure};
use e2e::{Options, RedisServer};

use crate::contest::SIZE;
use crate::progress;
use crate::report::Yardstick;

/// `redis-benchmark -t lpush` with 50 clients, one command and 64 commands a round trip.
pub async fn measure(quick: bool) -> anyhow::Result<Vec<Yardstick>> {
    let (single, many) = if quick { (50_000, 500_000) } else { (200_000, 2_000_000) };
    let mut figures = Vec::new();
    for (pipeline, requests) in [(1, single), (64, many)] {
        let server = RedisServer::start(Options::default()).await;
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &server.port().to_string(), "-t", "lpush", "-c", "50", "--csv"]);
        command.args(["-d", &SIZE.to_string(), "-n", &requests.to_string(), "-P", &pipeline.to_string()]);
        let output = command.output().context("redis-benchmark (package redis-tools)")?;
        ensure!(output.status.success(), "redis-benchmark: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pushes_per_second = parse(&text).with_context(|| format!("redis-benchmark printed {text:?}"))?;
        progress(&format!("redis-benchmark LPUSH -P {pipeline}: {pushes_per_second:.0}/s"));
        figures.push(Yardstick { pipeline, pushes_per_second });
    }
    Ok(figures)
}

fn parse(csv: &str) -> Option<f64> {
    let line = csv.lines().find(|line| line.starts_with("\"LPUSH\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_read_from_the_csv() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"LPUSH\",\"53191.49\",\"0.5\"\n";
        assert_eq!(super::parse(csv), Some(53191.49));
        assert_eq!(super::parse("ERR"), None);
    }
}
