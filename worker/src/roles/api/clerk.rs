//! The conversation with Redis: for each shard one clerk that writes and one that reads, each with a connection of
//! its own. What requests ask for while Redis is answering is asked for together, in one call: under load a request
//! costs a fraction of a round trip, and no timer makes one wait.
mod reading;
mod writing;

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use jobqueue::config::Config;
use jobqueue::connect::{Connector, Settings};
use jobqueue::engine::Engine;
use jobqueue::job::Data;
use jobqueue::keys::Keys;
use jobqueue::layout::{self, LayoutError};
use jobqueue::protocol::Records;
use jobqueue::protocol::async_jobs::Status;
use jobqueue::store::{Answer, Order, PAGE_COUNT, Place, Session, StoreError};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::REDIS;
use super::body::Share;
use super::problem::{Code, Problem};
use super::waiting::Waiting;
use crate::health::{Dependency, Readiness};
use crate::metrics::Metrics;

/// Bytes of jobs after which a list ends, and goes on with its next page.
const LIST_BYTES: usize = 2 << 20;
/// What may wait for one clerk; beyond that new requests are refused at once.
const WAITING: usize = 2048;
/// How often shards of other layouts are looked for, beside those times when a job is not found.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a look that failed, however many want the next.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

enum Write {
    /// With the share of the memory that its body has: an order may wait here for longer than its request does.
    Create(Arc<Order>, Share, Reply<Answer>),
    Cancel(String, Reply<Option<Cancelled>>),
}

enum Read {
    Job(String, Reply<Data>),
    List { statuses: Vec<Status>, after: Option<Place>, limit: usize, reply: Reply<Vec<Place>> },
    Page(Vec<String>, Reply<Vec<Data>>),
}

/// What became of a job that was to be cancelled.
#[derive(Debug, Clone)]
pub(super) enum Cancelled {
    /// It is cancelled: its bytes.
    Now(Bytes),
    /// It ended before.
    Finished(Status),
    /// It is no job.
    Malformed,
}

/// One page of a list.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The jobs that are still there, by id.
    pub jobs: Vec<(String, Bytes)>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Place>,
}

#[derive(Clone)]
struct Desk {
    write: mpsc::Sender<Write>,
    read: mpsc::Sender<Read>,
}

/// When more is asked for than may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crowd {
    /// Refused at once.
    Refused,
    /// Waits for its turn: an event may wake any number of requests that were let in long ago.
    Queued,
}

/// What requests ask the clerks through. Every answer comes within a bound.
pub(super) struct Clerks {
    /// One a shard; those of other layouts come last, as they are found, and get no new jobs.
    desks: RwLock<Vec<Desk>>,
    engine: Engine,
    reader: Reader,
    bound: Duration,
    told: Told,
    /// The layout is written down: jobs may be created.
    written: watch::Sender<bool>,
    looks: Looks,
}

/// Looks for shards of other layouts, one after the other.
#[derive(Default)]
struct Looks {
    begun: AtomicU64,
    /// The last that has succeeded.
    done: watch::Sender<u64>,
    /// Somebody wants one now.
    wanted: Notify,
}

/// Where the clerks tell how they fare.
#[derive(Clone)]
pub(super) struct Told {
    pub metrics: Arc<Metrics>,
    pub readiness: Readiness,
    /// How far Redis' clock is ahead of ours, in ms: jobs of several processes are in one order.
    pub ahead_ms: Arc<AtomicI64>,
}

/// Our own clock.
fn local_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Told {
    fn redis(&self, failure: Option<&StoreError>, round_trips: u64) {
        // An answer that refuses is an answer.
        let up =
            !matches!(failure, Some(StoreError::Connect(_) | StoreError::Lost(_) | StoreError::Later(_)));
        self.metrics.redis_answers(up);
        self.metrics.redis_round_trips(round_trips);
        self.readiness.dependency("redis", if up { Dependency::Up } else { Dependency::Down });
    }
}

/// An engine whose calls fail soon enough for a request to be answered in time.
pub(super) fn engine(config: &Config) -> Engine {
    let mut engine = Engine::new(config);
    let bound = config.api.redis_timeout.get();
    let settings = engine.connector.settings();
    engine.connector = Connector::new(Settings {
        dial_timeout: settings.dial_timeout.min(bound),
        read_timeout: settings.read_timeout.min(bound),
        ..settings.clone()
    });
    engine
}

