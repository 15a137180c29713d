//! `enqueue`: jobs by hand. All are checked before the first is enqueued.
mod make;

use std::io::Read as _;
use std::path::Path;

use jobqueue::keys::Keys;
use jobqueue::store::{Answer, Enqueue as NewJob, Order, Ordered, PAGE_COUNT, PageKind, Session, StoreError};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::peek::{no_such_queue, queue_named};
use super::table::{Table, shown};
use super::{Admin, AdminError, End, advice, answer};
use crate::cli::Enqueue;
use make::{Made, Maker};

/// At most so many jobs in one call, and so many bytes of them: they are held about four times over (as text, split,
/// made, and on their way), beside a worker whose container may have 256 MiB.
const JOBS_MAX: usize = 10_000;
const BYTES_MAX: u64 = 16 << 20;
/// A call whose reply is lost is repeated so often.
const TRIES: u32 = 3;

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Serialize)]
struct Enqueued {
    enqueued: u64,
    jobs: Vec<Placed>,
}

#[derive(Debug, Serialize)]
struct Placed {
    id: String,
    queue: String,
    key: String,
}

/// Whether stdin is what is read.
pub fn reads_stdin(enqueue: &Enqueue) -> bool {
    enqueue.from.as_deref().or(enqueue.file.as_deref()).is_some_and(|path| path.as_os_str() == "-")
}

pub async fn run(admin: &mut Admin<'_>, enqueue: &Enqueue) -> Result<End, AdminError> {
    let texts = texts(enqueue)?;
    let queue = match enqueue.queue.as_deref() {
        Some(wanted) => Some(
            queue_named(wanted, &admin.engine.shards)
                .ok_or_else(|| no_such_queue(wanted, &admin.engine.shards, ""))?,
        ),
        None => None,
    };
    // Redis' clock: what is made here is compared with it.
    admin.shards[0].time().await?;
    let style = newest_style(admin).await?;
    let maker = Maker {
        engine: &admin.engine,
        types: &admin.config.async_jobs,
        names: admin.names(),
        queue,
        now_ms: admin.shards[0].now_ms(),
        style,
    };
    let mut made = Vec::with_capacity(texts.len());
    let mut problems = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        match maker.make(text) {
            Ok(job) => made.push(job),
            Err(problem) if texts.len() == 1 => problems.push(problem),
            Err(problem) => problems.push(format!("job {}: {problem}", at + 1)),
        }
    }
    if admin.engine.protocol.records().is_some() {
        problems.extend(taken(admin, &made).await?);
    }
    if !problems.is_empty() {
        let more = problems.len().saturating_sub(10);
        problems.truncate(10);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        return Err(AdminError::Usage(format!("{}{more}; nothing was enqueued", problems.join("; "))));
    }
    let placed = push(admin, made).await?;
    let end =
        if admin.stop.is_requested() && placed.len() < texts.len() { End::Interrupted } else { End::Done };
    let enqueued = Enqueued { enqueued: placed.len() as u64, jobs: placed };
    answer(enqueue.common, || enqueued.table(), || serde_json::to_value(&enqueued).unwrap_or_default())?;
    Ok(end)
}

/// How the newest job of Sidekiq's queues writes its times: what we make must not differ from it.
async fn newest_style(admin: &mut Admin<'_>) -> Result<Option<Value>, AdminError> {
    if !admin.is_sidekiq() {
        return Ok(None);
    }
    let queues: Vec<String> = admin.engine.shards[0].queues.iter().map(|queue| queue.queue.clone()).collect();
    for queue in queues {
        let page = admin.shards[0].page(&queue, PageKind::Head, 1).await?;
        let newest =
            page.entries.first().and_then(|raw| serde_json::from_slice::<Map<String, Value>>(raw).ok());
        if let Some(time) = newest.and_then(|job| job.get("created_at").cloned()) {
            return Ok(Some(time));
        }
    }
    Ok(None)
}

/// Which of the ids belong to jobs already, or to each other: what is there is not created again, nor written over.
async fn taken(admin: &mut Admin<'_>, made: &[Made]) -> Result<Vec<String>, AdminError> {
    let (mut problems, mut met) = (Vec::new(), std::collections::HashSet::new());
    for job in made {
        let session = &mut admin.shards[job.shard];
        let key = session.keys.jobs().data(&job.id);
        if !met.insert(&job.id) || session.exists(&key).await? {
            let id = shown(&job.id);
            problems.push(format!(
                "id = {id}: there is such a job; leave id out to create another one (dlq requeue runs a dead one again)"
            ));
        }
    }
    Ok(problems)
}

