//! `dlq`: the dead letters, a list of ours or Sidekiq's sorted set. Looked at from the newest; swept from the oldest, once,
//! a page a step. Every step is one script that moves a letter only if it is still the one that was read: a lost reply,
//! Ctrl-C or a second sweep loses and doubles nothing.
mod archive;
mod letter;
pub mod list;
mod pile;
pub mod purge;
pub mod requeue;
mod selection;
mod sweep;

pub use letter::{Letter, Summary, own_json};
pub use list::letters_table;
