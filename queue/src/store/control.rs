//! What somebody outside of the workers tells them: to take no more jobs, why a process died, that reaping is done.
use std::time::Duration;

use redis::{Cmd, Value};

use super::{Call, DRAINED, Session, StoreError, list, number};

/// So many lanes of each registry are looked at in one step: 1,000 take Redis about 9 ms. Of more nothing is certain.
pub(super) const LANES: usize = 1000;

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
    /// whatever else happens: time enough to end them.
    pub async fn drained(
        &mut self,
        processes: &[(String, String)],
        lasting: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let mut keys = vec![self.keys.lanes()];
        keys.extend(processes.iter().map(|(pod, _)| self.keys.quiet(pod)));
        let mut call = Call::new(keys);
        call.arg(self.keys.record("")).arg(LANES).arg(millis(lasting));
        for (pod, word) in processes {
            call.arg(pod).arg(word);
        }
        let answer = list(self.eval(&DRAINED, &call).await?)?;
        Ok(answer.iter().map(|one| number(one) == Some(1)).collect())
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

    /// Takes the news of why this process' handler died, if there is any.
    pub async fn take_death(&mut self, process: &str) -> Result<Option<String>, StoreError> {
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
