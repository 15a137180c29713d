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

/// One change in Redis. `Push`, `Delay`, `Score`, `Set` and `Swap` place the job; the others only tidy.
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
    /// Write a string that must still be what was read: else nothing of the decision takes place, and it has to be
    /// made again. Any time to live is taken off.
    Swap {
        /// The key.
        key: String,
        /// What it must hold.
        from: Bytes,
        /// What it holds then.
        to: Bytes,
    },
    /// Let a key live for so long, or for ever when `None`.
    Expire {
        /// The key.
        key: String,
        /// Milliseconds.
        ttl_ms: Option<u64>,
        /// While this key is there, nothing changes.
        unless: Option<String>,
    },
    /// List a name in a sorted set that only helps to find it.
    Index {
        /// The sorted set.
        key: String,
        /// Milliseconds since the epoch.
        at_ms: u64,
        /// The name.
        member: String,
    },
    /// Take a name out of such a set.
    Unindex {
        /// The sorted set.
        key: String,
        /// The name.
        member: String,
    },
    /// Take some names that are older than this out of such a set, not more than a page of them.
    TrimIndex {
        /// The sorted set.
        key: String,
        /// Milliseconds since the epoch.
        before_ms: u64,
    },
    /// Tell whoever listens.
    Publish {
        /// Where.
        channel: String,
        /// What.
        message: String,
    },
    /// Keep the newest `max` entries of a list that is pushed at the left.
    Trim {
        /// The list.
        key: String,
        /// How many stay.
        max: u64,
        /// Whether those that go are counted: dead letters are somebody's loss, completed jobs are not.
        counted: bool,
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

impl Effect {
    /// About how many bytes it takes to say: those of a job; keys and names are few.
    pub fn size(&self) -> usize {
        match self {
            Self::Push { bytes, .. } | Self::Set { bytes, .. } => bytes.len(),
            Self::Delay { member, .. } | Self::Score { member, .. } => member.len(),
            Self::Swap { from, to, .. } => from.len() + to.len(),
            Self::Expire { .. }
            | Self::Index { .. }
            | Self::Unindex { .. }
            | Self::TrimIndex { .. }
            | Self::Publish { .. }
            | Self::Trim { .. }
            | Self::TrimSet { .. }
            | Self::Add { .. } => 0,
        }
    }
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
    /// Failed for good, and kept nowhere.
    GivenUp,
    /// Back at the consuming end of its queue, uncounted.
    Released,
    /// Among the suspects of its queue: its process died while it held the job.
    Suspected,
    /// The queue named it, but it is not to be run: cancelled, or named twice.
    Dropped,
}

impl Verdict {
    /// Of a job that asked to be forgotten: one that did so because it failed counts as failed.
    pub const fn of_discard(failure: Option<&crate::outcome::Failure>) -> Self {
        match failure {
            Some(_) => Self::GivenUp,
            None => Self::Discarded,
        }
    }
}

/// What becomes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// In a word.
    pub verdict: Verdict,
    /// In Redis. Empty for a `Done` whose bytes go to the completed list as they are (the fast path).
    pub effects: Vec<Effect>,
}
