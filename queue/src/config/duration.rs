//! Durations as people write them: `500ms`, `30s`, `1m30s`, `24h`.
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The units, largest first, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// A duration that reads and writes as `500ms`, `30s`, `1m30s` or `24h`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(std::time::Duration);

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(std::time::Duration::ZERO);

    /// So many seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    /// The standard library's type.
    pub const fn get(self) -> std::time::Duration {
        self.0
    }
}

/// The text is not a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a duration such as 500ms, 30s or 1m")]
pub struct NotADuration;

impl FromStr for Duration {
    type Err = NotADuration;

    /// Numbers with units, one after the other; a number may have a fraction. `0` needs no unit.
    fn from_str(text: &str) -> Result<Self, NotADuration> {
        if text == "0" {
            return Ok(Self::ZERO);
        }
        if text.is_empty() {
            return Err(NotADuration);
        }
        let mut rest = text;
        let mut nanos: u64 = 0;
        while !rest.is_empty() {
            let (number, after) = split_at_first(rest, |c| !c.is_ascii_digit() && c != '.');
            let (unit, after) = split_at_first(after, |c| c.is_ascii_digit() || c == '.');
            let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(NotADuration)?;
            nanos = scaled(number, *scale).and_then(|part| nanos.checked_add(part)).ok_or(NotADuration)?;
            rest = after;
        }
        Ok(Self(std::time::Duration::from_nanos(nanos)))
    }
}

fn split_at_first(text: &str, stop: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(stop).unwrap_or(text.len()))
}

/// A decimal number times a unit, in nanoseconds; digits below a nanosecond are dropped.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // No unit has more than 13 digits of nanoseconds, so later digits of the fraction cannot matter.
    let fraction = fraction.get(..fraction.len().min(15))?;
    let below = if fraction.is_empty() {
        0
    } else {
        let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        u64::try_from(fraction.parse::<u128>().ok()? * u128::from(scale) / divisor).ok()?
    };
    whole.checked_mul(scale)?.checked_add(below)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, scale) in UNITS.into_iter().filter(|(unit, _)| *unit != "µs") {
            let count = rest / u128::from(scale);
            rest %= u128::from(scale);
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::ops::Deref for Duration {
    type Target = std::time::Duration;

    fn deref(&self) -> &std::time::Duration {
        &self.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

impl From<std::time::Duration> for Duration {
    fn from(duration: std::time::Duration) -> Self {
        Self(duration)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "duration" })
    }
}

#[cfg(test)]
mod tests {
    use super::Duration;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_duration_reads_back_as_it_was_written(nanos: u64) {
            let duration = Duration::from(std::time::Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            let json = serde_json::to_value(duration).unwrap();
            prop_assert_eq!(serde_json::from_value::<Duration>(json).unwrap(), duration);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,20}|[0-9.hmsnuµ]{0,30}") {
            let _ = text.parse::<Duration>();
        }
    }

    #[test]
    fn durations_are_written_with_the_largest_units() {
        for (millis, text) in [
            (0, "0s"),
            (500, "500ms"),
            (30_000, "30s"),
            (90_000, "1m30s"),
            (86_400_000, "24h"),
            (1500, "1s500ms"),
        ] {
            assert_eq!(Duration::from_millis(millis).to_string(), text);
        }
    }

    #[test]
    fn fractions_and_sums_are_understood() {
        for (text, millis) in [("1.5s", 1500), (".5s", 500), ("1h0.5m", 3_630_000), ("0", 0), ("1000us", 1)] {
            assert_eq!(text.parse(), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        for text in ["", "abc", "5", "-5s", "5 s", "s", ".s", "1.2.3s", "5d", "99999999999999h", "1s2"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }
}
