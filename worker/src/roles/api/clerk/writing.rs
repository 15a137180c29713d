//! The clerk that writes: creates together what was asked for together, cancels one by one.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jobqueue::job::Data;
use jobqueue::store::{Answer, Order, Session, StoreError};
use jobqueue::submission::{self, Cancel};
use tokio::sync::{mpsc, watch};

use super::{Cancelled, Reader, Reply, Share, Told, Write, local_ms, same, tell};

/// Orders of one call: Redis does nothing else meanwhile.
const ORDERS: usize = 100;
/// Bytes of one call, and at least one order.
const CALL_BYTES: usize = 1 << 20;
/// How often a cancel decides anew because the job has changed meanwhile: each time a worker has got on with it.
const TRIES: usize = 10;

/// An order, its share of the memory, and who waits for what becomes of it.
type Create = (Arc<Order>, Share, Reply<Answer>);

/// Carries out what is asked for until nobody can ask any more; nothing before the layout is written down: whoever works
/// with another must know where jobs are.
pub(super) async fn run(
    mut session: Session,
    mut orders: mpsc::Receiver<Write>,
    mut written: watch::Receiver<bool>,
    reader: Reader,
    told: Told,
) {
    if written.wait_for(|written| *written).await.is_err() {
        return;
    }
    let mut creates: Vec<Create> = Vec::new();
    while let Some(first) = orders.recv().await {
        let (mut next, mut size) = (Some(first), 0);
        let mut cancels = Vec::new();
        while let Some(write) = next.take() {
            match write {
                Write::Create(order, share, reply) => {
                    size += order.size();
                    creates.push((order, share, reply));
                }
                Write::Cancel(id, reply) => cancels.push((id, reply)),
            }
            if size < CALL_BYTES && creates.len() + cancels.len() < ORDERS {
                next = orders.try_recv().ok();
            }
        }
        create(&mut session, &mut creates, &told).await;
        for (id, reply) in cancels {
            if !reply.is_closed() {
                let cancelled = cancel(&mut session, &id, reader, &reply, &told).await;
                let _ = reply.send(cancelled);
            }
        }
    }
}

/// Creates what is asked for. A call whose reply was lost is repeated as it was as long as somebody waits for it: what
/// it has created it finds again. Whoever has given up is left out, so nothing is created for nobody later on.
async fn create(session: &mut Session, creates: &mut Vec<Create>, told: &Told) {
    loop {
        creates.retain(|(.., reply)| !reply.is_closed());
        if creates.is_empty() {
            return;
        }
        let orders: Vec<&Order> = creates.iter().map(|(order, ..)| &**order).collect();
        let answers = session.create(&orders).await;
        let again = tell(told, session, answers.as_ref().err());
        match answers {
            Ok(answers) => {
                let ahead = session.now_ms().cast_signed().saturating_sub(local_ms().cast_signed());
                told.ahead_ms.store(ahead, Ordering::Relaxed);
                for ((.., reply), answer) in creates.drain(..).zip(answers) {
                    let _ = reply.send(Ok(answer));
                }
            }
            Err(error @ StoreError::OutOfMemory(_)) => fail(creates, &error),
            Err(_) if again => tokio::time::sleep(session.backoff()).await,
            Err(error) => fail(creates, &error),
        }
    }
}

fn fail(creates: &mut Vec<Create>, error: &StoreError) {
    for (.., reply) in creates.drain(..) {
        let _ = reply.send(Err(same(error)));
    }
}

/// Cancels one job: read, decided, written if it is still the same, else again.
async fn cancel(
    session: &mut Session,
    id: &str,
    reader: Reader,
    reply: &Reply<Option<Cancelled>>,
    told: &Told,
) -> Result<Option<Cancelled>, StoreError> {
    let mut tries = 0;
    loop {
        let outcome = cancel_once(session, id, reader).await;
        let again = tell(told, session, outcome.as_ref().err());
        match outcome {
            Ok(Some(done)) => return Ok(done),
            Ok(None) if tries < TRIES => tries += 1,
            Ok(None) => return Err(StoreError::Later("the job changes all the time".into())),
            Err(error) if !again || reply.is_closed() => return Err(error),
            Err(_) => tokio::time::sleep(session.backoff()).await,
        }
    }
}

/// `None`: the job has changed since it was read.
async fn cancel_once(
    session: &mut Session,
    id: &str,
    reader: Reader,
) -> Result<Option<Option<Cancelled>>, StoreError> {
    let raw = match reader.read(session, &[id]).await?.pop() {
        Some(Data::Is(raw)) => raw,
        Some(Data::Missing) | None => return Ok(Some(None)),
        Some(Data::TooLarge(_) | Data::Unfit(_)) => return Ok(Some(Some(Cancelled::Malformed))),
    };
    Ok(match submission::cancel(&raw, session.now_ms()) {
        Cancel::Malformed => Some(Some(Cancelled::Malformed)),
        Cancel::Finished(status) => Some(Some(Cancelled::Finished(status))),
        Cancel::Already => Some(Some(Cancelled::Now(raw))),
        Cancel::Write { from, bytes } => {
            let cancelled = session.cancel(id, from, &raw, &bytes).await?;
            cancelled.then_some(Some(Cancelled::Now(bytes)))
        }
    })
}
