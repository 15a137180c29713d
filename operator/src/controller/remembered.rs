//! What need not be asked for again: it is so already, or it was refused not long ago.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Error;

/// What was refused is asked for again after this long, then after twice as long, and so on.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// But at least this often.
const ASK_AGAIN_AT_LEAST: Duration = Duration::from_secs(300);

/// What was there when an object was last found as it should be: its hash and its version.
#[derive(Default)]
pub struct Settled(Mutex<HashMap<String, (String, String)>>);

impl Settled {
    pub(super) fn is(&self, id: &str, hash: &str, version: &str) -> bool {
        let settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.get(id).is_some_and(|(of, at)| of == hash && at == version)
    }

    pub(super) fn note(&self, id: String, hash: &str, version: String) {
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.insert(id, (hash.to_owned(), version));
    }

    /// Forgets the objects of a queue that is gone.
    pub fn forget(&self, namespace: &str, queue: &str) {
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.retain(|id, _| !is_of(id, namespace, queue));
    }
}

/// What the API server has refused, and will again: a queue that waits for somebody to change something must not write
/// meanwhile. What decides may also be a webhook or a quota that nobody tells us of, so it is tried again, ever more rarely.
#[derive(Default)]
pub struct Refused(Mutex<HashMap<String, Refusal>>);

struct Refusal {
    /// What was asked for, and in place of what.
    asked: (String, String),
    reason: &'static str,
    message: String,
    times: u32,
    until: Instant,
}

impl Refused {
    /// Why it is not worth asking for this again now.
    pub(super) fn still(&self, id: &str, asked: &(String, String), now: Instant) -> Option<Error> {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = refused.get(id).filter(|one| one.asked == *asked && now < one.until)?;
        Some(Error::Stalled { reason: refusal.reason, message: refusal.message.clone() })
    }

    /// Notes how it went.
    pub(super) fn note(&self, id: &str, asked: (String, String), error: Option<&Error>, now: Instant) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = refused.remove(id).filter(|before| before.asked == asked);
        if let Some(error) = error.filter(|error| error.is_stalled()) {
            let times = before.map_or(0, |before| before.times + 1).min(10);
            let until = now + ASK_AGAIN.saturating_mul(1 << times).min(ASK_AGAIN_AT_LEAST);
            let (reason, message) = (error.reason(), error.to_string());
            refused.insert(id.to_owned(), Refusal { asked, reason, message, times, until });
        }
    }

    /// Forgets the objects of a queue that is gone.
    pub fn forget(&self, namespace: &str, queue: &str) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|id, _| !is_of(id, namespace, queue));
    }
}

/// Whether an object is one of a queue's, by its [`id`].
fn is_of(id: &str, namespace: &str, queue: &str) -> bool {
    id.contains(&format!("/{namespace}/{queue}-")) || id.ends_with(&format!("/{namespace}/{queue}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_asked_for_ever_more_rarely_and_at_once_when_something_has_changed() {
        let (refused, start) = (Refused::default(), Instant::now());
        let asked = |what: &str, of: &str| (what.to_owned(), of.to_owned());
        let at = |seconds| start + Duration::from_secs(seconds);
        let (mut now, mut tries) = (0, Vec::new());
        while now < 1500 {
            if refused.still("id", &asked("a", "1"), at(now)).is_none() {
                refused.note("id", asked("a", "1"), Some(&Error::refusal(422, "no")), at(now));
                tries.push(now);
            }
            now += 30;
        }
        assert_eq!(tries, [0, 30, 90, 210, 450, 750, 1050, 1350]);
        let told = refused.still("id", &asked("a", "1"), at(1400)).unwrap();
        assert_eq!((told.to_string(), told.reason()), (Error::refusal(422, "no").to_string(), "ApiError"));
        assert!(refused.still("id", &asked("b", "1"), at(1400)).is_none(), "another spec");
        assert!(
            refused.still("id", &asked("a", "2"), at(1400)).is_none(),
            "somebody changed the live object"
        );
        refused.note("id", asked("a", "1"), Some(&Error::refusal(500, "later")), at(1400));
        assert!(refused.still("id", &asked("a", "1"), at(1400)).is_none(), "that was no refusal");
    }
}
