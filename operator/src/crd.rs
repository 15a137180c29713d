//! Whether there are `JobQueue`s to look after: the CRD may be installed after us, and a namespace may be gone.
use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Client};

use crate::api::v1alpha1::JobQueue;

/// How often it is looked for.
const RETRY: Duration = Duration::from_secs(2);
/// One call: a connection that hangs must not end the search.
const CALL: Duration = Duration::from_secs(3);

/// The namespaces to look after; `None`: all of them in one.
pub fn spaces(watched: &[String]) -> Vec<Option<&str>> {
    match watched {
        [] => vec![None],
        some => some.iter().map(|space| Some(space.as_str())).collect(),
    }
}

/// The `JobQueue`s of a namespace, or of all.
pub fn queues(client: &Client, space: Option<&str>) -> Api<JobQueue> {
    match space {
        Some(space) => Api::namespaced(client.clone(), space),
        None => Api::all(client.clone()),
    }
}

/// Why `JobQueue`s could not be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// There is no such kind.
    Crd,
    /// There is no such right: the namespace that it was given in may be gone.
    Right,
    /// The API server does not answer, or not as it should.
    Answer,
}

impl Lack {
    /// What an error says.
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::Crd,
            kube::Error::Api(status) if status.code == 403 => Self::Right,
            _ => Self::Answer,
        }
    }
}

/// Waits until the `JobQueue`s of one of these namespaces can be listed. A namespace where they cannot is named, and does
/// not keep the others waiting: it is served when it is there again.
pub async fn wait(client: &Client, watched: &[String]) {
    let mut told = BTreeSet::new();
    loop {
        let mut found = false;
        for space in spaces(watched) {
            let api = queues(client, space);
            let params = ListParams::default().limit(1);
            let answer = tokio::time::timeout(CALL, api.list_metadata(&params)).await;
            let (lack, error) = match answer {
                Ok(Ok(_)) => {
                    found = true;
                    continue;
                }
                Ok(Err(error)) => (Lack::of(&error), error.to_string()),
                Err(_) => (Lack::Answer, "no answer in time".to_owned()),
            };
            if !told.insert((space, lack)) {
                continue;
            }
            let namespace = space.unwrap_or("(all)");
            match lack {
                Lack::Crd => tracing::warn!(error, "Waiting for the JobQueue CRD: is it installed?"),
                Lack::Right => tracing::warn!(
                    namespace,
                    error,
                    "Could not list the JobQueues of a namespace: is it gone, or its Role?"
                ),
                Lack::Answer => {
                    tracing::warn!(namespace, error, "Could not list the JobQueues, trying again");
                }
            }
        }
        if found {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}
