//! The worker: what runs jobs, with or without Kubernetes.
pub mod cli;
pub mod coroner;
pub mod failpoint;
pub mod handler;
pub mod health;
pub mod heartbeat;
pub mod lane;
pub mod logs;
pub mod metrics;
pub mod presence;
pub mod roles;
pub mod scan;
pub mod server;
pub mod shared;
pub mod shutdown;
pub mod slots;
pub mod traces;
