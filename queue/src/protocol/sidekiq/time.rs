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

/// Seconds with a fraction, always: without one it would be read as milliseconds. Also a score of a sorted set.
pub fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
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
