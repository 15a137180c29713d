//! Fewer workers without interrupting a job: which pods stop taking jobs, and how many may go now. Pure.
//!
//! A `ReplicaSet` decides by itself which pods it deletes, and pays attention to our wish only among pods that are equally
//! well: those that are not ready go first, whatever they are doing. So nothing is asked of it until the first pods in
//! *its* order are ones that have acknowledged to be quiet and hold nothing.
use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use kube::ResourceExt;

use crate::pods::{ContainerStatus, Pod, has};

/// Says that a pod drains, and the word that its process has to acknowledge: when the drain began, Unix milliseconds. The
/// next leader goes on from here.
pub const DRAINING: &str = "jobqueue.dev/draining";
/// What a `ReplicaSet` looks at among pods that are equally well.
pub const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Of a pod that drains: lower than what anybody else would write.
pub const DRAINING_COST: &str = "-1000000";
/// Of one that has come to rest: lower than of any that still has a job to finish.
pub const RESTED_COST: &str = "-2000000";
/// Tells the pods of one `ReplicaSet` of a Deployment from those of the next.
pub const TEMPLATE: &str = "pod-template-hash";

/// What is written on a pod about its drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// It drains, with this word.
    Draining(String),
    /// It has come to rest, as it was told with this word.
    Rested(String),
    /// It works, as before.
    Working,
}

/// A pod, and what its process does.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The pod.
    pub pod: Pod,
    /// Jobs that it holds.
    pub held: u64,
    /// It has acknowledged the word of its drain and holds nothing, and this cannot change for a while.
    pub drained: bool,
}

impl Worker {
    /// One of which nothing but its pod is known.
    fn unknown(pod: Pod) -> Self {
        Self { pod, held: 0, drained: false }
    }

    /// Its uid.
    pub fn uid(&self) -> String {
        self.pod.uid().unwrap_or_default()
    }

    /// The word that it was told when its drain began.
    pub fn word(&self) -> Option<&String> {
        self.pod.annotations().get(DRAINING)
    }

    /// Whether a `ReplicaSet` counts it.
    fn is_active(&self) -> bool {
        let phase = self.phase();
        self.pod.metadata.deletion_timestamp.is_none() && phase != "Failed" && phase != "Succeeded"
    }

    fn phase(&self) -> &str {
        self.pod.status.as_ref().map(|status| status.phase.as_str()).unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        has(&self.pod, "Ready")
    }

    /// What comes before the cost in a `ReplicaSet`'s eyes, the least first: whether it has a node, its phase, whether it is
    /// ready.
    fn standing(&self) -> (bool, u8, bool) {
        let phase = match self.phase() {
            "Pending" | "" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        (self.pod.spec.node_name.is_some(), phase, self.is_ready())
    }

    /// Goes before any pod that is well, whatever its cost.
    fn goes_first(&self) -> bool {
        self.standing() < (true, 2, true)
    }

    fn cost(&self) -> i64 {
        self.pod.annotations().get(COST).and_then(|cost| cost.parse().ok()).unwrap_or(0)
    }

    fn is_marked_rested(&self) -> bool {
        self.pod.annotations().get(COST).is_some_and(|cost| cost == RESTED_COST)
    }

    /// Says anything about a drain. A patch that was written late may have left half of it: a cost without a word.
    pub fn is_marked(&self) -> bool {
        self.word().is_some() || self.is_marked_rested()
    }

    /// How often its containers were started again at most, then its sidecars.
    fn restarts(&self) -> (i32, i32) {
        let Some(status) = &self.pod.status else { return (0, 0) };
        let most = |all: &mut dyn Iterator<Item = &ContainerStatus>| {
            all.map(|one| one.restart_count).max().unwrap_or_default()
        };
        let sidecars = self.pod.spec.init_containers.iter().filter(|one| one.restart_policy == "Always");
        let names: HashSet<&str> = sidecars.map(|one| one.name.as_str()).collect();
        let is_sidecar = |one: &&ContainerStatus| names.contains(one.name.as_str());
        (
            most(&mut status.container_statuses.iter()),
            most(&mut status.init_container_statuses.iter().filter(is_sidecar)),
        )
    }

    fn ready_since(&self) -> Option<Timestamp> {
        let conditions = &self.pod.status.as_ref()?.conditions;
        Some(conditions.iter().find(|one| one.kind == "Ready")?.last_transition_time.as_ref()?.0)
    }

    fn created(&self) -> Option<Timestamp> {
        Some(self.pod.metadata.creation_timestamp.as_ref()?.0)
    }

    /// Since when it drains.
    fn waited_ms(&self, now_ms: u64) -> u64 {
        let began: u64 = self.word().and_then(|word| word.parse().ok()).unwrap_or(now_ms);
        now_ms.saturating_sub(began)
    }
}

/// What to do about surplus workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The uids of pods that should drain and do not say so, or say that they rest and do not.
    pub drain: Vec<String>,
    /// The uids of pods that have come to rest and do not say so yet.
    pub rested: Vec<String>,
    /// The uids of pods that should work again.
    pub resume: Vec<String>,
    /// How many workers to ask for: more, or as few as there can be now without interrupting anybody.
    pub replicas: Option<i32>,
    /// The uids of the pods that go then: nobody else may.
    pub going: Vec<String>,
    /// How many are left that drain.
    pub draining: i32,
}

