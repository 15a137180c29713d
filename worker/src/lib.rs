//! The worker.
pub mod health;
pub mod logs;
pub mod metrics;
pub mod server;
pub mod traces;
