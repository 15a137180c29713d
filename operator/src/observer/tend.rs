//! Gives back the jobs of the dead and brings back delayed ones, for every queue of a Redis. Harmless when another leader
//! does the same: each step is guarded in Redis.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::effects::Verdict;
use jobqueue::keys::Keys;
use jobqueue::promoter;
use jobqueue::reaper::{Reaped, Reaper};
use jobqueue::store::{Fenced, LaneSnapshot, Session, StoreError};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use super::{INTERVAL, LONGEST_BACKOFF, Observer, Target};
use crate::api::v1alpha1::{JobQueue, Protocol};
use crate::rescue::{self, Death};

/// Workers reap by themselves this long after the operator has gone.
const CENTRAL: Duration = Duration::from_secs(15);
/// How often they are told that they need not.
const CENTRAL_AGAIN: Duration = Duration::from_secs(5);
/// A queue without lanes is searched for lists that nobody claims this often.
const AUDIT: Duration = Duration::from_secs(60);
/// Lanes of a process that is dead are looked for this long: what was seen of them may be a second old.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Why the app beside a worker died is told for this long.
const TOLD: Duration = Duration::from_secs(10);
/// Kubernetes says why a container ended this long after its successor has started, as a rule much sooner.
const CAUSE_KNOWN: Duration = Duration::from_secs(5);

/// What is remembered of one shard.
struct Tended {
    reaper: Reaper,
    marked: Option<Instant>,
    passed: Option<Instant>,
    /// Fenced lanes of which it is not known yet why they died.
    unexplained: HashMap<String, Instant>,
}

/// What the looks say of a queue.
struct Queue {
    lanes: Vec<LaneSnapshot>,
    reaping: u64,
    due: u64,
    deaths: Vec<Death>,
}

