//! Answers on their way: bytes that clients have not taken yet, over all connections. A client can ask for far more than
//! it reads, a hundred times at once over HTTP/2: what it leaves lying is bounded for all of them together, and for a time
//! only. The kernel ends a connection that takes nothing; one that takes a byte now and then is ended here.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::problem::{Code, Problem};

/// Bytes of answers in memory at once, beside the one largest body.
const ANSWERS: usize = 64 << 20;
/// Smaller answers are not counted: a request costs that much anyway, and whoever asks for health must hear of it.
const SMALL: usize = 1024;

/// How much room there is for answers.
#[derive(Debug)]
pub(super) struct Answers {
    left: Arc<Semaphore>,
    most: usize,
}

/// Room for an answer that is still to come; none for a small one.
#[derive(Debug, Clone)]
pub(super) struct Room(Option<Arc<OwnedSemaphorePermit>>);

/// The answers of one connection that were not taken yet, by when they were given.
#[derive(Debug, Clone, Default)]
pub(super) struct Untaken(watch::Sender<BTreeSet<(Instant, u64)>>);

/// The bytes of an answer; its share of the room is given back with the last of them.
struct Counted {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
    _given: Option<Given>,
}

/// Stands among the untaken ones as long as it lives.
struct Given {
    at: (Instant, u64),
    among: Untaken,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Untaken {
    fn give(&self) -> Given {
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let at = (Instant::now(), GIVEN.fetch_add(1, Ordering::Relaxed));
        self.0.send_modify(|given| _ = given.insert(at));
        Given { at, among: self.clone() }
    }

    /// Returns when one of them was not taken in this time.
    pub(super) async fn overdue(&self, time: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let oldest = changes.borrow_and_update().first().copied();
            let by = oldest.and_then(|(given, _)| given.checked_add(time));
            let Some(by) = by else {
                // The sender is here.
                let _ = changes.changed().await;
                continue;
            };
            if timeout_at(by, changes.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.among.0.send_modify(|given| _ = given.remove(&self.at));
    }
}

impl Answers {
    pub(super) fn new(body_limit: usize) -> Self {
        let most = ANSWERS.saturating_add(body_limit).min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self { left: Arc::new(Semaphore::new(most)), most }
    }

    /// Room for the answer to what is about to change something: refused before it is done, and not afterwards.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Room, Problem> {
        if bytes <= SMALL {
            return Ok(Room(None));
        }
        Ok(Room(Some(Arc::new(self.take(self.share(bytes)).ok_or_else(full)?))))
    }

    /// One that is larger than all of the room takes all of it.
    fn share(&self, bytes: usize) -> usize {
        bytes.min(self.most)
    }

    fn take(&self, share: usize) -> Option<OwnedSemaphorePermit> {
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        Arc::clone(&self.left).try_acquire_many_owned(share).ok()
    }

    /// Counts an answer until the last of its bytes has left; one that does not fit is refused instead.
    pub(super) async fn count(&self, mut response: Response, untaken: Option<&Untaken>) -> Response {
        let room = response.extensions_mut().remove::<Room>();
        if response.body().size_hint().exact().is_some_and(|size| size <= SMALL as u64) {
            return response;
        }
        let (parts, body) = response.into_parts();
        // All of them are in memory already: nothing is waited for here.
        let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else { return full().into_response() };
        let share = self.share(bytes.len());
        let counted = match room.and_then(|Room(room)| Arc::into_inner(room?)) {
            // What is too much goes back.
            Some(mut room) if room.num_permits() >= share => room.split(share),
            Some(mut room) => self.take(share - room.num_permits()).map(|more| {
                room.merge(more);
                room
            }),
            None => self.take(share),
        };
        let Some(share) = counted else { return full().into_response() };
        let counted = Counted { bytes, _share: share, _given: untaken.map(Untaken::give) };
        Response::from_parts(parts, Body::from(Bytes::from_owner(counted)))
    }
}

fn full() -> Problem {
    Problem::new(Code::Overloaded, "answers that nobody has read yet fill the memory; try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    fn sized(bytes: usize) -> Response {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn what_nobody_reads_is_bounded_and_given_back_with_its_last_byte() {
        let answers = Answers::new(1 << 20);
        let large = async || answers.count(sized(40 << 20), None).await;
        let first = large().await;
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(large().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answers.count(sized(2), None).await.status(), StatusCode::OK);
        let bytes = axum::body::to_bytes(first.into_body(), usize::MAX).await.unwrap();
        let end = bytes.slice(bytes.len() - 1..);
        drop(bytes);
        assert_eq!(large().await.status(), StatusCode::SERVICE_UNAVAILABLE, "one byte is left");
        drop(end);
        assert_eq!(large().await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn the_largest_answer_of_all_takes_all_of_the_room_and_small_ones_need_none() {
        let answers = Answers::new(1 << 20);
        let all = answers.count(sized(80 << 20), None).await;
        assert_eq!(all.status(), StatusCode::OK);
        assert_eq!(answers.reserve(SMALL + 1).unwrap_err().code, Code::Overloaded);
        answers.reserve(SMALL).unwrap();
        drop(all);
        answers.reserve(SMALL + 1).unwrap();
    }

    #[tokio::test]
    async fn room_that_is_reserved_is_there_whoever_else_answers_meanwhile() {
        let answers = Answers::new(1 << 20);
        let most = 65 << 20;
        let room = answers.reserve(10 << 20).unwrap();
        assert_eq!(answers.reserve(most).unwrap_err().code, Code::Overloaded, "it is taken from then on");
        let others = answers.count(sized(most - (10 << 20)), None).await;
        assert_eq!(others.status(), StatusCode::OK);
        let mut created = sized(9 << 20);
        created.extensions_mut().insert(room);
        let created = answers.count(created, None).await;
        assert_eq!(created.status(), StatusCode::OK);
        answers.reserve(1 << 20).unwrap();
        assert_eq!(answers.reserve(2 << 20).unwrap_err().code, Code::Overloaded, "what was too much is back");
        drop((others, created));
        answers.reserve(most).unwrap();
    }

    #[tokio::test]
    async fn an_answer_is_overdue_until_its_last_byte_is_taken() {
        let (answers, untaken) = (Answers::new(1 << 20), Untaken::default());
        let is_overdue = async |time| {
            let overdue = untaken.overdue(time);
            tokio::time::timeout(Duration::ZERO, overdue).await.is_ok()
        };
        assert!(!is_overdue(Duration::ZERO).await, "there is none");
        let answer = answers.count(sized(2000), Some(&untaken)).await;
        untaken.overdue(Duration::from_millis(1)).await;
        assert!(!is_overdue(Duration::from_secs(3600)).await, "it has time");
        assert!(!is_overdue(Duration::MAX).await);
        drop(answer);
        assert!(!is_overdue(Duration::ZERO).await, "it is taken");
    }
}
