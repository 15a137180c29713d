//! `job`: where a job is, and what happened to it. Every place is walked along the way that jobs take, so that one that
//! moves on meanwhile is met again; one that moved back is met by a second walk.
use std::collections::HashSet;
use std::fmt::Write as _;

use bytes::Bytes;
use jobqueue::job::Data;
use jobqueue::protocol::Protocol;
use jobqueue::protocol::files::rfc3339;
use jobqueue::store::{PAGE_COUNT, PageKind, Session};
use jobqueue::submission;
use serde::Serialize;
use serde_json::Value;

use super::dlq::own_json;
use super::places::{At, Entry, Place, Shape, Walk, of_shard};
use super::table::{Table, age, or_dash, shown, yaml};
use super::{Admin, AdminError, End, answer};
use crate::cli::FindJob;

/// Lists of lanes hold few entries; this is far more than any.
const HELD_MAX: u64 = 100_000;

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Default, Serialize)]
struct Search {
    id: String,
    found: Vec<Found>,
    looked: Vec<Reach>,
    complete: bool,
}

#[derive(Debug, Serialize)]
struct Found {
    place: Place,
    queue: Option<String>,
    key: String,
    ahead: Option<u64>,
    lane: Option<String>,
    process: Option<String>,
    host: Option<String>,
    pod_uid: Option<String>,
    due_at: Option<String>,
    due_in_ms: Option<u64>,
    history: History,
    job: Value,
}

/// What a job says of itself, in either dialect.
#[derive(Debug, Default, PartialEq, Serialize)]
struct History {
    created_at: Option<String>,
    retries: Option<u64>,
    interruptions: Option<u64>,
    deaths: Option<u64>,
    interrupted_by: Option<String>,
    reason: Option<String>,
    error: Option<String>,
    failed_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct Reach {
    place: Place,
    key: String,
    looked_at: u64,
    length: u64,
}

/// Who holds what is in a list.
#[derive(Debug, Clone, Default)]
struct Holder {
    lane: String,
    process: String,
    pod_uid: String,
}

pub async fn run(admin: &mut Admin<'_>, wanted: &FindJob) -> Result<End, AdminError> {
    let mut search = Search::default();
    for _ in 0..2 {
        search = Search { id: wanted.id.clone(), complete: true, ..Search::default() };
        let protocol = &*admin.engine.protocol;
        let (names, side) = (admin.names(), protocol.consuming_side());
        for session in &mut admin.shards {
            let (before, after): (Vec<At>, Vec<At>) = of_shard(&session.keys, names.as_ref(), side)
                .into_iter()
                .partition(|at| matches!(at.place, Place::Suspect | Place::Waiting));
            for at in before {
                search.walk(session, protocol, at, wanted.look_at, None).await?;
            }
            search.lanes(session, protocol).await?;
            for at in after {
                search.walk(session, protocol, at, wanted.look_at, None).await?;
            }
        }
        if !search.found.is_empty() || admin.stop.is_requested() {
            break;
        }
    }
    if search.found.is_empty() {
        search.own_keys(admin).await?;
    }
    answer(wanted.common, || search.table(), || serde_json::to_value(&search).unwrap_or_default())?;
    if search.found.is_empty() {
        eprintln!("Error: {}", search.nowhere(wanted.look_at));
    }
    Ok(match (admin.stop.is_requested(), search.found.is_empty()) {
        (true, true) => End::Interrupted,
        (_, false) => End::Done,
        (false, true) => End::Incomplete,
    })
}

impl Search {
    /// Looks through one place.
    async fn walk(
        &mut self,
        session: &mut Session,
        protocol: &dyn Protocol,
        at: At,
        look_at: u64,
        holder: Option<&Holder>,
    ) -> Result<(), AdminError> {
        let mut walk = Walk::new(at);
        loop {
            let room = look_at.saturating_sub(walk.seen);
            let count = PAGE_COUNT.min(usize::try_from(room).unwrap_or(PAGE_COUNT));
            let before = walk.seen;
            let entries = if count == 0 { Vec::new() } else { walk.page(session, protocol, count).await? };
            if entries.is_empty() {
                break;
            }
            for (position, entry) in entries.iter().enumerate() {
                let job = walk.at.job(entry);
                if is(&job, &self.id) {
                    let ahead = before + position as u64;
                    let found = Found::of(&walk.at, entry, &job, holder, ahead, session.now_ms());
                    self.found.push(found);
                }
            }
        }
        let looked_at = walk.seen.min(walk.length);
        self.complete &= walk.seen >= walk.length;
        if holder.is_none() {
            let (place, key) = (walk.at.place, walk.at.key);
            self.looked.push(Reach { place, key, looked_at, length: walk.length });
        } else if let Some(held) = self.looked.iter_mut().find(|looked| looked.place == Place::Held) {
            held.looked_at += looked_at;
            held.length += walk.length;
        }
        Ok(())
    }

