//! From what somebody wrote to a job as its protocol has it: what is missing is made, everything else keeps its bytes.
use bytes::Bytes;
use jobqueue::config::AsyncJobs;
use jobqueue::engine::Engine;
use jobqueue::job::Data;
use jobqueue::keys::Keys;
use jobqueue::protocol::Records;
use jobqueue::protocol::files::rfc3339;
use jobqueue::protocol::record::Record;
use jobqueue::protocol::sidekiq::names::Names;
use jobqueue::protocol::sidekiq::time::Style;
use jobqueue::submission;
use serde_json::Value;
use uuid::Uuid;

use super::super::table::shown;
use super::home;

/// A job that can be enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub id: String,
    pub queue: String,
    pub key: String,
    pub shard: usize,
    pub raw: Bytes,
}

/// Makes jobs.
pub struct Maker<'a> {
    pub engine: &'a Engine,
    /// Who runs which type of job, where jobs have types.
    pub types: &'a AsyncJobs,
    /// Sidekiq's names, where jobs are Sidekiq's.
    pub names: Option<Names>,
    /// The queue that was asked for.
    pub queue: Option<String>,
    pub now_ms: u64,
    /// A time of a job that is there already.
    pub style: Option<Value>,
}

impl Maker<'_> {
    /// The job, or what is wrong with it.
    pub fn make(&self, text: &str) -> Result<Made, String> {
        let Some(mut record) = Record::read(text.as_bytes()) else {
            return Err("must be a JSON object".into());
        };
        if let Some(records) = self.engine.protocol.records() {
            // A line of an archive of dead letters: the job that it names is in it.
            let job = record.json("job").map(str::to_owned);
            return match job.as_deref().map(|job| Record::read(job.as_bytes())) {
                Some(Some(mut job)) => self.named(&mut job, records),
                Some(None) => Err("job: must be a JSON object".into()),
                None => self.named(&mut record, records),
            };
        }
        let made = if self.names.is_some() { self.sidekiqs(&mut record)? } else { self.ours(&mut record)? };
        // What a worker would refuse is refused here.
        self.engine.protocol.decode(made.raw.clone()).map_err(|(_, why)| why.to_string())?;
        Ok(made)
    }

    fn ours(&self, record: &mut Record<'_>) -> Result<Made, String> {
        let id = match record.get("id") {
            None => {
                let id = Uuid::new_v4().to_string();
                record.set("id", &id.clone().into());
                id
            }
            Some(Value::String(id)) if !id.is_empty() => id,
            Some(_) => return Err("id: must be a text that is not empty".into()),
        };
        for name in ["filesize", "retries"] {
            if let Some(value) = record.get(name).filter(|value| !value.is_u64()) {
                return Err(format!(
                    "{name} = {}: must be a whole number, 0 or more",
                    shown(&value.to_string())
                ));
            }
        }
        for name in ["filepath", "priority"] {
            if let Some(value) = record.get(name).filter(|value| !value.is_string()) {
                return Err(format!("{name} = {}: must be a text", shown(&value.to_string())));
            }
        }
        let queue = match (&self.queue, record.text("priority").filter(|name| !name.is_empty())) {
            (Some(queue), _) => queue.clone(),
            (None, Some(priority)) => {
                if !self.engine.queues.contains(&priority) {
                    return Err(format!(
                        "priority = {}: there is no such queue, only {}; name one with --queue",
                        shown(&priority),
                        self.engine.queues.join(", ")
                    ));
                }
                priority
            }
            (None, None) => self.engine.queues.last().cloned().unwrap_or_default(),
        };
        let shard = usize::from(Keys::shard_of(&id, self.engine.naming.shards));
        let key = home(&self.engine.shards, shard, &queue).unwrap_or_default().to_owned();
        let missing: [(&str, Value); 4] = [
            ("priority", queue.as_str().into()),
            ("retries", 0.into()),
            ("creation_time", rfc3339(self.now_ms).into()),
            ("origin_queue", key.as_str().into()),
        ];
        for (name, value) in missing {
            if record.get(name).is_none() {
                record.set(name, &value);
            }
        }
        Ok(Made { id, queue, key, shard, raw: record.write() })
    }

    /// A job of protocol `async`.
    fn named(&self, record: &mut Record<'_>, records: &dyn Records) -> Result<Made, String> {
        let kind = match record.get("type") {
            Some(Value::String(kind)) if !kind.is_empty() => kind,
            _ => return Err("type: must be there, a text".into()),
        };
        if !self.types.runs(&kind) {
            let known: Vec<&str> = self.types.handlers.keys().map(String::as_str).collect();
            let kind = shown(&kind);
            return Err(format!(
                "type = {kind}: no handler runs it, async.handlers has {}",
                known.join(", ")
            ));
        }
        let id = match record.get("id") {
            None => Uuid::now_v7().to_string(),
            Some(Value::String(id)) if !id.is_empty() => id,
            Some(_) => return Err("id: must be a text that is not empty".into()),
        };
        // Where clients of the API create theirs.
        let queue = self.engine.queues.last().cloned().unwrap_or_default();
        if let Some(wanted) = self.queue.as_ref().filter(|wanted| **wanted != queue) {
            return Err(format!(
                "--queue {}: jobs are created in queue {} only",
                shown(wanted),
                shown(&queue)
            ));
        }
        let shard = usize::from(Keys::shard_of(&id, self.engine.naming.shards));
        let key = home(&self.engine.shards, shard, &queue).unwrap_or_default().to_owned();
        let raw = submission::anew(record, &id, self.now_ms);
        // What a worker would refuse is refused here.
        let job = records.read(&Bytes::copy_from_slice(id.as_bytes()), Data::Is(raw.clone()));
        let job = job.map_err(|why| why.to_string())?;
        match self.engine.protocol.condemned(&job) {
            Some(failure) => Err(failure.error),
            None => Ok(Made { id, queue, key, shard, raw }),
        }
    }

    fn sidekiqs(&self, record: &mut Record<'_>) -> Result<Made, String> {
        match record.get("class") {
            Some(Value::String(class)) if !class.is_empty() => {}
            _ => return Err("class: must be there, the name of a class".into()),
        }
        if !record.get("args").is_some_and(|args| args.is_array()) {
            return Err("args: must be there, an array".into());
        }
        if record.get("at").is_some() {
            return Err("at: a job for later cannot be enqueued, only one that is due; remove it".into());
        }
        let id = match record.get("jid") {
            // Sidekiq's are 24 hex digits.
            None => Uuid::new_v4().simple().to_string()[..24].to_owned(),
            Some(Value::String(jid)) if !jid.is_empty() => jid,
            Some(_) => return Err("jid: must be a text that is not empty".into()),
        };
        let queue = match (&self.queue, record.get("queue")) {
            (Some(queue), _) => queue.clone(),
            (None, Some(Value::String(queue))) if self.engine.queues.contains(&queue) => queue,
            (None, None) if self.engine.queues.iter().any(|name| name == "default") => "default".into(),
            (None, named) => {
                let named = named.as_ref().and_then(Value::as_str).unwrap_or("default");
                return Err(format!(
                    "queue = {}: these workers serve no such queue, only {}; name one with --queue",
                    shown(named),
                    self.engine.queues.join(", ")
                ));
            }
        };
        let times = ["created_at", "enqueued_at"].iter().find_map(|name| record.get(name));
        let style = match times.or_else(|| self.style.clone()) {
            Some(Value::Number(number)) => Style::of(&number),
            // Every version reads seconds with a fraction.
            _ => Style::Seconds,
        };
        record.set("jid", &id.as_str().into());
        record.set("queue", &queue.as_str().into());
        if record.get("retry").is_none() {
            record.set("retry", &true.into());
        }
        if record.get("created_at").is_none() {
            record.set_json("created_at", style.write(self.now_ms));
        }
        record.set_json("enqueued_at", style.write(self.now_ms));
        let key = home(&self.engine.shards, 0, &queue).unwrap_or_default().to_owned();
        Ok(Made { id, queue, key, shard: 0, raw: record.write() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::config::Config;
    use serde_json::json;

    fn engine(config: &Value) -> Engine {
        Engine::new(&Config::from_value(config.clone()).unwrap().config)
    }

    fn maker<'a>(engine: &'a Engine, queue: Option<&str>) -> Maker<'a> {
        static ANY: std::sync::LazyLock<AsyncJobs> = std::sync::LazyLock::new(AsyncJobs::default);
        let queue = queue.map(str::to_owned);
        Maker { engine, types: &ANY, names: None, queue, now_ms: 1_767_225_600_000, style: None }
    }

    #[test]
    fn a_job_of_async_is_made_of_its_type_or_of_what_an_archive_kept_of_it() {
        let engine = engine(&json!({"protocol": "async", "worker": {"max_payload_bytes": 1000}}));
        let of = |text: &str| maker(&engine, None).make(text);
        let made = of(r#"{"type":"email","payload":{"n":1.50}}"#).unwrap();
        assert_eq!((made.key.as_str(), made.id.len()), ("jobs:queue", 36));
        assert!(made.raw.starts_with(br#"{"type":"email","payload":{"n":1.50},"id":""#), "{:?}", made.raw);
        let kept = of(
            r#"{"id":"a","type":"x","reason":"killed","job":{"id":"a","type":"email","status":"failed","n":1.50}}"#,
        );
        let kept = kept.unwrap();
        assert_eq!(kept.id, "a");
        assert!(
            kept.raw.starts_with(br#"{"id":"a","type":"email","status":"pending","n":1.50,"#),
            "{kept:?}"
        );
        let large = format!(r#"{{"type":"t","payload":"{}"}}"#, "y".repeat(600_000));
        for (text, said) in [
            ("{}", "type: must be there"),
            (r#"{"type":7}"#, "type: must be there"),
            (r#"{"type":"t","id":7}"#, "id: must be"),
            (r#"{"job":7}"#, "job: must be a JSON object"),
            (large.as_str(), "worker.max_payload_bytes = 1000"),
        ] {
            let problem = of(text).unwrap_err();
            assert!(problem.contains(said), "{problem}");
        }
        let declared =
            Config::from_value(json!({"protocol": "async", "async": {"handlers": {"email": "simulate"}}}));
        let types = &declared.unwrap().config.async_jobs;
        let problem = Maker { types, ..maker(&engine, None) }.make(r#"{"type":"fax"}"#).unwrap_err();
        assert_eq!(problem, "type = fax: no handler runs it, async.handlers has email");
    }

    #[test]
    fn what_is_missing_is_made_and_the_rest_keeps_its_bytes() {
        let engine = engine(&json!({}));
        let made = maker(&engine, None).make(r#"{"id":"a","priority":"high","n":1.50}"#).unwrap();
        assert_eq!((made.queue.as_str(), made.key.as_str()), ("high", "jobqueue:high_priority"));
        assert_eq!(
            made.raw,
            r#"{"id":"a","priority":"high","n":1.50,"retries":0,"creation_time":"2026-01-01T00:00:00Z","origin_queue":"jobqueue:high_priority"}"#
        );
        let made = maker(&engine, None).make("{}").unwrap();
        assert_eq!((made.queue.as_str(), made.id.len()), ("low", 36), "the last queue, and an id");
    }

    #[test]
    fn what_a_worker_would_refuse_is_refused_with_the_field_and_the_rule() {
        let engine = engine(&json!({"worker": {"max_payload_bytes": 1000}}));
        let large = format!(r#"{{"id":"a","x":"{}"}}"#, "y".repeat(2000));
        for (text, said) in [
            (r#"{"id":7}"#, "id: must be"),
            (r#"{"id":""}"#, "id: must be"),
            (r#"{"priority":"urgent"}"#, "priority = urgent: there is no such queue, only high, low"),
            (r#"{"retries":"many"}"#, "retries = \"many\": must be a whole number"),
            (r#"{"filepath":7}"#, "filepath = 7: must be a text"),
            ("[]", "must be a JSON object"),
            (large.as_str(), "worker.max_payload_bytes = 1000"),
        ] {
            let problem = maker(&engine, None).make(text).unwrap_err();
            assert!(problem.contains(said), "{problem}");
        }
    }

    #[test]
    fn a_job_of_sidekiqs_has_all_that_its_clients_write() {
        let engine = engine(&json!({"protocol": "sidekiq", "worker": {"handler": {"kind": "simulate"}}}));
        let of = |text: &str, style| {
            let maker = Maker { names: Some(Names::new("")), style, ..maker(&engine, None) };
            maker.make(text)
        };
        let made = of(r#"{"class":"Hard","args":[1.50]}"#, None).unwrap();
        assert_eq!((made.key.as_str(), made.id.len()), ("queue:default", 24));
        let text = String::from_utf8(made.raw.to_vec()).unwrap();
        assert!(text.starts_with(r#"{"class":"Hard","args":[1.50],"jid":""#), "{text}");
        assert!(text.ends_with(r#""created_at":1767225600.0,"enqueued_at":1767225600.0}"#), "{text}");
        let eights = of(r#"{"class":"Hard","args":[]}"#, Some(json!(1))).unwrap();
        assert!(eights.raw.ends_with(br#""enqueued_at":1767225600000}"#), "as the jobs that are there");
        for (text, said) in [
            (r#"{"args":[]}"#, "class: must be there"),
            (r#"{"class":"A","args":{}}"#, "args: must be there, an array"),
            (r#"{"class":"A","args":[],"at":1}"#, "at: a job for later"),
            (
                r#"{"class":"A","args":[],"queue":"other"}"#,
                "queue = other: these workers serve no such queue",
            ),
        ] {
            assert!(of(text, None).unwrap_err().contains(said));
        }
    }
}
