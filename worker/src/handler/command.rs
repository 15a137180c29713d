//! Runs a program per job, in a process group of its own: payload on stdin, exit status as the answer,
//! the end of stderr as the error. Nothing of a run outlives it: the whole group is killed at its end.
use super::{ANSWER_MAX, Call, ERROR_MAX, tail};
use bytes::Bytes;
use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};
use jobqueue::protocol::async_jobs::is_sound;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::{timeout, timeout_at};

/// `EX_TEMPFAIL` of sysexits.h: "try again later".
const EXIT_RETRY_LATER: i32 = 75;

/// How long the rest of a group may go on writing its last words once the program itself has ended.
const LINGER: Duration = Duration::from_secs(1);

/// How long to read on, or to wait for the end, once the group was killed. A process that left the group
/// may hold stderr open for ever, and one in an uninterruptible wait does not die when told to.
const AFTER_KILL: Duration = Duration::from_millis(200);

/// `worker.handler.command`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSettings {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// A run that takes longer is killed.
    pub timeout: Duration,
    /// What a program asks for by exit status 75. It has no way to say how long, and the ordinary backoff
    /// is for failures; ten seconds suit what it is used for (a lock is taken, a licence is in use).
    pub retry_later: Duration,
    /// What the program prints is the job's result.
    pub keeps_result: bool,
}

impl Default for CommandSettings {
    fn default() -> Self {
        Self {
            argv: Vec::new(),
            timeout: Duration::from_secs(60),
            retry_later: Duration::from_secs(10),
            keeps_result: false,
        }
    }
}

/// `worker.handler.command.argv` names no program.
#[derive(Debug, thiserror::Error)]
#[error("worker.handler.command.argv: [] names no program; it needs at least one element")]
pub struct NoProgram;

/// The handler that starts a program.
#[derive(Debug)]
pub struct Command {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
    retry_later: Duration,
    keeps_result: bool,
}

impl Command {
    /// A handler with these settings.
    pub fn new(settings: &CommandSettings) -> Result<Self, NoProgram> {
        let (program, arguments) = settings.argv.split_first().ok_or(NoProgram)?;
        if program.is_empty() {
            return Err(NoProgram);
        }
        Ok(Self {
            program: program.clone(),
            arguments: arguments.to_vec(),
            timeout: settings.timeout,
            retry_later: settings.retry_later,
            keeps_result: settings.keeps_result,
        })
    }

    pub(super) async fn handle(&self, job: &Job, call: &Call) -> Outcome {
        let ends = call.ends_by(self.timeout);
        let mut child = match self.spawn(job, call) {
            Ok(child) => child,
            Err(error) => return not_started(&error),
        };
        // Dropped before `child` (reverse order): the group is killed while its id is surely ours.
        let group = Group::of(&child);
        let stdin = child.stdin.take();
        let mut stderr = Tail::of(child.stderr.take());
        let mut stdout = Printed { pipe: child.stdout.take(), bytes: Vec::new() };

        let exit = tokio::select! {
            biased;
            exit = timeout_at(ends, exited(&mut child, &group)) => exit,
            never = talk(stdin, job.raw.clone(), &mut stderr, &mut stdout) => match never {},
        };
        let Ok(exit) = exit else {
            drop(group);
            // Usually at once; what does not die now is reaped later by the runtime.
            let _ = timeout(AFTER_KILL, child.wait()).await;
            let text = format!("killed after {:?}", self.timeout);
            return Outcome::Failed(Failure::new(Reason::Timeout, stderr.explain(&text)));
        };
        if let Err(error) = exit {
            return Outcome::HandlerDied(format!("waiting for the program: {error}"));
        }
        let _ = timeout(LINGER, async { tokio::join!(stderr.read(), stdout.read()) }).await;
        drop(group);
        let _ = timeout(AFTER_KILL, async { tokio::join!(stderr.read(), stdout.read()) }).await;
        match child.wait().await {
            Ok(status) => match self.answer(status, &stderr) {
                Outcome::Done if self.keeps_result => Outcome::DoneWith(stdout.result()),
                outcome => outcome,
            },
            Err(error) => Outcome::HandlerDied(format!("waiting for the program: {error}")),
        }
    }

    fn spawn(&self, job: &Job, call: &Call) -> io::Result<Child> {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("JOB_ID", &job.fields.id)
            .env("JOB_QUEUE", &*call.queue)
            .env("JOB_ATTEMPT", (job.fields.retries.saturating_add(1)).to_string())
            .env("JOB_FILEPATH", &job.fields.filepath)
            .env("JOB_TYPE", &job.fields.kind)
            .stdin(Stdio::piped())
            .stdout(if self.keeps_result { Stdio::piped() } else { Stdio::null() })
            .stderr(Stdio::piped())
            .process_group(0);
        match &call.traceparent {
            Some(traceparent) => command.env("TRACEPARENT", traceparent),
            // Not the one this process may have been started with: that is another trace.
            None => command.env_remove("TRACEPARENT"),
        };
        command.spawn()
    }

