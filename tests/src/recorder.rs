//! An HTTP job handler that remembers every run of every job, and behaves as a test asks: the witness of
//! "exactly once", "at least once" and "never again".
//!
//! HTTP/1.1 by hand: a handler that dies in the middle of an answer is nothing a web framework offers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::wait::eventually;

/// How long a job may take to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// What the handler does with one run of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Behaviour {
    /// 200 with `{"status":"success"}`.
    #[default]
    Succeed,
    /// 200 with `{"status":"failure","result":MESSAGE}`: the job's own fault.
    Fail(String),
    /// 503: the handler's trouble, not the job's.
    Unavailable,
    /// Any status and body.
    Answer(u16, Value),
    /// Takes this long, then succeeds.
    Slow(Duration),
    /// Waits for [`Recorder::release`], then succeeds.
    Hold,
    /// Reads the request, then closes the connection without an answer.
    HangUp,
    /// SIGKILLs this process (the worker's, as a rule), then closes the connection.
    Kill(u32),
}

/// How a run ended, as the handler saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Answered with this status. Whether the worker took notice is another matter.
    Answered(u16),
    /// The handler closed the connection.
    HungUp,
    /// The worker closed the connection before the answer.
    Abandoned,
}

/// One run of a job.
#[derive(Clone, Debug)]
pub struct Run {
    /// The job's `id` (files, async) or `jid` (sidekiq).
    pub id: String,
    /// When the request had arrived in full.
    pub started: Instant,
    /// When and how it ended; `None` while it runs.
    pub ended: Option<(Instant, End)>,
    /// The request's path.
    pub path: String,
    /// The request's headers, names in lower case.
    pub headers: HashMap<String, String>,
    /// The request's body.
    pub body: Bytes,
}

