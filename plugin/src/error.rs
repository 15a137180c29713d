//! Why a command did not do what it was asked for: one line that names the thing and says what to do, and an exit code.
use std::process::ExitCode;

use kube::core::Status;

/// The exit code of what was interrupted, here and in a pod.
pub const INTERRUPTED: u8 = 130;

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It ran, and something is not as it should be.
    #[error("{0}")]
    Failed(String),
    /// The call is wrong.
    #[error("{0}")]
    Usage(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// Kubernetes does not permit it.
    #[error("{0}")]
    Forbidden(String),
    /// The cluster or a pod cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The pod was gone before a command in it has said anything.
    #[error("pod {pod} went away ({why}); try again")]
    PodGone {
        /// The pod.
        pod: String,
        /// What is known of it.
        why: String,
    },
    /// A command was cut off in the middle. Every step of every command is whole, so it may be begun anew; one that would
    /// do something twice by that says so instead.
    #[error("{why} in the middle of the command; every job is in one place, once: run it again")]
    CutOff {
        /// What happened.
        why: String,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Ctrl-C, before a command that does something twice when it is run twice has said what it did.
    #[error("{0}")]
    Abandoned(String),
    /// A command inside of a pod ended with this code, and has said why.
    #[error("{said}")]
    Remote {
        /// Its exit code.
        code: u8,
        /// What it said.
        said: String,
    },
}

impl Error {
    /// What the process ends with.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::Forbidden(_) => 4,
            Self::Unreachable(_) | Self::PodGone { .. } | Self::CutOff { .. } => 5,
            Self::Interrupted | Self::Abandoned(_) => INTERRUPTED,
            Self::Remote { code, .. } => *code,
        }
    }

    /// What Kubernetes said when it was asked to do something with something: `what` reads like `get jobqueue hello`.
    pub fn of(what: &str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::refused(what, &status),
            kube::Error::Auth(error) => Self::Forbidden(format!(
                "cannot {what}: the credentials of the kubeconfig cannot be used: {error}"
            )),
            kube::Error::SerdeError(error) => Self::Failed(format!(
                "cannot {what}: the cluster answered what this version does not understand ({error}); \
                 kubectl jobqueue --version compares the versions"
            )),
            other => Self::Unreachable(format!(
                "cannot {what}: the cluster does not answer: {}; check --context and --kubeconfig",
                innermost(&other)
            )),
        }
    }

    fn refused(what: &str, status: &Status) -> Self {
        let said = status.message.trim();
        match status.code {
            401 => Self::Forbidden(format!("cannot {what}: the cluster does not know you; log in again")),
            403 => Self::Forbidden(format!(
                "cannot {what}: {said}; ask for the right, docs/kubectl.md lists which"
            )),
            404 if said.contains("could not find the requested resource")
                || said.contains("page not found") =>
            {
                Self::NotFound(format!(
                    "cannot {what}: this cluster has no JobQueues; install the operator (docs/install.md)"
                ))
            }
            404 => Self::NotFound(format!("cannot {what}: {said}")),
            _ => Self::Failed(format!("cannot {what}: {said}")),
        }
    }
}

impl From<&Error> for ExitCode {
    fn from(error: &Error) -> Self {
        Self::from(error.code())
    }
}

/// The last cause: what a person can do something about.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, message: &str) -> Error {
        let status = Status { code, message: message.into(), ..Status::failure("", "") };
        Error::of("get jobqueue hello", kube::Error::Api(status.boxed()))
    }

    #[test]
    fn each_refusal_has_its_exit_code() {
        let codes = [(401, 4), (403, 4), (404, 3), (409, 1), (500, 1)];
        for (code, exit) in codes {
            assert_eq!(answered(code, "no").code(), exit, "{code}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_called_unreachable() {
        let unread = serde_json::from_str::<u8>("{}").unwrap_err();
        let error = Error::of("list jobqueues", kube::Error::SerdeError(unread));
        assert_eq!(error.code(), 1);
        assert!(
            error.to_string().contains("does not understand") && error.to_string().contains("--version"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_kind_is_told_from_a_missing_queue() {
        let queue = answered(404, r#"jobqueues.jobqueue.dev "hello" not found"#).to_string();
        assert_eq!(queue, r#"cannot get jobqueue hello: jobqueues.jobqueue.dev "hello" not found"#);
        let kind = answered(404, "the server could not find the requested resource").to_string();
        assert!(kind.contains("install the operator"), "{kind}");
    }
}
