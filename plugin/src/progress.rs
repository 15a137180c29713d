//! How far a long operation has come, on one line of a terminal: thirty lines of ours instead of a crate.
use std::io::{IsTerminal as _, Write as _};

use crate::live::Progress;

const WIDTH: u64 = 30;

/// A bar on stderr; nothing when that is no terminal.
#[derive(Debug)]
pub struct Bar {
    verb: &'static str,
    terminal: bool,
    shown: bool,
}

impl Bar {
    /// For something that is being done, such as `Requeued`.
    pub fn new(verb: &'static str) -> Self {
        Self { verb, terminal: std::io::stderr().is_terminal(), shown: false }
    }

    /// Shows how far it has come.
    pub fn show(&mut self, progress: &Progress) {
        if self.terminal {
            self.shown = true;
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r\x1b[K{}", line(self.verb, progress));
            let _ = out.flush();
        }
    }
}

impl Drop for Bar {
    /// What comes next begins on a line of its own.
    fn drop(&mut self) {
        if self.shown {
            eprintln!();
        }
    }
}

/// The bar as text: pure.
fn line(verb: &str, progress: &Progress) -> String {
    let Progress { looked_at, matched, total, elapsed_ms } = *progress;
    let part = |of: u64| looked_at.min(total).saturating_mul(of).checked_div(total).unwrap_or(of);
    let filled = part(WIDTH);
    let bar: String = (0..WIDTH).map(|at| if at < filled { '█' } else { '░' }).collect();
    let rate = looked_at.saturating_mul(1000) / elapsed_ms.max(1);
    let left = total
        .saturating_sub(looked_at)
        .checked_div(rate)
        .map_or_else(String::new, |left| format!(", {left}s left"));
    format!("{verb} {bar} {:3}%  {matched} of {total}  {rate}/s{left}", part(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_says_how_much_how_fast_and_how_long() {
        let half = Progress { looked_at: 50_000, matched: 50_000, total: 100_000, elapsed_ms: 1000 };
        assert_eq!(
            line("Requeued", &half),
            "Requeued ███████████████░░░░░░░░░░░░░░░  50%  50000 of 100000  50000/s, 1s left"
        );
        let nothing = Progress::default();
        assert!(line("Requeued", &nothing).contains("100%"), "{}", line("Requeued", &nothing));
    }
}
