//! One lane: a worker id with its processing lists, its heartbeat and its share of the slots.
//!
//! While busy, one round trip both settles what finished and reserves what fits; when idle it parks on the queues
//! and wakes with the next push. It never holds more jobs than it has slots for.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::breaker;
use jobqueue::outcome::Outcome;
use jobqueue::store::{LaneHandle, Session, StoreError};
use tokio::sync::mpsc;

use crate::failpoint;
use crate::shared::{Beat, Shared};
use crate::shutdown::Shutdown;
use crate::slots::{self, Beyond, Permit};

mod cycle;
mod drain;
mod held;
mod idle;
mod opening;
pub mod parked;
mod running;

use held::{Held, Phase};
use parked::{Arrival, Park, State};

/// An idle lane looks at the control keys this often.
const TICK: Duration = Duration::from_secs(1);
/// After the drain timeout this much is left to tell Redis; then the reaper has to.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What reaches a lane while it waits.
#[derive(Debug)]
pub enum Event {
    /// A job ran.
    Finished {
        /// Which.
        key: u64,
        /// How it ended.
        outcome: Outcome,
        /// How long it took.
        took: Duration,
    },
    /// A suspect has the slots it needs.
    Admitted {
        /// Which.
        key: u64,
        /// Its slots.
        permit: Permit,
    },
    /// A parked fetch answered.
    Parked {
        /// Which.
        park: usize,
        /// What.
        arrival: Arrival,
    },
}

/// How a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything was settled or released.
    Drained,
    /// Its lease was taken away: what it held is somebody else's.
    Lost,
    /// Redis did not answer in time to say goodbye: a reaper will.
    GaveUp,
}

/// One lane. See the module's documentation.
pub struct Lane {
    shared: Arc<Shared>,
    session: Session,
    handle: LaneHandle,
    index: usize,
    beat: Arc<Beat>,
    seq: u64,
    held: Vec<Vec<Held>>,
    next_key: u64,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
    parks: Vec<Park>,
    looked: bool,
    paused: bool,
    quiet: String,
    /// More may be waiting than the last cycle could take.
    hungry: bool,
    /// One a queue: so many of its jobs are refused that no more are taken.
    stuck: Vec<bool>,
    alone: Option<u64>,
    cycled: Instant,
    shutdown: Shutdown,
    deadline: Option<Instant>,
    /// Since then its record says that it was told to stop: a death is a shutdown.
    told: Option<Instant>,
}

impl Lane {
    /// Registers a lane, and starts its parked fetches if it is the one of its shard that parks: it then has two
    /// sessions a queue for them, for the queue itself and for its suspects.
    pub async fn open(
        shared: Arc<Shared>,
        mut session: Session,
        index: usize,
        park_sessions: Vec<Session>,
        beat: Arc<Beat>,
        shutdown: Shutdown,
    ) -> Result<Self, StoreError> {
        let asked = Instant::now();
        let handle = session.register(&shared.registration).await?;
        failpoint::hit("after-register");
        beat.tick();
        beat.renewed(asked);
        beat.set_oldest(Bytes::new());
        beat.set_lane(Some(handle.clone()));
        let (sender, events) = mpsc::unbounded_channel();
        let side = shared.protocol.consuming_side();
        let mut parked = Vec::new();
        for (index, park_session) in park_sessions.into_iter().enumerate() {
            let (queue, suspects) = (index / 2, index % 2 == 1);
            let (keys, lists) = (&session.keys.queues[queue], &handle.lists[queue]);
            let (from, into) = if suspects {
                (keys.suspects.clone(), lists.parked_suspects.clone())
            } else {
                (keys.queue.clone(), lists.parked.clone())
            };
            parked.push(Park::start(
                index,
                queue,
                suspects,
                (from, into, side),
                park_session,
                sender.clone(),
            ));
        }
        let held: Vec<_> = session.keys.queues.iter().map(|_| Vec::new()).collect();
        let stuck = vec![false; held.len()];
        tracing::info!(worker_id = handle.id, "Opened a lane");
        Ok(Self {
            shared,
            session,
            handle,
            index,
            beat,
            seq: 0,
            held,
            next_key: 0,
            events,
            sender,
            parks: parked,
            looked: false,
            paused: false,
            quiet: String::new(),
            hungry: true,
            stuck,
            alone: None,
            cycled: Instant::now(),
            shutdown,
            deadline: None,
            told: None,
        })
    }

