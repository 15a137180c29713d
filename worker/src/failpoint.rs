//! Named places where a test kills the process: `WORKER_FAILPOINT=after-cycle:3` ends it with SIGKILL the
//! third time it gets there. Compiled into debug builds only.

/// Every failpoint.
pub const ALL: [&str; 11] = [
    "after-register",
    "before-cycle",
    "after-cycle",
    "before-start",
    "after-start",
    "before-handle",
    "after-handle",
    "after-park",
    "before-release",
    "before-close",
    "after-enqueue",
];

/// Dies here if the test asked for it.
#[cfg(debug_assertions)]
pub fn hit(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static WANTED: LazyLock<Option<(String, AtomicU64)>> = LazyLock::new(|| {
        let wanted = std::env::var("WORKER_FAILPOINT").ok()?;
        let (name, times) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        Some((name.to_owned(), AtomicU64::new(times.parse().unwrap_or(1))))
    });
    if let Some((wanted, left)) = WANTED.as_ref()
        && wanted == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Nothing, in release builds.
#[cfg(not(debug_assertions))]
pub const fn hit(_name: &str) {}
