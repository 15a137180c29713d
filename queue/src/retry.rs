//! When a failed job is tried again. Pure.
use std::time::Duration;

/// `min(base * 2^(n-1), max)` for the n-th failure, as seed 002 has it; never overflows.
pub fn backoff(base: Duration, max: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(63);
    let millis = u128::from(u64::try_from(base.as_millis()).unwrap_or(u64::MAX)) << doublings;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_from_base_up_to_max() {
        let seconds = |n| backoff(Duration::from_millis(500), Duration::from_secs(10), n).as_secs_f64();
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(seconds), [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
    }

    proptest! {
        #[test]
        fn never_exceeds_max_nor_shrinks(base in 0u64..100_000, max in 0u64..100_000_000, n in 0u32..10_000) {
            let (base, max) = (Duration::from_millis(base), Duration::from_millis(max));
            prop_assert!(backoff(base, max, n) <= max);
            prop_assert!(backoff(base, max, n) <= backoff(base, max, n + 1));
        }
    }
}
