//! Which dead letters are meant.
use std::collections::HashSet;

use jobqueue::outcome::Reason;
use jobqueue::protocol::sidekiq::class_of;

use super::super::AdminError;
use super::super::table::shown;
use super::letter::{Label, Letter};
use crate::cli::Selectors;

/// So much of a letter is searched for a text, and no pattern is longer than this.
const SEARCHED: usize = 64 * 1024;
const PATTERN_MAX: usize = 1024;

/// All that a letter must be.
#[derive(Debug, Default)]
pub struct Selection {
    ids: HashSet<String>,
    /// Any of these: a reason has another word in Sidekiq's dialect.
    reasons: Vec<String>,
    older_than_ms: Option<u64>,
    pattern: Option<Pattern>,
    found: HashSet<String>,
}

#[derive(Debug)]
enum Pattern {
    Text(String),
    Glob(Vec<u8>),
}

impl Selection {
    pub fn new(selectors: &Selectors, sidekiq: bool) -> Result<Self, AdminError> {
        let reasons = selectors.reason.as_deref().map(|reason| reasons(reason, sidekiq)).transpose()?;
        let pattern = selectors.r#match.as_deref().map(pattern).transpose()?;
        let older_than_ms =
            selectors.older_than.map(|age| u64::try_from(age.get().as_millis()).unwrap_or(u64::MAX));
        Ok(Self {
            ids: selectors.id.iter().cloned().collect(),
            reasons: reasons.unwrap_or_default(),
            older_than_ms,
            pattern,
            found: HashSet::new(),
        })
    }

    /// Whether this letter is meant.
    pub fn matches(&mut self, letter: &Letter, now_ms: u64) -> bool {
        if self.is_of_labels() {
            let label = Label::read(&letter.raw);
            if !self.ids.is_empty() {
                if !self.ids.contains(&label.id) {
                    return false;
                }
                self.found.insert(label.id.clone());
            }
            if !self.reasons.is_empty() && !self.reasons.contains(&label.reason) {
                return false;
            }
            let age_ms = letter.died_ms(&label).map(|died| now_ms.saturating_sub(died));
            if self.older_than_ms.is_some_and(|oldest| age_ms.is_none_or(|age| age <= oldest)) {
                return false;
            }
        }
        self.pattern.as_ref().is_none_or(|pattern| pattern.matches(&letter.raw))
    }

    /// Of the ids that were asked for, those that no letter has had.
    pub fn not_found(&self, asked: &[String]) -> Vec<String> {
        asked.iter().filter(|id| !self.found.contains(*id)).cloned().collect()
    }

    /// Reading a letter costs more than moving it.
    fn is_of_labels(&self) -> bool {
        !self.ids.is_empty() || !self.reasons.is_empty() || self.older_than_ms.is_some()
    }
}

fn reasons(wanted: &str, sidekiq: bool) -> Result<Vec<String>, AdminError> {
    let known = Reason::ALL.iter().find(|reason| reason.as_str() == wanted);
    match (known, sidekiq) {
        (Some(reason), true) => Ok(vec![wanted.to_owned(), class_of(*reason).to_owned()]),
        (None, true) | (Some(_), false) => Ok(vec![wanted.to_owned()]),
        (None, false) => {
            let all: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
            let (wanted, all) = (shown(wanted), all.join(", "));
            Err(AdminError::Usage(format!("--reason {wanted}: there is no such reason, only {all}")))
        }
    }
}

fn pattern(text: &str) -> Result<Pattern, AdminError> {
    if text.is_empty() || text.len() > PATTERN_MAX {
        let length = text.len();
        return Err(AdminError::Usage(format!("--match: must have 1 to {PATTERN_MAX} bytes, has {length}")));
    }
    Ok(if text.contains(['*', '?']) {
        Pattern::Glob(text.as_bytes().to_vec())
    } else {
        Pattern::Text(text.to_owned())
    })
}

impl Pattern {
    fn matches(&self, raw: &[u8]) -> bool {
        let raw = &raw[..raw.len().min(SEARCHED)];
        match self {
            Self::Text(text) => String::from_utf8_lossy(raw).contains(text.as_str()),
            Self::Glob(glob) => is_like(glob, raw),
        }
    }
}

