//! Jobs that lists only name: read, and marked as started.
use bytes::Bytes;
use redis::Value;

use super::cycle::LaneHandle;
use super::{
    Call, DATA, PAGE_BYTES, Refusal, START, Session, Status, StoreError, bytes, list, text, unexpected,
};
use crate::effects::Effect;
use crate::job::Data;
use crate::protocol::Records;

/// What came of starting some jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// One a job.
    pub statuses: Vec<Status>,
    /// Which destinations refused.
    pub refusals: Vec<Refusal>,
}

impl Session {
    /// Reads the jobs that some entries name, as [`Self::data`] does.
    pub async fn named(&mut self, records: &dyn Records, entries: &[Bytes]) -> Result<Vec<Data>, StoreError> {
        let jobs = self.keys.jobs();
        let keys = entries.iter().map(|entry| records.key(entry, &jobs)).collect();
        self.data(keys, records.largest()).await
    }

    /// Reads the first of some jobs: all of them, unless they are more than a page of bytes. Those that are larger than
    /// `largest` are measured only.
    pub async fn data(&mut self, keys: Vec<String>, largest: usize) -> Result<Vec<Data>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = Call::new(keys);
        call.arg(PAGE_BYTES).arg(largest);
        let mut reply = list(self.eval(&DATA, &call).await?)?.into_iter();
        let (Some(seconds), Some(micros)) = (reply.next(), reply.next()) else {
            return Err(unexpected("data"));
        };
        self.saw_time(&seconds, &micros);
        let read = |value: Value| match value {
            Value::Nil => Data::Missing,
            Value::Int(size) => Data::TooLarge(usize::try_from(size).unwrap_or(usize::MAX)),
            Value::Array(kind) => Data::Unfit(kind.into_iter().next().map(text).unwrap_or_default()),
            value => Data::Is(bytes(value)),
        };
        Ok(reply.map(read).collect())
    }

    /// Marks jobs of a lane as started: (index of the queue, entry, what that changes). `None`: the lease is lost,
    /// nothing was done. Can be repeated as it is.
    pub async fn start(
        &mut self,
        lane: &LaneHandle,
        jobs: &[(usize, Bytes, Vec<Effect>)],
    ) -> Result<Option<Started>, StoreError> {
        let mut keys = vec![self.keys.record(&lane.id)];
        for lists in &lane.lists {
            keys.extend([lists.held.clone(), lists.parked.clone(), lists.parked_suspects.clone()]);
        }
        let mut call = Call::new(keys);
        call.arg(&lane.token).arg(jobs.len());
        for (queue, entry, effects) in jobs {
            call.arg(queue + 1).arg(&entry[..]);
            call.effects(effects, &lane.counters);
        }
        let mut reply = list(self.eval(&START, &call).await?)?.into_iter();
        match reply.next().map(text).as_deref() {
            Some("OK") => {}
            Some("LOST") => return Ok(None),
            _ => return Err(unexpected("start")),
        }
        let (Some(seconds), Some(micros), Some(letters), Some(errors)) =
            (reply.next(), reply.next(), reply.next(), reply.next())
        else {
            return Err(unexpected("start"));
        };
        self.saw_time(&seconds, &micros);
        self.replicated().await?;
        Ok(Some(Started {
            statuses: Status::all(&bytes(letters)),
            refusals: list(errors)?.into_iter().map(Refusal::read).collect::<Result<_, _>>()?,
        }))
    }
}
