//! The Kubernetes operator: makes what a [`JobQueue`](api::v1alpha1::JobQueue) asks for.
//!
//! ```text
//!   JobQueue --> controller: resolve -> build (pure) -> apply -> status
//!                   |
//!                   v targets                      observations
//!                observer: one task a Redis --------------------> controller, autoscaler (pure decide)
//! ```
//!
//! The controller owns the Kubernetes objects; the observer is the only part that talks to Redis; the scaler alone
//! writes the number of workers. Workers need none of them to go on working.
pub mod api;
pub mod autoscaler;
pub mod controller;
pub mod crd;
pub mod drain;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod nodes;
pub mod observer;
pub mod pods;
pub mod refusals;
pub mod rescue;
pub mod server;
pub mod telemetry;
pub mod uninstall;
