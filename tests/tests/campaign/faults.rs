//! What goes wrong: each seat has a worker process, a way to Redis of its own, and one fault after the other.
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::{Fault as OnTheWay, Proxy, Recorder, RedisServer, Worker, WorkerOptions};

use crate::load::POISON;
use crate::{SEATS, TTL};

/// How long a worker is stopped or cut off so that its lease is taken from it: it must lapse and be looked at twice.
const LONG: std::ops::Range<u64> = 8_000..13_000;
/// So short that nobody may notice.
const SHORT: std::ops::Range<u64> = 50..1_000;
/// Between two faults of a seat, in milliseconds.
const BETWEEN: std::ops::Range<u64> = 200..2_000;
/// Between two of Redis: the reaper trusts a connection only after a whole TTL.
const BETWEEN_OUTAGES: std::ops::Range<u64> = 10_000..25_000;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL.
    Kill,
    /// A job killed it.
    Poison,
    /// SIGTERM, with less time than some jobs take.
    Terminate,
    /// SIGSTOP until the lease is gone, then SIGCONT.
    Stop,
    /// A partition until the lease is gone.
    Partition,
    /// SIGSTOP for a moment.
    Hiccup,
    /// A partition for a moment.
    Stall,
    /// All its connections are closed.
    Cut,
    /// Redis did it, and the answer is lost.
    LostReply,
    /// The command never arrives.
    LostCommand,
    /// kill -9 of Redis.
    RedisKill,
    /// A restart of Redis.
    RedisRestart,
    /// SIGSTOP of Redis for a moment.
    RedisStall,
}

impl Kind {
    /// Whether a worker may lose its jobs by this, and so a job run a second time. All others must pass unnoticed.
    pub fn takes_jobs(self) -> bool {
        matches!(self, Self::Kill | Self::Poison | Self::Terminate | Self::Stop | Self::Partition)
    }
}

/// One fault.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// Whom it hit; nobody in particular when it was Redis.
    pub seat: Option<usize>,
    pub from: Instant,
    pub to: Instant,
}

/// All faults so far, and how many there shall be.
pub struct Tally(RefCell<Vec<Fault>>, usize);

impl Tally {
    pub fn new(wanted: usize) -> Self {
        Self(RefCell::default(), wanted)
    }

    pub fn faults(&self) -> Vec<Fault> {
        self.0.borrow_mut().clone()
    }

    fn enough(&self) -> bool {
        self.0.borrow_mut().len() >= self.1
    }

    fn add(&self, kind: Kind, seat: Option<usize>, from: Instant) {
        self.0.borrow_mut().push(Fault { kind, seat, from, to: Instant::now() });
    }
}

/// One worker's place: the process in it changes.
pub struct Seat {
    number: usize,
    options: WorkerOptions,
    proxy: Proxy,
    recorder: Arc<Recorder>,
    worker: Worker,
}

/// The path that jobs of a seat are posted to: so the recorder knows whose run it is.
pub fn path(seat: usize) -> String {
    format!("/seat-{seat}")
}

impl Seat {
    pub async fn take(number: usize, redis: SocketAddr, recorder: Arc<Recorder>) -> Self {
        let proxy = Proxy::start(redis).await;
        let options = WorkerOptions::new("worker")
            .redis(proxy.addr())
            .recorded_by(&recorder)
            .env("WORKER_HANDLER_HTTP_PATH", path(number))
            .env("WORKER_COUNT", 8)
            .env("WORKER_COMPLETED_MAX", -1)
            .env("WORKER_DRAIN_TIMEOUT", format!("{}ms", DRAIN_TIMEOUT.as_millis()))
            // Jobs that fail on purpose come in all sizes of groups; breakers are tested elsewhere.
            .env("CIRCUIT_BREAKER_FAILURE_THRESHOLD", 1.0);
        let worker = Worker::spawn(&options);
        Self { number, options, proxy, recorder, worker }
    }

