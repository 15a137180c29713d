//! Whether this process should get work: the state behind `/readyz`. It fails until the first lane has
//! registered, and once drained. Later outages are reported but change nothing: an unready pod is the
//! first that a scale-in deletes, and a Redis outage must not decide who that is.
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;

/// What a worker waits for before it is ready.
pub const FIRST_LANE: &str = "first lane";

/// Shared by the parts that reach a milestone and the server that answers for them.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    waiting_for: BTreeSet<&'static str>,
    drained: bool,
    dependencies: BTreeMap<&'static str, Dependency>,
}

/// The present state of something this process needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependency {
    /// It answered the last time it was asked.
    Up,
    /// It did not.
    Down,
}

/// In one word, whether work is welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not started yet: `waiting_for` says what is missing.
    Waiting,
    /// At work.
    Ready,
    /// Finished or finishing: no new job will be taken.
    Drained,
}

/// The body of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In one word.
    pub status: Status,
    /// What must happen first.
    pub waiting_for: Vec<&'static str>,
    /// For people: these do not change the status.
    pub dependencies: BTreeMap<&'static str, Dependency>,
}

/// A worker that takes longer to answer is not well.
const ANSWER: Duration = Duration::from_secs(3);

/// Why a worker is not well.
#[derive(Debug, thiserror::Error)]
pub enum Unwell {
    /// Nobody knows where it listens.
    #[error("observability.metrics_port = 0: any port may have been taken; set one")]
    AnyPort,
    /// It does not answer.
    #[error("no answer at 127.0.0.1:{0}: {1}")]
    Silent(u16, std::io::Error),
    /// It says so.
    #[error("{0} answered {1}")]
    Says(&'static str, String),
}

/// Asks the worker whose probes are served at this port of this machine; `path` is one of them.
pub fn ask(port: u16, path: &'static str) -> Result<(), Unwell> {
    if port == 0 {
        return Err(Unwell::AnyPort);
    }
    let said = exchange(port, path).map_err(|error| Unwell::Silent(port, error))?;
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
    let status = head.lines().next().unwrap_or_default().split_once(' ').map_or("nothing", |line| line.1);
    if status.starts_with("200") { Ok(()) } else { Err(Unwell::Says(path, format!("{status} {body}"))) }
}

fn exchange(port: u16, path: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), ANSWER)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.set_write_timeout(Some(ANSWER))?;
    write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut said = String::new();
    socket.read_to_string(&mut said)?;
    Ok(said)
}

impl Readiness {
    /// Ready once each of these was reached: [`FIRST_LANE`] for a worker, nothing for a role without
    /// lanes.
    pub fn waiting_for(milestones: &[&'static str]) -> Self {
        let waiting_for = milestones.iter().copied().collect();
        Self(Arc::new(Mutex::new(State { waiting_for, ..State::default() })))
    }

    /// This milestone was reached, for good.
    pub fn reached(&self, milestone: &str) {
        self.state().waiting_for.remove(milestone);
    }

    /// Everything is finished and nothing will be taken; also the first step of a shutdown.
    pub fn drained(&self) {
        self.state().drained = true;
    }

    /// The drain was called off.
    pub fn resumed(&self) {
        self.state().drained = false;
    }

    /// The present state of a dependency (`redis`, `handler`).
    pub fn dependency(&self, name: &'static str, state: Dependency) {
        self.state().dependencies.insert(name, state);
    }

    /// What `/readyz` answers.
    pub fn report(&self) -> Report {
        let state = self.state();
        let status = if state.drained {
            Status::Drained
        } else if state.waiting_for.is_empty() {
            Status::Ready
        } else {
            Status::Waiting
        };
        Report {
            status,
            waiting_for: state.waiting_for.iter().copied().collect(),
            dependencies: state.dependencies.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_the_first_lane_only_once() {
        let readiness = Readiness::waiting_for(&[FIRST_LANE]);
        assert_eq!(readiness.report().status, Status::Waiting);
        readiness.reached(FIRST_LANE);
        assert_eq!(readiness.report().status, Status::Ready);
    }

    #[test]
    fn an_outage_is_reported_and_changes_nothing() {
        let readiness = Readiness::waiting_for(&[FIRST_LANE]);
        readiness.dependency("redis", Dependency::Up);
        readiness.reached(FIRST_LANE);
        readiness.dependency("redis", Dependency::Down);
        let report = readiness.report();
        assert_eq!((report.status, report.dependencies["redis"]), (Status::Ready, Dependency::Down));
    }

    #[test]
    fn a_drained_process_is_not_ready_until_it_is_resumed() {
        let readiness = Readiness::waiting_for(&[]);
        readiness.drained();
        assert_eq!(readiness.report().status, Status::Drained);
        readiness.resumed();
        assert_eq!(readiness.report().status, Status::Ready);
    }

    #[test]
    fn the_body_says_what_it_waits_for() {
        let readiness = Readiness::waiting_for(&[FIRST_LANE]);
        readiness.dependency("redis", Dependency::Up);
        assert_eq!(
            serde_json::to_string(&readiness.report()).unwrap(),
            r#"{"status":"waiting","waiting_for":["first lane"],"dependencies":{"redis":"up"}}"#
        );
    }
}
