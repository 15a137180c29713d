//! `dlq`: look at dead letters, bring them back, delete them. Each step is guarded where it is carried out: stopped at
//! whatever point, every letter is either dead or back in its queue, once.
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kube::ResourceExt;
use operator::api::v1alpha1::JobQueue;
use serde_json::Value;

use crate::cli::{Dlq, DlqList, Job, Purge, Requeue, Selector};
use crate::cluster::Cluster;
use crate::error::{Error, INTERRUPTED};
use crate::figures::or_dash;
use crate::interrupt::Interrupt;
use crate::live::{Letters, Progress, Turned};
use crate::print;
use crate::progress::Bar;
use crate::remote::{self, Ended, Input, Remote, Said};
use crate::table::{Cell, Paint, Table, Tone, age, shown};

/// Does one of them.
pub async fn run(cluster: &Cluster, verb: &Dlq, interrupt: &Interrupt) -> Result<(), Error> {
    match verb {
        Dlq::List(args) => list(cluster, args, interrupt).await,
        Dlq::Show(args) => show(cluster, args, interrupt).await,
        Dlq::Requeue(args) => requeue(cluster, args, interrupt).await,
        Dlq::Purge(args) => purge(cluster, args, interrupt).await,
    }
}

/// The flags that a worker takes: the same as ours.
fn flags(selector: &Selector) -> Vec<String> {
    let Selector { id, reason, older_than, contains } = selector;
    let mut flags: Vec<String> = id.iter().map(|id| format!("--id={id}")).collect();
    flags.extend(reason.iter().map(|reason| format!("--reason={reason}")));
    flags.extend(older_than.iter().map(|age| format!("--older-than={age}")));
    flags.extend(contains.iter().map(|text| format!("--match={text}")));
    flags
}

/// The dead letters that are meant, the newest first.
pub async fn letters(
    remote: &Remote<'_>,
    selector: &Selector,
    count: u64,
    look_at: u64,
) -> Result<(Value, Ended), Error> {
    let mut command =
        vec!["dlq".to_owned(), "list".into(), format!("--limit={count}"), format!("--look-at={look_at}")];
    command.extend(flags(selector));
    remote.json(&command).await
}

async fn list(cluster: &Cluster, args: &DlqList, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    let answer = remote::with(cluster, &queue, interrupt, async |remote| {
        let (answer, ended) = letters(remote, &args.selector, args.count, args.look_at).await?;
        let some_missing = ended.code == 1 && !args.selector.id.is_empty();
        if ended.code == 0 || some_missing { Ok(answer) } else { Err(remote.failed(&ended)) }
    })
    .await?;
    let found: Letters = serde_json::from_value(answer.clone()).unwrap_or_default();
    if let Some(format) = args.output {
        print::data(format, &answer)?;
    } else if !found.letters.is_empty() {
        print::text(&table(&found).render(Paint::detect()))?;
    }
    if !found.not_found.is_empty() {
        return Err(Error::NotFound(format!("{}{}", missing(&args.name, &found.not_found), reach(&found))));
    }
    if args.output.is_none() && found.letters.is_empty() {
        eprintln!("No dead letters found ({} in all){}", found.total, reach(&found));
    } else if args.output.is_none() && (found.letters.len() as u64) < found.total {
        // Those that are not shown were not looked for at all, or not met.
        let reach = if found.matched < args.count { reach(&found) } else { String::new() };
        eprintln!("{} of {} dead letters{reach}", found.letters.len(), found.total);
    }
    Ok(())
}

/// That no letter has these ids.
fn missing(name: &str, ids: &[String]) -> String {
    format!("jobqueue {name} has no dead letter {}", ids.join(", "))
}

/// How far it was looked, where that was not to the end.
fn reach(found: &Letters) -> String {
    if found.complete {
        return String::new();
    }
    format!("; only {} of {} were looked at: raise --look-at", found.looked_at, found.total)
}

