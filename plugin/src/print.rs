//! Answers on stdout: text for people, JSON, YAML or names for scripts.
use std::io;

pub use jobqueue::terminal::{json as json_text, yaml as yaml_text};
use kube::ResourceExt;
use operator::api::v1alpha1::JobQueue;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{DataFormat, Format};
use crate::error::Error;

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

#[cfg(test)]
mod tests {
    use super::*;

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
