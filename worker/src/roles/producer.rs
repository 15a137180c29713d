//! `--role=producer`: scan a directory, enqueue its files.
use std::sync::Arc;

use jobqueue::config::Config;

use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::traces::Tracer;

/// Runs until shutdown, or once.
pub async fn run(
    _config: &Config,
    _metrics: Arc<Metrics>,
    _tracer: Tracer,
    mut stop: Shutdown,
) -> anyhow::Result<()> {
    stop.requested().await;
    Ok(())
}
