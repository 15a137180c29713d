//! `logs`: those of all workers of a queue in one stream, each line with the name of its pod.
mod tails;

use std::collections::HashSet;
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use kube::ResourceExt;
use kube::api::LogParams;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::cli::Logs;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::print;
use crate::table::{Paint, whole};
use tails::{Mark, Seen, Share, Sieve, Tails};

/// How often `-f` looks for new workers, and for those whose log was cut off.
const AGAIN: Duration = Duration::from_secs(2);
/// The colours of pods, one after the other.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// What the tail of one pod says.
enum News {
    /// A line of this pod.
    Line(String, String),
    /// The stream of the pod with this uid has ended here; and why, if it should not have.
    Ended(String, Option<Mark>, Option<Error>),
}

pub async fn run(cluster: &Cluster, args: &Logs, interrupt: &Interrupt) -> Result<(), Error> {
    interrupt.or(cluster.queue(&args.name)).await?;
    let (news, mut heard) = mpsc::channel::<News>(256);
    let mut tails = Tails::default();
    let mut told: HashSet<String> = HashSet::new();
    let mut news = Some(news);
    let mut tick = tokio::time::interval(AGAIN);
    let mut colours: Vec<String> = vec![];
    let mut failure = None;
    let paint = Paint::detect();
    loop {
        tokio::select! {
            () = interrupt.told(1) => return Err(Error::Interrupted),
            _ = tick.tick(), if news.is_some() => {
                let pods = match interrupt.or(cluster.pods_of(&args.name, Some("worker"))).await {
                    Ok(pods) => pods,
                    // Whoever follows wants to see what comes after the disturbance.
                    Err(error @ (Error::Unreachable(_) | Error::Failed(_))) if args.follow && !tails.is_empty() => {
                        eprintln!("Warning: {}", whole(&error.to_string()));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if pods.is_empty() && !args.follow {
                    eprintln!("jobqueue {} has no workers now; -f waits for them", args.name);
                    return Ok(());
                }
                let begun = |status: &Value| status["phase"].as_str().is_some_and(|phase| phase != "Pending");
                for pod in pods.iter().filter(|pod| begun(&pod.data["status"])) {
                    let uid = pod.uid().unwrap_or_default();
                    let leaves = pod.metadata.deletion_timestamp.is_some();
                    let (Some(news), Some(share)) = (&news, tails.due(&uid, seen(&pod.data["status"], &args.container))) else {
                        continue;
                    };
                    if share.was_cut() && !leaves {
                        told.remove(&uid);
                        eprintln!("Warning: the log of pod {} broke off; following it again", pod.name_any());
                    }
                    let log = params(args, &share);
                    tokio::spawn(tail(cluster.clone(), pod.name_any(), uid, log, share.mark(), news.clone()));
                }
                if !args.follow {
                    // Nobody else comes: the stream ends with the last of these.
                    news = None;
                }
            }
            next = heard.recv() => match next {
                None => return failure.map_or(Ok(()), Err),
                // The same for every pod.
                Some(News::Ended(_, _, Some(error @ Error::Forbidden(_)))) => return Err(error),
                // The others go on; this one is tried again, should anybody wait for that.
                Some(News::Ended(uid, mark, error)) => {
                    tails.ended(&uid, mark, error.is_some());
                    if let Some(error) = error {
                        if told.insert(uid) {
                            eprintln!("Warning: {}", whole(&error.to_string()));
                        }
                        failure.get_or_insert(error);
                    }
                }
                Some(News::Line(pod, line)) => {
                    let at = colours.iter().position(|known| *known == pod).unwrap_or_else(|| {
                        colours.push(pod.clone());
                        colours.len() - 1
                    });
                    let line = prefixed(&pod, &line, paint.0.then(|| COLOURS[at % COLOURS.len()]));
                    if !print::more(&line)? {
                        return Ok(());
                    }
                }
            },
        }
    }
}

/// A line with the name of its pod before it.
fn prefixed(pod: &str, line: &str, colour: Option<u8>) -> String {
    match colour {
        Some(colour) => format!("\x1b[{colour}m[{pod}]\x1b[0m {line}\n"),
        None => format!("[{pod}] {line}\n"),
    }
}

/// How a container of a pod stands. One that stays beside the others stands among the init containers.
fn seen(status: &Value, container: &str) -> Seen {
    let of = |kind: &str| status[kind].as_array().into_iter().flatten();
    let found =
        of("containerStatuses").chain(of("initContainerStatuses")).find(|one| one["name"] == container);
    Seen {
        restarts: found.and_then(|one| one["restartCount"].as_u64()).unwrap_or_default(),
        runs: found.is_some_and(|one| !one["state"]["running"].is_null()),
    }
}

/// As kubectl: a negative number is all of them, which the API is not told by a number.
pub fn tail_lines(tail: i64) -> Option<i64> {
    (tail >= 0).then_some(tail)
}

fn params(args: &Logs, share: &Share) -> LogParams {
    let asked = matches!(share, Share::Asked);
    LogParams {
        container: Some(args.container.clone()),
        follow: args.follow,
        // The time of the last line tells where to go on, should the stream break off.
        timestamps: args.follow,
        tail_lines: tail_lines(args.tail).filter(|_| asked),
        since_seconds: args
            .since
            .filter(|_| asked)
            .map(|since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
        since_time: share.mark().map(Mark::since),
        ..LogParams::default()
    }
}

async fn tail(
    cluster: Cluster,
    pod: String,
    uid: String,
    params: LogParams,
    mark: Option<Mark>,
    news: mpsc::Sender<News>,
) {
    let pods = cluster.pods();
    let mut sieve = Sieve::after(mark);
    let read = async {
        let opened =
            cluster.ask(&format!("read the logs of pod {pod}"), pods.log_stream(&pod, &params)).await;
        let stream = match opened {
            Ok(stream) => stream,
            // It went while it was asked.
            Err(Error::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut stream = std::pin::pin!(stream);
        while let Some(line) = next_line(&mut stream).await.map_err(|error| {
            Error::Unreachable(format!("the rest of the log of pod {pod} could not be read: {error}"))
        })? {
            let line = if params.timestamps { sieve.pass(&line) } else { Some(line.as_str()) };
            if let Some(line) = line
                && news.send(News::Line(pod.clone(), line.to_owned())).await.is_err()
            {
                break;
            }
        }
        Ok(())
    };
    let error = read.await.err();
    let _ = news.send(News::Ended(uid, sieve.mark(), error)).await;
}

/// The next line, whatever its bytes are: programs log what they like.
async fn next_line(stream: &mut (impl futures::AsyncBufRead + Unpin)) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    if stream.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_asked_for_by_no_number() {
        assert_eq!([tail_lines(-1), tail_lines(0), tail_lines(7)], [None, Some(0), Some(7)]);
    }

    #[test]
    fn each_line_names_its_pod() {
        assert_eq!(prefixed("hello-1", "{}", None), "[hello-1] {}\n");
        assert_eq!(prefixed("hello-1", "{}", Some(36)), "\x1b[36m[hello-1]\x1b[0m {}\n");
    }

    #[test]
    fn a_container_stands_as_its_pod_says_wherever_it_is_listed() {
        let status = serde_json::json!({
            "containerStatuses": [{ "name": "worker", "restartCount": 2, "state": { "terminated": {} } }],
            "initContainerStatuses": [{ "name": "app", "restartCount": 7, "state": { "running": {} } }],
        });
        assert_eq!(seen(&status, "worker"), Seen { restarts: 2, runs: false });
        assert_eq!(seen(&status, "app"), Seen { restarts: 7, runs: true });
        assert_eq!(seen(&Value::Null, "worker"), Seen { restarts: 0, runs: false });
    }

    #[tokio::test]
    async fn a_line_that_is_no_text_does_not_end_the_log() {
        let mut log = futures::io::Cursor::new(b"one\r\n\xfftwo\n\nlast");
        let mut lines = vec![];
        while let Some(line) = next_line(&mut log).await.unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, ["one", "\u{fffd}two", "", "last"]);
    }
}