impl Clerks {
    /// Starts the clerks of an engine's shards.
    pub(super) fn start(engine: &Engine, bound: Duration, told: &Told) -> Self {
        // The role has this protocol, and no other names jobs.
        let reader = Reader { largest: engine.protocol.records().map_or(0, Records::largest) };
        let clerks = Self {
            desks: RwLock::default(),
            engine: engine.clone(),
            reader,
            bound,
            told: told.clone(),
            written: watch::Sender::new(false),
            looks: Looks::default(),
        };
        engine.shards.iter().for_each(|keys| clerks.open(keys));
        clerks
    }

    /// Opens a desk for a shard.
    fn open(&self, keys: &Keys) {
        let (write, writes) = mpsc::channel(WAITING);
        let (read, reads) = mpsc::channel(WAITING);
        let session = || self.engine.session(keys);
        tokio::spawn(writing::run(
            session(),
            writes,
            self.written.subscribe(),
            self.reader,
            self.told.clone(),
        ));
        tokio::spawn(reading::run(session(), reads, self.reader, self.told.clone()));
        self.desks.write().unwrap_or_else(PoisonError::into_inner).push(Desk { write, read });
    }

    fn desks(&self) -> Vec<Desk> {
        self.desks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn desk(&self, shard: usize) -> Desk {
        self.desks.read().unwrap_or_else(PoisonError::into_inner)[shard].clone()
    }

    /// When a request that begins now is answered at the latest, whatever it has to ask for.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.bound
    }

    /// Redis' clock, as far as it is known.
    pub(super) fn now_ms(&self) -> u64 {
        local_ms().saturating_add_signed(self.told.ahead_ms.load(Ordering::Relaxed))
    }

    /// A shard for new jobs: that of the idempotency key, so that the key and its jobs change in one step.
    pub(super) fn shard(&self, idempotency: Option<&str>) -> u16 {
        match idempotency {
            Some(hash) => Keys::shard_of(hash, self.engine.naming.shards),
            None => Keys::shard_of(&Uuid::new_v4().to_string(), self.engine.naming.shards),
        }
    }

    /// A new id whose jobs belong to this shard: drawn until one does, as often as there are shards.
    pub(super) fn id(&self, shard: u16) -> String {
        loop {
            let id = Uuid::now_v7().to_string();
            if Keys::shard_of(&id, self.engine.naming.shards) == shard {
                return id;
            }
        }
    }

    /// Creates the jobs of an order in a shard.
    pub(super) async fn create(
        &self,
        shard: u16,
        order: &Order,
        memory: &Share,
        by: Instant,
    ) -> Result<Answer, Problem> {
        let (order, memory) = (Arc::new(order.clone()), memory.clone());
        let ask = |reply| Write::Create(order, memory, reply);
        match self.ask(|desk| &desk.write, usize::from(shard), ask, by).await? {
            Answer::Refused(refusal) => {
                let error = StoreError::from(refusal);
                tracing::error!(%error, "Redis refused what a request asked for");
                Err(refused(&error))
            }
            answer => Ok(answer),
        }
    }

    /// The bytes of a job, wherever it is.
    pub(super) async fn get(&self, id: &str, by: Instant) -> Result<Option<Bytes>, Problem> {
        Ok(self.find(id, by, Crowd::Refused).await?.map(|(_, bytes)| bytes))
    }

    /// The same for a request that has waited for the job to change.
    pub(super) async fn look(&self, id: &str) -> Result<Option<Bytes>, Problem> {
        Ok(self.find(id, self.deadline(), Crowd::Queued).await?.map(|(_, bytes)| bytes))
    }

    /// The jobs of a shard that are there, each by its id: read a page at a time, until there are `most`.
    pub(super) async fn jobs(
        &self,
        shard: u16,
        ids: &[String],
        most: usize,
        by: Instant,
    ) -> Result<Vec<(String, Bytes)>, Problem> {
        let mut jobs = Vec::new();
        let mut rest = ids;
        while !rest.is_empty() && jobs.len() < most {
            let asked = rest[..rest.len().min(PAGE_COUNT)].to_vec();
            let ask = |reply| Read::Page(asked, reply);
            let page = self.ask(|desk| &desk.read, usize::from(shard), ask, by).await?;
            // Never none of those that were asked for; but a loop must not depend on it.
            let (read, unread) = rest.split_at(page.len().clamp(1, rest.len()));
            for (id, data) in read.iter().zip(page) {
                jobs.extend(job(data)?.map(|bytes| (id.clone(), bytes)));
            }
            rest = unread;
        }
        Ok(jobs)
    }

    /// Cancels a job; `None` when there is none.
    pub(super) async fn cancel(&self, id: &str) -> Result<Option<Cancelled>, Problem> {
        let by = self.deadline();
        let Some((shard, _)) = self.find(id, by, Crowd::Refused).await? else { return Ok(None) };
        self.ask(|desk| &desk.write, shard, |reply| Write::Cancel(id.to_owned(), reply), by).await
    }

