//! Jobs to run: all distinct, all of one size, as producers of `files` jobs and Sidekiq's clients write them.
use redis::aio::MultiplexedConnection;

/// Jobs a command when a queue is filled.
const BATCH: usize = 500;

/// Job `number`, of exactly `size` bytes (at least about 150).
pub fn job(number: u64, size: usize) -> String {
    let with = |padding: &str| {
        format!(
            "{{\"id\":\"{}\",\"filepath\":\"/data/{padding}.bin\",\"filesize\":0,\"priority\":\"low\",\
             \"retries\":0,\"creation_time\":\"2026-01-01T00:00:00Z\"}}",
            id(number)
        )
    };
    let padding = size.saturating_sub(with("").len());
    with(&"x".repeat(padding))
}

/// The same as Sidekiq's client would have written it (at least about 170 bytes).
pub fn sidekiq(number: u64, size: usize) -> String {
    let with = |padding: &str| {
        format!(
            "{{\"retry\":true,\"queue\":\"default\",\"class\":\"Noop\",\"args\":[\"{padding}\"],\"jid\":\"{number:024x}\",\
             \"created_at\":1767225600.123456,\"enqueued_at\":1767225600.123457}}"
        )
    };
    let padding = size.saturating_sub(with("").len());
    with(&"x".repeat(padding))
}

/// The id of job `number`: the form of a UUID, since that is what producers use.
pub fn id(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

/// The number of the job with this id.
pub fn number(id: &str) -> Option<u64> {
    u64::from_str_radix(id.strip_prefix("00000000-0000-4000-8000-")?, 16).ok()
}

/// Pushes these jobs, in order.
pub async fn push(
    redis: &mut MultiplexedConnection,
    key: &str,
    numbers: std::ops::Range<u64>,
    job: impl Fn(u64) -> String,
) -> redis::RedisResult<()> {
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let mut command = redis::cmd("LPUSH");
        command.arg(key);
        for number in numbers.by_ref().take(BATCH) {
            command.arg(job(number));
        }
        command.query_async::<()>(redis).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_distinct_and_of_the_size_asked_for() {
        assert_eq!(job(0, 200).len(), 200);
        assert_eq!(job(u64::from(u32::MAX), 1024).len(), 1024);
        assert_ne!(job(1, 200), job(2, 200));
        assert_eq!((sidekiq(0, 200).len(), sidekiq(u64::from(u32::MAX), 200).len()), (200, 200));
        assert_eq!(number(&id(77)), Some(77));
    }

    #[test]
    fn jobs_are_what_the_worker_reads() {
        let job = jobqueue::job::Job::decode(job(5, 200).into(), 1 << 20).unwrap();
        assert_eq!(number(&job.fields.id), Some(5));
    }
}
