//! What one process does, by `--role`.
pub mod admin;
pub mod producer;
pub mod worker;