/// A line a letter: pure.
fn table(found: &Letters) -> Table {
    let mut table = Table::new(["ID", "QUEUE", "REASON", "RETRIES", "AGE", "ERROR"]);
    for letter in &found.letters {
        let text = |text: &Option<String>| or_dash(text.as_deref().map(|text| shown(text, 80)));
        let seconds = |ms: u64| age(i64::try_from(ms / 1000).unwrap_or(i64::MAX));
        table.row(vec![
            text(&letter.id).into(),
            text(&letter.queue).into(),
            Cell::toned(Tone::Bad, text(&letter.reason)),
            or_dash(letter.retries.map(|retries| retries.to_string())).into(),
            or_dash(letter.age_ms.map(seconds)).into(),
            text(&letter.error).into(),
        ]);
    }
    table
}

async fn show(cluster: &Cluster, args: &Job, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    let look_at = format!("--look-at={}", args.look_at);
    let command = ["dlq".to_owned(), "show".into(), look_at, "--".into(), args.id.clone()];
    let (found, ended) = remote::with(cluster, &queue, interrupt, async |remote| {
        let (found, ended) = remote.json::<Vec<Value>>(&command).await?;
        if ended.code > 1 { Err(remote.failed(&ended)) } else { Ok((found, ended)) }
    })
    .await?;
    if found.is_empty() {
        // It says how far it looked.
        let said = ended.said.trim().trim_start_matches("Error: ");
        let said = if said.is_empty() { "no dead letter has that id" } else { said };
        return Err(Error::NotFound(format!("jobqueue {}: {said}", args.name)));
    }
    print::data(args.output.unwrap_or(crate::cli::DataFormat::Yaml), &found)
}

async fn requeue(cluster: &Cluster, args: &Requeue, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    // Nothing is lost by it: only a person who may have forgotten a selector is asked.
    let doubtful = flags(&args.selector).is_empty() && std::io::stdin().is_terminal();
    if doubtful && !args.dry_run && !args.yes {
        confirm(&queue, &args.selector, "put back into their queues", interrupt).await?;
    }
    let mut command = vec!["dlq".to_owned(), "requeue".into(), "--yes".into(), "--progress=json".into()];
    command.extend(flags(&args.selector));
    command.extend(args.rate.iter().map(|rate| format!("--rate={rate}")));
    if args.dry_run {
        command.push("--dry-run".into());
    }
    let (turned, ended) = remote::with(cluster, &queue, interrupt, async |remote| {
        let mut bar = Bar::new("Requeued");
        let mut aside = |line: &str| {
            if let Some(progress) = Progress::of(line) {
                bar.show(&progress);
            }
        };
        remote.json_of::<Value>(&command, Input::Held, &mut aside).await
    })
    .await?;
    conclude(&args.name, "requeued", args.output, &turned, &ended)
}

async fn purge(cluster: &Cluster, args: &Purge, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    if !args.dry_run && !args.yes {
        confirm(&queue, &args.selector, "deleted for ever", interrupt).await?;
    }
    let mut command = vec!["dlq".to_owned(), "purge".into(), "--progress=json".into()];
    command.extend(flags(&args.selector));
    command.extend(args.rate.iter().map(|rate| format!("--rate={rate}")));
    let archive = if args.dry_run {
        command.extend(["--dry-run".into(), "--no-archive".into()]);
        None
    } else if args.no_archive {
        command.extend(["--yes".into(), "--no-archive".into()]);
        None
    } else {
        command.extend(["--yes".into(), "--archive=-".into(), "--acknowledged".into()]);
        let name = format!("{}-dead-letters-{}.ndjson", args.name, stamp());
        Some(args.archive.clone().unwrap_or_else(|| PathBuf::from(name)))
    };
    let (turned, ended) = match &archive {
        Some(path) => {
            let mut archive = Archive::create(path)?;
            let outcome = remote::with(cluster, &queue, interrupt, async |remote| {
                purge_into(remote, &command, &mut archive).await
            })
            .await;
            let lines = archive.lines;
            // Nothing was archived, so nothing was deleted: an empty file would only puzzle.
            if lines == 0 {
                let _ = std::fs::remove_file(path);
            } else {
                eprintln!("Archived {lines} dead letters in {}", path.display());
            }
            outcome?
        }
        None => {
            remote::with(cluster, &queue, interrupt, async |remote| {
                let mut bar = Bar::new("Deleted");
                let mut aside = |line: &str| {
                    if let Some(progress) = Progress::of(line) {
                        bar.show(&progress);
                    }
                };
                remote.json_of::<Value>(&command, Input::Held, &mut aside).await
            })
            .await?
        }
    };
    conclude(&args.name, "deleted", args.output, &turned, &ended)
}

