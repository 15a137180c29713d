//! What goes on in Redis: the only part of the operator that talks to it.
//!
//! Two tasks and two connections a Redis (address and credentials): one looks at each of its queues once a second and
//! decides on the number of workers, the other gives back the jobs of the dead. A slow or dead Redis so delays nobody but
//! its own queues. The controller says what to look at, and is told when something worth a reconcile has changed.
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc::UnboundedSender;
use jobqueue::config::Config;
use jobqueue::connect::{Address, ConnectError, Connector, Settings};
use jobqueue::engine::{Engine, reaper_settings};
use jobqueue::keys::Keys;
use jobqueue::layout::{self, LayoutError};
use jobqueue::reaper;
use jobqueue::store::{LaneSnapshot, Session, StoreError};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use crate::api::v1alpha1::{JobQueue, Protocol, Scaling};
use crate::autoscaler::{Decision, History};
use crate::drain::Mark;
use crate::pods::Pods;
use crate::rescue::{Death, Unheard};

mod away;
mod claims;
mod figures;
mod look;
mod tend;

pub use claims::{claimed_keys, is_same_owner};
pub use figures::Figures;

/// How often a queue is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// A dead Redis is tried again after at most this long.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// A number of workers that Kubernetes refuses is asked for again after at most this long.
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);
/// Lanes of a process that is dead are looked for this long.
const REMEMBERED: Duration = Duration::from_secs(30);
/// A death that nothing could be done about for this long is left to the heartbeat.
const GIVEN_UP: Duration = Duration::from_secs(600);

/// Pods that nobody has heard of are asked for again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// A node counts as well for them when it has been so for as long as a worker has to stop, and for this long at least: its
/// clock is not ours.
const LONG_WELL: Duration = Duration::from_secs(60);

/// Kubernetes says why a container ended this long after its successor has started, as a rule much sooner.
const CAUSE_WAIT: Duration = Duration::from_secs(5);

/// How the dead of one queue are looked after in a task that all queues of its Redis share: nobody's settings may take
/// the time of the others. One large page of the scan a pass, so that it needs no pauses.
fn shared_reaper(asked: reaper::Settings) -> reaper::Settings {
    reaper::Settings {
        page_delay: asked.page_delay.min(Duration::from_millis(100)),
        pass_budget: asked.pass_budget.min(INTERVAL),
        scan_count: asked.scan_count.max(1000),
        scan_pages: 1,
        cause_wait: CAUSE_WAIT,
        ..asked
    }
}

/// What to look at.
#[derive(Clone)]
pub struct Target {
    /// The uid of the `JobQueue`: lanes of others are never touched.
    pub uid: String,
    /// How to reach the queue's Redis.
    pub settings: Settings,
    /// Tells apart what must not share a connection.
    pub connection: String,
    /// The keys of every shard; those that an earlier layout left behind come after the configured ones.
    pub shards: Vec<Keys>,
    /// What they are made from.
    engine: Engine,
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
    /// How long a worker has to stop.
    pub grace: Duration,
    /// How many workers there may be.
    pub scaling: Scaling,
    /// `spec.replicas`.
    pub manual: Option<i32>,
    /// How many workers are asked for now, those that drain included.
    pub asked: Asked,
}

/// How many workers a Deployment is asked for, and since which of its generations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// So many.
    pub replicas: i32,
    /// The uid of the Deployment.
    pub deployment: String,
    /// Grows with each change of what it is asked for.
    pub generation: i64,
}

impl Asked {
    /// Whether `other` was read later from the same Deployment.
    fn is_before(&self, other: &Self) -> bool {
        self.deployment == other.deployment && self.generation < other.generation
    }
}

impl Target {
    /// What to look at for a queue with this configuration.
    pub fn new(config: &Config, queue: &JobQueue, owner: String, asked: Asked) -> Self {
        let engine = Engine::new(config);
        Self {
            uid: queue.uid().unwrap_or_default(),
            settings: engine.connector.settings().clone(),
            connection: String::new(),
            shards: engine.shards.clone(),
            protocol: queue.spec.protocol,
            rules: Arc::clone(&engine.protocol),
            engine,
            reaper: shared_reaper(reaper_settings(config)),
            reap_interval: config.worker.reaper.interval.get().min(INTERVAL),
            cooldown: config.circuit_breaker.cooldown_period.get(),
            concurrency: config.worker.count,
            owner,
            paused: queue.spec.paused,
            grace: queue.spec.grace(),
            scaling: queue.spec.scaling.clone(),
            manual: queue.spec.replicas,
            asked,
        }
    }

