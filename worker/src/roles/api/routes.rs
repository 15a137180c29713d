//! What each route does.
use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use jobqueue::protocol::async_jobs::Status;
use jobqueue::store::{Answer, Order, Ordered, Place};
use jobqueue::submission::{self, New, View};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Api;
use super::answers::Room;
use super::body::{self, Share, Wanted};
use super::clerk::Cancelled;
use super::problem::{Code, Problem};
use super::shapes::{Job, JobPage, JobStatus, Jobs, NewJob, NewJobs};
use super::waiting::Change;

/// Jobs of a page unless the request says otherwise.
const PAGE: usize = 20;
/// The most jobs of a page.
const MAX_PAGE: usize = 100;
/// The most bytes of an id in a cursor: it has to fit into the head of a request.
const CURSOR_ID: usize = 300;
/// What an answer has around each job, beside the job.
const COMMA: usize = 16;

/// Create a job
///
/// With an `Idempotency-Key`, asking again gets the first job as it is now (200) instead of another one; the key
/// lives as long as its job.
#[utoipa::path(
    post, path = "/jobs", operation_id = "createJob", tag = "jobs", request_body = NewJob,
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{1,255}$", description = "Names this wish, so that it can be repeated")),
    responses(
        (status = 201, description = "The job was created", body = Job, headers(("Location" = String, description = "Where the job is"))),
        (status = 200, description = "An earlier request with this key has created it", body = Job, headers(("Location" = String, description = "Where the job is"))),
    )
)]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let key = body::idempotency_key(&headers)?;
    let received = api.limits.receive(&headers, body).await?;
    let wanted = body::job(&received.bytes, &api.types)?;
    let Answered { status, mut jobs, room } = order(&api, &[wanted], key, &received.share).await?;
    let Some((id, job)) = jobs.pop() else { return Err(gone()) };
    let location = format!("/jobs/{id}");
    let mut response = (status, Extension(room), Json(job)).into_response();
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Create jobs together
///
/// All of them or none. An `Idempotency-Key` stands for the whole batch.
#[utoipa::path(
    post, path = "/jobs:batch", operation_id = "createJobs", tag = "jobs", request_body = NewJobs,
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{1,255}$", description = "Names this wish, so that it can be repeated")),
    responses(
        (status = 201, description = "The jobs were created", body = Jobs),
        (status = 200, description = "An earlier request with this key has created them; those that are over and forgotten are left out", body = Jobs),
    )
)]
pub(super) async fn create_batch(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let key = body::idempotency_key(&headers)?;
    let received = api.limits.receive(&headers, body).await?;
    let wanted = body::batch(&received.bytes, &api.types)?;
    let Answered { status, jobs, room } = order(&api, &wanted, key, &received.share).await?;
    let jobs = jobs.into_iter().map(|(_, job)| job).collect();
    Ok((status, Extension(room), Json(Jobs { jobs })).into_response())
}

/// What a create is answered with.
struct Answered {
    status: StatusCode,
    /// Each by its id.
    jobs: Vec<(String, Box<RawValue>)>,
    room: Room,
}

