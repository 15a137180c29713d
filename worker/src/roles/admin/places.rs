//! Where jobs can be, outside of lanes: every list and sorted set of a shard, and a walk through one of them, page by page.
use bytes::Bytes;
use jobqueue::effects::Side;
use jobqueue::job::{Data, Job, NotAJob};
use jobqueue::keys::Keys;
use jobqueue::protocol::Protocol;
use jobqueue::protocol::async_jobs::Status;
use jobqueue::protocol::sidekiq::names::Names;
use jobqueue::protocol::sidekiq::time;
use jobqueue::store::{PageKind, Session, Span, StoreError};
use serde::Serialize;

/// A kind of place, as answers call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    Suspect,
    Waiting,
    Held,
    Delayed,
    Retry,
    Scheduled,
    Dead,
    Completed,
    /// Over, and in no list: its own key says so.
    Failed,
    Cancelled,
    /// Its own key says that it waits or runs, and no list has it.
    Unlisted,
}

impl From<Status> for Place {
    fn from(status: Status) -> Self {
        match status {
            Status::Pending | Status::Running => Self::Unlisted,
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Cancelled => Self::Cancelled,
        }
    }
}

impl Place {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Suspect => "suspect",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Delayed => "delayed",
            Self::Retry => "retry",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unlisted => "unlisted",
        }
    }

    /// Jobs that wait for their time.
    pub const fn is_delayed(self) -> bool {
        matches!(self, Self::Delayed | Self::Retry | Self::Scheduled)
    }
}

/// How a place is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    List(PageKind),
    /// By score: a moment in seconds, or in milliseconds.
    Set {
        down: bool,
        in_seconds: bool,
    },
}

/// One place of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    pub place: Place,
    /// The queue it belongs to, where it belongs to one.
    pub queue: Option<String>,
    pub key: String,
    pub shape: Shape,
}

/// The places of a shard, along the way that a job takes: first out first, suspects before their queue, the newest dead
/// and completed first.
pub fn of_shard(keys: &Keys, sidekiq: Option<&Names>, consuming: Side) -> Vec<At> {
    let next = Shape::List(if consuming == Side::Left { PageKind::Head } else { PageKind::Tail });
    let newest = Shape::List(PageKind::Head);
    let mut places = Vec::new();
    for queue in &keys.queues {
        let mut at = |place, key: &String, shape| {
            places.push(At { place, queue: Some(queue.name.clone()), key: key.clone(), shape });
        };
        at(Place::Suspect, &queue.suspects, next);
        at(Place::Waiting, &queue.queue, next);
    }
    let mut at = |place, queue: Option<&String>, key, shape| {
        places.push(At { place, queue: queue.cloned(), key, shape });
    };
    let by_time = |in_seconds| Shape::Set { down: false, in_seconds };
    if let Some(names) = sidekiq {
        at(Place::Retry, None, names.retry(), by_time(true));
        at(Place::Scheduled, None, names.schedule(), by_time(true));
        at(Place::Dead, None, keys.dead_letters(), Shape::Set { down: true, in_seconds: true });
        return places;
    }
    for queue in &keys.queues {
        at(Place::Delayed, Some(&queue.name), queue.delayed.clone(), by_time(false));
    }
    at(Place::Dead, None, keys.dead_letters(), newest);
    let by_time_down = Shape::Set { down: true, in_seconds: false };
    at(Place::Completed, None, keys.completed(), if keys.names_jobs() { by_time_down } else { newest });
    places
}

/// What was found at a place.
#[derive(Debug, Clone)]
pub struct Entry {
    pub raw: Bytes,
    pub score: Option<String>,
    /// The job it names, where it only names one.
    named: Option<Data>,
}

impl Entry {
    pub fn new(raw: Bytes, score: Option<String>) -> Self {
        Self { raw, score, named: None }
    }
}

impl At {
    /// What was enqueued: a delayed one has a word before it that keeps equal ones apart.
    fn enqueued(&self, entry: &Entry) -> Bytes {
        let raw = &entry.raw;
        let word = raw.iter().position(|byte| *byte == b'|').filter(|_| self.place == Place::Delayed);
        word.map_or_else(|| raw.clone(), |at| raw.slice(at + 1..))
    }

