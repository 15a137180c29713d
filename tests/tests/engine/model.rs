//! Random transitions against a model: after each step every place holds exactly the bytes, in exactly the order,
//! that a few lines about lists say it must. Equal payloads, lost replies, ghosts of parked fetches, fences.
//!
//! A failure names its seed: `ENGINE_MODEL_SEED=<seed>` runs that sequence alone.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{Bench, CONSUMING, Lane, enqueue, failure, id_of, ids, job, kill, large_job};
use e2e::redis_server::{Options, RedisServer};
use jobqueue::effects::{Decision, Effect, Side};
use jobqueue::outcome::Outcome;
use jobqueue::promoter;
use jobqueue::protocol::Interruption;
use jobqueue::reaper::{Reaper, is_outside};
use jobqueue::store::{Cycle, PageKind, Parked, QueueAsk, Settlement, Status, Turn};
use serde_json::json;
use tokio::sync::OnceCell;

const SEQUENCES: u64 = 200;
const STEPS: usize = 30;
const QUEUES: usize = 2;
/// Few, so that many payloads are equal; the last two are large and settled by position.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "L", "M"];

type Place = VecDeque<Bytes>;

struct Worker {
    lane: Lane,
    /// What its parked fetches have told it, a queue: of the queue itself, of its suspects.
    told: [[Option<Bytes>; 2]; QUEUES],
}

struct World {
    bench: Bench,
    /// The model: every place as a list of entries, the head first.
    model: BTreeMap<String, Place>,
    workers: Vec<Worker>,
    reaper: Reaper,
    random: fastrand::Rng,
    calls: u64,
    log: Vec<String>,
}

fn payload(name: &str) -> Bytes {
    if name.chars().all(char::is_uppercase) { large_job(name, 4500) } else { job(name) }
}

/// Emptied after each sequence, so not the one that other tests use.
async fn own_server() -> &'static RedisServer {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    SERVER.get_or_init(|| RedisServer::start(Options::default())).await
}

impl World {
    async fn new(seed: u64) -> Self {
        let fast = json!({ "worker": { "backoff": { "base": "1ms", "max": "1ms" }, "max_retries": 5, "completed_max": -1 } });
        let bench = Bench::on(own_server().await, fast).await;
        let random = fastrand::Rng::with_seed(seed);
        let reaper = bench.reaper(Duration::ZERO);
        let mut world = Self {
            bench,
            model: BTreeMap::new(),
            workers: Vec::new(),
            reaper,
            random,
            calls: 0,
            log: Vec::new(),
        };
        for _ in 0..world.random.usize(2..=3) {
            world.hire().await;
        }
        world
    }

    async fn hire(&mut self) {
        let lane = self.bench.lane().await;
        self.workers.push(Worker { lane, told: Default::default() });
    }

    fn at(&mut self, key: &str) -> &mut Place {
        self.model.entry(self.bench.place(key)).or_default()
    }

    fn queue(&self, queue: usize) -> String {
        self.bench.keys.queues[queue].queue.clone()
    }

    fn suspects(&self, queue: usize) -> String {
        self.bench.keys.queues[queue].suspects.clone()
    }

    async fn step(&mut self) {
        let worker = self.random.usize(..self.workers.len());
        let queue = self.random.usize(..QUEUES);
        match self.random.u32(..100) {
            0..20 => self.enqueue(queue).await,
            20..60 => self.cycle(worker).await,
            60..72 => self.park(worker, queue).await,
            72..80 => self.promote().await,
            80..87 => self.fence(worker).await,
            87..91 => self.close(worker).await,
            91..96 => self.requeue().await,
            _ => self.stale(worker).await,
        }
        self.check().await;
    }

