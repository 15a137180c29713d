//! A proxy between a client and Redis that understands what passes: it can lose exactly the reply to one
//! command after the server has carried it out, which no packet filter can.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::resp::{FrameReader, is_push, words};
use crate::wait::eventually;

/// How long a test may take to run into a rule it has set.
const HIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Replies to these come when they like: from then on bytes are passed on as they are.
const UNSOLICITED: [&str; 5] = ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC"];

/// What happens to a command that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server carries the command out and answers; the client's connection closes without the answer.
    LoseReply,
    /// The connection closes before the server has seen the command.
    LoseCommand,
    /// The reply, and what follows it on that connection, comes later.
    DelayReply(Duration),
    /// The reply, and what follows it on that connection, waits for [`Rule::release`].
    HoldReply,
    /// The command, and what follows it on that connection, waits for [`Rule::release`].
    HoldCommand,
    /// The server never sees the command; this RESP value is the answer (`-OOM ...\r\n`).
    Answer(Bytes),
}

type Predicate = Box<dyn Fn(&[Bytes]) -> bool + Send + Sync>;

/// A fault waiting for its command.
pub struct Rule {
    fault: Fault,
    matches: Predicate,
    skip: usize,
    times: usize,
    matched: AtomicUsize,
    hits: AtomicUsize,
    removed: AtomicBool,
    released: watch::Sender<bool>,
}

impl Rule {
    /// How often the fault has taken effect: for a lost reply, after the server answered.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Waits until the fault has taken effect at least once.
    pub async fn hit(&self) {
        eventually(HIT_TIMEOUT, "a proxy rule to be hit", async || self.hits() > 0).await;
    }

    /// Lets held commands and replies go, now and from now on.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Stops matching; what it holds stays held until released.
    pub fn remove(&self) {
        self.removed.store(true, Ordering::SeqCst);
    }

    fn takes(&self, command: &[Bytes]) -> bool {
        if self.removed.load(Ordering::SeqCst) || !(self.matches)(command) {
            return false;
        }
        let earlier = self.matched.fetch_add(1, Ordering::SeqCst);
        earlier >= self.skip && earlier - self.skip < self.times
    }

    fn happened(&self) {
        self.hits.fetch_add(1, Ordering::SeqCst);
    }

    async fn wait_released(&self) {
        // The sender lives as long as the rule: waiting cannot fail.
        let _ = self.released.subscribe().wait_for(|released| *released).await;
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Rule")
            .field("fault", &self.fault)
            .field("hits", &self.hits())
            .finish_non_exhaustive()
    }
}

/// What has passed since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Commands sent by clients.
    pub commands: u64,
    /// Commands by their upper-case name.
    pub by_name: BTreeMap<String, u64>,
    /// Bytes of those commands.
    pub command_bytes: u64,
    /// Bytes of the server's replies.
    pub reply_bytes: u64,
    /// Runs of commands on one connection without a reply between them: a pipeline is one.
    pub round_trips: u64,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    rules: Mutex<Vec<Arc<Rule>>>,
    connections: AtomicU64,
    command_bytes: AtomicU64,
    reply_bytes: AtomicU64,
    round_trips: AtomicU64,
    by_name: Mutex<BTreeMap<String, u64>>,
    refusing: AtomicBool,
    frozen: watch::Sender<bool>,
    cuts: watch::Sender<u64>,
}

impl Shared {
    fn rule_for(&self, command: &[Bytes]) -> Option<Arc<Rule>> {
        let rules = self.rules.lock().expect("the rules' lock");
        rules.iter().find(|rule| rule.takes(command)).cloned()
    }

    fn count_command(&self, name: &str, bytes: usize) {
        self.command_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut names = self.by_name.lock().expect("the counters' lock");
        match names.get_mut(name) {
            Some(count) => *count += 1,
            None => {
                names.insert(name.to_owned(), 1);
            }
        }
    }

    async fn thawed(&self) {
        let _ = self.frozen.subscribe().wait_for(|frozen| !*frozen).await;
    }
}

