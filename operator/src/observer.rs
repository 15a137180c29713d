//! What goes on in Redis: the only part of the operator that talks to it.
//!
//! Two tasks and two connections a Redis (address and credentials): one looks at each of its queues once a second and
//! decides on the number of workers, the other gives back the jobs of the dead. A slow or dead Redis so delays nobody but
//! its own queues. The controller says what to look at, and is told when something worth a reconcile has changed.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc::UnboundedSender;
use jobqueue::config::Config;
use jobqueue::connect::{Address, Connector, Settings};
use jobqueue::engine::{Engine, reaper_settings};
use jobqueue::keys::Keys;
use jobqueue::reaper;
use jobqueue::store::{LaneSnapshot, Session, StoreError};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use crate::api::v1alpha1::{JobQueue, Protocol, Scaling};
use crate::autoscaler::{Decision, History};
use crate::pods::Pods;
use crate::rescue::Death;

mod claims;
mod figures;
mod look;
mod tend;

pub use claims::claimed_keys;
pub use figures::Figures;

/// How often a queue is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// A dead Redis is tried again after at most this long.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// What to look at.
#[derive(Clone)]
pub struct Target {
    /// The uid of the `JobQueue`: lanes of others are never touched.
    pub uid: String,
    /// How to reach the queue's Redis.
    pub settings: Settings,
    /// Tells apart what must not share a connection.
    pub connection: String,
    /// The keys of every shard.
    pub shards: Vec<Keys>,
    /// Which format; Sidekiq's queues are shared by nature and so never claimed.
    pub protocol: Protocol,
    /// What the format decides.
    pub rules: Arc<dyn jobqueue::protocol::Protocol>,
    /// How the jobs of the dead are given back.
    pub reaper: reaper::Settings,
    /// How often.
    pub reap_interval: Duration,
    /// For how long an open breaker is remembered that nobody speaks of any more.
    pub cooldown: Duration,
    /// Jobs that one worker runs at once.
    pub concurrency: u32,
    /// Who owns the queues: `<cluster>/<namespace>/<name>/<uid>`.
    pub owner: String,
    /// Whether workers shall take no jobs.
    pub paused: bool,
    /// How many workers there may be.
    pub scaling: Scaling,
    /// `spec.replicas`.
    pub manual: Option<i32>,
    /// How many workers are asked for now, those that drain included.
    pub current: i32,
}

impl Target {
    /// What to look at for a queue with this configuration.
    pub fn new(config: &Config, queue: &JobQueue, owner: String, current: i32) -> Self {
        let engine = Engine::new(config);
        Self {
            uid: queue.uid().unwrap_or_default(),
            settings: engine.connector.settings().clone(),
            connection: String::new(),
            shards: engine.shards,
            protocol: queue.spec.protocol,
            rules: engine.protocol,
            reaper: reaper_settings(config),
            reap_interval: config.worker.reaper.interval.get(),
            cooldown: config.circuit_breaker.cooldown_period.get(),
            concurrency: config.worker.count,
            owner,
            paused: queue.spec.paused,
            scaling: queue.spec.scaling.clone(),
            manual: queue.spec.replicas,
            current,
        }
    }

    /// The session with a shard's node, made when there is none yet.
    fn session<'a>(&self, shard: &Keys, sessions: &'a mut HashMap<String, Session>) -> &'a mut Session {
        // One connection serves all queues of a plain Redis; a Cluster's shards may live on different nodes.
        let spread = self.shards.len() > 1 || matches!(self.settings.address, Address::Cluster(_));
        let node = if spread { shard.slot_key() } else { String::new() };
        let session = sessions
            .entry(node)
            .or_insert_with(|| Session::new(&Connector::new(self.settings.clone()), shard, LONGEST_BACKOFF));
        session.keys = shard.clone();
        session
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
    /// How many workers finish their jobs and then go.
    pub draining: i32,
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

/// A change in the cluster that somebody should make. None is wished for while the last one is under way.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Whose workers.
    pub queue: ObjectRef<JobQueue>,
    /// Pods, by name, that begin to drain (with the word of that drain) or work again.
    pub marks: Vec<(String, Option<String>)>,
    /// From how many workers to how many.
    pub scale: Option<(i32, Decision)>,
}

/// Looks at all queues.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: UnboundedSender<ObjectRef<JobQueue>>,
    wishes: UnboundedSender<Wish>,
    pods: Pods,
    /// Whether the `JobQueue` that an owner names is gone.
    gone: Box<dyn Fn(String) -> futures::future::BoxFuture<'static, bool> + Send + Sync>,
}

#[derive(Default)]
struct State {
    queues: HashMap<ObjectRef<JobQueue>, Watched>,
    tasks: HashMap<String, Tasks>,
}

/// The tasks of one Redis.
struct Tasks {
    looks: tokio::task::AbortHandle,
    /// Wakes the one that gives back the jobs of the dead.
    wake: Arc<Notify>,
}

