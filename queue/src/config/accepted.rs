//! Keys of older configuration files: each is read as one of ours, or accepted without effect.
use super::keys::{Key, Kind, get, set, take};
use super::problem::Note;
use serde_json::Value;
use std::sync::LazyLock;

/// The sections that hold nothing but accepted keys.
pub(super) const SECTIONS: [&str; 2] = ["sidecar", "retry"];

/// What becomes of an accepted key.
pub(super) enum Fate {
    /// It is read as this key, unless that one is set too.
    ReadAs(&'static str),
    /// It has no effect, for this reason.
    NoEffect(&'static str),
}

/// An accepted key.
pub(super) struct Accepted {
    pub(super) key: Key,
    pub(super) fate: Fate,
}

/// Every accepted key, in the order of the reference.
pub(super) fn all() -> &'static [Accepted] {
    static ALL: LazyLock<Vec<Accepted>> = LazyLock::new(|| {
        let accepted = |path: &str, kind: Kind, fate: Fate| Accepted {
            key: Key { path: path.to_owned(), kind, meaning: String::new() },
            fate,
        };
        let count = Kind::Integer(0, i128::from(u32::MAX));
        let one_connection =
            "each lane has one multiplexed connection, and parked fetches have their own; there is no pool";
        vec![
            accepted("sidecar.url", Kind::Url, Fate::ReadAs("worker.handler.http.url")),
            accepted("sidecar.timeout", Kind::Duration, Fate::ReadAs("worker.handler.http.timeout")),
            accepted("worker.concurrency", Kind::Integer(1, 100_000), Fate::ReadAs("worker.count")),
            accepted(
                "worker.poll_interval",
                Kind::Duration,
                Fate::NoEffect("nothing polls; an idle worker wakes with the next push"),
            ),
            accepted("retry.max_attempts", Kind::Integer(1, 1_000_000), Fate::ReadAs("worker.max_retries")),
            accepted("retry.base_delay", Kind::Duration, Fate::ReadAs("worker.backoff.base")),
            accepted("retry.max_delay", Kind::Duration, Fate::ReadAs("worker.backoff.max")),
            accepted("redis.pool_size_multiplier", count.clone(), Fate::NoEffect(one_connection)),
            accepted("redis.min_idle_conns", count, Fate::NoEffect(one_connection)),
        ]
    });
    &ALL
}

/// The accepted key of this path.
pub(super) fn key(path: &str) -> Option<&'static Key> {
    all().iter().map(|accepted| &accepted.key).find(|key| key.path == path)
}

/// Replaces the accepted keys of a checked tree by ours, and says so. Returns which of ours was set by which.
pub(super) fn apply(tree: &mut Value, notes: &mut Vec<Note>) -> Vec<(String, String)> {
    let mut set_by = Vec::new();
    let mut retry = false;
    for Accepted { key, fate } in all() {
        let Some(value) = take(tree, &key.path) else { continue };
        match fate {
            Fate::NoEffect(why) => notes.push(Note::new(&key.path, format!("has no effect: {why}"))),
            Fate::ReadAs(ours) if get(tree, ours).is_some() => {
                notes.push(Note::new(&key.path, format!("is ignored: {ours} is set")));
            }
            Fate::ReadAs(ours) => {
                retry |= key.path.starts_with("retry.");
                // The first run is an attempt too, but not a retry.
                let value = match (key.path.as_str(), value.as_u64()) {
                    ("retry.max_attempts", Some(attempts)) => attempts.saturating_sub(1).into(),
                    _ => value,
                };
                set(tree, ours, value);
                set_by.push(((*ours).to_owned(), key.path.clone()));
                notes.push(Note::new(&key.path, format!("is read as {ours}")));
            }
        }
    }
    for section in SECTIONS {
        if let Some(root) = tree.as_object_mut() {
            root.shift_remove(section);
        }
    }
    // Who sets delays wants the formula that has them.
    if retry && get(tree, "sidekiq.retry").is_none() {
        set(tree, "sidekiq.retry", "exponential".into());
    }
    set_by
}
