//! What people look at beyond the queues: sorted sets by score, heartbeats, Redis' own figures. Reads only.
use std::collections::HashMap;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{Call, PAGE_BYTES, SCORED, Session, StoreError, bytes, list, number, text, unexpected};

/// Which part of a sorted set a page reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// From the highest score down, instead of from the lowest up.
    pub down: bool,
    /// The score to begin with.
    pub from: String,
    /// The last score.
    pub to: String,
    /// Entries to skip first.
    pub skip: u64,
}

impl Span {
    /// All of it, the lowest score first.
    pub fn up() -> Self {
        Self { down: false, from: "-inf".into(), to: "+inf".into(), skip: 0 }
    }

    /// All of it, the highest score first.
    pub fn down() -> Self {
        Self { down: true, from: "+inf".into(), to: "-inf".into(), skip: 0 }
    }

    /// Goes on behind an entry that was read and is still there.
    pub fn pass(&mut self, score: &str) {
        if self.from == score {
            self.skip += 1;
        } else {
            score.clone_into(&mut self.from);
            self.skip = 1;
        }
    }
}

/// Some entries of a sorted set.
#[derive(Debug, Clone, Default)]
pub struct ScoredPage {
    /// All that the set holds.
    pub length: u64,
    /// Each with its score, as Redis writes it.
    pub entries: Vec<(Bytes, String)>,
}

impl Session {
    /// Reads a page of a sorted set, bounded by count and bytes.
    pub async fn scored(&mut self, key: &str, span: &Span, count: usize) -> Result<ScoredPage, StoreError> {
        let mut call = Call::new(vec![key.to_owned()]);
        call.arg(if span.down { "down" } else { "up" }).arg(&span.from).arg(&span.to);
        call.arg(span.skip).arg(count).arg(PAGE_BYTES);
        let mut reply = list(self.eval(&SCORED, &call).await?)?.into_iter();
        let (Some(seconds), Some(micros), Some(length)) = (reply.next(), reply.next(), reply.next()) else {
            return Err(unexpected("scored"));
        };
        self.saw_time(&seconds, &micros);
        let mut entries = Vec::new();
        while let (Some(entry), Some(score)) = (reply.next(), reply.next()) {
            entries.push((bytes(entry), text(score)));
        }
        Ok(ScoredPage { length: number(&length).unwrap_or(0), entries })
    }

    /// What the heartbeats of some lanes say: the oldest job in flight. In one round trip; empty for none.
    pub async fn heartbeat_words(&mut self, lanes: &[String]) -> Result<Vec<Bytes>, StoreError> {
        let get = |lane: &String| {
            let mut get = Cmd::new();
            get.arg("GET").arg(self.keys.heartbeat(lane));
            get
        };
        let commands = lanes.iter().map(get).collect();
        Ok(self.query_all(commands).await?.into_iter().map(bytes).collect())
    }

    /// Which of these processes (by pod uid, else `host-pid`) are told to take no more jobs, in one round trip.
    pub async fn told_quiet(&mut self, processes: &[String]) -> Result<Vec<bool>, StoreError> {
        let exists = |process: &String| {
            let mut exists = Cmd::new();
            exists.arg("EXISTS").arg(self.keys.quiet(process));
            exists
        };
        let commands = processes.iter().map(exists).collect();
        Ok(self.query_all(commands).await?.iter().map(|one| number(one) == Some(1)).collect())
    }

    /// The types of some keys, in one round trip; `none` for one that is gone.
    pub async fn types(&mut self, keys: &[String]) -> Result<Vec<String>, StoreError> {
        let kind = |key: &String| {
            let mut kind = Cmd::new();
            kind.arg("TYPE").arg(key);
            kind
        };
        let commands = keys.iter().map(kind).collect();
        Ok(self.query_all(commands).await?.into_iter().map(text).collect())
    }

    /// How many members a sorted set has.
    pub async fn members(&mut self, key: &str) -> Result<u64, StoreError> {
        let mut get = Cmd::new();
        get.arg("ZCARD").arg(key);
        match self.query(&get).await {
            Err(StoreError::Unexpected(reason)) => Err(self.unfit(&[key.to_owned()], reason).await),
            length => Ok(number(&length?).unwrap_or(0)),
        }
    }

    /// Names something in a set.
    pub async fn name_in(&mut self, set: &str, name: &str) -> Result<(), StoreError> {
        let mut add = Cmd::new();
        add.arg("SADD").arg(set).arg(name);
        self.query(&add).await.map(drop)
    }

    /// What Redis says of itself, field by field.
    pub async fn info(&mut self) -> Result<HashMap<String, String>, StoreError> {
        let mut info = Cmd::new();
        info.arg("INFO");
        let said = match self.query(&info).await? {
            Value::VerbatimString { text, .. } => text,
            other => text(other),
        };
        let field =
            |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(said.lines().filter_map(|line| field(line.trim())).collect())
    }

    /// One of Redis' settings; `None` when we may not ask.
    pub async fn setting(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("CONFIG").arg("GET").arg(name);
        match self.query(&get).await {
            // A managed Redis may have renamed the command, or denies it.
            Err(StoreError::Denied { .. } | StoreError::Unexpected(_)) => Ok(None),
            answer => Ok(list(answer?)?.into_iter().nth(1).map(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_goes_on_behind_what_stays() {
        let mut span = Span::up();
        for score in ["1", "1", "2"] {
            span.pass(score);
        }
        assert_eq!((span.from.as_str(), span.skip), ("2", 1));
        span.pass("2");
        assert_eq!((span.from.as_str(), span.skip), ("2", 2));
    }
}
