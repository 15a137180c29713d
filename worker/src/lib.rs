//! The worker.
pub mod logs;
pub mod metrics;
