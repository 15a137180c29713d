//! What is wrong with a configuration, and what is merely worth knowing about it.
use std::fmt;

/// One thing that is wrong: the key, its value (secrets masked) and the rule it violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The dotted path, such as `worker.count`.
    pub key: String,
    /// The value as it would be written, masked when it is a secret.
    pub value: String,
    /// What it must be.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An unknown key is whatever stood in the file; it must not end the line.
        write!(f, "{} = {}: {}", self.key.escape_debug(), self.value, self.rule)
    }
}

/// Everything that is wrong with a configuration: one line a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Something about a valid configuration that its owner should know: an ignored key, a replaced name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The dotted path or the name of the variable.
    pub key: String,
    /// What about it.
    pub text: String,
}

impl Note {
    pub(super) fn new(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self { key: key.into(), text: text.into() }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.text)
    }
}
