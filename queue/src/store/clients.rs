//! What clients of the HTTP API ask for: create, read, list and cancel jobs of protocol `async`. Every call can be
//! repeated: a create whose reply was lost finds its own jobs, a cancel its own bytes.
use bytes::Bytes;
use redis::Value;

use super::{CANCEL, CREATE, Call, LIST, Refusal, Session, StoreError, list, number, text, unexpected};
use crate::protocol::async_jobs::{Status, unfinished};

/// Jobs that are created together or not at all.
#[derive(Debug, Clone)]
pub struct Order {
    /// At least one.
    pub jobs: Vec<Ordered>,
    /// The hash of the idempotency key, and that of the body: the same key stands for the same body only.
    pub idempotency: Option<(String, String)>,
    /// When they were asked for.
    pub created_ms: u64,
    /// The jobs that the idempotency key stood for until now, if they are known to be gone: it counts for nothing then.
    pub gone: Vec<String>,
}

impl Order {
    /// What it weighs in a call.
    pub fn size(&self) -> usize {
        self.jobs.iter().map(|job| job.bytes.len() + job.id.len()).sum()
    }
}

/// One job of an order.
#[derive(Debug, Clone)]
pub struct Ordered {
    /// Its id.
    pub id: String,
    /// Its JSON.
    pub bytes: Bytes,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its jobs are there.
    Created,
    /// An order of the same key and body has created these before.
    Known(Vec<String>),
    /// An order of the same key and another body has created these before.
    Conflict(Vec<String>),
    /// A key refused it, nothing of it is there.
    Refused(Refusal),
}

/// A place in a list of jobs: the newest first, those of one millisecond by their ids, downwards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// When the job entered its status.
    pub ms: u64,
    /// Its id.
    pub id: String,
}

impl Session {
    /// Creates the jobs of some orders in one step, each order wholly or not at all.
    pub async fn create(&mut self, orders: &[&Order]) -> Result<Vec<Answer>, StoreError> {
        let queue = self.keys.queues.last().map(|queue| queue.queue.clone()).unwrap_or_default();
        let mut keys = vec![queue, self.keys.jobs().index(Status::Pending.as_str())];
        // A key is met once: numbered here, not searched for.
        let mut numbered = |key: String| {
            keys.push(key);
            keys.len()
        };
        let mut args: Vec<Vec<u8>> = vec![orders.len().to_string().into()];
        for order in orders {
            let ids: Vec<&str> = order.jobs.iter().map(|job| job.id.as_str()).collect();
            let (key, body) = match &order.idempotency {
                Some((hash, body)) => {
                    let key = numbered(self.keys.jobs().idem(hash));
                    numbered(unfinished(&self.keys.jobs(), hash));
                    (key, body.as_str())
                }
                None => (0, "-"),
            };
            args.push(order.jobs.len().to_string().into());
            args.push(key.to_string().into());
            args.push(ids.join(",").into());
            args.push(body.into());
            args.push(order.created_ms.to_string().into());
            args.push(order.gone.join(",").into());
            for job in &order.jobs {
                args.push(numbered(self.keys.jobs().data(&job.id)).to_string().into());
                args.push(job.id.clone().into());
                args.push(job.bytes.to_vec());
            }
        }
        let mut call = Call::new(keys);
        for arg in args {
            call.arg(&arg[..]);
        }
        let mut reply = list(self.eval(&CREATE, &call).await?)?.into_iter();
        let (Some(first), Some(second)) = (reply.next(), reply.next()) else {
            return Err(unexpected("create"));
        };
        if number(&first).is_none() {
            return Err(Refusal { key: text(first), reason: text(second) }.into());
        }
        self.saw_time(&first, &second);
        let answers = reply.map(answer).collect::<Result<Vec<_>, _>>()?;
        if answers.len() != orders.len() {
            return Err(unexpected("create"));
        }
        self.replicated().await?;
        Ok(answers)
    }

    /// Cancels a job that stood there as `from`; `false` when it has changed since.
    pub async fn cancel(
        &mut self,
        id: &str,
        status: Status,
        from: &Bytes,
        to: &Bytes,
    ) -> Result<bool, StoreError> {
        let mut call = Call::new(vec![
            self.keys.jobs().data(id),
            self.keys.jobs().index(status.as_str()),
            self.keys.jobs().index(Status::Cancelled.as_str()),
        ]);
        call.arg(id).arg(&from[..]).arg(&to[..]).arg(self.now_ms()).arg(self.keys.jobs().events());
        match self.eval(&CANCEL, &call).await? {
            Value::Int(cancelled) => {
                self.replicated().await?;
                Ok(cancelled == 1)
            }
            unfit => Err(Refusal::read(unfit)?.into()),
        }
    }

    /// The newest jobs of some statuses after a place, each with its own: up to `limit` of each status.
    pub async fn list(
        &mut self,
        statuses: &[Status],
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Place>, StoreError> {
        let mut call =
            Call::new(statuses.iter().map(|status| self.keys.jobs().index(status.as_str())).collect());
        call.arg(limit);
        match after {
            Some(place) => call.arg(place.ms).arg(&place.id),
            None => call.arg("").arg(""),
        };
        let mut places = Vec::new();
        for index in list(self.eval(&LIST, &call).await?)? {
            let mut parts = list(index)?.into_iter();
            while let (Some(id), Some(ms)) = (parts.next(), parts.next()) {
                places.push(Place { ms: number(&ms).unwrap_or(0), id: text(id) });
            }
        }
        Ok(places)
    }
}

fn answer(value: Value) -> Result<Answer, StoreError> {
    let mut parts = list(value)?.into_iter().map(text);
    let ids = |parts: &mut dyn Iterator<Item = String>| {
        parts.next().unwrap_or_default().split(',').map(str::to_owned).collect()
    };
    match parts.next().as_deref() {
        Some("created") => Ok(Answer::Created),
        Some("known") => Ok(Answer::Known(ids(&mut parts))),
        Some("conflict") => Ok(Answer::Conflict(ids(&mut parts))),
        Some("refused") => Ok(Answer::Refused(Refusal {
            key: parts.next().unwrap_or_default(),
            reason: parts.next().unwrap_or_default(),
        })),
        _ => Err(unexpected("create")),
    }
}
