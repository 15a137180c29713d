//! What most of these tests start from.
use std::time::Duration;

use e2e::{Ledger, Options, Recorder, RedisServer, WorkerOptions, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A Redis, a recording handler and a ledger of where every job is.
pub struct Scene {
    pub server: RedisServer,
    pub recorder: Recorder,
    pub ledger: Ledger,
}

impl Scene {
    /// All of them, started.
    pub async fn start() -> Self {
        let server = RedisServer::start(Options::default()).await;
        let ledger = Ledger::of(&server).await;
        Self { server, recorder: Recorder::start().await, ledger }
    }

    /// A worker whose jobs the recorder handles.
    pub fn options(&self) -> WorkerOptions {
        WorkerOptions::new("worker").redis(self.server.addr()).recorded_by(&self.recorder)
    }

    /// A worker that serves another queue: it reaps for all, but takes none of the jobs that come back.
    pub fn bystander(&self) -> WorkerOptions {
        self.options().config("worker: {priorities: [other], queues: {other: 'jobqueue:other_priority'}}")
    }

    /// Waits until so many jobs run.
    pub async fn running(&self, count: usize) {
        eventually(SOON, "running jobs", async || {
            let running = self.recorder.running().len();
            if running == count { Ok(()) } else { Err(running) }
        })
        .await;
    }

    /// Waits until a worker's lane has asked Redis this many times more: it has had its chance to reserve.
    pub async fn cycles(&mut self, record: &str, more: u64) {
        let seq = async |ledger: &mut Ledger| ledger.command::<u64>(&["HGET", record, "seq"]).await;
        let before = seq(&mut self.ledger).await;
        eventually(SOON, "cycles of the lane", async || {
            let now = seq(&mut self.ledger).await;
            if now >= before + more { Ok(()) } else { Err(now) }
        })
        .await;
    }
}