    /// Reserves, handles and settles until shutdown, then drains.
    pub async fn run(mut self) -> (End, Session) {
        let mut shutdown = self.shutdown.clone();
        let shared = Arc::clone(&self.shared);
        let end = loop {
            // Before the look at the room: what changes afterwards is not missed.
            let (woken, freed) = (shared.wake.notified(), shared.freed.notified());
            self.beat.tick();
            if let Some(presence) = &self.shared.presence {
                presence.quieted(!self.quiet.is_empty());
            }
            while let Ok(event) = self.events.try_recv() {
                self.take(event);
            }
            self.drain_if_asked();
            self.queue_up();
            if self.deadline.is_some() {
                self.held.iter_mut().flatten().for_each(|held| held.rests_until = None);
                self.give_back_unstarted();
            }
            if self.past_deadline() {
                self.release_running().await;
            }
            if self.is_drained() || self.has_waited_enough() {
                break self.close().await;
            }
            if self.must_unpark() {
                self.unpark().await;
            }
            if self.must_open()
                && let Err(end) = self.open_held().await
            {
                break end;
            }
            if self.must_cycle() {
                if let Err(end) = self.cycle().await {
                    break end;
                }
                continue;
            }
            self.park();
            let wait = self.until_next();
            tokio::select! {
                Some(event) = self.events.recv() => self.take(event),
                () = woken => self.hungry = true,
                // Without room, what another lane does not need is all that it waits for.
                () = freed, if self.hungry => {}
                () = shutdown.requested(), if self.deadline.is_none() => {}
                () = tokio::time::sleep(wait) => {}
            }
        };
        self.beat.set_lane(None);
        self.shared.shares.waits(self.index, false);
        self.abandon().await;
        (end, self.session)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Finished { key, outcome, took } => {
                let Some((queue, at)) = self.find(key) else { return };
                if let Phase::Running(job, _) = &self.held[queue][at].phase {
                    self.finished(queue, at, Arc::clone(job), outcome, took);
                }
            }
            Event::Admitted { key, permit } => {
                let Some((queue, at)) = self.find(key) else { return };
                let alone = permit.num_permits() == self.shared.slots.total() as usize;
                let held = &mut self.held[queue][at];
                let Phase::Waiting(job, _) = &held.phase else { return };
                held.phase = Phase::Admitted(Arc::clone(job));
                held.permit = Some(permit);
                held.admitted = true;
                if alone {
                    // Starts once the record says so: a crash must find it written down.
                    self.alone = Some(key);
                } else {
                    self.begin(queue, at);
                }
            }
            Event::Parked { park, arrival } => self.arrived(park, arrival),
        }
    }

    fn may_reserve(&self) -> bool {
        self.deadline.is_none() && !self.paused && self.quiet.is_empty() && !self.shared.is_quiet()
    }

    /// A queue whose breaker is not closed is asked by cycles only, for one job at most; a paused one not at all.
    fn serves(&self, queue: usize) -> bool {
        !self.shared.is_paused(queue)
            && !self.stuck[queue]
            && self.shared.breaker(queue).state(Instant::now()) == breaker::State::Closed
    }

    fn find(&self, key: u64) -> Option<(usize, usize)> {
        self.held
            .iter()
            .enumerate()
            .find_map(|(queue, held)| held.iter().position(|held| held.key == key).map(|at| (queue, at)))
    }

    fn holds_anything(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    fn must_cycle(&self) -> bool {
        let due = self.cycled.elapsed() >= TICK;
        let ready = |held: &Held| held.is_settleable() || matches!(held.phase, Phase::Admitted(_));
        let parks = (self.parks.iter()).any(|park| matches!(park.state, State::Adopting | State::Releasing));
        let look = self.may_park() && !self.looked && !self.hungry;
        let untold = self.deadline.is_some() && self.told.is_none();
        due || parks
            || look
            || untold
            || self.held.iter().flatten().any(ready)
            || (self.hungry && self.may_reserve() && self.room() > 0)
    }

    /// A lane that holds nothing waits for its turn, where there are fewer slots than lanes.
    fn queue_up(&self) {
        let waits = self.shared.are_short() && self.hungry && self.may_reserve() && self.occupied() == 0;
        self.shared.shares.waits(self.index, waits);
    }

    fn room(&self) -> usize {
        let beyond = match self.shared.spare() {
            Some(spare) => Beyond::Leaving(spare),
            None if self.parks.is_empty() => Beyond::Nothing,
            None => Beyond::One,
        };
        let free = self.shared.slots.free().saturating_sub(self.shared.shares.before(self.index));
        slots::room(free, self.occupied(), self.shared.share(self.index), beyond)
    }

    fn until_next(&self) -> Duration {
        let tick = TICK.saturating_sub(self.cycled.elapsed());
        let rests = self.held.iter().flatten().filter_map(|held| held.rests_until);
        let next = rests.chain(self.deadline).min();
        let until = next.map_or(tick, |next| next.saturating_duration_since(Instant::now()));
        tick.min(until).max(Duration::from_millis(1))
    }

    fn held_count(&self) -> usize {
        self.held.iter().map(Vec::len).sum()
    }

    /// Jobs that have a slot or wait for theirs: one whose settlement was refused has given its slot back.
    fn occupied(&self) -> usize {
        let occupies = |held: &&Held| held.permit.is_some() || matches!(held.phase, Phase::Waiting(..));
        self.held.iter().flatten().filter(occupies).count()
    }

    fn dropped(&mut self, queue: usize, held: &Held) {
        self.shared.metrics.jobs_in_flight_changed(-1);
        if let Some(presence) = &self.shared.presence {
            presence.ended((self.index, held.key));
        }
        if self.alone == Some(held.key) {
            self.alone = None;
        }
        if held.probe && !matches!(held.phase, Phase::Finished(..) | Phase::Outdated(..)) {
            self.shared.breaker(queue).abandoned();
        }
    }
}
