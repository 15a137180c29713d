//! Everything that is said to Redis, and nothing else says anything to it: one method a transition, each
//! carried out by the script of the same name.
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{Cmd, RedisError, ToRedisArgs, Value};

use crate::connect::{ConnectError, Connection, Connector};
use crate::effects::Effect;
use crate::keys::Keys;

mod clients;
mod control;
mod cycle;
mod data;
mod inspect;
mod jobs;
mod lanes;
pub mod ownership;
mod sidekiq;

pub use clients::{Answer, Order, Ordered, Place};
pub use cycle::{Cycle, Cycled, LaneHandle, Parked, QueueAsk, Refusal, Returned, Settlement, Status, digest};
pub use data::Started;
pub use inspect::{ScoredPage, Span};
pub use jobs::{Enqueue, Granted, LaneSnapshot, Page, PageKind, QueueSnapshot, Snapshot, Turn};
pub use lanes::{Fenced, LaneRecord, RecordedLists, Registration, Rest};
pub use sidekiq::{ProcessBeat, Told};

/// Whatever is read in one page is at most this large (and at least one job).
pub const PAGE_BYTES: usize = 1 << 20;
/// Whatever is read or moved in one page is at most this many.
pub const PAGE_COUNT: usize = 100;

/// Why a call did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The reply did not come: it may have happened or not. Every call can be repeated.
    #[error("Redis did not answer: {0}")]
    Lost(String),
    /// Redis said no, nothing was changed, later it may say yes.
    #[error("Redis cannot take it now: {0}")]
    Later(String),
    /// Redis is full.
    #[error("Redis is out of memory: raise maxmemory or make room ({0})")]
    OutOfMemory(String),
    /// The ACL user may not.
    #[error(
        "Redis denies access to {what}: give the ACL user this key and the commands of docs/reliability.md"
    )]
    Denied {
        /// The key, or the command.
        what: String,
    },
    /// A key cannot take what belongs there.
    #[error("{key}: {reason}; rename or delete it, nothing was moved")]
    Unfit {
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
    /// The answer is not one that our script gives.
    #[error("Redis answered unexpectedly: {0}")]
    Unexpected(String),
}

impl StoreError {
    /// Repeating may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(error) => !error.is_permanent(),
            Self::Lost(_) | Self::Later(_) | Self::OutOfMemory(_) => true,
            Self::Denied { .. } | Self::Unfit { .. } | Self::Unexpected(_) => false,
        }
    }
}

/// One Lua file: loaded once, called by its SHA, loaded again when Redis has forgotten it.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    sha: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: Script = Script {
            source: concat!($(include_str!(concat!("scripts/", $file))),+),
            sha: LazyLock::new(|| sha1_smol::Sha1::from($name.source).digest().to_string()),
        };
    };
}
script!(CYCLE, "effects.lua", "cycle.lua");
script!(MOVE, "effects.lua", "move.lua");
script!(START, "effects.lua", "start.lua");
script!(DATA, "data.lua");
script!(NUMBER, "number.lua");
script!(REGISTER, "register.lua");
script!(EXTEND, "extend.lua");
script!(CLOSE, "close.lua");
script!(FENCE, "fence.lua");
script!(FORGET, "forget.lua");
script!(ORPHAN, "orphan.lua");
script!(TURN, "effects.lua", "turn.lua");
script!(ENQUEUE, "enqueue.lua");
script!(KEEP, "keep.lua");
script!(LIMIT, "limit.lua");
script!(UNSEE, "unsee.lua");
script!(PAGE, "page.lua");
script!(SCORED, "scored.lua");
script!(SNAPSHOT, "snapshot.lua");
script!(DRAINED, "drained.lua");
script!(OWN, "own.lua");
script!(DISOWN, "disown.lua");
script!(BEAT, "beat.lua");
script!(DEPART, "depart.lua");
script!(CREATE, "create.lua");
script!(CANCEL, "cancel.lua");
script!(LIST, "list.lua");
script!(WIDEN, "widen.lua");