    async fn check(&mut self) {
        let sorted = |(place, mut jobs): (String, Vec<Bytes>)| {
            if place.starts_with("delayed:") {
                jobs.sort();
            }
            (place, jobs)
        };
        let real: BTreeMap<_, _> = self.bench.entries().await.into_iter().map(sorted).collect();
        let full = self.model.iter().filter(|(_, jobs)| !jobs.is_empty());
        let model: BTreeMap<_, _> =
            full.map(|(place, jobs)| sorted((place.clone(), jobs.iter().cloned().collect()))).collect();
        let short = |places: &BTreeMap<String, Vec<Bytes>>| -> Vec<String> {
            places.iter().map(|(place, jobs)| format!("{place}: {:?}", ids(jobs))).collect()
        };
        assert!(real == model, "real {:#?}\nmodel {:#?}\nafter {:#?}", short(&real), short(&model), self.log);
    }

    async fn enqueue(&mut self, queue: usize) {
        let names: Vec<&str> =
            (0..self.random.usize(1..=4)).map(|_| NAMES[self.random.usize(..NAMES.len())]).collect();
        self.log.push(format!("enqueue {names:?} to {queue}"));
        self.calls += 1;
        let jobs: Vec<Bytes> = names.iter().map(|name| payload(name)).collect();
        let jobs = enqueue(&self.queue(queue), &jobs);
        let (call, seen) = (self.calls.to_string(), self.bench.keys.seen("p"));
        for _ in 0..self.random.u32(1..=2) {
            self.workers[0].lane.session.enqueue(&call, &seen, CONSUMING.opposite(), &jobs).await.unwrap();
        }
        for job in jobs {
            self.at(&job.queue).push_front(job.raw);
        }
    }

    /// Moves the next job into a parked list; the reply may be lost.
    async fn park(&mut self, worker: usize, queue: usize) {
        let which = self.random.usize(..2);
        let lists = &self.workers[worker].lane.handle.lists[queue];
        let (from, into) = if which == 0 {
            (self.queue(queue), lists.parked.clone())
        } else {
            (self.suspects(queue), lists.parked_suspects.clone())
        };
        let Some(next) = self.at(&from).pop_back() else { return };
        self.at(&into).push_back(next.clone());
        let raw = self
            .bench
            .session()
            .park(&from, &into, CONSUMING, Duration::from_secs(5))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(raw, next);
        let heard = self.random.bool() && self.workers[worker].told[queue][which].is_none();
        self.log.push(format!("park {} of {queue}/{which} with {worker}, heard {heard}", id_of(&next)));
        if heard {
            self.workers[worker].told[queue][which] = Some(raw);
        }
    }

    async fn cycle(&mut self, worker: usize) {
        let (cycle, heard) = self.plan(worker);
        self.log.push(format!("cycle of {worker}: {cycle:?}").chars().filter(|c| *c != 'x').collect());
        let (statuses, returned) = self.predict(worker, &cycle, &heard);
        let worker = &mut self.workers[worker];
        let max = None;
        let first =
            worker.lane.session.cycle(&worker.lane.handle, &cycle, CONSUMING, max).await.unwrap().unwrap();
        assert_eq!(first.refusals, []);
        assert_eq!(first.statuses, statuses, "after {:#?}", self.log);
        let answered: Vec<_> = first.queues.iter().map(|queue| (queue.whole, queue.jobs.clone())).collect();
        assert!(answered == returned, "answered {answered:?}\nmodel {returned:?}\nafter {:#?}", self.log);
        // The reply was lost, perhaps more than once: the last of the equal answers is the one that is heard.
        for _ in 0..self.random.u32(0..=2) {
            let again = worker
                .lane
                .session
                .cycle(&worker.lane.handle, &cycle, CONSUMING, max)
                .await
                .unwrap()
                .unwrap();
            assert!(again.replayed);
            assert_eq!(
                (&again.statuses, &again.queues),
                (&first.statuses, &first.queues),
                "after {:#?}",
                self.log
            );
        }
        let heard = worker.lane.say(&cycle).await.unwrap().unwrap();
        assert_eq!(heard.queues, first.queues);
        if self.random.u32(..12) == 0 {
            // It forgets what it holds: the next call returns all of it.
            let queue = self.random.usize(..QUEUES);
            worker.lane.held[queue].clear();
            self.log.push(format!("forgets {queue}"));
        }
    }

