//! A request to stop that anyone can await and nobody can miss.
use std::time::Duration;

use tokio::sync::watch;

/// Asks to stop.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Is asked to stop.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

/// A stopper and what it stops.
pub fn shutdown() -> (Stopper, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Shutdown(receiver))
}

impl Stopper {
    /// Stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Whether it was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the request; a dropped stopper counts as one.
    pub async fn requested(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Waits this long, or less: whether it was requested in that time.
    pub async fn within(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.clone().0.wait_for(|stop| *stop)).await.is_ok()
    }
}
