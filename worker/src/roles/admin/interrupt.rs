//! What ends a command before its end: Ctrl-C, SIGTERM, or the end of stdin, by which the other end of an exec is known
//! to be gone. It stops after the current step; a second signal ends the process at once.
use std::io;

use tokio::sync::watch;

use super::EXIT_INTERRUPTED;
use crate::shutdown::{Shutdown, shutdown};

/// What the other end has said: numbers, each on a line, the largest counts.
pub struct Reader(watch::Receiver<u64>);

impl Reader {
    /// Waits until so many are acknowledged; `false` when stdin ended before.
    pub async fn has_acknowledged(&mut self, count: u64) -> bool {
        self.0.wait_for(|said| *said >= count).await.is_ok()
    }
}

/// Listens to signals and, if so asked, to stdin.
pub fn listen(to_stdin: bool) -> io::Result<(Shutdown, Option<Reader>)> {
    use tokio::signal::unix::{SignalKind, signal};
    let (stopper, stopping) = shutdown();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (said, reader) = watch::channel(0);
    let (closed, mut stdin_closed) = shutdown();
    if to_stdin {
        // A thread of its own: nobody can wait for stdin without one, and it ends with the process.
        std::thread::spawn(move || {
            // What cannot be read has ended too.
            for line in io::stdin().lines().map_while(Result::ok) {
                if let Ok(count) = line.trim().parse::<u64>() {
                    said.send_modify(|most| *most = count.max(*most));
                }
            }
            closed.stop();
        });
    }
    tokio::spawn(async move {
        for again in [false, true] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = stdin_closed.requested(), if to_stdin && !again => {}
            }
            if again {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
            stopper.stop();
        }
    });
    Ok((stopping, to_stdin.then_some(Reader(reader))))
}
