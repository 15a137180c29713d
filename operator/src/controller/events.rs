//! What users are told: the status, and events for what has turned.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::{Context, Error, build};
use crate::api::conditions::{READY, RECONCILING};
use crate::api::stored::Stored;
use crate::api::v1alpha1::{JobQueue, JobQueueStatus, ScalingMode};

impl Context {
    /// Writes the status if it says something new, and an event when the queue becomes ready or stops being so.
    pub(super) async fn tell(&self, queue: &JobQueue, status: JobQueueStatus) -> Result<(), Error> {
        if queue.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let ready = |conditions: &[Condition]| {
            let ready = conditions.iter().find(|one| one.type_ == READY)?;
            Some((ready.status.clone(), ready.reason.clone(), ready.message.clone()))
        };
        let before = queue.status.as_ref().and_then(|status| ready(&status.conditions));
        let now = ready(&status.conditions);
        let waits = news(
            queue.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default(),
            &status.conditions,
        );
        let api: Api<Stored> = Api::namespaced(self.client.clone(), &queue.namespace().unwrap_or_default());
        let patch = json!({ "status": status });
        self.pace.write().await;
        api.patch_status(&queue.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let turned = before.as_ref().map(|(status, reason, _)| (status, reason))
            != now.as_ref().map(|(status, reason, _)| (status, reason));
        if let (true, Some((status, reason, message))) = (turned, now) {
            let type_ = if status == "True"
                || matches!(reason.as_str(), "RedisStarting" | "Connecting" | "WorkersStarting")
            {
                EventType::Normal
            } else {
                EventType::Warning
            };
            self.publish(queue, type_, &reason, "Reconcile", message).await;
        }
        if let Some((reason, message)) = waits {
            self.publish(queue, EventType::Normal, &reason, "Reconcile", message).await;
        }
        Ok(())
    }

    /// An event is worth no failure.
    pub(super) async fn publish(
        &self,
        queue: &JobQueue,
        type_: EventType,
        reason: &str,
        action: &str,
        note: String,
    ) {
        match self.recorder.publish(&event(type_, reason, action, &note), &queue.object_ref(&())).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => {
                tracing::debug!(error = status.message, "No event: the namespace goes away");
            }
            Err(error) => tracing::warn!(error = %error, "Could not publish an event"),
        }
    }
}

/// An event with this note. The recorder takes two of the same reason and action within six minutes for one that repeats
/// itself, and keeps the words of the first: so the action tells apart what is said.
fn event(type_: EventType, reason: &str, action: &str, note: &str) -> Event {
    let note: String = note.chars().take(1000).collect();
    let action = format!("{action}-{}", build::hash(&json!(note)));
    Event { type_, reason: reason.into(), action, note: Some(note), secondary: None }
}

/// What to say to whoever has scaled a queue that scales itself.
pub fn ignored(queue: &JobQueue) -> Option<String> {
    let number = queue.spec.replicas.filter(|_| queue.spec.scaling.mode == ScalingMode::Auto)?;
    Some(format!(
        "spec.replicas = {number} has no effect: scaling.mode is Auto, and the number of workers follows the number of jobs between \
         minReplicas and maxReplicas; set scaling.mode: Manual to have kubectl scale and autoscalers obeyed"
    ))
}

/// That a change waits, if that is new. A queue that is not ready for that very reason says so itself.
fn news(before: &[Condition], now: &[Condition]) -> Option<(String, String)> {
    let find = |conditions: &[Condition], kind: &str| {
        let found = conditions.iter().find(|one| one.type_ == kind)?;
        Some((found.reason.clone(), found.message.clone()))
    };
    let (reason, message) = find(now, RECONCILING)?;
    let known = find(before, RECONCILING).is_some_and(|(earlier, _)| earlier == reason);
    let said = find(now, READY).is_some_and(|(ready, _)| ready == reason);
    (!known && !said).then_some((reason, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_repeats_an_earlier_one_only_if_it_says_the_same() {
        let action = |note: &str| event(EventType::Normal, "Scaled", "Scale", note).action;
        assert_ne!(action("Scaled workers from 0 to 3"), action("Scaled workers from 3 to 0"));
        assert_eq!(action("Scaled workers from 0 to 3"), action("Scaled workers from 0 to 3"));
        assert!(action(&"x".repeat(2000)).len() <= 128, "more is refused by Kubernetes");
    }

    #[test]
    fn a_number_of_workers_has_no_effect_on_a_queue_that_scales_itself() {
        let said = |yaml: &str| {
            let spec = serde_json::from_value(serde_saphyr::from_str(yaml).unwrap()).unwrap();
            ignored(&JobQueue::new("q", spec))
        };
        assert!(said("{replicas: 3}").is_some_and(|note| note.contains("spec.replicas = 3 has no effect")));
        assert_eq!(said("{replicas: 3, scaling: {mode: Manual}}"), None);
        assert_eq!(said("{}"), None);
    }
}