    /// What a worker might say, and the words about its parked lists.
    fn plan(&mut self, at: usize) -> (Cycle, Vec<[Parked; 2]>) {
        let Self { workers, random, .. } = self;
        let worker = &mut workers[at];
        let mut words = Vec::new();
        for queue in 0..QUEUES {
            let word = [0, 1].map(|which| match worker.told[queue][which].take() {
                Some(raw) if random.u32(..4) > 0 => {
                    worker.lane.held[queue].push(raw);
                    Parked::Adopt
                }
                Some(_) => Parked::Release,
                None => [Parked::Leave, Parked::Look, Parked::Look, Parked::Release][random.usize(..4)],
            });
            words.push(word);
        }
        let mut cycle = worker.lane.next();
        cycle.room = random.usize(0..=4);
        let (mut by_position, mut by_bytes) = (Vec::new(), Vec::new());
        for (queue, word) in words.iter().enumerate() {
            let ask = QueueAsk {
                limit: random.usize(0..=4),
                suspects: random.usize(0..=2),
                parked: word[0],
                parked_suspects: word[1],
                ..cycle.queues[queue].clone()
            };
            cycle.queues[queue] = ask;
            // As a rule the oldest finish first: then only the first and the last are named.
            if random.u32(..3) == 0 {
                let small = worker.lane.held[queue].iter().take_while(|raw| raw.len() <= 4096);
                let most = small.clone().count();
                let done = random.usize(0..=most);
                cycle.queues[queue].done = small.take(done).cloned().collect();
                cycle.queues[queue].done_at_head = true;
                continue;
            }
            for (position, raw) in worker.lane.held[queue].clone().into_iter().enumerate() {
                let outcome = match random.u32(..8) {
                    0..2 => Outcome::Done,
                    2 => failure(),
                    3 => kill(),
                    4 => Outcome::Released,
                    _ => continue,
                };
                let large = raw.len() > 4096;
                if outcome == Outcome::Done && !large {
                    cycle.queues[queue].done.push(raw);
                    continue;
                }
                let Decision { verdict, effects } = worker.lane.decide(queue, &raw, &outcome);
                let position = large.then_some(position);
                let settlement = Settlement { queue, raw, position, verdict, effects };
                if large { by_position.push(settlement) } else { by_bytes.push(settlement) }
            }
        }
        cycle.settlements = by_position.into_iter().chain(by_bytes).collect();
        (cycle, words)
    }

