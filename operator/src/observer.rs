//! What goes on in Redis: the only part of the operator that talks to it.
//!
//! One task and one connection a Redis (address and credentials), which looks at each of its queues once a second. A slow
//! or dead Redis so delays nobody but its own queues. The controller says what to look at, and is told when something
//! worth a reconcile has changed.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc::UnboundedSender;
use jobqueue::config::Config;
use jobqueue::connect::{Address, Connector, Settings};
use jobqueue::engine::Engine;
use jobqueue::keys::Keys;
use jobqueue::store::{Session, Snapshot, StoreError};
use kube::runtime::reflector::ObjectRef;

use crate::api::v1alpha1::{JobQueue, Protocol, Scaling, ScalingMode};
use crate::autoscaler::{Decision, History, Seen, decide};

/// How often a queue is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Figures alone are worth a reconcile this often at most.
const FIGURES_INTERVAL: Duration = Duration::from_secs(30);
/// That a queue has become empty is worth one sooner: it is what people wait for.
const EMPTY_INTERVAL: Duration = Duration::from_secs(5);
/// A claim that another has is asked for again after this long.
const CLAIM_INTERVAL: Duration = Duration::from_secs(10);
/// A claim that is ours is looked at again after this long: somebody may have deleted it.
const CLAIM_AGAIN: Duration = Duration::from_secs(300);
/// A dead Redis is tried again after at most this long.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// How long the Kubernetes API may take to say whether an owner exists; other queues of the same Redis wait meanwhile.
const ASKING: Duration = Duration::from_secs(5);

/// What to look at.
#[derive(Clone)]
pub struct Target {
    /// How to reach the queue's Redis.
    pub settings: Settings,
    /// Tells apart what must not share a connection.
    pub connection: String,
    /// The keys of every shard.
    pub shards: Vec<Keys>,
    /// Which format; Sidekiq's queues are shared by nature and so never claimed.
    pub protocol: Protocol,
    /// Who owns the queues: `<cluster>/<namespace>/<name>/<uid>`.
    pub owner: String,
    /// Whether workers shall take no jobs.
    pub paused: bool,
    /// How many workers there may be.
    pub scaling: Scaling,
    /// `spec.replicas`.
    pub manual: Option<i32>,
    /// How many workers are asked for now.
    pub current: i32,
}

impl Target {
    /// What to look at for a queue with this configuration.
    pub fn new(config: &Config, queue: &JobQueue, owner: String, current: i32) -> Self {
        let engine = Engine::new(config);
        Self {
            settings: engine.connector.settings().clone(),
            connection: String::new(),
            shards: engine.shards,
            protocol: queue.spec.protocol,
            owner,
            paused: queue.spec.paused,
            scaling: queue.spec.scaling.clone(),
            manual: queue.spec.replicas,
            current,
        }
    }
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// Why Redis cannot be used; `None`: it can.
    pub trouble: Option<Trouble>,
    /// Another owner of one of the queues: its key and who it is.
    pub conflict: Option<(String, String)>,
    /// The figures.
    pub figures: Figures,
    /// The last decision that changed the number of workers, and when (Unix milliseconds).
    pub decision: Option<(Decision, u64)>,
}

/// What is wrong with Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Waiting will not help.
    pub permanent: bool,
    /// What it is.
    pub message: String,
}

impl From<&StoreError> for Trouble {
    fn from(error: &StoreError) -> Self {
        Self { permanent: !error.is_transient(), message: error.to_string() }
    }
}

/// How many jobs are where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Waiting, by queue in the order of priority; suspects included.
    pub waiting: Vec<u64>,
    /// Held by workers.
    pub in_flight: u64,
    /// Waiting for their next attempt.
    pub delayed: u64,
    /// Of those, due.
    pub due: u64,
    /// Given up.
    pub dead_letters: u64,
    /// Held back on purpose.
    pub paused: bool,
}

impl Figures {
    /// Adds what one shard holds.
    fn add(&mut self, snapshot: &Snapshot) {
        self.waiting.resize(snapshot.queues.len(), 0);
        for (waiting, queue) in self.waiting.iter_mut().zip(&snapshot.queues) {
            *waiting += queue.waiting + queue.suspects;
            self.delayed += queue.delayed;
            self.due += queue.due;
        }
        self.in_flight += snapshot.in_flight;
        self.dead_letters += snapshot.dead_letters;
        self.paused |= snapshot.paused;
    }

    /// Whether no job waits or runs.
    fn is_empty(&self) -> bool {
        self.in_flight == 0 && self.waiting.iter().all(|waiting| *waiting == 0)
    }

