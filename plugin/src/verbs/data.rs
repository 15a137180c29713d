//! `peek`, `job`, `enqueue`: single jobs, through a pod of the queue.
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use jiff::Timestamp;
use jobqueue::terminal::counted;
use operator::api::v1alpha1::Protocol;
use serde_json::Value;
use uuid::Uuid;

use crate::cli::{Enqueue, Job, Peek};
use crate::cluster::Cluster;
use crate::error::{Error, INTERRUPTED};
use crate::figures::or_dash;
use crate::interrupt::Interrupt;
use crate::live::{Found, Search};
use crate::print;
use crate::remote::{self, Input};
use crate::table::{Cell, Paint, Table, Tone, shown, since_text, whole};

/// Text from jobs is cut after this many characters.
const WIDEST: usize = 80;
/// A line about a job, after this many.
const WIDEST_LINE: usize = 400;
/// As much as a worker takes: it holds the jobs several times over, in a container that may have 256 MiB.
const LARGEST_FILE: u64 = 16 << 20;

pub async fn peek(cluster: &Cluster, args: &Peek, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    let mut command = vec!["peek".to_owned(), format!("--count={}", args.count)];
    command.extend(args.queue.iter().map(|queue| format!("--queue={queue}")));
    let (jobs, ended) = remote::with(cluster, &queue, interrupt, async |remote| {
        let (jobs, ended) = remote.json::<Vec<Value>>(&command).await?;
        if ended.code == 0 { Ok((jobs, ended)) } else { Err(remote.failed(&ended)) }
    })
    .await?;
    if let Some(format) = args.output {
        return print::data(format, &jobs);
    }
    if jobs.is_empty() {
        eprintln!("No jobs found");
        return Ok(());
    }
    print::text(&jobs_table(&jobs, Timestamp::now()).render(Paint::detect()))?;
    ended.said.lines().for_each(|line| eprintln!("{}", whole(line)));
    Ok(())
}

/// Jobs of whatever format, a line each: pure.
fn jobs_table(jobs: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(["ID", "QUEUE", "WHAT", "RETRIES", "AGE", "ERROR"]);
    for job in jobs {
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|name| job.get(name).filter(|value| !value.is_null()));
            or_dash(found.map(|value| shown(value.as_str().unwrap_or(&value.to_string()), WIDEST)))
        };
        let made =
            ["creation_time", "created_at", "enqueued_at"].iter().find_map(|name| moment(job.get(name)?));
        let error = text(&["error", "error_message"]);
        table.row(vec![
            text(&["id", "jid"]).into(),
            text(&["priority", "queue"]).into(),
            text(&["filepath", "class", "type", "raw"]).into(),
            text(&["retries", "retry_count"]).into(),
            since_text(made.as_deref(), now).into(),
            Cell::toned(if error == "-" { Tone::Dim } else { Tone::Bad }, error),
        ]);
    }
    table
}

/// A moment as text, or as Sidekiq's numbers: seconds up to version 7, milliseconds since.
fn moment(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let number: f64 = value.as_f64()?;
    #[allow(clippy::cast_possible_truncation, reason = "a moment in milliseconds is far below 2^63")]
    let ms = if number > 1e11 { number as i64 } else { (number * 1000.0) as i64 };
    Timestamp::from_millisecond(ms).ok().map(|at| at.to_string())
}

pub async fn job(cluster: &Cluster, args: &Job, interrupt: &Interrupt) -> Result<(), Error> {
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    let command = ["job".to_owned(), format!("--look-at={}", args.look_at), "--".into(), args.id.clone()];
    let (answer, complete): (Value, bool) = remote::with(cluster, &queue, interrupt, async |remote| {
        let (answer, ended) = remote.json::<Value>(&command).await?;
        let search: Search = serde_json::from_value(answer.clone()).unwrap_or_default();
        if search.found.is_empty() && ended.code != 0 && ended.code != 1 {
            return Err(remote.failed(&ended));
        }
        Ok((answer, search.complete))
    })
    .await?;
    let search: Search = serde_json::from_value(answer.clone()).unwrap_or_default();
    if let Some(format) = args.output {
        print::data(format, &answer)?;
    } else if !search.found.is_empty() {
        print::text(
            &search
                .found
                .iter()
                .map(|found| place_page(&args.id, found, Timestamp::now()))
                .collect::<Vec<_>>()
                .join("\n"),
        )?;
    }
    if search.found.is_empty() {
        let among = if complete {
            String::new()
        } else {
            format!(" among the first {} of each list, and there are more: raise --look-at", args.look_at)
        };
        return Err(Error::NotFound(format!(
            "jobqueue {} has no job {}{among}; completed ones are kept for a while only",
            args.name, args.id
        )));
    }
    Ok(())
}

