//! What a job is and every transition it can make.
pub mod config;
pub mod job;
pub mod outcome;

/// The version of the crates, the worker and the operator: they are released together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
