//! When what could not be done is tried again.
use std::time::Duration;

use super::Error;

/// After the first failure; twice as long after each that follows.
const FIRST: Duration = Duration::from_secs(1);
/// At least this often, where nobody tells that it would work now: neither do Redis and the Kubernetes API say that they
/// answer again, nor have Secrets, storage classes and the objects of others a watch. Users are promised that such a change
/// is "noticed within half a minute". (A change of the `JobQueue` is seen at once.)
const NOTICED: Duration = Duration::from_secs(30);
/// At least this often, where the Kubernetes API has refused what it was asked for: it is asked again no sooner, see
/// [`Refused`](super::remembered::Refused).
const REFUSED: Duration = Duration::from_secs(300);

/// How long to wait after so many failures in a row.
pub fn retry_after(error: &Error, failures: u32) -> Duration {
    let refused = error.is_stalled() && matches!(error.reason(), "ApiError" | "VolumeUnchangeable");
    let longest = if refused { REFUSED } else { NOTICED };
    FIRST.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_ever_more_rarely_and_at_least_as_often_as_users_are_promised() {
        let after =
            |error: &Error| [1, 2, 3, 5, 6, 9, 10].map(|failures| retry_after(error, failures).as_secs());
        let noticed = [1, 2, 4, 16, 30, 30, 30];
        let refused = [1, 2, 4, 16, 32, 256, 300];
        for (error, expected) in [
            (Error::refusal(500, "no"), noticed),
            (Error::refusal(403, "no"), noticed),
            (Error::Redis("away".into()), noticed),
            (Error::Late, noticed),
            (Error::stalled("SecretNotFound", "create it"), noticed),
            // What is wrong may be that a Secret has one half of a key pair.
            (Error::stalled("InvalidSpec", "change it"), noticed),
            (Error::stalled("NameConflict", "rename it"), noticed),
            (Error::refusal(422, "no"), refused),
            (Error::stalled("VolumeUnchangeable", "no"), refused),
            // As it is remembered.
            (Error::stalled("ApiError", "no"), refused),
        ] {
            assert_eq!(after(&error), expected, "{error:?}");
        }
        assert_eq!(retry_after(&Error::refusal(500, "no"), u32::MAX), NOTICED);
    }
}
