//! Which logs are followed and from where: a stream that ends is not the end of a log. The API server is rolled out, a
//! kubelet restarts, a container is started again; whoever follows wants every line, and each once.
use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// The last line that was seen of a log: its time, and how many lines of that very time were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    at: Timestamp,
    lines: u64,
}

impl Mark {
    /// From when on to ask. The request is rounded to seconds, up or down: one more is asked for, and what was seen sieved.
    pub fn since(self) -> Timestamp {
        self.at.saturating_sub(SignedDuration::from_secs(1)).unwrap_or(self.at)
    }
}

/// Lets each line through once, though the same part of a log is read twice.
#[derive(Debug)]
pub struct Sieve {
    before: Option<Mark>,
    /// Lines met that have the time of the last one before.
    met: u64,
    mark: Option<Mark>,
}

impl Sieve {
    /// For a log of which everything up to here was seen.
    pub fn after(mark: Option<Mark>) -> Self {
        Self { before: mark, met: 0, mark }
    }

    /// A line that begins with its time: without that, or nothing if it was seen. One that has none is said by the kubelet.
    pub fn pass<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        let Ok(at) = time.parse::<Timestamp>() else { return Some(line) };
        if let Some(before) = self.before {
            self.met += u64::from(at == before.at);
            if at < before.at || (at == before.at && self.met <= before.lines) {
                return None;
            }
        }
        self.mark = Some(match self.mark {
            Some(mark) if mark.at == at => Mark { at, lines: mark.lines + 1 },
            // The clock of a node may be set back: what is read later is later.
            _ => Mark { at, lines: 1 },
        });
        Some(text)
    }

    /// How far it was seen.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }
}

/// How a container stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// How often it was started again: what is started again has a log of its own.
    pub restarts: u64,
    /// Whether it runs now.
    pub runs: bool,
}

/// How much of a log is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// What the call says.
    Asked,
    /// What comes after that which was seen; `cut` when the container went on while the stream did not.
    Rest {
        /// How far it was seen; not at all: the whole log is meant.
        mark: Option<Mark>,
        /// Whether somebody should be told.
        cut: bool,
    },
}

impl Share {
    /// Where it begins.
    pub fn mark(&self) -> Option<Mark> {
        match self {
            Self::Asked => None,
            Self::Rest { mark, .. } => *mark,
        }
    }

    /// Whether the stream before it ended too early.
    pub fn was_cut(&self) -> bool {
        matches!(self, Self::Rest { cut: true, .. })
    }
}

/// The log of one pod.
#[derive(Debug)]
struct Tail {
    /// Of the container whose log was asked for last.
    seen: Seen,
    mark: Option<Mark>,
    /// Whether lines may come.
    streams: bool,
    /// Whether the last attempt failed.
    failed: bool,
}

/// The logs that were begun, by the uid of their pods. One stream a pod: that of a container which is started again begins
/// when that of the one before has ended.
#[derive(Debug, Default)]
pub struct Tails(HashMap<String, Tail>);

impl Tails {
    /// Whether none was begun.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the log of a pod is to be asked for now, and how much of it.
    pub fn due(&mut self, uid: &str, now: Seen) -> Option<Share> {
        let Some(tail) = self.0.get_mut(uid) else {
            self.0.insert(uid.into(), Tail { seen: now, mark: None, streams: true, failed: false });
            return Some(Share::Asked);
        };
        if tail.streams {
            return None;
        }
        let same = tail.seen.restarts == now.restarts;
        // What had ended when it was asked for was read to its end.
        if same && !tail.seen.runs && !now.runs && !tail.failed {
            return None;
        }
        let share = match tail.mark {
            // Nothing of it was shown yet.
            None if same => Share::Asked,
            mark => Share::Rest { mark, cut: same && now.runs && !tail.failed },
        };
        (tail.seen, tail.streams, tail.failed) = (now, true, false);
        Some(share)
    }

