//! How a connection to Redis is made: one dialer for every kind (TCP, TLS, unix socket, Sentinel, Cluster).
//! A connection always leads to one node: behind Sentinel the master, in a Cluster the owner of one shard's
//! slot. When that changes (MOVED, READONLY) the connection is dropped and the next one is resolved anew.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo, Value};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

mod guides;
mod meter;
mod reach;

use guides::Guides;
use meter::Metered;
pub use reach::{Allowance, Bounds, Reach};

/// The oldest Redis whose commands we use (`BLMOVE`, `LPOS`).
pub const OLDEST_REDIS: (u64, u64) = (6, 2);

/// Where Redis is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// One server.
    Tcp(String),
    /// One server on this machine.
    Unix(PathBuf),
    /// The master that these sentinels know by this name.
    Sentinel {
        /// Its name.
        master: String,
        /// The sentinels.
        addrs: Vec<String>,
    },
    /// A Cluster; any of its nodes will do.
    Cluster(Vec<String>),
}

/// TLS, when asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The CA that signed the server's certificate.
    pub ca: Option<Pem>,
    /// Our certificate.
    pub cert: Option<Pem>,
    /// Its key.
    pub key: Option<Pem>,
    /// The name in the server's certificate, when it is not the address.
    pub server_name: Option<String>,
}

/// Certificates or a key: in a file, read at every connect, or at hand.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// Where they are.
    File(PathBuf),
    /// What they are.
    Text(Vec<u8>),
}

impl Pem {
    /// What it is called in messages; never what it holds.
    fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Text(_) => PathBuf::from("(from memory)"),
        }
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::File(path) => std::fs::read(path),
            Self::Text(text) => Ok(text.clone()),
        }
    }
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

/// How to reach Redis.
#[derive(Clone)]
pub struct Settings {
    /// Where connections may lead.
    pub reach: Reach,
    /// The server, or who knows it: Sentinels, nodes of a Cluster.
    pub address: Address,
    /// TLS or plain.
    pub tls: Option<Tls>,
    /// ACL user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// A file with the password, read at every connect: it may have been rotated.
    pub password_file: Option<PathBuf>,
    /// ACL user at the Sentinels.
    pub sentinel_username: Option<String>,
    /// Its password. Redis' own is never sent to a Sentinel.
    pub sentinel_password: Option<String>,
    /// Database number.
    pub db: i64,
    /// So many replicas must have confirmed an enqueue or a settlement; 0 = none.
    pub wait_replicas: u32,
    /// Refuse a node of a Cluster that is not reached as one: other clients of its keys cannot use it.
    pub refuses_cluster: bool,
    /// Bound of connecting.
    pub dial_timeout: Duration,
    /// Bound of a reply.
    pub read_timeout: Duration,
    /// Bound of writing a command.
    pub write_timeout: Duration,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing there, or not in time.
    #[error("cannot reach Redis at {address}: {reason}")]
    Unreachable {
        /// Host and port, or the socket's path.
        address: String,
        /// What hinders.
        reason: String,
    },
    /// Something else listens there.
    #[error("{address} does not speak the Redis protocol: check redis.addr and redis.tls.enabled")]
    NotRedis {
        /// Host and port, or the socket's path.
        address: String,
    },
    /// Wrong user or password.
    #[error("Redis at {address} refused the credentials: check redis.username and redis.password")]
    Credentials {
        /// Host and port, or the socket's path.
        address: String,
    },
    /// Too old.
    #[error("Redis {version} at {address} is too old: at least 6.2 is needed")]
    TooOld {
        /// Host and port, or the socket's path.
        address: String,
        /// What it is.
        version: String,
    },
    /// A replica.
    #[error(
        "Redis at {address} is a read-only replica: point redis.addr at the master, or use redis.sentinel"
    )]
    Replica {
        /// Host and port, or the socket's path.
        address: String,
    },
    /// A node of a Cluster.
    #[error(
        "Redis at {address} is a node of a Redis Cluster, which protocol sidekiq cannot use: Sidekiq's own client cannot"
    )]
    Cluster {
        /// Where.
        address: String,
    },
    /// The data is still being read from disk.
    #[error("Redis at {address} is loading its data")]
    Loading {
        /// Host and port, or the socket's path.
        address: String,
    },
    /// A file of ours cannot be used.
    #[error("{key} = {path}: {reason}")]
    File {
        /// The config key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What hinders.
        reason: String,
    },
}