/// Creates jobs, or finds those that the key stands for.
async fn order(
    api: &Api,
    wanted: &[Wanted<'_>],
    key: Option<String>,
    memory: &Share,
) -> Result<Answered, Problem> {
    let by = api.clerks.deadline();
    let shard = api.clerks.shard(key.as_deref());
    let now_ms = api.clerks.now_ms();
    let mut jobs = Vec::with_capacity(wanted.len());
    for Wanted { kind, payload } in wanted {
        let id = api.clerks.id(shard);
        let new = New { id: &id, kind, payload, idempotency: key.as_deref(), now_ms };
        let bytes = new.to_bytes();
        if bytes.len() > api.max_job_bytes {
            let detail =
                format!("a job of {} bytes is more than worker.max_payload_bytes allows", bytes.len());
            return Err(Problem::new(Code::TooLarge, detail));
        }
        jobs.push(Ordered { id, bytes });
    }
    // Before anything is changed: what was created must be answered.
    let room = api.answers.reserve(jobs.iter().map(|job| job.bytes.len() + COMMA).sum())?;
    let idempotency = key.map(|key| (key, body::canonical(wanted)));
    let mut order = Order { jobs, idempotency, created_ms: now_ms, gone: Vec::new() };
    let mut answer = api.clerks.create(shard, &order, memory, by).await?;
    let mut known = Vec::new();
    if let Answer::Known(ids) | Answer::Conflict(ids) = &answer {
        // Of a key that stands for something else it is enough to know that there still is one of its jobs.
        let most = if matches!(answer, Answer::Known(_)) { ids.len() } else { 1 };
        known = api.clerks.jobs(shard, ids, most, by).await?;
        if known.is_empty() {
            // Another program has deleted them, or they have lapsed this very moment.
            order.gone.clone_from(ids);
            answer = api.clerks.create(shard, &order, memory, by).await?;
        }
    }
    match answer {
        Answer::Known(ids) => {
            if known.is_empty() {
                known = api.clerks.jobs(shard, &ids, ids.len(), by).await?;
            }
            Ok(Answered { status: StatusCode::OK, jobs: shown(&known)?, room })
        }
        Answer::Conflict(ids) => {
            let detail = format!("the key was used for another body, which created {}", ids.join(", "));
            // A batch may have a thousand: enough to find it.
            let detail = detail.chars().take(200).collect::<String>();
            Err(Problem::new(Code::IdempotencyConflict, detail).about("Idempotency-Key"))
        }
        Answer::Created | Answer::Refused(_) => {
            api.created(order.jobs.len());
            let jobs: Vec<_> = order.jobs.into_iter().map(|job| (job.id, job.bytes)).collect();
            Ok(Answered { status: StatusCode::CREATED, jobs: shown(&jobs)?, room })
        }
    }
}

fn shown(jobs: &[(String, Bytes)]) -> Result<Vec<(String, Box<RawValue>)>, Problem> {
    jobs.iter().map(|(id, bytes)| Ok((id.clone(), view(id, bytes)?.json))).collect()
}

/// Look at a job
///
/// With `wait`, the answer comes when the job's status changes, at once if the job is over or too many requests wait
/// already, and as it is after that time at the latest. With `seen` it also comes at once if the status is another one than that: so a client that
/// says what it knows misses no change between two requests.
#[utoipa::path(
    get, path = "/jobs/{id}", operation_id = "getJob", tag = "jobs",
    params(
        ("id" = String, Path, min_length = 1, description = "The job's id"),
        ("wait" = Option<String>, Query, pattern = "^[0-9]{1,4}(ms|s)$", example = "10s", description = "How long to wait for a change, at most `api.max_wait`"),
        ("seen" = inline(Option<JobStatus>), Query, description = "With `wait`: the status that the client knows"),
    ),
    responses((status = 200, description = "The job", body = Job))
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let Ok(Path(id)) = path else { return Err(gone()) };
    let [wait, seen] = parameters(query.as_deref(), ["wait", "seen"])?;
    let known = seen.map(|word| status("seen", &word)).transpose()?;
    let wait = match wait {
        Some(text) => {
            duration(&text).ok_or_else(|| invalid("wait", "must be a time such as 10s or 500ms"))?
        }
        None => Duration::ZERO,
    };
    let until = Instant::now() + wait.min(api.max_wait);
    // Those who wait leave places for others; beyond that a wait is none.
    let place = if wait.is_zero() { None } else { api.places.try_acquire().ok() };
    // First listen, then read: a change in between is heard.
    let mut change = place.is_some().then(|| api.waiting.on(&id));
    let mut bytes = api.clerks.get(&id, api.clerks.deadline()).await?.ok_or_else(gone)?;
    let first = submission::status(&bytes).ok_or_else(malformed)?;
    let was = known.unwrap_or(first);
    if let Some(change) = &mut change
        && first == was
        && !was.is_over()
    {
        // Who waits keeps nothing of the job but its status.
        drop(bytes);
        bytes = changed(&api, &id, was, change, until).await?;
    }
    Ok(uncached(Json(view(&id, &bytes)?.json)))
}

