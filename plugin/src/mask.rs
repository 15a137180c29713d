//! Secrets out of what others will read: those that are known word for word, and whatever looks like one. Pure.
//!
//! Too much is masked rather than too little: a report is sent to people who need the shape of things, not their keys.
use serde_json::Value;

/// What stands in the place of a secret.
pub const MASK: &str = "***";
/// A name of a field, variable or setting that contains one of these has a secret as its value.
const TELLING: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "api_key",
    "private",
    "hmac",
    "authorization",
    "cookie",
];
/// So has one that ends with one of these, alone (`auth`) or not (`REDISCLI_AUTH`, `requirepass`).
const TELLING_ENDS: [&str; 3] = ["auth", "pass", "pwd"];
/// Names that contain such a word and hold a name, a path or a flag.
const HARMLESS: [&str; 8] = [
    "imagepullsecrets",
    "automountserviceaccounttoken",
    "serviceaccounttoken",
    // Keys of Redis, of labels and of everybody.
    "ratelimitkey",
    "topologykey",
    "idempotencykey",
    "publickey",
    // Keys of a Secret: what is behind them is the secret.
    "passwordkey",
];
/// What ends like this holds the name of something, or where it is.
const HARMLESS_ENDS: [&str; 6] = ["secretref", "secretname", "secretkeyref", "file", "path", "pattern"];
/// Fields of an object with a telling name (`secret: {secretName: redis}`) that say which secret, not what it is.
const REFERRING: [&str; 12] = [
    "name",
    "namespace",
    "kind",
    "key",
    "path",
    "items",
    "secretName",
    "audience",
    "apiVersion",
    "expirationSeconds",
    "defaultMode",
    "mode",
];
/// Keys of a Secret whose values everybody may know: a user named `default` would mask that word everywhere.
const PUBLIC: [&str; 4] = ["username", "user", "ca.crt", "tls.crt"];
/// Fields that hold the name of what stands beside them as `value`: environment variables, headers.
const NAMING: [&str; 3] = ["name", "key", "header"];
/// Values shorter than this are not looked for everywhere: `1` would mask half of a report.
const SHORTEST: usize = 6;

/// Masks objects and texts.
#[derive(Debug, Default)]
pub struct Mask {
    /// Secrets that are known, the longest first.
    known: Vec<String>,
}

impl Mask {
    /// Remembers the values of a Secret: wherever one of them occurs, it goes.
    pub fn learn(&mut self, secret: &Value) {
        let secret_ones = |part: &str| -> Vec<String> {
            let all = secret[part].as_object().into_iter().flatten();
            let told = all.filter(|(key, _)| !PUBLIC.contains(&key.as_str()));
            told.filter_map(|(_, value)| value.as_str().map(str::to_owned)).collect()
        };
        for value in &secret_ones("data") {
            self.know(value);
            if let Some(plain) = decoded(value) {
                // A file of several lines leaks one line at a time.
                plain.lines().for_each(|line| self.know(line));
                self.know(&plain);
            }
        }
        for value in &secret_ones("stringData") {
            self.know(value);
        }
        self.known.sort_by_key(|value| std::cmp::Reverse(value.len()));
        self.known.dedup();
    }

    fn know(&mut self, value: &str) {
        let value = value.trim();
        if value.len() >= SHORTEST {
            self.known.push(value.to_owned());
        }
    }

    /// An object without its secrets.
    pub fn object(&self, value: &mut Value) {
        if value["kind"] == "Secret" {
            for part in ["data", "stringData"] {
                let values = value.get_mut(part).and_then(Value::as_object_mut);
                for (_, value) in values.into_iter().flatten() {
                    *value = MASK.into();
                }
            }
        }
        self.walk(value, false);
    }

    fn walk(&self, value: &mut Value, secret: bool) {
        match value {
            Value::String(text) if secret && !text.is_empty() => MASK.clone_into(text),
            Value::String(text) => *text = self.text(text),
            Value::Number(_) if secret => *value = MASK.into(),
            Value::Array(entries) => {
                // A command line: the value stands behind its flag. A pair: behind its name.
                let pair = entries.len() == 2 && entries[0].as_str().is_some_and(is_telling);
                let mut awaited = false;
                for entry in entries {
                    let word = entry.as_str().unwrap_or_default();
                    let (is_flag, tells) = (word.starts_with('-'), is_telling_flag(word));
                    self.walk(entry, secret || (awaited && !is_flag));
                    awaited = tells || pair;
                }
            }
            Value::Object(fields) => {
                let named = NAMING
                    .iter()
                    .any(|field| fields.get(*field).and_then(Value::as_str).is_some_and(is_telling));
                for (name, value) in fields.iter_mut() {
                    if name == "kubectl.kubernetes.io/last-applied-configuration" {
                        *value = MASK.into();
                        continue;
                    }
                    let inherited = secret && !REFERRING.contains(&name.as_str());
                    self.walk(value, inherited || is_telling(name) || (named && name == "value"));
                }
            }
            _ => {}
        }
    }

