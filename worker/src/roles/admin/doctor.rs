//! `doctor`: what is wrong, or will be, and what to do about it. Facts are gathered first; what they mean is decided purely.
mod checks;
mod cve;
mod facts;

use std::fmt::Write as _;

use jobqueue::config::{Config, HandlerKind, Protocol, TypeHandler};
use serde::Serialize;
use serde_json::{Value, json};

use super::table::{shown, whole};
use super::{Admin, AdminError, End, answer};
use crate::cli::Doctor;
use facts::Facts;

/// How bad a finding is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// Jobs are lost or stuck, or will be.
    Error,
    /// They may be, under circumstances.
    Warning,
    /// Worth knowing.
    Info,
}

/// Something that was found; its field names are what scripts rely on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    id: &'static str,
    severity: Severity,
    what: String,
    why: String,
    fix: String,
}

pub async fn run(admin: &mut Admin<'_>, doctor: &Doctor) -> Result<End, AdminError> {
    let facts = facts::gather(admin, doctor.look_at).await?;
    let findings = checks::findings(&facts, admin.config);
    let value = || {
        json!({
            "at": jobqueue::protocol::files::rfc3339(facts.now_ms),
            "redis": facts.servers.first(),
            "config": settings(admin.config),
            "checks": checks::NAMES,
            "findings": findings,
        })
    };
    answer(doctor.common, || page(&facts, &findings), value)?;
    let bad = findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if bad { End::Incomplete } else { End::Done })
}

/// The settings that findings are about.
fn settings(config: &Config) -> Value {
    let (worker, slowest) = (&config.worker, slowest(config));
    let millis = |time: jobqueue::config::Duration| u64::try_from(time.get().as_millis()).unwrap_or(u64::MAX);
    json!({
        "protocol": config.protocol.to_string(),
        "key_prefix": config.prefix(),
        "shards": worker.shards,
        "drain_timeout_ms": millis(worker.drain_timeout),
        "handler": slowest.kind,
        "handler_timeout_ms": slowest.timeout.map(millis),
    })
}

/// A handler: where its settings stand, its kind and how long a job may take there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slowest {
    section: String,
    kind: &'static str,
    timeout: Option<jobqueue::config::Duration>,
}

/// The handler in which a job may take the longest, of all that run jobs.
fn slowest(config: &Config) -> Slowest {
    let of = |(name, handler): (&String, &TypeHandler)| {
        let (kind, timeout) = match handler {
            TypeHandler::Simulate(_) => ("simulate", None),
            TypeHandler::Http(http) => ("http", Some(http.timeout)),
            TypeHandler::Command(command) => ("command", Some(command.timeout)),
        };
        Slowest { section: format!("async.handlers.{name}"), kind, timeout }
    };
    // Only jobs of protocol async have types, and only without handlers for those one runs all jobs.
    let by_type = config.async_jobs.handlers.iter().filter(|_| config.protocol == Protocol::Async).map(of);
    by_type.max_by_key(|handler| handler.timeout).unwrap_or_else(|| {
        let handler = &config.worker.handler;
        let (kind, timeout) = match handler.kind {
            HandlerKind::Simulate => ("simulate", None),
            HandlerKind::Http => ("http", Some(handler.http.timeout)),
            HandlerKind::Command => ("command", Some(handler.command.timeout)),
        };
        Slowest { section: "worker.handler".into(), kind, timeout }
    })
}

/// The findings for people.
fn page(facts: &Facts, findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let severity = match finding.severity {
            Severity::Error => "ERROR",
            Severity::Warning => "WARNING",
            Severity::Info => "INFO",
        };
        let Finding { id, what, why, fix, .. } = finding;
        // Names of keys are anybody's to choose.
        let (what, why, fix) = (whole(what), whole(why), whole(fix));
        let _ = writeln!(text, "{severity:7}  {id}: {what}\n         {why}\n         Fix: {fix}");
    }
    let server = facts.servers.first().map_or_else(String::new, |server| {
        format!(" on {} {}", shown(&server.software), shown(&server.version))
    });
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let checks = checks::NAMES.len();
    let _ = writeln!(text, "{checks} checks{server}: {errors} errors, {warnings} warnings");
    text
}
