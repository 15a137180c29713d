//! `--role=admin`: look at queues and repair them.
use std::process::ExitCode;

use jobqueue::config::Config;

use crate::cli::Command;

/// Runs one command.
pub async fn run(_config: &Config, _command: Command) -> anyhow::Result<ExitCode> {
    anyhow::bail!("being written")
}