impl ConnectError {
    /// Waiting will not help: the configuration must change. Everything else is tried again.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::TooOld { .. }
                | Self::Cluster { .. }
                | Self::File { .. }
                | Self::Credentials { .. }
                | Self::NotRedis { .. }
        )
    }
}

/// A connection that has more than this of an [`Allowance`] is worth replacing. Less than a full page of jobs takes.
const SWOLLEN: u64 = 512 << 10;

/// A connection to one node.
pub struct Connection {
    /// The client.
    pub redis: MultiplexedConnection,
    /// Redis' number for it, for `CLIENT UNBLOCK`.
    pub client_id: Option<i64>,
    /// The node it leads to.
    address: String,
    /// How much of an [`Allowance`] it has: what its largest reply took beyond the usual.
    held: Arc<AtomicU64>,
    driver: tokio::task::JoinHandle<()>,
}

impl Connection {
    /// The node that it leads to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it keeps much of what others need too, since a reply that was larger than the usual.
    pub fn is_swollen(&self) -> bool {
        self.held.load(Ordering::Relaxed) > SWOLLEN
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Without this a socket whose blocking command was given up would live on, still first in line.
        self.driver.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections.
#[derive(Clone)]
pub struct Connector {
    settings: Arc<Settings>,
    guides: Arc<Guides>,
}

impl Connector {
    /// A connector with these settings.
    pub fn new(settings: Settings) -> Self {
        let configured = match &settings.address {
            Address::Tcp(_) | Address::Unix(_) => &[][..],
            Address::Sentinel { addrs, .. } | Address::Cluster(addrs) => addrs,
        };
        Self { guides: Arc::new(Guides::new(configured)), settings: Arc::new(settings) }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A connection to the node that holds `slot_key`, whose replies are awaited for `reply_timeout`.
    pub async fn connect(&self, slot_key: &str, reply_timeout: Duration) -> Result<Connection, ConnectError> {
        let bound = self.settings.dial_timeout;
        let unreachable = |address: String| ConnectError::Unreachable { address, reason: "timed out".into() };
        match &self.settings.address {
            Address::Tcp(addr) => timeout(bound, self.open(addr, reply_timeout, true)).await,
            Address::Unix(path) => timeout(bound, self.open_unix(path, reply_timeout)).await,
            Address::Sentinel { master, .. } => {
                timeout(bound * 2, self.open_master(master, reply_timeout)).await
            }
            Address::Cluster(_) => timeout(bound * 2, self.open_owner(slot_key, reply_timeout)).await,
        }
        .unwrap_or_else(|_| Err(unreachable(self.describe())))
    }

    /// What is published on a channel, told by the node that holds `slot_key`; ends when that connection does.
    pub async fn subscribe(
        &self,
        slot_key: &str,
        channel: &str,
    ) -> Result<futures::stream::BoxStream<'static, Vec<u8>>, ConnectError> {
        // An ordinary connection first: it finds the node and knows whether that is one to talk to.
        let node = self.connect(slot_key, self.settings.read_timeout).await?;
        let address = &node.address;
        let listening = async {
            let mut stream: Box<dyn Stream> = match &self.settings.address {
                Address::Unix(path) => {
                    Box::new(UnixStream::connect(path).await.map_err(|error| unreachable(address, &error))?)
                }
                _ => self.dial(address).await?,
            };
            ping(&mut stream, address).await?;
            let events = redis::aio::PubSub::new(&self.login()?, stream).await;
            let mut events = events.map_err(|error| refused(address, &error))?;
            events.subscribe(channel).await.map_err(|error| refused(address, &error))?;
            let told = events.into_on_message().map(|message| message.get_payload_bytes().to_vec());
            Ok::<_, ConnectError>(told.boxed())
        };
        timeout(self.settings.dial_timeout, listening)
            .await
            .unwrap_or_else(|_| Err(unreachable(address, &"timed out")))
    }

    /// Where Redis is, for messages.
    pub fn describe(&self) -> String {
        match &self.settings.address {
            Address::Tcp(addr) => addr.clone(),
            Address::Unix(path) => path.display().to_string(),
            Address::Sentinel { master, .. } => format!("sentinel master {master}"),
            Address::Cluster(addrs) => format!("cluster {}", addrs.join(",")),
        }
    }

    async fn open_master(&self, master: &str, reply: Duration) -> Result<Connection, ConnectError> {
        let mut ask = Cmd::new();
        ask.arg("SENTINEL").arg("get-master-addr-by-name").arg(master);
        let (mut reason, mut failed) = (String::from("no sentinel configured"), None);
        for addr in self.guides.all() {
            let asked = self.ask(&addr, self.open_sentinel(&addr, reply), &ask);
            match asked.await {
                Ok(answer) => match redis::from_redis_value::<Option<(String, u16)>>(answer) {
                    Ok(Some((host, port))) => {
                        match self.open_named(&addr, format!("{host}:{port}"), reply, &mut failed).await {
                            Named::Opened(connection) => return Ok(*connection),
                            Named::Again => break,
                            Named::Failed => {}
                        }
                    }
                    Ok(None) => reason = format!("sentinel {addr} knows no master {master}"),
                    Err(error) => reason = format!("sentinel {addr}: {error}"),
                },
                Err(ConnectError::Credentials { address }) => {
                    reason = format!(
                        "sentinel {address} refused the credentials: check redis.sentinel.username and \
                         redis.sentinel.password"
                    );
                }
                Err(error) => reason = error.to_string(),
            }
        }
        Err(self.not_found(failed, reason))
    }

    async fn open_owner(&self, slot_key: &str, reply: Duration) -> Result<Connection, ConnectError> {
        let slot = guides::slot_of(slot_key);
        let mut ask = Cmd::new();
        ask.arg("CLUSTER").arg("SLOTS");
        let (mut reason, mut failed) = (String::from("no node configured"), None);
        for addr in self.guides.all() {
            match self.ask(&addr, self.open(&addr, reply, false), &ask).await {
                Ok(Value::Array(slots)) => {
                    self.guides.named(guides::nodes(&slots, &addr));
                    match guides::owner(&slots, slot, &addr) {
                        Some(owner) => match self.open_named(&addr, owner, reply, &mut failed).await {
                            Named::Opened(connection) => return Ok(*connection),
                            Named::Again => break,
                            Named::Failed => {}
                        },
                        None => reason = format!("slot {slot} has no owner"),
                    }
                }
                Ok(_) => reason = format!("{addr} does not know its cluster"),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(self.not_found(failed, reason))
    }

    /// Connects where a guide has sent us. It may be behind the times, and name a node that is gone: then the next is
    /// asked. Two that name the same are believed, so that a node that is away is not asked for at every guide; whoever
    /// was not asked is the first one the next time.
    async fn open_named(
        &self,
        guide: &str,
        node: String,
        reply: Duration,
        failed: &mut Option<(String, ConnectError)>,
    ) -> Named {
        if failed.as_ref().is_some_and(|(before, _)| *before == node) {
            return Named::Again;
        }
        match self.open(&node, reply, true).await {
            Ok(connection) => {
                self.guides.knew(guide);
                Named::Opened(Box::new(connection))
            }
            Err(error) => {
                *failed = Some((node, error));
                Named::Failed
            }
        }
    }

    /// Why there is no connection: what the node said that somebody named, else what became of those who were asked.
    fn not_found(&self, failed: Option<(String, ConnectError)>, reason: String) -> ConnectError {
        failed.map_or(ConnectError::Unreachable { address: self.describe(), reason }, |(_, error)| error)
    }

    /// Asks one of several for the way. It has half of the time for that: the next may know it.
    async fn ask(
        &self,
        addr: &str,
        opening: impl Future<Output = Result<Connection, ConnectError>>,
        question: &Cmd,
    ) -> Result<Value, ConnectError> {
        self.guides.asked(addr);
        let asked = async {
            let mut guide = opening.await?;
            question.query_async::<Value>(&mut guide.redis).await.map_err(|error| unreachable(addr, &error))
        };
        let asked = timeout(self.settings.dial_timeout / 2, asked).await;
        asked.unwrap_or_else(|_| Err(unreachable(addr, &"timed out")))
    }

    async fn open(&self, addr: &str, reply: Duration, master_only: bool) -> Result<Connection, ConnectError> {
        let stream = self.dial(addr).await?;
        self.greet(stream, addr, reply, master_only, &self.login()?).await
    }

    /// A Sentinel has no databases, and credentials of its own.
    async fn open_sentinel(&self, addr: &str, reply: Duration) -> Result<Connection, ConnectError> {
        let stream = self.dial(addr).await?;
        let Settings { sentinel_username, sentinel_password, .. } = &*self.settings;
        let who = credentials(sentinel_username.as_deref(), sentinel_password.clone());
        self.greet(stream, addr, reply, false, &who).await
    }

    /// Who we are to Redis, and which database we mean.
    fn login(&self) -> Result<RedisConnectionInfo, ConnectError> {
        let Settings { username, db, .. } = &*self.settings;
        Ok(credentials(username.as_deref(), self.password()?).set_db(*db))
    }

    async fn open_unix(&self, path: &std::path::Path, reply: Duration) -> Result<Connection, ConnectError> {
        let address = path.display().to_string();
        if let Some(refusal) = self.settings.reach.refusal_of_socket() {
            return Err(unreachable(&address, &refusal));
        }
        let stream = UnixStream::connect(path).await.map_err(|error| unreachable(&address, &error))?;
        self.greet(Box::new(stream), &address, reply, true, &self.login()?).await
    }

    async fn dial(&self, addr: &str) -> Result<Box<dyn Stream>, ConnectError> {
        let candidates: Vec<SocketAddr> =
            tokio::net::lookup_host(addr).await.map_err(|error| unreachable(addr, &error))?.collect();
        let mut reason = String::from("the name has no address");
        // One that does not answer must leave time for the next.
        let each = self.settings.dial_timeout / u32::try_from(candidates.len().max(1)).unwrap_or(1);
        for candidate in candidates {
            if let Some(refusal) = self.settings.reach.refusal(candidate.ip()) {
                reason = format!("{}: {refusal}", candidate.ip());
                continue;
            }
            match timeout(each, TcpStream::connect(candidate)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    // A peer that vanished must not keep a socket for hours: dead after ~10 s of silence.
                    let keepalive = socket2::TcpKeepalive::new()
                        .with_time(Duration::from_secs(5))
                        .with_interval(Duration::from_secs(2))
                        .with_retries(3);
                    let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    return match &self.settings.tls {
                        None => Ok(Box::new(stream)),
                        Some(tls) => Ok(Box::new(encrypt(stream, tls, addr).await?)),
                    };
                }
                Ok(Err(error)) => reason = error.to_string(),
                Err(_) => reason = "timed out".into(),
            }
        }
        Err(ConnectError::Unreachable { address: addr.to_owned(), reason })
    }

    async fn greet(
        &self,
        mut stream: Box<dyn Stream>,
        address: &str,
        reply: Duration,
        master_only: bool,
        who: &RedisConnectionInfo,
    ) -> Result<Connection, ConnectError> {
        ping(&mut stream, address).await?;
        let held = Arc::default();
        if let Some((most, allowance)) = self.settings.reach.largest_reply() {
            stream = Box::new(Metered::new(stream, most, allowance, &held));
        }
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(reply)).set_connection_timeout(None);
        let (mut redis, driver) = MultiplexedConnection::new_with_config(who, stream, config)
            .await
            .map_err(|error| refused(address, &error))?;
        let driver = tokio::spawn(driver);
        let mut connection =
            Connection { redis: redis.clone(), client_id: None, address: address.to_owned(), held, driver };
        let mut hello = Cmd::new();
        hello.arg("HELLO");
        match hello.query_async::<Value>(&mut redis).await {
            Ok(value) => {
                let fields = pairs(&value);
                let get =
                    |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
                connection.client_id = get("id").and_then(|id| id.parse().ok());
                if let Some(version) = get("version").filter(|version| too_old(version)) {
                    return Err(ConnectError::TooOld { address: address.into(), version: version.into() });
                }
                if self.settings.refuses_cluster && get("mode") == Some("cluster") {
                    return Err(ConnectError::Cluster { address: address.into() });
                }
                if master_only && matches!(get("role"), Some("replica" | "slave")) {
                    return Err(ConnectError::Replica { address: address.into() });
                }
            }
            Err(error) if error.is_io_error() => return Err(unreachable(address, &error)),
            Err(hello_error) => {
                let error = refused(address, &hello_error);
                if matches!(error, ConnectError::Loading { .. } | ConnectError::Credentials { .. }) {
                    return Err(error);
                }
                // HELLO may be denied by ACL, or renamed: the first script tells the rest. Before Redis 6 there is none.
                if hello_error.to_string().contains("unknown command")
                    && let Some(version) =
                        version_by_info(&mut redis).await.filter(|version| too_old(version))
                {
                    return Err(ConnectError::TooOld { address: address.into(), version });
                }
            }
        }
        Ok(connection)
    }

    fn password(&self) -> Result<Option<String>, ConnectError> {
        let Some(path) = &self.settings.password_file else { return Ok(self.settings.password.clone()) };
        let text = std::fs::read_to_string(path).map_err(|error| ConnectError::File {
            key: "redis.password_file",
            path: path.clone(),
            reason: error.to_string(),
        })?;
        Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
    }
}

/// What came of a node that a guide has named.
enum Named {
    Opened(Box<Connection>),
    /// It is the one that did not open before.
    Again,
    Failed,
}

fn credentials(username: Option<&str>, password: Option<String>) -> RedisConnectionInfo {
    let mut info =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    if let Some(username) = username {
        info = info.set_username(username);
    }
    if let Some(password) = password {
        info = info.set_password(password);
    }
    info
}

/// Asks for a sign of Redis before any credentials go out: whatever answers otherwise gets none.
async fn ping(stream: &mut Box<dyn Stream>, address: &str) -> Result<(), ConnectError> {
    stream.write_all(b"PING\r\n").await.map_err(|error| unreachable(address, &error))?;
    let mut answer = Vec::with_capacity(64);
    while !answer.ends_with(b"\r\n") {
        let mut byte = [0u8; 1];
        let read = stream.read(&mut byte).await.map_err(|error| unreachable(address, &error))?;
        if read == 0 {
            return Err(if answer.is_empty() {
                unreachable(address, &"closed the connection")
            } else {
                ConnectError::NotRedis { address: address.into() }
            });
        }
        answer.push(byte[0]);
        if answer == b"-DENIED" {
            let reason = "it is in protected mode: set a password, or `protected-mode no`";
            return Err(unreachable(address, &reason));
        }
        if answer.len() > 512 || !matches!(answer[0], b'+' | b'-') {
            return Err(ConnectError::NotRedis { address: address.into() });
        }
    }
    if answer.starts_with(b"-LOADING") {
        return Err(ConnectError::Loading { address: address.into() });
    }
    Ok(())
}

async fn encrypt(
    stream: TcpStream,
    tls: &Tls,
    addr: &str,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ConnectError> {
    let file = |key, pem: &Pem, reason: String| ConnectError::File { key, path: pem.path(), reason };
    let certificates = |key, pem: &Pem| {
        let text = pem.read().map_err(|error| file(key, pem, error.to_string()))?;
        let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        found.map_err(|error| file(key, pem, error.to_string()))
    };
    let mut roots = rustls::RootCertStore::empty();
    if let Some(ca) = &tls.ca {
        for certificate in certificates("redis.tls.ca_file", ca)? {
            roots.add(certificate).map_err(|error| file("redis.tls.ca_file", ca, error.to_string()))?;
        }
    } else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unreachable(addr, &error))?
        .with_root_certificates(roots);
    let config = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates("redis.tls.cert_file", cert)?;
            let private = key
                .read()
                .map_err(|error| error.to_string())
                .and_then(|text| PrivateKeyDer::from_pem_slice(&text).map_err(|error| error.to_string()))
                .map_err(|error| file("redis.tls.key_file", key, error))?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| file("redis.tls.cert_file", cert, error.to_string()))?
        }
        _ => builder.with_no_client_auth(),
    };
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_matches(['[', ']']);
    let name = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
    let name = ServerName::try_from(name).map_err(|error| unreachable(addr, &error))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.map_err(|error| unreachable(addr, &format!("TLS: {error}")))
}

