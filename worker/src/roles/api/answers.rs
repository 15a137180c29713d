//! Answers on their way: bytes that clients have not taken yet, over all connections. A client can ask for far more than
//! it reads, a hundred times at once over HTTP/2: what it leaves lying is bounded for all of them together.
use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Code, Problem};

/// Bytes of answers in memory at once, beside the one largest body.
const ANSWERS: usize = 64 << 20;
/// Smaller answers are not counted: a request costs that much anyway, and whoever asks for health must hear of it.
const SMALL: u64 = 1024;

/// How much room there is for answers.
#[derive(Debug)]
pub(super) struct Answers {
    left: Arc<Semaphore>,
    most: usize,
    /// What has to be left for a job to be created: the answer to it is about as large as its body.
    reserve: usize,
}

/// The bytes of an answer; its share of the room is given back with the last of them.
struct Counted {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answers {
    pub(super) fn new(body_limit: usize) -> Self {
        let most = ANSWERS.saturating_add(body_limit).min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self { left: Arc::new(Semaphore::new(most)), most, reserve: body_limit.min(most) }
    }

    /// Refuses what is about to change something, and could not be answered afterwards.
    pub(super) fn expect_room(&self) -> Result<(), Problem> {
        if self.left.available_permits() < self.reserve { Err(full()) } else { Ok(()) }
    }

    /// Counts an answer until the last of its bytes has left; one that does not fit is refused instead.
    pub(super) async fn count(&self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some_and(|size| size <= SMALL) {
            return response;
        }
        let (parts, body) = response.into_parts();
        // All of them are in memory already: nothing is waited for here.
        let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else { return full().into_response() };
        // One that is larger than all of the room takes all of it.
        let share = u32::try_from(bytes.len().min(self.most)).unwrap_or(u32::MAX);
        match Arc::clone(&self.left).try_acquire_many_owned(share) {
            Ok(share) => {
                let body = Body::from(Bytes::from_owner(Counted { bytes, _share: share }));
                Response::from_parts(parts, body)
            }
            Err(_) => full().into_response(),
        }
    }
}

fn full() -> Problem {
    Problem::new(Code::Overloaded, "answers that nobody has read yet fill the memory; try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[tokio::test]
    async fn what_nobody_reads_is_bounded_and_given_back_with_its_last_byte() {
        let answers = Answers::new(1 << 20);
        let large = || Response::new(Body::from(vec![b'x'; 40 << 20]));
        let first = answers.count(large()).await;
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(answers.count(large()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answers.count(Response::new(Body::from("ok"))).await.status(), StatusCode::OK);
        answers.expect_room().unwrap();
        let bytes = axum::body::to_bytes(first.into_body(), usize::MAX).await.unwrap();
        let end = bytes.slice(bytes.len() - 1..);
        drop(bytes);
        assert_eq!(
            answers.count(large()).await.status(),
            StatusCode::SERVICE_UNAVAILABLE,
            "one byte is left"
        );
        drop(end);
        assert_eq!(answers.count(large()).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn the_largest_answer_of_all_takes_all_of_the_room() {
        let answers = Answers::new(1 << 20);
        let all = answers.count(Response::new(Body::from(vec![b'x'; 80 << 20]))).await;
        assert_eq!(all.status(), StatusCode::OK);
        assert_eq!(answers.expect_room().unwrap_err().code, Code::Overloaded);
        drop(all);
        answers.expect_room().unwrap();
    }
}
