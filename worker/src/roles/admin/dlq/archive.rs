//! Where deleted letters are kept: NDJSON, in a file or on stdout. A letter is in it before it is deleted.
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use jobqueue::job::Data;
use jobqueue::protocol::record::Record;

use super::super::AdminError;
use super::super::interrupt::Reader;
use super::letter::{Letter, own_json};
use crate::shutdown::Shutdown;

/// An archive that is being written.
pub enum Archive {
    File {
        file: File,
        path: PathBuf,
    },
    /// `reader`: it says what it has stored.
    Stdout {
        reader: Option<Reader>,
        stop: Shutdown,
        lines: u64,
    },
}

impl Archive {
    /// A new file: nobody's archive is overwritten.
    pub fn create(path: &Path) -> Result<Self, AdminError> {
        let file = File::create_new(path).map_err(|error| {
            AdminError::Usage(format!(
                "--archive {}: cannot create it, nothing was deleted: {error}; name another file, or - for stdout",
                path.display()
            ))
        })?;
        Ok(Self::File { file, path: path.to_owned() })
    }

    pub fn stdout(reader: Option<Reader>, stop: Shutdown) -> Result<Self, AdminError> {
        if io::stdout().is_terminal() {
            return Err(AdminError::Usage(
                "dlq purge writes the letters to stdout before it deletes them, and that is a terminal, nothing was \
                 deleted: add --archive FILE, or --no-archive to keep none"
                    .into(),
            ));
        }
        Ok(Self::Stdout { reader, stop, lines: 0 })
    }

    /// Keeps these letters: when this has answered `true` they are where they should be.
    pub async fn keep(&mut self, letters: impl Iterator<Item = &Letter>) -> Result<bool, AdminError> {
        let (mut page, mut count) = (Vec::new(), 0);
        for letter in letters {
            line(&mut page, &whole(letter));
            count += 1;
        }
        if count == 0 {
            return Ok(true);
        }
        match self {
            Self::File { file, path } => {
                let written = file.write_all(&page).and_then(|()| file.sync_data());
                written.map_err(|error| {
                    AdminError::Failed(format!(
                        "cannot write the archive {}: {error}; what is not in it was not deleted, make room and run \
                         this again with another file",
                        path.display()
                    ))
                })?;
                Ok(true)
            }
            Self::Stdout { reader, stop, lines } => {
                let mut out = io::stdout().lock();
                let written = out.write_all(&page).and_then(|()| out.flush());
                drop(out);
                written.map_err(|error| {
                    AdminError::Failed(format!(
                        "cannot write the archive to stdout: {error}; what is not in it was not deleted"
                    ))
                })?;
                *lines += count;
                let Some(reader) = reader else { return Ok(true) };
                Ok(tokio::select! {
                    acknowledged = reader.has_acknowledged(*lines) => acknowledged,
                    () = stop.requested() => false,
                })
            }
        }
    }
}

/// A letter, and the job that it only names: gone with its time to live, it could not be made again of the name.
fn whole(letter: &Letter) -> Bytes {
    let (Some(Data::Is(job)), Some(mut record)) = (&letter.named, Record::read(&letter.raw)) else {
        return letter.raw.clone();
    };
    match std::str::from_utf8(job) {
        Ok(text) if own_json(job).get("raw").is_none() => record.set_json("job", text.to_owned()),
        _ => record.set("job", &own_json(job)),
    }
    record.write()
}

/// A letter as it stands in Redis, if that is one line of JSON; what is not is made so.
fn line(page: &mut Vec<u8>, raw: &[u8]) {
    let value = own_json(raw);
    if raw.contains(&b'\n') || raw.contains(&b'\r') || value.get("raw").is_some() {
        page.extend(value.to_string().as_bytes());
    } else {
        page.extend(raw);
    }
    page.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(raw: &[u8]) -> String {
        let mut page = Vec::new();
        line(&mut page, raw);
        String::from_utf8(page).unwrap()
    }

    #[test]
    fn a_letter_that_only_names_a_job_is_kept_with_it() {
        let letter = |raw: &'static [u8], job: Option<Data>| {
            whole(&Letter { named: job, ..Letter::of(Bytes::from_static(raw), None) })
        };
        let is = |job: &'static [u8]| Some(Data::Is(Bytes::from_static(job)));
        let name = br#"{"id":"a","reason":"killed"}"#;
        assert_eq!(
            letter(name, is(br#"{"id":"a","n":1.50}"#)),
            r#"{"id":"a","reason":"killed","job":{"id":"a","n":1.50}}"#
        );
        assert_eq!(of(&letter(name, is(b"{\"n\":\n1}"))).lines().count(), 1);
        assert_eq!(letter(name, is(b"x")), r#"{"id":"a","reason":"killed","job":{"raw":"x"}}"#);
        for gone in [None, Some(Data::Missing), Some(Data::TooLarge(1))] {
            assert_eq!(letter(name, gone), &name[..]);
        }
        assert_eq!(letter(b"x", is(b"{}")), "x");
    }

    #[test]
    fn a_letter_is_one_line_whatever_it_is() {
        assert_eq!(of(br#"{ "id":"a", "n":1.50}"#), "{ \"id\":\"a\", \"n\":1.50}\n", "as it stands in Redis");
        assert_eq!(of(b"{\"id\":\n\"a\"}"), "{\"id\":\"a\"}\n");
        assert_eq!(of(b"two\nlines"), "{\"raw\":\"two\\nlines\"}\n");
        assert_eq!(of(b"\xff"), "{\"raw_encoding\":\"base64\",\"raw\":\"/w==\"}\n");
    }
}
