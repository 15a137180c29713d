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
/// Looks a second, of those that had to go without asking their Redis: each asks the API server again for what it had.
const TURNS: u32 = 4;
/// The first of them comes back after this long.
const FIRST_TURN: Duration = Duration::from_secs(1);

/// The pace of all changes.
pub struct Pace {
    slots: Semaphore,
    asking: Semaphore,
    bucket: Mutex<Bucket>,
    turns: Mutex<Bucket>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(usize::from(AT_ONCE)),
            asking: Semaphore::new(ASKING),
            bucket: Mutex::new(Bucket::new(RATE, BURST)),
            turns: Mutex::new(Bucket::new(TURNS, 0)),
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

    /// When to come back, for one that found no place to ask its Redis: however many there are, one after the other.
    pub fn turn(&self) -> Duration {
        FIRST_TURN + take(&self.turns)
    }

    /// Waits until a write is in order.
    pub async fn write(&self) {
        tokio::time::sleep(take(&self.bucket)).await;
    }
}

fn take(bucket: &Mutex<Bucket>) -> Duration {
    bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
}

/// Tokens that come back with time.
struct Bucket {
    /// How long each of them takes.
    each: Duration,
    /// How many there are after a rest.
    burst: u32,
    /// When it will be full again.
    full_at: Instant,
}

impl Bucket {
    /// A full one, of so many tokens a second.
    fn new(rate: u32, burst: u32) -> Self {
        Self { each: Duration::from_secs(1) / rate, burst, full_at: Instant::now() }
    }

    /// Takes a token; how long to wait before it is used.
    fn take(&mut self, now: Instant) -> Duration {
        self.full_at = self.full_at.max(now) + self.each;
        self.full_at.duration_since(now).saturating_sub(self.each * self.burst)
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
    fn those_that_find_no_place_to_ask_come_back_one_after_the_other() {
        let pace = Pace::default();
        let turns: Vec<_> = (0..100).map(|_| pace.turn()).collect();
        assert!(turns[0] <= Duration::from_secs(2), "{turns:?}");
        assert!(turns[99] >= Duration::from_secs(99 / u64::from(TURNS)), "{turns:?}");
    }

    #[test]
    fn a_burst_is_let_through_and_then_one_write_after_the_other() {
        let mut bucket = Bucket::new(RATE, BURST);
        let now = bucket.full_at;
        for _ in 0..BURST {
            assert_eq!(bucket.take(now), Duration::ZERO);
        }
        assert_eq!(bucket.take(now), Duration::from_millis(20));
        assert_eq!(bucket.take(now), Duration::from_millis(40));
        let rested = now + Duration::from_secs(60);
        assert_eq!(bucket.take(rested), Duration::ZERO, "time brings the tokens back");
    }
}