/// Pushes what was made, a page a step, each to its shard.
async fn push(admin: &mut Admin<'_>, made: Vec<Made>) -> Result<Vec<Placed>, AdminError> {
    let mut placed = Vec::with_capacity(made.len());
    let producing = admin.engine.protocol.consuming_side().opposite();
    let (named, now_ms) = (admin.engine.protocol.records().is_some(), admin.shards[0].now_ms());
    if let Some(names) = admin.names() {
        // First, as Sidekiq's client does: an empty queue that is known is harmless, one with jobs that is not is lost.
        let queues: std::collections::BTreeSet<&str> = made.iter().map(|job| job.queue.as_str()).collect();
        for queue in queues {
            admin.shards[0].name_in(&names.queues(), queue).await?;
        }
    }
    let mut by_shard: Vec<Vec<Made>> = admin.shards.iter().map(|_| Vec::new()).collect();
    for job in made {
        by_shard[job.shard].push(job);
    }
    for (session, jobs) in admin.shards.iter_mut().zip(by_shard) {
        for page in jobs.chunks(PAGE_COUNT) {
            if admin.stop.is_requested() {
                return Ok(placed);
            }
            let pushed = if named {
                created(session, page, now_ms).await
            } else {
                once(session, producing, page).await
            };
            pushed.map_err(|error| {
                AdminError::Failed(format!("{} ({} jobs were enqueued before)", advice(&error), placed.len()))
            })?;
            placed.extend(page.iter().map(|job| Placed {
                id: job.id.clone(),
                queue: job.queue.clone(),
                key: job.key.clone(),
            }));
        }
    }
    Ok(placed)
}

/// One page, once: repeated under the same name it adds nothing.
async fn once(
    session: &mut Session,
    producing: jobqueue::effects::Side,
    page: &[Made],
) -> Result<(), StoreError> {
    let new = |job: &Made| NewJob { queue: job.key.clone(), raw: job.raw.clone(), seen: None };
    let jobs: Vec<NewJob> = page.iter().map(new).collect();
    let call = uuid::Uuid::new_v4().to_string();
    let seen = session.keys.seen("");
    let mut tries = 1;
    loop {
        match session.enqueue(&call, &seen, producing, &jobs).await {
            Err(StoreError::Lost(_)) if tries < TRIES => tries += 1,
            answer => return answer.map(drop),
        }
    }
}

/// One page of jobs that queues only name, once: repeated it finds its own.
async fn created(session: &mut Session, page: &[Made], created_ms: u64) -> Result<(), StoreError> {
    let order = |job: &Made| Order {
        jobs: vec![Ordered { id: job.id.clone(), bytes: job.raw.clone() }],
        idempotency: None,
        created_ms,
        gone: Vec::new(),
    };
    let orders: Vec<Order> = page.iter().map(order).collect();
    let orders: Vec<&Order> = orders.iter().collect();
    let mut tries = 1;
    let answers = loop {
        match session.create(&orders).await {
            Err(StoreError::Lost(_)) if tries < TRIES => tries += 1,
            answers => break answers?,
        }
    };
    for answer in answers {
        if let Answer::Refused(refusal) = answer {
            return Err(refusal.into());
        }
    }
    Ok(())
}

