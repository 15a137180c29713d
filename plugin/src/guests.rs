//! The pods that this process asked for and has to delete, however it ends. What counts is not what was asked for but what
//! came of it: a request whose answer nobody waited for may make a pod after its deletion was tried.
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Error;
use crate::table::whole;

/// So long the answer to a request is waited for before its pod is deleted; most come in milliseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// So long a pod that may come yet is looked for. Whatever the API server does with a request it has done by then.
const LATE: Duration = Duration::from_secs(5);
/// So long a deletion that fails is tried again: an API server that is rolled out is back by then.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often.
const AGAIN: Duration = Duration::from_millis(500);

/// What is known of a pod that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing yet.
    Awaited,
    /// It was made.
    Made,
    /// It was not, and will not be.
    Refused,
    /// Nothing, and nothing more will be: the answer was lost.
    Unknown,
}

impl Arrival {
    /// What the answer to the request says: pure.
    pub fn of<T>(answer: &kube::Result<T>) -> Self {
        match answer {
            Ok(_) => Self::Made,
            // A server that gave up may have done it before.
            Err(kube::Error::Api(status)) if status.code < 500 => Self::Refused,
            Err(_) => Self::Unknown,
        }
    }
}

#[derive(Debug, Clone)]
struct Guest {
    namespace: String,
    pod: String,
    arrival: watch::Receiver<Arrival>,
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Guests(Arc<Mutex<Vec<Guest>>>);

impl Guests {
    fn list(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a pod that is about to be made; whoever asks for it says what came of that.
    pub fn expect(&self, namespace: &str, pod: &str) -> watch::Sender<Arrival> {
        let (told, arrival) = watch::channel(Arrival::Awaited);
        self.list().push(Guest { namespace: namespace.into(), pod: pod.into(), arrival });
        told
    }

    /// Deletes one, or all that are left. Each is forgotten only when it is gone: whoever calls may be called off in
    /// between, or the cluster away, and another goes on. Those that even the last attempt left are named.
    pub async fn dismiss(
        &self,
        which: Option<(&str, &str)>,
        delete: impl AsyncFn(&str, &str) -> Result<(), Error>,
    ) {
        let meant = |guest: &&Guest| {
            which.is_none_or(|(namespace, pod)| pod == guest.pod && namespace == guest.namespace)
        };
        let leaving: Vec<Guest> = self.list().iter().filter(meant).cloned().collect();
        for guest in leaving {
            match see_off(&guest, &delete).await {
                Ok(()) => {
                    self.list().retain(|other| other.pod != guest.pod || other.namespace != guest.namespace);
                }
                Err(_) if which.is_some() => {}
                // A terminal that is gone, by which this may have begun, is no reason to leave the others.
                Err(error) => {
                    let _ = writeln!(
                        std::io::stderr(),
                        "Warning: {}; {}",
                        whole(&error.to_string()),
                        by_hand(&guest)
                    );
                }
            }
        }
    }

    /// What somebody else has to do about those that are left, a line each.
    pub fn left(&self) -> String {
        let list = self.list();
        let there = list.iter().filter(|guest| *guest.arrival.borrow() != Arrival::Refused);
        there.fold(String::new(), |left, guest| left + "a pod is left: " + &by_hand(guest) + "\n")
    }
}

fn by_hand(guest: &Guest) -> String {
    format!("kubectl -n {} delete pod {}", guest.namespace, guest.pod)
}

async fn see_off(guest: &Guest, delete: impl AsyncFn(&str, &str) -> Result<(), Error>) -> Result<(), Error> {
    let mut arrival = guest.arrival.clone();
    let known = tokio::time::timeout(ANSWER, arrival.wait_for(|arrival| *arrival != Arrival::Awaited)).await;
    // Nobody is left to say it, or it takes too long.
    let arrival = known.ok().and_then(|known| known.ok().map(|known| *known)).unwrap_or(Arrival::Unknown);
    if arrival == Arrival::Refused {
        return Ok(());
    }
    let began = Instant::now();
    loop {
        match delete(&guest.namespace, &guest.pod).await {
            Err(Error::NotFound(_)) if arrival == Arrival::Unknown && began.elapsed() < LATE => {}
            Ok(()) | Err(Error::NotFound(_)) => return Ok(()),
            Err(Error::Unreachable(_) | Error::Failed(_)) if began.elapsed() < PATIENCE => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A cluster that has the pod from the n-th attempt to delete it on.
    async fn dismissed(guests: &Guests, from: u32) -> u32 {
        let tries = AtomicU32::new(0);
        guests
            .dismiss(None, async |_, _| {
                let there = tries.fetch_add(1, Ordering::Relaxed) + 1 >= from;
                if there { Ok(()) } else { Err(Error::NotFound("no such pod".into())) }
            })
            .await;
        tries.into_inner()
    }

    #[test]
    fn only_a_refusal_is_taken_for_one() {
        let answered = |code| {
            let status = kube::core::Status { code, ..kube::core::Status::failure("no", "") };
            Arrival::of::<()>(&Err(kube::Error::Api(status.boxed())))
        };
        assert_eq!(
            (answered(403), answered(409), answered(504)),
            (Arrival::Refused, Arrival::Refused, Arrival::Unknown)
        );
        assert_eq!(Arrival::of(&Ok(())), Arrival::Made);
        assert_eq!(Arrival::of::<()>(&Err(kube::Error::LinesCodecMaxLineLengthExceeded)), Arrival::Unknown);
    }

    #[tokio::test]
    async fn a_pod_whose_making_was_not_answered_is_looked_for_until_it_is_deleted() {
        let guests = Guests::default();
        guests.expect("a", "late").send_replace(Arrival::Unknown);
        assert_eq!(dismissed(&guests, 3).await, 3);
        assert_eq!(dismissed(&guests, 1).await, 0, "it is gone");
        // Whoever should have said it is gone too.
        drop(guests.expect("a", "late"));
        assert_eq!(dismissed(&guests, 2).await, 2);
    }

    #[tokio::test]
    async fn a_pod_that_was_made_is_deleted_at_once_and_one_that_was_refused_not_at_all() {
        let guests = Guests::default();
        guests.expect("a", "made").send_replace(Arrival::Made);
        guests.expect("a", "refused").send_replace(Arrival::Refused);
        assert_eq!(dismissed(&guests, 2).await, 1, "somebody else deleted it");
    }

    #[tokio::test]
    async fn a_pod_is_not_deleted_before_the_answer_to_its_making() {
        let guests = Guests::default();
        let told = guests.expect("a", "slow");
        let answered = AtomicU32::new(0);
        let dismissed = guests.dismiss(None, async |_, _| {
            assert_eq!(answered.load(Ordering::Relaxed), 1);
            Ok(())
        });
        let answer = async {
            tokio::task::yield_now().await;
            answered.store(1, Ordering::Relaxed);
            told.send_replace(Arrival::Made);
        };
        tokio::join!(dismissed, answer);
    }

    #[tokio::test]
    async fn a_deletion_that_fails_is_tried_again_and_one_that_failed_is_not_forgotten() {
        let guests = Guests::default();
        guests.expect("a", "one").send_replace(Arrival::Made);
        let tries = AtomicU32::new(0);
        // An API server that is away for a moment.
        let delete = async |_: &str, _: &str| match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::Unreachable("away".into())),
            1 => Err(Error::Failed("504".into())),
            _ => Ok(()),
        };
        guests.dismiss(Some(("a", "one")), delete).await;
        assert_eq!((tries.into_inner(), guests.left().as_str()), (3, ""));

        guests.expect("a", "other").send_replace(Arrival::Made);
        drop(guests.expect("a", "unknown"));
        guests.expect("a", "refused").send_replace(Arrival::Refused);
        for which in [Some(("a", "other")), None] {
            guests.dismiss(which, async |_, _| Err(Error::Forbidden("no".into()))).await;
        }
        assert_eq!(
            guests.left(),
            "a pod is left: kubectl -n a delete pod other\na pod is left: kubectl -n a delete pod unknown\n"
        );
        guests.dismiss(None, async |_, _| Ok(())).await;
        assert_eq!(guests.left(), "");
    }

    #[tokio::test]
    async fn a_deletion_that_is_called_off_is_made_up_for() {
        let guests = Guests::default();
        guests.expect("a", "one").send_replace(Arrival::Made);
        guests.expect("a", "other").send_replace(Arrival::Made);
        tokio::select! {
            biased;
            () = guests.dismiss(Some(("a", "one")), async |_, _| std::future::pending().await) => {}
            () = tokio::task::yield_now() => {}
        }
        let deleted = Mutex::new(vec![]);
        guests
            .dismiss(None, async |_, pod| {
                deleted.lock().unwrap().push(pod.to_owned());
                Ok(())
            })
            .await;
        assert_eq!(deleted.into_inner().unwrap(), ["one", "other"]);
    }
}
