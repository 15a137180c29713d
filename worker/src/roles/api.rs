//! `--role=api`: jobs over HTTP. Requests are read and judged here; what they ask of Redis, the clerks ask, and every
//! answer comes within a bound.
mod answers;
mod body;
mod clerk;
mod listen;
mod observed;
mod openapi;
mod problem;
mod routes;
mod shapes;
mod tokens;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jobqueue::config::Config;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::answers::Answers;
use self::body::{Limits, Types};
use self::clerk::{Clerks, Told};
use self::listen::Manners;
use self::observed::Requests;
use self::problem::{Code, Problem};
use self::tokens::Tokens;
use self::waiting::Waiting;
use crate::health::Readiness;
use crate::metrics::Metrics;
use crate::server::{Observed, healthz, readyz};
use crate::shutdown::{Shutdown, shutdown};

/// What the process waits for before it is ready.
pub const REDIS: &str = "redis";
/// Bytes of bodies in memory at once, beside the one largest.
const BODIES: usize = 64 << 20;

/// What the routes work with.
struct Api {
    clerks: Arc<Clerks>,
    waiting: Waiting,
    limits: Limits,
    answers: Answers,
    types: Types,
    tokens: Option<Tokens>,
    max_job_bytes: usize,
    max_wait: Duration,
    /// A waiting request looks for itself this often, should an event get lost.
    look_interval: Duration,
    document: String,
    observed: Requests,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    queue: String,
    /// How many requests may wait for jobs to change.
    places: Semaphore,
    /// It is to go, and still serves while load balancers learn of it.
    stopping: Shutdown,
    /// It serves nobody any more but those who are here.
    ending: Shutdown,
}

impl Api {
    fn created(&self, jobs: usize) {
        self.metrics.queue(&self.queue).jobs_produced(jobs as u64);
    }
}

/// Serves until it is asked to stop; `false` when requests had to be cut off.
pub async fn run(
    config: &Config,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    stopping: Shutdown,
) -> anyhow::Result<bool> {
    let settings = &config.api;
    let tokens = match settings.token_file.as_str() {
        "" => None,
        path => Some(Tokens::open(path)?),
    };
    let engine = clerk::engine(config);
    super::check_redis(&engine).await?;
    let listener = listen::bind(settings.port).await?;
    tracing::info!(value = %listener.local_addr()?, "Serving the API");
    let told = Told { metrics: Arc::clone(&metrics), readiness: readiness.clone(), ahead_ms: Arc::default() };
    let waiting = Waiting::default();
    for keys in &engine.shards {
        tokio::spawn(waiting.clone().listen(engine.clone(), keys.clone()));
    }
    let clerks = Arc::new(Clerks::start(&engine, settings.redis_timeout.get(), &told));
    tokio::spawn(clerk::watch_over(Arc::clone(&clerks), waiting.clone()));

    let body_limit = usize::try_from(settings.body_limit).unwrap_or(usize::MAX);
    let types = declared(config);
    let (end, ending) = shutdown();
    let (router, document) = routes().split_for_parts();
    let api = Arc::new(Api {
        clerks,
        waiting,
        limits: Limits {
            bytes: body_limit,
            depth: settings.depth_limit as usize,
            time: settings.body_timeout.get(),
            in_flight: Arc::new(Semaphore::new((BODIES + body_limit).min(Semaphore::MAX_PERMITS))),
        },
        answers: Answers::new(body_limit),
        document: openapi::document(document, &types, tokens.is_some()),
        types,
        tokens,
        max_job_bytes: usize::try_from(config.worker.max_payload_bytes).unwrap_or(usize::MAX),
        max_wait: settings.max_wait.get(),
        look_interval: settings.look_interval.get(),
        observed: Requests::register(metrics.registry())?,
        queue: engine.queues.last().cloned().unwrap_or_default(),
        metrics: Arc::clone(&metrics),
        readiness: readiness.clone(),
        // Others must find a connection.
        places: Semaphore::new((settings.max_connections as usize / 2).max(1)),
        stopping: stopping.clone(),
        ending: ending.clone(),
    });
    let router = router
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), authenticate))
        .merge(about())
        .fallback(async || Problem::new(Code::RouteNotFound, "see /openapi.json"))
        .method_not_allowed_fallback(async || {
            Problem::new(Code::MethodNotAllowed, "the header Allow names those it has; see /openapi.json")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&api), observed::observe))
        .with_state(api);
    let manners = Manners {
        header_timeout: settings.header_timeout.get(),
        answer_timeout: settings.answer_timeout.get(),
        max_connections: settings.max_connections,
        drain_delay: settings.drain_delay.get(),
        drain_timeout: config.worker.drain_timeout.get(),
    };
    let unready = async {
        stopping.clone().requested().await;
        readiness.drained();
        std::future::pending::<()>().await;
    };
    let clean = tokio::select! {
        clean = listen::serve(listener, router, manners, stopping.clone(), (end, ending)) => clean,
        () = unready => false,
    };
    if !clean {
        tracing::warn!("Cut off requests that did not end in time");
    }
    Ok(clean)
}

/// The routes that a token is needed for, and the description of all.
fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(routes::create, routes::list))
        .routes(routes!(routes::create_batch))
        .routes(routes!(routes::show, routes::cancel))
        .routes(routes!(routes::openapi))
}

/// About the process: the same as on the port of metrics.
fn about() -> Router<Arc<Api>> {
    async fn metrics(State(api): State<Arc<Api>>, request: Request) -> Response {
        if let Some(tokens) = &api.tokens
            && !tokens.accept(request.headers())
        {
            return unauthorized().into_response();
        }
        ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], api.metrics.render()).into_response()
    }
    let state = async |State(api): State<Arc<Api>>| {
        let observed = Observed { metrics: Arc::clone(&api.metrics), readiness: api.readiness.clone() };
        readyz(State(observed)).await
    };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/health", get(healthz))
        .route("/readyz", get(state))
        .route("/metrics", get(metrics))
}

async fn authenticate(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    match &api.tokens {
        Some(tokens) if request.uri().path() != "/openapi.json" && !tokens.accept(request.headers()) => {
            unauthorized().into_response()
        }
        _ => next.run(request).await,
    }
}

fn unauthorized() -> Problem {
    Problem::new(Code::Unauthorized, "send Authorization: Bearer and a token of api.token_file")
}

/// The types of jobs that somebody runs; none are named where all are run.
fn declared(config: &Config) -> Types {
    let handlers = &config.async_jobs.handlers;
    let any = handlers.is_empty() || handlers.contains_key("default");
    Types((!any).then(|| handlers.keys().cloned().collect()))
}