/// The proxy; it closes everything when dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accept: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a loopback port and passes everything to `upstream`, a Redis without TLS.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a loopback port");
        let addr = listener.local_addr().expect("the address of a bound socket");
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::default(),
            connections: AtomicU64::new(0),
            command_bytes: AtomicU64::new(0),
            reply_bytes: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
            by_name: Mutex::default(),
            refusing: AtomicBool::new(false),
            frozen: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
        });
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { addr, shared, accept }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://` of [`Self::addr`].
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Sets a fault for `times` commands that match, after `skip` that do. Earlier rules win.
    pub fn on(
        &self,
        fault: Fault,
        skip: usize,
        times: usize,
        matches: impl Fn(&[Bytes]) -> bool + Send + Sync + 'static,
    ) -> Arc<Rule> {
        let rule = Arc::new(Rule {
            fault,
            matches: Box::new(matches),
            skip,
            times,
            matched: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
            released: watch::Sender::new(false),
        });
        self.shared.rules.lock().expect("the rules' lock").push(Arc::clone(&rule));
        rule
    }

    /// Loses the reply to the next command that matches, after the server has carried it out.
    pub fn drop_reply_once(&self, matches: impl Fn(&[Bytes]) -> bool + Send + Sync + 'static) -> Arc<Rule> {
        self.on(Fault::LoseReply, 0, 1, matches)
    }

    /// Loses the next command that matches, before the server has seen it.
    pub fn drop_command_once(&self, matches: impl Fn(&[Bytes]) -> bool + Send + Sync + 'static) -> Arc<Rule> {
        self.on(Fault::LoseCommand, 0, 1, matches)
    }

    /// Holds the replies to all commands that match until the rule is released.
    pub fn hold_replies(&self, matches: impl Fn(&[Bytes]) -> bool + Send + Sync + 'static) -> Arc<Rule> {
        self.on(Fault::HoldReply, 0, usize::MAX, matches)
    }

    /// Delays the replies to all commands that match.
    pub fn delay_replies(
        &self,
        delay: Duration,
        matches: impl Fn(&[Bytes]) -> bool + Send + Sync + 'static,
    ) -> Arc<Rule> {
        self.on(Fault::DelayReply(delay), 0, usize::MAX, matches)
    }

    /// Removes all rules and lets go what they hold.
    pub fn clear(&self) {
        for rule in self.shared.rules.lock().expect("the rules' lock").drain(..) {
            rule.remove();
            rule.release();
        }
    }

    /// Closes every connection; new ones are welcome.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// From now on new connections are closed at once.
    pub fn refuse(&self) {
        self.shared.refusing.store(true, Ordering::SeqCst);
    }

    /// Takes new connections again.
    pub fn accept(&self) {
        self.shared.refusing.store(false, Ordering::SeqCst);
    }

    /// A partition: nothing passes in either direction, nobody is told, new connections hang.
    pub fn freeze(&self) {
        self.shared.frozen.send_replace(true);
    }

    /// The end of the partition: what was under way arrives late.
    pub fn thaw(&self) {
        self.shared.frozen.send_replace(false);
    }

    /// What has passed so far.
    pub fn counters(&self) -> Counters {
        let by_name = self.shared.by_name.lock().expect("the counters' lock").clone();
        Counters {
            connections: self.shared.connections.load(Ordering::Relaxed),
            commands: by_name.values().sum(),
            by_name,
            command_bytes: self.shared.command_bytes.load(Ordering::Relaxed),
            reply_bytes: self.shared.reply_bytes.load(Ordering::Relaxed),
            round_trips: self.shared.round_trips.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections live in a set inside this task and go with it.
        self.accept.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if shared.refusing.load(Ordering::SeqCst) {
            continue;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            tokio::select! {
                // Either side closing is an ordinary end; so is a broken stream.
                _ = pass(client, &shared) => {}
                _ = cuts.changed() => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// What the next reply on a connection belongs to, in the order of the commands.
enum Expected {
    /// The server's reply, and the fault it meets.
    Reply(Option<Arc<Rule>>),
    /// No reply of the server: this one.
    Answer(Bytes),
    /// From here on the stream is not a sequence of replies to commands.
    Unsolicited,
}

async fn pass(client: TcpStream, shared: &Shared) -> io::Result<()> {
    shared.thawed().await;
    let server = TcpStream::connect(shared.upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_reader, client_writer) = client.into_split();
    let (server_reader, server_writer) = server.into_split();
    let (expect, expected) = mpsc::unbounded_channel();
    // Set by a reply, taken by the next command: then a new round trip has begun.
    let replied = AtomicBool::new(true);
    tokio::select! {
        end = commands(client_reader, server_writer, expect, &replied, shared) => end,
        end = replies(server_reader, client_writer, expected, &replied, shared) => end,
    }
}

async fn commands(
    client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    expect: mpsc::UnboundedSender<Expected>,
    replied: &AtomicBool,
    shared: &Shared,
) -> io::Result<()> {
    let mut client = FrameReader::new(client);
    let mut batch = BytesMut::new();
    let mut unsolicited = false;
    while let Some(first) = client.next().await? {
        let mut next = Some(first);
        while let Some(frame) = next {
            let command = words(frame.clone());
            let name =
                command.first().map_or_else(String::new, |name| String::from_utf8_lossy(name).to_uppercase());
            shared.count_command(&name, frame.len());
            if replied.swap(false, Ordering::SeqCst) {
                shared.round_trips.fetch_add(1, Ordering::Relaxed);
            }
            let mut expected = Expected::Reply(None);
            if UNSOLICITED.contains(&name.as_str()) {
                unsolicited = true;
                expected = Expected::Unsolicited;
            }
            if let Some(rule) = shared.rule_for(&command) {
                match &rule.fault {
                    Fault::LoseCommand => {
                        flush(&mut batch, &mut server, shared).await?;
                        rule.happened();
                        return Ok(());
                    }
                    Fault::HoldCommand => {
                        flush(&mut batch, &mut server, shared).await?;
                        rule.happened();
                        rule.wait_released().await;
                    }
                    Fault::Answer(answer) => {
                        rule.happened();
                        expected = Expected::Answer(answer.clone());
                    }
                    Fault::LoseReply | Fault::DelayReply(_) | Fault::HoldReply => {
                        expected = Expected::Reply(Some(rule));
                    }
                }
            }
            if !matches!(expected, Expected::Answer(_)) {
                batch.extend_from_slice(&frame);
            }
            // After a subscription there is nothing left to tell apart.
            if !unsolicited || matches!(expected, Expected::Unsolicited) {
                let _ = expect.send(expected);
            }
            next = client.buffered()?;
        }
        flush(&mut batch, &mut server, shared).await?;
    }
    Ok(())
}

async fn replies(
    server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    mut expected: mpsc::UnboundedReceiver<Expected>,
    replied: &AtomicBool,
    shared: &Shared,
) -> io::Result<()> {
    let mut server = FrameReader::new(server);
    let mut batch = BytesMut::new();
    let mut waiting = VecDeque::new();
    loop {
        while let Ok(next) = expected.try_recv() {
            waiting.push_back(next);
        }
        match waiting.front() {
            Some(Expected::Answer(answer)) => {
                batch.extend_from_slice(answer);
                waiting.pop_front();
                replied.store(true, Ordering::SeqCst);
                continue;
            }
            Some(Expected::Unsolicited) => {
                flush(&mut batch, &mut client, shared).await?;
                return passthrough(server, client, shared).await;
            }
            Some(Expected::Reply(_)) | None => {}
        }
        let frame = if let Some(frame) = server.buffered()? {
            frame
        } else {
            flush(&mut batch, &mut client, shared).await?;
            tokio::select! {
                frame = server.next() => match frame? {
                    Some(frame) => frame,
                    None => return Ok(()),
                },
                // Without this an answer of ours would wait for the server to say something.
                Some(next) = expected.recv(), if waiting.is_empty() => {
                    waiting.push_back(next);
                    continue;
                }
            }
        };
        shared.reply_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        if is_push(&frame) {
            batch.extend_from_slice(&frame);
            continue;
        }
        while let Ok(next) = expected.try_recv() {
            waiting.push_back(next);
        }
        if let Some(Expected::Reply(Some(rule))) = waiting.pop_front() {
            flush(&mut batch, &mut client, shared).await?;
            rule.happened();
            match &rule.fault {
                Fault::LoseReply => return Ok(()),
                Fault::DelayReply(delay) => tokio::time::sleep(*delay).await,
                Fault::HoldReply => rule.wait_released().await,
                Fault::LoseCommand | Fault::HoldCommand | Fault::Answer(_) => {}
            }
        }
        replied.store(true, Ordering::SeqCst);
        batch.extend_from_slice(&frame);
    }
}

async fn passthrough(
    mut server: FrameReader<OwnedReadHalf>,
    mut client: OwnedWriteHalf,
    shared: &Shared,
) -> io::Result<()> {
    loop {
        let bytes = server.raw().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        shared.reply_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        shared.thawed().await;
        client.write_all(&bytes).await?;
    }
}

async fn flush(batch: &mut BytesMut, to: &mut OwnedWriteHalf, shared: &Shared) -> io::Result<()> {
    if !batch.is_empty() {
        shared.thawed().await;
        to.write_all(&batch.split()).await?;
    }
    Ok(())
}