/// What is known beside the pods.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// `spec.replicas` of the Deployment.
    pub current: i32,
    /// How many workers should be left.
    pub desired: i32,
    /// No pod came or went for a while: they are not about to become more, or fewer.
    pub settled: bool,
    /// After this long a worker goes, whatever it does: it is told to stop and gives its jobs back.
    pub timeout_ms: Option<u64>,
    /// Now.
    pub now_ms: u64,
}

/// Plans. Called again and again: what it plans follows from what is there, so anybody can go on with it.
pub fn plan(workers: &[Worker], situation: Situation) -> Plan {
    let Situation { current, desired, settled, timeout_ms, now_ms } = situation;
    let active: Vec<&Worker> = workers.iter().filter(|worker| worker.is_active()).collect();
    let draining = || active.iter().filter(|worker| worker.word().is_some());
    let more = (desired > current).then_some(desired);
    let resume_all = || Plan {
        resume: active.iter().filter(|worker| worker.is_marked()).map(|worker| worker.uid()).collect(),
        replicas: more,
        ..Plan::default()
    };
    let templates: HashSet<_> = active.iter().map(|worker| worker.pod.labels().get(TEMPLATE)).collect();
    // A Deployment in the middle of a rollout takes from its old and its new pods as it likes.
    let rolling = templates.len() > 1;
    let there = count(active.len());
    // Those were given up already: nothing but the time that it takes to delete them keeps them there.
    let condemned = (there - current).max(0);
    if rolling || desired >= current && condemned == 0 {
        return resume_all();
    }
    if there != current && !settled {
        // The `ReplicaSet` is making pods, or deleting them. Whom it deletes it has chosen when it began, so until it has
        // come to an end nobody may resume, nor more workers be asked for: what is left would look like workers to keep.
        return Plan { draining: (count(draining().count()) - condemned).max(0), ..Plan::default() };
    }
    let surplus = usize::try_from(condemned.max(there - desired)).unwrap_or(0);
    if surplus == 0 {
        // Pods that could never be made: nobody is asked to go.
        return Plan { replicas: Some(desired.max(there)), ..resume_all() };
    }
    let order = deletion_order(&active, now_ms);
    // Who goes already, who would go anyway, then who drains already, then who has least to do.
    let mut chosen: Vec<usize> = (0..order.len()).collect();
    let given_up = usize::try_from(condemned).unwrap_or(0);
    chosen.sort_by_key(|at| {
        let worker = order[*at];
        (*at >= given_up, worker.standing(), worker.word().is_none(), worker.held, *at)
    });
    let chosen: HashSet<usize> = chosen.into_iter().take(surplus).collect();
    let is_late = |worker: &Worker| {
        timeout_ms.is_some_and(|bound| worker.word().is_some() && worker.waited_ms(now_ms) >= bound)
    };
    let rests = |worker: &&Worker| worker.drained || is_late(worker);
    // While others work, one that goes must be unready in the `ReplicaSet`'s eyes, because any of them may become so at any
    // moment, and must cost less than those who drain too: otherwise one of them could be taken in its place. When
    // everybody goes at once there is nobody else.
    let everybody = surplus == order.len() && order.iter().all(rests);
    let stands_out = |worker: &Worker| worker.goes_first() && worker.is_marked_rested();
    let may_go = |worker: &&&Worker| is_late(worker) || worker.drained && (stands_out(worker) || everybody);
    // One that works again unasked, because nobody had told it to be quiet for too long, says that it rests until it is
    // marked anew, and could be taken for it.
    let deceived = order.iter().any(|worker| worker.is_marked_rested() && !rests(worker));
    let may_leave = if deceived { 0 } else { surplus };
    let going: Vec<String> =
        order.iter().take(may_leave).take_while(may_go).map(|worker| worker.uid()).collect();
    let uids = |wanted: &dyn Fn(usize, &Worker) -> bool| {
        let all = order.iter().enumerate().filter(|(at, worker)| wanted(*at, worker));
        all.map(|(_, worker)| worker.uid()).collect::<Vec<_>>()
    };
    let gone = count(going.len());
    Plan {
        drain: uids(&|at, worker| {
            chosen.contains(&at) && (worker.word().is_none() || worker.is_marked_rested() && !rests(&worker))
        }),
        rested: uids(&|at, worker| {
            chosen.contains(&at) && worker.drained && !worker.is_marked_rested() && !everybody
        }),
        resume: uids(&|at, worker| !chosen.contains(&at) && worker.is_marked()),
        replicas: more.or_else(|| Some(there - gone).filter(|fewer| *fewer < current.min(there))),
        going,
        draining: count(surplus) - gone.max(condemned),
    }
}