struct Watched {
    target: Arc<Target>,
    seen: Option<Observation>,
    told: Option<(Figures, Instant)>,
    history: History,
    claimed_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// The lanes of all shards.
    lanes: Vec<LaneSnapshot>,
    /// Fenced lanes of all shards.
    reaping: u64,
    /// Processes that are dead, and since when that is known.
    deaths: Vec<(Death, Instant)>,
    /// Jobs of the dead that were given back, by queue.
    reaped: HashMap<String, u64>,
    /// Queues whose breaker is open, and since when nobody says so any more.
    breakers: HashMap<String, Instant>,
    /// How many workers there should be, since that has last changed.
    decided: Option<Decision>,
    /// A wish is under way.
    busy: bool,
}

impl Watched {
    fn new(target: Target) -> Self {
        Self {
            target: Arc::new(target),
            seen: None,
            told: None,
            history: History::default(),
            claimed_at: None,
            asked_at: None,
            lanes: Vec::new(),
            reaping: 0,
            deaths: Vec::new(),
            reaped: HashMap::new(),
            breakers: HashMap::new(),
            decided: None,
            busy: false,
        }
    }

    /// Whether the queue's keys are known to be its own.
    fn owns(&self) -> bool {
        let conflict = self.seen.as_ref().is_some_and(|seen| seen.conflict.is_some());
        !conflict && (self.claimed_at.is_some() || self.target.protocol == Protocol::Sidekiq)
    }
}

/// A queue as the gauges show it.
pub struct Gauges {
    /// Which.
    pub queue: ObjectRef<JobQueue>,
    /// What was seen.
    pub seen: Observation,
    /// What was looked at.
    pub target: Arc<Target>,
    /// Jobs of the dead that were given back, by queue.
    pub reaped: HashMap<String, u64>,
}

impl Observer {
    /// One that looks at nothing yet. `changed` hears of queues that should be reconciled, `wishes` of changes in the
    /// cluster; `gone` says whether the owner of a claim does not exist any more.
    pub fn new(
        changed: UnboundedSender<ObjectRef<JobQueue>>,
        wishes: UnboundedSender<Wish>,
        pods: Pods,
        gone: impl Fn(String) -> futures::future::BoxFuture<'static, bool> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), changed, wishes, pods, gone: Box::new(gone) }))
    }

    /// Looks at this queue from now on, in this way.
    pub fn watch(&self, queue: &ObjectRef<JobQueue>, target: Target) {
        let mut state = self.state();
        let connection = target.connection.clone();
        // A queue that was deleted and made again under its name is another one.
        let same = |watched: &&mut Watched| watched.target.owner == target.owner;
        if let Some(watched) = state.queues.get_mut(queue).filter(same) {
            let keys = |target: &Target| target.shards.iter().flat_map(claimed_keys).collect::<Vec<_>>();
            if watched.target.connection != target.connection || keys(&watched.target) != keys(&target) {
                watched.claimed_at = None;
            }
            watched.target = Arc::new(target);
        } else {
            state.queues.insert(queue.clone(), Watched::new(target));
        }
        let alive = state.tasks.get(&connection).is_some_and(|tasks| !tasks.looks.is_finished());
        if !alive {
            let wake = Arc::new(Notify::new());
            let looks = tokio::spawn(self.clone().look_after(connection.clone())).abort_handle();
            tokio::spawn(self.clone().tend(connection.clone(), Arc::clone(&wake)));
            state.tasks.insert(connection, Tasks { looks, wake });
        }
    }

    /// Looks at this queue no more.
    pub fn forget(&self, queue: &ObjectRef<JobQueue>) {
        self.state().queues.remove(queue);
    }

    /// Whether the queue's keys are known to be its own.
    pub fn owns(&self, queue: &ObjectRef<JobQueue>) -> bool {
        self.state().queues.get(queue).is_some_and(Watched::owns)
    }

    /// What was seen last.
    pub fn seen(&self, queue: &ObjectRef<JobQueue>) -> Option<Observation> {
        self.state().queues.get(queue).and_then(|watched| watched.seen.clone())
    }

    /// Some processes are certainly dead: their jobs are given back at once.
    pub fn died(&self, death: Death) {
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(&death.queue) else { return };
        let connection = watched.target.connection.clone();
        watched.deaths.push((death, Instant::now()));
        if let Some(tasks) = state.tasks.get(&connection) {
            tasks.wake.notify_one();
        }
    }

    /// A wish was carried out, or could not be: `replicas` is how many workers are asked for now, if that is known.
    pub fn carried_out(&self, queue: &ObjectRef<JobQueue>, replicas: Option<i32>) {
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(queue) else { return };
        watched.busy = false;
        if let Some(replicas) = replicas {
            let mut target = Target::clone(&watched.target);
            target.current = replicas;
            watched.target = Arc::new(target);
        }
    }

    /// Every queue that was seen.
    pub fn all(&self) -> Vec<Gauges> {
        let state = self.state();
        let seen = state.queues.iter().filter_map(|(queue, watched)| {
            Some(Gauges {
                queue: queue.clone(),
                seen: watched.seen.clone()?,
                target: Arc::clone(&watched.target),
                reaped: watched.reaped.clone(),
            })
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
}
