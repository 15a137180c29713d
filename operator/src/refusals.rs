//! Watches that the API server refuses: without them the operator goes on, and with less than its users count on.
use std::collections::HashSet;

use kube::runtime::watcher::Error;

/// What was said of them: each missing right once, because a watch is tried again for ever.
#[derive(Debug, Default)]
pub struct Refusals(HashSet<String>);

impl Refusals {
    /// Says of a watch that it failed; of a missing right, which somebody has to give, so that it is seen.
    pub fn note(&mut self, what: &'static str, without: &'static str, error: &Error) {
        if let Some(refusal) = self.news(error) {
            tracing::warn!(
                watch = what,
                error = refusal,
                consequence = without,
                "Was refused the right to watch"
            );
        } else {
            tracing::debug!(watch = what, error = %error, "Could not watch");
        }
    }

    /// What the API server said, if it has refused a right and that was not said yet. It names the kind, the verb and the
    /// namespace.
    fn news(&mut self, error: &Error) -> Option<String> {
        let (Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status)) = error
        else {
            return None;
        };
        let refused = status.is_forbidden() && self.0.insert(status.message.clone());
        refused.then(|| status.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(code: u16, reason: &str, message: &str) -> Error {
        let status = json!({ "status": "Failure", "code": code, "reason": reason, "message": message });
        Error::InitialListFailed(kube::Error::Api(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn each_right_that_is_missing_is_told_once_and_nothing_else() {
        let mut refusals = Refusals::default();
        let pods = || answer(403, "Forbidden", "pods is forbidden: cannot list resource \"pods\"");
        assert_eq!(
            refusals.news(&pods()).as_deref(),
            Some("pods is forbidden: cannot list resource \"pods\"")
        );
        assert_eq!(refusals.news(&pods()), None);
        assert!(refusals.news(&answer(403, "Forbidden", "nodes is forbidden")).is_some());
        assert_eq!(refusals.news(&answer(500, "InternalError", "etcd is away")), None);
        assert_eq!(refusals.news(&Error::NoResourceVersion), None);
    }
}
