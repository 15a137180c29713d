//! One look a second at each queue: its figures, the number of workers they ask for, and the way down to fewer.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::store::{LaneSnapshot, Session, StoreError};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::away::Away;
use super::claims::CLAIM_AGAIN;
use super::figures::{Figures, breakers};
use super::{
    ASK_AGAIN, INTERVAL, LONG_WELL, LONGEST_BACKOFF, Observation, Observer, Remedy, Scale, Sessions, Target,
    Trouble, Watched, Wish, end_unused, slim,
};
use crate::api::v1alpha1::{JobQueue, ScalingMode};
use crate::autoscaler::{Decision, History, Inputs, Seen, decide};
use crate::drain::{self, Mark, Plan, Situation, Worker};
use crate::pods::Pod;
use crate::rescue::Unheard;

/// Figures alone are worth a reconcile this often at most.
const FIGURES_INTERVAL: Duration = Duration::from_secs(30);
/// That a queue has become empty is worth one sooner: it is what people wait for.
const EMPTY_INTERVAL: Duration = Duration::from_secs(5);
/// A worker that is told to take no more jobs resumes after this long without us.
const QUIET: Duration = Duration::from_secs(60);
/// One that is drained does not resume while it is being stopped.
const STOPPING: Duration = Duration::from_secs(300);
/// Other pods than asked for, and none came or went for this long: nobody is about to make or delete some.
const SETTLED: Duration = Duration::from_secs(10);

/// What one look at one queue showed.
#[derive(Default)]
struct Look {
    figures: Figures,
    conflict: Option<(String, String)>,
    lanes: Vec<LaneSnapshot>,
    reaping: u64,
    /// Queues whose breaker is open.
    open: HashSet<String>,
}

impl Observer {
    /// The task of one connection: ends when no queue uses it.
    pub(super) async fn look_after(self, connection: String) {
        let mut sessions = Sessions::new();
        let mut away = Away::default();
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failures = 0;
        loop {
            tick.tick().await;
            let mut queues = self.on(&connection);
            if queues.is_empty() {
                let mut state = self.state();
                // Under the same lock under which a queue would find this task alive.
                if !state.queues.values().any(|watched| watched.target.connection == connection) {
                    state.tasks.remove(&connection);
                    return;
                }
                continue;
            }
            end_unused(&mut sessions, &queues);
            away.begin(&mut queues);
            let mut seen_some = false;
            for (queue, target) in queues {
                // What cannot be reached is asked once a round, not once a queue.
                let seen = if let Some(trouble) = away.of(&queue, &target, &sessions) {
                    Err(trouble)
                } else {
                    let seen = self.look(&queue, &target, &mut sessions).await;
                    away.note(&queue, &target, &mut sessions, seen.as_ref().err()).await;
                    seen_some |= seen.is_ok();
                    seen.map_err(|error| Trouble::from(&error))
                };
                if let Some(decision) = self.saw(&queue, seen) {
                    self.follow(&queue, decision, &mut sessions).await;
                }
            }
            slim(&mut sessions).await;
            // Where others of a Cluster answer, they are not to wait.
            failures = if away.is_some() && !seen_some { failures + 1 } else { 0 };
            if failures > 1 {
                tokio::time::sleep((INTERVAL * failures).min(LONGEST_BACKOFF)).await;
            }
        }
    }

    /// One look at one queue.
    async fn look(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Arc<Target>,
        sessions: &mut Sessions,
    ) -> Result<Look, StoreError> {
        let mut look = Look::default();
        let target = self.lay_out(queue, target).await?;
        let target = target.as_ref();
        for shard in &target.shards {
            let session = target.session(shard, sessions);
            if look.conflict.is_none() {
                look.conflict = self.claim(queue, target, session).await?;
            }
            if look.conflict.is_some() {
                continue;
            }
            let snapshot = session.snapshot(target.rules.consuming_side()).await?;
            if self.lost_claim(queue, target, &snapshot.owner) {
                // Redis has lost its data. Whoever else wants these lists asks for them sooner than we look at our claims.
                look.conflict = self.claim(queue, target, session).await?;
                if look.conflict.is_some() {
                    continue;
                }
            }
            let unfit =
                snapshot.unfit.iter().chain(snapshot.queues.iter().flat_map(|queue| &queue.unfit)).next();
            if let Some(unfit) = unfit {
                // Counted as empty it would send the workers home.
                return Err(StoreError::Unfit { key: unfit.key.clone(), reason: unfit.reason.clone() });
            }
            self.pause(session, target, snapshot.paused).await?;
            let queues = shard.queues.iter().zip(&snapshot.queues).filter(|(_, seen)| seen.breaker);
            look.open.extend(queues.map(|(queue, _)| queue.name.clone()));
            look.figures.add(&snapshot);
            look.reaping += snapshot.reaping;
            look.lanes.extend(snapshot.open_lanes);
        }
        if let (None, Some(first)) = (&look.conflict, target.shards.first()) {
            remember_breakers(target.session(first, sessions), target.cooldown, &mut look).await;
        }
        if let (None, Some(watched)) = (&look.conflict, self.state().queues.get_mut(queue)) {
            if watched.claimed_at.is_none() {
                // What enqueues waits for it.
                self.tell(queue);
            }
            // Asked again only when it is not fresh any more.
            if watched.claimed_at.is_none_or(|at| at.elapsed() >= CLAIM_AGAIN) {
                watched.claimed_at = Some(Instant::now());
            }
        }
        Ok(look)
    }