    /// Whether somebody who was told `earlier` should be told this: more than a tenth of difference.
    fn differs_from(&self, earlier: &Self) -> bool {
        let far = |now: u64, then: u64| now.abs_diff(then) * 10 > now.max(then);
        let total = |figures: &Self| figures.waiting.iter().sum::<u64>();
        far(total(self), total(earlier))
            || far(self.in_flight, earlier.in_flight)
            || far(self.delayed, earlier.delayed)
            || far(self.dead_letters, earlier.dead_letters)
            || self.paused != earlier.paused
    }
}

/// A change of the number of workers that somebody should make.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Whose workers.
    pub queue: ObjectRef<JobQueue>,
    /// How many there were asked for.
    pub from: i32,
    /// How many there should be.
    pub decision: Decision,
}

/// Looks at all queues.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: UnboundedSender<ObjectRef<JobQueue>>,
    wishes: UnboundedSender<Wish>,
    /// Whether the `JobQueue` that an owner names is gone.
    gone: Box<dyn Fn(String) -> futures::future::BoxFuture<'static, bool> + Send + Sync>,
}

#[derive(Default)]
struct State {
    queues: HashMap<ObjectRef<JobQueue>, Watched>,
    tasks: HashMap<String, tokio::task::AbortHandle>,
}

struct Watched {
    target: Arc<Target>,
    seen: Option<Observation>,
    told: Option<(Figures, Instant)>,
    history: History,
    claimed_at: Option<Instant>,
    asked_at: Option<Instant>,
}

impl Observer {
    /// One that looks at nothing yet. `changed` hears of queues that should be reconciled, `wishes` of numbers of workers;
    /// `gone` says whether the owner of a claim does not exist any more.
    pub fn new(
        changed: UnboundedSender<ObjectRef<JobQueue>>,
        wishes: UnboundedSender<Wish>,
        gone: impl Fn(String) -> futures::future::BoxFuture<'static, bool> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), changed, wishes, gone: Box::new(gone) }))
    }

    /// Looks at this queue from now on, in this way.
    pub fn watch(&self, queue: &ObjectRef<JobQueue>, target: Target) {
        let mut state = self.state();
        let connection = target.connection.clone();
        if let Some(watched) = state.queues.get_mut(queue) {
            let keys = |target: &Target| target.shards.iter().flat_map(claimed_keys).collect::<Vec<_>>();
            if watched.target.connection != target.connection || keys(&watched.target) != keys(&target) {
                watched.claimed_at = None;
            }
            watched.target = Arc::new(target);
        } else {
            let watched = Watched {
                target: Arc::new(target),
                seen: None,
                told: None,
                history: History::default(),
                claimed_at: None,
                asked_at: None,
            };
            state.queues.insert(queue.clone(), watched);
        }
        let alive = state.tasks.get(&connection).is_some_and(|task| !task.is_finished());
        if !alive {
            let task = tokio::spawn(self.clone().look_after(connection.clone()));
            state.tasks.insert(connection, task.abort_handle());
        }
    }

    /// Looks at this queue no more.
    pub fn forget(&self, queue: &ObjectRef<JobQueue>) {
        self.state().queues.remove(queue);
    }

    /// Whether the queue's keys are known to be its own.
    pub fn owns(&self, queue: &ObjectRef<JobQueue>) -> bool {
        self.state().queues.get(queue).is_some_and(|watched| {
            let conflict = watched.seen.as_ref().is_some_and(|seen| seen.conflict.is_some());
            !conflict && (watched.claimed_at.is_some() || watched.target.protocol == Protocol::Sidekiq)
        })
    }

    /// What was seen last.
    pub fn seen(&self, queue: &ObjectRef<JobQueue>) -> Option<Observation> {
        self.state().queues.get(queue).and_then(|watched| watched.seen.clone())
    }