impl Run {
    /// The body as JSON.
    pub fn job(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

#[derive(Debug, Default)]
struct State {
    runs: Vec<Run>,
    by_default: Behaviour,
    by_id: HashMap<String, VecDeque<Behaviour>>,
    released: Vec<String>,
    all_released: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    released: Notify,
}

/// The handler; it closes everything when dropped.
#[derive(Debug)]
pub struct Recorder {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accept: JoinHandle<()>,
}

impl Recorder {
    /// Listens on a loopback port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a loopback port");
        let addr = listener.local_addr().expect("the address of a bound socket");
        let shared = Arc::new(Shared::default());
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { addr, shared, accept }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://` of [`Self::addr`], for `worker.handler.http.url`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What happens to jobs that nothing else was said about.
    pub fn by_default(&self, behaviour: Behaviour) {
        self.state(|state| state.by_default = behaviour);
    }

    /// What happens to the next runs of one job, in this order; then the default.
    pub fn behave(&self, id: &str, behaviours: impl IntoIterator<Item = Behaviour>) {
        self.state(|state| state.by_id.entry(id.to_owned()).or_default().extend(behaviours));
    }

    /// Lets the held runs of one job go, and its later ones.
    pub fn release(&self, id: &str) {
        self.state(|state| state.released.push(id.to_owned()));
        self.shared.released.notify_waiters();
    }

    /// Lets every held run go, now and later.
    pub fn release_all(&self) {
        self.state(|state| state.all_released = true);
        self.shared.released.notify_waiters();
    }

    /// All runs in the order of their start.
    pub fn runs(&self) -> Vec<Run> {
        self.state(|state| state.runs.clone())
    }

    /// The runs of one job in the order of their start.
    pub fn runs_of(&self, id: &str) -> Vec<Run> {
        self.state(|state| state.runs.iter().filter(|run| run.id == id).cloned().collect())
    }

    /// How often a job was started.
    pub fn starts(&self, id: &str) -> usize {
        self.state(|state| state.runs.iter().filter(|run| run.id == id).count())
    }

    /// How many runs have been answered with success (2xx).
    pub fn answered(&self) -> usize {
        let good = |run: &&Run| matches!(run.ended, Some((_, End::Answered(200..300))));
        self.state(|state| state.runs.iter().filter(good).count())
    }

    /// The ids of the jobs running now.
    pub fn running(&self) -> Vec<String> {
        self.state(|state| {
            state.runs.iter().filter(|run| run.ended.is_none()).map(|run| run.id.clone()).collect()
        })
    }

    /// The ids of the jobs running now that were posted to this path.
    pub fn running_at(&self, path: &str) -> Vec<String> {
        self.state(|state| {
            let now = state.runs.iter().filter(|run| run.ended.is_none() && run.path == path);
            now.map(|run| run.id.clone()).collect()
        })
    }

    /// Jobs started more than once, with the number of starts.
    pub fn duplicates(&self) -> HashMap<String, usize> {
        let mut starts = HashMap::new();
        self.state(|state| {
            for run in &state.runs {
                *starts.entry(run.id.clone()).or_default() += 1;
            }
        });
        starts.retain(|_, count| *count > 1);
        starts
    }

    /// Waits until a job has been started at least `times` times.
    pub async fn wait_started(&self, id: &str, times: usize) {
        eventually(ARRIVAL_TIMEOUT, &format!("start {times} of job {id}"), async || {
            let starts = self.starts(id);
            if starts >= times { Ok(()) } else { Err(starts) }
        })
        .await;
    }

    /// Waits until this many runs have been answered with success.
    pub async fn wait_answered(&self, count: usize) {
        eventually(ARRIVAL_TIMEOUT, &format!("{count} answered runs"), async || {
            let answered = self.answered();
            if answered >= count { Ok(()) } else { Err(answered) }
        })
        .await;
    }

    fn state<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        self.shared.with(read)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

impl Shared {
    fn with<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut self.state.lock().expect("the recorder's lock"))
    }

    fn begin(&self, request: Request) -> (usize, Behaviour) {
        self.with(|state| {
            let id = job_id(&request);
            let scripted = state.by_id.get_mut(&id).and_then(VecDeque::pop_front);
            let behaviour = scripted.unwrap_or_else(|| state.by_default.clone());
            let Request { path, headers, body, .. } = request;
            state.runs.push(Run { id, started: Instant::now(), ended: None, path, headers, body });
            (state.runs.len() - 1, behaviour)
        })
    }

    fn end(&self, run: usize, end: End) {
        self.with(|state| state.runs[run].ended = Some((Instant::now(), end)));
    }

    async fn wait_released(&self, run: usize) {
        loop {
            // Ask to be told before looking, or a release in between would be missed.
            let told = self.released.notified();
            let free = self.with(|state| state.all_released || state.released.contains(&state.runs[run].id));
            if free {
                return;
            }
            told.await;
        }
    }
}

/// From the body, or from the header when the body is nothing that has an id.
fn job_id(request: &Request) -> String {
    let job: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
    let in_body = [&job["id"], &job["jid"]].into_iter().find_map(Value::as_str).map(str::to_owned);
    in_body.or_else(|| request.headers.get("x-job-id").cloned()).unwrap_or_default()
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let shared = Arc::clone(&shared);
        // A broken connection is the client's business: what it did is in the runs.
        connections.spawn(async move {
            let _ = serve(stream, &shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Bytes,
}

async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        if request.method == "GET" {
            // The seed's health probe of the sidecar.
            answer(&mut stream, 200, &serde_json::json!({"status": "ok", "rails_loaded": true})).await?;
            continue;
        }
        let (run, behaviour) = shared.begin(request);
        let reply = tokio::select! {
            reply = carry_out(behaviour, run, shared) => reply,
            // Nothing is due from the client while it waits: whatever comes is its end.
            _ = stream.read_buf(&mut buffer) => {
                shared.end(run, End::Abandoned);
                return Ok(());
            }
        };
        let Some((status, body)) = reply else {
            shared.end(run, End::HungUp);
            return Ok(());
        };
        // Recorded before the answer leaves: whoever has seen the answer finds it in the record.
        shared.end(run, End::Answered(status));
        answer(&mut stream, status, &body).await?;
    }
    Ok(())
}

/// The answer of a run, `None` to hang up.
async fn carry_out(behaviour: Behaviour, run: usize, shared: &Shared) -> Option<(u16, Value)> {
    let success = serde_json::json!({"status": "success", "result": null, "execution_time": 0.0});
    match behaviour {
        Behaviour::Succeed => Some((200, success)),
        Behaviour::Fail(message) => {
            Some((200, serde_json::json!({"status": "failure", "result": message, "execution_time": 0.0})))
        }
        Behaviour::Unavailable => Some((503, serde_json::json!({"status": "unavailable"}))),
        Behaviour::Answer(status, body) => Some((status, body)),
        Behaviour::Slow(duration) => {
            tokio::time::sleep(duration).await;
            Some((200, success))
        }
        Behaviour::Hold => {
            shared.wait_released(run).await;
            Some((200, success))
        }
        Behaviour::HangUp => None,
        Behaviour::Kill(pid) => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
            let _ = kill_process(pid, Signal::KILL);
            None
        }
    }
}

async fn answer(stream: &mut TcpStream, status: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} Recorded\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await
}

async fn read_request(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<Option<Request>> {
    let head_end = loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer.split_to(head_end)).into_owned();
    buffer.advance(4);
    let mut lines = head.split("\r\n");
    let mut request_line = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, path) = (request_line.next().unwrap_or_default(), request_line.next().unwrap_or_default());
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Request { method, path, headers, body: buffer.split_to(length).freeze() }))
}