    /// Asks now and then for the shards that an earlier layout left behind, and has them looked after too.
    async fn lay_out(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Arc<Target>,
    ) -> Result<Arc<Target>, StoreError> {
        let is_known = |watched: &Watched| watched.laid_out_at.is_some_and(|at| at.elapsed() < CLAIM_AGAIN);
        if self.state().queues.get(queue).is_none_or(is_known) {
            return Ok(Arc::clone(target));
        }
        let leftovers = target.leftovers().await?;
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(queue) else { return Ok(Arc::clone(target)) };
        watched.laid_out_at = Some(Instant::now());
        watched.target = Arc::new(Target::clone(&watched.target).with(&leftovers));
        watched.leftovers = leftovers;
        Ok(Arc::clone(&watched.target))
    }

    /// Notes what was seen, and tells who should know. Answers how many workers there should be; nothing when that cannot
    /// be told.
    fn saw(&self, queue: &ObjectRef<JobQueue>, seen: Result<Look, Trouble>) -> Option<Decision> {
        let mut state = self.state();
        let watched = state.queues.get_mut(queue)?;
        let earlier = watched.seen.clone();
        let mut now = earlier.clone().unwrap_or_default();
        match seen {
            Err(trouble) => {
                // The words for one outage change from look to look, and so would the status. Where somebody has to do
                // something they say what: those are followed, now and then.
                let recently = watched.told.as_ref().is_some_and(|(_, at)| at.elapsed() < FIGURES_INTERVAL);
                let same = now.trouble.as_ref().is_some_and(|earlier| earlier.kind == trouble.kind);
                if !(same && (recently || trouble.kind == Remedy::Wait)) {
                    now.trouble = Some(trouble);
                }
            }
            Ok(look) => {
                now.trouble = None;
                now.conflict = look.conflict;
                now.figures = look.figures;
                watched.lanes = look.lanes;
                watched.reaping = look.reaping;
                let names = watched.target.shards.first().map(|shard| shard.queues.as_slice());
                let is_open = |at: usize| {
                    names.and_then(|names| names.get(at)).is_some_and(|one| look.open.contains(&one.name))
                };
                now.figures.open = (0..now.figures.waiting.len()).map(is_open).collect();
            }
        }
        self.ask_for_unheard(queue, watched);
        let decision = decision(watched, &now, || Some(self.0.pods.of(queue)?.0));
        // Workers go long after it was decided that they are too many; the reason is that of the decision.
        let decision = match (decision, watched.decided.take()) {
            (Some(new), Some(earlier)) if new.replicas == earlier.replicas => Some(earlier),
            (new, _) => new,
        };
        watched.decided.clone_from(&decision);
        let turned = earlier.as_ref().is_none_or(|earlier| {
            earlier.trouble != now.trouble
                || earlier.conflict != now.conflict
                || earlier.figures.open != now.figures.open
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
        if turned || figures {
            self.tell(queue);
        }
        decision
    }

    /// Has those pods asked for that hold lanes and that nobody has heard of: they went while no operator looked.
    fn ask_for_unheard(&self, queue: &ObjectRef<JobQueue>, watched: &mut Watched) {
        let Watched { lanes, target, unheard, .. } = watched;
        let bound = target.grace.max(LONG_WELL).as_secs();
        let moment = jiff::Timestamp::now().as_second() - i64::try_from(bound).unwrap_or(i64::MAX);
        let Ok(moment) = jiff::Timestamp::from_second(moment) else { return };
        let ours = lanes.iter().filter(|lane| lane.jobqueue_uid == target.uid && !lane.pod_uid.is_empty());
        let mut uids = self.0.pods.unheard_of(queue, ours.map(|lane| &lane.pod_uid), moment);
        unheard.retain(|uid, at| uids.contains(uid) && at.elapsed() < ASK_AGAIN);
        uids.retain(|uid| !unheard.contains_key(uid));
        if !uids.is_empty() {
            unheard.extend(uids.iter().map(|uid| (uid.clone(), Instant::now())));
            let _ = self.0.unheard.unbounded_send(Unheard { queue: queue.clone(), uids });
        }
    }

    /// Goes towards a number of workers: up at once, down as far as nobody is interrupted.
    async fn follow(&self, queue: &ObjectRef<JobQueue>, decision: Decision, sessions: &mut Sessions) {
        let (target, lanes, conflict, early) = {
            let state = self.state();
            let Some(watched) = state.queues.get(queue).filter(|watched| !watched.busy) else { return };
            let conflict = watched.seen.as_ref().is_some_and(|seen| seen.conflict.is_some());
            let early = watched.patience.is_waiting(Instant::now());
            (Arc::clone(&watched.target), watched.lanes.clone(), conflict, early)
        };
        let current = target.asked.replicas;
        let decided = Instant::now();
        // Without them nobody is known to rest; more workers can come all the same.
        let pods = self.0.pods.of(queue);
        let known = pods.is_some();
        let (pods, changed) = pods.unwrap_or_default();
        let mut workers: Vec<Worker> = (pods.into_iter())
            .map(|pod| {
                let uid = pod.uid().unwrap_or_default();
                let held = lanes.iter().filter(|lane| lane.pod_uid == uid).map(|lane| lane.held).sum();
                Worker { pod, held, drained: false }
            })
            .collect();
        let now_ms = now_ms();
        let mut plan = Plan::default();
        if early {
            // Too early for another try; but whoever drains must not resume meanwhile because nobody tells it to be quiet.
            if let Err(error) = hush(&target, &mut workers, sessions).await {
                tracing::debug!(jobqueue = queue.name, error = %error, "Could not tell workers to be quiet");
            }
            return;
        }
        if conflict {
            // Two that serve the same lists by different rules would ruin each other's jobs: they go at once.
            plan.replicas = (decision.replicas < current).then_some(decision.replicas);
        } else if known && (decision.replicas < current || workers.iter().any(Worker::is_marked)) {
            // Of a Redis that does not answer nobody is known to rest: more workers can come all the same, and those whose
            // time is up can go.
            if let Err(error) = hush(&target, &mut workers, sessions).await {
                tracing::debug!(jobqueue = queue.name, error = %error, "Could not tell workers to be quiet");
                for worker in &mut workers {
                    worker.drained = false;
                }
            }
            let situation = Situation {
                current,
                desired: decision.replicas,
                settled: changed.is_none_or(|at| at.elapsed() >= SETTLED),
                timeout_ms: target.scaling.drain_timeout.map(|bound| millis(bound.get())),
                now_ms,
            };
            plan = drain::plan(&workers, situation);
            if let Err(error) = resume(&target, &plan.resume, sessions).await {
                // The marks stay until they have been told.
                tracing::debug!(jobqueue = queue.name, error = %error, "Could not tell workers to resume");
                plan.resume.clear();
            }
        } else if decision.replicas > current {
            plan.replicas = Some(decision.replicas);
        }
        let going = (!conflict).then(|| std::mem::take(&mut plan.going));
        let scale = plan.replicas.filter(|replicas| *replicas != current);
        let scale = scale.map(|replicas| Scale {
            from: target.asked.clone(),
            decision: Decision { replicas, ..decision },
            decided,
            going,
        });
        self.wish(queue, &workers, &plan, scale, now_ms);
    }

    /// Has a plan carried out.
    fn wish(
        &self,
        queue: &ObjectRef<JobQueue>,
        workers: &[Worker],
        plan: &Plan,
        scale: Option<Scale>,
        now_ms: u64,
    ) {
        let named = |uids: &[String], mark: &dyn Fn(String) -> Mark| {
            let of = |uid: &String| workers.iter().find(|worker| worker.uid() == *uid);
            let word = |worker: &Worker| worker.word().cloned().unwrap_or_else(|| now_ms.to_string());
            let marked = uids.iter().filter_map(of).map(|worker| (worker.pod.name_any(), mark(word(worker))));
            marked.collect::<Vec<_>>()
        };
        let mut marks = named(&plan.drain, &Mark::Draining);
        marks.extend(named(&plan.rested, &Mark::Rested));
        marks.extend(named(&plan.resume, &|_| Mark::Working));
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(queue) else { return };
        let mut turned = false;
        if let Some(seen) = watched.seen.as_mut() {
            // That workers were scaled is told when they were.
            turned = seen.draining != plan.draining;
            seen.draining = plan.draining;
            if turned {
                watched.told = Some((seen.figures.clone(), Instant::now()));
            }
        }
        let wished = !marks.is_empty() || scale.is_some();
        watched.busy = wished;
        drop(state);
        if wished {
            // Whoever listened is gone only when the process ends.
            let _ = self.0.wishes.unbounded_send(Wish { queue: queue.clone(), marks, scale });
        }
        if turned {
            self.tell(queue);
        }
    }

    pub(super) fn tell(&self, queue: &ObjectRef<JobQueue>) {
        let _ = self.0.changed.unbounded_send(queue.clone());
    }
}

/// How many workers there should be. An unreadable Redis says nothing about that: hold, unless somebody else decides it.
fn decision(
    watched: &mut Watched,
    now: &Observation,
    pods: impl FnOnce() -> Option<Vec<Pod>>,
) -> Option<Decision> {
    let target = &watched.target;
    if now.conflict.is_some() {
        let reason = "the keys belong to another JobQueue".into();
        return Some(Decision { replicas: 0, reason, inputs: Inputs::default() });
    }
    let manual = target.scaling.mode == ScalingMode::Manual && watched.claimed_at.is_some();
    if now.trouble.is_some() && !manual {
        return None;
    }
    let (backlog, blocked) = now.figures.backlog();
    let current = target.asked.replicas;
    // Who begins to lead goes on with the drains that it finds.
    let pods = if watched.history.is_undecided() { pods() } else { Some(Vec::new()) };
    let known = pods.is_some();
    let seen = Seen {
        now_ms: now.figures.now_ms,
        backlog,
        blocked,
        held: now.figures.held(),
        in_flight: now.figures.in_flight,
        finished: now.figures.finished,
        busy_ms: now.figures.busy_ms,
        current,
        draining: drain::draining(pods.unwrap_or_default(), current),
        paused: now.figures.paused,
    };
    // Before the pods are known nobody knows who drains: more workers can come, but that is no decision to keep.
    let mut first = History::default();
    let history = if known { &mut watched.history } else { &mut first };
    Some(decide(&seen, history, &target.scaling, target.concurrency, target.manual))
}

/// Finds out which breakers are open: as the workers say, and where none of them speaks of it (they are gone, or
/// new) as they said last, for one cooldown. That is kept in Redis, so that the next leader knows it too.
async fn remember_breakers(session: &mut Session, cooldown: Duration, look: &mut Look) {
    let names: Vec<String> = session.keys.queues.iter().map(|queue| queue.name.clone()).collect();
    let said = breakers(&look.lanes);
    for name in names {
        let (was, now) = (look.open.contains(&name), said.get(name.as_str()).copied());
        let told = match now {
            Some(true) => session.tell_breaker(&name, Some(cooldown)).await,
            Some(false) if was => session.tell_breaker(&name, None).await,
            _ => Ok(()),
        };
        if let Err(error) = told {
            // A full Redis refuses it. What was seen counts all the same.
            tracing::debug!(queue = name, error = %error, "Could not remember a breaker");
        }
        match now {
            Some(true) => {
                look.open.insert(name);
            }
            Some(false) => {
                look.open.remove(&name);
            }
            None => {}
        }
    }
}

/// Tells the workers that drain to take no more jobs, again and again, and notes which of them have come to rest.
async fn hush(target: &Target, workers: &mut [Worker], sessions: &mut Sessions) -> Result<(), StoreError> {
    let words: Vec<(usize, String, String)> = (workers.iter().enumerate())
        .filter_map(|(at, worker)| Some((at, worker.uid(), worker.word()?.clone())))
        .collect();
    if words.is_empty() {
        return Ok(());
    }
    let told: Vec<(String, String)> =
        words.iter().map(|(_, uid, word)| (uid.clone(), word.clone())).collect();
    for (at, ..) in &words {
        workers[*at].drained = true;
    }
    for shard in &target.shards {
        let session = target.session(shard, sessions);
        for (uid, word) in &told {
            session.quiet(uid, word, QUIET).await?;
        }
        for ((at, ..), drained) in words.iter().zip(session.drained(&told, STOPPING).await?) {
            workers[*at].drained &= drained;
        }
    }
    Ok(())
}

/// Tells workers that they may take jobs again.
async fn resume(target: &Target, uids: &[String], sessions: &mut Sessions) -> Result<(), StoreError> {
    for uid in uids {
        for shard in &target.shards {
            target.session(shard, sessions).resume(uid).await?;
        }
    }
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
