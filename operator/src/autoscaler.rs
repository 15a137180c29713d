//! How many workers there should be: a pure decision on what was seen now and before.
//!
//! Up at once and in one step. Down only after fewer have been enough, with a margin, for `scaleDownDelay`; who then goes
//! is drained first, elsewhere. Nothing here knows Redis, Kubernetes or a clock: the same looks give the same decisions,
//! so [`simulation`] can replay hours of them.
mod history;
pub mod plot;
pub mod simulation;
#[cfg(test)]
mod tests;

pub use history::History;

pub use crate::api::v1alpha1::ScalingInputs as Inputs;
use jobqueue::terminal::counted;

use crate::api::v1alpha1::{Scaling, ScalingMode};

/// How much of the workers' slots the time rule plans with: queues grow without bound as the last fifth is used up.
pub const UTILISATION: f64 = 0.8;
/// The margin that the time rule keeps is at most this part of the load, and half a worker: an average varies less than
/// the jobs themselves, and so the workers that it keeps are a fifth, and one for rounding, above what is needed.
const LARGEST_MARGIN: f64 = 0.2;

/// What one look at Redis and the cluster showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// When, by Redis' clock in Unix milliseconds.
    pub now_ms: u64,
    /// Jobs that wait, suspects and due ones included, of queues whose breaker is not open.
    pub backlog: u64,
    /// The same, of queues whose breaker is open.
    pub blocked: u64,
    /// The same, of queues from which nobody may fetch.
    pub held: u64,
    /// Jobs that workers hold.
    pub in_flight: u64,
    /// Attempts that have ended so far, done or failed. Starts again at 0 when Redis has lost its data.
    pub finished: u64,
    /// Milliseconds that those attempts took, together.
    pub busy_ms: u64,
    /// How many workers the Deployment asks for now, those that drain and those that start included.
    pub current: i32,
    /// How many of those drain, as their pods say: what a leader before has decided. Counts only before the first decision.
    pub draining: i32,
    /// Whether jobs are held back on purpose.
    pub paused: bool,
}

/// How many workers there should be, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// So many. Fewer than there are is reached by draining those that are too many.
    pub replicas: i32,
    /// In words, for events and the status.
    pub reason: String,
    /// What it was decided on.
    pub inputs: Inputs,
}

/// Decides. Called only after a look that succeeded: what cannot be read changes nothing. `concurrency` is how many jobs
/// a worker runs at once, `manual` is `spec.replicas`, which holds in mode Manual.
pub fn decide(
    seen: &Seen,
    history: &mut History,
    spec: &Scaling,
    concurrency: u32,
    manual: Option<i32>,
) -> Decision {
    let came = history.look(seen);
    let demand = Demand::new(seen, history, spec, concurrency, came > 0);
    if spec.mode == ScalingMode::Manual {
        history.forget_wishes();
        let replicas = manual.unwrap_or(1).max(0);
        let inputs = demand.inputs(seen, history, replicas);
        return Decision { replicas, reason: format!("spec.replicas is {replicas}"), inputs };
    }
    let base = history.base(seen);
    let range = Range::new(seen, spec, base);
    let wish = range.clamp(demand.workers());
    let window_ms = u64::try_from(spec.scale_down_delay.get().as_millis()).unwrap_or(u64::MAX);
    let highest = history.highest(window_ms, range.clamp(demand.workers_with_margin())).min(range.max);
    let replicas = if wish > base { wish } else { base.min(highest) };
    history.decided(replicas);
    let reason = if replicas > base {
        demand.reason_for_more(seen, spec, replicas)
    } else if replicas < seen.current {
        demand.reason_for_fewer(seen, spec, replicas)
    } else {
        demand.reason_to_hold(seen, spec, wish, replicas)
    };
    Decision { replicas, reason, inputs: demand.inputs(seen, history, highest) }
}

/// Between which numbers the decision must lie.
struct Range {
    least: i32,
    most: i32,
    /// What the user allows; the workers that are there may be more than `most`, and stay until the delay is over.
    max: i32,
}

impl Range {
    /// `base` is how many workers there are, without those that drain.
    fn new(seen: &Seen, spec: &Scaling, base: i32) -> Self {
        let (min, max) = (spec.min_replicas, spec.max_replicas.max(spec.min_replicas));
        if seen.paused {
            return Self { least: min, most: min, max };
        }
        if only_blocked(seen) {
            // Somebody must find out that the other side is back, and nobody more must knock on its door until then.
            let probe = 1.clamp(min, max);
            return Self { least: probe, most: base.clamp(probe, max), max };
        }
        Self { least: min, most: max, max }
    }

    fn clamp(&self, wish: i32) -> i32 {
        wish.clamp(self.least, self.most)
    }
}

/// Whether all that waits is behind open breakers.
fn only_blocked(seen: &Seen) -> bool {
    seen.blocked > 0 && seen.backlog == 0
}

/// How much work there is, by each of the two rules.
struct Demand {
    /// Jobs, waiting and running.
    jobs: u64,
    /// Jobs, for workers that take `backlogPerWorker` each.
    depth: Load,
    /// Busy slots, for workers that have `concurrency` of them; not known before a job has ended.
    time: Option<Load>,
    /// Whether workers are started for it: only with `targetLatency`. Without, none is stopped that is needed for it.
    by_time: bool,
}

