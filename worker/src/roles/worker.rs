//! `--role=worker`: opens the lanes and keeps them open, renews their heartbeats, promotes and reaps, until a
//! signal; then drains.
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jobqueue::breaker::Breaker;
use jobqueue::config::{self, Config, HandlerKind, Protocol, TypeHandler};
use jobqueue::engine::{Engine, breaker_settings};
use jobqueue::keys::Keys;
use jobqueue::layout;
use jobqueue::reaper::RESTARTED;
use jobqueue::store::{Fenced, Registration, Session, StoreError};
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinSet;

use super::{check_redis, is_stopped, write_layout};
use crate::coroner::Coroner;
use crate::handler::{
    ByType, Command, CommandSettings, Handler, Http, HttpSettings, Simulate, SimulateSettings,
};
use crate::health::{FIRST_LANE, Readiness};
use crate::heartbeat;
use crate::lane::{End, Lane};
use crate::metrics::Metrics;
use crate::presence::{self, Presence};
use crate::shared::{Beat, LaneSettings, Shared, Shares};
use crate::shutdown::{Shutdown, shutdown};
use crate::slots::Slots;
use crate::traces::Tracer;

mod upkeep;

/// How often shards of other layouts are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What a worker needs from its process.
pub struct Surroundings {
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// Spans.
    pub tracer: Tracer,
    /// When this process started, by this node's clock.
    pub started_ms: u64,
}

/// Runs until shutdown; `Ok(false)` when something had to be left to a reaper.
pub async fn run(config: &Config, around: Surroundings, shutdown_request: Shutdown) -> anyhow::Result<bool> {
    run_with(handler(config)?, config, around, shutdown_request).await
}

