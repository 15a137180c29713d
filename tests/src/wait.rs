//! Waiting for something to become true: the only waiting primitive of the tests.
//!
//! A fixed sleep is either too short on a busy machine or too long on an idle one; polling is as fast as
//! the thing itself and gives up with the last state it saw.

use std::fmt::Debug;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

/// The first pause between two looks; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// Short enough that a wait adds next to nothing to a test, long enough not to load two cores.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What one look at the world says: there yet, or the state it is in instead.
pub trait Look {
    /// What a successful look yields.
    type Found;
    /// The thing waited for, or a description of what was seen instead.
    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();
    fn found(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

impl<T> Look for Option<T> {
    type Found = T;
    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "None".to_owned())
    }
}

/// The error is the state to report: `Err(depth)` makes the panic say which depth it was.
impl<T, E: Debug> Look for Result<T, E> {
    type Found = T;
    fn found(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:?}"))
    }
}

/// Polls `look` until it finds what it looks for; panics after `timeout`, naming `what`, the caller and
/// the last state seen.
///
/// A look that hangs counts as "not there": it is given up at the deadline.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use e2e::wait::eventually;
/// use std::time::Duration;
/// let mut looks = 0;
/// let third = eventually(Duration::from_secs(5), "a third look", async || {
///     looks += 1;
///     if looks == 3 { Ok(looks) } else { Err(looks) }
/// })
/// .await;
/// assert_eq!(third, 3);
/// # });
/// ```
#[track_caller]
pub fn eventually<L: Look>(
    timeout: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> L,
) -> impl Future<Output = L::Found> {
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        let mut seen = "nothing: the first look never ended".to_owned();
        let mut pause = FIRST_PAUSE;
        while let Some(left) = timeout.checked_sub(started.elapsed()) {
            match tokio::time::timeout(left, look()).await {
                Ok(state) => match state.found() {
                    Ok(found) => return found,
                    Err(state) => seen = state,
                },
                Err(_) => break,
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        panic!("{caller}: waited {timeout:?} for {what}; last seen: {seen}");
    }
}

#[cfg(test)]
mod tests {
    use super::eventually;
    use std::time::Duration;

    #[tokio::test]
    async fn a_wait_ends_with_what_was_found() {
        let mut looks = vec![None, None, Some("there")].into_iter();
        let found = eventually(Duration::from_secs(5), "the third", async || looks.next().unwrap()).await;
        assert_eq!(found, "there");
    }

    #[tokio::test]
    #[should_panic(expected = "for depth 0; last seen: 7")]
    async fn a_wait_that_fails_names_the_last_state() {
        eventually(Duration::from_millis(10), "depth 0", async || Err::<(), _>(7)).await;
    }

    #[tokio::test]
    #[should_panic(expected = "last seen: nothing")]
    async fn a_look_that_hangs_does_not_outlive_the_deadline() {
        eventually(Duration::from_millis(10), "a hung look", async || std::future::pending::<bool>().await)
            .await;
    }
}
