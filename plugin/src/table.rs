//! Answers for people: kubectl's columns and ages, colour only where a person looks.
use std::fmt::Write as _;
use std::io::IsTerminal as _;

use jiff::Timestamp;
pub use jobqueue::terminal::{shown, unsafe_to_print, whole};
use unicode_width::UnicodeWidthStr as _;

/// What a cell says beside its text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Warn,
    /// Somebody must do something.
    Bad,
    /// Not important.
    Dim,
    /// A headline.
    Strong,
}

/// Whether colours are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint(pub bool);

impl Paint {
    /// Only to a terminal, and not with `NO_COLOR` or `TERM=dumb`.
    pub fn detect() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(!unwanted && std::io::stdout().is_terminal())
    }

    /// The text in its tone.
    pub fn text(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Dim => "2",
            Tone::Strong => "1",
        };
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// Its text.
    pub text: String,
    /// Its tone.
    pub tone: Tone,
}

impl Cell {
    /// With a tone.
    pub fn toned(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(Tone::Plain, text)
    }
}

/// Columns with upper-case headers and no borders, three blanks apart.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![header.into_iter().map(Cell::from).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The lines.
    pub fn render(&self, paint: Paint) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.width()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut lines = String::new();
        for row in &self.rows {
            let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate().take(last + 1) {
                lines.push_str(&paint.text(cell.tone, &cell.text));
                if at < last {
                    let _ = write!(lines, "{:1$}", "", width - cell.text.width() + 3);
                }
            }
            lines.push('\n');
        }
        lines
    }
}

/// How long ago, as kubectl says it: two units at most.
pub fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let with = |large: i64, unit: char, small: i64, rest: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{rest}") }
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => with(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

/// How long ago a moment was.
pub fn since(moment: Timestamp, now: Timestamp) -> String {
    age(now.duration_since(moment).as_secs())
}

/// How long ago a moment was that is written as text; `-` when it is none.
pub fn since_text(moment: Option<&str>, now: Timestamp) -> String {
    let moment = moment.and_then(|text| text.parse::<Timestamp>().ok());
    moment.map_or_else(|| "-".to_owned(), |moment| since(moment, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_is_seen_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(["NAME", "READY", "AGE"]);
        table.row(vec!["hello".into(), Cell::toned(Tone::Good, "True"), "5s".into()]);
        table.row(vec!["x".into(), Cell::toned(Tone::Bad, "False"), "".into()]);
        assert_eq!(table.render(Paint(false)), "NAME    READY   AGE\nhello   True    5s\nx       False\n");
        let mut wide = Table::new(["ID", "AGE"]);
        wide.row(vec!["日本".into(), "5s".into()]);
        wide.row(vec!["e\u{301}t".into(), "6s".into()]);
        assert_eq!(wide.render(Paint(false)), "ID     AGE\n日本   5s\ne\u{301}t     6s\n");
        let coloured = table.render(Paint(true));
        assert!(coloured.contains("\x1b[32mTrue\x1b[0m    5s"), "{coloured}");
    }

    #[test]
    fn ages_are_kubectls() {
        let seconds = [
            (5, "5s"),
            (119, "119s"),
            (150, "2m30s"),
            (600, "10m"),
            (10_860, "3h1m"),
            (90_000, "25h"),
            (800_000, "9d"),
        ];
        for (seconds, text) in seconds {
            assert_eq!(age(seconds), text);
        }
    }
}
