//! The slots of a process, shared by its lanes: how many jobs may run at once, counted in weights.
//!
//! A job whose process has died n times while it held the job weighs 2^n slots, at most all of them. So of such
//! suspects at most count/2^n run at once, and one that has seen enough deaths runs alone in its process: only
//! then can it be blamed for the next. No other rule is needed to tell one crasher from the jobs beside it.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a lane does with free slots beyond its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// It takes those that leave so many free: most of them may go to a shard that alone has jobs.
    Leaving(usize),
    /// It takes one at a time: the others serve the same queues and are woken to take the rest, but as long as a slot
    /// is free, somebody has to be there for the next job.
    One,
    /// It takes none: another serves the same queues, and is there.
    Nothing,
}

/// How many of the free slots a lane may take that holds `held` jobs.
pub fn room(free: usize, held: usize, share: usize, beyond: Beyond) -> usize {
    let extra = match beyond {
        Beyond::Leaving(left) => free.saturating_sub(left),
        Beyond::One => 1,
        Beyond::Nothing => 0,
    };
    free.min(share.saturating_sub(held).max(extra))
}

/// How many of the slots that its `due` jobs give back a lane may use again at once, when it takes `room` besides: none
/// beyond its share. Those are free for a moment, for whoever has less.
pub fn again(due: usize, held: usize, room: usize, share: usize) -> usize {
    due.min((share + due).saturating_sub(held + room))
}

/// Slots taken; given back when dropped.
pub type Permit = OwnedSemaphorePermit;

/// The slots of a process.
#[derive(Debug, Clone)]
pub struct Slots {
    free: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    total: u32,
}

impl Slots {
    /// `total` free slots.
    pub fn new(total: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(total as usize)), waiting: Arc::default(), total }
    }

    /// How many there are.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// How many are free now.
    pub fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// How many slots a job takes.
    pub fn weight(&self, deaths: u32) -> u32 {
        1u32.checked_shl(deaths).unwrap_or(u32::MAX).min(self.total)
    }

    /// Up to `wanted` slots that are free now; `None` when there is none.
    pub fn take(&self, wanted: usize) -> Option<Permit> {
        let mut wanted = u32::try_from(wanted.min(self.free())).unwrap_or(u32::MAX);
        while wanted > 0 {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_many_owned(wanted) {
                return Some(permit);
            }
            // Another lane was faster.
            wanted = wanted.min(u32::try_from(self.free()).unwrap_or(u32::MAX)).min(wanted.saturating_sub(1));
        }
        None
    }

    /// Waits for this many slots: first come, first served, so a heavy job is not starved by light ones.
    pub async fn acquire(&self, weight: u32) -> Option<Permit> {
        let _waiting = Waiting::start(&self.waiting);
        Arc::clone(&self.free).acquire_many_owned(weight).await.ok()
    }

    /// Whether a suspect waits for its slots: then a slot that becomes free belongs to it, not to the next job.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

/// Counts one who waits, also when it is given up.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn start(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_halved_with_each_death_until_one_runs_alone() {
        let slots = Slots::new(100);
        let at_once: Vec<u32> = (0..9).map(|deaths| 100 / slots.weight(deaths)).collect();
        assert_eq!(at_once, [100, 50, 25, 12, 6, 3, 1, 1, 1]);
        assert_eq!(slots.weight(6), 64, "leaves room for others");
        assert_eq!((slots.weight(7), slots.weight(200)), (100, 100), "alone, and no overflow");
    }

    #[test]
    fn a_lane_takes_its_share_and_beyond_it_leaves_the_others_something_to_wake_up_with() {
        let leaving = Beyond::Leaving(3);
        assert_eq!(room(16, 0, 4, leaving), 13, "nobody else has jobs");
        assert_eq!(room(3, 13, 4, leaving), 0, "one for each of the others");
        assert_eq!(room(2, 1, 4, leaving), 2, "its share is its own");
        assert_eq!(room(16, 0, 4, Beyond::Nothing), 4, "the others serve the same queues");
        assert_eq!(room(16, 0, 4, Beyond::One), 4, "its share first");
        assert_eq!(room(12, 4, 4, Beyond::One), 1, "a slot is free: somebody is there for the next job");
        assert_eq!(room(0, 4, 4, Beyond::One), 0);
        assert_eq!(again(4, 4, 0, 4), 4, "a slot of its share is used again in the same call");
        assert_eq!(again(13, 13, 0, 4), 4, "what was borrowed goes back first");
        assert_eq!(again(2, 9, 0, 4), 0);
    }

    #[test]
    fn takes_what_is_free() {
        let slots = Slots::new(3);
        let two = slots.take(2).unwrap();
        let one = slots.take(5).unwrap();
        assert_eq!((two.num_permits(), one.num_permits()), (2, 1));
        assert!(slots.take(1).is_none());
        drop(two);
        assert_eq!(slots.free(), 2);
    }
}
