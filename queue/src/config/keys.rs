//! Every key there is, read off the schema of [`Config`]: its path, its kind, its meaning. The loader, the
//! masking and the reference all walk this one table, so none of them can forget a key.
use super::duration::{Duration, NotADuration};
use super::secret::{MASK, looks_secret, mask_urls};
use super::{Config, accepted};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::LazyLock;

/// Every key and section.
pub(super) struct Keys {
    /// The keys that have a value, in the order of the reference.
    pub(super) leaves: Vec<Key>,
    /// The paths of sections and what they are about; the first is the root, with an empty path.
    pub(super) sections: Vec<(String, String)>,
}

/// A key that has a value.
pub(super) struct Key {
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) meaning: String,
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Text,
    Secret,
    Url,
    Duration,
    Bool,
    /// A whole number within bounds, both inclusive.
    Integer(i128, i128),
    /// A number above the first and at most the second.
    Number(f64, f64),
    Choice(Vec<String>),
    List,
    TextMap,
    IntegerMap(i128, i128),
    /// Handlers by the type of job: see `Loading::checked_handlers`.
    Handlers,
}

/// The table, built once.
pub(super) fn known() -> &'static Keys {
    static KNOWN: LazyLock<Keys> = LazyLock::new(|| {
        let mut settings = schemars::generate::SchemaSettings::default();
        settings.inline_subschemas = true;
        let schema = settings.into_generator().into_root_schema_for::<Config>();
        let mut keys = Keys { leaves: Vec::new(), sections: Vec::new() };
        keys.walk("", schema.as_value());
        keys
    });
    &KNOWN
}

impl Keys {
    fn walk(&mut self, path: &str, schema: &Value) {
        let meaning = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        if let Some(properties) = schema["properties"].as_object() {
            self.sections.push((path.to_owned(), meaning));
            for (name, schema) in properties {
                self.walk(&join(path, name), schema);
            }
        } else {
            self.leaves.push(Key { path: path.to_owned(), kind: Kind::of(schema), meaning });
        }
    }

    /// The key of this path, also one that is only accepted for compatibility.
    pub(super) fn leaf(&self, path: &str) -> Option<&Key> {
        self.leaves.iter().find(|key| key.path == path).or_else(|| accepted::key(path))
    }

    /// Whether this path is a section.
    pub(super) fn is_section(&self, path: &str) -> bool {
        self.sections.iter().any(|(section, _)| section == path) || accepted::SECTIONS.contains(&path)
    }

    /// The known path that a mistyped one probably means.
    pub(super) fn nearest(&self, path: &str) -> Option<&str> {
        // No key is that long, and comparing takes the product of both lengths.
        if path.len() > 100 {
            return None;
        }
        // Three edits mend a swapped pair and a missing letter; in a short word they would mend anything.
        let limit = (path.len() / 3).min(3);
        let sections = self.sections.iter().map(|(section, _)| section.as_str()).skip(1);
        sections
            .chain(self.leaves.iter().map(|key| key.path.as_str()))
            .map(|known| (edits(path, known), known))
            .filter(|(edits, _)| *edits <= limit)
            .min_by_key(|(edits, _)| *edits)
            .map(|(_, known)| known)
    }
}

impl Kind {
    fn of(schema: &Value) -> Self {
        let choices = |list: &Value, pick: fn(&Value) -> Option<&str>| {
            list.as_array().map(|all| all.iter().filter_map(pick).map(String::from).collect())
        };
        if let Some(all) = choices(&schema["oneOf"], |each| each["const"].as_str())
            .or_else(|| choices(&schema["enum"], Value::as_str))
        {
            return Self::Choice(all);
        }
        match (schema["type"].as_str(), schema["format"].as_str()) {
            (Some("boolean"), _) => Self::Bool,
            (Some("integer"), _) => {
                let (min, max) = bounds(schema);
                Self::Integer(min, max)
            }
            (Some("number"), _) => Self::Number(
                schema["exclusiveMinimum"].as_f64().unwrap_or(f64::NEG_INFINITY),
                schema["maximum"].as_f64().unwrap_or(f64::INFINITY),
            ),
            (Some("array"), _) => Self::List,
            (Some("object"), _) if schema["additionalProperties"]["type"] == "integer" => {
                let (min, max) = bounds(&schema["additionalProperties"]);
                Self::IntegerMap(min, max)
            }
            (Some("object"), Some("handlers")) => Self::Handlers,
            (Some("object"), _) => Self::TextMap,
            (_, Some("duration")) => Self::Duration,
            (_, Some("password")) => Self::Secret,
            (_, Some("uri")) => Self::Url,
            _ => Self::Text,
        }
    }

