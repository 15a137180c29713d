//! Child processes that never outlive the test binary, and the scratch directory they work in.
//!
//! `Drop` covers a test that ends or panics, but not a server kept in a `static`, nor a test binary that is
//! killed. For those a guard, one small shell per test binary, reads from a pipe which child is alive;
//! when the pipe closes, for whatever reason, it kills what is left and removes the scratch directory.
//! (A parent-death signal would do it too, but setting one needs `unsafe`, and it follows the thread that
//! spawned: a shared server would die with the first test.)

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::eventually;

const GUARD: &str = r#"
pids=' '
while read -r op pid; do
    case $op in
    add) pids="$pids$pid " ;;
    del) pids="${pids%% $pid *} ${pids#* $pid }" ;;
    esac
done
[ "$pids" = ' ' ] || kill -9 $pids
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"#;

struct Guard {
    scratch: PathBuf,
    shell: Mutex<Child>,
}

impl Guard {
    fn get() -> &'static Self {
        static GUARD_OF_THIS_PROCESS: OnceLock<Guard> = OnceLock::new();
        GUARD_OF_THIS_PROCESS.get_or_init(Self::start)
    }

    fn start() -> Self {
        let scratch =
            tempfile::Builder::new().prefix("jobqueue-e2e-").tempdir().expect("make a scratch directory");
        let scratch = scratch.keep();
        let shell = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&scratch)
            .stdin(Stdio::piped())
            // An inherited stdout would keep `cargo test | tail` waiting for the guard.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the whole foreground group: the guard must be the one that survives it.
            .process_group(0)
            .spawn()
            .expect("start sh");
        Self { scratch, shell: Mutex::new(shell) }
    }

    fn tell(&self, op: &str, pid: u32) {
        let mut shell = self.shell.lock().expect("the guard's lock");
        let pipe = shell.stdin.as_mut().expect("the guard's stdin is a pipe");
        // The guard reads until we are gone; if someone killed it, Drop still does its part.
        let _ = writeln!(pipe, "{op} {pid}");
    }
}

/// A new empty directory, removed on drop, or by the guard when this process ends.
pub fn scratch_dir(prefix: &str) -> TempDir {
    let guard = Guard::get();
    tempfile::Builder::new().prefix(prefix).tempdir_in(&guard.scratch).expect("make a scratch directory")
}

/// A child process, killed on drop.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    name: String,
}

impl ChildProcess {
    /// Starts `command`; the name of its program is used in messages.
    pub fn spawn(command: &mut Command) -> Self {
        let guard = Guard::get();
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().unwrap_or_else(|error| panic!("start {name}: {error}"));
        guard.tell("add", child.id());
        Self { child, name }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error, once, if it was piped.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Sends a signal; a process that has ended already is none of the caller's trouble.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// SIGTERM: asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("ask for the state of a child of ours")
    }

    /// Waits until it has ended by itself.
    pub async fn wait_exit(&mut self, timeout: Duration) -> ExitStatus {
        let what = format!("{} to exit", self.name);
        eventually(timeout, &what, async || self.exit_status()).await
    }

    /// SIGKILL, and wait until it is gone: afterwards its port and its files are free.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill9();
        Guard::get().tell("del", self.child.id());
    }
}

/// A loopback port that nothing listens on.
///
/// Taken from below the range of outgoing connections (32768 and up on Linux): a server that is stopped and
/// started again on its port must not find a client's socket there.
pub fn free_port() -> u16 {
    (0..1000)
        .map(|_| fastrand::u16(10_000..32_000))
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free loopback port")
}
