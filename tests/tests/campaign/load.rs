//! What is pushed while things go wrong. A job's id says how it behaves, whoever runs it.
use std::net::SocketAddr;
use std::time::Duration;

use e2e::Recorder;
use e2e::ledger::{HIGH, LOW, job};
use e2e::recorder::Behaviour;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use serde_json::json;

/// One that kills every worker that runs it.
pub const POISON: &str = "poison";
/// One that fails whenever it is run.
pub const DOOMED: &str = "doomed";
/// A push each so often: 40 jobs a second.
const INTERVAL: Duration = Duration::from_millis(25);
/// More would take the others' workers away for most of the campaign: each kills about ten of them.
const MOST_POISON: usize = 3;

/// The jobs that were pushed.
#[derive(Clone, Debug, Default)]
pub struct Pushed {
    /// Redis said that it has them.
    pub acknowledged: Vec<String>,
    /// Redis said nothing: it may have them or not.
    pub in_doubt: Vec<String>,
}

/// Pushes jobs until it is over.
pub async fn push(
    addr: SocketAddr,
    recorder: &Recorder,
    mut random: fastrand::Rng,
    over: impl Fn() -> bool,
) -> Pushed {
    let mut pushed = Pushed::default();
    let mut connection = None;
    let mut poison = 0;
    for number in 0.. {
        if over() {
            break;
        }
        let id = match random.u32(..1000) {
            0..2 if poison < MOST_POISON && number > 100 => {
                poison += 1;
                format!("{POISON}-{number}")
            }
            0..5 => format!("{DOOMED}-{number}"),
            5..60 => format!("flaky-{number}"),
            60..160 => format!("slow-{number}"),
            _ => format!("plain-{number}"),
        };
        let failure = || Behaviour::Answer(500, json!({ "error": "on purpose" }));
        match id.split('-').next() {
            Some(POISON) => recorder.behave(&id, vec![Behaviour::Hold; 100]),
            Some(DOOMED) => recorder.behave(&id, vec![failure(); 100]),
            Some("flaky") => recorder.behave(&id, [failure()]),
            Some("slow") => {
                let long = Behaviour::Slow(Duration::from_millis(random.u64(500..3000)));
                recorder.behave(&id, vec![long; 100]);
            }
            _ => {}
        }
        let queue = if random.u32(..4) == 0 { HIGH } else { LOW };
        let mut push = redis::cmd("LPUSH");
        push.arg(queue).arg(job(&id).to_string());
        if connection.is_none() {
            connection = connect(addr).await;
        }
        let Some(open) = connection.as_mut() else {
            tokio::time::sleep(INTERVAL).await;
            continue;
        };
        if push.query_async::<()>(open).await.is_ok() {
            pushed.acknowledged.push(id);
        } else {
            pushed.in_doubt.push(id);
            connection = None;
        }
        tokio::time::sleep(INTERVAL).await;
    }
    pushed
}

async fn connect(addr: SocketAddr) -> Option<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
    let client = redis::Client::open(format!("redis://{addr}")).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.ok()
}
