//! The worker.
pub mod handler;
pub mod scan;
