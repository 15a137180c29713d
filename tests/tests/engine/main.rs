//! The engine on real Redis servers: every transition, every fault. One binary, because linking costs more than running.
mod connect;
mod control;
mod cycle;
mod faults;
mod jobs;
mod model;
mod ownership;
mod reach;
mod reap;
mod shards;
mod sidekiq;
