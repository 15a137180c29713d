//! What one process does, by `--role`.
use jobqueue::engine::Engine;
use jobqueue::layout::{self, LayoutError};
use jobqueue::store::StoreError;

use crate::shutdown::Shutdown;

pub mod admin;
pub mod api;
pub mod producer;
pub mod worker;

/// A configuration that can never work is said at once; a Redis that is away is waited for.
async fn check_redis(engine: &Engine) -> anyhow::Result<()> {
    for keys in &engine.shards {
        match engine.session(keys).connect().await {
            Err(StoreError::Connect(error)) if error.is_permanent() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Writes the layout of shards down, which has to be known before the first push; false when it was stopped.
async fn write_layout(
    watch: &mut layout::Watch,
    engine: &Engine,
    shutdown: &Shutdown,
) -> Result<bool, LayoutError> {
    loop {
        match watch.write_down().await {
            Ok(()) => return Ok(true),
            Err(error) => {
                if is_stopped(error, engine, shutdown).await? {
                    return Ok(false);
                }
            }
        }
    }
}

/// Waits after what was said of the layout and not heard; whether the process was stopped meanwhile.
async fn is_stopped(error: LayoutError, engine: &Engine, shutdown: &Shutdown) -> Result<bool, LayoutError> {
    match error {
        LayoutError::Store(error) if error.is_transient() => {
            tracing::warn!(error = %error, "Could not reach Redis, trying again");
            Ok(shutdown.within(engine.longest_backoff()).await)
        }
        error => Err(error),
    }
}
