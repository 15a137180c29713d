//! How far a long command got: a bar for a person at a terminal, lines for a program.
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli;

/// How often it is shown.
const EVERY: Duration = Duration::from_millis(100);
/// How long the bar is.
const WIDTH: u64 = 30;

/// How far.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Position {
    pub verb: &'static str,
    pub looked_at: u64,
    pub matched: u64,
    pub total: u64,
    pub elapsed_ms: u64,
}

/// Shows it.
pub struct Progress {
    kind: Kind,
    shown: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bar,
    Lines,
    Nothing,
}

impl Progress {
    pub fn new(wanted: cli::Progress) -> Self {
        let kind = match wanted {
            cli::Progress::Auto if io::stderr().is_terminal() => Kind::Bar,
            cli::Progress::Auto | cli::Progress::None => Kind::Nothing,
            cli::Progress::Json => Kind::Lines,
        };
        Self { kind, shown: None }
    }

    /// Shows where it is, if that was not just shown. Whether anybody reads it is their own affair.
    pub fn show(&mut self, at: &Position) {
        if self.kind != Kind::Nothing && self.shown.is_none_or(|shown| shown.elapsed() >= EVERY) {
            self.shown = Some(Instant::now());
            self.write(at);
        }
    }

    /// Shows where it ended; of a bar nothing stays.
    pub fn end(&mut self, at: &Position) {
        match self.kind {
            Kind::Lines => self.write(at),
            Kind::Bar if self.shown.is_some() => drop(write!(io::stderr(), "\r\x1b[K")),
            Kind::Bar | Kind::Nothing => {}
        }
    }

    fn write(&self, at: &Position) {
        let mut out = io::stderr();
        let _ = match self.kind {
            Kind::Bar => write!(out, "\r\x1b[K{}", at.bar()),
            Kind::Lines => writeln!(out, "{}", serde_json::json!({ "progress": at })),
            Kind::Nothing => Ok(()),
        };
    }
}

impl Position {
    fn bar(&self) -> String {
        let total = self.total.max(1);
        let full = self.looked_at.min(total);
        let filled = usize::try_from(full * WIDTH / total).unwrap_or(0);
        let width = usize::try_from(WIDTH).unwrap_or(0);
        let a_second = (self.looked_at * 1000).checked_div(self.elapsed_ms).unwrap_or(0);
        format!(
            "[{}{}] {:3} %  {} of {}, {} matched, {a_second}/s",
            "#".repeat(filled),
            " ".repeat(width - filled),
            full * 100 / total,
            self.looked_at,
            self.total,
            self.matched
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_it_got_far() {
        let at = |looked_at| Position { verb: "requeue", looked_at, matched: 1, total: 100, elapsed_ms: 500 };
        assert_eq!(at(50).bar(), "[###############               ]  50 %  50 of 100, 1 matched, 100/s");
        assert!(at(0).bar().starts_with("[                              ]   0 %"));
        assert!(at(200).bar().starts_with("[##############################] 100 %"), "never beyond its end");
    }
}