/// The archive on this machine: what is acknowledged is on the disk.
struct Archive {
    file: File,
    path: PathBuf,
    lines: u64,
}

impl Archive {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create_new(path).map_err(|error| {
            Error::Usage(format!("--archive {}: {error}; nothing was deleted", path.display()))
        })?;
        Ok(Self { file, path: path.to_owned(), lines: 0 })
    }

    /// Stores a part; how many lines are on the disk now.
    fn store(&mut self, part: &[u8]) -> Result<u64, Error> {
        let stored = self.file.write_all(part).and_then(|()| self.file.sync_data());
        stored.map_err(|error| {
            Error::Failed(format!(
                "cannot write {}: {error}; what is not in it was not deleted",
                self.path.display()
            ))
        })?;
        self.lines += part.split(|byte| *byte == b'\n').skip(1).count() as u64;
        Ok(self.lines)
    }
}

/// Each page is deleted only when its lines are on the disk here.
async fn purge_into(
    remote: &Remote<'_>,
    command: &[String],
    archive: &mut Archive,
) -> Result<(Value, Ended), Error> {
    let mut bar = Bar::new("Deleted");
    let mut result = None;
    let command = [command, &["-o".to_owned(), "json".into()]].concat();
    let ended = remote
        .run(&command, Input::Held, &mut |said| match said {
            Said::Answer(part) => Ok(Some(format!("{}\n", archive.store(part)?))),
            Said::Aside(line) => {
                if let Some(progress) = Progress::of(line) {
                    bar.show(&progress);
                } else if let Ok(mut line) = serde_json::from_str::<Value>(line)
                    && let Some(answer) = line.get_mut("result")
                {
                    result = Some(answer.take());
                }
                Ok(None)
            }
        })
        .await?;
    match result {
        Some(result) => Ok((result, ended)),
        None => Err(remote.failed(&ended)),
    }
}

/// Asks a person; a script must say `--yes`.
async fn confirm(
    queue: &JobQueue,
    selector: &Selector,
    what: &str,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let name = queue.name_any();
    let all = flags(selector).is_empty();
    let dead = queue.status.as_ref().map_or(0, |status| status.dead_letters);
    let which = if all {
        format!("All dead letters of {name} (about {dead})")
    } else {
        format!("Those dead letters of {name}")
    };
    if !std::io::stdin().is_terminal() {
        return Err(Error::Usage(format!(
            "{which} would be {what}, nothing was done: add --yes to do it, or --dry-run"
        )));
    }
    eprint!("{which} will be {what}. Go on? [y/N] ");
    let ask = || {
        let mut answer = String::new();
        let _ = std::io::stdin().lock().read_line(&mut answer);
        Ok(answer)
    };
    let answer = interrupt.or_read(ask).await.inspect_err(|_| eprintln!())?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Error::Usage("nothing was done".into()))
}

fn conclude(
    name: &str,
    done: &str,
    output: Option<crate::cli::DataFormat>,
    turned: &Value,
    ended: &Ended,
) -> Result<(), Error> {
    let told: Turned = serde_json::from_value(turned.clone()).unwrap_or_default();
    if let Some(format) = output {
        print::data(format, turned)?;
    } else {
        print::text(&sentence(name, done, &told))?;
    }
    match ended.code {
        0 => Ok(()),
        INTERRUPTED => Err(Error::Interrupted),
        1 if !told.not_found.is_empty() => Err(Error::NotFound(missing(name, &told.not_found))),
        code => {
            let said = ended.said.trim().trim_start_matches("Error: ");
            Err(Error::Remote {
                code,
                said: format!("jobqueue {name}: {}", if said.is_empty() { "not all was done" } else { said }),
            })
        }
    }
}

