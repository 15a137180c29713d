//! What a decision does to Redis, as data: a protocol answers it, `cycle.lua` and `move.lua` carry it out.
use bytes::Bytes;

/// An end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The head.
    Left,
    /// The tail.
    Right,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    /// As the scripts call it.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Left => "L",
            Self::Right => "R",
        }
    }

    /// As `BLMOVE` calls it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Left => "LEFT",
            Self::Right => "RIGHT",
        }
    }
}

/// One change in Redis. `Push`, `Delay`, `Score` and `Set` place the job; the others only tidy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Put bytes at one end of a list.
    Push {
        /// The list.
        key: String,
        /// Which end.
        side: Side,
        /// What.
        bytes: Bytes,
    },
    /// Put a member into a sorted set, due at this time.
    Delay {
        /// The sorted set.
        key: String,
        /// Milliseconds since the epoch, by Redis' clock.
        at_ms: u64,
        /// Unique in the set: equal bytes would merge into one, and a job would be lost.
        member: Bytes,
    },
    /// Put a member into a sorted set of another program, under a score as that program writes it.
    Score {
        /// The sorted set.
        key: String,
        /// A number, as text.
        score: String,
        /// What; equal members are one, as they are to that program.
        member: Bytes,
    },
    /// Write a string.
    Set {
        /// The key.
        key: String,
        /// Its value.
        bytes: Bytes,
        /// Milliseconds to live; for ever when `None`.
        ttl_ms: Option<u64>,
    },
    /// Keep the newest `max` entries of a list that is pushed at the left.
    Trim {
        /// The list.
        key: String,
        /// How many stay.
        max: u64,
    },
    /// Keep of a sorted set what is newer than a score, and no more than so many.
    TrimSet {
        /// The sorted set.
        key: String,
        /// Scores up to this one go.
        before: String,
        /// The rank of the last one that goes, counted from the highest score: -1 is the highest itself.
        rank: i64,
    },
    /// Name something in a set.
    Add {
        /// The set.
        key: String,
        /// The name.
        member: String,
    },
}

/// Where a job went, for metrics and logs: decided together with the effects, reported once they took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Completed.
    Done,
    /// Waits in the delayed set for another attempt.
    Retried,
    /// Among the dead letters, for this reason.
    Dead(crate::outcome::Reason),
    /// Forgotten on its own wish.
    Discarded,
    /// Back at the consuming end of its queue, uncounted.
    Released,
    /// Among the suspects of its queue: its process died while it held the job.
    Suspected,
}

/// What becomes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// In a word.
    pub verdict: Verdict,
    /// In Redis. Empty for a `Done` whose bytes go to the completed list as they are (the fast path).
    pub effects: Vec<Effect>,
}