/// A conversation with the node that holds one shard: connects when it must, and again after a failure.
pub struct Session {
    connector: Connector,
    /// The shard's keys.
    pub keys: Keys,
    link: Option<Connection>,
    /// The node that the link leads to, or led to last.
    node: Option<String>,
    reply_timeout: Duration,
    clock: Option<(u64, Instant)>,
    connected_at: Option<Instant>,
    failures: u32,
    longest_backoff: Duration,
    /// The mark of the last enqueue that was answered: the next one removes it.
    answered: Option<String>,
    /// Calls made so far, for `redis_round_trips_total`.
    pub round_trips: u64,
}

impl Session {
    /// A session that has not connected yet.
    pub fn new(connector: &Connector, keys: &Keys, longest_backoff: Duration) -> Self {
        Self {
            connector: connector.clone(),
            keys: keys.clone(),
            link: None,
            node: None,
            reply_timeout: connector.settings().read_timeout,
            clock: None,
            connected_at: None,
            failures: 0,
            longest_backoff,
            answered: None,
            round_trips: 0,
        }
    }

    /// Wait this long for a reply: a blocking command's timeout and some more.
    #[must_use]
    pub fn with_reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// Redis' clock, carried on by ours: milliseconds since the epoch.
    pub fn now_ms(&self) -> u64 {
        if let Some((ms, at)) = self.clock {
            return ms + u64::try_from(at.elapsed().as_millis()).unwrap_or(0);
        }
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Since when this connection stands; `None` while there is none.
    pub fn connected_since(&self) -> Option<Instant> {
        self.link.as_ref().and(self.connected_at)
    }

    /// The node of the present connection, else of the last one.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Redis' number for this connection, for `CLIENT UNBLOCK`.
    pub fn client_id(&self) -> Option<i64> {
        self.link.as_ref().and_then(|link| link.client_id)
    }

    /// Drops the connection: the next call makes a new one.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    /// Connects unless connected.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        if self.link.is_none() {
            let link = self.connector.connect(&self.keys.slot_key(), self.reply_timeout).await?;
            self.node = Some(link.address().to_owned());
            self.link = Some(link);
            self.connected_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Replaces a connection that keeps the memory of a large reply. It stood till now, so what it says of Redis stands.
    pub async fn slim(&mut self) {
        if self.link.as_ref().is_some_and(Connection::is_swollen)
            && let Ok(link) = self.connector.connect(&self.keys.slot_key(), self.reply_timeout).await
        {
            self.node = Some(link.address().to_owned());
            self.link = Some(link);
        }
    }

    /// Calls until it answers or there is no hope; waits between tries, longer each time, up to a bound: after
    /// an outage the lanes must be back before a reaper, which waits one TTL, may look at them.
    pub async fn persist<T>(
        &mut self,
        mut call: impl AsyncFnMut(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            match call(self).await {
                Err(error) if error.is_transient() => {
                    let wait = self.backoff();
                    tracing::warn!(error = %error, attempt = self.failures, "Could not reach Redis, trying again");
                    tokio::time::sleep(wait).await;
                }
                answer => return answer,
            }
        }
    }

    /// How long to wait after a failure: doubles from 20 ms up to the bound, with jitter.
    pub fn backoff(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = Duration::from_millis(20) * 2u32.saturating_pow(self.failures.min(16) - 1);
        wait.min(self.longest_backoff).mul_f64(fastrand::f64().mul_add(0.5, 0.5))
    }

    /// Sends one command.
    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.connect().await?;
        let Some(link) = self.link.as_mut() else { return Err(StoreError::Lost("not connected".into())) };
        self.round_trips += 1;
        match link.redis.send_packed_command(command).await.and_then(Value::extract_error) {
            Ok(value) => {
                self.failures = 0;
                Ok(value)
            }
            Err(error) => Err(match self.understand(&error) {
                // Nor does Redis say which key it denies to a plain command: as a rule it has one.
                StoreError::Denied { what } if what.contains("keys") => {
                    StoreError::Denied { what: key_of(command).map_or(what, |key| format!("key {key}")) }
                }
                error => error,
            }),
        }
    }

