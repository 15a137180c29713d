//! A real redis-server of a test's own: on a free loopback port, in a directory of its own, gone with it.

use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::certificates::Certificates;
use crate::child::{ChildProcess, free_port, scratch_dir};
use crate::wait::eventually;

/// A start takes 20 ms; a machine that compiles at the same time may need far longer.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// redis-rs' default of 500 ms would end blocking commands and any call to a paused server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often another port is tried when someone else took ours between the look and the bind.
const PORT_TRIES: usize = 20;

/// How much of what was acknowledged survives a crash of Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppendOnly {
    /// Nothing.
    #[default]
    Off,
    /// All but the last second or two.
    EverySec,
    /// Everything.
    Always,
}

/// Whether the port speaks TLS, and whom it lets in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Plain TCP.
    #[default]
    Off,
    /// TLS, clients need no certificate.
    On,
    /// TLS, clients must show a certificate of the same authority.
    Mutual,
}

/// What kind of server a test wants; the default is a plain one without persistence.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Persistence.
    pub appendonly: AppendOnly,
    /// `requirepass`.
    pub password: Option<String>,
    /// ACL lines as in `user`: `worker on >pw ~jobqueue:* +@all`.
    pub users: Vec<String>,
    /// TLS instead of plain TCP.
    pub tls: Tls,
    /// Also listen on a unix socket in the server's directory.
    pub unix_socket: bool,
    /// `maxmemory`, with `noeviction`.
    pub maxmemory: Option<String>,
    /// Further lines of redis.conf.
    pub config: Vec<String>,
}

