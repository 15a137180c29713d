//! What Kubernetes is told of this process: whether it is ready, whether it is alive, and who leads.
//!
//! None of it turns with the Kubernetes API: while that is away a restart would mend nothing, and every operator would be
//! unready at once.
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long nobody may have looked at the lease: a look takes 3 s at most, and the next one comes 2.5 s later.
const UNATTENDED: Duration = Duration::from_secs(60);
/// How long no look at a `JobQueue` may have begun or ended while some are under way: each has a minute, and a deletion half
/// of one, with some calls before and after it.
const STUCK: Duration = Duration::from_secs(600);

/// How this process is, as its parts have reported it.
#[derive(Debug, Default)]
pub struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    found_crd: bool,
    knows_lease: bool,
    leader: Option<String>,
    attended: Option<Instant>,
    under_way: usize,
    moved: Option<Instant>,
}

/// A reconcile, until this is dropped.
pub struct UnderWay<'a>(&'a Health);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.moves(|under_way| under_way.saturating_sub(1));
    }
}

impl Health {
    /// `JobQueue`s can be listed.
    pub fn found_crd(&self) {
        self.state().found_crd = true;
    }

    /// Somebody has tried to look at the lease, whatever came of it.
    pub fn attended_lease(&self) {
        self.state().attended = Some(Instant::now());
    }

    /// The lease was looked at, and taken or renewed if it was to be had: this is who has it now, if that is known.
    pub fn saw_leader(&self, leader: Option<&str>) {
        let mut state = self.state();
        state.knows_lease = true;
        state.leader = leader.map(str::to_owned);
    }

    /// A reconcile begins.
    pub fn reconcile(&self) -> UnderWay<'_> {
        self.moves(|under_way| under_way + 1);
        UnderWay(self)
    }

    /// What this process still waits for. Once it is ready it stays so.
    pub fn waits_for(&self) -> Option<&'static str> {
        let state = self.state();
        match (state.found_crd, state.knows_lease) {
            (false, _) => Some("a JobQueue CRD, and the right to list JobQueues"),
            (true, false) => Some("the lease, and the right to read and write it"),
            (true, true) => None,
        }
    }

    /// What has stopped and will not go on by itself.
    pub fn dead(&self) -> Option<&'static str> {
        self.state().dead(Instant::now())
    }

    /// Who leads, as far as is known.
    pub fn leader(&self) -> Option<String> {
        self.state().leader.clone()
    }

    fn moves(&self, count: impl FnOnce(usize) -> usize) {
        let mut state = self.state();
        state.under_way = count(state.under_way);
        state.moved = Some(Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn dead(&self, now: Instant) -> Option<&'static str> {
        let longer = |than: Duration, since: Option<Instant>| {
            since.is_some_and(|since| now.saturating_duration_since(since) > than)
        };
        if longer(UNATTENDED, self.attended) {
            return Some("nobody looks at the lease");
        }
        (self.under_way > 0 && longer(STUCK, self.moved)).then_some("no look at a JobQueue comes to its end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_ready_once_it_has_found_the_crd_and_the_lease_and_stays_so() {
        let health = Health::default();
        assert!(health.waits_for().is_some_and(|what| what.contains("CRD")));
        health.found_crd();
        assert!(health.waits_for().is_some_and(|what| what.contains("lease")));
        health.attended_lease();
        assert!(health.waits_for().is_some(), "it was refused");
        health.saw_leader(None);
        assert_eq!((health.waits_for(), health.leader()), (None, None));
        health.saw_leader(Some("other"));
        assert_eq!((health.waits_for(), health.leader().as_deref()), (None, Some("other")));
    }

    #[test]
    fn an_operator_is_dead_when_its_parts_have_stood_still_for_long() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (state, seconds, dead) in [
            (State::default(), 10_000, false),
            (State { attended: Some(start), ..State::default() }, 60, false),
            (State { attended: Some(start), ..State::default() }, 61, true),
            (State { moved: Some(start), ..State::default() }, 10_000, false),
            (State { moved: Some(start), under_way: 1, ..State::default() }, 600, false),
            (State { moved: Some(start), under_way: 1, ..State::default() }, 601, true),
        ] {
            assert_eq!(state.dead(at(seconds)).is_some(), dead, "{state:?} after {seconds} s");
        }
    }

    #[test]
    fn a_reconcile_is_under_way_until_it_ends_however_it_ends() {
        let health = Health::default();
        let first = health.reconcile();
        let second = health.reconcile();
        drop(first);
        assert_eq!(health.state().under_way, 1);
        drop(second);
        assert_eq!(health.state().under_way, 0);
    }
}
