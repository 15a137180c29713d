//! Moments as Sidekiq writes them. Up to 7.x a job's times are seconds with a fraction, from 8.0 on whole
//! milliseconds, and readers tell them apart by the JSON type alone: so what we write has the type of what is there.
use serde_json::Number;

/// How a job writes its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Seconds with a fraction: Sidekiq up to 7.x.
    Seconds,
    /// Whole milliseconds: Sidekiq from 8.0 on.
    Millis,
}

impl Style {
    /// The style of a number that is there.
    pub fn of(number: &Number) -> Self {
        if is_whole(&number.to_string()) { Self::Millis } else { Self::Seconds }
    }

    /// A moment in this style.
    pub fn write(self, ms: u64) -> String {
        match self {
            Self::Seconds => seconds(ms),
            Self::Millis => ms.to_string(),
        }
    }
}

/// Seconds with a fraction, always: without one it would be read as milliseconds. As short as Ruby writes it, because
/// Sidekiq's API names a member of a sorted set by its own JSON of it: `reschedule` of another spelling adds a second.
pub fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1000, ms % 1000);
    let digits = text.trim_end_matches('0').len();
    // One stays behind the point.
    text[..digits + usize::from(text[..digits].ends_with('.'))].to_owned()
}

/// A score within the millisecond: Sidekiq's page takes all of one score out of a set to get at one of them, and puts
/// the others back in a second step. Jobs that end in one cycle should not share theirs; `random` is any number.
pub fn score(ms: u64, random: u64) -> String {
    format!("{}.{:03}{:03}", ms / 1000, ms % 1000, random % 1000)
}

/// The moment that a number of either style means.
pub fn millis(number: &Number) -> Option<u64> {
    let text = number.to_string();
    if is_whole(&text) {
        return text.parse().ok();
    }
    millis_of_score(&text)
}

/// The moment of a score, which is seconds, always: Redis writes a whole number without its fraction.
pub fn millis_of_score(score: &str) -> Option<u64> {
    let seconds = score.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds >= 0.0)?;
    u64::try_from(std::time::Duration::try_from_secs_f64(seconds).ok()?.as_millis()).ok()
}

fn is_whole(text: &str) -> bool {
    !text.contains(['.', 'e', 'E'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_has_no_digit_too_many_and_always_a_fraction() {
        let times = [1_700_000_000_123, 1_700_000_000_120, 1_700_000_000_100, 1_700_000_000_000, 0, 5];
        let expected = ["1700000000.123", "1700000000.12", "1700000000.1", "1700000000.0", "0.0", "0.005"];
        assert_eq!(times.map(seconds), expected);
    }

    proptest! {
        // Up to the year 9999. Rust prints the fewest digits that mean the same number, as Ruby does.
        #[test]
        fn ruby_writes_the_times_that_it_read_from_us_as_they_were(ms in 0u64..253_402_300_800_000) {
            let text = seconds(ms);
            prop_assert_eq!(format!("{:?}", text.parse::<f64>().unwrap()), text.clone());
            prop_assert_eq!(millis(&serde_json::from_str(&text).unwrap()).unwrap().abs_diff(ms) <= 1, true);
        }

        #[test]
        fn a_score_is_of_its_millisecond_and_another_for_another_job(
            ms in 1_000_000_000_000u64..10_000_000_000_000, one in 0u64..1000, other in 0u64..1000,
        ) {
            let number = |random| score(ms, random).parse::<f64>().unwrap();
            prop_assert_eq!(number(one) < number(other), one < other);
            prop_assert!(seconds(ms).parse::<f64>().unwrap() <= number(one));
            prop_assert!(number(one) < seconds(ms + 1).parse::<f64>().unwrap());
        }
    }
}