    /// The gauges: every queue with its figures and the names of its lists.
    pub fn all(&self) -> Vec<(ObjectRef<JobQueue>, Observation, Arc<Target>)> {
        let state = self.state();
        let seen = state.queues.iter().filter_map(|(queue, watched)| {
            Some((queue.clone(), watched.seen.clone()?, Arc::clone(&watched.target)))
        });
        seen.collect()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queues on one connection.
    fn on(&self, connection: &str) -> Vec<(ObjectRef<JobQueue>, Arc<Target>)> {
        let state = self.state();
        let on = state.queues.iter().filter(|(_, watched)| watched.target.connection == connection);
        on.map(|(queue, watched)| (queue.clone(), Arc::clone(&watched.target))).collect()
    }

    /// The task of one connection: ends when no queue uses it.
    async fn look_after(self, connection: String) {
        let mut sessions: HashMap<String, Session> = HashMap::new();
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failures = 0;
        loop {
            tick.tick().await;
            let queues = self.on(&connection);
            if queues.is_empty() {
                let mut state = self.state();
                // Under the same lock under which a queue would find this task alive.
                if !state.queues.values().any(|watched| watched.target.connection == connection) {
                    state.tasks.remove(&connection);
                    return;
                }
                continue;
            }
            let mut lost = None;
            for (queue, target) in queues {
                // A Redis that cannot be reached is asked once a round, not once a queue.
                if let Some(trouble) = &lost {
                    self.saw(&queue, Err(Trouble::clone(trouble)));
                    continue;
                }
                let seen = self.look(&queue, &target, &mut sessions).await;
                let unreachable = matches!(seen, Err(StoreError::Connect(_) | StoreError::Lost(_)));
                let seen = seen.map_err(|error| Trouble::from(&error));
                if let (true, Err(trouble)) = (unreachable, &seen) {
                    lost = Some(trouble.clone());
                }
                self.saw(&queue, seen);
            }
            failures = if lost.is_some() { failures + 1 } else { 0 };
            if failures > 1 {
                tokio::time::sleep((INTERVAL * failures).min(LONGEST_BACKOFF)).await;
            }
        }
    }

    /// One look at one queue.
    async fn look(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        sessions: &mut HashMap<String, Session>,
    ) -> Result<(Figures, Option<(String, String)>), StoreError> {
        let mut figures = Figures::default();
        let mut conflict = None;
        for shard in &target.shards {
            // One connection serves all queues of a plain Redis; a Cluster's shards may live on different nodes.
            let spread = target.shards.len() > 1 || matches!(target.settings.address, Address::Cluster(_));
            let node = if spread { shard.slot_key() } else { String::new() };
            let session = sessions.entry(node).or_insert_with(|| {
                Session::new(&Connector::new(target.settings.clone()), shard, LONGEST_BACKOFF)
            });
            session.keys = shard.clone();
            if conflict.is_none() {
                conflict = self.claim(queue, target, session).await?;
            }
            if conflict.is_some() {
                continue;
            }
            let snapshot = session.snapshot(jobqueue::effects::Side::Right).await?;
            let unfit =
                snapshot.unfit.iter().chain(snapshot.queues.iter().flat_map(|queue| &queue.unfit)).next();
            if let Some(unfit) = unfit {
                // Counted as empty it would send the workers home.
                return Err(StoreError::Unfit { key: unfit.key.clone(), reason: unfit.reason.clone() });
            }
            self.pause(session, target, snapshot.paused).await?;
            figures.add(&snapshot);
        }
        if let (None, Some(watched)) = (&conflict, self.state().queues.get_mut(queue)) {
            // Asked again only when it is not fresh any more.
            if watched.claimed_at.is_none_or(|at| at.elapsed() >= CLAIM_AGAIN) {
                watched.claimed_at = Some(Instant::now());
            }
        }
        Ok((figures, conflict))
    }

    /// Whether the owner of a claim does not exist any more; who cannot be asked about is taken to exist.
    async fn is_gone(&self, owner: String) -> bool {
        tokio::time::timeout(ASKING, (self.0.gone)(owner)).await.unwrap_or(false)
    }

    /// Sets or removes our mark that stops the workers. One that a person set stays; one of a queue that is gone does not.
    async fn pause(&self, session: &mut Session, target: &Target, paused: bool) -> Result<(), StoreError> {
        let key = session.keys.paused();
        if target.paused && !paused {
            session.set(&key, &target.owner).await?;
        } else if !target.paused && paused {
            let by = session.get(&key).await?.unwrap_or_default();
            if by == target.owner || (by.contains('/') && self.is_gone(by).await) {
                session.unlink(&key).await?;
            }
        }
        Ok(())
    }

    /// Makes the queue's lists its own, once; another owner that does not exist any more is replaced.
    async fn claim(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        session: &mut Session,
    ) -> Result<Option<(String, String)>, StoreError> {
        let (claimed, earlier) = {
            let state = self.state();
            let watched = state.queues.get(queue);
            let recently = |watched: &&Watched| {
                watched.asked_at.is_some_and(|at: Instant| at.elapsed() < CLAIM_INTERVAL)
            };
            let earlier =
                watched.filter(recently).and_then(|watched| watched.seen.as_ref()?.conflict.clone());
            let fresh = |watched: &Watched| watched.claimed_at.is_some_and(|at| at.elapsed() < CLAIM_AGAIN);
            (watched.is_none_or(fresh), earlier)
        };
        if claimed || target.protocol == Protocol::Sidekiq || earlier.is_some() {
            return Ok(earlier);
        }
        if let Some(watched) = self.state().queues.get_mut(queue) {
            watched.asked_at = Some(Instant::now());
        }
        for key in claimed_keys(&session.keys) {
            let mut owner = session.own(&key, &target.owner, None).await?;
            if owner != target.owner && (is_same(&owner, &target.owner) || self.is_gone(owner.clone()).await)
            {
                owner = session.own(&key, &target.owner, Some(&owner)).await?;
            }
            if owner != target.owner {
                if let Some(watched) = self.state().queues.get_mut(queue) {
                    watched.claimed_at = None;
                }
                return Ok(Some((key, owner)));
            }
        }
        Ok(None)
    }

    /// Notes what was seen, decides on the number of workers, and tells who should know.
    fn saw(&self, queue: &ObjectRef<JobQueue>, seen: Result<(Figures, Option<(String, String)>), Trouble>) {
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(queue) else { return };
        let earlier = watched.seen.clone();
        let mut now = earlier.clone().unwrap_or_default();
        match seen {
            Err(trouble) => now.trouble = Some(trouble),
            Ok((figures, conflict)) => {
                now.trouble = None;
                now.conflict = conflict;
                now.figures = figures;
            }
        }
        // An unreadable Redis says nothing about the number of workers: hold, unless somebody else decides it.
        let mut wish = None;
        let target = &watched.target;
        let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        let manual = target.scaling.mode == ScalingMode::Manual && watched.claimed_at.is_some();
        let decision = if now.conflict.is_some() {
            // Two that serve the same lists by different rules would ruin each other's jobs.
            Some(Decision {
                replicas: 0,
                reason: "the keys belong to another JobQueue".into(),
                ..Decision::default()
            })
        } else if now.trouble.is_none() || manual {
            let seen = Seen {
                now_ms,
                backlog: now.figures.waiting.iter().sum::<u64>() + now.figures.due,
                in_flight: now.figures.in_flight,
                current: target.current,
                paused: now.figures.paused,
                // Nothing blocked and no counters: depth alone decides.
                ..Seen::default()
            };
            Some(decide(&seen, &mut watched.history, &target.scaling, 1, target.manual))
        } else {
            None
        };
        if let Some(decision) = decision.filter(|decision| decision.replicas != target.current) {
            wish = Some(Wish { queue: queue.clone(), from: target.current, decision: decision.clone() });
            let mut changed = Target::clone(target);
            changed.current = decision.replicas;
            watched.target = Arc::new(changed);
            now.decision = Some((decision, now_ms));
        }
        let turned = earlier.as_ref().is_none_or(|earlier| {
            earlier.trouble != now.trouble
                || earlier.conflict != now.conflict
                || earlier.decision != now.decision
        });
        let figures = watched.told.as_ref().is_none_or(|(told, at)| {
            (at.elapsed() >= FIGURES_INTERVAL && now.figures.differs_from(told))
                || (at.elapsed() >= EMPTY_INTERVAL && now.figures.is_empty() && !told.is_empty())
        });
        if turned || figures {
            watched.told = Some((now.figures.clone(), Instant::now()));
        }
        watched.seen = Some(now);
        drop(state);
        // Whoever listened is gone only when the process ends.
        if let Some(wish) = wish {
            let _ = self.0.wishes.unbounded_send(wish);
        }
        if turned || figures {
            let _ = self.0.changed.unbounded_send(queue.clone());
        }
    }
}

/// Whether two owners are the same object, whatever its cluster was called: a uid is never used twice.
fn is_same(one: &str, other: &str) -> bool {
    let uid =
        |owner: &str| owner.rsplit_once('/').map(|(_, uid)| uid.to_owned()).filter(|uid| !uid.is_empty());
    uid(one).is_some() && uid(one) == uid(other)
}

/// What is claimed for an owner: each list of jobs, and the registry, which stands for everything else under the prefix.
pub fn claimed_keys(shard: &Keys) -> Vec<String> {
    let lists = shard.queues.iter().map(|queue| queue.queue.clone());
    lists.chain([shard.lanes()]).collect()
}
