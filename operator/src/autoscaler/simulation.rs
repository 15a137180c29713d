//! Replays arrival traces against [`decide`]: the same seed gives the same run.
//!
//! A model of what surrounds the decision, in seconds: workers take a while to start, have `concurrency` slots, take the
//! oldest job first, and finish what they hold before they go. Jobs come at random (Poisson) and take a random time
//! (exponential), which is the least even load that independent jobs make.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::ops::Range;

use jobqueue::config::Duration;

use super::{History, Seen, decide, real, rounded};
use crate::api::v1alpha1::Scaling;

#[cfg(test)]
mod tests;

const SECOND_US: u64 = 1_000_000;

/// How jobs come.
#[derive(Debug, Clone)]
pub enum Arrivals {
    /// So many a second.
    Steady(f64),
    /// So many a second, and now and then (second, jobs) many at once.
    Bursts(f64, Vec<(u64, u64)>),
    /// From none to so many a second and back, once in so many seconds.
    Day(f64, u64),
}

impl Arrivals {
    /// How many come a second at this time.
    fn per_second(&self, second: u64) -> f64 {
        match self {
            Self::Steady(rate) | Self::Bursts(rate, _) => *rate,
            Self::Day(peak, seconds) => {
                let part = real(second % seconds) / real(*seconds);
                // Squared, for a night that is longer than the noon.
                peak * ((1.0 - (part * std::f64::consts::TAU).cos()) / 2.0).powi(2)
            }
        }
    }

    /// How many come at once at the start of this second.
    fn at_once(&self, second: u64) -> u64 {
        let Self::Bursts(_, bursts) = self else { return 0 };
        bursts.iter().filter(|(at, _)| *at == second).map(|(_, jobs)| jobs).sum()
    }
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What to call it.
    pub name: &'static str,
    /// How long it lasts.
    pub seconds: u64,
    /// How jobs come.
    pub arrivals: Arrivals,
    /// How long a job takes on average.
    pub run_seconds: f64,
    /// How long a pod takes to start.
    pub start_seconds: u64,
    /// When Redis cannot be reached, by anybody: clients keep their jobs, and workers the results, until it is back.
    pub unreadable: Range<u64>,
    /// How many jobs a worker runs at once.
    pub concurrency: u32,
    /// The rules.
    pub scaling: Scaling,
    /// What chance starts from.
    pub seed: u64,
}

impl Scenario {
    /// Workers of 4 slots that start in 4 s, jobs of 2 s that should be started within 30 s.
    pub fn new(name: &'static str, seconds: u64, arrivals: Arrivals) -> Self {
        Self {
            name,
            seconds,
            arrivals,
            run_seconds: 2.0,
            start_seconds: 4,
            unreadable: 0..0,
            concurrency: 4,
            scaling: Scaling {
                max_replicas: 30,
                target_latency: Some(Duration::from_secs(30)),
                ..Scaling::default()
            },
            seed: 0,
        }
    }
}

/// The four traces that the documentation shows.
pub fn traces() -> Vec<Scenario> {
    let bursts = vec![(120, 600), (480, 1500)];
    vec![
        Scenario::new("steady", 900, Arrivals::Steady(10.0)),
        Scenario::new("burst", 900, Arrivals::Bursts(0.0, bursts)),
        Scenario::new("diurnal", 1800, Arrivals::Day(30.0, 900)),
        Scenario { unreadable: 420..480, ..Scenario::new("outage", 900, Arrivals::Steady(10.0)) },
    ]
}

/// One second of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Since the start.
    pub second: u64,
    /// What was decided last.
    pub desired: i32,
    /// Pods, those that start or drain included.
    pub replicas: i32,
    /// Jobs that wait.
    pub backlog: u64,
    /// Jobs that run.
    pub in_flight: u64,
    /// The longest that a job which was started in the second before had waited, in milliseconds.
    pub waited_ms: u64,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> Vec<Point> {
    let mut cluster = Cluster::new(scenario);
    let mut history = History::default();
    let mut desired = 0;
    let mut points = vec![];
    for second in 0..scenario.seconds {
        let readable = !scenario.unreadable.contains(&second);
        cluster.begin(second, readable);
        if readable {
            let (spec, concurrency) = (&scenario.scaling, scenario.concurrency);
            desired = decide(&cluster.seen(), &mut history, spec, concurrency, None).replicas;
            cluster.scale_to(desired);
        }
        points.push(cluster.point(second, desired));
        cluster.advance(readable);
    }
    points
}

/// A run as text: a line every ten seconds.
pub fn table(points: &[Point]) -> String {
    let mut text = String::from("    time  replicas  desired  backlog  in flight\n");
    for point in points.iter().step_by(10) {
        let Point { second, desired, replicas, backlog, in_flight, .. } = point;
        let (minute, second) = (second / 60, second % 60);
        let _ = writeln!(
            text,
            "{minute:>5}:{second:02}  {replicas:>8}  {desired:>7}  {backlog:>7}  {in_flight:>9}"
        );
    }
    text
}

struct Worker {
    id: u64,
    ready_us: u64,
    busy: u32,
    quiet: bool,
}

