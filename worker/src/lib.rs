//! The worker.
pub mod logs;
