//! `peek`: the next jobs of the queues, the next due, or the newest dead letters and completed jobs.
use bytes::Bytes;
use jobqueue::keys::Keys;
use jobqueue::protocol::Protocol;

use super::dlq::{Letter, Summary, letters_table, own_json};
use super::places::{At, Entry, Place, Walk, of_shard};
use super::table::{Table, age, age_since, or_dash, shown};
use super::{Admin, AdminError, End, answer};
use crate::cli::Peek;

/// What to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// A queue by its name.
    Queue(String),
    /// All queues, in the order they are served.
    Queues,
    Delayed,
    Dead,
    Completed,
}

impl Wanted {
    fn is_at(&self, at: &At) -> bool {
        let queued = matches!(at.place, Place::Suspect | Place::Waiting);
        match self {
            Self::Queue(name) => queued && at.queue.as_ref() == Some(name),
            Self::Queues => queued,
            Self::Delayed => at.place.is_delayed(),
            Self::Dead => at.place == Place::Dead,
            Self::Completed => at.place == Place::Completed,
        }
    }
}

pub async fn run(admin: &mut Admin<'_>, peek: &Peek) -> Result<End, AdminError> {
    let wanted = wanted(&peek.queue, &admin.engine.shards)?;
    if wanted == Wanted::Completed && admin.is_sidekiq() {
        return Err(AdminError::Usage("--queue completed: Sidekiq keeps no jobs that are done".into()));
    }
    let count = usize::try_from(peek.count).unwrap_or(usize::MAX);
    let (names, side) = (admin.names(), admin.engine.protocol.consuming_side());
    let of = |keys: &Keys| {
        let places = of_shard(keys, names.as_ref(), side).into_iter();
        places.filter(|at| wanted.is_at(at)).collect::<Vec<_>>()
    };
    let (mut entries, mut cut, mut now_ms): (Vec<(At, Entry)>, _, _) = (Vec::new(), false, 0);
    for at in 0..of(&admin.engine.shards[0]).len() {
        let mut columns = Vec::new();
        for session in &mut admin.shards {
            let Some(place) = of(&session.keys).into_iter().nth(at) else { continue };
            let mut walk = Walk::new(place.clone());
            let page = walk.page(session, &*admin.engine.protocol, count).await?;
            now_ms = session.now_ms();
            cut |= page.len() < count && (page.len() as u64) < walk.length;
            columns.push(page.into_iter().map(move |entry| (place.clone(), entry)));
        }
        // Shards are served side by side: show them in turns.
        while !columns.is_empty() && entries.len() < count {
            columns.retain_mut(|column| column.next().map(|entry| entries.push(entry)).is_some());
        }
        if entries.len() >= count {
            break;
        }
    }
    cut &= entries.len() < count;
    entries.truncate(count);
    let keys = &admin.engine.shards[0];
    let table = || match wanted {
        Wanted::Dead => dead_table(&entries, keys, now_ms),
        _ => jobs_table(&entries, &*admin.engine.protocol, now_ms),
    };
    answer(peek.common, table, || entries.iter().map(|(at, entry)| own_json(&at.job(entry))).collect())?;
    if cut {
        eprintln!("Showed {} entries: those that follow are too large to read at once", entries.len());
    }
    Ok(End::Done)
}

/// A queue by name or key, `delayed`, `dead` or `completed`; nothing means all queues.
fn wanted(queue: &str, shards: &[Keys]) -> Result<Wanted, AdminError> {
    match queue {
        "" => return Ok(Wanted::Queues),
        "delayed" => return Ok(Wanted::Delayed),
        "dead" => return Ok(Wanted::Dead),
        "completed" => return Ok(Wanted::Completed),
        _ => {}
    }
    match queue_named(queue, shards) {
        Some(name) => Ok(Wanted::Queue(name)),
        None => Err(no_such_queue(queue, shards, ", delayed, dead and completed")),
    }
}

/// A queue's name, by its name or key.
pub fn queue_named(wanted: &str, shards: &[Keys]) -> Option<String> {
    let queues = || shards.iter().flat_map(|keys| &keys.queues);
    let by_name = queues().find(|queue| queue.name == wanted);
    by_name.or_else(|| queues().find(|queue| queue.queue == wanted)).map(|queue| queue.name.clone())
}

