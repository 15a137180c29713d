//! Every error, as RFC 9457 has it: `application/problem+json` with a code that stays the same for ever.
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong, in one word that programs compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The body is not JSON.
    NotJson,
    /// A field that must be there is not.
    MissingField,
    /// A field has the wrong type or breaks its rule.
    InvalidField,
    /// A field that is not known.
    UnknownField,
    /// The body nests deeper than `api.depth_limit`.
    TooDeep,
    /// No handler runs this type of job.
    UnknownType,
    /// A parameter of the query breaks its rule, or is not known.
    InvalidQuery,
    /// The idempotency key breaks its rule.
    InvalidIdempotencyKey,
    /// No token, or one that is not accepted.
    Unauthorized,
    /// No such job (any more).
    JobNotFound,
    /// No such route.
    RouteNotFound,
    /// The route has no such method.
    MethodNotAllowed,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The idempotency key was used with another body.
    IdempotencyConflict,
    /// The job ended before.
    AlreadyFinished,
    /// The body is larger than `api.body_limit`.
    TooLarge,
    /// The body is not said to be JSON.
    UnsupportedMediaType,
    /// What is stored under this id is no job.
    MalformedJob,
    /// Redis did not answer in time, or cannot take it now.
    Unavailable,
    /// Too much is under way at once.
    Overloaded,
}

impl Code {
    /// The HTTP status and what the code means, in a few words.
    const fn meaning(self) -> (StatusCode, &'static str) {
        match self {
            Self::NotJson => (StatusCode::BAD_REQUEST, "The body is not JSON"),
            Self::MissingField => (StatusCode::BAD_REQUEST, "A field is missing"),
            Self::InvalidField => (StatusCode::BAD_REQUEST, "A field has a wrong value"),
            Self::UnknownField => (StatusCode::BAD_REQUEST, "A field is not known"),
            Self::TooDeep => (StatusCode::BAD_REQUEST, "The body nests too deep"),
            Self::UnknownType => (StatusCode::BAD_REQUEST, "No handler runs this type of job"),
            Self::InvalidQuery => (StatusCode::BAD_REQUEST, "A query parameter has a wrong value"),
            Self::InvalidIdempotencyKey => (StatusCode::BAD_REQUEST, "The idempotency key is not one"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "A bearer token is needed"),
            Self::JobNotFound => (StatusCode::NOT_FOUND, "There is no such job"),
            Self::RouteNotFound => (StatusCode::NOT_FOUND, "There is no such route"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "The route has no such method"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time"),
            Self::IdempotencyConflict => {
                (StatusCode::CONFLICT, "The idempotency key was used with another body")
            }
            Self::AlreadyFinished => (StatusCode::CONFLICT, "The job has ended before"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"),
            Self::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body must be JSON"),
            Self::MalformedJob => (StatusCode::INTERNAL_SERVER_ERROR, "What is stored is no job"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "Redis cannot be used now"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "Too much is under way at once"),
        }
    }
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the code says which problem it is.
    r#type: &'static str,
    /// What the code means.
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What went wrong, in one word that programs compare. New ones may be added.
    pub code: Code,
    /// What exactly, and what to do.
    detail: String,
    /// The field or parameter it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The id of this request, as in the header `X-Request-Id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        let (status, title) = code.meaning();
        Self {
            r#type: "about:blank",
            title,
            status: status.as_u16(),
            code,
            detail: detail.into(),
            field: None,
            request_id: None,
        }
    }

    pub(super) fn about(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }
}

impl IntoResponse for Problem {
    /// The body is written by [`told`], which knows the request's id.
    fn into_response(self) -> Response {
        let mut response = self.code.meaning().0.into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.code {
            Code::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::Unavailable | Code::Overloaded => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes a problem's body, with the id of the request it answers.
pub(super) fn told(mut response: Response, request_id: &str) -> Response {
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        problem.request_id = Some(request_id.to_owned());
        *response.body_mut() = serde_json::to_vec(&problem).unwrap_or_default().into();
    }
    response
}
