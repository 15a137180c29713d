//! Fewer workers without interrupting a job: which pods stop taking jobs, and how many may go now. Pure.
//!
//! A `ReplicaSet` decides by itself which pods it deletes, and pays attention to our wish only among pods that are equally
//! well: those that are not ready go first, whatever they are doing. So nothing is asked of it until the first pods in
//! *its* order are ones that have acknowledged to be quiet and hold nothing.
use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use kube::ResourceExt;

use crate::pods::{Pod, has};

/// Says that a pod drains, and the word that its process has to acknowledge: when the drain began, Unix milliseconds. The
/// next leader goes on from here.
pub const DRAINING: &str = "jobqueue.dev/draining";
/// What a `ReplicaSet` looks at among pods that are equally well.
pub const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Lower than what anybody else would write.
pub const DRAINING_COST: &str = "-1000000";
/// Tells the pods of one `ReplicaSet` of a Deployment from those of the next.
pub const TEMPLATE: &str = "pod-template-hash";

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

    fn restarts(&self) -> i32 {
        let of =
            |pod: &Pod| pod.status.as_ref()?.container_statuses.iter().map(|one| one.restart_count).max();
        of(&self.pod).unwrap_or(0)
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
    /// The uids of pods that should drain and do not yet.
    pub drain: Vec<String>,
    /// The uids of pods that should work again.
    pub resume: Vec<String>,
    /// How many workers to ask for, if that can be fewer now without interrupting anybody.
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
    /// No pod came or went for a while: fewer than `current` are not about to become more.
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
    let resume_all = || Plan { resume: draining().map(|worker| worker.uid()).collect(), ..Plan::default() };
    let templates: HashSet<_> = active.iter().map(|worker| worker.pod.labels().get(TEMPLATE)).collect();
    // A Deployment in the middle of a rollout takes from its old and its new pods as it likes.
    let rolling = templates.len() > 1;
    if desired >= current || rolling {
        return resume_all();
    }
    let there = i32::try_from(active.len()).unwrap_or(i32::MAX);
    if there < current && !settled {
        return Plan::default();
    }
    let surplus = usize::try_from(there.min(current) - desired).unwrap_or(0);
    if surplus == 0 {
        // Pods that could never be made: nobody is asked to go.
        return Plan { replicas: Some(desired.max(there)), ..resume_all() };
    }
    let order = deletion_order(&active, now_ms);
    // Who would go anyway, then who drains already, then who has least to do.
    let mut chosen: Vec<usize> = (0..order.len()).collect();
    chosen.sort_by_key(|at| {
        let worker = order[*at];
        (worker.standing(), worker.word().is_none(), worker.held, *at)
    });
    let chosen: HashSet<usize> = chosen.into_iter().take(surplus).collect();
    let is_late = |worker: &Worker| {
        timeout_ms.is_some_and(|bound| worker.word().is_some() && worker.waited_ms(now_ms) >= bound)
    };
    let rests = |worker: &&Worker| worker.drained || is_late(worker);
    // While others work, one that goes must also be unready in the `ReplicaSet`'s eyes: any of them may become so at any
    // moment, and would then be taken in its place. When everybody goes at once there is nobody else.
    let everybody = surplus == order.len() && order.iter().all(rests);
    let may_go = |worker: &&&Worker| is_late(worker) || worker.drained && (worker.goes_first() || everybody);
    let going: Vec<String> =
        order.iter().take(surplus).take_while(may_go).map(|worker| worker.uid()).collect();
    let uids = |wanted: &dyn Fn(usize, &Worker) -> bool| {
        let all = order.iter().enumerate().filter(|(at, worker)| wanted(*at, worker));
        all.map(|(_, worker)| worker.uid()).collect::<Vec<_>>()
    };
    let gone = i32::try_from(going.len()).unwrap_or(0);
    Plan {
        drain: uids(&|at, worker| chosen.contains(&at) && worker.word().is_none()),
        resume: uids(&|at, worker| !chosen.contains(&at) && worker.word().is_some()),
        replicas: (gone > 0).then(|| there.min(current) - gone),
        going,
        draining: i32::try_from(surplus).unwrap_or(0) - gone,
    }
}

/// Whether a `ReplicaSet` of these pods that is told to keep so many would take nobody but those who may go.
pub fn takes_only(going: &[String], pods: Vec<Pod>, replicas: i32) -> bool {
    let workers: Vec<Worker> = pods.into_iter().map(|pod| Worker { pod, held: 0, drained: false }).collect();
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
