//! Answers for people: aligned columns as kubectl prints them, and nothing that could garble a terminal.
use std::fmt::{self, Write as _};

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

/// Text from a job, safe to print: control and direction characters escaped, cut at 80.
pub fn shown(text: &str) -> String {
    let mut safe = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == WIDEST || safe.len() > 4 * WIDEST {
            safe.push('…');
            break;
        }
        if unsafe_to_print(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// The same text whole: what a finding or an error says.
pub fn whole(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if unsafe_to_print(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// JSON with the same care: a character that a terminal obeys is written as its escape.
pub fn json(value: &serde_json::Value) -> String {
    let mut text = escaped(&serde_json::to_string_pretty(value).unwrap_or_default());
    text.push('\n');
    text
}

fn escaped(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        // Line breaks are the layout's: those of strings are escaped already.
        if c != '\n' && unsafe_to_print(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// One line of JSON, with the same care.
pub fn json_line(value: &serde_json::Value) -> String {
    escaped(&value.to_string())
}

/// YAML with the same care: such a character is shown as its escape, which YAML has only in some places.
pub fn yaml(value: &serde_json::Value) -> String {
    fn safe(value: &serde_json::Value) -> serde_json::Value {
        use serde_json::Value;
        let text = |text: &str| {
            text.chars().fold(String::with_capacity(text.len()), |mut safe, c| {
                if c != '\n' && unsafe_to_print(c) {
                    safe.extend(c.escape_default());
                } else {
                    safe.push(c);
                }
                safe
            })
        };
        match value {
            Value::String(plain) => Value::from(text(plain)),
            Value::Array(items) => items.iter().map(safe).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (text(name), safe(value))).collect(),
            other => other.clone(),
        }
    }
    let safe = safe(value);
    // JSON is YAML: whatever the serializer cannot lay out nicely is still a valid document.
    let mut text =
        serde_saphyr::to_string(&jobqueue::config::Plain(&safe)).unwrap_or_else(|_| safe.to_string());
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Control characters, and those that hide text or turn its direction.
fn unsafe_to_print(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
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
    fn nothing_from_a_job_garbles_the_terminal() {
        assert_eq!(shown("a\u{1b}[31mb\r\n\u{9b}\u{202e}é"), "a\\u{1b}[31mb\\r\\n\\u{9b}\\u{202e}é");
        assert_eq!(shown(&"x".repeat(81)), format!("{}…", "x".repeat(80)));
        assert_eq!(shown(&"x".repeat(80)), "x".repeat(80));
        assert!(shown(&"\u{1b}".repeat(1 << 20)).len() < 400, "an escaped text is bounded too");
    }

    #[test]
    fn json_is_escaped_and_still_the_same_value() {
        let value = serde_json::json!({ "raw": "a\u{1b}\u{7f}\u{9b}\u{feff}\n é" });
        let text = json(&value);
        assert!(text.chars().all(|c| c == '\n' || !unsafe_to_print(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn yaml_is_as_safe_and_has_plain_numbers() {
        let text = yaml(&serde_json::json!({ "count": 3, "rate": 0.5, "raw": "a\u{1b}[2J\u{202e}" }));
        assert_eq!(text.lines().next(), Some("count: 3"), "{text}");
        assert!(text.contains("rate: 0.5\n") && text.contains("u{1b}"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !unsafe_to_print(c)), "{text}");
    }

    #[test]
    fn ages_have_one_unit() {
        let of = |seconds: u64| age(seconds * 1000);
        assert_eq!([of(0), of(119), of(120), of(7200), of(172_800)], ["0s", "119s", "2m", "2h", "2d"]);
        assert_eq!(age_since("2026-01-01T00:00:00Z", 1_767_225_605_000), "5s");
        assert_eq!(age_since("yesterday", 5), "-");
    }
}