    /// Sends several commands at once and awaits all answers.
    pub(crate) async fn query_all(&mut self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.connect().await?;
        let Some(link) = self.link.as_mut() else { return Err(StoreError::Lost("not connected".into())) };
        self.round_trips += 1;
        let mut pipeline = redis::Pipeline::with_capacity(commands.len());
        let count = commands.len();
        for command in commands {
            pipeline.add_command(command);
        }
        let answers = link.redis.send_packed_commands(&pipeline, 0, count).await;
        let answers = answers.and_then(|answers| answers.into_iter().map(Value::extract_error).collect());
        match answers {
            Ok(answers) => {
                self.failures = 0;
                Ok(answers)
            }
            Err(error) => Err(self.understand(&error)),
        }
    }

    /// Calls a script by its SHA; a Redis that does not know it has not run it.
    pub(crate) async fn eval(&mut self, script: &Script, call: &Call) -> Result<Value, StoreError> {
        let command = call.command(&script.sha);
        let mut answer = self.query(&command).await;
        if matches!(&answer, Err(StoreError::Later(reason)) if reason.starts_with("NOSCRIPT")) {
            let mut load = Cmd::new();
            load.arg("SCRIPT").arg("LOAD").arg(script.source);
            self.query(&load).await?;
            answer = self.query(&command).await;
        }
        match answer {
            Err(StoreError::Denied { what }) => {
                Err(StoreError::Denied { what: self.denied(call, what).await })
            }
            Err(StoreError::Unexpected(reason)) => Err(self.unfit(&call.keys, reason).await),
            answer => answer,
        }
    }

    /// Calls a script several times in one round trip, one call after the other.
    pub(crate) async fn eval_all(
        &mut self,
        script: &Script,
        calls: &[Call],
    ) -> Result<Vec<Value>, StoreError> {
        if let [call] = calls {
            return Ok(vec![self.eval(script, call).await?]);
        }
        let commands: Vec<Cmd> = calls.iter().map(|call| call.command(&script.sha)).collect();
        match self.query_all(commands).await {
            // It runs none of them then. The first call alone has it loaded, and names a key that is denied or unfit.
            Err(StoreError::Later(reason)) if reason.starts_with("NOSCRIPT") => {
                let mut answers = vec![self.eval(script, &calls[0]).await?];
                let rest = calls[1..].iter().map(|call| call.command(&script.sha)).collect();
                answers.extend(self.query_all(rest).await?);
                Ok(answers)
            }
            Err(StoreError::Unexpected(reason)) => Err(self.unfit(&calls[0].keys, reason).await),
            answers => answers,
        }
    }

    /// Nor does it say which key has the wrong type: look at each.
    pub(crate) async fn unfit(&mut self, keys: &[String], reason: String) -> StoreError {
        if reason.contains("WRONGTYPE") {
            for key in keys {
                let Some(expected) = self.keys.kind_of(key) else { continue };
                let mut probe = Cmd::new();
                probe.arg("TYPE").arg(key.as_str());
                let Ok(kind) = self.query(&probe).await.map(text) else { break };
                if kind != "none" && kind != expected {
                    let reason = format!("WRONGTYPE holds a {kind}, must be a {expected}");
                    return StoreError::Unfit { key: key.clone(), reason };
                }
            }
        }
        StoreError::Unexpected(reason)
    }