/// Where a job is and what happened to it: pure.
fn place_page(id: &str, found: &Found, now: Timestamp) -> String {
    let mut page = String::new();
    // Whatever it is, somebody else wrote it.
    let mut line = |name: &str, value: String| {
        let _ = writeln!(page, "{:<14}{}", format!("{name}:"), shown(&value, WIDEST_LINE));
    };
    let queue = found.queue.as_deref().unwrap_or("-");
    let ahead = found.ahead.map(|ahead| format!(", behind {}", counted(ahead, "job"))).unwrap_or_default();
    let place = match found.place.as_str() {
        "waiting" => format!("waits in queue {queue}{ahead}"),
        "suspect" => format!("waits in queue {queue}{ahead}; its process died while it held it"),
        "held" => format!("runs in pod {}", found.host.as_deref().unwrap_or("-")),
        "delayed" | "retry" | "scheduled" => {
            format!("waits for its next attempt, at {}", found.due_at.as_deref().unwrap_or("-"))
        }
        "dead" => "is a dead letter".into(),
        "completed" => "is done".into(),
        other => other.to_owned(),
    };
    line("Job", shown(id, WIDEST));
    line("Where", place);
    line("Key", found.key.clone());
    let history = &found.history;
    if let Some(made) = &history.created_at {
        line("Created", format!("{made} ({} ago)", since_text(Some(made), now)));
    }
    line("Retries", history.retries.unwrap_or(0).to_string());
    if history.interruptions.unwrap_or(0) + history.deaths.unwrap_or(0) > 0 {
        let by = history.interrupted_by.as_deref().map(|by| format!(", last by {by}")).unwrap_or_default();
        line(
            "Interrupted",
            format!(
                "{} times alone, {} in all{by}",
                history.interruptions.unwrap_or(0),
                history.deaths.unwrap_or(0)
            ),
        );
    }
    for (name, value) in
        [("Reason", &history.reason), ("Error", &history.error), ("Given up", &history.failed_at)]
    {
        if let Some(value) = value {
            line(name, value.clone());
        }
    }
    if !found.job.is_null() {
        let _ = write!(page, "Itself:\n{}", print::json_text(&found.job));
    }
    page
}

/// The jobs of a file, or of the standard input.
fn read_jobs(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![];
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(LARGEST_FILE + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
    };
    let path = path.display();
    match read {
        Err(error) => Err(Error::Usage(format!("--file {path}: {error}"))),
        Ok(length) if length as u64 > LARGEST_FILE => Err(Error::Usage(format!(
            "--file {path}: more than {} MiB, nothing was enqueued; split it into several files",
            LARGEST_FILE >> 20
        ))),
        Ok(_) => Ok(bytes),
    }
}

pub async fn enqueue(cluster: &Cluster, args: &Enqueue, interrupt: &Interrupt) -> Result<(), Error> {
    let input = match args.file.clone() {
        None => vec![],
        Some(path) => interrupt.or_read(move || read_jobs(&path)).await?,
    };
    let queue = interrupt.or(cluster.queue(&args.name)).await?;
    let (fields, id) = identified(&args.arg, queue.spec.protocol, Uuid::new_v4());
    let mut command = vec!["enqueue".to_owned()];
    command.extend(args.queue.iter().map(|queue| format!("--queue={queue}")));
    let input = if args.file.is_some() {
        // The end of the input alone does not tell whether it is all.
        command.extend(["--file=-".into(), format!("--bytes={}", input.len())]);
        Input::Bytes(&input)
    } else {
        command.extend(fields.iter().map(|field| format!("--arg={field}")));
        // Nothing to read, and nothing to repeat: said twice, it would be two jobs.
        Input::Bytes(&[])
    };
    let (answer, ended) = remote::with(cluster, &queue, interrupt, async |remote| {
        let (answer, ended) = remote.json_of::<Value>(&command, input, &mut |_| ()).await?;
        // Stopped in between, the answer says which jobs are enqueued already.
        if matches!(ended.code, 0 | INTERRUPTED) { Ok((answer, ended)) } else { Err(remote.failed(&ended)) }
    })
    .await
    .map_err(|error| in_doubt(error, &args.name, queue.spec.protocol, id.as_deref()))?;
    if let Some(format) = args.output {
        print::data(format, &answer)?;
    } else {
        print::text(&enqueued(&answer))?;
    }
    if ended.code == INTERRUPTED { Err(Error::Interrupted) } else { Ok(()) }
}

