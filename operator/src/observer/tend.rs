//! Gives back the jobs of the dead and brings back delayed ones, for every queue of a Redis. Harmless when another leader
//! does the same: each step is guarded in Redis.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::effects::Verdict;
use jobqueue::keys::Keys;
use jobqueue::promoter;
use jobqueue::reaper::{RESTARTED, Reaped, Reaper};
use jobqueue::store::{Fenced, LaneSnapshot, Session, StoreError};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use super::away::Away;
use super::{INTERVAL, LONGEST_BACKOFF, Mourned, Observer, Sessions, Target, end_unused, slim};
use crate::api::v1alpha1::{JobQueue, Protocol};
use crate::rescue::{self, Death};

/// Workers reap by themselves this long after the operator has gone.
const CENTRAL: Duration = Duration::from_secs(15);
/// How often they are told that they need not.
const CENTRAL_AGAIN: Duration = Duration::from_secs(5);
/// A queue without lanes is searched for lists that nobody claims this often.
const AUDIT: Duration = Duration::from_secs(60);
/// Why the app beside a worker died is told for as long as the worker asks: the next death may have another cause.
const TOLD: Duration = Duration::from_secs(3);

/// What is remembered of one shard.
struct Tended {
    reaper: Reaper,
    marked: Option<Instant>,
    passed: Option<Instant>,
    /// The last pass did not come to the end of what is to be done.
    more: bool,
}

/// What the looks say of a queue.
struct Queue {
    lanes: Vec<LaneSnapshot>,
    reaping: u64,
    due: u64,
    deaths: Vec<Death>,
}

/// What the task of one connection knows from round to round.
#[derive(Default)]
struct Tending {
    sessions: Sessions,
    shards: HashMap<(ObjectRef<JobQueue>, String), Tended>,
    /// When a queue was last come to.
    tried: HashMap<ObjectRef<JobQueue>, Instant>,
    away: Away,
}

