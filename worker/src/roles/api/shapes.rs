//! What bodies look like: the types that the description is made from.
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// A job that is to be created.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape of a body; it is read field by field, to say what is wrong with it")]
pub(super) struct NewJob {
    /// Which handler runs it.
    #[schema(
        min_length = 1,
        max_length = 128,
        pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]*$",
        example = "email"
    )]
    r#type: String,
    /// What the handler gets, any JSON. Not set: null.
    #[schema(required = false)]
    payload: Value,
}

/// Jobs that are created together or not at all.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape of a body, as above")]
pub(super) struct NewJobs {
    /// The jobs, in the order in which they are queued.
    #[schema(min_items = 1, max_items = 1000)]
    jobs: Vec<NewJob>,
}

/// Where a job is in its life.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase", as = Status)]
#[expect(dead_code, reason = "the shape of an answer")]
pub(super) enum JobStatus {
    /// It waits.
    Pending,
    /// A worker runs it.
    Running,
    /// It is done.
    Completed,
    /// It was given up: `error` says why.
    Failed,
    /// It was taken back.
    Cancelled,
}

/// A job. Fields that are not listed here are those of other clients, or tell more of its story.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape of an answer")]
pub(super) struct Job {
    /// Its id.
    id: String,
    /// Which handler runs it.
    r#type: String,
    /// What the handler gets.
    payload: Value,
    #[schema(inline)]
    status: JobStatus,
    /// When it was created: RFC 3339, UTC.
    #[schema(required = true)]
    created_at: Option<String>,
    /// When its last run started.
    #[schema(required = true)]
    started_at: Option<String>,
    /// When it ended.
    #[schema(required = true)]
    completed_at: Option<String>,
    /// What went wrong the last time.
    #[schema(required = true)]
    error: Option<String>,
    /// How often a worker has begun to run it.
    #[schema(minimum = 0)]
    attempts: u32,
    /// What the handler answered.
    result: Value,
}

/// The jobs of a batch, in its order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Jobs {
    #[schema(value_type = Vec<Job>)]
    pub jobs: Vec<Box<RawValue>>,
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobPage {
    /// The newest first, by the time they entered their status.
    #[schema(value_type = Vec<Job>)]
    pub jobs: Vec<Box<RawValue>>,
    /// The `cursor` of the next page; null when there is none.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}