/// Waits until a job has another status, or the time is over, or the server ends; answers the job as it is then.
async fn changed(
    api: &Api,
    id: &str,
    was: Status,
    change: &mut Change,
    until: Instant,
) -> Result<Bytes, Problem> {
    let _waiting = api.observed.waiting();
    let mut ending = api.ending.clone();
    loop {
        let look = until.min(Instant::now() + api.look_interval);
        let is_last = tokio::select! {
            () = change.happened() => false,
            () = tokio::time::sleep_until(look) => look == until,
            () = ending.requested() => true,
        };
        let bytes = api.clerks.look(id).await?.ok_or_else(gone)?;
        if is_last || submission::status(&bytes).ok_or_else(malformed)? != was {
            return Ok(bytes);
        }
    }
}

/// List jobs
///
/// The newest first, by the time they entered their status.
#[utoipa::path(
    get, path = "/jobs", operation_id = "listJobs", tag = "jobs",
    params(
        ("status" = inline(Option<JobStatus>), Query, description = "Only those of this status"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "At most so many; 20 unless set. Fewer may come although there are more: `next_cursor` says so"),
        ("cursor" = Option<String>, Query, pattern = "^[0-9]{1,15}[.]([0-9a-f]{2}){1,300}$", description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of jobs", body = JobPage))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let [status, limit, after] = parameters(query.as_deref(), ["status", "limit", "cursor"])?;
    let statuses = match status {
        None => Status::ALL.to_vec(),
        Some(word) => vec![self::status("status", &word)?],
    };
    let limit = match limit {
        None => PAGE,
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=MAX_PAGE).contains(limit) && !text.starts_with(['+', '0']))
            .ok_or_else(|| invalid("limit", &format!("must be a number from 1 to {MAX_PAGE}")))?,
    };
    let after = after.map(|text| place(&text).ok_or_else(|| invalid("cursor", "must be a next_cursor")));
    let listed = api.clerks.list(&statuses, after.transpose()?, limit).await?;
    // What is no job any more, or never was one, is not listed; nor what has another status by now.
    let views = listed.jobs.iter().filter_map(|(id, bytes)| View::read(id, bytes));
    let jobs = views.filter(|view| statuses.contains(&view.status)).map(|view| view.json).collect();
    let next_cursor = listed.next.as_ref().map(cursor);
    Ok(uncached(Json(JobPage { jobs, next_cursor })))
}

/// Cancel a job
///
/// One that waits will not run; one that runs is not waited for, and whatever its handler answers is not written. A
/// job that is over cannot be cancelled (409); one that is cancelled stays so.
#[utoipa::path(
    delete, path = "/jobs/{id}", operation_id = "cancelJob", tag = "jobs",
    params(("id" = String, Path, min_length = 1, description = "The job's id")),
    responses((status = 200, description = "The job, cancelled", body = Job))
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Ok(Path(id)) = path else { return Err(gone()) };
    match api.clerks.cancel(&id).await? {
        None => Err(gone()),
        Some(Cancelled::Now(bytes)) => Ok(Json(view(&id, &bytes)?.json).into_response()),
        Some(Cancelled::Malformed) => Err(malformed()),
        Some(Cancelled::Finished(status)) => {
            let detail = format!("it is {}: only a job that waits or runs can be cancelled", status.as_str());
            Err(Problem::new(Code::AlreadyFinished, detail))
        }
    }
}

/// What this API is
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "about",
    responses((status = 200, description = "This document", body = Value, content_type = "application/json"))
)]
pub(super) async fn openapi(State(api): State<Arc<Api>>) -> Response {
    ([(CONTENT_TYPE, "application/json")], api.document.clone()).into_response()
}

fn view(id: &str, bytes: &[u8]) -> Result<View, Problem> {
    View::read(id, bytes).ok_or_else(malformed)
}

fn gone() -> Problem {
    Problem::new(Code::JobNotFound, "it never was, or it ended longer ago than api.result_ttl")
}

