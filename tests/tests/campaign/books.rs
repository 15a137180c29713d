//! The books of a campaign, and what may not stand in them. Pure, so that it is seen to find what it looks for.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use e2e::ledger::{Places, id_of};
use e2e::recorder::{End, Run};

use crate::faults::{Fault, Kind, path};
use crate::load::{DOOMED, POISON, Pushed};
use crate::{SEATS, TTL};

/// From the end of a run to the settlement of its job, and from a request to its record, on a machine where everything
/// else runs too: a request may be read when the worker that sent it is dead.
const LAG: Duration = Duration::from_secs(1);
/// Faults closer than this are one: a worker needs that long to connect again and renew its lease.
const ADJACENT: Duration = Duration::from_secs(1);
/// A first attempt and `worker.max_retries` more.
const MOST_ATTEMPTS: usize = 4;

pub struct Books {
    pub pushed: Pushed,
    pub faults: Vec<Fault>,
    pub runs: Vec<Run>,
    pub places: Places,
    /// Jobs counted as done.
    pub done: u64,
}

/// What is worth telling of a campaign in which nothing was wrong.
pub struct Summary {
    faults: BTreeMap<Kind, usize>,
    jobs: usize,
    in_doubt: usize,
    runs: usize,
    second_runs: usize,
    completed: usize,
    dead: BTreeMap<String, usize>,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: usize = self.faults.values().sum();
        writeln!(formatter, "{faults} faults: {:?}", self.faults)?;
        writeln!(formatter, "{} jobs acknowledged, {} in doubt", self.jobs, self.in_doubt)?;
        writeln!(
            formatter,
            "{} runs, {} again, each after a fault of its worker",
            self.runs, self.second_runs
        )?;
        write!(
            formatter,
            "{} completed, dead letters {:?}, 0 lost, 0 settled twice",
            self.completed, self.dead
        )
    }
}