    /// What no list has may still be kept under its own key, where lists only name jobs: that says what became of it.
    async fn own_keys(&mut self, admin: &mut Admin<'_>) -> Result<(), AdminError> {
        let Some(records) = admin.engine.protocol.records() else { return Ok(()) };
        let name = Bytes::copy_from_slice(self.id.as_bytes());
        for session in &mut admin.shards {
            let Some(Data::Is(job)) = session.named(records, std::slice::from_ref(&name)).await?.pop() else {
                continue;
            };
            let Some(status) = submission::status(&job) else { continue };
            let key = records.key(&name, &session.keys.jobs());
            let at = At { place: status.into(), queue: None, key, shape: Shape::List(PageKind::Head) };
            let entry = Entry::new(name.clone(), None);
            self.found.push(Found::of(&at, &entry, &job, None, 0, session.now_ms()));
        }
        Ok(())
    }

    /// Looks through the lists of all lanes, those that are fenced too.
    async fn lanes(&mut self, session: &mut Session, protocol: &dyn Protocol) -> Result<(), AdminError> {
        if !self.looked.iter().any(|looked| looked.place == Place::Held) {
            let key = session.keys.processing_glob();
            self.looked.push(Reach { place: Place::Held, key, looked_at: 0, length: 0 });
        }
        let mut seen = HashSet::new();
        for fenced in [false, true] {
            let mut cursor = String::from("0");
            loop {
                let (next, lanes) = session.scan_lanes(fenced, &cursor, PAGE_COUNT).await?;
                let fresh: Vec<String> = lanes.into_iter().filter(|lane| seen.insert(lane.clone())).collect();
                for page in fresh.chunks(PAGE_COUNT) {
                    self.held(session, protocol, page).await?;
                }
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    async fn held(
        &mut self,
        session: &mut Session,
        protocol: &dyn Protocol,
        lanes: &[String],
    ) -> Result<(), AdminError> {
        let mut lists = Vec::new();
        for (lane, (record, _)) in lanes.iter().zip(session.look_at(lanes).await?) {
            let Some(record) = record else { continue };
            let (process, pod_uid) = (record.process.clone(), record.pod_uid.clone());
            let holder = Holder { lane: lane.clone(), process, pod_uid };
            for queue in record.lists {
                lists.extend(queue.lists.into_iter().map(|key| (queue.name.clone(), key, holder.clone())));
            }
        }
        let keys: Vec<String> = lists.iter().map(|(_, key, _)| key.clone()).collect();
        let mut lengths = Vec::new();
        for page in keys.chunks(1000) {
            lengths.extend(session.lengths(page).await?);
        }
        for ((queue, key, holder), _) in lists.into_iter().zip(lengths).filter(|(_, length)| *length > 0) {
            let at = At { place: Place::Held, queue: Some(queue), key, shape: Shape::List(PageKind::Head) };
            self.walk(session, protocol, at, HELD_MAX, Some(&holder)).await?;
        }
        Ok(())
    }

    fn nowhere(&self, look_at: u64) -> String {
        let looked_at: u64 = self.looked.iter().map(|looked| looked.looked_at).sum();
        let id = shown(&self.id);
        if self.complete {
            return format!(
                "no job has the id {id}: looked at all {looked_at} in {} places; it may be done and not kept any more \
                 (worker.completed_max)",
                self.looked.len()
            );
        }
        let cut: Vec<String> = (self.looked.iter())
            .filter(|looked| looked.looked_at < looked.length)
            .map(|looked| format!("{} of {} in {}", looked.looked_at, looked.length, looked.key))
            .collect();
        format!("no job found with the id {id}: looked at only {} (--look-at {look_at})", cut.join(", "))
    }

    fn table(&self) -> String {
        let mut text = String::new();
        for found in &self.found {
            let mut table = Table::new(&["PLACE", "QUEUE", "WHERE", "RETRIES", "DEATHS", "ERROR"]);
            let number =
                |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
            let history = &found.history;
            table.row(vec![
                found.place.as_str().to_owned(),
                or_dash(shown(found.queue.as_deref().unwrap_or_default())),
                found.whereabouts(),
                number(history.retries),
                number(history.deaths),
                or_dash(shown(history.error.as_deref().unwrap_or_default())),
            ]);
            let _ = write!(text, "{table}\n{}", yaml(&found.job));
        }
        text
    }
}

impl Found {
    fn of(at: &At, entry: &Entry, job: &Bytes, holder: Option<&Holder>, ahead: u64, now_ms: u64) -> Self {
        let due = at.moment(entry).filter(|_| at.place.is_delayed());
        let of_holder =
            |field: fn(&Holder) -> &String| holder.map(field).filter(|text| !text.is_empty()).cloned();
        let job = own_json(job);
        let process = of_holder(|holder| &holder.process);
        Self {
            place: at.place,
            queue: at.queue.clone().or_else(|| text(&job, &["priority", "queue"])),
            key: at.key.clone(),
            ahead: matches!(at.place, Place::Suspect | Place::Waiting).then_some(ahead),
            lane: of_holder(|holder| &holder.lane),
            host: process
                .as_deref()
                .map(|process| process.rsplit_once('-').map_or(process, |it| it.0).to_owned()),
            process,
            pod_uid: of_holder(|holder| &holder.pod_uid),
            due_at: due.map(rfc3339),
            due_in_ms: due.map(|due| due.saturating_sub(now_ms)),
            history: History::of(&job),
            job,
        }
    }

    fn whereabouts(&self) -> String {
        match (&self.lane, self.due_in_ms, self.ahead) {
            (Some(lane), ..) => format!("lane {lane}"),
            (_, Some(due), _) => format!("due in {}", age(due)),
            (_, _, Some(ahead)) => format!("{ahead} ahead of it"),
            _ => self.key.clone(),
        }
    }
}

impl History {
    fn of(job: &Value) -> Self {
        let count = |names: &[&str]| names.iter().find_map(|name| job.get(name)?.as_u64());
        let moment = |names: &[&str]| {
            let at = names.iter().find_map(|name| job.get(name))?;
            match at {
                Value::Number(number) => jobqueue::protocol::sidekiq::time::millis(number).map(rfc3339),
                other => other.as_str().filter(|text| !text.is_empty()).map(str::to_owned),
            }
        };
        Self {
            created_at: moment(&["creation_time", "created_at"]),
            retries: count(&["retries", "retry_count"]),
            interruptions: count(&["interruptions", "jobqueue_interruptions"]),
            deaths: count(&["deaths", "jobqueue_deaths"]),
            interrupted_by: text(job, &["interrupted_by", "jobqueue_interrupted_by"]),
            reason: text(job, &["reason", "error_class"]),
            error: text(job, &["error", "error_message"]),
            failed_at: moment(&["failed_at"]),
        }
    }
}

fn text(job: &Value, names: &[&str]) -> Option<String> {
    let found = names.iter().find_map(|name| job.get(name)?.as_str());
    found.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Whether a job has this id. Whatever else it is does not matter here.
fn is(job: &[u8], id: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Ids {
        #[serde(default)]
        id: Value,
        #[serde(default)]
        jid: Value,
    }
    serde_json::from_slice::<Ids>(job)
        .is_ok_and(|ids| ids.id.as_str() == Some(id) || ids.jid.as_str() == Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_history_is_told_in_either_dialect() {
        let ours = History::of(
            &json!({"creation_time": "2026-01-01T00:00:00Z", "retries": 2, "deaths": 1, "error": ""}),
        );
        assert_eq!((ours.retries, ours.deaths, ours.error), (Some(2), Some(1), None));
        let sidekiqs =
            History::of(&json!({"created_at": 1_767_225_600_000_u64, "retry_count": 3, "error_class": "E"}));
        assert_eq!(sidekiqs.created_at.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!((sidekiqs.retries, sidekiqs.reason.as_deref()), (Some(3), Some("E")));
    }

    #[test]
    fn an_id_is_compared_whole() {
        assert!(is(br#"{"id":"a"}"#, "a") && is(br#"{"jid":"a"}"#, "a"));
        assert!(!is(br#"{"id":"ab"}"#, "a") && !is(br#"{"id":1}"#, "1") && !is(b"a", "a"));
    }
}
