//! `dlq list` and `dlq show`: look at dead letters, the newest first.
use jobqueue::store::PAGE_COUNT;
use serde::Serialize;
use serde_json::Value;

use super::super::places::{Place, Walk, of_shard};
use super::super::table::{self, Table, age, or_dash, shown};
use super::super::{Admin, AdminError, End, answer};
use super::letter::{Letter, Summary};
use super::selection::Selection;
use crate::cli::{DlqList, DlqShow, Selectors};

/// So many are listed, unless told otherwise.
const LIMIT: u64 = 100;

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Default, Serialize)]
struct Listed {
    letters: Vec<Summary>,
    total: u64,
    looked_at: u64,
    matched: u64,
    /// All were looked at.
    complete: bool,
    /// Ids that none of those has; more may follow when they were not all.
    not_found: Vec<String>,
}

pub async fn run(admin: &mut Admin<'_>, list: &DlqList) -> Result<End, AdminError> {
    let mut selection = Selection::new(&list.selectors, admin.is_sidekiq())?;
    let limit = list.selectors.limit.unwrap_or(LIMIT);
    let mut listed = look(admin, &mut selection, limit, list.look_at, list.full).await?;
    // At the limit it stopped looking: nothing is known of the others.
    if listed.matched < limit && !admin.stop.is_requested() {
        listed.not_found = selection.not_found(&list.selectors.id);
    }
    answer(list.common, || listed.table(), || serde_json::to_value(&listed).unwrap_or_default())?;
    for id in &listed.not_found {
        eprintln!("Error: no dead letter has the id {}{}", shown(id), listed.reach());
    }
    Ok(match (admin.stop.is_requested(), listed.not_found.is_empty()) {
        (true, _) => End::Interrupted,
        (false, true) => End::Done,
        (false, false) => End::Incomplete,
    })
}

pub async fn show(admin: &mut Admin<'_>, show: &DlqShow) -> Result<End, AdminError> {
    let selectors = Selectors { id: vec![show.id.clone()], ..Selectors::default() };
    let mut selection = Selection::new(&selectors, admin.is_sidekiq())?;
    let listed = look(admin, &mut selection, LIMIT, show.look_at, true).await?;
    if listed.letters.is_empty() {
        answer(show.common, String::new, || Value::Array(Vec::new()))?;
        if admin.stop.is_requested() {
            return Ok(End::Interrupted);
        }
        eprintln!("Error: no dead letter has the id {}{}", shown(&show.id), listed.reach());
        return Ok(End::Incomplete);
    }
    let letters: Value = listed.letters.into_iter().filter_map(|letter| letter.letter).collect();
    answer(show.common, || table::yaml(&letters), || letters.clone())?;
    Ok(End::Done)
}

async fn look(
    admin: &mut Admin<'_>,
    selection: &mut Selection,
    limit: u64,
    look_at: u64,
    full: bool,
) -> Result<Listed, AdminError> {
    let mut listed = Listed { complete: true, ..Listed::default() };
    let (names, side) = (admin.names(), admin.engine.protocol.consuming_side());
    for session in &mut admin.shards {
        let Some(dead) =
            of_shard(&session.keys, names.as_ref(), side).into_iter().find(|at| at.place == Place::Dead)
        else {
            continue;
        };
        let mut walk = Walk::new(dead);
        let (mut looked_at, mut length, mut matched) = (0, 0, 0);
        loop {
            let room = look_at.saturating_sub(listed.looked_at);
            if room == 0 || matched >= limit || admin.stop.is_requested() {
                break;
            }
            let count = PAGE_COUNT.min(usize::try_from(room).unwrap_or(PAGE_COUNT));
            let entries = walk.page(session, &*admin.engine.protocol, count).await?;
            length = walk.length;
            if entries.is_empty() {
                looked_at = length;
                break;
            }
            let now_ms = session.now_ms();
            for entry in entries {
                let letter = Letter::of(entry.raw, entry.score);
                looked_at += 1;
                listed.looked_at += 1;
                if selection.matches(&letter, now_ms) {
                    matched += 1;
                    listed.letters.push(Summary::of(&letter, &session.keys, now_ms, full));
                    if matched >= limit {
                        break;
                    }
                }
            }
        }
        if length == 0 {
            walk.page(session, &*admin.engine.protocol, 1).await?;
            length = walk.length;
        }
        listed.total += length;
        listed.matched += matched;
        listed.complete &= looked_at >= length;
    }
    if admin.shards.len() > 1 {
        // Each shard gave its newest.
        listed.letters.sort_by_key(|letter| letter.age_ms.unwrap_or(u64::MAX));
        listed.complete &= listed.matched <= limit;
        listed.letters.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Ok(listed)
}

/// Letters for people.
pub fn letters_table(letters: &[Summary]) -> Table {
    let mut table = Table::new(&["ID", "QUEUE", "RETRIES", "AGE", "REASON", "ERROR"]);
    let cell = |text: &Option<String>| or_dash(shown(text.as_deref().unwrap_or_default()));
    for letter in letters {
        table.row(vec![
            cell(&letter.id),
            cell(&letter.queue),
            letter.retries.map_or_else(|| "-".into(), |retries| retries.to_string()),
            letter.age_ms.map_or_else(|| "-".into(), age),
            cell(&letter.reason),
            cell(&letter.error),
        ]);
    }
    table
}

impl Listed {
    /// How far it looked.
    fn reach(&self) -> String {
        let more = if self.complete { "" } else { "; raise --look-at to see the others" };
        format!(": looked at {} of {}{more}", self.looked_at, self.total)
    }

    fn table(&self) -> String {
        let table = letters_table(&self.letters);
        let more = if self.complete { String::new() } else { format!(", looked at {}", self.looked_at) };
        format!("{table}{} of {} dead letters{more}\n", self.letters.len(), self.total)
    }
}
