//! What the body of a 2xx answer says about the job: `{"status": "success" | "failure", ...}` and the
//! words beyond it. An answer without such words is a success, so any program that answers 200 will do; only of Sidekiq's
//! sidecar it is none: whatever else listens on its port would make jobs disappear that never ran.
use super::head;
use hyper::StatusCode;
use jobqueue::outcome::{Failure, Outcome, Raised, Reason};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// Beyond a year a delay is a mistake (milliseconds for seconds), and clocks overflow.
const DELAY_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The fields we read. Filled one by one as they are met, so that of an answer that is too long (a result
/// of megabytes behind its status) what came first still counts.
#[derive(Debug, Default)]
struct Verdict {
    status: Option<Value>,
    result: Option<Value>,
    error_message: Option<Value>,
    error_class: Option<Value>,
    backtrace: Option<Value>,
    retry_in: Option<Value>,
    word: Option<Word>,
}

/// A field that is `true` when the answer says so. Of several the first of this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Interrupted,
    Kill,
    Discard,
    /// Stands beside any other: it only names the failure.
    UnknownClass,
}

/// The outcome that a 2xx answer states. `whole` is false when the body was longer than what was read;
/// `keeps_result` that a success brings its `result` along; `silent` why a job failed whose answer states none.
pub(super) fn outcome(body: &[u8], whole: bool, keeps_result: bool, silent: Reason) -> Outcome {
    let verdict = Verdict::read(body);
    let object = body.trim_ascii_start().first() == Some(&b'{');
    match (verdict.outcome(whole || !object, silent), verdict.result) {
        (Outcome::Done, Some(result)) if keeps_result => Outcome::DoneWith(result.to_string().into()),
        (outcome, _) => outcome,
    }
}

/// Whether an answer with another status speaks of this job all the same: that it failed, or is none that can be run. That
/// it is too large Puma says without a word of the gem's.
pub(super) fn is_about_the_job(status: StatusCode, body: &[u8]) -> bool {
    match Verdict::read(body).status.as_ref().and_then(Value::as_str) {
        Some("failure") => true,
        Some("error") if status == StatusCode::BAD_REQUEST => true,
        _ => status == StatusCode::PAYLOAD_TOO_LARGE,
    }
}

/// Limits a delay from outside to what makes sense.
pub(super) fn bounded(delay: Duration) -> Duration {
    delay.min(DELAY_MAX)
}

impl Verdict {
    /// An error here ends the reading, not the verdict: not JSON at all (its status code was its answer), or cut off, and
    /// then what was met before the cut counts.
    fn read(body: &[u8]) -> Self {
        let mut verdict = Self::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        let _ = Fill(&mut verdict).deserialize(&mut json);
        verdict
    }

    /// `complete` is false when a field that was not met may still have been there.
    fn outcome(&self, complete: bool, silent: Reason) -> Outcome {
        match self.word {
            Some(Word::Interrupted) => {
                // It stops and has said so: the job runs again elsewhere, and nothing is held against it.
                return Outcome::Released;
            }
            Some(Word::Kill) => return Outcome::Kill(self.failure(Reason::Killed)),
            Some(Word::Discard) => {
                let failed = self.status.as_ref().and_then(Value::as_str) == Some("failure");
                return Outcome::Discard(failed.then(|| self.failure(Reason::Handler)));
            }
            Some(Word::UnknownClass) | None => {}
        }
        if let Some(delay) = self.retry_in() {
            return Outcome::RetryIn(delay, self.failure(Reason::Handler));
        }
        if self.word == Some(Word::UnknownClass) {
            // As in Ruby, a failure like any other: released, one such job would be the next out for ever.
            return Outcome::Failed(self.failure(Reason::Handler));
        }
        let error = match &self.status {
            Some(Value::String(status)) if status == "success" => return Outcome::Done,
            Some(Value::String(status)) if status == "failure" => {
                return Outcome::Failed(self.failure(Reason::Handler));
            }
            None if complete && silent != Reason::NoVerdict => return Outcome::Done,
            None if complete => "answered without a status: is this the sidecar?".into(),
            None => "answered more than 64 KiB without a status at its beginning".into(),
            // Running it again is better than losing it, and this text says what to change.
            Some(other) => format!(
                "answered with status {}, which is neither success nor failure",
                head(other.to_string().as_bytes())
            ),
        };
        Outcome::Failed(Failure::new(silent, error))
    }

