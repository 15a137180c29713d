//! Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP: the first asks to stop well, the second to stop now. Nobody is killed before a pod
//! of ours was deleted, so neither ends the process by itself; a third does, and says what it leaves behind.
use std::io::Write as _;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, INTERRUPTED};

/// How often this process was told to stop.
#[derive(Debug, Clone)]
pub struct Interrupt(watch::Receiver<u8>);

impl Interrupt {
    /// From now on signals are counted. `last_words` are said when the process is ended by one.
    pub fn listen(last_words: impl Fn() -> String + Send + 'static) -> Result<Self, Error> {
        let (told, times) = watch::channel(0_u8);
        let unheard = |error| Error::Failed(format!("cannot listen for signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(unheard)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(unheard)?;
        let mut quit = signal(SignalKind::quit()).map_err(unheard)?;
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                    _ = quit.recv() => {}
                }
                told.send_modify(|times| *times = times.saturating_add(1));
                if *told.borrow() > 2 {
                    let _ = write!(std::io::stderr(), "Interrupted\n{}", last_words());
                    std::process::exit(i32::from(INTERRUPTED));
                }
            }
        });
        Ok(Self(times))
    }

    /// Whether it was told at all.
    pub fn is_told(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Waits until it was told that often.
    pub async fn told(&self, times: u8) {
        let mut seen = self.0.clone();
        if seen.wait_for(|told| *told >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What a person types or a pipe brings, on a thread of its own: such a read cannot be called off, but nobody has to
    /// wait for it.
    pub async fn or_read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let reading = tokio::task::spawn_blocking(read);
        self.or(async {
            reading
                .await
                .map_err(|error| Error::Failed(format!("cannot read the standard input: {error}")))?
        })
        .await
    }

    /// What was asked for, or [`Error::Interrupted`] as soon as it was told to stop.
    pub async fn or<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            outcome = work => outcome,
            () = self.told(1) => Err(Error::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_that_nobody_answers_ends_with_ctrl_c() {
        let (told, times) = watch::channel(0_u8);
        let (answer, question) = std::sync::mpsc::channel::<()>();
        let interrupt = Interrupt(times);
        let asked = interrupt.or_read(move || {
            let _ = question.recv();
            Ok(())
        });
        told.send_modify(|times| *times += 1);
        assert!(matches!(asked.await, Err(Error::Interrupted)));
        drop(answer);
        let quiet = Interrupt(watch::channel(0).1);
        assert_eq!(quiet.or_read(|| Ok(7)).await.ok(), Some(7));
    }
}