/// How many of the `current` workers that are asked for drain, as their pods say.
pub fn draining(pods: Vec<Pod>, current: i32) -> i32 {
    let workers: Vec<Worker> = pods.into_iter().map(Worker::unknown).collect();
    let active: Vec<&Worker> = workers.iter().filter(|worker| worker.is_active()).collect();
    let marked = count(active.iter().filter(|worker| worker.word().is_some()).count());
    // Who was given up already is not asked for any more.
    (marked - (count(active.len()) - current).max(0)).max(0)
}

/// Whether a `ReplicaSet` of these pods that is told to keep so many would take nobody but those who may go.
pub fn takes_only(going: &[String], pods: Vec<Pod>, replicas: i32) -> bool {
    let workers: Vec<Worker> = pods.into_iter().map(Worker::unknown).collect();
    let active: Vec<&Worker> = workers.iter().filter(|worker| worker.is_active()).collect();
    let surplus = active.len().saturating_sub(usize::try_from(replicas).unwrap_or(0));
    let now_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let order = deletion_order(&active, now_ms);
    order.into_iter().take(surplus).all(|worker| going.contains(&worker.uid()))
}

/// The pods in the order in which a `ReplicaSet` of Kubernetes 1.33 and later deletes them, the first one first.
fn deletion_order<'a>(active: &[&'a Worker], now_ms: u64) -> Vec<&'a Worker> {
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for worker in active {
        *on_node.entry(worker.pod.spec.node_name.as_deref().unwrap_or_default()).or_default() += 1;
    }
    let crowd = |worker: &Worker| on_node[worker.pod.spec.node_name.as_deref().unwrap_or_default()];
    let mut order = active.to_vec();
    order.sort_by(|one, other| {
        let plain = |worker: &Worker| (worker.standing(), worker.cost(), Reverse(crowd(worker)));
        plain(one).cmp(&plain(other)).then_with(|| {
            if one.is_ready() && one.ready_since() != other.ready_since() {
                return younger_first(one.ready_since(), other.ready_since(), now_ms)
                    .then_with(|| one.uid().cmp(&other.uid()));
            }
            Reverse(one.restarts())
                .cmp(&Reverse(other.restarts()))
                .then_with(|| younger_first(one.created(), other.created(), now_ms))
                .then_with(|| one.uid().cmp(&other.uid()))
        })
    });
    order
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

/// Ages count by their magnitude only, so that the youngest are not always the ones to go.
fn younger_first(one: Option<Timestamp>, other: Option<Timestamp>, now_ms: u64) -> Ordering {
    let magnitude = |at: Option<Timestamp>| {
        let ms = at.map_or(0, |at| u64::try_from(at.as_millisecond()).unwrap_or(0));
        // Nanoseconds, as Kubernetes has them: the steps are the same.
        let age = u128::from(now_ms.saturating_sub(ms)) * 1_000_000;
        age.checked_ilog2().unwrap_or(0)
    };
    match (one, other) {
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        _ => magnitude(one).cmp(&magnitude(other)),
    }
}

#[cfg(test)]
mod tests;