    fn hear(&mut self, word: Word, value: &Value) {
        if *value == true {
            self.word = Some(self.word.map_or(word, |first| first.min(word)));
        }
    }

    fn retry_in(&self) -> Option<Duration> {
        let seconds = self.retry_in.as_ref()?.as_f64().filter(|seconds| seconds.is_finite())?;
        Some(bounded(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(DELAY_MAX)))
    }

    /// The failure, with the exception in its parts where the answer has them.
    fn failure(&self, reason: Reason) -> Failure {
        let text = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
        let mut failure = Failure::new(reason, self.error());
        let class = match (text(&self.error_class), self.word) {
            (None, Some(Word::UnknownClass)) => Some("NameError".to_owned()),
            (class, _) => class,
        };
        if let Some(class) = class {
            let message = text(&self.error_message).or_else(|| text(&self.result)).unwrap_or_default();
            let lines = self.backtrace.as_ref().and_then(Value::as_array);
            let backtrace = lines.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
            failure.raised = Some(Box::new(Raised { class, message, backtrace: backtrace.collect() }));
        }
        failure
    }

    /// `Class: message`, of what there is. A program that knows only the seed's fields puts its error into
    /// `result`.
    fn error(&self) -> String {
        let text = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
        let message = text(&self.error_message).or_else(|| text(&self.result));
        let error = match (text(&self.error_class), message) {
            (Some(class), Some(message)) => format!("{class}: {message}"),
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) if self.word == Some(Word::UnknownClass) => "does not know the job's class".into(),
            (None, None) => "answered failure without a message".into(),
        };
        head(error.as_bytes())
    }
}

/// Lets a verdict outlive the error that ends its parsing.
struct Fill<'a>(&'a mut Verdict);