/// The same with a handler of the caller's, whatever `worker.handler` says.
pub async fn run_with(
    handler: Handler,
    config: &Config,
    around: Surroundings,
    mut shutdown_request: Shutdown,
) -> anyhow::Result<bool> {
    let mut engine = Engine::new(config);
    check_redis(&engine).await?;
    let (tell, mut found) = mpsc::channel(1);
    tokio::spawn(watch_layout(engine.clone(), shutdown_request.clone(), tell));
    // Its node may be away while those of other shards are not: they are served meanwhile.
    let patience = if engine.shards.len() > 1 { engine.longest_backoff() } else { Duration::MAX };
    let first = tokio::time::timeout(patience, found.recv()).await.ok().flatten().transpose()?;
    engine.shards.extend(told(first.unwrap_or_default()));
    let mut lanes = lane_count(config).max(engine.shards.len());
    let (stop, stopping) = shutdown();
    let (all_closed, closed) = shutdown();
    let mut process = Process {
        shared: Arc::new(share(handler, config, &engine, around)?),
        config: config.clone(),
        engine: engine.clone(),
        open: JoinSet::new(),
        background: JoinSet::new(),
        stopping,
        closed,
    };
    for (shard, keys) in engine.shards.iter().enumerate() {
        process.serve(keys, (0..lanes).filter(|lane| lane % engine.shards.len() == shard));
    }
    let served = process.look_after();
    let (mut clean, mut failed) = (true, None);
    loop {
        tokio::select! {
            end = process.open.join_next() => match end {
                Some(end) => clean &= end.context("a lane failed, see the log for the place")? == End::Drained,
                None => break,
            },
            // Without its heartbeats a worker would lose its lanes one by one: better to end, and be started again.
            Some(ended) = process.background.join_next() => ended.context("a task failed, see the log for the place")?,
            () = shutdown_request.requested(), if !process.stopping.is_requested() => stop.stop(),
            Some(found) = found.recv(), if !process.stopping.is_requested() => match found {
                Ok(leftovers) => for keys in told(leftovers) {
                    process.serve(&keys, lanes..=lanes);
                    lanes += 1;
                    let _ = served.send(keys);
                },
                // Said when it ends: what runs by now is drained first.
                Err(error) => {
                    failed = Some(error);
                    stop.stop();
                }
            }
        }
    }
    process.shared.readiness.drained();
    all_closed.stop();
    let ended = async { while process.background.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
    failed.map_or(Ok(clean), Err)
}

/// Says which shards are served only for what they hold.
fn told(leftovers: Vec<Keys>) -> Vec<Keys> {
    if !leftovers.is_empty() {
        let count = leftovers.len();
        tracing::info!(count, "Serving the shards of another layout too, they hold jobs");
    }
    leftovers
}

/// Writes the layout of shards down, then looks for shards of other layouts that hold jobs, now and again: whoever still
/// works with one may push there at any time. Tells each once, and the first time also that there are none.
async fn watch_layout(engine: Engine, shutdown: Shutdown, tell: mpsc::Sender<anyhow::Result<Vec<Keys>>>) {
    let mut watch = layout::Watch::new(&engine);
    match write_layout(&mut watch, &engine, &shutdown).await {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => {
            let _ = tell.send(Err(error.into())).await;
            return;
        }
    }
    let (mut known, mut is_first) = (HashSet::new(), true);
    loop {
        let wait = match watch.leftovers().await {
            Ok(mut leftovers) => {
                leftovers.retain(|keys| known.insert(keys.lanes()));
                let news = is_first || !leftovers.is_empty();
                is_first = false;
                if news && tell.send(Ok(leftovers)).await.is_err() {
                    return;
                }
                LOOK_EVERY.mul_f64(fastrand::f64() + 0.5)
            }
            Err(error) if is_first => match is_stopped(error, &engine, &shutdown).await {
                Ok(true) => return,
                Ok(false) => continue,
                Err(error) => {
                    let _ = tell.send(Err(error.into())).await;
                    return;
                }
            },
            // Whoever works is told often enough that Redis is away.
            Err(error) => {
                tracing::debug!(%error, "Could not look for shards of another layout, trying again");
                engine.longest_backoff()
            }
        };
        if shutdown.within(wait).await {
            return;
        }
    }
}

/// The tasks of a worker. Each shard has its own: one whose node is away keeps nobody from the others.
struct Process {
    config: Config,
    engine: Engine,
    shared: Arc<Shared>,
    /// The lanes.
    open: JoinSet<End>,
    /// Whatever they need beside them.
    background: JoinSet<()>,
    /// Lanes are to drain.
    stopping: Shutdown,
    /// They have.
    closed: Shutdown,
}

impl Process {
    /// Serves a shard with lanes of these numbers.
    fn serve(&mut self, keys: &Keys, lanes: impl Iterator<Item = usize>) {
        let lanes: Vec<_> = lanes.map(|index| (index, Arc::new(Beat::new()))).collect();
        self.shared.shares.serve(lanes.len());
        self.background.spawn(heartbeat::run(
            Arc::clone(&self.shared),
            lanes.iter().map(|(_, beat)| Arc::clone(beat)).collect(),
            self.engine.session(keys),
            self.closed.clone(),
        ));
        self.background.spawn(upkeep::promote(self.engine.clone(), keys.clone(), self.stopping.clone()));
        if self.config.worker.reaper.enabled {
            self.background.spawn(upkeep::reap(
                self.engine.clone(),
                keys.clone(),
                self.config.clone(),
                Arc::clone(&self.shared),
                self.closed.clone(),
            ));
        }
        let prepared = Arc::new(OnceCell::new());
        for (at, (index, beat)) in lanes.into_iter().enumerate() {
            self.shared.expect_lane(index);
            self.open.spawn(keep_open(
                Arc::clone(&self.shared),
                self.engine.clone(),
                keys.clone(),
                (index, at == 0),
                beat,
                Arc::clone(&prepared),
                self.stopping.clone(),
            ));
        }
    }

    /// What a process does once, whatever it serves; it is told of shards that are found later.
    fn look_after(&mut self) -> mpsc::UnboundedSender<Keys> {
        if self.shared.presence.is_some() {
            let session = self.engine.session(&self.engine.shards[0]);
            self.background.spawn(presence::run(
                Arc::clone(&self.shared),
                session,
                self.stopping.clone(),
                self.closed.clone(),
            ));
        }
        let (tell, found) = mpsc::unbounded_channel();
        self.background.spawn(upkeep::export_gauges(
            self.engine.clone(),
            self.config.clone(),
            Arc::clone(&self.shared),
            found,
            self.closed.clone(),
        ));
        tell
    }
}

/// `max(shards, ceil(count / 100))`, and two from 100 slots on: one settles while the other reserves. A multiple of
/// the shards is not needed: lanes are dealt to them in turn.
fn lane_count(config: &Config) -> usize {
    let (count, shards) = (config.worker.count as usize, config.worker.shards as usize);
    match config.worker.lanes as usize {
        0 => shards.max(count.div_ceil(100)).max(if count >= 100 { 2 } else { 1 }),
        lanes => lanes.max(shards),
    }
}

fn share(handler: Handler, config: &Config, engine: &Engine, around: Surroundings) -> anyhow::Result<Shared> {
    let host = hostname::get()?.to_string_lossy().into_owned();
    let process = format!("{host}-{}", std::process::id());
    let worker = &config.worker;
    crate::logs::set_worker_id(process.clone());
    let registration = Registration {
        control: if worker.pod_uid.is_empty() { process.clone() } else { worker.pod_uid.clone() },
        process,
        jobqueue_uid: worker.jobqueue_uid.clone(),
        pod_uid: worker.pod_uid.clone(),
        started_ms: around.started_ms,
        ttl_ms: u64::try_from(engine.ttl.as_millis())?,
    };
    let now = Instant::now();
    // Only Kubernetes knows why an app beside us died, and only the operator can tell.
    let beside = !worker.pod_uid.is_empty() && handler.posts();
    let coroner =
        beside.then(|| Coroner::new(engine.session(&engine.shards[0]), registration.control.clone()));
    around.metrics.worker_slots(worker.count as usize);
    Ok(Shared {
        protocol: Arc::clone(&engine.protocol),
        handler,
        slots: Slots::new(worker.count),
        breakers: engine
            .queues
            .iter()
            .map(|_| Mutex::new(Breaker::new(breaker_settings(config), now)))
            .collect(),
        queue_metrics: engine.queues.iter().map(|name| Arc::clone(around.metrics.queue(name))).collect(),
        metrics: around.metrics,
        tracer: around.tracer,
        settings: LaneSettings {
            ttl: engine.ttl,
            park_timeout: worker.brpoplpush_timeout.get(),
            completed_max: engine.completed_max,
            drain_timeout: worker.drain_timeout.get(),
            weights: (worker.priorities.iter())
                .filter_map(|name| worker.weights.get(name).copied().map(u32::from))
                .collect(),
            longest_backoff: engine.longest_backoff(),
        },
        registration,
        readiness: around.readiness,
        wake: tokio::sync::Notify::new(),
        freed: tokio::sync::Notify::new(),
        drained: Mutex::default(),
        shares: Shares::default(),
        coroner,
        news: tokio::sync::watch::Sender::new(()),
        presence: (config.protocol == Protocol::Sidekiq)
            .then(|| Presence::new(config, &host, around.started_ms)),
    })
}

fn handler(config: &Config) -> anyhow::Result<Handler> {
    let settings = &config.worker.handler;
    let by_type = &config.async_jobs.handlers;
    if config.protocol == Protocol::Async && !by_type.is_empty() {
        let handlers = by_type.iter().map(|(kind, handler)| {
            let handler = match handler {
                TypeHandler::Simulate(settings) => simulate(settings),
                TypeHandler::Http(settings) => http(settings, config),
                TypeHandler::Command(settings) => command(settings, config),
            };
            Ok((kind.clone(), handler.with_context(|| format!("async.handlers.{kind}"))?))
        });
        return Ok(Handler::ByType(ByType::new(
            handlers.collect::<anyhow::Result<_>>()?,
            breaker_settings(config),
        )));
    }
    match settings.kind {
        HandlerKind::Simulate => simulate(&settings.simulate),
        HandlerKind::Http => http(&settings.http, config),
        HandlerKind::Command => command(&settings.command, config),
    }
}

fn simulate(settings: &config::Simulate) -> anyhow::Result<Handler> {
    Ok(Handler::Simulate(Simulate::new(&SimulateSettings {
        base: settings.base.get(),
        per_mib: settings.per_mib.get(),
        fail_glob: settings.fail_glob.clone(),
    })?))
}

fn http(settings: &config::Http, config: &Config) -> anyhow::Result<Handler> {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(Handler::Http(Box::new(Http::new(&HttpSettings {
        url: settings.url.expose().to_owned(),
        unix_socket: given(&settings.unix_socket).map(Into::into),
        path: settings.path.clone(),
        timeout: settings.timeout.get(),
        token_file: given(&settings.token_file).map(Into::into),
        hmac_key_file: given(&settings.hmac_key_file).map(Into::into),
        ca_file: given(&settings.ca_file).map(Into::into),
        cert_file: given(&settings.cert_file).map(Into::into),
        key_file: given(&settings.key_file).map(Into::into),
        concurrency: config.worker.count as usize,
        keeps_result: keeps_results(config),
        sidecar: config.protocol == Protocol::Sidekiq,
    })?)))
}

fn command(settings: &config::Command, config: &Config) -> anyhow::Result<Handler> {
    Ok(Handler::Command(Command::new(&CommandSettings {
        argv: settings.argv.clone(),
        timeout: settings.timeout.get(),
        keeps_result: keeps_results(config),
        ..CommandSettings::default()
    })?))
}

/// Only a job over HTTP has a place for its result.
fn keeps_results(config: &Config) -> bool {
    config.protocol == Protocol::Async
}

/// What is done before the first lane of a shard is opened.
async fn prepare(engine: &Engine, keys: &Keys, shared: &Shared) {
    fence_predecessors(engine, keys, &shared.registration).await;
    let Some(presence) = &shared.presence else { return };
    // Found out later, a queue would have been taken from that was paused all the time.
    let mut session = engine.session(keys);
    while let Err(error) = presence.hear(&mut session, &shared.wake).await {
        tracing::warn!(error = %error, "Could not read which queues are paused, taking no jobs before that");
        let wait = if error.is_transient() { session.backoff() } else { engine.longest_backoff() };
        tokio::time::sleep(wait).await;
    }
}

/// A container restarted in place has the same pod: whatever its predecessor held is certainly free. Without a
/// pod's uid nothing is certain, and nothing is fenced.
async fn fence_predecessors(engine: &Engine, keys: &Keys, me: &Registration) {
    if me.pod_uid.is_empty() {
        return;
    }
    let mut session = engine.session(keys);
    let fenced = loop {
        match fence_earlier(&mut session, me).await {
            Ok(fenced) => break fenced,
            Err(error) => {
                tracing::warn!(error = %error, "Could not look for this pod's earlier process, trying again");
                let wait = if error.is_transient() { session.backoff() } else { engine.longest_backoff() };
                tokio::time::sleep(wait).await;
            }
        }
    };
    if fenced > 0 {
        tracing::warn!(count = fenced, reason = RESTARTED, "Fenced the lanes of this pod's earlier process");
    }
}

/// Fences every lane of the same pod and an earlier process; answers how many.
async fn fence_earlier(session: &mut Session, me: &Registration) -> Result<usize, StoreError> {
    let (mut fenced, mut cursor) = (0, "0".to_owned());
    loop {
        let (next, lanes) = session.scan_lanes(false, &cursor, 100).await?;
        for lane in lanes {
            let Some(record) = session.lane(&lane).await? else { continue };
            if record.pod_uid == me.pod_uid && record.started_ms < me.started_ms {
                fenced += usize::from(session.fence(&lane, true, RESTARTED).await? == Fenced::Fenced);
            }
        }
        if next == "0" {
            return Ok(fenced);
        }
        cursor = next;
    }
}

/// One lane, opened again whenever its lease was lost.
async fn keep_open(
    shared: Arc<Shared>,
    engine: Engine,
    keys: Keys,
    (index, parks): (usize, bool),
    beat: Arc<Beat>,
    prepared: Arc<OnceCell<()>>,
    mut shutdown: Shutdown,
) -> End {
    // The first lane of its shard does it, the others wait for it.
    tokio::select! {
        () = prepared.get_or_init(|| prepare(&engine, &keys, &shared)) => {}
        () = shutdown.requested() => return End::Drained,
    }
    let park_reply = shared.settings.park_timeout + Duration::from_secs(2);
    let mut session = engine.session(&keys);
    loop {
        let parked = if parks { 2 * keys.queues.len() } else { 0 };
        let parks = (0..parked).map(|_| engine.session(&keys).with_reply_timeout(park_reply)).collect();
        match Lane::open(Arc::clone(&shared), session, index, parks, Arc::clone(&beat), shutdown.clone())
            .await
        {
            Ok(lane) => {
                shared.readiness.reached(FIRST_LANE);
                let (end, used) = lane.run().await;
                if end != End::Lost {
                    return end;
                }
                session = used;
            }
            Err(error) => {
                tracing::warn!(error = %error, "Could not open a lane, trying again");
                session = engine.session(&keys);
                if shutdown.within(shared.settings.longest_backoff).await {
                    return End::Drained;
                }
            }
        }
        if shutdown.is_requested() {
            return End::Drained;
        }
    }
}