impl Demand {
    fn new(seen: &Seen, history: &History, spec: &Scaling, concurrency: u32, came: bool) -> Self {
        let jobs = seen.backlog.saturating_add(seen.in_flight);
        let per_second = history.arrivals_per_second();
        // By how much the jobs may become more by chance: as many as arrive until the next time to scale down.
        let arrivals = per_second * spec.scale_down_delay.get().as_secs_f64();
        // Work that came and went between two looks is work: a worker is needed for it, though none is to be seen.
        let counted = if came { jobs.max(1) } else { jobs };
        let per_worker = f64::from(spec.backlog_per_worker.max(1));
        let depth = Load { amount: real(counted), per_worker, largest_margin: f64::INFINITY, arrivals };
        let time = history.run_seconds().map(|run| {
            let wait = spec.target_latency.map_or(f64::INFINITY, |latency| latency.get().as_secs_f64());
            // A slot does one job after the other while the last of them may wait; no job needs more than one.
            let slots = per_second * run + real(seen.backlog) * (run / wait.max(0.001)).min(1.0);
            // The average of arrivals never falls to nothing; the workers should when there are no jobs.
            let amount = if counted == 0 { 0.0 } else { slots };
            let per_worker = f64::from(concurrency.max(1)) * UTILISATION;
            Load { amount, per_worker, largest_margin: LARGEST_MARGIN, arrivals }
        });
        Self { jobs, depth, time, by_time: spec.target_latency.is_some() }
    }

    /// How many workers the time rule asks for.
    fn by_latency(&self) -> Option<i32> {
        self.time.as_ref().filter(|_| self.by_time).map(Load::workers)
    }

    /// How many workers it takes.
    fn workers(&self) -> i32 {
        self.depth.workers().max(self.by_latency().unwrap_or(0))
    }

    /// How many it takes if chance brings more soon. What keeps workers busy counts here even if nobody asked for a
    /// latency: sent home when the backlog is gone, they would be missed at once, and come and go forever.
    fn workers_with_margin(&self) -> i32 {
        self.depth.workers_with_margin().max(self.time.as_ref().map_or(0, Load::workers_with_margin))
    }

    fn inputs(&self, seen: &Seen, history: &History, highest: i32) -> Inputs {
        Inputs {
            backlog: seen.backlog,
            blocked: seen.blocked,
            in_flight: seen.in_flight,
            arrivals_per_minute: rounded(history.arrivals_per_second() * 60.0),
            run_millis: history.run_seconds().map(|run| rounded(run * 1000.0)),
            by_depth: self.depth.workers(),
            by_latency: self.by_latency(),
            highest,
        }
    }

    /// The rule that wants more, in words.
    fn in_words(&self, seen: &Seen, spec: &Scaling) -> String {
        match (self.by_latency(), spec.target_latency) {
            (Some(by_latency), Some(latency)) if by_latency > self.depth.workers() => {
                format!(
                    "{} waiting and more arriving, to be started within {latency}",
                    counted(seen.backlog, "job")
                )
            }
            _ => format!("{}, {} a worker", counted(self.jobs, "job"), spec.backlog_per_worker),
        }
    }

    fn reason_for_more(&self, seen: &Seen, spec: &Scaling, replicas: i32) -> String {
        if replicas == spec.min_replicas && self.workers() < replicas {
            return format!("minReplicas is {replicas}");
        }
        if only_blocked(seen) {
            return format!("{} behind an open breaker, one worker to try it", counted(seen.blocked, "job"));
        }
        let bound = if replicas < self.workers() {
            format!(", maxReplicas is {}", spec.max_replicas)
        } else {
            String::new()
        };
        self.in_words(seen, spec) + &bound
    }

    fn reason_for_fewer(&self, seen: &Seen, spec: &Scaling, replicas: i32) -> String {
        if seen.current > spec.max_replicas && replicas == spec.max_replicas {
            return format!("maxReplicas is {replicas}");
        }
        if seen.paused {
            return format!("paused for {}", spec.scale_down_delay);
        }
        if only_blocked(seen) {
            return format!(
                "{} behind an open breaker for {}",
                counted(seen.blocked, "job"),
                spec.scale_down_delay
            );
        }
        let (jobs, workers) = (counted(self.jobs, "job"), counted(replicas, "worker"));
        format!("{jobs}, and {workers} sufficed for {}", spec.scale_down_delay)
    }

    fn reason_to_hold(&self, seen: &Seen, spec: &Scaling, wish: i32, replicas: i32) -> String {
        if seen.paused {
            return "paused".to_owned();
        }
        if only_blocked(seen) {
            return format!("{} behind an open breaker", counted(seen.blocked, "job"));
        }
        if wish < replicas {
            return format!(
                "{}; fewer workers only after {}",
                counted(self.jobs, "job"),
                spec.scale_down_delay
            );
        }
        self.in_words(seen, spec)
    }
}

/// Work, in a unit of which a worker takes so much.
struct Load {
    amount: f64,
    per_worker: f64,
    /// The largest part of it that is kept as a margin.
    largest_margin: f64,
    /// How many jobs arrive within `scaleDownDelay`.
    arrivals: f64,
}

impl Load {
    fn workers(&self) -> i32 {
        saturated((self.amount / self.per_worker).ceil())
    }

    /// With room for what chance may bring: two standard deviations of jobs that come independently of each other, of
    /// which only those can differ that arrive in the time. No arrivals, no margin: what is left can only become less.
    fn workers_with_margin(&self) -> i32 {
        let chance = 2.0 * self.amount.min(self.arrivals).sqrt();
        let largest = self.amount * self.largest_margin + self.per_worker / 2.0;
        saturated(((self.amount + chance.min(largest)) / self.per_worker).ceil())
    }
}

#[allow(clippy::cast_precision_loss, reason = "beyond 2^53 jobs the last digits do not matter")]
fn real(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, reason = "saturates, which is meant")]
fn saturated(number: f64) -> i32 {
    number as i32
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, which is meant")]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}