/// The JSON texts of the jobs.
fn texts(enqueue: &Enqueue) -> Result<Vec<String>, AdminError> {
    let Some(path) = enqueue.from.as_deref().or(enqueue.file.as_deref()) else {
        return Ok(vec![object(&enqueue.arg)?]);
    };
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let source: Box<dyn std::io::Read> = if path.as_os_str() == "-" {
            Box::new(std::io::stdin())
        } else {
            Box::new(std::fs::File::open(path)?)
        };
        source.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let name = shown(&name(path));
    let bytes = read().map_err(|error| AdminError::Usage(format!("{name}: cannot read it: {error}")))?;
    let length = bytes.len() as u64;
    if length > BYTES_MAX {
        return Err(AdminError::Usage(format!(
            "{name}: more than {} MiB, nothing was enqueued; split it into several files",
            BYTES_MAX >> 20
        )));
    }
    // Lines that came before the cut would be a valid file.
    if let Some(whole) = enqueue.bytes.filter(|whole| *whole != length) {
        return Err(AdminError::Failed(format!(
            "{name}: {length} of {whole} bytes came, it was cut off on its way; nothing was enqueued, run it again"
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| AdminError::Usage(format!("{name}: is not UTF-8; nothing was enqueued")))?;
    let jobs = split(&text)
        .map_err(|problem| AdminError::Usage(format!("{name}: {problem}; nothing was enqueued")))?;
    match jobs.len() {
        0 => Err(AdminError::Usage(format!("{name}: there is no job in it"))),
        1..=JOBS_MAX => Ok(jobs),
        more => Err(AdminError::Usage(format!("{name}: {more} jobs, more than {JOBS_MAX}; split it"))),
    }
}

fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() }
}

/// One object, an array of them, or one after the other: each in its own bytes.
fn split(text: &str) -> Result<Vec<String>, String> {
    let wrong =
        |error: &serde_json::Error| format!("not JSON at line {} column {}", error.line(), error.column());
    if text.trim_start().starts_with('[') {
        let all: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| wrong(&error))?;
        return Ok(all.into_iter().map(|one| one.get().to_owned()).collect());
    }
    let all = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    all.map(|one| one.map(|one| one.get().to_owned()).map_err(|error| wrong(&error))).collect()
}

/// An object of `key=value`: JSON where it is, text where a field must be text or it is none.
fn object(args: &[String]) -> Result<String, AdminError> {
    const TEXT: [&str; 13] = [
        "id",
        "type",
        "filepath",
        "priority",
        "creation_time",
        "trace_id",
        "span_id",
        "origin_queue",
        "class",
        "queue",
        "jid",
        "cid",
        "wrapped",
    ];
    let mut object = Map::new();
    for arg in args {
        let Some((name, value)) = arg.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(AdminError::Usage(format!("--arg {}: must be KEY=VALUE", shown(arg))));
        };
        let parsed = (!TEXT.contains(&name)).then(|| serde_json::from_str::<Value>(value).ok()).flatten();
        if object.insert(name.to_owned(), parsed.unwrap_or_else(|| value.into())).is_some() {
            return Err(AdminError::Usage(format!("--arg {}: given twice", shown(name))));
        }
    }
    Ok(Value::Object(object).to_string())
}

impl Enqueued {
    fn table(&self) -> String {
        let mut table = Table::new(&["ID", "QUEUE"]);
        for job in &self.jobs {
            table.row(vec![shown(&job.id), shown(&job.queue)]);
        }
        format!("{table}Enqueued {}\n", self.enqueued)
    }
}

/// The shard of a job and the key of its queue there.
fn home<'a>(shards: &'a [Keys], shard: usize, queue: &str) -> Option<&'a str> {
    shards[shard].queues.iter().find(|keys| keys.name == queue).map(|keys| keys.queue.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_alone_in_an_array_or_one_after_the_other_in_their_own_bytes() {
        assert_eq!(split(r#" {"a" : 1.50} "#).unwrap(), [r#"{"a" : 1.50}"#]);
        assert_eq!(split(r#"[{"a":1}, {"b":2}]"#).unwrap(), [r#"{"a":1}"#, r#"{"b":2}"#]);
        assert_eq!(split("{\"a\":1}\n{\"b\":2}\n").unwrap().len(), 2);
        assert!(split("").unwrap().is_empty());
        assert_eq!(split("{\n\"a\"").unwrap_err(), "not JSON at line 2 column 3");
    }

    #[test]
    fn an_argument_is_json_where_it_is_and_text_where_it_must_be() {
        let of = |args: &[&str]| object(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            of(&["id=5", "filesize=5", "args=[1,\"x\"]", "note=a=b"]).unwrap(),
            r#"{"id":"5","filesize":5,"args":[1,"x"],"note":"a=b"}"#
        );
        for wrong in [&["=1"][..], &["id"], &["a=1", "a=2"]] {
            assert!(of(wrong).unwrap_err().to_string().starts_with("--arg"), "{wrong:?}");
        }
    }
}