/// A running (or stopped, and restartable) redis-server.
#[derive(Debug)]
pub struct RedisServer {
    options: Options,
    port: u16,
    certificates: Option<Certificates>,
    process: Option<ChildProcess>,
    starts: usize,
    // Last: the directory goes after the process that writes to it.
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start(options: Options) -> Self {
        let dir = scratch_dir("redis-");
        let certificates = (options.tls != Tls::Off).then(|| Certificates::generate(dir.path()));
        let mut server = Self { options, port: 0, certificates, process: None, starts: 0, dir };
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            if server.launch().await {
                return server;
            }
        }
        panic!("no redis-server could bind a port in {PORT_TRIES} tries:\n{}", server.log());
    }

    /// The address clients connect to.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://` or `rediss://`, with the password of the default user if it has one.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls == Tls::Off { "redis" } else { "rediss" };
        let password =
            self.options.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        format!("{scheme}://{password}{}", self.addr())
    }

    /// The unix socket, if the options asked for one.
    pub fn unix_socket(&self) -> PathBuf {
        assert!(self.options.unix_socket, "this server was started without unix_socket");
        self.dir.path().join("redis.sock")
    }

    /// The certificates of a TLS server.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("this server was started without TLS")
    }

    /// Its directory: configuration, logs, append-only files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The process id of the running server.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server is not running").pid()
    }

    /// SIGKILL: what was not written by then is lost.
    pub fn kill9(&mut self) {
        self.process = None;
    }

    /// SHUTDOWN, as an operator would: writes what its persistence asks for, then ends.
    pub async fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        process.signal(Signal::TERM);
        // A paused server would keep the signal for later.
        process.signal(Signal::CONT);
        process.wait_exit(START_TIMEOUT).await;
    }

    /// Starts it again on the same port and directory, stopping it first if it runs.
    pub async fn restart(&mut self) {
        self.stop().await;
        // The port is ours by habit only: a client's leftover may hold it for a moment.
        for _ in 0..PORT_TRIES {
            if self.launch().await {
                return;
            }
        }
        panic!("redis-server could not get port {} back:\n{}", self.port, self.log());
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("the server is not running").signal(signal);
    }

    /// A connection as the default user, over TLS if that is what the server speaks.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connection().await.unwrap_or_else(|error| panic!("connect to {}: {error}", self.url()))
    }

    /// A connection as `user`.
    pub async fn connection_as(
        &self,
        user: &str,
        password: &str,
    ) -> redis::RedisResult<MultiplexedConnection> {
        self.connect(&RedisConnectionInfo::default().set_username(user).set_password(password)).await
    }

    async fn try_connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let info = RedisConnectionInfo::default();
        let info = match &self.options.password {
            Some(password) => info.set_password(password),
            None => info,
        };
        self.connect(&info).await
    }

    async fn connect(&self, info: &RedisConnectionInfo) -> redis::RedisResult<MultiplexedConnection> {
        let stream = TcpStream::connect(self.addr()).await?;
        stream.set_nodelay(true)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        if let Some(certificates) = &self.certificates {
            let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
            let connector = tokio_rustls::TlsConnector::from(certificates.client_config());
            let stream = connector.connect(name, stream).await?;
            let (connection, driver) = MultiplexedConnection::new_with_config(info, stream, config).await?;
            tokio::spawn(driver);
            Ok(connection)
        } else {
            let (connection, driver) = MultiplexedConnection::new_with_config(info, stream, config).await?;
            tokio::spawn(driver);
            Ok(connection)
        }
    }

    /// What `redis-cli ARGS` prints, without the last newline. It blocks: not for use through a proxy that
    /// runs in the same single-threaded test.
    pub fn cli(&self, args: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(password) = &self.options.password {
            command.env("REDISCLI_AUTH", password);
        }
        if let Some(certificates) = &self.certificates {
            command.arg("--tls").arg("--cacert").arg(&certificates.ca);
            command.arg("--cert").arg(&certificates.client_cert).arg("--key").arg(&certificates.client_key);
        }
        let output = command.args(args).output().expect("run redis-cli");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "redis-cli {args:?}: {}: {stderr}", output.status);
        String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned()
    }

    /// Starts the process; `false` when its port was taken by someone else.
    async fn launch(&mut self) -> bool {
        self.starts += 1;
        let config = self.dir.path().join("redis.conf");
        std::fs::write(&config, self.render()).expect("write redis.conf");
        let log = self.log_path();
        let mut process = spawn_redis(self.dir.path(), &log, &[]);
        // The log, not a PING, says that *this* process has the port: a stranger on the same port would
        // answer a PING just as well.
        if wait_for_log_or_exit(&mut process, &log, "Ready to accept connections").await {
            self.process = Some(process);
            return true;
        }
        let log = self.log();
        assert!(log.contains("Address already in use"), "redis-server did not start:\n{log}");
        false
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join(format!("redis-{}.log", self.starts))
    }

    fn render(&self) -> String {
        let mut lines = String::from("bind 127.0.0.1\nsave \"\"\nenable-debug-command yes\n");
        let mut line = |text: String| writeln!(lines, "{text}").expect("write to a string");
        match &self.certificates {
            None => line(format!("port {}", self.port)),
            Some(files) => {
                line(format!("port 0\ntls-port {}", self.port));
                line(format!("tls-ca-cert-file {}", files.ca.display()));
                line(format!("tls-cert-file {}", files.server_cert.display()));
                line(format!("tls-key-file {}", files.server_key.display()));
                line(format!(
                    "tls-auth-clients {}",
                    if self.options.tls == Tls::Mutual { "yes" } else { "optional" }
                ));
            }
        }
        match self.options.appendonly {
            AppendOnly::Off => line("appendonly no".to_owned()),
            AppendOnly::EverySec => line("appendonly yes\nappendfsync everysec".to_owned()),
            AppendOnly::Always => line("appendonly yes\nappendfsync always".to_owned()),
        }
        if self.options.unix_socket {
            line(format!("unixsocket {}", self.unix_socket().display()));
        }
        if let Some(password) = &self.options.password {
            line(format!("requirepass {password}"));
        }
        if let Some(limit) = &self.options.maxmemory {
            line(format!("maxmemory {limit}\nmaxmemory-policy noeviction"));
        }
        for user in &self.options.users {
            line(format!("user {user}"));
        }
        for extra in &self.options.config {
            line(extra.clone());
        }
        lines
    }
}

/// A connection to a plain `redis://` URL, as of a proxy, that waits for answers as long as a test does.
pub async fn connect(url: &str) -> MultiplexedConnection {
    // Another test may keep a shared server busy for a while.
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_connection_timeout(Some(RESPONSE_TIMEOUT));
    let client = redis::Client::open(url).unwrap_or_else(|error| panic!("{url}: {error}"));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.unwrap_or_else(|error| panic!("connect to {url}: {error}"))
}

/// Starts `redis-server redis.conf ARGS` in `dir`, its output in `log`.
pub(crate) fn spawn_redis(dir: &Path, log: &Path, args: &[&str]) -> ChildProcess {
    let output = File::create(log).expect("create a log file");
    ChildProcess::spawn(
        Command::new("redis-server")
            .arg("redis.conf")
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("share the log file"))
            .stderr(output),
    )
}

/// Waits for `text` in the log: `false` if the process ended without it.
pub(crate) async fn wait_for_log_or_exit(process: &mut ChildProcess, log: &Path, text: &str) -> bool {
    eventually(START_TIMEOUT, &format!("redis-server to log {text:?}"), async || {
        let exited = process.exit_status().is_some();
        let seen = std::fs::read_to_string(log).unwrap_or_default();
        if seen.contains(text) {
            Ok(true)
        } else if exited {
            Ok(false)
        } else {
            Err(seen)
        }
    })
    .await
}