    /// Redis does not say which key it denies: ask for each.
    async fn denied(&mut self, call: &Call, otherwise: String) -> String {
        for key in &call.keys {
            let mut probe = Cmd::new();
            probe.arg("TYPE").arg(key.as_str());
            if let Err(StoreError::Denied { .. }) = self.query(&probe).await {
                return format!("key {key}");
            }
        }
        otherwise
    }

    fn understand(&mut self, error: &RedisError) -> StoreError {
        let text = error.to_string();
        let Some(code) = error.code().map(str::to_owned) else {
            self.link = None;
            return StoreError::Lost(text);
        };
        let detail = || format!("{code} {}", error.detail().unwrap_or_default());
        match code.as_str() {
            "NOSCRIPT" | "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS"
            | "MISCONF" => StoreError::Later(detail()),
            // This node is not the right one any more: the next connection is resolved anew.
            "READONLY" | "MOVED" | "ASK" => {
                self.link = None;
                StoreError::Later(detail())
            }
            "NOAUTH" | "WRONGPASS" => {
                self.link = None;
                StoreError::Connect(ConnectError::Credentials { address: self.connector.describe() })
            }
            "OOM" => StoreError::OutOfMemory(detail()),
            "NOPERM" => {
                // A script of ours names the command; Redis' own words are those of a sentence.
                let command = error.detail().filter(|detail| detail.starts_with("command "));
                StoreError::Denied { what: command.map_or_else(detail, str::to_owned) }
            }
            _ if text.contains("can't run this command") => StoreError::Denied { what: detail() },
            _ if error.is_io_error() => {
                self.link = None;
                StoreError::Lost(text)
            }
            _ if text.contains("OOM command not allowed") => StoreError::OutOfMemory(detail()),
            _ if text.contains("READONLY") => {
                self.link = None;
                StoreError::Later(detail())
            }
            _ => StoreError::Unexpected(detail()),
        }
    }

    /// Waits until enough replicas have what was just written. Too few: said again, it changes nothing twice.
    pub(crate) async fn replicated(&mut self) -> Result<(), StoreError> {
        let wanted = self.connector.settings().wait_replicas;
        if wanted == 0 {
            return Ok(());
        }
        let mut wait = Cmd::new();
        wait.arg("WAIT").arg(wanted).arg(u64::try_from(self.reply_timeout.as_millis() / 2).unwrap_or(1000));
        let confirmed = number(&self.query(&wait).await?).unwrap_or(0);
        if confirmed >= u64::from(wanted) {
            return Ok(());
        }
        Err(StoreError::Later(format!(
            "NOREPLICAS {confirmed} of redis.wait_replicas = {wanted} replicas confirmed"
        )))
    }

    pub(crate) fn saw_time(&mut self, seconds: &Value, micros: &Value) {
        if let (Some(seconds), Some(micros)) = (number(seconds), number(micros)) {
            self.clock = Some((seconds * 1000 + micros / 1000, Instant::now()));
        }
    }
}

/// The key of a plain command; those of a script are asked about one by one.
fn key_of(command: &Cmd) -> Option<String> {
    let mut words = command.args_iter().map(|word| match word {
        redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
        _ => String::new(),
    });
    words.next().filter(|name| name != "EVALSHA")?;
    words.next()
}

/// The keys and arguments of one script call. Keys of effects are declared as they are met.
#[derive(Debug, Default)]
pub(crate) struct Call {
    keys: Vec<String>,
    args: Cmd,
    fixed: usize,
}

impl Call {
    pub(crate) fn new(keys: Vec<String>) -> Self {
        let fixed = keys.len();
        Self { keys, args: Cmd::new(), fixed }
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.args.arg(arg);
        self
    }

    /// The index of a key, from 1; declared if it is not yet. The fixed keys have their own meaning and are
    /// not searched.
    pub(crate) fn key(&mut self, key: &str) -> usize {
        if let Some(at) = self.keys[self.fixed..].iter().position(|known| known == key) {
            return self.fixed + at + 1;
        }
        self.keys.push(key.to_owned());
        self.keys.len()
    }

