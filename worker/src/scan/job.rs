//! Makes the job of a file: its priority by extension, its JSON in the documented order of fields.
use super::Found;
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

/// The trace a new job belongs to; empty when tracing is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceIds<'a> {
    /// 32 hex digits, or empty.
    pub trace_id: &'a str,
    /// 16 hex digits, or empty.
    pub span_id: &'a str,
}

/// `high` for a file whose name ends with one of the extensions (with or without their dot, in either
/// case, `.tar.gz` too), else `default`.
pub fn priority<'a>(path: &str, high_exts: &[String], high: &'a str, default: &'a str) -> &'a str {
    let name = path.rsplit('/').next().unwrap_or(path).as_bytes();
    let ends_with = |extension: &String| {
        let extension = extension.strip_prefix('.').unwrap_or(extension).as_bytes();
        let Some(dot) = name.len().checked_sub(extension.len() + 1) else { return false };
        !extension.is_empty() && name[dot] == b'.' && name[dot + 1..].eq_ignore_ascii_case(extension)
    };
    if high_exts.iter().any(ends_with) { high } else { default }
}

/// The JSON of a new job. Time and id are arguments, so that it is a pure function of what was found.
pub fn job_json(
    found: &Found,
    priority: &str,
    origin_queue: &str,
    trace: TraceIds<'_>,
    now: Timestamp,
    id: Uuid,
) -> Bytes {
    /// In the order of the wire format; `creation_time` is RFC 3339 with as many digits as it needs.
    #[derive(Serialize)]
    struct NewJob<'a> {
        id: &'a str,
        filepath: &'a str,
        filesize: u64,
        priority: &'a str,
        retries: u32,
        creation_time: Timestamp,
        trace_id: &'a str,
        span_id: &'a str,
        origin_queue: &'a str,
    }
    let mut buffer = Uuid::encode_buffer();
    let job = NewJob {
        id: id.hyphenated().encode_lower(&mut buffer),
        filepath: &found.path,
        filesize: found.size,
        priority,
        retries: 0,
        creation_time: now,
        trace_id: trace.trace_id,
        span_id: trace.span_id,
        origin_queue,
    };
    // Writing strings and numbers to memory has no way to fail.
    serde_json::to_vec(&job).map(Bytes::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::job::Job;

    #[test]
    fn the_extension_decides_the_priority() {
        let exts = [".pdf".to_owned(), "ZIP".into(), ".tar.gz".into(), String::new()];
        let of = |path: &str| priority(path, &exts, "high", "low");
        for path in ["/a/b.pdf", "/a/B.PDF", "c.zip", "/x/.zip", "/x/y.Tar.Gz"] {
            assert_eq!(of(path), "high", "{path}");
        }
        for path in ["/a/b.pdfx", "/a/pdf", "/a.pdf/b", "/a/b.gz", "/a/b.", "", "/a/é.txt"] {
            assert_eq!(of(path), "low", "{path}");
        }
    }

    #[test]
    fn a_job_has_the_documented_fields_in_the_documented_order() {
        let found = Found { path: "/data/a \"b\".pdf".into(), size: 12_345, mtime_ns: 1 };
        let id = Uuid::from_u128(0x0011_2233_4455_4677_8899_aabb_ccdd_eeff);
        let trace = TraceIds { trace_id: "aa", span_id: "bb" };
        let now = "2024-05-06T07:08:09.123456789Z".parse().unwrap();
        let json = job_json(&found, "high", "jobqueue:high_priority", trace, now, id);
        assert_eq!(
            json,
            concat!(
                r#"{"id":"00112233-4455-4677-8899-aabbccddeeff","filepath":"/data/a \"b\".pdf","filesize":12345,"#,
                r#""priority":"high","retries":0,"creation_time":"2024-05-06T07:08:09.123456789Z","#,
                r#""trace_id":"aa","span_id":"bb","origin_queue":"jobqueue:high_priority"}"#
            )
        );
        let job = Job::decode(json, 1 << 20).unwrap();
        assert_eq!(job.fields.filepath, found.path);
    }
}