    /// A text without its secrets: known ones, private keys, passwords in URLs, bearer tokens, settings with a telling
    /// name.
    pub fn text(&self, text: &str) -> String {
        let mut text = uncoloured(text);
        for known in &self.known {
            if text.contains(known.as_str()) {
                text = text.replace(known.as_str(), MASK);
            }
        }
        let (mut lines, mut within) = (Vec::new(), Within::Line);
        for line in text.split('\n') {
            let blank = line.trim().is_empty();
            match within {
                Within::Pem if !line.contains("-----END") => continue,
                Within::Block(indent) if blank || indentation(line) > indent => continue,
                Within::Pem => {
                    within = Within::Line;
                    continue;
                }
                Within::List(indent) if blank || is_below(line, indent) => {
                    lines.push(if is_named(line) { self.line(line) } else { entry(line) });
                    continue;
                }
                Within::Block(_) | Within::List(_) | Within::Line => within = Within::Line,
            }
            if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") && !line.contains("-----END") {
                within = Within::Pem;
                lines.push(MASK.to_owned());
                continue;
            }
            if opens_block(line) {
                within = Within::Block(indentation(line));
            } else if opens_list(line) {
                within = Within::List(indentation(line));
            }
            lines.push(self.line(line));
        }
        lines.join("\n")
    }

    fn line(&self, line: &str) -> String {
        // A line of a log that is JSON says by itself what belongs to which name.
        if line.trim_start().starts_with('{')
            && let Ok(mut value) = serde_json::from_str::<Value>(line)
        {
            self.walk(&mut value, false);
            return value.to_string();
        }
        settings(&flags(&schemes(&urls(line))))
    }
}

/// Where in a text the next line is.
#[derive(Debug, Clone, Copy)]
enum Within {
    Line,
    /// A private key, until its last line.
    Pem,
    /// A YAML block below a telling name at this indentation.
    Block(usize),
    /// A list, or a value on lines of its own, below one.
    List(usize),
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// `password: |`: the value is what follows.
fn opens_block(line: &str) -> bool {
    let Some((name, value)) = line.split_once(':') else { return false };
    value.trim().starts_with(['|', '>'])
        && is_telling(name.trim().trim_start_matches("- ").trim_matches(['"', '\'']))
}

/// `passwords:`, `"passwords": [` and `password: Some(`: the values are on the lines below.
fn opens_list(line: &str) -> bool {
    let opened = line.trim_end();
    let head = match opened.strip_suffix(['(', '[']) {
        Some(head) => head.trim_end_matches(is_word),
        None => opened,
    };
    let name = head.trim_end().trim_end_matches('>');
    name.strip_suffix([':', '=']).is_some_and(|name| is_telling(last_word(name)))
}

/// Whether a line belongs to what was opened at this indentation: YAML's entries may stand as far left as their name.
fn is_below(line: &str, indent: usize) -> bool {
    indentation(line) > indent || (indentation(line) == indent && line.trim_start().starts_with("- "))
}

/// Whether a line says of what it is the value.
fn is_named(line: &str) -> bool {
    [": ", "\":", "=>", " = "].iter().any(|sign| line.contains(sign)) || line.trim_end().ends_with(':')
}

/// A line that is nothing but a value.
fn entry(line: &str) -> String {
    let value = line.trim_start_matches([' ', '\t', '-', '"', '\'']);
    let opening = &line[..line.len() - value.len()];
    if value.chars().any(char::is_alphanumeric) { format!("{opening}{MASK}") } else { line.to_owned() }
}

/// A text without the colours of a terminal: they would stand between a name and its value.
fn uncoloured(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(
            part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';')
                .strip_prefix('m')
                .unwrap_or(part),
        );
    }
    plain
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The name that a text ends with, in whatever quotes.
fn last_word(text: &str) -> &str {
    let name = text.trim_end_matches(['"', '\'', '`', ' ', '\\', ']', '*', '-']);
    name.rsplit(|c: char| !is_word(c)).next().unwrap_or_default()
}

