//! `kubectl jobqueue` on a real cluster, run as people run it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
mod control;
mod dead_letters;
mod looking;
mod refused;
mod screen;
mod support;
mod terminal;
