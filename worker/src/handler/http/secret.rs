//! A secret in a file that may be replaced at any time, as Kubernetes does with a mounted Secret.
use bytes::Bytes;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The content of a file, read again when what is known of it is too old.
pub(super) struct Secret {
    path: PathBuf,
    max_age: Duration,
    /// Held while reading: a hundred slots that find it too old read the file once.
    known: Mutex<Option<(Instant, Bytes)>>,
}

impl Secret {
    pub(super) fn new(path: PathBuf, max_age: Duration) -> Self {
        Self { path, max_age, known: Mutex::new(None) }
    }

    /// The secret without white space around it: editors and `kubectl create secret --from-file` leave a
    /// line break at its end.
    pub(super) async fn read(&self) -> Result<Bytes, String> {
        let mut known = self.known.lock().await;
        if let Some((at, secret)) = &*known
            && at.elapsed() < self.max_age
        {
            return Ok(secret.clone());
        }
        let read = match tokio::fs::read(&self.path).await {
            Ok(bytes) if bytes.trim_ascii().is_empty() => Err("is empty".to_owned()),
            Ok(bytes) => Ok(Bytes::copy_from_slice(bytes.trim_ascii())),
            Err(error) => Err(error.to_string()),
        };
        match (read, &mut *known) {
            (Ok(secret), known) => {
                *known = Some((Instant::now(), secret.clone()));
                Ok(secret)
            }
            // A file that is just being replaced is no reason to stop: the old secret may well be valid.
            (Err(error), Some((at, secret))) => {
                tracing::warn!(error, "Kept a secret whose file cannot be read");
                *at = Instant::now();
                Ok(secret.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Makes the next call read the file: the peer did not accept what is known.
    pub(super) async fn forget(&self) {
        *self.known.lock().await = None;
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("path", &self.path).finish_non_exhaustive()
    }
}
