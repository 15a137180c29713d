//! A Redis of one's own, for one test.
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::config::Config;
use jobqueue::effects::Side;
use jobqueue::engine::Engine;
use jobqueue::store::{Enqueue, PageKind, Session};

/// A running server; it ends with the test.
pub struct Redis {
    server: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Redis {
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed");
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "redis-server did not start");
            std::thread::yield_now();
        }
        Self { server, port, _dir: dir }
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn session(&self) -> Session {
        let mut config = Config::default();
        config.redis.addr = self.addr();
        let engine = Engine::new(&config);
        engine.session(&engine.shards[0])
    }

    /// Says one thing to it, as any client does.
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(format!("redis://{}/", self.addr())).unwrap();
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut client.get_connection().unwrap()).unwrap()
    }

    /// Pushes entries at the head, in this order.
    pub async fn push(&self, list: &str, entries: &[Vec<u8>]) {
        let push = |raw: &Vec<u8>| Enqueue { queue: list.into(), raw: Bytes::from(raw.clone()), seen: None };
        for page in entries.chunks(100) {
            let call = uuid::Uuid::new_v4().to_string();
            let page: Vec<_> = page.iter().map(push).collect();
            self.session().enqueue(&call, "jobqueue:seen:", Side::Left, &page).await.unwrap();
        }
    }

    /// A list from its tail: the first that was pushed first.
    pub async fn all(&self, list: &str) -> Vec<Bytes> {
        let mut session = self.session();
        let mut entries: Vec<Bytes> = Vec::new();
        loop {
            let page = session.page_after(list, PageKind::Tail, entries.len() as u64, 1000).await.unwrap();
            if page.entries.is_empty() {
                return entries;
            }
            entries.extend(page.entries);
        }
    }

    pub fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").arg(signal).arg(self.server.id().to_string()).status().unwrap().success()
        );
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Waits for a condition, not for a time.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