    /// A stream has ended.
    pub fn ended(&mut self, uid: &str, mark: Option<Mark>, failed: bool) {
        if let Some(tail) = self.0.get_mut(uid) {
            (tail.mark, tail.streams, tail.failed) = (mark.or(tail.mark), false, failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: Seen = Seen { restarts: 0, runs: true };
    const ENDED: Seen = Seen { restarts: 0, runs: false };

    fn mark(seconds: i64, lines: u64) -> Mark {
        Mark { at: Timestamp::from_second(seconds).unwrap(), lines }
    }

    #[test]
    fn a_line_that_is_read_again_is_not_printed_again() {
        let log = ["01.000000001Z a", "02Z b", "02Z c", "02Z d", "03Z ", "04Z e f"];
        let log: Vec<String> = log.iter().map(|line| format!("2026-01-01T00:00:{line}")).collect();
        for cut in 0..=log.len() {
            let mut sieve = Sieve::after(None);
            let mut passed: Vec<&str> = log[..cut].iter().filter_map(|line| sieve.pass(line)).collect();
            let mut sieve = Sieve::after(sieve.mark());
            passed.extend(log.iter().filter_map(|line| sieve.pass(line)));
            assert_eq!(passed, ["a", "b", "c", "d", "", "e f"], "cut at {cut}");
            // And cut once more before anything new came.
            let mut sieve = Sieve::after(sieve.mark());
            assert!(log.iter().all(|line| sieve.pass(line).is_none()), "cut at {cut}");
        }
        assert_eq!(Sieve::after(None).pass("unable to retrieve logs"), Some("unable to retrieve logs"));
    }

    #[test]
    fn it_is_asked_from_a_second_before_because_the_request_is_rounded() {
        assert_eq!(mark(10, 1).since(), Timestamp::from_second(9).unwrap());
    }

    #[test]
    fn a_log_that_breaks_off_is_followed_again_from_its_last_line() {
        let mut tails = Tails::default();
        assert_eq!(tails.due("a", RUNS), Some(Share::Asked));
        assert_eq!(tails.due("a", RUNS), None, "it is followed already");
        assert_eq!(tails.due("b", RUNS), Some(Share::Asked), "another pod");
        tails.ended("a", Some(mark(1, 1)), false);
        assert_eq!(tails.due("a", RUNS), Some(Share::Rest { mark: Some(mark(1, 1)), cut: true }));
        // Nothing new until it broke off again, this time with an error, which was told.
        tails.ended("a", None, true);
        assert_eq!(tails.due("a", RUNS), Some(Share::Rest { mark: Some(mark(1, 1)), cut: false }));
    }

    #[test]
    fn what_came_between_the_last_line_and_the_end_of_a_container_is_asked_for_once() {
        let mut tails = Tails::default();
        tails.due("a", RUNS);
        tails.ended("a", Some(mark(1, 1)), false);
        assert_eq!(tails.due("a", ENDED), Some(Share::Rest { mark: Some(mark(1, 1)), cut: false }));
        tails.ended("a", Some(mark(2, 1)), false);
        assert_eq!(tails.due("a", ENDED), None, "it was read to its end");
    }

    #[test]
    fn a_container_that_was_started_again_is_followed_from_its_start() {
        let mut tails = Tails::default();
        tails.due("a", RUNS);
        let again = Seen { restarts: 1, runs: true };
        assert_eq!(tails.due("a", again), None, "the log of the one before has not ended");
        tails.ended("a", Some(mark(1, 1)), false);
        assert_eq!(tails.due("a", again), Some(Share::Rest { mark: Some(mark(1, 1)), cut: false }));
        // One that said nothing and died, before anybody looked.
        tails.ended("a", None, false);
        let dead = Seen { restarts: 2, runs: false };
        assert_eq!(tails.due("a", dead), Some(Share::Rest { mark: Some(mark(1, 1)), cut: false }));
        tails.due("b", RUNS);
        tails.ended("b", None, false);
        assert_eq!(tails.due("b", again), Some(Share::Rest { mark: None, cut: false }), "all of it");
    }
}