    /// The job's bytes, wherever they are kept; of a name that names nothing, the name.
    pub fn job(&self, entry: &Entry) -> Bytes {
        match &entry.named {
            None => self.enqueued(entry),
            Some(Data::Is(job)) => job.clone(),
            Some(_) => {
                let name = self.enqueued(entry);
                Bytes::from(serde_json::json!({ "id": String::from_utf8_lossy(&name) }).to_string())
            }
        }
    }

    /// Reads the job.
    pub fn read(&self, entry: &Entry, protocol: &dyn Protocol) -> Result<Job, (Bytes, NotAJob)> {
        let raw = self.enqueued(entry);
        match (protocol.records(), &entry.named) {
            (Some(records), Some(data)) => records.read(&raw, data.clone()).map_err(|why| (raw, why)),
            _ => protocol.decode(raw),
        }
    }

    /// The moment of an entry's score, in milliseconds.
    pub fn moment(&self, entry: &Entry) -> Option<u64> {
        let score = entry.score.as_deref()?;
        match self.shape {
            Shape::Set { in_seconds: true, .. } => time::millis_of_score(score),
            Shape::Set { in_seconds: false, .. } => score.parse().ok(),
            Shape::List(_) => None,
        }
    }
}

/// A walk through one place.
pub struct Walk {
    pub at: At,
    /// All that is there, by the last page.
    pub length: u64,
    /// Entries seen so far.
    pub seen: u64,
    span: Span,
}

impl Walk {
    pub fn new(at: At) -> Self {
        let span = match at.shape {
            Shape::Set { down: true, .. } => Span::down(),
            _ => Span::up(),
        };
        Self { at, length: 0, seen: 0, span }
    }

    /// The next entries; none at the end.
    pub async fn page(
        &mut self,
        session: &mut Session,
        protocol: &dyn Protocol,
        count: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut entries: Vec<Entry> = match self.at.shape {
            Shape::List(kind) => {
                let page = session.page_after(&self.at.key, kind, self.seen, count).await?;
                self.length = page.length;
                page.entries.into_iter().map(|raw| Entry::new(raw, None)).collect()
            }
            Shape::Set { .. } => {
                let page = session.scored(&self.at.key, &self.span, count).await?;
                self.length = page.length;
                page.entries.iter().for_each(|(_, score)| self.span.pass(score));
                page.entries.into_iter().map(|(raw, score)| Entry::new(raw, Some(score))).collect()
            }
        };
        self.seen += entries.len() as u64;
        // A dead letter says itself what became of its job.
        if let Some(records) = protocol.records().filter(|_| self.at.place != Place::Dead) {
            let names: Vec<Bytes> = entries.iter().map(|entry| self.at.enqueued(entry)).collect();
            let mut read = 0;
            while read < names.len() {
                let jobs = session.named(records, &names[read..]).await?;
                if jobs.is_empty() {
                    break;
                }
                for job in jobs {
                    entries[read].named = Some(job);
                    read += 1;
                }
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::config::Config;
    use jobqueue::engine::Engine;

    #[test]
    fn places_follow_the_way_of_a_job() {
        let keys = Engine::new(&Config::default()).shards.remove(0);
        let of = |names: Option<&Names>| {
            let words = of_shard(&keys, names, Side::Right).into_iter().map(|at| at.place.as_str());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(None), "suspect waiting suspect waiting delayed delayed dead completed");
        assert_eq!(of(Some(&Names::new(""))), "suspect waiting suspect waiting retry scheduled dead");
    }

    #[test]
    fn a_delayed_job_is_behind_its_mark_and_due_at_its_score() {
        let at = At {
            place: Place::Delayed,
            queue: None,
            key: String::new(),
            shape: Shape::Set { down: false, in_seconds: false },
        };
        let entry = Entry::new(Bytes::from_static(b"lane-1|{\"a\":\"|\"}"), Some("1767225600123".into()));
        assert_eq!(at.job(&entry), "{\"a\":\"|\"}");
        assert_eq!(at.moment(&entry), Some(1_767_225_600_123));
    }
}
