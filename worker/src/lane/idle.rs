//! Idle: fetches are parked in Redis, and taken from there when they are not welcome any more.
use std::time::{Duration, Instant};

use super::Lane;
use super::parked::{Arrival, Park, State};

impl Lane {
    pub(super) fn arrived(&mut self, park: usize, arrival: Arrival) {
        let queue = self.parks[park].queue;
        self.looked = false;
        match arrival {
            Arrival::Answered(None) => self.parks[park].state = State::Idle,
            Arrival::Broken => {
                self.parks[park].state = State::Idle;
                self.parks[park].cut_off = Some(Instant::now());
            }
            Arrival::Answered(Some(raw)) => {
                let welcome = self.may_reserve() && self.serves(queue);
                let permit = if welcome { self.shared.slots.take(1) } else { None };
                match permit {
                    Some(permit) => {
                        self.parks[park].state = State::Adopting;
                        self.admit(queue, raw, permit);
                        if let Some(held) = self.held[queue].last_mut() {
                            held.adopting = Some(self.parks[park].suspects);
                        }
                    }
                    None => self.parks[park].state = State::Releasing,
                }
                // More may have come at the same moment.
                self.hungry = true;
            }
        }
    }

    pub(super) fn may_park(&self) -> bool {
        !self.parks.is_empty() && self.may_reserve() && self.room() > 0
    }

    /// Idle: wait in Redis for the next job of every queue.
    pub(super) fn park(&mut self) {
        let wait = self.shared.settings.park_timeout;
        let lease = self.beat.lease_left(self.shared.settings.ttl);
        if !self.may_park() || self.hungry || !self.looked || lease <= wait {
            return;
        }
        for at in 0..self.parks.len() {
            if self.serves(self.parks[at].queue) {
                self.parks[at].go(wait);
            }
        }
    }

    /// The connection of a fetch that waits for a job which nobody would run.
    pub(super) fn unwelcome(&self, park: &Park) -> Option<i64> {
        let client = park.waiting_client()?;
        let welcome = self.may_reserve() && self.room() > 0 && self.serves(park.queue);
        (!welcome).then_some(client)
    }

    pub(super) fn must_unpark(&self) -> bool {
        self.parks.iter().any(|park| self.unwelcome(park).is_some())
    }

    pub(super) async fn unpark(&mut self) {
        let clients: Vec<i64> = self.parks.iter().filter_map(|park| self.unwelcome(park)).collect();
        for client in clients {
            if let Err(error) = self.session.unblock(client).await {
                // It ends by its own timeout; what it still brings is released.
                tracing::debug!(error = %error, "Could not unblock a parked fetch");
                break;
            }
        }
        // The answers are on their way; do not ask again before they are here.
        let answered = async {
            while self.must_unpark() {
                match self.events.recv().await {
                    Some(event) => self.take(event),
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(100), answered).await;
    }
}
