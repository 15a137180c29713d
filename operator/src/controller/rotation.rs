//! A new password for a managed Redis, without a moment in which nobody gets in. Whoever changes the annotation
//! `jobqueue.dev/rotate-password` of a `JobQueue` asks for one; it takes three steps:
//!
//! 1. the Secret has the next password beside the present one, and so has the file that Redis reads when it starts;
//! 2. Redis takes both, and the Secret tells clients the new one; they read it at their next connect;
//! 3. when every pod must have the new Secret mounted, Redis takes the old one no more.
//!
//! A crash between two steps, or in the middle of one, leaves a state from which the same step is taken again. Connections
//! that stand are not touched by any of it.
use std::time::Duration;

use jiff::Timestamp;
use jobqueue::connect::Connector;
use jobqueue::store::Session;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::build::{SECRET, users_acl};
use super::names::Names;
use super::resolve::SecretData;
use super::{Context, Error};
use crate::api::v1alpha1::JobQueue;
use crate::observer::Target;

/// What a user changes to have a new password.
pub const WISH: &str = "jobqueue.dev/rotate-password";
/// On the Secret: the wish that was fulfilled last, and when.
const FULFILLED: &str = "jobqueue.dev/rotated-for";

/// A kubelet brings a changed Secret to a pod within its sync period and cache time, two minutes by default; and a worker
/// that connects with the old one in between tries again until it has the new one.
const GRACE: Duration = Duration::from_secs(180);

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Write the next password beside the present one.
    Prepare,
    /// Let Redis take both and tell clients the new one.
    Switch,
    /// Wait until everybody has the new one.
    Wait(Duration),
    /// Let Redis take the old one no more.
    Finish,
}

/// What the Secret says about the wish. `fulfilled` is the wish and the second of the last rotation.
pub fn next(
    wish: Option<&str>,
    fulfilled: Option<(&str, i64)>,
    has_next: bool,
    has_previous: bool,
    now: i64,
) -> Step {
    if has_previous {
        let since = fulfilled.map_or(0, |(_, at)| now.saturating_sub(at));
        let passed = Duration::from_secs(u64::try_from(since).unwrap_or(0));
        return if passed >= GRACE { Step::Finish } else { Step::Wait(GRACE - passed) };
    }
    match wish {
        None => Step::Rest,
        Some(wish) if fulfilled.is_some_and(|(last, _)| last == wish) => Step::Rest,
        Some(_) if has_next => Step::Switch,
        Some(_) => Step::Prepare,
    }
}

impl Context {
    /// One step of a rotation, if one is wished for; when the next one is due.
    pub(super) async fn rotate(
        &self,
        queue: &JobQueue,
        secret: &SecretData,
        target: &Target,
    ) -> Result<Option<Duration>, Error> {
        let wish = queue.annotations().get(WISH).map(String::as_str);
        let fulfilled = secret.annotations.get(FULFILLED).and_then(|text| text.split_once(' '));
        let fulfilled = fulfilled.and_then(|(at, wish)| Some((wish, at.parse::<i64>().ok()?)));
        let now = Timestamp::now().as_second();
        let text = |key: &str| secret.text(key).unwrap_or_default();
        let step = next(wish, fulfilled, secret.has("next"), secret.has("previous"), now);
        let changes = match &step {
            Step::Rest => return Ok(None),
            Step::Wait(left) => return Ok(Some(*left)),
            Step::Prepare => {
                let next = super::generated_password();
                json!({ "stringData": { "next": next, "users.acl": users_acl(&[&text("password"), &next]) } })
            }
            Step::Switch => {
                self.set_password(target, &format!(">{}", text("next"))).await?;
                json!({
                    "metadata": { "annotations": { FULFILLED: format!("{now} {}", wish.unwrap_or_default()) } },
                    "stringData": { "password": text("next"), "previous": text("password") },
                    "data": { "next": null },
                })
            }
            Step::Finish => {
                self.set_password(target, &format!("<{}", text("previous"))).await?;
                json!({ "stringData": { "users.acl": users_acl(&[&text("password")]) }, "data": { "previous": null } })
            }
        };
        self.write_secret(queue, &changes).await?;
        tracing::info!(step = ?step, "Took a step of the rotation of the password");
        Ok(Some(Duration::from_secs(1)))
    }

    /// Changes the passwords that a Redis takes; which, is no text for a log.
    async fn set_password(&self, target: &Target, change: &str) -> Result<(), Error> {
        let Some(shard) = target.shards.first() else { return Ok(()) };
        let mut session =
            Session::new(&Connector::new(target.settings.clone()), shard, Duration::from_secs(1));
        session.change_password(change).await.map_err(|error| Error::Redis(error.to_string()))
    }

    async fn write_secret(&self, queue: &JobQueue, changes: &Value) -> Result<(), Error> {
        let name = Names::of(queue).part("redis");
        let api = self.dynamic(&SECRET, queue);
        api.patch(&name, &PatchParams::default(), &Patch::Merge(changes)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    #[test]
    fn without_a_wish_nothing_happens() {
        assert_eq!(next(None, None, false, false, NOW), Step::Rest);
        assert_eq!(next(Some("a"), Some(("a", 5)), false, false, NOW), Step::Rest);
    }

    #[test]
    fn a_wish_is_fulfilled_in_three_steps() {
        assert_eq!(next(Some("b"), Some(("a", 5)), false, false, NOW), Step::Prepare);
        assert_eq!(next(Some("b"), Some(("a", 5)), true, false, NOW), Step::Switch);
        assert_eq!(next(Some("b"), Some(("b", NOW)), false, true, NOW), Step::Wait(GRACE));
        assert_eq!(next(Some("b"), Some(("b", NOW)), false, true, NOW + 180), Step::Finish);
        assert_eq!(next(Some("b"), Some(("b", NOW)), false, false, NOW + 180), Step::Rest);
    }

    #[test]
    fn a_second_wish_waits_for_the_end_of_the_first() {
        assert_eq!(
            next(Some("c"), Some(("b", NOW)), false, true, NOW + 10),
            Step::Wait(Duration::from_secs(170))
        );
    }
}