    /// The value as the type reads it, or the rule that it violates.
    pub(super) fn check(&self, value: Value) -> Result<Value, String> {
        let accepted = match (self, &value) {
            (Self::Text | Self::Secret | Self::Url, Value::String(_))
            | (Self::Bool, Value::Bool(_))
            | (Self::Handlers, Value::Object(_)) => true,
            (Self::Duration, Value::String(text)) => text.parse::<Duration>().is_ok(),
            // The one duration that needs no unit.
            (Self::Duration, Value::Number(number)) if number.as_u64() == Some(0) => {
                return Ok(Duration::ZERO.to_string().into());
            }
            (Self::Integer(min, max), _) => within(&value, *min, *max)?,
            (Self::Number(above, max), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| number > *above && number <= *max)
            }
            (Self::Choice(all), Value::String(text)) => all.contains(text),
            (Self::List, Value::Array(items)) => items.iter().all(Value::is_string),
            (Self::TextMap, Value::Object(entries)) => entries.values().all(Value::is_string),
            (Self::IntegerMap(min, max), Value::Object(entries)) => entries
                .values()
                .try_fold(true, |all, entry| within(entry, *min, *max).map(|each| all && each))?,
            _ => false,
        };
        if accepted { Ok(value) } else { Err(self.rule()) }
    }

    /// What a value of the wrong type is told.
    fn rule(&self) -> String {
        match self {
            Self::Text | Self::Secret | Self::Url => "must be text; put it in quotes".into(),
            Self::Duration => NotADuration.to_string(),
            Self::Bool => "must be true or false".into(),
            Self::Integer(..) => "must be a whole number".into(),
            Self::Number(above, max) => format!("must be a number above {above} and at most {max}"),
            Self::Choice(all) => format!("must be {}", alternatives(all)),
            Self::List => "must be a list of texts".into(),
            Self::TextMap => "must map names to texts".into(),
            Self::IntegerMap(..) => "must map names to whole numbers".into(),
            Self::Handlers => "must map types of jobs to handlers".into(),
        }
    }

    /// A variable's text as a value of this kind; what does not convert stays text, for [`Kind::check`].
    pub(super) fn read(&self, text: &str) -> Value {
        let text = text.trim();
        let converted = match self {
            Self::Integer(..) | Self::IntegerMap(..) => text.parse::<i64>().ok().map(Value::from),
            Self::Number(..) => text.parse::<f64>().ok().map(Value::from),
            Self::Bool => match text.to_ascii_lowercase().as_str() {
                "true" | "1" => Some(true.into()),
                "false" | "0" => Some(false.into()),
                _ => None,
            },
            Self::List => Some(
                text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect(),
            ),
            _ => None,
        };
        converted.unwrap_or_else(|| text.into())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Secret => f.write_str("secret text"),
            Self::Url => f.write_str("URL"),
            Self::Duration => f.write_str("duration"),
            Self::Bool => f.write_str("boolean"),
            // A bound that only says how wide the type is tells an operator nothing.
            Self::Integer(min, max) if *max >= i128::from(u32::MAX) => write!(f, "integer, at least {min}"),
            Self::Integer(min, max) => write!(f, "integer, {min} to {max}"),
            Self::Number(above, max) => write!(f, "number, above {above}, at most {max}"),
            Self::Choice(all) => {
                f.write_str(&alternatives(&all.iter().map(|each| format!("`{each}`")).collect::<Vec<_>>()))
            }
            Self::List => f.write_str("list of texts"),
            Self::TextMap => f.write_str("map of texts"),
            Self::IntegerMap(..) => f.write_str("map of integers"),
            Self::Handlers => f.write_str("map of handlers"),
        }
    }
}