/// That there is none, and which there are.
pub fn no_such_queue(wanted: &str, shards: &[Keys], besides: &str) -> AdminError {
    let known: Vec<&str> = shards[0].queues.iter().map(|queue| queue.name.as_str()).collect();
    let (wanted, known) = (shown(wanted), known.join(", "));
    AdminError::Usage(format!("--queue {wanted}: there is no such queue, only {known}{besides}"))
}

fn jobs_table(entries: &[(At, Entry)], protocol: &dyn Protocol, now_ms: u64) -> String {
    let what = if protocol.records().is_some() { "TYPE" } else { "FILE" };
    let mut table = Table::new(&["ID", "QUEUE", "STATE", "RETRIES", "AGE", what]);
    for (at, entry) in entries {
        let state = match at.moment(entry).filter(|_| at.place.is_delayed()) {
            Some(due) if due > now_ms => format!("due in {}", age(due - now_ms)),
            Some(_) => "due".to_owned(),
            None => at.place.as_str().to_owned(),
        };
        let queue = at.queue.clone().unwrap_or_default();
        let cells = match at.read(entry, protocol) {
            Ok(job) => {
                let fields = &job.fields;
                let queue = if queue.is_empty() { &fields.priority } else { &queue };
                [
                    shown(&fields.id),
                    or_dash(shown(queue)),
                    state,
                    fields.retries.to_string(),
                    since(&job.raw, &fields.creation_time, now_ms),
                    or_dash(shown(if fields.filepath.is_empty() { &fields.kind } else { &fields.filepath })),
                ]
            }
            Err((raw, why)) => {
                let state = why.reason().as_str();
                let dash = || "-".to_owned();
                [dash(), or_dash(queue), state.to_owned(), dash(), dash(), readable(&raw)]
            }
        };
        table.row(cells.into());
    }
    table.to_string()
}

/// How long ago a job was made, or enqueued.
fn since(raw: &[u8], creation_time: &str, now_ms: u64) -> String {
    let enqueued = || jobqueue::job::waits_since_ms(raw).map(|ms| age(now_ms.saturating_sub(ms)));
    match age_since(creation_time, now_ms) {
        unknown if unknown == "-" => enqueued().unwrap_or(unknown),
        known => known,
    }
}

fn dead_table(entries: &[(At, Entry)], keys: &Keys, now_ms: u64) -> String {
    let letters: Vec<Summary> = (entries.iter())
        .map(|(_, entry)| {
            let mut summary =
                Summary::of(&Letter::of(entry.raw.clone(), entry.score.clone()), keys, now_ms, false);
            if summary.reason.as_deref() == Some("malformed") && summary.error.is_none() {
                summary.error = Some(readable(&entry.raw));
            }
            summary
        })
        .collect();
    letters_table(&letters).to_string()
}

/// As much of some bytes as a person can read.
fn readable(raw: &Bytes) -> String {
    or_dash(shown(&String::from_utf8_lossy(&raw[..raw.len().min(1024)])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::config::Config;
    use jobqueue::engine::Engine;

    fn shards() -> Vec<Keys> {
        Engine::new(&Config::default()).shards
    }

    #[test]
    fn a_queue_is_found_by_name_and_by_key() {
        let found = |queue: &str| wanted(queue, &shards()).unwrap();
        assert_eq!(found("low"), Wanted::Queue("low".into()));
        assert_eq!(found("jobqueue:high_priority"), Wanted::Queue("high".into()));
        assert_eq!(found("dead"), Wanted::Dead);
        assert_eq!(found(""), Wanted::Queues);
    }

    #[test]
    fn an_unknown_queue_is_told_which_there_are() {
        let said = wanted("hgih", &shards()).unwrap_err().to_string();
        assert_eq!(said, "--queue hgih: there is no such queue, only high, low, delayed, dead and completed");
    }

    #[test]
    fn malformed_entries_are_shown_as_such() {
        let engine = Engine::new(&Config::default());
        let places = of_shard(&engine.shards[0], None, engine.protocol.consuming_side());
        let entry = |raw: &'static [u8]| Entry::new(Bytes::from_static(raw), None);
        let table = jobs_table(&[(places[1].clone(), entry(b"\x1b[2Jboo"))], &*engine.protocol, 0);
        assert!(table.contains("malformed") && table.contains("\\u{1b}[2Jboo"), "{table}");
        let table = dead_table(&[(places[1].clone(), entry(b"\x00"))], &engine.shards[0], 0);
        assert!(table.contains("malformed") && table.contains("\\u{0}"), "{table}");
    }
}
