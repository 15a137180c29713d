//! The end of a lane: what runs may finish, the rest goes back, and Redis is told goodbye.
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::job::Job;
use jobqueue::outcome::Outcome;
use jobqueue::protocol::returned;
use tokio::task::JoinHandle;

use super::held::{Held, Phase};
use super::parked::{Park, State};
use super::{End, LAST_WORDS, Lane};
use crate::failpoint;

/// What was told to stop has this long to do so, all together. Far less than the shortest TTL, 5 s.
const STOPPING: Duration = Duration::from_secs(1);

/// And has this long before that where its application has to be told: together less than [`LAST_WORDS`], so that there is
/// time left to give back what does not heed it.
const INTERRUPTING: Duration = Duration::from_secs(2);
/// An application that has stopped its jobs has answered for each of them, or is about to.
const ANSWERING: Duration = Duration::from_millis(500);

impl Lane {
    /// From the first time that a shutdown is requested on, time runs.
    pub(super) fn drain_if_asked(&mut self) {
        if self.deadline.is_none() && self.shutdown.is_requested() {
            self.deadline = Some(Instant::now() + self.shared.settings.drain_timeout);
            self.warn_running();
        }
    }

    /// Nobody waits for an answer: who cannot be told may finish all the same.
    fn warn_running(&self) {
        let jobs = self.running_jobs();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { tokio::time::timeout(INTERRUPTING, shared.handler.warn(&jobs)).await });
    }

    /// Whoever is asked to stop starts nothing more: what has not begun goes back.
    pub(super) fn give_back_unstarted(&mut self) {
        let side = self.shared.protocol.consuming_side();
        let queues = self.session.keys.queues.iter();
        for (queue, held) in queues
            .zip(&mut self.held)
            .flat_map(|(queue, held)| held.iter_mut().map(move |held| (queue, held)))
        {
            match &held.phase {
                Phase::Waiting(job, task) => {
                    task.abort();
                    held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                }
                Phase::Admitted(job) => {
                    held.phase = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                }
                // Not started: it goes back as it is.
                Phase::Closed => held.phase = Phase::Decided(returned(held.raw.clone(), queue, side)),
                Phase::Running(..)
                | Phase::Finished(..)
                | Phase::Outdated(..)
                | Phase::Rejected(_)
                | Phase::Decided(_) => {}
            }
        }
    }

    pub(super) fn past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// So long after the deadline the rest is left to a reaper.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline + LAST_WORDS < Instant::now())
    }

    /// What still runs is stopped first, then given back: it must not run in two places.
    pub(super) async fn release_running(&mut self) {
        let stopped = self.running_jobs().len();
        self.interrupt_running().await;
        let mut tasks = Vec::new();
        for held in self.held.iter_mut().flatten() {
            if let Phase::Running(job, _) = &held.phase {
                let released = Phase::Finished(Arc::clone(job), Outcome::Released, Duration::ZERO);
                if let Phase::Running(_, task) = std::mem::replace(&mut held.phase, released) {
                    tasks.push(task);
                }
            }
        }
        stop(tasks, STOPPING).await;
        if stopped > 0 {
            failpoint::hit("before-release");
            tracing::info!(
                worker_id = self.handle.id,
                count = stopped,
                "Stopped running jobs and gave them back"
            );
        }
    }

    /// The jobs that the handler has.
    fn running_jobs(&self) -> Vec<Arc<Job>> {
        let running = |held: &Held| match &held.phase {
            Phase::Running(job, _) => Some(Arc::clone(job)),
            _ => None,
        };
        self.held.iter().flatten().filter_map(running).collect()
    }

    /// Where a job runs in an application, its end is there and not here. How it ended counts: it may have been done.
    async fn interrupt_running(&mut self) {
        let shared = Arc::clone(&self.shared);
        let jobs = self.running_jobs();
        let stopped = tokio::time::timeout(INTERRUPTING, shared.handler.stop(&jobs)).await;
        if stopped != Ok(true) {
            return;
        }
        let patience = tokio::time::Instant::now() + ANSWERING;
        while !self.running_jobs().is_empty() {
            match tokio::time::timeout_at(patience, self.events.recv()).await {
                Ok(Some(event)) => self.take(event),
                Ok(None) | Err(_) => return,
            }
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.deadline.is_some()
            && !self.holds_anything()
            && self.parks.iter().all(|park| park.state == State::Idle)
    }

    /// Past the deadline nobody waits for what Redis does not take (a key of the wrong type, denied, ...), nor for ever
    /// for anything else: a lane that is closed while it holds jobs leaves them to the reaper, uncounted.
    pub(super) fn has_waited_enough(&self) -> bool {
        let only_refused =
            || self.holds_anything() && self.held.iter().flatten().all(|held| held.refused.is_some());
        self.is_out_of_time() || self.past_deadline() && only_refused()
    }

    pub(super) async fn close(&mut self) -> End {
        failpoint::hit("before-close");
        let may_deliver = |park: &Park| park.state == State::Waiting || park.may_still_deliver();
        let cut_off = self.parks.iter().any(may_deliver);
        let patience = Instant::now() + LAST_WORDS;
        loop {
            match self.session.close(&self.handle, cut_off).await {
                Ok(_) if self.holds_anything() => return End::GaveUp,
                Ok(_) => return End::Drained,
                Err(error) if !error.is_transient() || Instant::now() > patience => return End::GaveUp,
                Err(_) => tokio::time::sleep(self.session.backoff()).await,
            }
        }
    }

    /// Stops whatever still runs: it is somebody else's now.
    pub(super) async fn abandon(&mut self) {
        let jobs = self.running_jobs();
        let _ = tokio::time::timeout(INTERRUPTING, self.shared.handler.stop(&jobs)).await;
        let mut tasks = Vec::new();
        for queue in 0..self.held.len() {
            for held in std::mem::take(&mut self.held[queue]) {
                self.dropped(queue, &held);
                if let Phase::Running(_, task) | Phase::Waiting(_, task) = held.phase {
                    tasks.push(task);
                }
            }
        }
        stop(tasks, STOPPING).await;
    }
}

/// Stops tasks, all of them at once: one after the other, many that end slowly would outlast the lane's heartbeat,
/// which is renewed only while its loop goes round.
async fn stop(tasks: Vec<JoinHandle<()>>, bound: Duration) {
    tasks.iter().for_each(JoinHandle::abort);
    let ended = async {
        for task in tasks {
            let _ = task.await;
        }
    };
    let _ = tokio::time::timeout(bound, ended).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says that it is gone, after it has waited for others to be.
    struct Guard {
        others: Option<std::sync::mpsc::Receiver<()>>,
        _gone: Option<std::sync::mpsc::Sender<()>>,
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(others) = &self.others {
                let _ = others.recv();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_job_that_ends_slowly_does_not_keep_the_others_from_being_stopped() {
        let (gone, others) = std::sync::mpsc::channel();
        let slow = Guard { others: Some(others), _gone: None };
        let quick = Guard { others: None, _gone: Some(gone) };
        let running = |guard: Guard| {
            tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            })
        };
        // The first ends only once the second has: told one after the other, neither would.
        let tasks = vec![running(slow), running(quick)];
        stop(tasks, Duration::from_secs(3600)).await;
    }
}