/// `*` is any bytes, `?` one, everything else itself: brackets and braces are all over JSON. On a mismatch only the
/// last star takes one byte more, so the time is bounded by the product of both lengths.
fn is_like(glob: &[u8], raw: &[u8]) -> bool {
    let (mut at, mut of, mut star) = (0, 0, None);
    while at < raw.len() {
        match glob.get(of) {
            Some(b'*') => {
                star = Some((of + 1, at));
                of += 1;
            }
            Some(byte) if *byte == b'?' || *byte == raw[at] => (at, of) = (at + 1, of + 1),
            _ => match star {
                Some((behind, taken)) => {
                    star = Some((behind, taken + 1));
                    (of, at) = (behind, taken + 1);
                }
                None => return false,
            },
        }
    }
    glob[of..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn of(raw: &str) -> Letter {
        Letter::of(Bytes::from(raw.to_owned()), None)
    }

    fn selection(selectors: &Selectors) -> Selection {
        Selection::new(selectors, false).unwrap()
    }

    #[test]
    fn a_selection_wants_the_id_and_the_reason() {
        let mut wanted = selection(&Selectors {
            id: vec!["a".into(), "z".into()],
            reason: Some("oom".into()),
            ..Selectors::default()
        });
        assert!(wanted.matches(&of(r#"{"id":"a","reason":"oom"}"#), 0));
        assert!(!wanted.matches(&of(r#"{"id":"a","reason":"panic"}"#), 0));
        assert!(!wanted.matches(&of(r#"{"id":"b","reason":"oom"}"#), 0));
        assert!(!wanted.matches(&of("junk"), 0));
        assert_eq!(wanted.not_found(&["a".into(), "z".into()]), ["z"]);
        assert!(Selection::default().matches(&of("junk"), 0), "no selector means all, whatever they are");
    }

    #[test]
    fn a_letter_without_a_time_is_not_old() {
        let mut old = selection(&Selectors {
            older_than: Some(jobqueue::config::Duration::from_secs(60)),
            ..Selectors::default()
        });
        let dead = of(r#"{"id":"a","failed_at":"1970-01-01T00:00:00Z"}"#);
        assert!(old.matches(&dead, 60_001));
        assert!(!old.matches(&dead, 60_000));
        assert!(!old.matches(&of(r#"{"id":"a"}"#), 60_001));
    }

    #[test]
    fn a_text_is_contained_and_a_glob_is_about_the_whole_letter() {
        let is = |pattern_text: &str, raw: &str| pattern(pattern_text).unwrap().matches(raw.as_bytes());
        assert!(is("boom[1", r#"{"error":"boom[1]"}"#));
        assert!(!is("boom2", r#"{"error":"boom"}"#));
        assert!(is(r#"*"error":"b??m"*"#, r#"{"id":1,"error":"boom"}"#));
        assert!(!is(r#""error"*"#, r#"{"error":"boom"}"#), "it begins with a brace");
        for (glob, raw, matches) in [
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b", "aXbX", false),
            ("**", "x", true),
        ] {
            assert_eq!(is_like(glob.as_bytes(), raw.as_bytes()), matches, "{glob} {raw}");
        }
    }

    #[test]
    fn only_so_much_of_a_letter_is_searched() {
        let raw = format!("{}needle", "x".repeat(SEARCHED));
        assert!(!pattern("needle").unwrap().matches(raw.as_bytes()));
        assert!(pattern(&"x".repeat(PATTERN_MAX + 1)).is_err() && pattern("").is_err());
    }

    #[test]
    fn a_reason_that_does_not_exist_is_told_which_do() {
        let said = reasons("weather", false).unwrap_err().to_string();
        assert!(said.starts_with("--reason weather: there is no such reason, only handler, "), "{said}");
        assert_eq!(reasons("ArgumentError", true).unwrap(), ["ArgumentError"]);
        assert_eq!(reasons("timeout", true).unwrap(), ["timeout", "Jobqueue::Timeout"]);
    }
}