impl Observer {
    /// The task of one connection: ends when no queue uses it.
    pub(super) async fn tend(self, connection: String, wake: Arc<Notify>) {
        let mut sessions: HashMap<String, Session> = HashMap::new();
        let mut tended: HashMap<(ObjectRef<JobQueue>, String), Tended> = HashMap::new();
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = wake.notified() => {}
            }
            let queues = self.on(&connection);
            if queues.is_empty() && !self.state().tasks.contains_key(&connection) {
                return;
            }
            tended.retain(|(queue, _), _| queues.iter().any(|(known, _)| known == queue));
            for (queue, target) in queues {
                let Some(known) = self.known(&queue) else { continue };
                for shard in &target.shards {
                    let session = target.session(shard, &mut sessions);
                    let place = (queue.clone(), shard.slot_key());
                    let tended = tended.entry(place).or_insert_with(|| Tended::new(&target, shard));
                    let outcome = self.tend_shard(&queue, &target, &known, session, tended).await;
                    if let Err(error) = outcome {
                        tracing::debug!(jobqueue = queue.name, error = %error, "Could not give back jobs");
                        if error.is_transient() {
                            let wait = session.backoff().min(LONGEST_BACKOFF);
                            tokio::time::sleep(wait).await;
                            break;
                        }
                    }
                }
            }
        }
    }

    /// What the looks say; nothing while the keys may be another's, or cannot be read.
    fn known(&self, queue: &ObjectRef<JobQueue>) -> Option<Queue> {
        let mut state = self.state();
        let watched = state.queues.get_mut(queue)?;
        watched.deaths.retain(|(_, since)| since.elapsed() < REMEMBERED);
        if !watched.owns() {
            return None;
        }
        let seen = watched.seen.as_ref().filter(|seen| seen.trouble.is_none())?;
        let known = Queue {
            lanes: watched.lanes.clone(),
            reaping: watched.reaping,
            due: seen.figures.due(),
            deaths: watched.deaths.iter().map(|(death, _)| death.clone()).collect(),
        };
        // Of its app a worker is told once: the next death may have another cause.
        watched.deaths.retain(|(death, _)| !death.app);
        Some(known)
    }

    async fn tend_shard(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        known: &Queue,
        session: &mut Session,
        tended: &mut Tended,
    ) -> Result<(), StoreError> {
        if tended.marked.is_none_or(|at| at.elapsed() >= CENTRAL_AGAIN) {
            session.mark_central(&target.owner, CENTRAL).await?;
            tended.marked = Some(Instant::now());
        }
        let mut fenced = Vec::new();
        for death in &known.deaths {
            fenced.extend(bury(session, target, &known.lanes, death).await?);
        }
        if let Some(watched) = self.state().queues.get_mut(queue) {
            // What the next look would say.
            watched.lanes.retain(|lane| !fenced.contains(&lane.lane));
        }
        // What is due of Sidekiq's jobs waits in sets that no queue counts as its own.
        if known.due > 0 || target.protocol == Protocol::Sidekiq {
            promoter::pass(session, &target.rules).await?;
        }
        let pause = if known.lanes.is_empty() && known.reaping == 0 { AUDIT } else { target.reap_interval };
        if !fenced.is_empty() || tended.passed.is_none_or(|at| at.elapsed() >= pause) {
            tended.passed = Some(Instant::now());
            if known.reaping > 0 {
                self.explain(queue, session, tended).await?;
            }
            let reaped = tended.reaper.pass_on(session).await?;
            self.count(queue, &reaped);
        }
        Ok(())
    }

    /// A process that was started again in place has fenced its predecessor without knowing why it died. Kubernetes does:
    /// its lanes wait until it has said so, a moment at most.
    async fn explain(
        &self,
        queue: &ObjectRef<JobQueue>,
        session: &mut Session,
        tended: &mut Tended,
    ) -> Result<(), StoreError> {
        let lanes = session.reaping(100).await?;
        let mut unexplained = HashMap::new();
        for (lane, (record, _)) in lanes.iter().zip(session.look_at(&lanes).await?) {
            let Some(record) = record.filter(|record| record.fenced == "restarted") else { continue };
            let deaths = self.0.pods.find(queue, &record.pod_uid).map(|pod| rescue::deaths(&pod));
            let its = |death: &Death| !death.app && record.started_ms < death.before_ms;
            if let Some(death) = deaths.unwrap_or_default().into_iter().find(its) {
                session.fence(lane, true, death.cause).await?;
                continue;
            }
            let since = tended.unexplained.get(lane).copied().unwrap_or_else(Instant::now);
            if since.elapsed() < CAUSE_KNOWN {
                unexplained.insert(lane.clone(), since);
            }
        }
        tended.reaper.spare(unexplained.keys().cloned());
        // A lane whose time is up must not begin to wait again.
        for (lane, since) in tended.unexplained.drain() {
            if lanes.contains(&lane) {
                unexplained.entry(lane).or_insert(since);
            }
        }
        tended.unexplained = unexplained;
        Ok(())
    }

    fn count(&self, queue: &ObjectRef<JobQueue>, reaped: &Reaped) {
        if reaped.moved.is_empty() {
            return;
        }
        let dead = reaped.moved.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Dead(_))).count();
        tracing::warn!(
            namespace = queue.namespace,
            jobqueue = queue.name,
            count = reaped.moved.len(),
            dead,
            "Gave back jobs of dead workers"
        );
        if let Some(watched) = self.state().queues.get_mut(queue) {
            for (name, _) in &reaped.moved {
                *watched.reaped.entry(name.clone()).or_default() += 1;
            }
        }
    }
}

impl Tended {
    fn new(target: &Target, shard: &Keys) -> Self {
        // Its own session never connects: every pass is on one that all queues of the Redis share.
        let session =
            Session::new(&jobqueue::connect::Connector::new(target.settings.clone()), shard, LONGEST_BACKOFF);
        let reaper = Reaper::new(session, Arc::clone(&target.rules), target.reaper);
        Self { reaper, marked: None, passed: None, unexplained: HashMap::new() }
    }
}

/// Takes the lanes of dead processes away from them, and says which; or tells a living one that its app has died.
async fn bury(
    session: &mut Session,
    target: &Target,
    lanes: &[LaneSnapshot],
    death: &Death,
) -> Result<Vec<String>, StoreError> {
    if death.app {
        session.tell_death(&death.pod_uid, death.cause, TOLD).await?;
        return Ok(Vec::new());
    }
    let its = |lane: &&LaneSnapshot| {
        lane.pod_uid == death.pod_uid && lane.jobqueue_uid == target.uid && lane.started_ms < death.before_ms
    };
    let mut fenced = Vec::new();
    for lane in lanes.iter().filter(its) {
        if session.fence(&lane.lane, true, death.cause).await? == Fenced::Fenced {
            tracing::warn!(
                worker_id = lane.lane,
                reason = death.cause,
                "Fenced a lane whose process Kubernetes saw die"
            );
            fenced.push(lane.lane.clone());
        }
    }
    Ok(fenced)
}