/// The fields of a job, and its id: one is chosen where there is none, so that the job can be looked for, whatever becomes of
/// the connection. From a file nothing is chosen: its jobs are sent as they are. Pure.
fn identified(given: &[String], protocol: Protocol, chance: Uuid) -> (Vec<String>, Option<String>) {
    // As a worker makes them.
    let (name, id) = match protocol {
        Protocol::Files | Protocol::Async => ("id=", chance.to_string()),
        Protocol::Sidekiq => ("jid=", chance.simple().to_string()[..24].to_owned()),
    };
    // A line of an archive has the job in it, with an id of its own.
    let whole = protocol == Protocol::Async && given.iter().any(|field| field.starts_with("job="));
    if given.is_empty() || whole {
        return (given.to_vec(), None);
    }
    if let Some(id) = given.iter().find_map(|field| field.strip_prefix(name)) {
        return (given.to_vec(), Some(id.to_owned()));
    }
    let chosen = format!("{name}{id}");
    (given.iter().cloned().chain([chosen]).collect(), Some(id))
}

/// To enqueue is the one command that does something twice when it is run twice: cut off or not waited for, it may have been
/// done. Pure.
fn in_doubt(error: Error, queue: &str, protocol: Protocol, id: Option<&str>) -> Error {
    let (what, named) = match id {
        Some(id) => (format!("job {} may", shown(id, WIDEST)), shown(id, WIDEST)),
        None => ("the jobs may".into(), "ID".into()),
    };
    // A job that queues only name is there once, whoever enqueues it again.
    let again = match (protocol, id) {
        (Protocol::Async, Some(_)) => {
            format!(", or run it again with --arg id={named}, which is refused if it is there")
        }
        _ => " before you run it again".into(),
    };
    let doubt = |why: &str| {
        format!(
            "{why}; {what} have been enqueued: look with kubectl jobqueue job {queue} {}{named}{again}",
            if named.starts_with('-') { "-- " } else { "" }
        )
    };
    match error {
        Error::CutOff { why } => Error::Unreachable(doubt(&why)),
        Error::Abandoned(why) => Error::Abandoned(doubt(&why)),
        other => other,
    }
}

