//! Answers on stdout: text for people, JSON, YAML or names for scripts.
use std::fmt::Write as _;
use std::io;

use kube::ResourceExt;
use operator::api::v1alpha1::JobQueue;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{DataFormat, Format};
use crate::error::Error;
use crate::table::unsafe_to_print;

/// Prints text. Whoever closed the pipe (`| head`) has seen enough.
pub fn text(text: &str) -> Result<(), Error> {
    more(text).map(drop)
}

/// Prints part of what has no end; `false` when nobody reads any more.
pub fn more(text: &str) -> Result<bool, Error> {
    written(&mut io::stdout().lock(), text)
}

fn written(out: &mut impl io::Write, text: &str) -> Result<bool, Error> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::Failed(format!("cannot write the answer: {error}"))),
    }
}

/// Prints data in a format for scripts.
pub fn data(format: DataFormat, data: &impl Serialize) -> Result<(), Error> {
    text(&data_text(format, data))
}

/// Data in a format for scripts.
pub fn data_text(format: DataFormat, data: &impl Serialize) -> String {
    let value = serde_json::to_value(data).unwrap_or_default();
    match format {
        DataFormat::Json => json_text(&value),
        DataFormat::Yaml => yaml_text(&value),
    }
}

/// Prints queues as the objects they are, as kubectl does.
pub fn objects(format: Format, queues: &[JobQueue], one: bool) -> Result<(), Error> {
    let object = |queue: &JobQueue| {
        let mut value = serde_json::to_value(queue).unwrap_or_default();
        // As kubectl: nobody wants to read them.
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        value
    };
    let whole = || match (one, queues) {
        (true, [queue]) => object(queue),
        _ => {
            json!({ "apiVersion": "v1", "kind": "List", "items": queues.iter().map(object).collect::<Vec<_>>() })
        }
    };
    text(&match format {
        Format::Json => json_text(&whole()),
        Format::Yaml => yaml_text(&whole()),
        Format::Name | Format::Wide => names(queues.iter().map(ResourceExt::name_any)),
    })
}

/// Names as kubectl prints them with `-o name`.
pub fn names(names: impl Iterator<Item = String>) -> String {
    names.fold(String::new(), |text, name| format!("{text}jobqueue.jobqueue.dev/{name}\n"))
}

/// JSON, with the characters that a terminal obeys escaped.
pub fn json_text(value: &Value) -> String {
    let pretty = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut safe = String::with_capacity(pretty.len() + 1);
    for c in pretty.chars() {
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
    safe.push('\n');
    safe
}

/// YAML with the same care: such a character is shown as its escape, which YAML has only in some places.
pub fn yaml_text(value: &Value) -> String {
    fn safe(value: &Value) -> Value {
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
    // JSON is YAML: if it cannot be laid out nicely it still can be read.
    serde_saphyr::to_string(&jobqueue::config::Plain(&safe)).unwrap_or_else(|_| json_text(&safe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_an_answer_makes_a_terminal_do_something() {
        assert_eq!(json_text(&json!({ "a": "\u{202e}x\u{1b}" })), "{\n  \"a\": \"\\u202ex\\u001b\"\n}\n");
        let yaml = yaml_text(&json!({ "a\u{200b}": "\u{202e}x\u{1b}\nb", "count": 3 }));
        assert!(yaml.contains("u{202e}") && yaml.contains("count: 3"), "{yaml}");
        assert!(yaml.chars().all(|c| c == '\n' || !unsafe_to_print(c)), "{yaml}");
    }

    #[test]
    fn a_closed_pipe_is_noticed_and_is_no_failure() {
        struct Closed;
        impl io::Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(matches!(written(&mut Closed, "x"), Ok(false)));
        assert!(matches!(written(&mut Vec::new(), "x"), Ok(true)));
    }

    #[test]
    fn names_are_what_kubectl_takes() {
        assert_eq!(
            names(["a".to_owned(), "b".to_owned()].into_iter()),
            "jobqueue.jobqueue.dev/a\njobqueue.jobqueue.dev/b\n"
        );
    }
}
