//! Who may ask: bearer tokens of a file that may be replaced at any time, as Kubernetes does with a mounted Secret.
//! Several may be valid at once, so that they can be replaced one after the other.
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};

/// How old what is known of the file may get.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The accepted tokens.
pub(super) struct Tokens {
    path: PathBuf,
    known: Mutex<(Instant, Vec<[u8; 32]>)>,
}

/// The tokens cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("api.token_file = {}: {reason}; it must hold a bearer token on each line", .path.display())]
pub(super) struct Unusable {
    path: PathBuf,
    reason: String,
}

impl Tokens {
    /// Reads the file for the first time: without tokens nobody could ask anything.
    pub(super) fn open(path: &str) -> Result<Self, Unusable> {
        let path = PathBuf::from(path);
        let reason = match read(&path) {
            Ok(tokens) if tokens.is_empty() => "holds no token".to_owned(),
            Ok(tokens) => return Ok(Self { path, known: Mutex::new((Instant::now(), tokens)) }),
            Err(error) => error.to_string(),
        };
        Err(Unusable { path, reason })
    }

    /// Whether these headers bring an accepted token.
    pub(super) fn accept(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        given.is_some_and(|given| is_one_of(given, &self.current()))
    }

    fn current(&self) -> Vec<[u8; 32]> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0.elapsed() >= MAX_AGE {
            known.0 = Instant::now();
            match read(&self.path) {
                Ok(tokens) => known.1 = tokens,
                // A file that is just being replaced locks nobody out.
                Err(error) => tracing::warn!(%error, "Kept the tokens whose file cannot be read"),
            }
        }
        known.1.clone()
    }
}

/// Digests of all tokens: of one length, whatever the tokens are.
fn read(path: &std::path::Path) -> std::io::Result<Vec<[u8; 32]>> {
    let text = std::fs::read(path)?;
    let tokens = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty());
    Ok(tokens.map(|token| Sha256::digest(token).into()).collect())
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// Every token is compared, and every byte: how long it takes says nothing about them.
fn is_one_of(given: &[u8], accepted: &[[u8; 32]]) -> bool {
    let given: [u8; 32] = Sha256::digest(given).into();
    let differs = |token: &[u8; 32]| token.iter().zip(given).fold(0u8, |all, (a, b)| all | (a ^ b));
    accepted.iter().fold(false, |found, token| found | (std::hint::black_box(differs(token)) == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(tokens: &Tokens, value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        tokens.accept(&headers)
    }

    #[test]
    fn each_line_is_a_token_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, "one\r\n\n two \n").unwrap();
        let tokens = Tokens::open(path.to_str().unwrap()).unwrap();
        for good in ["Bearer one", "bearer two", "BEARER  one"] {
            assert!(asked(&tokens, good), "{good}");
        }
        for bad in ["Bearer", "Bearer ", "Bearer three", "Basic one", "one", "Bearer one two", "Bearer on"] {
            assert!(!asked(&tokens, bad), "{bad}");
        }
        assert!(!tokens.accept(&HeaderMap::new()));
    }

    #[test]
    fn a_file_without_tokens_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        assert!(Tokens::open(path.to_str().unwrap()).is_err());
        std::fs::write(&path, " \n\n").unwrap();
        let Err(refusal) = Tokens::open(path.to_str().unwrap()) else { panic!("there is no token") };
        assert!(refusal.to_string().contains("holds no token"), "{refusal}");
    }
}