    /// The shards that an earlier layout left behind and that are not empty: workers serve them, so they count.
    pub async fn leftovers(&self) -> Result<Vec<Keys>, StoreError> {
        let engine = Engine { connector: Connector::new(self.settings.clone()), ..self.engine.clone() };
        layout::leftovers(&engine).await.map_err(|error| match error {
            LayoutError::Store(error) => error,
            newer @ LayoutError::Newer { .. } => StoreError::Unexpected(newer.to_string()),
        })
    }

    /// With the shards that were left behind.
    fn with(mut self, leftovers: &[Keys]) -> Self {
        self.shards = self.engine.shards.iter().chain(leftovers).cloned().collect();
        self
    }

    /// Whether other queues of the same Redis may be on other nodes.
    fn is_on_cluster(&self) -> bool {
        matches!(self.settings.address, Address::Cluster(_))
    }

    /// What the session with a shard's node is called. One serves all queues of a plain Redis; a Cluster's shards may live
    /// on different nodes.
    fn place(&self, shard: &Keys) -> String {
        let spread = self.shards.len() > 1 || self.is_on_cluster();
        if spread { shard.slot_key() } else { String::new() }
    }

    /// The session with a shard's node, made when there is none yet.
    fn session<'a>(&self, shard: &Keys, sessions: &'a mut Sessions) -> &'a mut Session {
        let session = sessions
            .entry(self.place(shard))
            .or_insert_with(|| Session::new(&Connector::new(self.settings.clone()), shard, LONGEST_BACKOFF));
        session.keys = shard.clone();
        session
    }
}

/// The sessions of one task, by [`Target::place`].
type Sessions = HashMap<String, Session>;

/// Ends the sessions with shards that none of these queues has: of a queue that is gone, or of a wider layout.
fn end_unused(sessions: &mut Sessions, queues: &[(ObjectRef<JobQueue>, Arc<Target>)]) {
    let places = queues.iter().flat_map(|(_, target)| target.shards.iter().map(|shard| target.place(shard)));
    let used: HashSet<String> = places.collect();
    sessions.retain(|place, _| used.contains(place));
}

/// Lets go of the memory of large replies: what all Redises of a namespace may take is shared.
async fn slim(sessions: &mut Sessions) {
    for session in sessions.values_mut() {
        session.slim().await;
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
    /// What to do about it.
    pub kind: Remedy,
    /// What it is.
    pub message: String,
}

/// What to do about a Redis that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Wait: it is away, or busy.
    Wait,
    /// Other credentials, or more rights for these.
    Credentials,
    /// Another Redis, or another key.
    Change,
}

impl From<&StoreError> for Trouble {
    fn from(error: &StoreError) -> Self {
        let kind = match error {
            StoreError::Denied { .. } | StoreError::Connect(ConnectError::Credentials { .. }) => {
                Remedy::Credentials
            }
            error if error.is_transient() => Remedy::Wait,
            _ => Remedy::Change,
        };
        Self { kind, message: error.to_string() }
    }
}

/// A change in the cluster that somebody should make. None is wished for while the last one is under way.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Whose workers.
    pub queue: ObjectRef<JobQueue>,
    /// Pods, by name, that begin to drain, have come to rest or work again.
    pub marks: Vec<(String, Mark)>,
    /// A number of workers.
    pub scale: Option<Scale>,
}

/// A change of the number of workers.
#[derive(Debug, Clone)]
pub struct Scale {
    /// What it was decided on: anything else in the cluster, and it has to be decided again.
    pub from: Asked,
    /// To how many, and why.
    pub decision: Decision,
    /// When the look began that it was decided by. What that saw of the workers does not stay so for long.
    pub decided: Instant,
    /// The uids of the pods that may go for it; `None`: whoever is there.
    pub going: Option<Vec<String>>,
}

/// Fewer workers are asked for this long after the look that found them at rest, and no longer. What these were told holds for
/// a minute at least, has to hold until they are gone, and is not said again while the wish is under way.
const FRESH: Duration = Duration::from_secs(30);

