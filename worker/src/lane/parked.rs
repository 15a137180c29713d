//! Parked fetches: one `BLMOVE` a queue, so that an idle process starts the next job of any priority at once.
//! Each parks when it is told to, once, and says what came of it; what it brought stays in a list of the lane's
//! until the next cycle adopts or releases it.
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::effects::Side;
use jobqueue::store::{Parked, Session, StoreError};
use tokio::sync::mpsc;

use super::Event;
use crate::failpoint;

/// Where a parked fetch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not parked; its list may hold something we never heard of.
    Idle,
    /// Waiting in Redis.
    Waiting,
    /// It brought a job that we run: the next cycle makes it a held one.
    Adopting,
    /// It brought a job that we have no slot for: the next cycle gives it back.
    Releasing,
}

/// The lane's end of one parked fetch.
pub struct Park {
    /// The index of its queue.
    pub queue: usize,
    /// It waits on the queue's suspects.
    pub suspects: bool,
    /// Where it stands.
    pub state: State,
    /// Its connection broke while it waited: Redis may not have noticed, and may still move a job for it.
    pub cut_off: Option<Instant>,
    go: mpsc::UnboundedSender<Duration>,
    client: Arc<AtomicI64>,
    task: tokio::task::JoinHandle<()>,
}

impl Park {
    /// Starts the task that parks.
    pub fn start(
        index: usize,
        queue: usize,
        suspects: bool,
        (from, into, side): (String, String, Side),
        mut session: Session,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        let (go, mut told) = mpsc::unbounded_channel::<Duration>();
        let client = Arc::new(AtomicI64::new(0));
        let number = Arc::clone(&client);
        let task = tokio::spawn(async move {
            let mut denied = false;
            while let Some(wait) = told.recv().await {
                let answer = async {
                    session.connect().await?;
                    number.store(session.client_id().unwrap_or(0), Ordering::SeqCst);
                    session.park(&from, &into, side, wait).await
                };
                let answer = answer.await;
                number.store(0, Ordering::SeqCst);
                let arrival = match answer {
                    Ok(job) => {
                        failpoint::hit("after-park");
                        Arrival::Answered(job)
                    }
                    Err(error) => {
                        session.disconnect();
                        // It was tried when the lane was opened: somebody has taken it back since.
                        if matches!(error, StoreError::Denied { .. }) && !std::mem::replace(&mut denied, true)
                        {
                            tracing::warn!(error = %error, "May not wait for jobs, looking once a second instead");
                        } else {
                            tracing::debug!(error = %error, "Parked fetch broke");
                        }
                        tokio::time::sleep(session.backoff()).await;
                        Arrival::Broken
                    }
                };
                if events.send(Event::Parked { park: index, arrival }).is_err() {
                    return;
                }
            }
        });
        Self { queue, suspects, state: State::Idle, cut_off: None, go, client, task }
    }

    /// Park once.
    pub fn go(&mut self, wait: Duration) {
        if self.state == State::Idle && self.go.send(wait).is_ok() {
            self.state = State::Waiting;
        }
    }

    /// The connection to unblock, while it waits.
    pub fn waiting_client(&self) -> Option<i64> {
        let client = self.client.load(Ordering::SeqCst);
        (self.state == State::Waiting && client != 0).then_some(client)
    }

    /// Redis may not have missed an earlier connection yet; keepalive ends it long before this.
    pub fn may_still_deliver(&self) -> bool {
        self.cut_off.is_some_and(|at| at.elapsed() < Duration::from_secs(60))
    }

    /// What the next cycle does with its list.
    pub fn word(&self, room: bool) -> Parked {
        match self.state {
            State::Waiting => Parked::Leave,
            State::Adopting => Parked::Adopt,
            // A connection that Redis has not missed yet may have left something here.
            State::Idle if room => Parked::Look,
            State::Idle | State::Releasing => Parked::Release,
        }
    }

    /// A cycle has taken care of its list.
    pub fn cleared(&mut self) {
        if matches!(self.state, State::Adopting | State::Releasing) {
            self.state = State::Idle;
        }
    }
}

impl Drop for Park {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What came of parking.
#[derive(Debug)]
pub enum Arrival {
    /// A job, or nothing in time.
    Answered(Option<Bytes>),
    /// The connection broke.
    Broken,
}
