//! `kubectl jobqueue`: looks at the queues of a cluster and repairs them.
//!
//! ```text
//!   verbs --> cluster: JobQueues, pods, events          (Kubernetes' API; `figures` is what the status says)
//!     |
//!     +-----> remote: `worker --role=admin` in a pod    (exec; `live` is what it answers, `guest` the pod if there is none)
//! ```
//!
//! It knows no Redis and no password: what reads or changes jobs runs inside of the cluster, and Kubernetes decides who may.
pub mod cli;
pub mod cluster;
pub mod completion;
pub mod error;
pub mod figures;
pub mod guest;
pub mod guests;
pub mod interrupt;
pub mod live;
pub mod mask;
pub mod print;
pub mod progress;
pub mod reference;
pub mod remote;
pub mod table;
pub mod top;
pub mod verbs;
pub mod version;