    /// One fault after the other, until there were enough; the worker lives in the end.
    pub async fn suffer(&mut self, tally: &Tally, mut random: fastrand::Rng) {
        while !tally.enough() {
            self.guard(tally, Duration::from_millis(random.u64(BETWEEN))).await;
            let from = Instant::now();
            let kind = self.hit(&mut random).await;
            tally.add(kind, Some(self.number), from);
        }
        self.proxy.clear();
    }

    /// Kills the worker if a job that kills workers runs in it, for so long.
    async fn guard(&mut self, tally: &Tally, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let mine = path(self.number);
            let runs = self.recorder.running_at(&mine);
            if runs.iter().any(|id| id.starts_with(POISON)) {
                let from = Instant::now();
                self.replace();
                tally.add(Kind::Poison, Some(self.number), from);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn replace(&mut self) {
        self.worker.kill9();
        self.worker = Worker::spawn(&self.options);
    }

    async fn hit(&mut self, random: &mut fastrand::Rng) -> Kind {
        let any = |_: &[bytes::Bytes]| true;
        let mut time = |range: std::ops::Range<u64>| Duration::from_millis(random.u64(range));
        let (long, short, skip) = (time(LONG), time(SHORT), time(0..20).as_millis());
        let skip = usize::try_from(skip).unwrap();
        match random.u32(..100) {
            0..30 => {
                self.replace();
                Kind::Kill
            }
            30..40 => {
                self.worker.sigterm();
                self.worker.wait_exit(DRAIN_TIMEOUT + Duration::from_secs(30)).await;
                self.worker = Worker::spawn(&self.options);
                Kind::Terminate
            }
            40..45 => {
                self.worker.sigstop();
                tokio::time::sleep(long).await;
                self.worker.sigcont();
                Kind::Stop
            }
            45..50 => {
                self.proxy.freeze();
                tokio::time::sleep(long).await;
                self.proxy.thaw();
                Kind::Partition
            }
            50..60 => {
                self.worker.sigstop();
                tokio::time::sleep(short).await;
                self.worker.sigcont();
                Kind::Hiccup
            }
            60..70 => {
                self.proxy.freeze();
                tokio::time::sleep(short).await;
                self.proxy.thaw();
                Kind::Stall
            }
            70..80 => {
                self.proxy.cut();
                Kind::Cut
            }
            80..92 => {
                self.proxy.on(OnTheWay::LoseReply, skip, 1, any);
                Kind::LostReply
            }
            _ => {
                self.proxy.on(OnTheWay::LoseCommand, skip, 1, any);
                Kind::LostCommand
            }
        }
    }
}

/// Guards all seats while something is waited for.
pub async fn while_guarded<T>(seats: &mut [Seat], tally: &Tally, waited_for: impl Future<Output = T>) -> T {
    assert_eq!(seats.len(), SEATS);
    let guards = futures::future::join_all(seats.iter_mut().map(|seat| seat.guard(tally, 100 * TTL)));
    tokio::select! {
        found = waited_for => found,
        _ = guards => panic!("guarded for longer than anything is waited for"),
    }
}

/// Redis' own faults, until there were enough of all.
pub async fn outages(redis: &mut RedisServer, tally: &Tally, mut random: fastrand::Rng) {
    loop {
        let next = Instant::now() + Duration::from_millis(random.u64(BETWEEN_OUTAGES));
        while Instant::now() < next {
            if tally.enough() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let from = Instant::now();
        let kind = match random.u32(..3) {
            0 => {
                redis.kill9();
                redis.restart().await;
                Kind::RedisKill
            }
            1 => {
                redis.restart().await;
                Kind::RedisRestart
            }
            _ => {
                redis.pause();
                tokio::time::sleep(Duration::from_millis(random.u64(SHORT))).await;
                redis.resume();
                Kind::RedisStall
            }
        };
        tally.add(kind, None, from);
    }
}
