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
        let millis = |n| backoff(Duration::from_millis(500), Duration::from_secs(10), n).as_millis();
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(millis), [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
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
