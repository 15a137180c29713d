//! Answers for people: aligned columns as kubectl prints them.
use std::fmt::{self, Write as _};

use jobqueue::terminal;
pub use jobqueue::terminal::{json, json_line, whole, yaml};
use unicode_width::UnicodeWidthStr as _;

/// Text from jobs is cut after this many characters.
const WIDEST: usize = 80;

/// Columns with upper-case headers and no borders.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|name| (*name).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let padding = width.saturating_sub(cell.width()) + 3;
                let _ = write!(line, "{cell}{:padding$}", "");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Text from a job, safe to print, cut at 80.
pub fn shown(text: &str) -> String {
    terminal::shown(text, WIDEST)
}

/// Text, or a dash where there is none.
pub fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// How long ago, in the unit that matters.
pub fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long ago a moment was that a job names; `-` when it does not.
pub fn age_since(moment: &str, now_ms: u64) -> String {
    let made =
        moment.parse::<jiff::Timestamp>().ok().and_then(|time| u64::try_from(time.as_millisecond()).ok());
    made.map_or_else(|| "-".to_owned(), |made| age(now_ms.saturating_sub(made)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(&["QUEUE", "WAITING"]);
        table.row(vec!["high".into(), "1".into()]);
        table.row(vec!["überlang".into(), String::new()]);
        assert_eq!(table.to_string(), "QUEUE      WAITING\nhigh       1\nüberlang\n");
    }

    #[test]
    fn ages_have_one_unit() {
        let of = |seconds: u64| age(seconds * 1000);
        assert_eq!([of(0), of(119), of(120), of(7200), of(172_800)], ["0s", "119s", "2m", "2h", "2d"]);
        assert_eq!(age_since("2026-01-01T00:00:00Z", 1_767_225_605_000), "5s");
        assert_eq!(age_since("yesterday", 5), "-");
    }
}
