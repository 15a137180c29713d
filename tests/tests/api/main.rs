//! `worker --role=api`: the real binary on a real Redis. One binary, because linking costs more than running.
mod bodies;
mod cancelling;
mod clients;
mod idempotency;
mod jobs;
mod layouts;
mod listing;
mod load;
mod outage;
mod racing;
mod scene;
mod schema;
mod sockets;
mod tokens;
mod waiting;
mod walk;
mod workers;
