//! What can go wrong in a reconcile, and what follows from it.

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Trying again will not help: somebody must change something, and the message says what.
    #[error("{message}")]
    Stalled {
        /// One word in camel case.
        reason: &'static str,
        /// What to do.
        message: String,
    },
    /// It cannot take place now, and will by itself: no failure.
    #[error("{message}")]
    Waits {
        /// One word in camel case.
        reason: &'static str,
        /// For what.
        message: String,
    },
    /// As many others as may are asking their Redises now: it is not its turn yet.
    #[error("others are asking their Redises")]
    Busy,
    /// Redis refused or could not be reached.
    #[error("{0}")]
    Redis(String),
    /// Somebody took too long to answer.
    #[error("it took too long: Redis or the Kubernetes API is slow to answer")]
    Late,
    /// The Kubernetes API refused or could not be reached.
    #[error("the Kubernetes API answered: {}", told(.0))]
    Kube(#[from] kube::Error),
}

impl Error {
    pub(super) fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Stalled { reason, message: message.into() }
    }

    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Stalled { reason, .. } | Self::Waits { reason, .. } => reason,
            Self::Busy => "Busy",
            Self::Redis(_) => "RedisError",
            Self::Late => "TimedOut",
            Self::Kube(_) => "ApiError",
        }
    }

    /// Invalid objects are refused however often they are sent.
    pub(super) fn is_stalled(&self) -> bool {
        match self {
            Self::Stalled { .. } => true,
            // An apply with a field that Kubernetes does not know is answered with 500.
            Self::Kube(kube::Error::Api(status)) => {
                matches!(status.code, 400 | 422) || status.message.contains("field not declared in schema")
            }
            Self::Waits { .. } | Self::Busy | Self::Redis(_) | Self::Late | Self::Kube(_) => false,
        }
    }

    /// One that may be over before anybody has read of it.
    pub(super) fn is_passing(&self) -> bool {
        !self.is_stalled() && !matches!(self, Self::Waits { .. })
    }

    /// Nothing can be created in a namespace that is going away, and nothing has to be.
    pub(super) fn is_terminating(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.code == 403 && status.message.contains("being terminated"))
    }
}

/// What the API server said, without the noise around it.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
impl Error {
    /// What the Kubernetes API answers when it refuses.
    pub(super) fn refusal(code: u16, message: &str) -> Self {
        let status =
            serde_json::json!({ "status": "Failure", "code": code, "message": message, "reason": "" });
        Self::Kube(kube::Error::Api(serde_json::from_value(status).unwrap()))
    }
}
