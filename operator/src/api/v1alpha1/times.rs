//! How long jobs may take, and how long a worker that has to stop waits for them.
use std::time::Duration;

use jobqueue::config;

use super::{JobQueueSpec, TypeHandler};

/// How long a job may take when nobody says so.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);
/// A worker that has to stop waits for this long at least.
const SHORTEST_DRAIN: Duration = Duration::from_secs(25);
/// And for this long at most, unless somebody says so: a node that is drained for an upgrade waits for it.
const LONGEST_DRAIN: Duration = Duration::from_secs(600);

impl JobQueueSpec {
    /// How long running jobs may take to finish when a pod is stopped from outside: as long as a job may take, unless
    /// somebody has said how long.
    pub fn drain_timeout(&self) -> Duration {
        let derived = || self.longest_job().map_or(SHORTEST_DRAIN, |(longest, _)| longest);
        let said = self.worker.drain_timeout.map(config::Duration::get);
        said.unwrap_or_else(|| derived().clamp(SHORTEST_DRAIN, LONGEST_DRAIN))
    }

    /// How long a pod has to stop: the worker drains, then the app stops, and some seconds for the kubelet to notice each.
    pub fn grace(&self) -> Duration {
        let stop = self.worker.app.as_ref().map(|app| app.stop_timeout.get()).unwrap_or_default();
        self.drain_timeout() + stop + Duration::from_secs(5)
    }

    /// How long a job may take: the longest of all handlers, and the field that says so; nothing if none has a timeout.
    pub fn longest_job(&self) -> Option<(Duration, String)> {
        let time = |timeout: Option<config::Duration>| timeout.map_or(JOB_TIMEOUT, config::Duration::get);
        let handler = self.worker.handler.as_ref();
        let posted = handler.and_then(|handler| handler.http.as_ref()).map(|http| http.timeout);
        let types = self.async_jobs.as_ref().map(|jobs| &jobs.handlers).filter(|types| !types.is_empty());
        let Some(types) = types else {
            let http = posted.map(|timeout| (time(timeout), "worker.handler.http.timeout".to_owned()));
            let run = handler.and_then(|handler| handler.command.as_ref());
            let run = run.map(|run| (time(run.timeout), "worker.handler.command.timeout".to_owned()));
            return http.or(run);
        };
        let of_type = |(name, handler): (&String, &TypeHandler)| {
            let http = handler.http.as_ref().map(|http| {
                // One without a url is that of the worker, with its timeout unless it has its own.
                let shared = if http.url.is_none() { posted.flatten() } else { None };
                (time(http.timeout.or(shared)), "http")
            });
            let run = handler.command.as_ref().map(|run| (time(run.timeout), "command"));
            http.or(run).map(|(timeout, kind)| (timeout, format!("async.handlers.{name}.{kind}.timeout")))
        };
        types.iter().filter_map(of_type).max_by_key(|(timeout, _)| *timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(yaml: &str) -> JobQueueSpec {
        serde_json::from_value(serde_saphyr::from_str(yaml).unwrap()).unwrap()
    }

    #[test]
    fn a_worker_waits_for_as_long_as_a_job_may_take_unless_somebody_says_otherwise() {
        let types = "{protocol: async, worker: {handler: {http: {url: 'http://a', timeout: 9m}}}, async: {handlers: {email: {http: {url: 'http://b'}}, resize: {command: {argv: [x], timeout: 5m}}}}}";
        for (yaml, seconds) in [
            ("{}", 25),
            ("{worker: {handler: {simulate: {base: 1h}}}}", 25),
            ("{worker: {handler: {http: {url: 'http://a'}}}}", 60),
            ("{worker: {handler: {http: {url: 'http://a', timeout: 5s}}}}", 25),
            ("{worker: {handler: {command: {argv: [x], timeout: 90s}}}}", 90),
            ("{worker: {handler: {command: {argv: [x], timeout: 2h}}}}", 600),
            ("{worker: {drainTimeout: 1s, handler: {http: {url: 'http://a'}}}}", 1),
            ("{worker: {drainTimeout: 2h, handler: {http: {url: 'http://a'}}}}", 7200),
            (types, 300),
            (&types.replace("{url: 'http://b'}", "{}"), 540),
        ] {
            assert_eq!(spec(yaml).drain_timeout(), Duration::from_secs(seconds), "{yaml}");
        }
    }

    #[test]
    fn jobs_for_which_nobody_says_it_may_take_as_long_as_the_worker_lets_them() {
        assert_eq!(config::Http::default().timeout.get(), JOB_TIMEOUT);
        assert_eq!(config::Command::default().timeout.get(), JOB_TIMEOUT);
        assert_eq!(config::Config::default().worker.drain_timeout.get(), SHORTEST_DRAIN);
    }
}