    pub(crate) fn effects(&mut self, effects: &[Effect], counters: &str) {
        self.arg(effects.len());
        for effect in effects {
            match effect {
                Effect::Push { key, side, bytes } => {
                    let key = self.key(key);
                    self.arg(side.letter()).arg(key).arg(&bytes[..]).arg("");
                }
                Effect::Delay { key, at_ms, member } => {
                    let key = self.key(key);
                    self.arg("Z").arg(key).arg(*at_ms).arg(&member[..]);
                }
                Effect::Score { key, score, member } => {
                    let key = self.key(key);
                    self.arg("Z").arg(key).arg(score).arg(&member[..]);
                }
                Effect::Set { key, bytes, ttl_ms } => {
                    let key = self.key(key);
                    let ttl = ttl_ms.map(|ttl| ttl.to_string()).unwrap_or_default();
                    self.arg("S").arg(key).arg(&bytes[..]).arg(ttl);
                }
                Effect::Swap { key, from, to } => {
                    let key = self.key(key);
                    self.arg("C").arg(key).arg(&from[..]).arg(&to[..]);
                }
                Effect::Expire { key, ttl_ms, unless } => {
                    let key = self.key(key);
                    let ttl = ttl_ms.map(|ttl| ttl.to_string()).unwrap_or_default();
                    let unless = unless.as_deref().map(|key| self.key(key).to_string()).unwrap_or_default();
                    self.arg("E").arg(key).arg(ttl).arg(unless);
                }
                Effect::Index { key, at_ms, member } => {
                    let key = self.key(key);
                    self.arg("I").arg(key).arg(*at_ms).arg(member);
                }
                Effect::Unindex { key, member } => {
                    let key = self.key(key);
                    self.arg("U").arg(key).arg(member).arg("");
                }
                Effect::TrimIndex { key, before_ms } => {
                    let key = self.key(key);
                    self.arg("O").arg(key).arg(*before_ms).arg(PAGE_COUNT);
                }
                Effect::Publish { channel, message } => {
                    let channel = self.key(channel);
                    self.arg("P").arg(channel).arg(message).arg("");
                }
                Effect::Trim { key, max, counted } => {
                    let key = self.key(key);
                    let counters = if *counted { self.key(counters).to_string() } else { String::new() };
                    self.arg("T").arg(key).arg(*max).arg(counters);
                }
                Effect::TrimSet { key, before, rank } => {
                    let key = self.key(key);
                    self.arg("D").arg(key).arg(before).arg(*rank);
                }
                Effect::Add { key, member } => {
                    let key = self.key(key);
                    self.arg("A").arg(key).arg(member).arg("");
                }
            }
        }
    }

    fn command(&self, sha: &str) -> Cmd {
        let size: usize = self
            .args
            .args_iter()
            .map(|arg| if let redis::Arg::Simple(arg) = arg { arg.len() } else { 0 })
            .sum();
        let mut command = Cmd::with_capacity(
            3 + self.keys.len() + self.args.args_iter().len(),
            size + 64 * self.keys.len(),
        );
        command.arg("EVALSHA").arg(sha).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key.as_str());
        }
        for arg in self.args.args_iter() {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

pub(crate) fn bytes(value: Value) -> Bytes {
    match value {
        Value::BulkString(bytes) => Bytes::from(bytes),
        Value::SimpleString(text) => Bytes::from(text),
        Value::Int(number) => Bytes::from(number.to_string()),
        Value::Okay => Bytes::from_static(b"OK"),
        _ => Bytes::new(),
    }
}

pub(crate) fn text(value: Value) -> String {
    String::from_utf8_lossy(&bytes(value)).into_owned()
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(StoreError::Unexpected(format!("{other:?}").chars().take(80).collect())),
    }
}

pub(crate) fn unexpected(what: &str) -> StoreError {
    StoreError::Unexpected(what.to_owned())
}