fn unreachable(address: &str, reason: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::Unreachable { address: address.to_owned(), reason: reason.to_string() }
}

fn refused(address: &str, error: &redis::RedisError) -> ConnectError {
    let text = error.to_string();
    if error.kind() == redis::ErrorKind::AuthenticationFailed
        || ["WRONGPASS", "NOAUTH", "invalid password", "without any password configured"]
            .iter()
            .any(|sign| text.contains(sign))
    {
        return ConnectError::Credentials { address: address.into() };
    }
    if matches!(error.code(), Some("LOADING")) {
        return ConnectError::Loading { address: address.into() };
    }
    unreachable(address, error)
}

/// What a Redis without HELLO says about itself.
async fn version_by_info(redis: &mut MultiplexedConnection) -> Option<String> {
    let mut info = Cmd::new();
    info.arg("INFO").arg("server");
    let text: String = info.query_async(redis).await.ok()?;
    text.lines().find_map(|line| line.strip_prefix("redis_version:")).map(|version| version.trim().to_owned())
}

fn too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST_REDIS
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    match value {
        Value::Array(items) => items.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
        Value::Map(items) => items.iter().map(|(key, value)| (text(key), text(value))).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_older_than_6_2_is_refused() {
        assert!(["5.0.7", "6.0.16", "6.1.9", "garbage"].map(too_old).iter().all(|old| *old));
        assert!(["6.2.0", "7.0.15", "8.4.1", "255.255.255"].map(too_old).iter().all(|old| !*old));
    }
}
