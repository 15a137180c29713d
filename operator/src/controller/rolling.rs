//! How many queues are rolled to a new worker image at once. An upgrade of the operator concerns all of them: rolled
//! together they would start twice the cluster's workers, and a bad image would reach everybody before anybody knew.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How often a queue that waits for its turn asks for it.
pub const TURN: Duration = Duration::from_secs(5);
/// So many at once.
const MOST: usize = 5;
/// A queue that is not through by then (no room, quota) makes way for the next.
const PATIENCE: Duration = Duration::from_secs(300);

/// The queues that are being rolled, and since when.
#[derive(Default)]
pub struct Rolling(Mutex<HashMap<String, Instant>>);

impl Rolling {
    /// Whether this queue may begin, or has begun.
    pub fn may_begin(&self, queue: &str, now: Instant) -> bool {
        let mut rolling = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !rolling.contains_key(queue) {
            let busy = rolling.values().filter(|since| now.duration_since(**since) < PATIENCE).count();
            if busy >= MOST {
                return false;
            }
        }
        rolling.entry(queue.to_owned()).or_insert(now);
        true
    }

    /// This queue is through, or gone.
    pub fn end(&self, queue: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }
}

/// Whether the desired pods run an image of `worker` that the live ones do not, so that applying them is an upgrade.
pub fn is_upgrade(desired: &Value, live: &Value, worker: &str) -> bool {
    let runs = |deployment: &Value| {
        let pod = &deployment["spec"]["template"]["spec"];
        let containers = ["containers", "initContainers"].into_iter().filter_map(|list| pod[list].as_array());
        containers.flatten().any(|container| container["image"] == worker)
    };
    runs(desired) && !runs(live) && live["spec"]["replicas"].as_i64().unwrap_or(0) > 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn five_queues_roll_at_once_and_the_next_when_one_is_through() {
        let (rolling, now) = (Rolling::default(), Instant::now());
        for queue in ["a", "b", "c", "d", "e"] {
            assert!(rolling.may_begin(queue, now));
        }
        assert!(!rolling.may_begin("f", now));
        assert!(rolling.may_begin("a", now), "it has begun");
        rolling.end("a");
        assert!(rolling.may_begin("f", now));
    }

    #[test]
    fn queues_that_do_not_get_through_make_way() {
        let (rolling, now) = (Rolling::default(), Instant::now());
        for queue in ["a", "b", "c", "d", "e"] {
            assert!(rolling.may_begin(queue, now));
        }
        assert!(rolling.may_begin("f", now + PATIENCE));
    }

    #[test]
    fn only_a_new_image_of_running_workers_is_an_upgrade() {
        let with = |image: &str, replicas: i64| json!({ "spec": { "replicas": replicas, "template": { "spec": { "containers": [{ "image": image }] } } } });
        assert!(is_upgrade(&with("worker:2", 3), &with("worker:1", 3), "worker:2"));
        assert!(!is_upgrade(&with("worker:2", 3), &with("worker:1", 0), "worker:2"));
        assert!(!is_upgrade(&with("worker:2", 3), &with("worker:2", 3), "worker:2"));
        assert!(!is_upgrade(&with("pinned", 3), &with("worker:1", 3), "worker:2"));
    }
}
