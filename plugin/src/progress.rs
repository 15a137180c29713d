//! How far a long operation has come, on one line of a terminal: thirty lines of ours instead of a crate.
use std::io::{IsTerminal as _, Write as _};

use crate::live::Progress;

/// Of the bar itself, where there is room.
const WIDEST: usize = 30;
/// A shorter bar says nothing.
const SHORTEST: usize = 5;
/// Of a terminal that does not say how wide it is.
const USUAL: usize = 80;

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
            // The window may have become another since.
            let width =
                ratatui::crossterm::terminal::size().map_or(USUAL, |(columns, _)| usize::from(columns));
            let _ = write!(out, "\r\x1b[K{}", line(self.verb, progress, width));
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

/// The bar as text, on one line of this width: pure. A line that wraps could not be written over.
fn line(verb: &str, progress: &Progress, width: usize) -> String {
    let Progress { looked_at, matched, total, elapsed_ms } = *progress;
    let part = |of: u64| looked_at.min(total).saturating_mul(of).checked_div(total).unwrap_or(of);
    let rate = looked_at.saturating_mul(1000) / elapsed_ms.max(1);
    let left = total
        .saturating_sub(looked_at)
        .checked_div(rate)
        .map_or_else(String::new, |left| format!(", {left}s left"));
    let figures = format!("{:3}%  {matched} of {total}  {rate}/s{left}", part(100));
    // The last column stays free: some terminals wrap as soon as it is written.
    let room = width.saturating_sub(verb.len() + figures.len() + 3).min(WIDEST);
    if room < SHORTEST {
        return format!("{verb} {figures}").chars().take(width.saturating_sub(1)).collect();
    }
    let filled = usize::try_from(part(room as u64)).unwrap_or(room);
    let bar: String = (0..room).map(|at| if at < filled { '█' } else { '░' }).collect();
    format!("{verb} {bar} {figures}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_says_how_much_how_fast_and_how_long() {
        let half = Progress { looked_at: 50_000, matched: 50_000, total: 100_000, elapsed_ms: 1000 };
        assert_eq!(
            line("Requeued", &half, 120),
            "Requeued ███████████████░░░░░░░░░░░░░░░  50%  50000 of 100000  50000/s, 1s left"
        );
        let nothing = Progress::default();
        let nothing = line("Requeued", &nothing, 80);
        assert!(nothing.contains("100%"), "{nothing}");
    }

    #[test]
    fn the_bar_fits_any_terminal() {
        let slow =
            Progress { looked_at: 12_345_678, matched: 12_345_678, total: 99_999_999, elapsed_ms: 900_000 };
        for width in 1..200 {
            let line = line("Requeued", &slow, width);
            assert!(line.chars().count() < width.max(1), "{width}: {line}");
        }
        assert!(line("Requeued", &slow, 80).contains('█'));
    }
}
