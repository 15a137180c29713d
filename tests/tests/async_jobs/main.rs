//! Protocol `async` on real parts: its scripts on a Redis, its cancels against everything, the worker's binary.
mod lost_replies;
mod race;
mod running;
mod scripts;
mod stage;
