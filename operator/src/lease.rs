//! Leadership: one of several operators works, the others wait. A lease in the Kubernetes API says who, until when.
//!
//! Every write carries the version that was read, so of two that want it one wins. Who cannot renew in time has lost it
//! and ends the process: another may lead already. (It does not fence what we do in Redis; that is safe when doubled.)
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::health::Health;

/// How long a leader may be silent before another takes over. Together with [`RETRY`] it bounds a failover: 12 s.
pub const DURATION: Duration = Duration::from_secs(10);
/// How often the leader renews: four tries within the duration.
pub const RENEW: Duration = Duration::from_millis(2500);
/// How often others look.
const RETRY: Duration = Duration::from_secs(2);
/// One call; shorter than what is left after a missed one.
const CALL: Duration = Duration::from_secs(3);

/// How often somebody else may be faster where the lease is to be taken at any cost.
const USURPATIONS: u32 = 10;
/// How long nobody may lead after a usurpation: until helm has deleted the operators. Should it not, they go on then.
const USURPED: Duration = Duration::from_secs(60);

/// What to do about the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nobody has it: take it.
    Acquire,
    /// It is ours: renew it.
    Renew,
    /// Somebody else has it.
    Wait,
}

/// What a lease says to `me`. `stale` is how long it has not changed, by the clock of who watches it: the clocks of two
/// machines need not agree.
pub fn next(lease: Option<&LeaseSpec>, me: &str, stale: Duration) -> Step {
    let Some(lease) = lease else { return Step::Acquire };
    match lease.holder_identity.as_deref() {
        None | Some("") => Step::Acquire,
        Some(holder) if holder == me => Step::Renew,
        Some(_) => {
            let seconds = u64::try_from(lease.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            if stale > Duration::from_secs(seconds) { Step::Acquire } else { Step::Wait }
        }
    }
}

/// The lease of one operator installation.
pub struct Leadership {
    api: Api<Lease>,
    name: String,
    me: String,
    seen: Option<(String, tokio::time::Instant)>,
    health: Arc<Health>,
}

impl Leadership {
    /// Not leading yet. `me` must be unique: the name of the pod.
    pub fn new(client: Client, namespace: &str, name: &str, me: &str, health: Arc<Health>) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.into(), me: me.into(), seen: None, health }
    }

    /// Waits until it is ours.
    pub async fn acquire(&mut self) {
        loop {
            self.health.attended_lease();
            match tokio::time::timeout(CALL, self.try_once()).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(error = %error, "Could not look at the lease"),
                Err(_) => tracing::warn!("Could not look at the lease in time"),
            }
            // Not all at once.
            tokio::time::sleep(RETRY.mul_f64(fastrand::f64().mul_add(0.2, 0.9))).await;
        }
    }

    /// Takes the lease from whoever has it and waits until that one must have noticed: for an uninstall, while which
    /// nobody may lead. One that nobody has (a leader has just stopped) is taken too, or another would lead in a moment.
    async fn usurp(&mut self) -> Result<(), kube::Error> {
        let mut faster = 0;
        let before = loop {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            let before = lease.spec.take().unwrap_or_default();
            lease.spec = Some(self.usurped(&before, &MicroTime(Timestamp::now())));
            match self.api.replace(&self.name, &PostParams::default(), &lease).await {
                Ok(_) => break before,
                // The leader has renewed it meanwhile, as it does every few seconds.
                Err(kube::Error::Api(status)) if status.is_conflict() && faster < USURPATIONS => faster += 1,
                Err(error) => return Err(error),
            }
        };
        // A leader that cannot reach the API just now leads until its time is up, and no longer.
        if before.holder_identity.is_some_and(|holder| !holder.is_empty() && holder != self.me) {
            tokio::time::sleep(DURATION).await;
        }
        Ok(())
    }

    /// Does what nobody may lead during, however long it takes, and leaves the usurped lease as long as it was at first.
    pub async fn usurping<T, E: From<kube::Error>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.usurp().await?;
        let renew = async {
            loop {
                tokio::time::sleep(USURPED / 4).await;
                if let Err(error) = self.usurp().await {
                    return error;
                }
            }
        };
        let done = tokio::select! {
            done = work => done?,
            error = renew => return Err(error.into()),
        };
        self.usurp().await?;
        Ok(done)
    }

    /// Renews until it cannot be any more.
    pub async fn keep(&mut self) {
        let mut renewed = tokio::time::Instant::now();
        loop {
            self.health.attended_lease();
            tokio::time::sleep(RENEW).await;
            let left = DURATION.saturating_sub(renewed.elapsed());
            // Counted from the question: others count from when it was written, which is before the answer.
            let asked = tokio::time::Instant::now();
            match tokio::time::timeout(CALL.min(left), self.try_once()).await {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(error = %error, "Could not renew the lease"),
                Err(_) => tracing::warn!("Could not renew the lease in time"),
            }
            if renewed.elapsed() >= DURATION {
                return;
            }
        }
    }

    /// Gives it up, so that the next one need not wait for it to run out.
    pub async fn release(&mut self) {
        let released = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(self.me.as_str()) {
                spec.holder_identity = None;
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if let Ok(Err(error)) = tokio::time::timeout(CALL, released).await {
            tracing::warn!(error = %error, "Could not release the lease");
        }
    }

    /// Looks, and takes or renews it if it is to be had; whether it is ours now.
    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        let found = self.api.get_opt(&self.name).await?;
        let version =
            found.as_ref().and_then(|lease| lease.metadata.resource_version.clone()).unwrap_or_default();
        let now = tokio::time::Instant::now();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => now,
        };
        self.seen = Some((version, since));
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        let step = next(spec, &self.me, now - since);
        if step == Step::Wait {
            self.health.saw_leader(spec.and_then(|spec| spec.holder_identity.as_deref()));
            return Ok(false);
        }
        let time = MicroTime(Timestamp::now());
        let written = match found {
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(self.spec(None, &time)) };
                self.api.create(&PostParams::default(), &lease).await
            }
            Some(mut lease) => {
                let renewing = (step == Step::Renew).then(|| lease.spec.clone().unwrap_or_default());
                let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
                let mut spec = self.spec(renewing, &time);
                if step == Step::Acquire {
                    spec.lease_transitions = Some(transitions.saturating_add(1));
                }
                lease.spec = Some(spec);
                self.api.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(_) => {
                self.health.saw_leader(Some(&self.me));
                Ok(true)
            }
            // Somebody was faster.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                self.health.saw_leader(None);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// What a lease says when it is taken at any cost, or has been and is renewed.
    fn usurped(&self, before: &LeaseSpec, time: &MicroTime) -> LeaseSpec {
        let ours = next(Some(before), &self.me, Duration::ZERO) == Step::Renew;
        let transitions = before.lease_transitions.unwrap_or(0).saturating_add(i32::from(!ours));
        LeaseSpec {
            lease_duration_seconds: i32::try_from(USURPED.as_secs()).ok(),
            lease_transitions: Some(transitions),
            ..self.spec(ours.then(|| before.clone()), time)
        }
    }

    fn spec(&self, renewing: Option<LeaseSpec>, time: &MicroTime) -> LeaseSpec {
        let fresh = LeaseSpec { acquire_time: Some(time.clone()), ..LeaseSpec::default() };
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX)),
            renew_time: Some(time.clone()),
            ..renewing.unwrap_or(fresh)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(10),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_nobody_holds_it() {
        assert_eq!(next(None, "me", Duration::ZERO), Step::Acquire);
        assert_eq!(next(Some(&LeaseSpec::default()), "me", Duration::ZERO), Step::Acquire);
        assert_eq!(next(Some(&held_by("")), "me", Duration::ZERO), Step::Acquire);
    }

    #[test]
    fn the_holder_renews_however_long_it_was_silent() {
        assert_eq!(next(Some(&held_by("me")), "me", Duration::ZERO), Step::Renew);
        assert_eq!(next(Some(&held_by("me")), "me", Duration::from_secs(100)), Step::Renew);
    }

    #[test]
    fn another_waits_until_the_holder_has_been_silent_for_the_duration() {
        assert_eq!(next(Some(&held_by("other")), "me", Duration::from_secs(10)), Step::Wait);
        assert_eq!(next(Some(&held_by("other")), "me", Duration::from_millis(10_001)), Step::Acquire);
    }
}
