//! The end of a lane: what runs may finish, the rest goes back, and Redis is told goodbye.
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::outcome::Outcome;

use super::held::Phase;
use super::parked::{Park, State};
use super::{End, LAST_WORDS, Lane};
use crate::failpoint;

impl Lane {
    pub(super) fn drain(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        self.deadline = Some(Instant::now() + self.shared.settings.drain_timeout);
        for held in self.held.iter_mut().flatten() {
            match &held.phase {
                Phase::Waiting(job, task) => {
                    task.abort();
                    held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                }
                Phase::Admitted(job) => {
                    held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                }
                Phase::Running(..) | Phase::Finished(..) | Phase::Rejected(_) => {}
            }
        }
    }

    pub(super) fn past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// What still runs is stopped first, then given back: it must not run in two places.
    pub(super) async fn release_running(&mut self) {
        let mut stopped = 0;
        for held in self.held.iter_mut().flatten() {
            if let Phase::Running(job, task) = &mut held.phase {
                task.abort();
                let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
                held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                stopped += 1;
            }
        }
        if stopped > 0 {
            failpoint::hit("before-release");
            tracing::info!(
                worker_id = self.handle.id,
                count = stopped,
                "Stopped running jobs and gave them back"
            );
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.deadline.is_some()
            && !self.holds_anything()
            && self.parks.iter().all(|park| park.state == State::Idle)
    }

    pub(super) async fn close(&mut self) -> End {
        failpoint::hit("before-close");
        let cut_off = self.parks.iter().any(Park::may_still_deliver);
        let patience = Instant::now() + LAST_WORDS;
        loop {
            match self.session.close(&self.handle, cut_off).await {
                Ok(_) => return End::Drained,
                Err(error) if !error.is_transient() || Instant::now() > patience => return End::GaveUp,
                Err(_) => tokio::time::sleep(self.session.backoff()).await,
            }
        }
    }

    /// Stops whatever still runs: it is somebody else's now.
    pub(super) async fn abandon(&mut self) {
        for queue in 0..self.held.len() {
            for mut held in std::mem::take(&mut self.held[queue]) {
                if let Phase::Running(_, task) | Phase::Waiting(_, task) = &mut held.phase {
                    task.abort();
                    let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
                }
                self.dropped(queue, &held);
            }
        }
    }
}