    /// What the model says that a call must do and answer.
    fn predict(
        &mut self,
        at: usize,
        cycle: &Cycle,
        words: &[[Parked; 2]],
    ) -> (Vec<Status>, Vec<(bool, Vec<Bytes>)>) {
        let lists = self.workers[at].lane.handle.lists.clone();
        let (mut whole, mut looks) = (Vec::new(), Vec::new());
        for queue in 0..QUEUES {
            let parks = [&lists[queue].parked, &lists[queue].parked_suspects];
            for (which, parked) in parks.into_iter().enumerate() {
                match words[queue][which] {
                    Parked::Adopt => {
                        let arrived = std::mem::take(self.at(parked));
                        self.at(&lists[queue].held).extend(arrived);
                    }
                    Parked::Release => {
                        let back = if which == 0 { self.queue(queue) } else { self.suspects(queue) };
                        while let Some(next) = self.at(parked).pop_back() {
                            self.at(&back).push_back(next);
                        }
                    }
                    Parked::Look => looks.push((queue, parked.clone())),
                    Parked::Leave => {}
                }
            }
            whole.push(self.at(&lists[queue].held).len() != cycle.queues[queue].expected);
        }
        let mut statuses = Vec::new();
        let mut removed = vec![Vec::new(); QUEUES];
        for settlement in cycle.settlements.iter().filter(|settlement| settlement.position.is_some()) {
            let Settlement { queue, position: Some(position), .. } = settlement else { continue };
            // Positions are those before the call.
            let settled = !whole[*queue];
            if settled {
                removed[*queue].push(*position);
                self.place(&settlement.effects);
            }
            statuses.push(if settled { Status::Settled } else { Status::Refused });
        }
        for (queue, mut positions) in removed.into_iter().enumerate() {
            positions.sort_unstable();
            for position in positions.into_iter().rev() {
                self.at(&lists[queue].held).remove(position);
            }
        }
        for settlement in cycle.settlements.iter().filter(|settlement| settlement.position.is_none()) {
            assert!(self.let_go(&lists[settlement.queue].held, &settlement.raw), "held in the model");
            self.place(&settlement.effects);
            statuses.push(Status::Settled);
        }
        let completed = self.bench.keys.completed();
        for (queue, ask) in cycle.queues.iter().enumerate() {
            // Two are named by their bytes; more by their place, which means nothing in an unexpected list.
            if ask.done_at_head && ask.done.len() > 2 && whole[queue] {
                statuses.extend(ask.done.iter().map(|_| Status::Refused));
                continue;
            }
            for raw in &ask.done {
                assert!(self.let_go(&lists[queue].held, raw), "held in the model");
                self.at(&completed).push_front(raw.clone());
                statuses.push(Status::Settled);
            }
        }
        let mut returned = vec![Vec::new(); QUEUES];
        let mut room = cycle.room;
        for (queue, parked) in looks {
            for next in std::mem::take(self.at(&parked)) {
                self.at(&lists[queue].held).push_back(next.clone());
                returned[queue].push(next);
                room = room.saturating_sub(1);
            }
        }
        for (queue, ask) in cycle.queues.iter().enumerate() {
            let sources = [(self.suspects(queue), ask.suspects), (self.queue(queue), usize::MAX)];
            let mut left = if whole[queue] { 0 } else { ask.limit };
            for (from, most) in sources {
                for _ in 0..left.min(most).min(room) {
                    let Some(next) = self.at(&from).pop_back() else { break };
                    self.at(&lists[queue].held).push_back(next.clone());
                    returned[queue].push(next);
                    (left, room) = (left - 1, room - 1);
                }
            }
            if whole[queue] {
                returned[queue] = self.at(&lists[queue].held).iter().cloned().collect();
            }
        }
        (statuses, whole.into_iter().zip(returned).collect())
    }

    fn let_go(&mut self, held: &str, raw: &Bytes) -> bool {
        let held = self.at(held);
        let at = held.iter().position(|entry| entry == raw);
        at.is_some_and(|at| held.remove(at).is_some())
    }

    /// The first effect is the one that places the job.
    fn place(&mut self, effects: &[Effect]) {
        match effects.first() {
            Some(Effect::Push { key, side: Side::Left, bytes }) => self.at(key).push_front(bytes.clone()),
            Some(Effect::Push { key, side: Side::Right, bytes }) => self.at(key).push_back(bytes.clone()),
            Some(Effect::Delay { key, member, .. }) => self.at(key).push_back(member.clone()),
            other => panic!("does not place the job: {other:?}"),
        }
    }

    async fn promote(&mut self) {
        self.log.push("promote".into());
        // The backoff is 1 ms.
        tokio::time::sleep(Duration::from_millis(3)).await;
        let mut session = self.bench.session();
        promoter::pass(&mut session, &self.bench.engine.protocol).await.unwrap();
        for keys in self.bench.keys.queues.clone() {
            let unmarked = |member: Bytes| {
                let mark = member.iter().position(|byte| *byte == b'|').unwrap();
                member.slice(mark + 1..)
            };
            let mut due: Vec<Bytes> =
                std::mem::take(self.at(&keys.delayed)).into_iter().map(unmarked).collect();
            // In the order of their times and marks, which the model does not know.
            let real = self.bench.list(&keys.queue).await;
            let mut promoted: Vec<Bytes> = real.into_iter().take(due.len()).collect();
            for raw in promoted.iter().rev() {
                self.at(&keys.queue).push_front(raw.clone());
            }
            promoted.sort();
            due.sort();
            assert!(
                promoted == due,
                "promoted {:?}, due {:?}, after {:#?}",
                ids(&promoted),
                ids(&due),
                self.log
            );
        }
    }