/// The jobs that were enqueued, a line each: pure.
fn enqueued(answer: &Value) -> String {
    let jobs = answer["jobs"].as_array().cloned().unwrap_or_default();
    let text = |job: &Value, name: &str| shown(job[name].as_str().unwrap_or("-"), WIDEST);
    jobs.iter().fold(String::new(), |mut lines, job| {
        let _ = writeln!(lines, "job/{} enqueued in {}", text(job, "id"), text(job, "queue"));
        lines
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn jobs_of_every_format_are_lines_of_one_table() {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let jobs = [
            json!({ "id": "1", "filepath": "/a", "priority": "low", "retries": 2, "creation_time": "2026-01-01T00:00:00Z" }),
            json!({ "jid": "2", "class": "Mailer", "queue": "default", "created_at": 1_767_225_600.5, "error_message": "no\x1b" }),
            json!({ "raw": "boo" }),
        ];
        assert_eq!(
            jobs_table(&jobs, now).render(Paint(false)),
            "ID   QUEUE     WHAT     RETRIES   AGE   ERROR\n\
             1    low       /a       2         60s   -\n\
             2    default   Mailer   -         59s   no\\u{1b}\n\
             -    -         boo      -         -     -\n"
        );
    }

    #[test]
    fn a_jobs_page_says_where_it_is_and_what_happened_to_it() {
        let found: Found = serde_json::from_value(json!({
            "place": "held", "queue": "high", "key": "k", "host": "hello-worker-1",
            "history": { "created_at": "2026-01-01T00:00:00Z", "retries": 1, "interruptions": 1, "deaths": 2, "interrupted_by": "oom" },
        }))
        .unwrap();
        let page = place_page("7", &found, "2026-01-01T00:01:00Z".parse().unwrap());
        for part in [
            "runs in pod hello-worker-1",
            "(60s ago)",
            "Retries:      1",
            "1 times alone, 2 in all, last by oom",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }

    #[test]
    fn nothing_about_a_job_makes_a_terminal_do_something() {
        let evil = "x\u{1b}[2J\u{202e}";
        let found: Found = serde_json::from_value(json!({
            "place": "delayed", "queue": evil, "key": evil, "host": evil, "due_at": evil,
            "history": { "created_at": evil, "deaths": 1, "interrupted_by": evil, "reason": evil, "error": evil, "failed_at": evil },
            "job": { "a": evil },
        }))
        .unwrap();
        for place in ["delayed", "waiting", "held", evil] {
            let found = Found { place: place.into(), ..found.clone() };
            let page = place_page(evil, &found, "2026-01-01T00:01:00Z".parse().unwrap());
            assert!(page.chars().all(|c| c == '\n' || !crate::table::unsafe_to_print(c)), "{page}");
        }
        let lines = enqueued(&json!({ "jobs": [{ "id": evil, "queue": evil }] }));
        assert_eq!(lines, "job/x\\u{1b}[2J\\u{202e} enqueued in x\\u{1b}[2J\\u{202e}\n");
    }

    #[test]
    fn a_job_without_an_id_is_given_one_that_can_be_named() {
        let given = ["filepath=/a".to_owned()];
        let choose = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let (fields, id) = identified(&given, Protocol::Files, choose);
        assert_eq!(fields, ["filepath=/a", "id=01234567-89ab-cdef-0123-456789abcdef"]);
        assert_eq!(id.as_deref(), Some("01234567-89ab-cdef-0123-456789abcdef"));
        let (fields, _) = identified(&given, Protocol::Sidekiq, choose);
        assert_eq!(fields[1], "jid=0123456789abcdef01234567");
        let given = ["id=mine".to_owned(), "filepath=/a".to_owned()];
        assert_eq!(identified(&given, Protocol::Files, choose), (given.to_vec(), Some("mine".into())));
        assert_eq!(identified(&[], Protocol::Files, choose), (vec![], None), "those of a file are its own");
        let (fields, id) = identified(&["type=mail".to_owned()], Protocol::Async, choose);
        assert_eq!(fields[1], format!("id={}", id.unwrap()));
        let archived = ["job={}".to_owned()];
        assert_eq!(identified(&archived, Protocol::Async, choose), (archived.to_vec(), None));
    }

    #[test]
    fn an_enqueue_that_was_cut_off_or_not_waited_for_is_in_doubt_and_says_how_to_look() {
        let cut = || Error::CutOff { why: "the connection to pod p broke".into() };
        let said = in_doubt(cut(), "hello", Protocol::Files, Some("7"));
        assert_eq!(said.code(), 5);
        assert!(said.to_string().contains("job 7 may have been enqueued"), "{said}");
        assert!(said.to_string().contains("kubectl jobqueue job hello 7 before you run it again"), "{said}");
        let several = in_doubt(cut(), "hello", Protocol::Files, None).to_string();
        assert!(several.contains("the jobs may have been enqueued"), "{several}");
        let left =
            in_doubt(Error::Abandoned("it said nothing".into()), "hello", Protocol::Sidekiq, Some("-7"));
        assert_eq!(left.code(), 130);
        assert!(left.to_string().contains("it said nothing; job -7 may"), "{left}");
        assert!(left.to_string().contains("job hello -- -7 before"), "{left}");
        let safe = in_doubt(cut(), "hello", Protocol::Async, Some("7")).to_string();
        assert!(safe.contains("run it again with --arg id=7, which is refused if it is there"), "{safe}");
        assert_eq!(in_doubt(Error::Interrupted, "hello", Protocol::Files, None).to_string(), "interrupted");
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_before_anybody_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.json");
        std::fs::File::create(&path).unwrap().set_len(LARGEST_FILE + 1).unwrap();
        let said = read_jobs(&path).unwrap_err().to_string();
        assert!(said.contains("more than 16 MiB") && said.contains("split it"), "{said}");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read_jobs(&path).unwrap(), b"{}");
    }
}