impl<'de> DeserializeSeed<'de> for Fill<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fill<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "status" => self.0.status = map.next_value()?,
                "result" => self.0.result = map.next_value()?,
                "error_message" => self.0.error_message = map.next_value()?,
                "error_class" => self.0.error_class = map.next_value()?,
                "backtrace" => self.0.backtrace = map.next_value()?,
                "retry_in" => self.0.retry_in = map.next_value()?,
                "discard" => self.0.hear(Word::Discard, &map.next_value()?),
                "kill" => self.0.hear(Word::Kill, &map.next_value()?),
                "interrupted" => self.0.hear(Word::Interrupted, &map.next_value()?),
                "unknown_class" => self.0.hear(Word::UnknownClass, &map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &str) -> Outcome {
        outcome(body.as_bytes(), true, false, Reason::Handler)
    }

    fn failed(error: &str) -> Outcome {
        Outcome::Failed(Failure::new(Reason::Handler, error))
    }

    #[test]
    fn an_answer_without_a_verdict_is_a_success() {
        for body in ["", "OK", "<html>", "[]", "\"failure\"", "null", "{}", "{\"id\":1}", "{\"status\":null}"]
        {
            assert_eq!(said(body), Outcome::Done, "{body}");
        }
        assert_eq!(said(r#"{"status":"success","result":{"a":[1]},"execution_time":1.23}"#), Outcome::Done);
    }

    #[test]
    fn a_failure_is_explained_by_class_and_message_or_by_the_result() {
        let answer = r#"{"status":"failure","error_class":"Net::ReadTimeout","error_message":"no","result":"x","backtrace":["a:1",7,"b:2"]}"#;
        let Outcome::Failed(failure) = said(answer) else { panic!() };
        assert_eq!(failure.error, "Net::ReadTimeout: no");
        let raised = failure.raised.unwrap();
        assert_eq!((raised.class.as_str(), raised.message.as_str()), ("Net::ReadTimeout", "no"));
        assert_eq!(raised.backtrace, ["a:1", "b:2"]);
        assert_eq!(said(r#"{"status":"failure","result":"boom"}"#), failed("boom"));
        assert!(
            matches!(said(r#"{"status":"failure","error_class":"E"}"#), Outcome::Failed(Failure { error, .. }) if error == "E")
        );
        assert_eq!(said(r#"{"status":"failure"}"#), failed("answered failure without a message"));
    }

    #[test]
    fn a_success_brings_its_result_along_where_it_is_kept() {
        let kept = |body: &str| outcome(body.as_bytes(), true, true, Reason::Handler);
        let answer = r#"{"status":"success","result":{"b":12345678901234567890,"a":[1.50]}}"#;
        assert_eq!(kept(answer), Outcome::DoneWith(r#"{"b":12345678901234567890,"a":[1.50]}"#.into()));
        assert_eq!(kept(r#"{"result":"text"}"#), Outcome::DoneWith("\"text\"".into()));
        for without in ["", "OK", "{}", r#"{"status":"success"}"#] {
            assert_eq!(kept(without), Outcome::Done, "{without}");
        }
        assert!(matches!(kept(r#"{"status":"failure","result":"no"}"#), Outcome::Failed(_)));
    }

    #[test]
    fn a_status_that_is_no_verdict_fails_and_says_so() {
        assert_eq!(
            said(r#"{"status":"ok"}"#),
            failed("answered with status \"ok\", which is neither success nor failure")
        );
        assert!(matches!(said(r#"{"status":500}"#), Outcome::Failed(_)));
    }

    #[test]
    fn further_words_say_what_becomes_of_the_job() {
        let failure = |error: &str| Failure::new(Reason::Handler, error);
        assert_eq!(
            said(r#"{"status":"failure","result":"busy","retry_in":1.5}"#),
            Outcome::RetryIn(Duration::from_millis(1500), failure("busy"))
        );
        assert_eq!(
            said(r#"{"status":"failure","discard":true,"error_message":"no"}"#),
            Outcome::Discard(Some(failure("no")))
        );
        assert_eq!(said(r#"{"status":"success","discard":true}"#), Outcome::Discard(None));
        assert_eq!(
            said(r#"{"status":"failure","result":"no","kill":true}"#),
            Outcome::Kill(Failure::new(Reason::Killed, "no"))
        );
        assert_eq!(said(r#"{"interrupted":true}"#), Outcome::Released);
        let unknown =
            said(r#"{"status":"failure","unknown_class":true,"error_message":"uninitialized constant A"}"#);
        let Outcome::Failed(unknown) = unknown else { panic!("{unknown:?}") };
        assert_eq!(unknown.error, "uninitialized constant A");
        assert_eq!(unknown.raised.unwrap().class, "NameError");
        assert!(matches!(said(r#"{"kill":true,"unknown_class":true}"#), Outcome::Kill(_)));
        assert!(matches!(said(r#"{"retry_in":5,"unknown_class":true}"#), Outcome::RetryIn(..)));
        assert_eq!(said(r#"{"status":"success","kill":false,"discard":"yes"}"#), Outcome::Done);
    }

    #[test]
    fn a_delay_is_bounded_whatever_was_written() {
        let delay = |text: &str| match said(&format!(r#"{{"retry_in":{text}}}"#)) {
            Outcome::RetryIn(delay, _) => Some(delay),
            _ => None,
        };
        assert_eq!(delay("0"), Some(Duration::ZERO));
        assert_eq!(delay("-5"), Some(Duration::ZERO));
        assert_eq!(delay("1e300"), Some(DELAY_MAX));
        assert_eq!(delay("123456789012345678901234567890"), Some(DELAY_MAX));
        assert_eq!(delay("\"10\""), None);
    }

    #[test]
    fn of_an_answer_that_is_too_long_the_beginning_counts() {
        let cut = |body: &str| outcome(body.as_bytes(), false, false, Reason::Handler);
        assert_eq!(cut(r#"{"status":"success","result":"aaaa"#), Outcome::Done);
        assert_eq!(cut(r#"{"status":"failure","error_message":"no","backtrace":["aaa"#), failed("no"));
        assert!(matches!(cut(r#"{"result":"aaaa"#), Outcome::Failed(_)));
        assert_eq!(cut("<html>aaa"), Outcome::Done);
    }
}
