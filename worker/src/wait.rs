//! `wait`: keeps a pod open for commands that run in it. As the first process of a container it sees who else runs there: when
//! nobody has for long, whoever wanted the pod is gone without a word, and it ends, so that the pod does.
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::shutdown::Shutdown;

/// So long nobody else may run: whoever makes a pod for a command begins it within two minutes, and between two commands
/// none waits as long.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// How often it is looked.
const EVERY: Duration = Duration::from_secs(15);

/// Waits until it is told to stop, or was forgotten.
pub async fn run(mut stop: Shutdown) {
    // Elsewhere there are always others.
    if std::process::id() != 1 {
        stop.requested().await;
        return;
    }
    let mut last = Instant::now();
    while !stop.within(EVERY).await {
        // Who cannot be seen may be there.
        let accompanied = !others(Path::new("/proc"), 1).is_ok_and(|others| others == 0);
        if is_forgotten(&mut last, accompanied, Instant::now()) {
            return;
        }
    }
}

/// How many other processes there are.
fn others(proc: &Path, own: u32) -> io::Result<usize> {
    let names = std::fs::read_dir(proc)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse::<u32>().ok()).filter(|process| *process != own).count())
}

/// Whether nobody else has run since long; `last` is when somebody did. Pure.
fn is_forgotten(last: &mut Instant, accompanied: bool, now: Instant) -> bool {
    if accompanied {
        *last = now;
    }
    now.duration_since(*last) >= FORGOTTEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_in_which_nothing_runs_any_more_is_forgotten() {
        let began = Instant::now();
        let mut last = began;
        let later = |seconds| began + Duration::from_secs(seconds);
        assert!(!is_forgotten(&mut last, false, later(599)));
        assert!(!is_forgotten(&mut last, true, later(601)), "a command runs");
        assert!(!is_forgotten(&mut last, false, later(1200)), "one ran until a moment ago");
        assert!(is_forgotten(&mut last, false, later(1201)));
    }

    #[test]
    fn other_processes_are_counted() {
        assert!(others(Path::new("/proc"), 0).unwrap() > 0, "this one");
        assert!(others(Path::new("/nowhere"), 0).is_err());
    }
}
