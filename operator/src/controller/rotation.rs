//! A new password for a managed Redis, without a moment in which nobody gets in. Whoever changes the annotation
//! `jobqueue.dev/rotate-password` of a `JobQueue` asks for one; it takes four steps:
//!
//! 1. the Secret has the next password beside the present one, and so has the file that Redis reads when it starts;
//! 2. when that file must have reached Redis' pod (it may start again at any time), Redis takes both, and the Secret tells clients the new one; they read it at their next connect;
//! 3. when every pod must have the new Secret mounted, Redis takes the old one no more;
//! 4. when the file without it must have reached Redis' pod too, it is taken from Redis once more: one that has started again meanwhile has read it.
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
use super::{Context, Error, managed_redis};
use crate::api::v1alpha1::JobQueue;
use crate::observer::Target;

/// What a user changes to have a new password.
pub const WISH: &str = "jobqueue.dev/rotate-password";
/// On the Secret: the wish that was fulfilled last.
const FULFILLED: &str = "jobqueue.dev/rotated-for";
/// On the Secret: the second of the last step.
const STEPPED: &str = "jobqueue.dev/rotation-stepped";

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
    /// Do so again, in case that Redis has read the file of before.
    Seal,
}

/// What a Secret says about a rotation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Said<'a> {
    /// The wish that was fulfilled last.
    pub fulfilled: Option<&'a str>,
    /// The second of the last step.
    pub stepped: Option<i64>,
    /// There is a password that Redis will take.
    pub next: bool,
    /// There is a password that Redis still takes.
    pub previous: bool,
    /// There is a password that Redis may take again if it starts.
    pub former: bool,
}

/// The next step towards what is wished for.
pub fn next(wish: Option<&str>, said: Said, now: i64) -> Step {
    let passed = said
        .stepped
        .map_or(GRACE, |at| Duration::from_secs(u64::try_from(now.saturating_sub(at)).unwrap_or(0)));
    let in_time = |step: Step| if passed >= GRACE { step } else { Step::Wait(GRACE.saturating_sub(passed)) };
    match wish {
        _ if said.previous => in_time(Step::Finish),
        _ if said.next => in_time(Step::Switch),
        _ if said.former => in_time(Step::Seal),
        None => Step::Rest,
        Some(_) if wish == said.fulfilled => Step::Rest,
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
        let note = |name: &str| secret.annotations.get(name).map(String::as_str);
        let said = Said {
            fulfilled: note(FULFILLED),
            stepped: note(STEPPED).and_then(|text| text.parse().ok()),
            next: secret.has("next"),
            previous: secret.has("previous"),
            former: secret.has("former"),
        };
        let now = Timestamp::now().as_second();
        let text = |key: &str| secret.text(key).unwrap_or_default();
        let step = next(wish, said, now);
        let mut changes = match &step {
            Step::Rest => return Ok(None),
            Step::Wait(left) => return Ok(Some(*left)),
            Step::Prepare => {
                let next = managed_redis::generated_password();
                json!({ "stringData": { "next": next, "users.acl": users_acl(&[&text("password"), &next]) } })
            }
            Step::Switch => {
                self.set_password(target, &format!(">{}", text("next"))).await?;
                json!({
                    "metadata": { "annotations": { FULFILLED: wish.unwrap_or_default() } },
                    "stringData": { "password": text("next"), "previous": text("password") },
                    "data": { "next": null },
                })
            }
            Step::Finish => {
                self.set_password(target, &format!("<{}", text("previous"))).await?;
                let acl = users_acl(&[&text("password")]);
                json!({
                    "stringData": { "users.acl": acl, "former": text("previous") },
                    "data": { "previous": null },
                })
            }
            Step::Seal => {
                self.set_password(target, &format!("<{}", text("former"))).await?;
                json!({ "data": { "former": null } })
            }
        };
        changes["metadata"]["annotations"][STEPPED] = json!(now.to_string());
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

    fn said(fulfilled: &'static str) -> Said<'static> {
        Said { fulfilled: Some(fulfilled), stepped: Some(NOW), ..Said::default() }
    }

    #[test]
    fn without_a_new_wish_nothing_happens() {
        assert_eq!(next(None, Said::default(), NOW), Step::Rest);
        assert_eq!(next(Some("a"), said("a"), NOW), Step::Rest);
    }

    #[test]
    fn a_wish_is_fulfilled_in_four_steps_with_time_between_them() {
        assert_eq!(next(Some("b"), said("a"), NOW), Step::Prepare);
        let prepared = Said { next: true, ..said("a") };
        assert_eq!(next(Some("b"), prepared, NOW + 10), Step::Wait(Duration::from_secs(170)));
        assert_eq!(next(Some("b"), prepared, NOW + 180), Step::Switch);
        let switched = Said { previous: true, ..said("b") };
        assert_eq!(next(Some("b"), switched, NOW + 10), Step::Wait(Duration::from_secs(170)));
        assert_eq!(next(Some("b"), switched, NOW + 180), Step::Finish);
        let finished = Said { former: true, ..said("b") };
        assert_eq!(next(Some("b"), finished, NOW + 10), Step::Wait(Duration::from_secs(170)));
        assert_eq!(next(Some("b"), finished, NOW + 180), Step::Seal);
        assert_eq!(next(Some("b"), said("b"), NOW + 180), Step::Rest);
    }

    #[test]
    fn a_second_wish_waits_for_the_end_of_the_first() {
        let switched = Said { previous: true, ..said("b") };
        assert_eq!(next(Some("c"), switched, NOW + 180), Step::Finish);
        let finished = Said { former: true, ..said("b") };
        assert_eq!(next(Some("c"), finished, NOW + 180), Step::Seal);
    }

    #[test]
    fn a_lost_note_of_the_time_stops_nothing() {
        let switched = Said { previous: true, stepped: None, ..said("b") };
        assert_eq!(next(Some("b"), switched, NOW), Step::Finish);
    }
}
