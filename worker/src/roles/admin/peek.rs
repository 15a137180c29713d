//! `peek`: the next jobs of the queues, or the newest dead letters and completed jobs.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use jobqueue::effects::Side;
use jobqueue::job::NotAJob;
use jobqueue::keys::{Keys, QueueKeys};
use jobqueue::protocol::Protocol;
use jobqueue::store::PageKind;
use serde_json::{Map, Value};

use super::table::{Table, age_since, shown};
use super::{Admin, AdminError, End, answer};
use crate::cli::Peek;

/// Where to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A queue by its index.
    Queue(usize),
    /// All queues, in the order they are served.
    Queues,
    Dead,
    Completed,
}

/// An entry and where it was found.
#[derive(Debug)]
struct Entry {
    queue: String,
    suspect: bool,
    raw: Bytes,
}

pub async fn run(admin: &mut Admin, peek: &Peek) -> Result<End, AdminError> {
    let place = place(&peek.queue, &admin.engine.shards)?;
    let count = usize::try_from(peek.count).unwrap_or(usize::MAX);
    let from = match admin.engine.protocol.consuming_side() {
        Side::Left => PageKind::Head,
        Side::Right => PageKind::Tail,
    };
    let (mut entries, mut cut, mut now_ms) = (Vec::new(), false, 0);
    for (key_at, kind) in sources(place, &admin.engine.shards[0], from) {
        let mut columns = Vec::new();
        for session in &mut admin.shards {
            let (queue, suspect, key) = named(&session.keys, key_at);
            let page = session.page(&key, kind, count).await?;
            now_ms = session.now_ms();
            cut |= page.entries.len() < count && (page.entries.len() as u64) < page.length;
            columns.push(page.entries.into_iter().map(move |raw| Entry {
                queue: queue.clone(),
                suspect,
                raw,
            }));
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
    let protocol = &*admin.engine.protocol;
    let queues = &admin.engine.shards;
    let table = || match place {
        Place::Dead => dead_table(&entries, queues, now_ms),
        _ => jobs_table(&entries, protocol, place, now_ms),
    };
    answer(peek.output, table, || entries.iter().map(|entry| own_json(&entry.raw)).collect())?;
    if cut {
        eprintln!("Showed {} entries: those that follow are too large to read at once", entries.len());
    }
    Ok(End::Done)
}

/// A queue by name or key, `dead` or `completed`; nothing means all queues.
fn place(wanted: &str, shards: &[Keys]) -> Result<Place, AdminError> {
    let queues = &shards[0].queues;
    match wanted {
        "" => return Ok(Place::Queues),
        "dead" => return Ok(Place::Dead),
        "completed" => return Ok(Place::Completed),
        _ => {}
    }
    let named = queues.iter().position(|queue| queue.name == wanted);
    named.or_else(|| queues.iter().position(|queue| queue.queue == wanted)).map(Place::Queue).ok_or_else(
        || {
            let known: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
            AdminError::Usage(format!(
                "--queue {}: there is no such queue, only {}, dead and completed",
                shown(wanted),
                known.join(", ")
            ))
        },
    )
}

/// One key of a shard, by position, so that every shard's can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyAt {
    Suspects(usize),
    Queue(usize),
    Dead,
    Completed,
}

/// The keys to read, first out first: suspects are served before their queue.
fn sources(place: Place, keys: &Keys, from: PageKind) -> Vec<(KeyAt, PageKind)> {
    let queue = |at: usize| [(KeyAt::Suspects(at), from), (KeyAt::Queue(at), from)];
    match place {
        Place::Queue(at) => queue(at).to_vec(),
        Place::Queues => (0..keys.queues.len()).flat_map(queue).collect(),
        Place::Dead => vec![(KeyAt::Dead, PageKind::Head)],
        Place::Completed => vec![(KeyAt::Completed, PageKind::Head)],
    }
}

fn named(keys: &Keys, at: KeyAt) -> (String, bool, String) {
    match at {
        KeyAt::Suspects(at) => (keys.queues[at].name.clone(), true, keys.queues[at].suspects.clone()),
        KeyAt::Queue(at) => (keys.queues[at].name.clone(), false, keys.queues[at].queue.clone()),
        KeyAt::Dead => (String::new(), false, keys.dead_letters()),
        KeyAt::Completed => (String::new(), false, keys.completed()),
    }
}

fn jobs_table(entries: &[Entry], protocol: &dyn Protocol, place: Place, now_ms: u64) -> String {
    let mut table = Table::new(&["ID", "QUEUE", "STATE", "RETRIES", "AGE", "FILE"]);
    for entry in entries {
        let state = match (place, entry.suspect) {
            (Place::Completed, _) => "completed",
            (_, true) => "suspect",
            (_, false) => "waiting",
        };
        let cells = match protocol.decode(entry.raw.clone()) {
            Ok(job) => {
                let fields = &job.fields;
                let queue = if entry.queue.is_empty() { &fields.priority } else { &entry.queue };
                [
                    shown(&fields.id),
                    or_dash(shown(queue)),
                    state.to_owned(),
                    fields.retries.to_string(),
                    age_since(&fields.creation_time, now_ms),
                    or_dash(shown(&fields.filepath)),
                ]
            }
            Err((raw, why)) => {
                let state = if matches!(why, NotAJob::Oversize { .. }) { "oversize" } else { "malformed" };
                let dash = || "-".to_owned();
                [dash(), or_dash(entry.queue.clone()), state.to_owned(), dash(), dash(), readable(&raw)]
            }
        };
        table.row(cells.into());
    }
    table.to_string()
}

fn dead_table(entries: &[Entry], shards: &[Keys], now_ms: u64) -> String {
    let mut table = Table::new(&["ID", "QUEUE", "RETRIES", "AGE", "REASON", "ERROR"]);
    for entry in entries {
        let Ok(letter) = serde_json::from_slice::<Map<String, Value>>(&entry.raw) else {
            let dash = || "-".to_owned();
            table.row(vec![dash(), dash(), dash(), dash(), "malformed".to_owned(), readable(&entry.raw)]);
            continue;
        };
        let text = |name: &str| letter.get(name).and_then(Value::as_str).unwrap_or_default();
        let by_key = |queue: &&QueueKeys| queue.queue == text("origin_queue");
        let queue = shards.iter().flat_map(|keys| &keys.queues).find(by_key);
        let queue = queue.map_or_else(|| text("priority"), |queue| queue.name.as_str());
        let retries = letter.get("retries").filter(|retries| retries.is_number()).map(Value::to_string);
        table.row(vec![
            or_dash(shown(text("id"))),
            or_dash(shown(queue)),
            or_dash(retries.unwrap_or_default()),
            age_since(text("failed_at"), now_ms),
            or_dash(shown(text("reason"))),
            or_dash(shown(text("error"))),
        ]);
    }
    table.to_string()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// As much of some bytes as a person can read.
fn readable(raw: &[u8]) -> String {
    or_dash(shown(&String::from_utf8_lossy(&raw[..raw.len().min(1024)])))
}

/// What stands in Redis if that is a JSON object, else its bytes under `raw`, as dead letters keep them.
fn own_json(raw: &Bytes) -> Value {
    if let Ok(object) = serde_json::from_slice::<Map<String, Value>>(raw) {
        return Value::Object(object);
    }
    match std::str::from_utf8(raw) {
        Ok(text) => serde_json::json!({ "raw": text }),
        Err(_) => serde_json::json!({ "raw_encoding": "base64", "raw": BASE64.encode(raw) }),
    }
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
        let found = |wanted: &str| place(wanted, &shards()).unwrap();
        assert_eq!(found("low"), Place::Queue(1));
        assert_eq!(found("jobqueue:high_priority"), Place::Queue(0));
        assert_eq!(found("dead"), Place::Dead);
        assert_eq!(found(""), Place::Queues);
    }

    #[test]
    fn an_unknown_queue_is_told_which_there_are() {
        let said = place("hgih", &shards()).unwrap_err().to_string();
        assert_eq!(said, "--queue hgih: there is no such queue, only high, low, dead and completed");
    }

    #[test]
    fn suspects_come_before_their_queue() {
        let order: Vec<_> =
            sources(Place::Queues, &shards()[0], PageKind::Tail).into_iter().map(|(key, _)| key).collect();
        assert_eq!(order, [KeyAt::Suspects(0), KeyAt::Queue(0), KeyAt::Suspects(1), KeyAt::Queue(1)]);
    }

    #[test]
    fn an_entry_is_its_own_json_or_its_bytes() {
        let of = |raw: &'static [u8]| own_json(&Bytes::from_static(raw)).to_string();
        assert_eq!(of(br#"{"b":123456789012345678901,"a":1.50}"#), r#"{"b":123456789012345678901,"a":1.50}"#);
        assert_eq!(of(b"5"), r#"{"raw":"5"}"#);
        assert_eq!(of(b"\xff"), r#"{"raw_encoding":"base64","raw":"/w=="}"#);
    }

    #[test]
    fn malformed_entries_are_shown_as_such() {
        let entry =
            |raw: &'static [u8]| Entry { queue: "high".into(), suspect: false, raw: Bytes::from_static(raw) };
        let engine = Engine::new(&Config::default());
        let table = jobs_table(&[entry(b"\x1b[2Jboo")], &*engine.protocol, Place::Queue(0), 0);
        assert!(table.contains("malformed") && table.contains("\\u{1b}[2Jboo"), "{table}");
        let table = dead_table(&[entry(b"\x00")], &engine.shards, 0);
        assert!(table.contains("malformed") && table.contains("\\u{0}"), "{table}");
    }
}
