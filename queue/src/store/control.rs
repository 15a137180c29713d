//! What somebody outside of the workers tells them: to take no more jobs, why a process died, that reaping is done.
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use redis::{Cmd, Value};

use super::{Call, DRAINED, Session, StoreError, number, text};

/// So many lanes of each registry are looked at in one step: 1,000 take Redis about 9 ms.
pub(super) const LANES: usize = 1000;
/// So many steps at most: of more lanes nothing is certain.
pub(super) const PAGES: usize = 100;

impl Session {
    /// Tells a process to take no more jobs for so long; it acknowledges by this word. Told again, it stays told longer.
    pub async fn quiet(&mut self, process: &str, word: &str, lasting: Duration) -> Result<(), StoreError> {
        let key = self.keys.quiet(process);
        self.set_for(&key, word, lasting).await
    }

    /// Lets a process take jobs again.
    pub async fn resume(&mut self, process: &str) -> Result<(), StoreError> {
        let key = self.keys.quiet(process);
        self.unlink(&key).await.map(drop)
    }

    /// Which of these processes (pod, word) have acknowledged their word and hold nothing. Those stay so for `lasting`,
    /// whatever else happens: time enough to end them. Ask after they were told: a lane that is opened later than that
    /// takes nothing before it has seen the word, so only those matter that are there now.
    pub async fn drained(
        &mut self,
        processes: &[(String, String)],
        lasting: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let mut drained = Vec::with_capacity(processes.len());
        let Some(mut lanes) = self.lanes_of(processes).await? else {
            return Ok(vec![false; processes.len()]);
        };
        for page in processes.chunks(LANES) {
            let call = |(pod, word): &(String, String)| {
                let lanes = lanes.remove(pod.as_str()).unwrap_or_default();
                let mut keys = vec![self.keys.quiet(pod)];
                keys.extend(lanes.iter().map(|lane| self.keys.record(lane)));
                let mut call = Call::new(keys);
                call.arg(word).arg(millis(lasting));
                call
            };
            let calls: Vec<Call> = page.iter().map(call).collect();
            drained.extend(self.eval_all(&DRAINED, &calls).await?.iter().map(|one| number(one) == Some(1)));
        }
        Ok(drained)
    }

    /// The lanes of these pods' processes; nothing when there are more lanes than can be looked at.
    async fn lanes_of<'a>(
        &mut self,
        processes: &'a [(String, String)],
    ) -> Result<Option<HashMap<&'a str, BTreeSet<String>>>, StoreError> {
        let mut found: HashMap<&str, BTreeSet<String>> =
            processes.iter().map(|(pod, _)| (pod.as_str(), BTreeSet::new())).collect();
        let (mut cursor, mut looked_at) = ("0".to_owned(), 0);
        while looked_at <= PAGES * LANES {
            let (next, lanes) = self.scan_lanes(false, &cursor, LANES).await?;
            let pod = |lane: &String| {
                let mut get = Cmd::new();
                get.arg("HGET").arg(self.keys.record(lane)).arg("pod");
                get
            };
            let pods = self.query_all(lanes.iter().map(pod).collect()).await?;
            looked_at += lanes.len().max(1);
            for (lane, pod) in lanes.into_iter().zip(pods.into_iter().map(text)) {
                if let Some(its) = found.get_mut(pod.as_str()) {
                    its.insert(lane);
                }
            }
            if next == "0" {
                return Ok(found.values().all(|lanes| lanes.len() <= LANES).then_some(found));
            }
            cursor = next;
        }
        Ok(None)
    }

    /// Remembers for so long that the breaker of a queue is open, or that it is not any more.
    pub async fn tell_breaker(&mut self, queue: &str, open: Option<Duration>) -> Result<(), StoreError> {
        let key = self.keys.breaker(queue);
        match open {
            Some(lasting) => self.set_for(&key, "open", lasting).await,
            None => self.unlink(&key).await.map(drop),
        }
    }

    /// Says that the operator reaps, so that workers need not.
    pub async fn mark_central(&mut self, by: &str, lasting: Duration) -> Result<(), StoreError> {
        let key = self.keys.central();
        self.set_for(&key, by, lasting).await
    }

    /// Tells a process why its handler died, for so long.
    pub async fn tell_death(
        &mut self,
        process: &str,
        cause: &str,
        lasting: Duration,
    ) -> Result<(), StoreError> {
        let key = self.keys.handler_death(process);
        self.set_for(&key, cause, lasting).await
    }

    /// Why this process' handler died, if that is known. All jobs that died with it ask.
    pub async fn told_death(&mut self, process: &str) -> Result<Option<String>, StoreError> {
        let key = self.keys.handler_death(process);
        self.get(&key).await
    }

    async fn set_for(&mut self, key: &str, value: &str, lasting: Duration) -> Result<(), StoreError> {
        let mut set = Cmd::new();
        set.arg("SET").arg(key).arg(value).arg("PX").arg(millis(lasting));
        match self.query(&set).await? {
            Value::Okay | Value::SimpleString(_) => Ok(()),
            other => Err(StoreError::Unexpected(format!("{other:?}").chars().take(80).collect())),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
