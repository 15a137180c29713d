//! Whether the cluster has the kind `PodMonitor`: the Prometheus operator may come after us, and go.
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::Mutex;

/// How often it is asked.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// How soon, when there was no answer.
const ASK_AGAIN_UNANSWERED: Duration = Duration::from_secs(10);
/// How long an answer may take: every queue waits for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was found last.
#[derive(Default)]
pub struct PodMonitors(Mutex<Known>);

#[derive(Default)]
struct Known {
    there: bool,
    /// When to ask again; nothing before the first time.
    until: Option<Instant>,
}

impl Known {
    fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Takes an answer, or that there was none: then what was known stands.
    fn note(&mut self, answer: Option<bool>, now: Instant) {
        self.there = answer.unwrap_or(self.there);
        self.until = Some(now + answer.map_or(ASK_AGAIN_UNANSWERED, |_| ASK_AGAIN));
    }
}

impl PodMonitors {
    /// Whether the kind is there.
    pub async fn are_known(&self, client: &Client) -> bool {
        let mut known = self.0.lock().await;
        if known.is_due(Instant::now()) {
            known.note(ask(client).await, Instant::now());
        }
        known.there
    }
}

async fn ask(client: &Client) -> Option<bool> {
    match tokio::time::timeout(PATIENCE, client.list_api_group_resources("monitoring.coreos.com/v1")).await {
        Ok(Ok(list)) => Some(list.resources.iter().any(|one| one.kind == "PodMonitor")),
        // Such an answer has no reason, only a code.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Some(false),
        Ok(Err(error)) => {
            tracing::warn!(error = %error, "Could not ask for the kind PodMonitor");
            None
        }
        Err(_) => {
            tracing::warn!("Could not ask for the kind PodMonitor in time");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_comes_or_goes_is_noticed_and_no_answer_changes_nothing() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut known = Known::default();
        assert!(known.is_due(start), "nobody has asked yet");
        known.note(None, start);
        assert_eq!((known.there, known.is_due(at(9)), known.is_due(at(10))), (false, false, true));
        known.note(Some(true), at(10));
        assert_eq!((known.there, known.is_due(at(609)), known.is_due(at(610))), (true, false, true));
        known.note(None, at(610));
        assert!(known.there && known.is_due(at(620)));
        known.note(Some(false), at(620));
        assert!(!known.there && !known.is_due(at(700)));
    }
}
