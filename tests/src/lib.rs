//! Support for tests on real parts: redis-server in every shape the project promises to work with, the
//! worker binary under signals, a proxy that loses replies, a handler that remembers every run.
//!
//! Everything here panics when it cannot do what was asked: in a test the panic is the report, and a
//! test that reads as a sentence is worth more than a `?` on every line. Nothing sleeps for a fixed time:
//! [`wait::eventually`] is the only way to wait.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "support for tests: a panic is the report")]

pub mod audit;
pub mod certificates;
pub mod child;
pub mod cluster;
pub mod engine;
pub mod http;
pub mod kubernetes;
pub mod ledger;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod redis_server;
pub mod resp;
pub mod sentinel;
pub mod wait;

pub use cluster::Cluster;
pub use ledger::Ledger;
pub use process::{Worker, WorkerOptions};
pub use proxy::{Fault, Proxy};
pub use recorder::{Behaviour, Recorder};
pub use redis_server::{AppendOnly, Options, RedisServer, Tls};
pub use sentinel::Sentinel;
pub use wait::eventually;
