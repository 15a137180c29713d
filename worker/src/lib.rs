//! The worker.
pub mod handler;
