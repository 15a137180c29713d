//! What these tests start from.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
use std::net::SocketAddr;
use std::time::Duration;

use e2e::{Options, RedisServer, Worker, WorkerOptions, http};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

/// How long anything may take.
pub const SOON: Duration = Duration::from_secs(30);

/// A Redis and an API on it.
pub struct Scene {
    pub server: RedisServer,
    pub api: Worker,
    pub addr: SocketAddr,
    pub client: reqwest::Client,
}

/// An answer: its status, its headers and its JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    /// Checks that it is a problem with this code.
    pub fn is_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], status, "{self:?}");
        assert_eq!(self.body["request_id"].as_str(), self.headers["x-request-id"].to_str().ok(), "{self:?}");
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// The options of an API on this Redis.
pub fn api_options(redis: SocketAddr) -> WorkerOptions {
    WorkerOptions::new("api").redis(redis).env("PROTOCOL", "async").env("API_PORT", "0")
}

/// Where an API listens.
pub async fn addr_of(api: &Worker) -> SocketAddr {
    let entry = api.wait_for_log("Serving the API").await;
    let mut addr: SocketAddr = entry["value"].as_str().unwrap().parse().unwrap();
    addr.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    addr
}

impl Scene {
    pub async fn start() -> Self {
        Self::with(|options| options).await
    }

    /// With other options.
    pub async fn with(change: impl FnOnce(WorkerOptions) -> WorkerOptions) -> Self {
        let server = RedisServer::start(Options::default()).await;
        Self::on(server, change).await
    }

    /// On this Redis.
    pub async fn on(server: RedisServer, change: impl FnOnce(WorkerOptions) -> WorkerOptions) -> Self {
        let api = Worker::spawn(&change(api_options(server.addr())));
        let addr = addr_of(&api).await;
        Self { server, api, addr, client: http::client() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub async fn redis(&self) -> MultiplexedConnection {
        self.server.connection().await
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.client.get(self.url(path))).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.client.delete(self.url(path))).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.client.post(self.url(path)).json(body)).await
    }

    /// Posts bytes as they are, said to be JSON.
    pub async fn post_raw(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        let request = self.client.post(self.url(path)).header("content-type", "application/json");
        self.send(request.body(body)).await
    }

    /// Posts with an idempotency key.
    pub async fn post_once(&self, path: &str, key: &str, body: &Value) -> Answer {
        self.send(self.client.post(self.url(path)).header("idempotency-key", key).json(body)).await
    }

    /// A new job's id.
    pub async fn create(&self, kind: &str) -> String {
        let created = self.post("/jobs", &json!({ "type": kind })).await;
        assert_eq!(created.status, 201, "{created:?}");
        created.body["id"].as_str().unwrap().to_owned()
    }

    /// Ids in the queue.
    pub async fn queued(&self) -> Vec<String> {
        command(&mut self.redis().await, &["LRANGE", "jobs:queue", "0", "-1"]).await
    }

    /// Gives a job another status as a worker does: data, index and event.
    pub async fn move_to(&self, id: &str, status: &str) {
        let mut redis = self.redis().await;
        let data: String = command(&mut redis, &["GET", &format!("jobs:data:{id}")]).await;
        let mut data: Value = serde_json::from_str(&data).unwrap();
        let was = format!("jobs:index:{}", data["status"].as_str().unwrap());
        data["status"] = json!(status);
        let mut change = redis::pipe();
        change.atomic();
        change.cmd("SET").arg(format!("jobs:data:{id}")).arg(data.to_string()).ignore();
        change.cmd("ZREM").arg(was).arg(id).ignore();
        change.cmd("ZADD").arg(format!("jobs:index:{status}")).arg(1).arg(id).ignore();
        change.cmd("PUBLISH").arg("jobs:events").arg(format!("{id} {status}")).ignore();
        let () = change.query_async(&mut redis).await.unwrap();
    }
}

pub async fn command<T: redis::FromRedisValue>(redis: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query_async(redis).await.unwrap()
}