fn is_telling(name: &str) -> bool {
    let name = name.to_lowercase().replace(['-', '.'], "_");
    let plain = name.replace('_', "");
    // A `key` alone is one of Redis, or of a Secret.
    let is_key = plain.ends_with("key") && plain != "key";
    !HARMLESS.contains(&plain.as_str())
        && !HARMLESS_ENDS.iter().any(|end| plain.ends_with(end))
        && (is_key
            || TELLING_ENDS.iter().any(|end| plain.ends_with(end))
            || TELLING.iter().any(|word| name.contains(word) || plain.contains(word)))
}

/// `--password`, whose value is the next word.
fn is_telling_flag(word: &str) -> bool {
    word.starts_with('-') && !word.contains(['=', ' ']) && is_telling(word.trim_start_matches('-'))
}

/// `scheme://user:password@host` becomes `scheme://***@host`.
fn urls(line: &str) -> String {
    let mut rest = line;
    let mut masked = String::with_capacity(line.len());
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        masked.push_str(before);
        let word = &after[..after.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(after.len())];
        let authority = &word[..word.find(['/', '?', '#']).unwrap_or(word.len())];
        // Quotes and commas may be part of a password; so may a slash, if what stands before it is no port.
        let is_port = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        let cut = authority.rsplit_once(':').is_some_and(|(_, behind)| !is_port(behind));
        let host = authority.rfind('@').or_else(|| word.rfind('@').filter(|_| cut));
        if let Some(host) = host {
            masked.push_str(MASK);
            rest = &after[host..];
        } else {
            rest = after;
        }
    }
    masked.push_str(rest);
    masked
}

/// `Bearer abc` and `Basic dTpw` lose what is behind the scheme.
fn schemes(line: &str) -> String {
    let (mut masked, mut rest) = (String::with_capacity(line.len()), line);
    loop {
        let lower = rest.to_ascii_lowercase();
        let behind =
            ["bearer ", "basic "].iter().filter_map(|scheme| Some(lower.find(scheme)? + scheme.len())).min();
        let Some(behind) = behind else { break };
        let (before, after) = rest.split_at(behind);
        masked.push_str(before);
        let end =
            after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',')).unwrap_or(after.len());
        // Many things are called basic: a user and a password are not.
        if lower[..behind].ends_with("bearer ")
            || decoded(&after[..end]).is_some_and(|plain| plain.contains(':'))
        {
            masked.push_str(MASK);
            rest = &after[end..];
        } else {
            rest = after;
        }
    }
    masked.push_str(rest);
    masked
}

/// `--password abc` and `"--password","abc"` lose their values.
fn flags(line: &str) -> String {
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("--") {
        let starts = !rest[..at].ends_with(is_word);
        let length = rest[at..].find(|c: char| !is_word(c)).unwrap_or(rest.len() - at);
        let (before, after) = rest.split_at(at + length);
        masked.push_str(before);
        rest = after;
        if !starts || !is_telling_flag(&before[at..]) {
            continue;
        }
        let value = rest.trim_start_matches([' ', '"', '\'', ',', '\\']);
        if value.len() == rest.len() || value.starts_with('-') || value.is_empty() {
            continue;
        }
        let opening = &rest[..rest.len() - value.len()];
        masked.push_str(opening);
        masked.push_str(MASK);
        let end = if opening.ends_with(['"', '\'']) {
            closing(value, opening)
        } else {
            value.find(char::is_whitespace).unwrap_or(value.len())
        };
        rest = &value[end..];
    }
    masked.push_str(rest);
    masked
}