    /// The newest jobs of some statuses after a place.
    pub(super) async fn list(
        &self,
        statuses: &[Status],
        after: Option<Place>,
        limit: usize,
    ) -> Result<Listed, Problem> {
        let by = self.deadline();
        let mut places: Vec<(Place, usize)> = Vec::new();
        for shard in 0..self.desks().len() {
            let ask = |reply| Read::List { statuses: statuses.to_vec(), after: after.clone(), limit, reply };
            let found = self.ask(|desk| &desk.read, shard, ask, by).await?;
            places.extend(found.into_iter().map(|place| (place, shard)));
        }
        places.sort_by(|a, b| b.0.cmp(&a.0));
        let more = places.len() > limit;
        places.truncate(limit);
        let mut listed = Listed::default();
        let mut rest = &places[..];
        // Jobs of one shard that follow each other are read in one page; what does not fit begins the next.
        while let Some((_, shard)) = rest.first() {
            let run = rest.iter().take_while(|(_, other)| other == shard).count();
            let ids = rest[..run].iter().map(|(place, _)| place.id.clone()).collect();
            let page = self.ask(|desk| &desk.read, *shard, |reply| Read::Page(ids, reply), by).await?;
            if page.is_empty() {
                break;
            }
            let (read, unread) = rest.split_at(page.len().min(run));
            let jobs = read.iter().zip(page).filter_map(|((place, _), data)| match data {
                Data::Is(job) => Some((place.id.clone(), job)),
                // What is no job is not listed.
                Data::Missing | Data::TooLarge(_) | Data::Unfit(_) => None,
            });
            listed.jobs.extend(jobs);
            rest = unread;
            let size: usize = listed.jobs.iter().map(|(_, job)| job.len()).sum();
            if size > LIST_BYTES || rest.is_empty() {
                listed.next =
                    read.last().map(|(place, _)| place.clone()).filter(|_| more || !rest.is_empty());
                break;
            }
        }
        Ok(listed)
    }

    /// Where a job is: first where its id belongs, then, as after a change of `worker.shards`, anywhere.
    async fn find(&self, id: &str, by: Instant, crowd: Crowd) -> Result<Option<(usize, Bytes)>, Problem> {
        let home = usize::from(Keys::shard_of(id, self.engine.naming.shards));
        let known = self.desks();
        let others = (0..known.len()).filter(|shard| *shard != home);
        for shard in std::iter::once(home).chain(others) {
            if let Some(bytes) = read_at(&known[shard], id, by, crowd).await? {
                return Ok(Some((shard, bytes)));
            }
        }
        // Who works with another layout may have created it a moment ago, in a shard where nothing was before.
        self.look_again(by).await?;
        for (shard, desk) in self.desks().iter().enumerate().skip(known.len()) {
            if let Some(bytes) = read_at(desk, id, by, crowd).await? {
                return Ok(Some((shard, bytes)));
            }
        }
        Ok(None)
    }