    fn answer(&self, status: ExitStatus, stderr: &Tail) -> Outcome {
        let failure = |text: String| Failure::new(Reason::Handler, stderr.explain(&text));
        match (status.code(), status.signal()) {
            (Some(0), _) => Outcome::Done,
            (Some(EXIT_RETRY_LATER), _) => Outcome::RetryIn(
                self.retry_later,
                failure(format!("exit status {EXIT_RETRY_LATER}, retry later")),
            ),
            (Some(code), _) => Outcome::Failed(failure(format!("exit status {code}"))),
            (None, Some(signal)) => Outcome::Failed(failure(format!("killed by signal {signal}"))),
            (None, None) => Outcome::Failed(failure(status.to_string())),
        }
    }
}

/// A program that is missing, not executable, or cannot be started because we lack memory or descriptors
/// is no fault of the job; a job whose own fields do not fit into an environment is.
fn not_started(error: &io::Error) -> Outcome {
    let text = format!("the program could not be started: {error}");
    match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong => {
            Outcome::Failed(Failure::new(Reason::Handler, text))
        }
        _ => Outcome::HandlerUnavailable(text),
    }
}

/// The process group of one run. Killed when dropped, so that neither a timeout, nor a panic, nor a
/// cancelled run leaves anything behind.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        Self(pid.and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // Fails only when nobody is left in the group.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Returns when the program has ended, without reaping it: until then its id, and with it the group's,
/// cannot be given to anyone else, so killing the rest of the group cannot hit a stranger.
#[expect(deprecated, reason = "AsyncFd::new is unsound for borrowed descriptors; this one is owned")]
async fn exited(child: &mut Child, group: &Group) -> io::Result<()> {
    let pidfd = group.0.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    match pidfd.map(AsyncFd::new) {
        Some(Ok(pidfd)) => pidfd.readable().await.map(drop),
        // A kernel without pidfd (before 5.3, some sandboxes): reaping it is the only way to know.
        Some(Err(_)) | None => child.wait().await.map(drop),
    }
}

/// Writes the payload and collects what it writes, side by side: a program may write before it has read.
async fn talk(
    stdin: Option<ChildStdin>,
    payload: Bytes,
    stderr: &mut Tail,
    stdout: &mut Printed,
) -> Infallible {
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A program need not read its payload (its path stands in the environment): EPIPE is no error.
            let _ = stdin.write_all(&payload).await;
        }
    };
    tokio::join!(feed, stderr.read(), stdout.read());
    std::future::pending().await
}

/// The beginning of what a program writes to stdout.
struct Printed {
    pipe: Option<ChildStdout>,
    bytes: Vec<u8>,
}

impl Printed {
    /// Reads until every writer has closed it, and keeps what fits; may be dropped at any time.
    async fn read(&mut self) {
        let mut chunk = [0; ERROR_MAX];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut chunk).await {
                Ok(0) | Err(_) => self.pipe = None,
                Ok(read) => {
                    let room = ANSWER_MAX - self.bytes.len();
                    self.bytes.extend_from_slice(&chunk[..read.min(room)]);
                }
            }
        }
    }

    /// As JSON: itself if it is that and can be kept in a job, otherwise the text of it.
    fn result(&self) -> Bytes {
        let text = String::from_utf8_lossy(&self.bytes);
        let text = text.trim();
        if text.is_empty() {
            return Bytes::from_static(b"null");
        }
        if is_sound(text) {
            return text.to_owned().into();
        }
        serde_json::Value::from(text).to_string().into()
    }
}

/// The end of what a program writes to stderr.
struct Tail {
    pipe: Option<ChildStderr>,
    bytes: Vec<u8>,
}

impl Tail {
    fn of(pipe: Option<ChildStderr>) -> Self {
        Self { pipe, bytes: Vec::new() }
    }

    /// Reads until every writer has closed it; may be dropped at any time without losing what was read.
    async fn read(&mut self) {
        let mut chunk = [0; ERROR_MAX];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut chunk).await {
                Ok(0) | Err(_) => self.pipe = None,
                Ok(read) => {
                    self.bytes.extend_from_slice(&chunk[..read]);
                    // One byte more than is kept tells `tail` that it was cut.
                    let surplus = self.bytes.len().saturating_sub(ERROR_MAX + 1);
                    self.bytes.drain(..surplus);
                }
            }
        }
    }

    /// What happened, with the program's own words behind it.
    fn explain(&self, what: &str) -> String {
        match tail(&self.bytes) {
            text if text.is_empty() => what.to_owned(),
            text => format!("{what}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests;
