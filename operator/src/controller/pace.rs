//! How fast the cluster is changed: however many queues want something at once, the Kubernetes API has others to serve.
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Writes a second, on average.
const RATE: u32 = 50;
/// Writes at once after a rest.
const BURST: u32 = 50;
/// Looks at queues that go on at the same time, in all namespaces together.
pub const AT_ONCE: u16 = 8;
/// Of those, which may be waiting for a Redis that does not answer: the others have nothing to do with it.
const ASKING: usize = 2;

/// The pace of all changes.
pub struct Pace {
    slots: Semaphore,
    asking: Semaphore,
    bucket: Mutex<Bucket>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(usize::from(AT_ONCE)),
            asking: Semaphore::new(ASKING),
            bucket: Mutex::new(Bucket { full_at: Instant::now() }),
        }
    }
}

impl Pace {
    /// Waits for a place among the looks that go on.
    pub async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.slots.acquire().await.ok()
    }

    /// A place among those that ask a Redis; nothing while there is none: whoever waited would keep a slot from the others.
    pub fn ask(&self) -> Option<SemaphorePermit<'_>> {
        self.asking.try_acquire().ok()
    }

    /// Waits until a write is in order.
    pub async fn write(&self) {
        let wait = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        tokio::time::sleep(wait).await;
    }
}

/// Tokens that come back with time: full with [`BURST`] of them.
struct Bucket {
    /// When it will be full again.
    full_at: Instant,
}

impl Bucket {
    /// Takes a token; how long to wait before it is used.
    fn take(&mut self, now: Instant) -> Duration {
        let each = Duration::from_secs(1) / RATE;
        self.full_at = self.full_at.max(now) + each;
        self.full_at.duration_since(now).saturating_sub(each * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_that_ask_a_redis_leave_slots_for_the_others() {
        let pace = Pace::default();
        let asking: Vec<_> = std::iter::from_fn(|| pace.ask()).collect();
        assert!(asking.len() < usize::from(AT_ONCE));
        let _slots: Vec<_> = futures::future::join_all(asking.iter().map(|_| pace.slot())).await;
        assert!(pace.slots.available_permits() > 0);
        drop(asking);
        assert!(pace.ask().is_some());
    }

    #[test]
    fn a_burst_is_let_through_and_then_one_write_after_the_other() {
        let now = Instant::now();
        let mut bucket = Bucket { full_at: now };
        for _ in 0..BURST {
            assert_eq!(bucket.take(now), Duration::ZERO);
        }
        assert_eq!(bucket.take(now), Duration::from_millis(20));
        assert_eq!(bucket.take(now), Duration::from_millis(40));
        let rested = now + Duration::from_secs(60);
        assert_eq!(bucket.take(rested), Duration::ZERO, "time brings the tokens back");
    }
}