    /// Waits for a look for shards of other layouts that begins from now on: one for all who want one.
    async fn look_again(&self, by: Instant) -> Result<(), Problem> {
        let wanted = self.looks.begun.load(Ordering::SeqCst) + 1;
        self.looks.wanted.notify_one();
        let mut done = self.looks.done.subscribe();
        match timeout_at(by, done.wait_for(|done| *done >= wanted)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }

    async fn ask<M, T>(
        &self,
        clerk: impl Fn(&Desk) -> &mpsc::Sender<M>,
        shard: usize,
        message: impl FnOnce(Reply<T>) -> M,
        by: Instant,
    ) -> Result<T, Problem> {
        let desk = self.desk(shard);
        let place = clerk(&desk).try_reserve().map_err(|_| overloaded())?;
        answered(place, message, by).await
    }
}

/// The bytes of a job, if it is in this shard.
async fn read_at(desk: &Desk, id: &str, by: Instant, crowd: Crowd) -> Result<Option<Bytes>, Problem> {
    let place = match crowd {
        Crowd::Refused => desk.read.try_reserve().map_err(|_| overloaded())?,
        Crowd::Queued => {
            timeout_at(by, desk.read.reserve()).await.ok().and_then(Result::ok).ok_or_else(late)?
        }
    };
    job(answered(place, |reply| Read::Job(id.to_owned(), reply), by).await?)
}

/// Asks for something, and waits for the answer no longer than until `by`.
async fn answered<M, T>(
    place: mpsc::Permit<'_, M>,
    message: impl FnOnce(Reply<T>) -> M,
    by: Instant,
) -> Result<T, Problem> {
    let (reply, answer) = oneshot::channel();
    place.send(message(reply));
    match timeout_at(by, answer).await {
        Ok(Ok(answer)) => answer.map_err(|error| refused(&error)),
        Ok(Err(_)) | Err(_) => Err(late()),
    }
}

fn overloaded() -> Problem {
    Problem::new(Code::Overloaded, "too many requests wait for Redis; try again")
}

/// Whether it took place is not known: with an idempotency key it can be asked for again.
fn late() -> Problem {
    let detail = "Redis did not answer in time; what was asked for may have taken place: ask again, a create with \
                  the same Idempotency-Key";
    Problem::new(Code::Unavailable, detail)
}

/// What a client is told; the log says what an operator must do.
fn refused(error: &StoreError) -> Problem {
    match error {
        StoreError::Unfit { reason, .. } if reason.contains("OOM") => {
            Problem::new(Code::Unavailable, "Redis is out of memory, nothing was changed; try again later")
        }
        StoreError::OutOfMemory(_) => {
            Problem::new(Code::Unavailable, "Redis is out of memory, nothing was changed; try again later")
        }
        _ => Problem::new(Code::Unavailable, "Redis cannot be used now; try again later"),
    }
}

/// Whether a call may be repeated: its requests still wait, and it may help.
fn tell(told: &Told, session: &mut Session, failure: Option<&StoreError>) -> bool {
    told.redis(failure, std::mem::take(&mut session.round_trips));
    let Some(error) = failure else { return false };
    if error.is_transient() {
        tracing::debug!(%error, "Could not reach Redis, trying again");
    } else {
        tracing::error!(%error, "Redis refused what a request asked for");
    }
    error.is_transient()
}

/// The same error for one more request.
fn same(error: &StoreError) -> StoreError {
    match error {
        StoreError::OutOfMemory(reason) => StoreError::OutOfMemory(reason.clone()),
        other => StoreError::Unexpected(other.to_string()),
    }
}

/// A job that was read; `None` when there is none. What is there and is no job is not the same as nothing: an
/// idempotency key that stands for it still does.
fn job(data: Data) -> Result<Option<Bytes>, Problem> {
    let problem = |detail: String| Err(Problem::new(Code::MalformedJob, detail));
    match data {
        Data::Is(bytes) => Ok(Some(bytes)),
        Data::Missing => Ok(None),
        Data::TooLarge(size) => {
            problem(format!("another program has written {size} bytes there, too many to be read"))
        }
        Data::Unfit(kind) => problem(format!("another program has written a {kind} there")),
    }
}

/// Reads jobs, none larger than any could be that was made here.
#[derive(Debug, Clone, Copy)]
struct Reader {
    largest: usize,
}

impl Reader {
    /// The first of some jobs: all, unless they are more than a page of bytes.
    async fn read(self, session: &mut Session, ids: &[&str]) -> Result<Vec<Data>, StoreError> {
        let keys = session.keys.jobs();
        session.data(ids.iter().map(|id| keys.data(id)).collect(), self.largest).await
    }
}

/// Keeps the layout written down, and finds the shards of other layouts that have jobs. It asks also while nobody else
/// does: what `/readyz` and `redis_up` say is never old.
pub(super) async fn watch_over(clerks: Arc<Clerks>, waiting: Waiting) {
    let (engine, told, looks) = (&clerks.engine, &clerks.told, &clerks.looks);
    let mut layouts = layout::Watch::new(engine);
    let mut known = HashSet::new();
    loop {
        let this = looks.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let looked = look(&clerks, &mut layouts).await;
        let failure = match &looked {
            Err(LayoutError::Store(error)) => Some(error),
            Err(LayoutError::Newer { .. }) | Ok(_) => None,
        };
        told.redis(failure, layouts.round_trips());
        match looked {
            Ok(shards) => {
                for keys in shards.into_iter().filter(|keys| known.insert(keys.lanes())) {
                    clerks.open(&keys);
                    tokio::spawn(waiting.clone().listen(engine.clone(), keys));
                }
                looks.done.send_replace(this);
                told.readiness.reached(REDIS);
            }
            Err(LayoutError::Store(error)) if error.is_transient() => {
                tracing::debug!(%error, "Could not reach Redis, trying again");
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(error) => {
                tracing::error!(%error, "Could not write the layout of the queue down or read others");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        let _ = tokio::time::timeout(LOOK_EVERY, looks.wanted.notified()).await;
    }
}

async fn look(clerks: &Clerks, layouts: &mut layout::Watch) -> Result<Vec<Keys>, LayoutError> {
    layouts.write_down().await?;
    clerks.written.send_replace(true);
    layouts.remains().await
}