fn malformed() -> Problem {
    Problem::new(Code::MalformedJob, "another program has written something else there")
}

fn status(parameter: &str, word: &str) -> Result<Status, Problem> {
    let all = || Status::ALL.map(Status::as_str).join(", ");
    Status::of(word).ok_or_else(|| invalid(parameter, &format!("must be one of {}", all())))
}

fn invalid(parameter: &str, rule: &str) -> Problem {
    Problem::new(Code::InvalidQuery, format!("{parameter} {rule}")).about(parameter)
}

/// A job changes: nobody may keep what it was.
fn uncached(answer: impl IntoResponse) -> Response {
    let mut response = answer.into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The values of these parameters; others are refused, and so is one that is there twice.
fn parameters<const N: usize>(query: Option<&str>, names: [&str; N]) -> Result<[Option<String>; N], Problem> {
    let mut values = [const { None }; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name), decoded(value));
        let Some(at) = names.iter().position(|known| **known == *name) else {
            let name: String = name.chars().take(64).collect();
            return Err(invalid(&name, &format!("is not a parameter of this route: {}", names.join(", "))));
        };
        if values[at].replace(value.into_owned()).is_some() {
            return Err(invalid(names[at], "is there twice"));
        }
    }
    Ok(values)
}

fn decoded(text: &str) -> Cow<'_, str> {
    if text.contains(['%', '+']) {
        Cow::Owned(jobqueue::engine::decoded(&text.replace('+', " ")))
    } else {
        Cow::Borrowed(text)
    }
}

/// `10s` or `500ms`, with up to four digits.
fn duration(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 4)?;
    match unit {
        "s" => Some(Duration::from_secs(number)),
        "ms" => Some(Duration::from_millis(number)),
        _ => None,
    }
}

/// A place as a text that nobody needs to understand: an id may hold anything, so it is written in hex. Of a longer
/// one than a cursor may have its beginning stands for it, which comes behind it as the next page does: at most what was
/// listed in the same millisecond and begins with the same 300 bytes is passed over.
fn cursor(Place { ms, id }: &Place) -> String {
    let end = (0..=CURSOR_ID.min(id.len())).rev().find(|at| id.is_char_boundary(*at));
    id[..end.unwrap_or(0)].bytes().fold(format!("{ms}."), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn place(cursor: &str) -> Option<Place> {
    let (ms, hex) = cursor.split_once('.')?;
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = (1..=15).contains(&ms.len())
        && ms.bytes().all(|byte| byte.is_ascii_digit())
        && (2..=2 * CURSOR_ID).contains(&hex.len())
        && hex.len().is_multiple_of(2)
        && hex.bytes().all(lower);
    if !fits {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).ok();
    let id = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some(Place { ms: ms.parse().ok()?, id: String::from_utf8_lossy(&id).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_known_and_there_once() {
        let read = |query| parameters(Some(query), ["status", "limit"]);
        assert_eq!(read("limit=3&status=a%20b").unwrap(), [Some("a b".into()), Some("3".into())]);
        assert_eq!(read("").unwrap(), [None, None]);
        for bad in ["limit=1&limit=2", "page=1", "statu%73=1&status=2"] {
            assert_eq!(read(bad).unwrap_err().code, Code::InvalidQuery, "{bad}");
        }
    }

    #[test]
    fn a_cursor_is_a_time_and_an_id() {
        let somewhere = Place { ms: 12, id: "a b".into() };
        assert_eq!(cursor(&somewhere), "12.612062");
        assert_eq!(place("12.612062"), Some(somewhere));
        let long = Place { ms: 12, id: "é".repeat(1000) };
        let next = place(&cursor(&long)).unwrap();
        assert!(next < long && long.id.starts_with(&next.id) && next.id.len() == CURSOR_ID, "{next:?}");
        for bad in
            ["", ".", "12", "12.", ".61", "x.61", "-1.61", "12.6", "12.6G", "12.6A", "1234567890123456.61"]
        {
            assert_eq!(place(bad), None, "{bad}");
        }
    }
}