impl Key {
    /// The name of the variable that overrides this key.
    pub(super) fn env(&self) -> String {
        env_name(&self.path)
    }

    /// A value of this key without its secrets.
    pub(super) fn masked(&self, value: &Value) -> Value {
        match (&self.kind, value) {
            (Kind::Secret, Value::String(text)) if text.is_empty() => value.clone(),
            // Whatever type it has: a password written without quotes is a number.
            (Kind::Secret, _) => MASK.into(),
            _ => mask_urls(value),
        }
    }

    /// A value of this key as a problem shows it.
    pub(super) fn shown(&self, value: &Value) -> String {
        show(&self.masked(value))
    }
}

/// The value of an unknown key as a problem shows it: its owner may have mistyped the name of a secret.
pub(super) fn shown_unknown(path: &str, meant: Option<&str>, value: &Value) -> String {
    let secret = meant.and_then(|meant| known().leaf(meant)).is_some_and(|key| key.kind == Kind::Secret);
    let name = path.rsplit('.').next().unwrap_or(path);
    match value {
        Value::Object(_) => show(value),
        _ if secret || looks_secret(name) => MASK.into(),
        _ => show(&mask_urls(value)),
    }
}

/// A value as one short line. Sections and lists may hold anything, secrets too: only their shape is shown.
fn show(value: &Value) -> String {
    const LONGEST: usize = 120;
    match value {
        Value::Object(_) => "{...}".into(),
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => "[...]".into(),
        value => {
            let text = value.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}...", &text[..end]),
                None => text,
            }
        }
    }
}

/// The name of the variable for a path.
pub(super) fn env_name(path: &str) -> String {
    path.to_uppercase().replace(['.', '-'], "_")
}

/// `path.name`, or `name` at the root.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The value at a dotted path.
pub(super) fn get<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |tree, name| tree.get(name))
}

/// The value at a dotted path, to be changed.
pub(super) fn get_mut<'a>(tree: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(tree, |tree, name| tree.get_mut(name))
}

/// Sets the value at a dotted path, with the sections above it.
pub(super) fn set(tree: &mut Value, path: &str, value: Value) {
    let mut node = tree;
    for name in path.split('.') {
        if !node.is_object() {
            *node = Value::Object(Map::new());
        }
        // Indexing an object by a name that is missing inserts it.
        node = &mut node[name];
    }
    *node = value;
}

/// Takes the value at a dotted path out of the tree.
pub(super) fn take(tree: &mut Value, path: &str) -> Option<Value> {
    let (section, name) = path.rsplit_once('.')?;
    get_mut(tree, section)?.as_object_mut()?.shift_remove(name)
}

/// `a, b or c`.
fn alternatives(all: &[String]) -> String {
    match all {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        all => all.concat(),
    }
}

fn within(value: &Value, min: i128, max: i128) -> Result<bool, String> {
    let Value::Number(number) = value else { return Ok(false) };
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match integer {
        None => Ok(false),
        Some(integer) if integer < min => Err(format!("must be at least {min}")),
        Some(integer) if integer > max => Err(format!("must be at most {max}")),
        Some(_) => Ok(true),
    }
}

/// The bounds of an integer: the rule's where there is one, else those of its type.
fn bounds(schema: &Value) -> (i128, i128) {
    let widest = match schema["format"].as_str() {
        Some("uint8") => (0, i128::from(u8::MAX)),
        Some("uint16") => (0, i128::from(u16::MAX)),
        Some("uint32") => (0, i128::from(u32::MAX)),
        Some("uint64") => (0, i128::from(u64::MAX)),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    let bound = |name: &str| schema[name].as_i64().map(i128::from);
    (bound("minimum").unwrap_or(widest.0), bound("maximum").unwrap_or(widest.1))
}

/// How many letters must be inserted, removed or replaced to make one word the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