impl Books {
    /// All that is wrong; a summary when nothing is.
    pub fn close(&self) -> Result<Summary, Vec<String>> {
        let mut wrong = Vec::new();
        self.every_job_is_in_one_place(&mut wrong);
        let second_runs = self.every_second_run_is_explained(&mut wrong);
        self.only_killers_are_poison(&mut wrong);
        if self.done != self.places.completed.len() as u64 {
            wrong.push(format!(
                "{} jobs counted as done, {} completed",
                self.done,
                self.places.completed.len()
            ));
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let mut faults = BTreeMap::new();
        for fault in &self.faults {
            *faults.entry(fault.kind).or_default() += 1;
        }
        let mut dead = BTreeMap::new();
        for letter in &self.places.dead {
            *dead.entry(letter["reason"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        Ok(Summary {
            faults,
            jobs: self.pushed.acknowledged.len(),
            in_doubt: self.pushed.in_doubt.len(),
            runs: self.runs.len(),
            second_runs,
            completed: self.places.completed.len(),
            dead,
        })
    }

    fn every_job_is_in_one_place(&self, wrong: &mut Vec<String>) {
        let by_id = self.places.by_id();
        for id in &self.pushed.acknowledged {
            match by_id.get(id) {
                None => wrong.push(format!("{id} is lost")),
                Some(1) => {}
                Some(places) => wrong.push(format!("{id} stands in {places} places")),
            }
        }
        let pushed: HashSet<&String> = self.pushed.acknowledged.iter().chain(&self.pushed.in_doubt).collect();
        for (id, places) in &by_id {
            if !pushed.contains(id) {
                wrong.push(format!("{id} was never pushed"));
            }
            if self.pushed.in_doubt.contains(id) && *places > 1 {
                wrong.push(format!("{id} stands in {places} places"));
            }
        }
        if self.places.counts()[..4] != [0; 4] {
            wrong.push(format!("not all jobs have ended: {:?}", self.places.counts()));
        }
        let completed: HashSet<String> = self.places.completed.iter().map(id_of).collect();
        for id in completed.iter().filter(|id| id.starts_with(DOOMED) || id.starts_with(POISON)) {
            wrong.push(format!("{id} cannot have been completed"));
        }
    }

    /// A job that failed runs again, up to its number of attempts. Any other run that is not the last must have lost its
    /// worker, or its worker the lease, between its start and its settlement.
    fn every_second_run_is_explained(&self, wrong: &mut Vec<String>) -> usize {
        let blows: Vec<Vec<(Instant, Instant)>> = (0..SEATS).map(|seat| self.blows(seat)).collect();
        let mut by_id: HashMap<&str, Vec<&Run>> = HashMap::new();
        for run in &self.runs {
            by_id.entry(&run.id).or_default().push(run);
        }
        let mut again = 0;
        for (id, runs) in by_id {
            let mut attempts = 0;
            for (at, run) in runs.iter().enumerate() {
                let last = at + 1 == runs.len();
                let seat = (0..SEATS).find(|seat| run.path == path(*seat));
                let explained =
                    seat.is_some_and(|seat| blows[seat].iter().any(|(from, to)| touches(run, *from, *to)));
                let failed = matches!(run.ended, Some((_, End::Answered(500))));
                if failed && !explained {
                    attempts += 1;
                }
                if !last && !failed {
                    again += 1;
                    if !explained {
                        let how = run.ended.as_ref().map(|(_, end)| end);
                        wrong.push(format!(
                            "{id}: run {} of {} ({how:?}) was not the last",
                            at + 1,
                            runs.len()
                        ));
                    }
                }
            }
            if attempts > MOST_ATTEMPTS {
                wrong.push(format!("{id} failed {attempts} times, {MOST_ATTEMPTS} are allowed"));
            }
        }
        again
    }

    /// When a seat's worker may have lost its jobs: by a fault that takes them, or by several in a row that together
    /// last about as long as a lease.
    fn blows(&self, seat: usize) -> Vec<(Instant, Instant)> {
        let mut merged: Vec<(Instant, Instant, bool)> = Vec::new();
        let mut faults: Vec<&Fault> =
            self.faults.iter().filter(|fault| fault.seat.is_none_or(|hit| hit == seat)).collect();
        faults.sort_by_key(|fault| fault.from);
        for fault in faults {
            match merged.last_mut() {
                Some((_, to, takes))
                    if fault.from <= *to + ADJACENT && !fault.kind.takes_jobs() && !*takes =>
                {
                    *to = fault.to.max(*to);
                }
                _ => merged.push((fault.from, fault.to, fault.kind.takes_jobs())),
            }
        }
        (merged.into_iter())
            .filter(|(from, to, takes)| *takes || *to - *from > TTL / 2)
            .map(|(from, to, _)| (from, to))
            .collect()
    }

    /// Whatever kills workers is buried for it, and what is buried for it was in a worker that was killed, each time.
    fn only_killers_are_poison(&self, wrong: &mut Vec<String>) {
        let reason = |id: &String| {
            let letter = self.places.dead.iter().find(|letter| id_of(letter) == *id);
            letter.map(|letter| letter["reason"].as_str().unwrap_or_default().to_owned())
        };
        for id in &self.pushed.acknowledged {
            let (reason, kills) = (reason(id), id.starts_with(POISON));
            match reason.as_deref() {
                None if kills => wrong.push(format!("{id} kills workers and is no dead letter")),
                None => {}
                Some("poison") if kills => {}
                // Somebody who kills workers at random may kill one three times in which the same job runs alone.
                Some("poison") => {
                    let hit = self.kills_of(id);
                    if hit < 3 {
                        wrong.push(format!("{id} is buried as poison, {hit} of its workers were killed"));
                    }
                }
                Some(_) if id.starts_with(DOOMED) => {}
                Some(reason) => wrong.push(format!("{id} is buried: {reason}")),
            }
        }
    }

    fn kills_of(&self, id: &str) -> usize {
        let runs = self.runs.iter().filter(|run| run.id == id);
        runs.filter(|run| {
            self.faults.iter().any(|fault| {
                let its = fault.seat.is_some_and(|seat| path(seat) == run.path);
                its && fault.kind.takes_jobs() && touches(run, fault.from, fault.to)
            })
        })
        .count()
    }
}

/// Whether a fault of this time can have hit a run between its start and its settlement.
fn touches(run: &Run, from: Instant, to: Instant) -> bool {
    let end = run.ended.as_ref().map_or(run.started, |(end, _)| *end);
    from <= end + LAG && run.started <= to + LAG
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MOMENT: Duration = Duration::from_millis(100);

    fn run(id: &str, seat: usize, started: Instant, status: u16) -> Run {
        Run {
            id: id.into(),
            started,
            ended: Some((started + MOMENT, End::Answered(status))),
            path: path(seat),
            headers: HashMap::new(),
            body: bytes::Bytes::new(),
        }
    }

    /// One job that ran once and is completed.
    fn books(now: Instant) -> Books {
        Books {
            pushed: Pushed { acknowledged: vec!["plain-1".into()], in_doubt: vec!["plain-2".into()] },
            faults: Vec::new(),
            runs: vec![run("plain-1", 0, now, 200)],
            places: Places { completed: vec![json!({ "id": "plain-1" })], ..Places::default() },
            done: 1,
        }
    }

    fn findings(books: &Books) -> Vec<String> {
        books.close().err().unwrap_or_default()
    }

    #[test]
    fn books_in_order_have_no_findings() {
        assert_eq!(findings(&books(Instant::now())), Vec::<String>::new());
    }

    #[test]
    fn a_job_that_is_nowhere_is_lost() {
        let mut books = books(Instant::now());
        books.places.completed.clear();
        books.done = 0;
        assert_eq!(findings(&books), ["plain-1 is lost"]);
    }

    #[test]
    fn a_job_in_two_places_is_found() {
        let mut books = books(Instant::now());
        books.places.dead.push(json!({ "id": "plain-1", "reason": "max_retries" }));
        assert!(findings(&books).contains(&"plain-1 stands in 2 places".into()));
    }

    #[test]
    fn a_second_run_needs_a_fault_of_its_own_worker_at_that_time() {
        let now = Instant::now();
        let mut books = books(now);
        let again = now + Duration::from_secs(10);
        books.runs.push(run("plain-1", 1, again, 200));
        let unexplained = ["plain-1: run 1 of 2 (Some(Answered(200))) was not the last"];
        assert_eq!(findings(&books), unexplained);
        let fault = |kind, seat, from| Fault { kind, seat: Some(seat), from, to: from };
        books.faults = vec![fault(Kind::Kill, 1, now), fault(Kind::Kill, 0, now + Duration::from_secs(5))];
        assert_eq!(findings(&books), unexplained, "another's, and one that came too late");
        books.faults = vec![fault(Kind::Cut, 0, now)];
        assert_eq!(findings(&books), unexplained, "one that must pass unnoticed");
        books.faults = vec![fault(Kind::Kill, 0, now)];
        assert_eq!(findings(&books), Vec::<String>::new());
    }

    #[test]
    fn faults_in_a_row_that_last_as_long_as_half_a_lease_are_one_that_takes_jobs() {
        let now = Instant::now();
        let mut books = books(now);
        books.runs.push(run("plain-1", 1, now + Duration::from_secs(10), 200));
        let fault = |at: u64| {
            let from = now + Duration::from_millis(at);
            Fault { kind: Kind::Stall, seat: Some(0), from, to: from + Duration::from_millis(900) }
        };
        books.faults = vec![fault(0), fault(1_000)];
        assert_eq!(findings(&books).len(), 1);
        books.faults.push(fault(2_000));
        assert_eq!(findings(&books), Vec::<String>::new());
    }

    #[test]
    fn a_job_that_failed_may_run_four_times_and_no_more() {
        let now = Instant::now();
        let mut books = books(now);
        books.runs = (0..4).map(|at| run("plain-1", 0, now + MOMENT * at, 500)).collect();
        assert_eq!(findings(&books), Vec::<String>::new());
        books.runs.push(run("plain-1", 0, now + MOMENT * 5, 500));
        assert_eq!(findings(&books), ["plain-1 failed 5 times, 4 are allowed"]);
    }

    #[test]
    fn an_innocent_among_the_dead_letters_is_found() {
        let mut books = books(Instant::now());
        books.places.completed.clear();
        books.done = 0;
        books.places.dead = vec![json!({ "id": "plain-1", "reason": "poison" })];
        assert_eq!(findings(&books), ["plain-1 is buried as poison, 0 of its workers were killed"]);
    }
}