/// What was done: pure.
fn sentence(name: &str, done: &str, turned: &Turned) -> String {
    let count = turned.requeued.max(turned.deleted);
    let mut text = if turned.dry_run {
        format!("{} of {} dead letters of {name} would be {done}\n", turned.matched, turned.total)
    } else {
        let seconds = format!("{}.{}s", turned.elapsed_ms / 1000, turned.elapsed_ms % 1000 / 100);
        format!("{count} of {} dead letters of {name} {done} in {seconds}\n", turned.total)
    };
    if turned.unusable > 0 {
        let why = "no jobs, or their data is gone";
        let _ = writeln!(text, "{} cannot be run again ({why}), and stay", turned.unusable);
    }
    if turned.not_deleted > 0 {
        let why = "moved by somebody else, or archived twice";
        let _ = writeln!(
            text,
            "{} lines of the archive were not deleted ({why}): enqueued from there, those jobs would be there twice",
            turned.not_deleted
        );
    }
    if turned.contended {
        text += "Somebody else moved dead letters at the same time: some may have been passed over\n";
    }
    if turned.interrupted {
        text += "Interrupted: the others are dead letters still\n";
    }
    text
}

/// The time as part of a file's name.
pub fn stamp() -> String {
    Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_passed_on_as_one_word_each() {
        let selector =
            Selector { id: vec!["-1".into()], contains: Some("a b".into()), ..Selector::default() };
        assert_eq!(flags(&selector), ["--id=-1", "--match=a b"]);
    }

    #[test]
    fn the_sentence_says_what_was_done_and_what_was_not() {
        let turned = Turned {
            total: 10,
            matched: 4,
            requeued: 4,
            interrupted: true,
            elapsed_ms: 1250,
            ..Turned::default()
        };
        assert_eq!(
            sentence("hello", "requeued", &turned),
            "4 of 10 dead letters of hello requeued in 1.2s\nInterrupted: the others are dead letters still\n"
        );
        let contended = Turned { total: 3, deleted: 2, not_deleted: 1, contended: true, ..Turned::default() };
        let said = sentence("hello", "deleted", &contended);
        assert!(said.contains("\n1 lines of the archive were not deleted (moved by"), "{said}");
        let dry = Turned { dry_run: true, total: 10, matched: 4, ..Turned::default() };
        assert_eq!(sentence("hello", "deleted", &dry), "4 of 10 dead letters of hello would be deleted\n");
    }

    #[test]
    fn an_id_that_no_letter_has_is_a_code_of_its_own() {
        let turned = serde_json::json!({ "total": 3, "matched": 1, "requeued": 1, "not_found": ["x", "y"] });
        let ended = Ended { code: 1, said: String::new() };
        let error = conclude("hello", "requeued", None, &turned, &ended).unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), (3, "jobqueue hello has no dead letter x, y"));
        let stopped = Ended { code: INTERRUPTED, said: String::new() };
        assert_eq!(conclude("hello", "requeued", None, &turned, &stopped).unwrap_err().code(), 130);
    }

    #[test]
    fn what_was_not_looked_at_is_said() {
        let cut = Letters { total: 200_000, looked_at: 100_000, ..Letters::default() };
        assert_eq!(reach(&cut), "; only 100000 of 200000 were looked at: raise --look-at");
        assert_eq!(reach(&Letters { complete: true, ..cut }), "");
    }

    #[test]
    fn an_archive_is_never_overwritten_and_counts_what_is_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.ndjson");
        let mut archive = Archive::create(&path).unwrap();
        assert_eq!(archive.store(b"{}\n{}").unwrap(), 1);
        assert_eq!(archive.store(b"\n").unwrap(), 2);
        assert!(Archive::create(&path).err().unwrap().to_string().contains("nothing was deleted"));
    }
}
