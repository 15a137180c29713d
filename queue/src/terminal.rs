//! Text from jobs, logs and other people, safe to print: nothing in it makes a terminal do something, hides a part of it or
//! turns its direction. All that our programs print of what they were given goes through here.
use std::fmt::Write as _;

use serde_json::Value;

use crate::config::Plain;

/// Control characters, and those that hide text or turn its direction.
pub fn unsafe_to_print(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A text with such characters escaped, cut after this many; what is escaped may be longer, but not by much.
pub fn shown(text: &str, widest: usize) -> String {
    let mut safe = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == widest || safe.len() > widest.saturating_mul(4) {
            safe.push('…');
            break;
        }
        push(&mut safe, c);
    }
    safe
}

/// The same, not cut: what a finding or an error says.
pub fn whole(text: &str) -> String {
    shown(text, usize::MAX)
}

/// A number of things: `1 job`, `2 jobs`.
pub fn counted(number: impl Into<i128>, thing: &str) -> String {
    let number = number.into();
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn push(safe: &mut String, c: char) {
    if unsafe_to_print(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
}

/// JSON on several lines, with the same care: such a character is written as JSON's own escape.
pub fn json(value: &Value) -> String {
    let mut text = escaped(&serde_json::to_string_pretty(value).unwrap_or_default());
    text.push('\n');
    text
}

/// JSON on one line, with the same care.
pub fn json_line(value: &Value) -> String {
    escaped(&value.to_string())
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

/// YAML with the same care: such a character is shown as its escape, which YAML has only in some places.
pub fn yaml(value: &Value) -> String {
    fn safe(value: &Value) -> Value {
        let text = |text: &str| {
            text.chars().fold(String::with_capacity(text.len()), |mut safe, c| {
                if c == '\n' {
                    safe.push(c);
                } else {
                    push(&mut safe, c);
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
    // JSON is YAML: whatever cannot be laid out nicely can still be read.
    let mut text = serde_saphyr::to_string(&Plain(&safe)).unwrap_or_else(|_| json(&safe));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert_eq!(shown("a\u{1b}[31mb\r\n\u{9b}\u{202e}é", 80), "a\\u{1b}[31mb\\r\\n\\u{9b}\\u{202e}é");
        assert_eq!(shown("abcdef", 3), "abc…");
        assert_eq!(shown(&"x".repeat(80), 80), "x".repeat(80));
        assert!(shown(&"\u{1b}".repeat(1 << 20), 80).len() < 400, "an escaped text is bounded too");
        assert_eq!(whole(&"\u{1b}".repeat(1000)).len(), 6000);
    }

    #[test]
    fn json_is_escaped_and_still_the_same_value() {
        let value = json!({ "raw": "a\u{1b}\u{7f}\u{9b}\u{feff}\n é\u{202e}" });
        for text in [super::json(&value), json_line(&value)] {
            assert!(text.chars().all(|c| c == '\n' || !unsafe_to_print(c)), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }

    #[test]
    fn yaml_is_as_safe_and_has_plain_numbers() {
        let text = yaml(&json!({ "count": 3, "rate": 0.5, "raw\u{200b}": "a\u{1b}[2J\u{202e}\nb" }));
        assert_eq!(text.lines().next(), Some("count: 3"), "{text}");
        assert!(text.contains("rate: 0.5\n") && text.contains("u{1b}"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !unsafe_to_print(c)), "{text}");
    }
}
