//! Real Sidekiq (Debian's 6.4, or that of `SIDEKIQ_RUBY`) on the other side: its client enqueues, its API looks, its
//! processes work beside ours.
mod failing;
mod mixed;
mod running;
mod scene;
mod seen;
