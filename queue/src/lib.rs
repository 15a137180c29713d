//! What a job is and every transition it can make. Nothing else touches Redis or knows a key.
//!
//! ```text
//!             enqueue                 reserve                    settle: done
//!   (client) ---------> waiting --------------------> reserved -----------------> completed
//!                         ^  ^                         |  |  |
//!               promote   |  |   reap / release        |  |  +-- settle: dead --> dead letters
//!      delayed -----------+  +-------------------------+  |
//!         ^                                               |
//!         +------------- settle: retry (backoff) ---------+
//! ```
//!
//! A job is in exactly one place at every instant; every arrow is one atomic script or command. It is worse to lose
//! a job than to run it twice, and worse to run it twice than to run it late.
//!
//! | word | |
//! |---|---|
//! | *enqueue* | put a new job into its queue |
//! | *reserve* | a lane takes a job: it holds it until it settles or releases it, or is fenced |
//! | *lane* | what holds jobs: a record with the lease, a heartbeat, lists |
//! | *extend* | renew a lane's heartbeat |
//! | *settle* | done, retry or dead: what becomes of a job that ran |
//! | *release* | give a job back to the consuming end of its queue, uncounted |
//! | *promote* | bring a delayed job back when it is due |
//! | *fence* | take a lane's lease away: nothing it says is accepted any more |
//! | *reap* | give the jobs of a fenced lane back |
//! | *suspect* | a job whose process died while it held the job |
//! | *park* | wait in Redis for the next job of a queue, when there is none |
//! | *quiet* | a word to one process: take no more jobs, until it lapses |
//! | *claim* | the mark that a queue's keys belong to one `JobQueue` |
//! | *shard* | one of N complete sets of keys, each in one hash slot |
//! | *layout* | how many shards there are, written down for when their number changes |
//!
//! A [`protocol`] decides, purely; [`effects`] say what that does to Redis; the [`store`] carries it out:
//!
//! ```
//! use bytes::Bytes;
//! use jobqueue::{config::Config, effects::Verdict, engine::Engine, outcome::Outcome};
//!
//! let engine = Engine::new(&Config::default());
//! let raw = Bytes::from_static(br#"{"id":"1","filepath":"/data/a.txt"}"#);
//! let job = engine.protocol.decode(raw).map_err(|(_, why)| why)?;
//! assert_eq!(job.fields.id, "1");
//! let high = &engine.shards[0].queues[0];
//! let decision = engine.protocol.settle(&job, &Outcome::Done, high, 0, "lane-1");
//! assert_eq!(decision.verdict, Verdict::Done);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
pub mod breaker;
pub mod config;
pub mod connect;
pub mod effects;
pub mod engine;
pub mod fetch;
pub mod job;
pub mod keys;
pub mod layout;
pub mod outcome;
pub mod promoter;
pub mod protocol;
pub mod reaper;
pub mod retry;
pub mod store;
pub mod submission;
pub mod terminal;

/// The version of the crates, the worker and the operator: they are released together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