struct Cluster<'a> {
    scenario: &'a Scenario,
    random: fastrand::Rng,
    now_us: u64,
    /// When each waiting job came, oldest first.
    waiting: VecDeque<u64>,
    /// Jobs whose clients cannot reach Redis.
    kept: Vec<u64>,
    /// When each running job ends, where it runs and how long it took.
    running: BinaryHeap<Reverse<(u64, u64, u64)>>,
    workers: Vec<Worker>,
    started: u64,
    finished: u64,
    busy_us: u64,
    waited_us: u64,
}

impl<'a> Cluster<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            random: fastrand::Rng::with_seed(scenario.seed),
            now_us: 0,
            waiting: VecDeque::new(),
            kept: vec![],
            running: BinaryHeap::new(),
            workers: vec![],
            started: 0,
            finished: 0,
            busy_us: 0,
            waited_us: 0,
        }
    }

    /// The start of a second: who is drained goes, who has started takes jobs.
    fn begin(&mut self, second: u64, readable: bool) {
        self.now_us = second * SECOND_US;
        self.workers.retain(|worker| !worker.quiet || worker.busy > 0);
        for _ in 0..self.scenario.arrivals.at_once(second) {
            self.kept.push(self.now_us);
        }
        if readable {
            self.waiting.extend(self.kept.drain(..));
            self.take();
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            now_ms: self.now_us / 1000,
            backlog: count(self.waiting.len()),
            in_flight: count(self.running.len()),
            finished: self.finished,
            busy_ms: self.busy_us / 1000,
            current: pods(self.workers.len()),
            ..Seen::default()
        }
    }

    fn point(&mut self, second: u64, desired: i32) -> Point {
        Point {
            second,
            desired,
            replicas: pods(self.workers.len()),
            backlog: count(self.waiting.len() + self.kept.len()),
            in_flight: count(self.running.len()),
            waited_ms: std::mem::take(&mut self.waited_us) / 1000,
        }
    }

    /// More: first whoever drains, then new ones. Fewer: first whoever has not started, then the emptiest.
    fn scale_to(&mut self, desired: i32) {
        let desired = usize::try_from(desired).unwrap_or(0);
        self.workers.sort_by_key(|worker| {
            (worker.quiet, worker.ready_us > self.now_us, Reverse(worker.busy), worker.id)
        });
        for (place, worker) in self.workers.iter_mut().enumerate() {
            worker.quiet = place >= desired;
        }
        while self.workers.len() < desired {
            self.started += 1;
            let ready_us = self.now_us + self.scenario.start_seconds * SECOND_US;
            self.workers.push(Worker { id: self.started, ready_us, busy: 0, quiet: false });
        }
        self.take();
    }

    /// Everything that happens until the next second, in its order.
    fn advance(&mut self, readable: bool) {
        let (start, end) = (self.now_us, self.now_us + SECOND_US);
        let rate = self.scenario.arrivals.per_second(start / SECOND_US);
        let mut next = self.arrival_after(start, rate);
        if !readable {
            while next < end {
                self.kept.push(next);
                next = self.arrival_after(next, rate);
            }
            return;
        }
        loop {
            let ends = self.running.peek().map_or(u64::MAX, |Reverse((ends, _, _))| (*ends).max(start));
            if next.min(ends) >= end {
                return;
            }
            self.now_us = next.min(ends);
            if next <= ends {
                self.waiting.push_back(next);
                next = self.arrival_after(next, rate);
            } else if let Some(Reverse((_, by, took_us))) = self.running.pop() {
                self.finished += 1;
                self.busy_us += took_us;
                for worker in self.workers.iter_mut().filter(|worker| worker.id == by) {
                    worker.busy -= 1;
                }
            }
            self.take();
        }
    }

    /// Gives waiting jobs to free slots, those of the emptiest worker first.
    fn take(&mut self) {
        while let Some(came) = self.waiting.front().copied() {
            let (now, slots) = (self.now_us, self.scenario.concurrency);
            let free = |worker: &&mut Worker| !worker.quiet && worker.ready_us <= now && worker.busy < slots;
            let Some(worker) = self.workers.iter_mut().filter(free).min_by_key(|worker| worker.busy) else {
                return;
            };
            self.waiting.pop_front();
            self.waited_us = self.waited_us.max(now.saturating_sub(came));
            worker.busy += 1;
            let by = worker.id;
            let took = self.random_us(self.scenario.run_seconds);
            self.running.push(Reverse((now + took, by, took)));
        }
    }

    fn arrival_after(&mut self, time_us: u64, per_second: f64) -> u64 {
        if per_second > 0.0 { time_us + self.random_us(1.0 / per_second) } else { u64::MAX }
    }

    /// A random time of this average, by the exponential distribution.
    fn random_us(&mut self, seconds: f64) -> u64 {
        rounded(-(1.0 - self.random.f64()).ln() * seconds * 1e6)
    }
}

fn count(jobs: usize) -> u64 {
    u64::try_from(jobs).unwrap_or(u64::MAX)
}

fn pods(workers: usize) -> i32 {
    i32::try_from(workers).unwrap_or(i32::MAX)
}
