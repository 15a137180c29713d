//! The real `worker` binary: crashes, outages, bad input, what it shows. One binary, because linking costs more than running.
mod cli;
mod control;
mod crash;
mod deployments;
mod input;
mod memory;
mod observed;
mod outage;
mod poison;
mod retry;
mod scene;
mod shutdown;
mod standalone;