/// `password: abc`, `password=abc`, `"password"=>"abc"`, `("password", "abc")`, `<password>abc<` and `"passwords":["abc"]`
/// lose their values.
fn settings(line: &str) -> String {
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find([':', '=', ',', '>']) {
        let sign = rest[at..].find(|c| !matches!(c, ':' | '=' | '>')).unwrap_or(rest.len() - at).max(1);
        let (before, after) = rest.split_at(at);
        let (sign, behind) = after.split_at(sign);
        masked.push_str(before);
        masked.push_str(sign);
        rest = behind;
        let name = last_word(before);
        let leading = &before[..before.rfind(name).unwrap_or(0)];
        let value = rest.trim_start_matches([' ', '"', '\'', '`', '\\']);
        let opening = &rest[..rest.len() - value.len()];
        let quoted = |text: &str| text.ends_with(['"', '\'']);
        let is_tag = sign == ">" && leading.ends_with('<');
        let separates = match sign {
            // An arrow, or the end of a tag.
            ">" => before.ends_with('-') || is_tag,
            // A list of two, the name the first.
            "," => quoted(before) && quoted(opening),
            _ => true,
        };
        if name.is_empty() || !separates || !is_telling(name) {
            continue;
        }
        // YAML: what stands first on its line has the whole line as its value.
        let is_first = masked.len() == before.len() + sign.len()
            && sign == ":"
            && rest.starts_with(' ')
            && before.trim().trim_start_matches("- ") == name;
        masked.push_str(opening);
        let end = if is_tag {
            value.find('<').unwrap_or(value.len())
        } else if quoted(opening) {
            closing(value, opening)
        } else if is_first {
            value.len()
        } else if is_header(name) && !value.starts_with(['[', '{']) {
            // Of several words, which may have quotes of their own: `Digest username="a", response="b"`.
            leading
                .chars()
                .last()
                .filter(|c| matches!(c, '"' | '\''))
                .and_then(|quote| value.find(quote))
                .unwrap_or(value.len())
        } else {
            bare(value)
        };
        if end > 0 {
            masked.push_str(MASK);
        }
        rest = &value[end..];
    }
    masked.push_str(rest);
    masked
}

/// A header whose value goes on to the end of its line.
fn is_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("authorization") || name.ends_with("cookie")
}

/// Where a value ends that does not begin with a quote: `["abc"]`, `Some("abc")`, `b'abc'`, `abc`.
fn bare(value: &str) -> usize {
    let word = value.find(|c: char| !is_word(c) && !matches!(c, ':' | '.')).unwrap_or(value.len());
    match value[word..].chars().next() {
        Some('[') if word == 0 => enclosed(value),
        // What is in it has names of its own.
        Some('{') if word == 0 => 0,
        Some('(') => word + enclosed(&value[word..]),
        // Prefixes of literals: `b'abc'`, `u"abc"`.
        Some(quote @ ('"' | '\'')) if (1..=2).contains(&word) => {
            let within = &value[word + 1..];
            word + 1 + (closing(within, &quote.to_string()) + 1).min(within.len())
        }
        _ => unquoted(value),
    }
}

/// Where what begins with a bracket ends: behind the one that closes it, if any does.
fn enclosed(value: &str) -> usize {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (at, c) in value.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if quote == Some(c) => quote = None,
            _ if quote.is_some() => {}
            '"' | '\'' => quote = Some(c),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + c.len_utf8();
                }
            }
            _ => {}
        }
    }
    value.len()
}

/// Where a value ends that was opened by such a quote, itself escaped or not.
fn closing(value: &str, opening: &str) -> usize {
    let quote = if opening.ends_with('"') { '"' } else { '\'' };
    let is_escaped = opening.trim_end_matches(quote).ends_with('\\');
    let mut escaped = false;
    for (at, c) in value.char_indices() {
        match c {
            // Of a quoted text within a quoted text: the escape belongs to the closing quote.
            '\\' if is_escaped && value[at + 1..].starts_with(quote) => return at,
            '\\' => escaped = !escaped,
            c if c == quote && !escaped => return at,
            _ => escaped = false,
        }
    }
    value.len()
}

/// Where a value without quotes ends: whatever may be part of it is, unless something new begins behind it.
fn unquoted(value: &str) -> usize {
    let mut characters = value.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let behind = characters.peek().map(|(_, next)| *next);
        let last = behind.is_none_or(|next| {
            next.is_whitespace() || matches!(next, ',' | ';' | '}' | ')' | ']' | '"' | '\'')
        });
        let ends = match c {
            '"' | '}' => last,
            ',' | '\'' => behind.is_none_or(char::is_whitespace),
            // Of a text within a quoted text.
            '\\' => behind.is_some_and(|next| matches!(next, '"' | '\'' | 'n' | 'r' | 't')),
            c => c.is_whitespace(),
        };
        if ends {
            return at;
        }
    }
    value.len()
}

fn decoded(text: &str) -> Option<String> {
    use base64::Engine as _;
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests;
