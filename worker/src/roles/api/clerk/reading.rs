//! The clerk that reads: single jobs together, lists one by one.
use jobqueue::job::Data;
use jobqueue::store::Session;
use tokio::sync::mpsc;

use super::{Read, Reader, Reply, Told, same, tell};

/// Jobs that are read in one call: each may be as large as a body.
const READS: usize = 32;

/// A job that is read once for all who ask for it at the same time: an event wakes everybody who waits for it.
type Asked = (String, Vec<Reply<Data>>);

/// Answers what is asked for until nobody can ask any more.
pub(super) async fn run(mut session: Session, mut asked: mpsc::Receiver<Read>, reader: Reader, told: Told) {
    while let Some(first) = asked.recv().await {
        let mut jobs: Vec<Asked> = Vec::new();
        let mut others = Vec::new();
        let mut next = Some(first);
        while let Some(read) = next.take() {
            match read {
                Read::Job(id, reply) => match jobs.iter_mut().find(|(known, _)| *known == id) {
                    Some((_, replies)) => replies.push(reply),
                    None => jobs.push((id, vec![reply])),
                },
                other => others.push(other),
            }
            if jobs.len() < READS && others.is_empty() {
                next = asked.try_recv().ok();
            }
        }
        read_jobs(&mut session, jobs, reader, &told).await;
        for other in others {
            match other {
                Read::Job(..) => {}
                Read::List { statuses, after, limit, reply } => {
                    while !reply.is_closed() {
                        // One more than asked for tells whether there are more.
                        let found = session.list(&statuses, after.as_ref(), limit + 1).await;
                        if !tell(&told, &mut session, found.as_ref().err()) {
                            let _ = reply.send(found);
                            break;
                        }
                        tokio::time::sleep(session.backoff()).await;
                    }
                }
                Read::Page(ids, reply) => {
                    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                    while !reply.is_closed() {
                        let found = reader.read(&mut session, &ids).await;
                        if !tell(&told, &mut session, found.as_ref().err()) {
                            let _ = reply.send(found);
                            break;
                        }
                        tokio::time::sleep(session.backoff()).await;
                    }
                }
            }
        }
    }
}

async fn read_jobs(session: &mut Session, mut jobs: Vec<Asked>, reader: Reader, told: &Told) {
    loop {
        jobs.retain(|(_, replies)| replies.iter().any(|reply| !reply.is_closed()));
        if jobs.is_empty() {
            return;
        }
        let ids: Vec<&str> = jobs.iter().map(|(id, _)| id.as_str()).collect();
        let found = reader.read(session, &ids).await;
        let again = tell(told, session, found.as_ref().err());
        match found {
            Ok(found) => {
                // Large ones come a few at a time: the others are asked for again.
                for ((_, replies), data) in jobs.drain(..found.len().min(jobs.len())).zip(found) {
                    for reply in replies {
                        let _ = reply.send(Ok(data.clone()));
                    }
                }
            }
            Err(_) if again => tokio::time::sleep(session.backoff()).await,
            Err(error) => {
                for reply in jobs.drain(..).flat_map(|(_, replies)| replies) {
                    let _ = reply.send(Err(same(&error)));
                }
            }
        }
    }
}
