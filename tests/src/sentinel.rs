//! A master, its replicas and three Sentinels that watch them, quick to fail over.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::child::{ChildProcess, free_port, scratch_dir};
use crate::redis_server::{Options, RedisServer, spawn_redis, wait_for_log_or_exit};
use crate::wait::eventually;

/// Three, so that two agree when one is wrong.
const SENTINELS: usize = 3;
/// Down after 1 s, an election, at worst a second one after the failover timeout of 3 s, the
/// reconfiguration: some 3 to 8 s on an idle machine.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// One Sentinel process.
#[derive(Debug)]
struct Watcher {
    port: u16,
    _process: ChildProcess,
    _dir: TempDir,
}

/// A group of Redis servers under Sentinel.
#[derive(Debug)]
pub struct Sentinel {
    password: Option<String>,
    watchers: Vec<Watcher>,
    nodes: Vec<RedisServer>,
}

impl Sentinel {
    /// The name the Sentinels know the master by.
    pub const MASTER: &'static str = "mymaster";

    /// Starts a master, `replicas` replicas and three Sentinels, and waits until all know of each other.
    pub async fn start(replicas: usize) -> Self {
        Self::start_with_password(replicas, None).await
    }

    /// The same, with Sentinels (not servers) that ask for a password.
    pub async fn start_with_password(replicas: usize, password: Option<&str>) -> Self {
        // A replica must not wait for a second one before its first copy, nor ten seconds between pings.
        let quick = ["repl-diskless-sync-delay 0", "repl-ping-replica-period 1"].map(str::to_owned);
        let options = Options { config: quick.to_vec(), ..Options::default() };
        let master = RedisServer::start(options.clone()).await;
        let master_port = master.port();
        let mut nodes = vec![master];
        for _ in 0..replicas {
            let mut options = options.clone();
            options.config.push(format!("replicaof 127.0.0.1 {master_port}"));
            nodes.push(RedisServer::start(options).await);
        }
        for replica in &nodes[1..] {
            eventually(FAILOVER_TIMEOUT, "a replica to be in step", async || {
                let info = replica.cli(&["INFO", "replication"]);
                if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
            })
            .await;
        }
        let mut watchers = Vec::new();
        for _ in 0..SENTINELS {
            watchers.push(start_watcher(master_port, password).await);
        }
        let group = Self { password: password.map(str::to_owned), watchers, nodes };
        for watcher in &group.watchers {
            eventually(FAILOVER_TIMEOUT, "a Sentinel to know the group", async || {
                let state = group.ask(watcher, &["SENTINEL", "MASTER", Self::MASTER]);
                let replicas_known = field(&state, "num-slaves") == Some(replicas.to_string().as_str());
                let peers_known = field(&state, "num-other-sentinels") == Some("2");
                if replicas_known && peers_known { Ok(()) } else { Err(state) }
            })
            .await;
        }
        group
    }

    fn ask(&self, watcher: &Watcher, args: &[&str]) -> String {
        cli(watcher.port, self.password.as_deref(), args)
    }

    fn master_by(&self, watcher: &Watcher) -> SocketAddr {
        let reply = self.ask(watcher, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::MASTER]);
        let addr = reply.replace('\n', ":");
        addr.parse().unwrap_or_else(|_| panic!("not an address: {addr:?}"))
    }

    /// The Sentinels' addresses.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.watchers.iter().map(|watcher| (Ipv4Addr::LOCALHOST, watcher.port).into()).collect()
    }

    /// All data nodes, whatever their role.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Who is the master, by the first Sentinel's word.
    pub fn master_addr(&self) -> SocketAddr {
        self.master_by(&self.watchers[0])
    }

    /// The node that is the master.
    pub fn master(&self) -> &RedisServer {
        let addr = self.master_addr();
        self.nodes.iter().find(|node| node.addr() == addr).expect("the master is one of our nodes")
    }

    /// The node that is the master, to pause, kill or restart it.
    pub fn master_mut(&mut self) -> &mut RedisServer {
        let addr = self.master_addr();
        self.nodes.iter_mut().find(|node| node.addr() == addr).expect("the master is one of our nodes")
    }

    /// SIGKILL to the master; returns the address it had. The failover is still to come.
    pub fn kill_master(&mut self) -> SocketAddr {
        let master = self.master_mut();
        master.kill9();
        master.addr()
    }

    /// Waits until every Sentinel names the same new master and that node takes writes; returns its address.
    pub async fn wait_failover(&self, old: SocketAddr) -> SocketAddr {
        eventually(FAILOVER_TIMEOUT, "a failover", async || {
            let masters: Vec<SocketAddr> =
                self.watchers.iter().map(|watcher| self.master_by(watcher)).collect();
            let new = masters[0];
            let agreed = new != old && masters.iter().all(|master| *master == new);
            if !agreed {
                return Err(format!("masters {masters:?}"));
            }
            let role = cli(new.port(), None, &["ROLE"]);
            if role.starts_with("master") { Ok(new) } else { Err(role) }
        })
        .await
    }

    /// Starts a killed node again; Sentinel makes it a replica of the present master.
    pub async fn restart_node(&mut self, addr: SocketAddr) {
        let node = self.nodes.iter_mut().find(|node| node.addr() == addr).expect("one of our nodes");
        node.restart().await;
    }
}

async fn start_watcher(master_port: u16, password: Option<&str>) -> Watcher {
    loop {
        let dir = scratch_dir("sentinel-");
        let port = free_port();
        let name = Sentinel::MASTER;
        let password = password.map(|password| format!("requirepass {password}\n")).unwrap_or_default();
        let config = format!(
            "{password}port {port}\nbind 127.0.0.1\n\
             sentinel monitor {name} 127.0.0.1 {master_port} 2\n\
             sentinel down-after-milliseconds {name} 1000\n\
             sentinel failover-timeout {name} 3000\n"
        );
        std::fs::write(dir.path().join("redis.conf"), config).expect("write sentinel's configuration");
        let log = dir.path().join("sentinel.log");
        let mut process = spawn_redis(dir.path(), &log, &["--sentinel"]);
        if wait_for_log_or_exit(&mut process, &log, "+monitor master").await {
            return Watcher { port, _process: process, _dir: dir };
        }
        assert_port_clash(&log);
    }
}

fn assert_port_clash(log: &Path) {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    assert!(log.contains("Address already in use"), "redis-sentinel did not start:\n{log}");
}

/// redis-cli against a bare port: Sentinels are no [`RedisServer`]s.
fn cli(port: u16, password: Option<&str>, args: &[&str]) -> String {
    let output = std::process::Command::new("redis-cli")
        .envs(password.map(|password| ("REDISCLI_AUTH", password)))
        .args(["-p", &port.to_string()])
        .args(args)
        .output()
        .expect("run redis-cli");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// A value of redis-cli's rendering of a map: names and values on lines of their own.
fn field<'a>(state: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = state.lines();
    lines.find(|line| *line == name)?;
    lines.next()
}