impl Observer {
    /// The task of one connection: ends when no queue uses it.
    pub(super) async fn tend(self, connection: String, wake: Arc<Notify>) {
        let mut tending = Tending::default();
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = wake.notified() => {}
            }
            // Another one may have been begun for the same Redis since.
            if !self.state().tasks.get(&connection).is_some_and(|tasks| Arc::ptr_eq(&tasks.wake, &wake)) {
                return;
            }
            if self.tend_all(&connection, &mut tending).await {
                wake.notify_one();
            }
        }
    }

    /// One round through the queues of a connection: whether to begin the next one at once. Only what was brought forward
    /// in this one can ask for that: a queue that nothing can be done about waits for the next tick, whatever is left of it.
    async fn tend_all(&self, connection: &str, tending: &mut Tending) -> bool {
        let mut round = self.on(connection);
        let Tending { sessions, shards, tried, away } = tending;
        shards.retain(|(queue, _), _| round.iter().any(|(known, _)| known == queue));
        tried.retain(|queue, _| round.iter().any(|(known, _)| known == queue));
        end_unused(sessions, &round);
        away.begin(&mut round);
        let (mut more, mut wait) = (false, Duration::ZERO);
        // Whose workers have died comes first, also before those that this round has not come to yet.
        while let Some((queue, target)) = self.bereaved(connection, tried).or_else(|| round.pop()) {
            tried.insert(queue.clone(), Instant::now());
            let Some(known) = self.known(&queue) else { continue };
            if away.of(&queue, &target, sessions).is_some() {
                continue;
            }
            let done = self.tend_queue(&queue, &target, &known, sessions, shards).await;
            away.note(&queue, &target, sessions, done.as_ref().err().map(|(error, _)| error)).await;
            match done {
                Ok(left) => {
                    more |= left;
                    self.buried(&queue, &known.deaths);
                }
                Err((error, backoff)) => {
                    tracing::debug!(jobqueue = queue.name, error = %error, "Could not give back jobs");
                    if error.is_transient() {
                        wait = wait.max(backoff);
                    }
                }
            }
        }
        slim(sessions).await;
        // Once a round, whoever could not be reached; it is the looks that find out when it is worth more than a try.
        tokio::time::sleep(wait.min(INTERVAL)).await;
        more
    }

    /// A queue of this Redis of which a death is known that nothing was done about since.
    fn bereaved(
        &self,
        connection: &str,
        tried: &HashMap<ObjectRef<JobQueue>, Instant>,
    ) -> Option<(ObjectRef<JobQueue>, Arc<Target>)> {
        let state = self.state();
        let is_new = |queue: &ObjectRef<JobQueue>, mourned: &Mourned| {
            mourned.buried.is_none() && tried.get(queue).is_none_or(|at| *at < mourned.since)
        };
        let all = state.deaths.iter().filter(|(queue, deaths)| deaths.iter().any(|one| is_new(queue, one)));
        let on = all.filter_map(|(queue, _)| Some((queue, &state.queues.get(queue)?.target)));
        let mut on = on.filter(|(_, target)| target.connection == connection);
        on.next().map(|(queue, target)| (queue.clone(), Arc::clone(target)))
    }

    /// Everything was done about these deaths that can be for now.
    fn buried(&self, queue: &ObjectRef<JobQueue>, deaths: &[Death]) {
        let mut state = self.state();
        for mourned in state.deaths.get_mut(queue).into_iter().flatten() {
            if deaths.contains(&mourned.death) {
                mourned.buried.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Whether something is left to be done at once.
    async fn tend_queue(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        known: &Queue,
        sessions: &mut Sessions,
        tended: &mut HashMap<(ObjectRef<JobQueue>, String), Tended>,
    ) -> Result<bool, (StoreError, Duration)> {
        let (mut more, mut failed) = (false, None);
        for shard in &target.shards {
            let session = target.session(shard, sessions);
            let place = (queue.clone(), shard.slot_key());
            let tended = tended.entry(place).or_insert_with(|| Tended::new(target, shard));
            let done = self.tend_shard(queue, target, known, session, tended).await;
            more |= tended.more;
            if let Err(error) = done {
                let is_away = error.is_transient();
                failed.get_or_insert((error, session.backoff()));
                if is_away {
                    break;
                }
            }
        }
        failed.map_or(Ok(more), Err)
    }

    /// What the looks say; nothing while the keys may be another's, or cannot be read.
    fn known(&self, queue: &ObjectRef<JobQueue>) -> Option<Queue> {
        let mut state = self.state();
        let deaths = state.deaths.get_mut(queue).map(|deaths| {
            deaths.retain(Mourned::is_open);
            deaths.iter().map(|mourned| mourned.death.clone()).collect::<Vec<_>>()
        });
        let watched = state.queues.get(queue)?;
        if !watched.owns() {
            return None;
        }
        let seen = watched.seen.as_ref().filter(|seen| seen.trouble.is_none())?;
        Some(Queue {
            lanes: watched.lanes.clone(),
            reaping: watched.reaping,
            due: seen.figures.due(),
            deaths: deaths.unwrap_or_default(),
        })
    }

    async fn tend_shard(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        known: &Queue,
        session: &mut Session,
        tended: &mut Tended,
    ) -> Result<(), StoreError> {
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
        if tended.more || !fenced.is_empty() || tended.passed.is_none_or(|at| at.elapsed() >= pause) {
            tended.passed = Some(Instant::now());
            if known.reaping > 0 {
                self.explain(queue, session).await?;
            }
            tended.more = false;
            let reaped = tended.reaper.pass_on(session, &target.rules, target.reaper).await?;
            tended.more = reaped.more;
            self.count(queue, &reaped);
        }
        // After it was done: where we cannot (a job is larger than we take), workers do it themselves.
        if tended.marked.is_none_or(|at| at.elapsed() >= CENTRAL_AGAIN) {
            session.mark_central(&target.owner, CENTRAL).await?;
            tended.marked = Some(Instant::now());
        }
        Ok(())
    }

    /// A process that was started again in place has fenced its predecessor without knowing why it died. Kubernetes does:
    /// the reaper waits a moment (`CAUSE_WAIT`) for what is said here.
    async fn explain(&self, queue: &ObjectRef<JobQueue>, session: &mut Session) -> Result<(), StoreError> {
        let lanes = session.reaping(100).await?;
        for (lane, (record, _)) in lanes.iter().zip(session.look_at(&lanes).await?) {
            let Some(record) = record.filter(|record| record.fenced == RESTARTED) else { continue };
            let deaths = self.0.pods.find(queue, &record.pod_uid).map(|pod| rescue::deaths(&pod));
            let its = |death: &Death| !death.app && record.started_ms < death.before_ms;
            if let Some(death) = deaths.unwrap_or_default().into_iter().find(its) {
                session.fence(lane, true, death.cause).await?;
            }
        }
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
        Self { reaper, marked: None, passed: None, more: false }
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

#[cfg(test)]
mod tests {
    use futures::channel::mpsc::unbounded;
    use futures::future::FutureExt;
    use jobqueue::config::Config;
    use serde_json::json;

    use super::*;
    use crate::observer::{Asked, Connector, Observation, Remedy, Trouble, Watched};
    use crate::pods::Pods;

    fn observer() -> Observer {
        Observer::new(unbounded().0, unbounded().0, unbounded().0, Pods::default(), |_| {
            async { false }.boxed()
        })
    }

    fn death(queue: &ObjectRef<JobQueue>, pod: &str, app: bool) -> Death {
        Death { queue: queue.clone(), pod_uid: pod.into(), before_ms: 7, cause: "oom", app }
    }

    /// Looks have begun at a queue on this Redis.
    fn watched(observer: &Observer, name: &str) -> ObjectRef<JobQueue> {
        let queue = JobQueue::new(name, serde_json::from_value(json!({})).unwrap());
        let config = Config::from_value(json!({})).unwrap().config;
        let target = Target::new(&config, &queue, format!("c/n/{name}/u"), Asked::default());
        let reference = ObjectRef::from_obj(&queue);
        let mut watched = Watched::new(target);
        watched.seen = Some(Observation::default());
        watched.claimed_at = Some(Instant::now());
        observer.state().queues.insert(reference.clone(), watched);
        reference
    }

    #[test]
    fn a_death_is_known_also_when_it_was_told_before_its_queue() {
        let (observer, queue) = (observer(), ObjectRef::new("orders"));
        observer.died(death(&queue, "p", false));
        assert!(observer.known(&queue).is_none(), "nobody has looked at it yet");
        watched(&observer, "orders");
        assert_eq!(observer.known(&queue).unwrap().deaths, [death(&queue, "p", false)]);
    }

    #[test]
    fn the_death_of_an_app_is_told_until_it_was_heard_and_then_no_more() {
        let observer = observer();
        let queue = watched(&observer, "orders");
        observer.died(death(&queue, "p", true));
        observer.died(death(&queue, "q", false));
        let known = observer.known(&queue).unwrap().deaths;
        assert_eq!(observer.known(&queue).unwrap().deaths, known, "Redis may not have answered");
        observer.buried(&queue, &known);
        assert_eq!(observer.known(&queue).unwrap().deaths, [death(&queue, "q", false)]);
    }

    #[test]
    fn a_queue_whose_worker_has_died_is_not_kept_waiting_by_others() {
        let observer = observer();
        let queues = ["a", "b", "c"].map(|name| watched(&observer, name));
        let mut tried = HashMap::new();
        assert!(observer.bereaved("", &tried).is_none());
        tried.insert(queues[1].clone(), Instant::now());
        observer.died(death(&queues[1], "p", false));
        let first = observer.bereaved("", &tried).map(|(queue, _)| queue);
        assert_eq!(first.as_ref(), Some(&queues[1]), "although this round has come to it already");
        // If nothing could be done about it, it waits for its turn: it must not keep the others waiting either.
        tried.insert(queues[1].clone(), Instant::now());
        assert!(observer.bereaved("", &tried).is_none());
    }

    #[tokio::test]
    async fn what_is_left_of_a_queue_that_cannot_be_read_does_not_keep_its_task_busy() {
        let observer = observer();
        let queue = watched(&observer, "orders");
        let target = Arc::clone(&observer.state().queues[&queue].target);
        let mut tending = Tending::default();
        let place = (queue.clone(), target.shards[0].slot_key());
        let left = Tended { more: true, ..Tended::new(&target, &target.shards[0]) };
        tending.shards.insert(place, left);
        let trouble = Trouble { kind: Remedy::Change, message: "WRONGTYPE".into() };
        let seen = Observation { trouble: Some(trouble), ..Observation::default() };
        observer.state().queues.get_mut(&queue).unwrap().seen = Some(seen);
        assert!(!observer.tend_all("", &mut tending).await);
        assert!(tending.tried.contains_key(&queue));
    }

    #[test]
    fn sessions_end_with_the_shards_they_were_for() {
        let observer = observer();
        watched(&observer, "orders");
        let mut sessions = Sessions::new();
        let round = observer.on("");
        let (_, target) = &round[0];
        target.session(&target.shards[0], &mut sessions);
        let elsewhere = Session::new(&Connector::new(target.settings.clone()), &target.shards[0], INTERVAL);
        sessions.insert("{jobqueue:7}".into(), elsewhere);
        end_unused(&mut sessions, &round);
        assert_eq!(sessions.keys().collect::<Vec<_>>(), [&target.place(&target.shards[0])]);
    }

    #[test]
    fn what_is_remembered_of_the_dead_goes_with_their_queue() {
        let observer = observer();
        let queue = watched(&observer, "orders");
        observer.died(death(&queue, "p", false));
        observer.forget(&queue);
        assert!(observer.state().deaths.is_empty());
    }
}
