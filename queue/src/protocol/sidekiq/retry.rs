//! When a failed job is tried again, and when it is given up. Pure: what is random is passed in.
use std::time::Duration;

use serde_json::Value;

use super::time::Style;
use crate::retry::backoff;

/// How long a failed job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formula {
    /// Sidekiq's own.
    Sidekiq,
    /// Doubling from `base` to `max`.
    Exponential {
        /// The first wait.
        base: Duration,
        /// The longest wait.
        max: Duration,
    },
}

impl Formula {
    /// The wait after a failure. `count` is the job's `retry_count` after it: 0 after the first. `random` is any number.
    pub fn delay(self, count: u64, custom: Option<Duration>, style: Style, random: u64) -> Duration {
        // Sidekiq takes a delay of the job's own when it is a whole second at least.
        let custom = custom.filter(|delay| delay.as_secs() > 0);
        match (custom, self) {
            (Some(delay), _) => delay.saturating_add(jitter(count, style, random)),
            (None, Self::Sidekiq) => {
                let power = count.saturating_pow(4).saturating_add(15);
                Duration::from_secs(power).saturating_add(jitter(count, style, random))
            }
            (None, Self::Exponential { base, max }) => {
                let failures = u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1);
                let delay = backoff(base, max, failures);
                // Up to a tenth: longer, but at the limit shorter.
                let share = u32::try_from(random % 1000).unwrap_or(0);
                let jitter = delay / 10 / 1000 * share;
                let longer = delay.saturating_add(jitter);
                if longer > max { delay.saturating_sub(jitter) } else { longer }
            }
        }
    }
}

/// Ten steps of `count + 1` seconds up to Sidekiq 7.x, any of those seconds from 8.0 on.
fn jitter(count: u64, style: Style, random: u64) -> Duration {
    let step = count.saturating_add(1);
    Duration::from_secs(match style {
        Style::Seconds => (random % 10).saturating_mul(step),
        Style::Millis => random % step.saturating_mul(10),
    })
}

/// What a job's own `retry` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    /// Never again, and not among the dead either.
    Never,
    /// So often; 0: dead at the first failure.
    UpTo(i64),
    /// As often as is usual.
    Usual,
    /// As often as its class says.
    Unsaid,
}

impl Retries {
    /// Of the field.
    pub fn of(field: Option<&Value>) -> Self {
        match field {
            Some(Value::Bool(false)) => Self::Never,
            Some(Value::Number(number)) => number.as_i64().map_or(Self::Usual, Self::UpTo),
            None | Some(Value::Null) => Self::Unsaid,
            Some(_) => Self::Usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEED: Formula =
        Formula::Exponential { base: Duration::from_secs(15), max: Duration::from_secs(86_400) };

    #[test]
    fn sidekiqs_formula_takes_twenty_days_for_25_retries() {
        let sum: u64 = (0..25).map(|n| Formula::Sidekiq.delay(n, None, Style::Seconds, 0).as_secs()).sum();
        assert_eq!(sum, 1_763_395);
    }

    #[test]
    fn the_seeds_formula_doubles_from_15_seconds_to_a_day() {
        let seconds = |n| SEED.delay(n, None, Style::Seconds, 0).as_secs();
        assert_eq!([0, 1, 2, 12, 13, 24].map(seconds), [15, 30, 60, 61_440, 86_400, 86_400]);
    }

    #[test]
    fn a_delay_of_its_own_replaces_the_formula_and_has_jitter_too() {
        let delay = |custom, random| {
            Formula::Sidekiq.delay(2, Some(Duration::from_secs(custom)), Style::Seconds, random).as_secs()
        };
        assert_eq!((delay(60, 0), delay(60, 9)), (60, 87));
        assert_eq!(delay(0, 0), 31, "nothing, as Sidekiq reads it");
    }

    #[test]
    fn what_retry_may_say() {
        let of = |json: &str| Retries::of(serde_json::from_str::<Value>(json).ok().as_ref());
        assert_eq!(of("false"), Retries::Never);
        assert_eq!((of("0"), of("7")), (Retries::UpTo(0), Retries::UpTo(7)));
        for usual in ["true", "\"5\"", "2.5"] {
            assert_eq!(of(usual), Retries::Usual, "{usual}");
        }
        assert_eq!((of("null"), Retries::of(None)), (Retries::Unsaid, Retries::Unsaid), "the class knows");
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_bounds(count in 0u64..100, random: u64, millis: bool) {
            let style = if millis { Style::Millis } else { Style::Seconds };
            let least = Formula::Sidekiq.delay(count, None, style, 0);
            let delay = Formula::Sidekiq.delay(count, None, style, random);
            prop_assert_eq!(least, Duration::from_secs(count.pow(4) + 15));
            prop_assert!((least..least + Duration::from_secs(10 * (count + 1))).contains(&delay));
        }

        #[test]
        fn no_number_overflows(count: u64, custom: u64, random: u64, millis: bool) {
            let style = if millis { Style::Millis } else { Style::Seconds };
            let custom = Duration::from_secs(custom);
            for formula in [Formula::Sidekiq, SEED] {
                prop_assert!(formula.delay(count, None, style, random) >= Duration::from_secs(15));
                prop_assert!(formula.delay(count, Some(custom), style, random) >= custom.min(Duration::from_secs(15)));
            }
        }

        #[test]
        fn the_seeds_formula_never_exceeds_its_limit(count in 0u64..200, random: u64) {
            let delay = SEED.delay(count, None, Style::Seconds, random);
            prop_assert!(delay <= Duration::from_secs(86_400) && delay >= Duration::from_secs(15));
        }
    }
}
