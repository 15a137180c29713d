//! Brings delayed jobs back to their queues when they are due. Any number may run at once: each move is guarded.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::{Delayed, Protocol};
use crate::store::{PAGE_COUNT, Session, Status, StoreError};

/// One pass takes no longer than this, so that a mountain of due jobs never starves anything else.
const PASS_BUDGET: Duration = Duration::from_millis(200);

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promoted {
    /// Jobs moved.
    pub moved: usize,
    /// There are more: come again at once.
    pub more: bool,
    /// Jobs that stay because their queue cannot be used.
    pub refused: usize,
}

/// Promotes the due jobs of every queue of the session's shard, page by page. A queue whose keys cannot be used does
/// not keep the others waiting: its error comes last.
pub async fn pass(session: &mut Session, protocol: &Arc<dyn Protocol>) -> Result<Promoted, StoreError> {
    let started = Instant::now();
    let mut promoted = Promoted::default();
    let mut failed = None;
    for delayed in protocol.delayed(&session.keys) {
        match promote(session, protocol, &delayed, started, &mut promoted).await {
            Ok(()) => {}
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(promoted), Err)
}

async fn promote(
    session: &mut Session,
    protocol: &Arc<dyn Protocol>,
    delayed: &Delayed,
    started: Instant,
    promoted: &mut Promoted,
) -> Result<(), StoreError> {
    // Those that were refused stay in front: what is behind them must not wait for them.
    let (mut refused, mut moved) = (0, 0);
    loop {
        let page = session.page_after(&delayed.key, delayed.kind, refused as u64, PAGE_COUNT).await?;
        if page.entries.is_empty() {
            return Ok(());
        }
        let now_ms = session.now_ms();
        let wishes: Vec<_> = (page.entries.iter())
            .map(|member| (member.clone(), protocol.promote(member, &delayed.queue, now_ms)))
            .collect();
        let statuses = session.promote(&delayed.key, &wishes).await?;
        let count = |wanted: Status| statuses.iter().filter(|status| **status == wanted).count();
        let (settled, stayed) = (count(Status::Settled), count(Status::Refused));
        (moved, refused) = (moved + settled, refused + stayed);
        promoted.moved += settled;
        promoted.refused += stayed;
        if started.elapsed() > PASS_BUDGET {
            // The next pass begins at the front again: where nothing but refusals was found there is no hurry.
            promoted.more |= moved > 0 || refused == 0;
            return Ok(());
        }
    }
}
