//! Learns why the handler died: Kubernetes knows it, and the operator tells.
use std::time::{Duration, Instant};

use jobqueue::store::Session;
use tokio::sync::Mutex;

/// The news takes a second or two; after this long there will be none. The job waits meanwhile, and so does its app.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two questions.
const INTERVAL: Duration = Duration::from_millis(200);

/// Asks for the causes of deaths.
pub struct Coroner {
    session: Mutex<Session>,
    process: String,
}

impl Coroner {
    /// One for this process.
    pub fn new(session: Session, process: String) -> Self {
        Self { session: Mutex::new(session), process }
    }

    /// Why the handler that just died did so; `None` when nobody tells.
    pub async fn cause(&self) -> Option<String> {
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE {
            let told = self.session.lock().await.told_death(&self.process).await;
            if let Ok(Some(cause)) = told {
                return Some(cause);
            }
            tokio::time::sleep(INTERVAL).await;
        }
        None
    }
}
