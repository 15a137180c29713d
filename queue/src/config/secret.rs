//! Text that must not be shown: passwords, and URLs that may carry one.
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// What stands in place of a secret.
pub(super) const MASK: &str = "***";

/// Text that is never shown. It serializes as it is, because the operator renders what the worker reads.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself; do not log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { MASK })
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "password" })
    }
}

/// A URL, shown without its password.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Url(String);

impl Url {
    /// The whole text, password included; do not log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What stands before `://`, in lower case.
    pub fn scheme(&self) -> Option<String> {
        self.0.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase())
    }
}

impl From<String> for Url {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_url(&self.0))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&mask_url(&self.0), f)
    }
}

impl JsonSchema for Url {
    fn schema_name() -> Cow<'static, str> {
        "Url".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "uri" })
    }
}

/// A URL without its password: `redis://user:***@host`. Everything between the scheme and the last `@` is
/// taken for credentials, because a password that was not escaped may itself contain `/` or `@`; unix
/// socket URLs carry theirs in the query.
pub(super) fn mask_url(url: &str) -> Cow<'_, str> {
    let mut masked = Cow::Borrowed(url);
    if let Some((scheme, rest)) = url.split_once("://")
        && let Some((credentials, host)) = rest.rsplit_once('@')
        && !credentials.is_empty()
    {
        masked = match credentials.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:{MASK}@{host}"),
            None => format!("{scheme}://{MASK}@{host}"),
        }
        .into();
    }
    if let Some((before, query)) = masked.split_once('?')
        && query.contains('=')
    {
        let query: Vec<String> = query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((name, _)) if looks_secret(name) => format!("{name}={MASK}"),
                _ => pair.to_owned(),
            })
            .collect();
        masked = format!("{before}?{}", query.join("&")).into();
    }
    masked
}

/// A value whose texts, also those of a list, are shown without the passwords of URLs.
pub(super) fn mask_urls(value: &Value) -> Value {
    match value {
        Value::String(text) => mask_url(text).into(),
        Value::Array(items) => items.iter().map(mask_urls).collect(),
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| (name.clone(), mask_urls(value))).collect()
        }
        other => other.clone(),
    }
}

/// Whether a name suggests that its value is a secret; used only where the key itself is unknown.
pub(super) fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token", "cred", "auth", "hmac"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::mask_url;

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, masked) in [
            ("redis://localhost:6379/0", "redis://localhost:6379/0"),
            ("redis://user:pw@host", "redis://user:***@host"),
            ("redis://:p/w@x@host:1/2", "redis://:***@host:1/2"),
            ("redis://token@host", "redis://***@host"),
            ("unix:///run/redis.sock?db=1&pass=pw", "unix:///run/redis.sock?db=1&pass=***"),
            ("", ""),
        ] {
            assert_eq!(mask_url(url), masked);
        }
    }
}
