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
    loop {
        let page = session.page(&delayed.key, delayed.kind, PAGE_COUNT).await?;
        if page.entries.is_empty() {
            return Ok(());
        }
        let now_ms = session.now_ms();
        let moves: Vec<_> = (page.entries.iter())
            .map(|member| (member.clone(), protocol.promote(member, &delayed.queue, now_ms)))
            .collect();
        let statuses = session.promote(&delayed.key, &moves).await?;
        let settled = statuses.iter().filter(|status| **status == Status::Settled).count();
        promoted.moved += settled;
        if statuses.contains(&Status::Refused) && settled == 0 {
            return Ok(());
        }
        if started.elapsed() > PASS_BUDGET {
            promoted.more = true;
            return Ok(());
        }
    }
}