    /// Takes a lane's lease away and gives its jobs back; what a ghost of it still fetches too.
    async fn fence(&mut self, worker: usize) {
        let cause = ["heartbeat", "restarted", "evicted", "node-lost"][self.random.usize(..4)];
        self.log.push(format!("fence {worker}: {cause}"));
        let mut dead = self.workers.swap_remove(worker);
        self.bench.session().fence(&dead.lane.handle.id, true, cause).await.unwrap();
        let mut late = dead.lane.asking(3);
        for (ask, held) in late.queues.iter_mut().zip(&dead.lane.held) {
            ask.done.clone_from(held);
        }
        assert_eq!(dead.lane.say(&late).await.unwrap(), None, "nothing is accepted from a fenced lane");
        self.check().await;
        self.workers.push(dead);
        let last = self.workers.len() - 1;
        if self.random.bool() {
            self.park(last, self.random.clone().usize(..QUEUES)).await;
        }
        let dead = self.workers.remove(last);
        self.reap(&dead.lane, cause).await;
        self.hire().await;
    }

    async fn reap(&mut self, dead: &Lane, cause: &str) {
        self.reaper.pass().await.unwrap();
        let how = Interruption { cause, outside: is_outside(cause), alone: false };
        let protocol = self.bench.engine.protocol.clone();
        for (lists, keys) in dead.handle.lists.iter().zip(self.bench.keys.queues.clone()) {
            for list in [&lists.parked_suspects, &lists.parked, &lists.held] {
                while let Some(next) = self.at(list).pop_back() {
                    self.place(&protocol.interrupted(&next, &keys, how, 0).effects);
                }
            }
        }
    }

    async fn close(&mut self, worker: usize) {
        let mut leaving = self.workers.swap_remove(worker).lane;
        let lists = leaving.handle.lists.clone();
        let all = lists.iter().flat_map(|lists| [&lists.held, &lists.parked, &lists.parked_suspects]);
        let empty = all.into_iter().all(|list| self.at(list).is_empty());
        self.log.push(format!("close {worker}, empty {empty}"));
        assert_eq!(leaving.session.close(&leaving.handle, false).await.unwrap(), empty);
        self.check().await;
        self.reap(&leaving, "shutdown").await;
        self.hire().await;
    }

    async fn requeue(&mut self) {
        let letters = self.bench.keys.dead_letters();
        let mut session = self.bench.session();
        let page = session.page(&letters, PageKind::Tail, 100).await.unwrap().entries;
        self.log.push(format!("turn {:?}", ids(&page)));
        let mut entries = Vec::new();
        for letter in page {
            let next = self.at(&letters).pop_back().unwrap();
            assert_eq!(next, letter);
            let turn = if self.random.bool() {
                self.at(&letters).push_front(next);
                Turn::Keep
            } else {
                let (origin, bytes) = self.bench.engine.protocol.revive(&letter);
                let key = origin.unwrap();
                self.at(&key).push_front(bytes.clone());
                Turn::push(key, CONSUMING.opposite(), bytes)
            };
            entries.push((letter, turn));
        }
        assert_eq!(session.turn(&letters, &entries).await.unwrap(), entries.len());
    }

    /// A late command of an old connection.
    async fn stale(&mut self, worker: usize) {
        let lane = &mut self.workers[worker].lane;
        if lane.seq < 2 {
            return;
        }
        let mut old = lane.asking(4);
        old.seq = lane.seq - 1;
        for (ask, held) in old.queues.iter_mut().zip(&lane.held) {
            ask.done.clone_from(held);
        }
        let answer = lane.session.cycle(&lane.handle, &old, CONSUMING, None).await;
        assert!(matches!(answer, Ok(None)), "{answer:?}");
        self.log.push(format!("stale call of {worker}"));
    }
}

#[tokio::test]
async fn every_job_is_in_exactly_one_place_after_every_step_of_any_sequence() {
    let chosen = std::env::var("ENGINE_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> =
        chosen.map_or_else(|| (0..SEQUENCES).map(|_| fastrand::u64(..)).collect(), |seed| vec![seed]);
    let mut redis = own_server().await.connection().await;
    for seed in seeds {
        let run = async {
            let mut world = World::new(seed).await;
            for _ in 0..STEPS {
                world.step().await;
            }
        };
        if let Err(panic) = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(run)).await {
            eprintln!("ENGINE_MODEL_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.unwrap();
    }
}
