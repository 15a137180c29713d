//! What a job is and every transition it can make.
pub mod breaker;
pub mod config;
pub mod connect;
pub mod effects;
pub mod engine;
pub mod job;
pub mod keys;
pub mod layout;
pub mod outcome;
pub mod promoter;
pub mod protocol;
pub mod reaper;
pub mod retry;
pub mod store;

/// The version of the crates, the worker and the operator: they are released together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