impl Scale {
    /// Whether it asks for fewer workers by a look that is too old: some of those that were found at rest may have taken jobs
    /// since. The next look decides anew.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.decision.replicas < self.from.replicas && now.duration_since(self.decided) > FRESH
    }
}

/// What came of a wish.
#[derive(Debug, Clone, Default)]
pub struct Carried {
    /// How many workers are asked for now, if that is known.
    pub asked: Option<Asked>,
    /// What the number of workers was changed to, and why.
    pub scaled: Option<Decision>,
    /// Something was refused, or could not be asked for.
    pub failed: bool,
}

/// When to wish for something again that could not be done: at once would be every second, and for ever.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
    until: Option<Instant>,
}

impl Patience {
    /// Notes how a wish ended: after each failure in a row the next one waits twice as long.
    fn note(&mut self, failed: bool, now: Instant) {
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        let wait = INTERVAL.saturating_mul(2u32.saturating_pow(self.failures.saturating_sub(1)));
        self.until = failed.then(|| now + wait.min(LONGEST_PATIENCE));
    }

    /// Whether it is too early for the next one.
    fn is_waiting(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// Looks at all queues.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: UnboundedSender<ObjectRef<JobQueue>>,
    wishes: UnboundedSender<Wish>,
    unheard: UnboundedSender<Unheard>,
    pods: Pods,
    /// Whether the `JobQueue` that an owner names is gone.
    gone: Box<dyn Fn(String) -> futures::future::BoxFuture<'static, bool> + Send + Sync>,
}

#[derive(Default)]
struct State {
    queues: HashMap<ObjectRef<JobQueue>, Watched>,
    tasks: HashMap<String, Tasks>,
    /// Also of queues that are not watched yet: who begins to lead hears of pods before it has read every queue.
    deaths: HashMap<ObjectRef<JobQueue>, Vec<Mourned>>,
}

/// Processes that are dead.
struct Mourned {
    death: Death,
    /// Since when that is known.
    since: Instant,
    /// When their lanes were first taken away, or their app's death told.
    buried: Option<Instant>,
}

impl Mourned {
    /// Whether there is still something to do about it. What was seen of lanes may be a second old, so they are looked for
    /// a while longer; of its app a worker is told once, because the next death may have another cause.
    fn is_open(&self) -> bool {
        match self.buried {
            None => self.since.elapsed() < GIVEN_UP,
            Some(at) => !self.death.app && at.elapsed() < REMEMBERED,
        }
    }
}

/// The tasks of one Redis: there as long as one of its queues is.
struct Tasks {
    /// Wakes the one that gives back the jobs of the dead.
    wake: Arc<Notify>,
}

/// Begins a task again that has panicked: an answer that we are not up to must not end our care for a Redis.
async fn keep<F>(task: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while let Err(error) = tokio::spawn(task()).await {
        tracing::error!(error = %error, "Begins again");
        tokio::time::sleep(INTERVAL).await;
    }
}

struct Watched {
    target: Arc<Target>,
    seen: Option<Observation>,
    told: Option<(Figures, Instant)>,
    history: History,
    claimed_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// The list that another had claimed was nobody's when it was last asked for.
    vacant: bool,
    /// The shards that an earlier layout left behind, and when that was asked.
    leftovers: Vec<Keys>,
    laid_out_at: Option<Instant>,
    /// The lanes of all shards.
    lanes: Vec<LaneSnapshot>,
    /// Fenced lanes of all shards.
    reaping: u64,
    /// Pods of lanes that nobody has heard of, and when they were last asked for.
    unheard: HashMap<String, Instant>,
    /// Jobs of the dead that were given back, by queue.
    reaped: HashMap<String, u64>,
    /// How many workers there should be, since that has last changed.
    decided: Option<Decision>,
    /// A wish is under way.
    busy: bool,
    /// The last ones could not be carried out.
    patience: Patience,
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
            vacant: false,
            leftovers: Vec::new(),
            laid_out_at: None,
            lanes: Vec::new(),
            reaping: 0,
            unheard: HashMap::new(),
            reaped: HashMap::new(),
            decided: None,
            busy: false,
            patience: Patience::default(),
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
        unheard: UnboundedSender<Unheard>,
        pods: Pods,
        gone: impl Fn(String) -> futures::future::BoxFuture<'static, bool> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            changed,
            wishes,
            unheard,
            pods,
            gone: Box::new(gone),
        }))
    }

    /// Looks at this queue from now on, in this way.
    pub fn watch(&self, queue: &ObjectRef<JobQueue>, target: Target) {
        let mut state = self.state();
        let connection = target.connection.clone();
        // A queue that was deleted and made again under its name is another one.
        let same = |watched: &&mut Watched| watched.target.owner == target.owner;
        if let Some(watched) = state.queues.get_mut(queue).filter(same) {
            let keys =
                |target: &Target| target.engine.shards.iter().flat_map(claimed_keys).collect::<Vec<_>>();
            if watched.target.connection != target.connection || keys(&watched.target) != keys(&target) {
                (watched.claimed_at, watched.laid_out_at) = (None, None);
                watched.leftovers.clear();
            }
            let mut target = target.with(&watched.leftovers);
            if target.asked.is_before(&watched.target.asked) {
                // A wish was carried out since it was read.
                target.asked = watched.target.asked.clone();
            }
            watched.target = Arc::new(target);
        } else {
            state.queues.insert(queue.clone(), Watched::new(target));
        }
        state.tasks.entry(connection).or_insert_with_key(|connection| {
            let wake = Arc::new(Notify::new());
            let (observer, place) = (self.clone(), connection.clone());
            tokio::spawn(keep(move || observer.clone().look_after(place.clone())));
            let (observer, place, woken) = (self.clone(), connection.clone(), Arc::clone(&wake));
            tokio::spawn(keep(move || observer.clone().tend(place.clone(), Arc::clone(&woken))));
            Tasks { wake }
        });
    }

    /// Takes over what the spec says of the workers that there are, when it could not be applied: whether they take jobs,
    /// and how many there may be. Where the jobs are, and what runs them, stays as it was applied.
    pub fn heed(&self, queue: &JobQueue) {
        let mut state = self.state();
        let uid = queue.uid().unwrap_or_default();
        let watched = state.queues.get_mut(&ObjectRef::from_obj(queue));
        // A queue that was deleted and made again under its name is another one.
        let Some(watched) = watched.filter(|watched| watched.target.uid == uid) else { return };
        watched.target = Arc::new(Target {
            paused: queue.spec.paused,
            scaling: queue.spec.scaling.clone(),
            manual: queue.spec.replicas,
            ..Target::clone(&watched.target)
        });
    }

    /// Looks at this queue no more.
    pub fn forget(&self, queue: &ObjectRef<JobQueue>) {
        let mut state = self.state();
        state.queues.remove(queue);
        state.deaths.remove(queue);
    }

    /// Whether the queue's keys are known to be its own.
    pub fn owns(&self, queue: &ObjectRef<JobQueue>) -> bool {
        self.state().queues.get(queue).is_some_and(Watched::owns)
    }

    /// What is looked at.
    pub fn target(&self, queue: &ObjectRef<JobQueue>) -> Option<Arc<Target>> {
        self.state().queues.get(queue).map(|watched| Arc::clone(&watched.target))
    }

    /// What was seen last, with the figures that are worth telling: newer ones are told when it is their time, whatever
    /// else there is to write, or each write would find something to write again.
    pub fn seen(&self, queue: &ObjectRef<JobQueue>) -> Option<Observation> {
        let state = self.state();
        let watched = state.queues.get(queue)?;
        let mut seen = watched.seen.clone()?;
        if let Some((told, _)) = &watched.told {
            seen.figures = told.clone();
        }
        Some(seen)
    }

    /// Some processes are certainly dead: their jobs are given back at once.
    pub fn died(&self, death: Death) {
        let mut state = self.state();
        state.deaths.retain(|_, deaths| deaths.iter().any(Mourned::is_open));
        let connection = state.queues.get(&death.queue).map(|watched| watched.target.connection.clone());
        let mourned = state.deaths.entry(death.queue.clone()).or_default();
        if mourned.iter().any(|one| one.death == death && one.is_open()) {
            return;
        }
        mourned.push(Mourned { death, since: Instant::now(), buried: None });
        if let Some(tasks) = connection.and_then(|connection| state.tasks.get(&connection)) {
            tasks.wake.notify_one();
        }
    }

    /// A wish came to its end, one way or another.
    pub fn carried_out(&self, queue: &ObjectRef<JobQueue>, carried: Carried) {
        let Carried { asked, scaled, failed } = carried;
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(queue) else { return };
        watched.busy = false;
        watched.patience.note(failed, Instant::now());
        if let Some(asked) = asked.filter(|asked| !asked.is_before(&watched.target.asked)) {
            watched.target = Arc::new(Target { asked, ..Target::clone(&watched.target) });
        }
        let (Some(decision), Some(seen)) = (scaled, watched.seen.as_mut()) else { return };
        seen.decision = Some((decision, look::now_ms()));
        watched.told = Some((seen.figures.clone(), Instant::now()));
        drop(state);
        self.tell(queue);
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

#[cfg(test)]
mod tests {
    use futures::channel::mpsc::unbounded;
    use futures::future::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::autoscaler::Inputs;

    #[test]
    fn what_could_not_be_done_is_wished_for_less_and_less_often() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        assert!(!patience.is_waiting(now));
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            patience.note(true, now);
            assert!(patience.is_waiting(now + Duration::from_millis(wait * 1000 - 1)), "{wait} s");
            assert!(!patience.is_waiting(now + Duration::from_secs(wait)), "{wait} s");
        }
        patience.note(false, now);
        assert!(!patience.is_waiting(now));
    }

    #[test]
    fn a_number_of_workers_is_good_for_a_while_when_it_is_a_smaller_one() {
        let decided = Instant::now();
        for (from, to, seconds, stale) in
            [(3, 1, 0, false), (3, 1, 30, false), (3, 1, 31, true), (3, 0, 300, true), (1, 3, 300, false)]
        {
            let from = Asked { replicas: from, ..Asked::default() };
            let decision = Decision { replicas: to, reason: "jobs".into(), inputs: Inputs::default() };
            let scale = Scale { from, decision, decided, going: None };
            assert_eq!(scale.is_stale(decided + Duration::from_secs(seconds)), stale, "{scale:?}");
        }
    }

    #[test]
    fn a_queue_that_cannot_be_applied_is_paused_and_scaled_all_the_same() {
        let queue = |uid: &str, spec: serde_json::Value| {
            let mut queue = JobQueue::new("orders", serde_json::from_value(spec).unwrap());
            queue.metadata.uid = Some(uid.into());
            queue
        };
        let observer = Observer::new(unbounded().0, unbounded().0, unbounded().0, Pods::default(), |_| {
            async { false }.boxed()
        });
        let (config, before) = (Config::from_value(json!({})).unwrap().config, queue("u", json!({})));
        let target = Target::new(&config, &before, "c/n/orders/u".into(), Asked::default());
        let reference = ObjectRef::from_obj(&before);
        observer.state().queues.insert(reference.clone(), Watched::new(target));
        let changed =
            json!({ "paused": true, "replicas": 7, "scaling": { "mode": "Manual", "maxReplicas": 9 } });
        observer.heed(&queue("another", changed.clone()));
        assert!(!observer.target(&reference).unwrap().paused, "it has the same name, and that is all");
        observer.heed(&queue("u", changed));
        let now = observer.target(&reference).unwrap();
        assert_eq!((now.paused, now.manual, now.scaling.max_replicas), (true, Some(7), 9));
        assert_eq!(now.scaling.mode, crate::api::v1alpha1::ScalingMode::Manual);
    }

    #[test]
    fn no_queue_takes_the_time_of_those_it_shares_a_task_with() {
        let patient = json!({ "pageDelay": "10m", "passBudget": "1h", "interval": "24h" });
        let spec = json!({ "worker": { "reaper": patient } });
        let queue = JobQueue::new("slow", serde_json::from_value(spec).unwrap());
        let reaper = json!({ "page_delay": "10m", "pass_budget": "1h", "interval": "24h" });
        let config = Config::from_value(json!({ "worker": { "reaper": reaper } })).unwrap().config;
        let target = Target::new(&config, &queue, "c/n/slow/u".into(), Asked::default());
        assert!(target.reaper.page_delay <= Duration::from_millis(100));
        assert!(target.reaper.pass_budget <= INTERVAL && target.reap_interval <= INTERVAL);
    }
}
