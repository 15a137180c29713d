//! Redis Cluster of three masters, with slots that can be moved under a client's feet.

use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::child::free_port;
use crate::redis_server::{Options, RedisServer};
use crate::wait::eventually;

/// Slots of every Redis Cluster.
const SLOTS: u16 = 16_384;
/// Gossip needs a second or two to make all nodes agree.
const AGREE_TIMEOUT: Duration = Duration::from_secs(60);
/// Keys moved by one MIGRATE.
const KEYS_A_PAGE: u16 = 100;
/// How long one MIGRATE may take.
const MIGRATE_TIMEOUT_MS: u16 = 5000;

/// Three masters that share the slots evenly.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts three masters and waits until each sees the cluster complete.
    ///
    /// The commands are those of `redis-cli --cluster create`, which waits whole seconds between its steps.
    pub async fn start() -> Self {
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..3 {
            // The default, port + 10000, is neither known to be free nor always a port.
            let bus_port = free_port();
            bus_ports.push(bus_port);
            let config = vec![
                "cluster-enabled yes".to_owned(),
                format!("cluster-port {bus_port}"),
                "cluster-node-timeout 5000".to_owned(),
                // A master that hands over its last slot would otherwise become a replica, as soon as it hears of it: then
                // it refuses to be told that it has done so.
                "cluster-allow-replica-migration no".to_owned(),
            ];
            nodes.push(RedisServer::start(Options { config, ..Options::default() }).await);
        }
        let share = SLOTS / 3;
        for (index, node) in (0_u16..).zip(&nodes) {
            let last = if index == 2 { SLOTS - 1 } else { (index + 1) * share - 1 };
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &(index * share).to_string(), &last.to_string()]);
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        for (node, bus_port) in nodes.iter().zip(&bus_ports).skip(1) {
            nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus_port.to_string()]);
        }
        let ids = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids };
        cluster.wait_ok().await;
        cluster
    }

    /// Waits until every running node says `cluster_state:ok` and knows all others.
    pub async fn wait_ok(&self) {
        for node in &self.nodes {
            eventually(AGREE_TIMEOUT, "cluster_state:ok", async || {
                let info = node.cli(&["CLUSTER", "INFO"]);
                let ok = info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3");
                if ok { Ok(()) } else { Err(info) }
            })
            .await;
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One node, to pause, kill or restart it.
    pub fn node_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// The nodes' addresses.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(RedisServer::addr).collect()
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]).parse().expect("a slot number")
    }

    /// The index of the node that serves a slot, by its own word.
    pub fn owner_of(&self, slot: u16) -> usize {
        (0..self.nodes.len())
            .find(|index| self.slots_of(*index).contains(&slot))
            .unwrap_or_else(|| panic!("no node serves slot {slot}"))
    }

    /// The slots a node says it serves.
    pub fn slots_of(&self, node: usize) -> Vec<u16> {
        let table = self.nodes[node].cli(&["CLUSTER", "NODES"]);
        let line = table.lines().find(|line| line.contains("myself")).expect("a node knows itself");
        // `[93->-id]`, a slot on the move, is still served here.
        let ranges = line.split(' ').skip(8).filter(|range| !range.starts_with('['));
        ranges
            .flat_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let number = |text: &str| text.parse::<u16>().expect("a slot number");
                number(first)..=number(last)
            })
            .collect()
    }

    /// Starts the move of a slot: from now on its owner answers ASK for keys that are gone already.
    pub async fn begin_slot_move(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        self.begin(&mut self.connections().await, slot, from, to).await;
    }

    /// Moves the keys of a slot and hands it over: from now on its old owner answers MOVED.
    pub async fn finish_slot_move(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        self.finish(&mut self.connections().await, slot, from, to).await;
    }

    /// Moves a slot with its keys.
    pub async fn move_slot(&self, slot: u16, to: usize) {
        self.begin_slot_move(slot, to).await;
        self.finish_slot_move(slot, to).await;
    }

    /// Moves every slot of a node with its keys; a third of all slots takes some seconds.
    pub async fn move_all_slots(&self, from: usize, to: usize) {
        let mut connections = self.connections().await;
        for slot in self.slots_of(from) {
            self.begin(&mut connections, slot, from, to).await;
            self.finish(&mut connections, slot, from, to).await;
        }
    }

    async fn connections(&self) -> Vec<MultiplexedConnection> {
        futures::future::join_all(self.nodes.iter().map(RedisServer::connection)).await
    }

    async fn begin(&self, nodes: &mut [MultiplexedConnection], slot: u16, from: usize, to: usize) {
        self.set_slot(&mut nodes[to], slot, "IMPORTING", from).await;
        self.set_slot(&mut nodes[from], slot, "MIGRATING", to).await;
    }

    async fn finish(&self, nodes: &mut [MultiplexedConnection], slot: u16, from: usize, to: usize) {
        loop {
            let mut page = redis::cmd("CLUSTER");
            page.arg("GETKEYSINSLOT").arg(slot).arg(KEYS_A_PAGE);
            let keys: Vec<Vec<u8>> =
                page.query_async(&mut nodes[from]).await.expect("list the keys of a slot");
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.nodes[to].port()).arg("").arg(0).arg(MIGRATE_TIMEOUT_MS);
            migrate.arg("KEYS").arg(keys);
            migrate.query_async::<()>(&mut nodes[from]).await.expect("migrate keys");
        }
        // The new owner first: were the old one told first, it would send clients to a node that refuses.
        let others = (0..nodes.len()).filter(|node| *node != to && *node != from);
        for node in [to, from].into_iter().chain(others) {
            self.set_slot(&mut nodes[node], slot, "NODE", to).await;
        }
    }

    async fn set_slot(&self, node: &mut MultiplexedConnection, slot: u16, state: &str, other: usize) {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SETSLOT").arg(slot).arg(state).arg(&self.ids[other]);
        command.query_async::<()>(node).await.expect("set the state of a slot");
    }
}
