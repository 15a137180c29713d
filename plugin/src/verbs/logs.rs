//! `logs`: those of all workers of a queue in one stream, each line with the name of its pod.
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

/// How often `-f` looks for new workers.
const AGAIN: Duration = Duration::from_secs(2);
/// The colours of pods, one after the other.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// A container from its start to its end: what is started again in the same pod has a log of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Instance {
    /// The uid of its pod.
    uid: String,
    /// How often it was started again before.
    restarts: u64,
}

/// How much of a log is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    /// What the call says.
    Asked,
    /// All: whoever follows has seen the one before it to its end.
    Whole,
}

/// The containers whose logs were begun.
#[derive(Debug, Default)]
struct Begun(HashSet<Instance>);

impl Begun {
    /// Whether its log is still to be begun, and how much of it.
    fn begin(&mut self, instance: &Instance) -> Option<Share> {
        if !self.0.insert(instance.clone()) {
            return None;
        }
        let earlier = |other: &Instance| other.uid == instance.uid && other.restarts < instance.restarts;
        Some(if self.0.iter().any(earlier) { Share::Whole } else { Share::Asked })
    }
}

/// What the tail of one container says.
enum News {
    /// A line of this pod.
    Line(String, String),
    /// Nothing of it was read, or no more.
    Failed(Instance, Error),
}

pub async fn run(cluster: &Cluster, args: &Logs, interrupt: &Interrupt) -> Result<(), Error> {
    interrupt.or(cluster.queue(&args.name)).await?;
    let (news, mut heard) = mpsc::channel::<News>(256);
    let mut begun = Begun::default();
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
                    Err(error @ (Error::Unreachable(_) | Error::Failed(_))) if args.follow && !begun.0.is_empty() => {
                        eprintln!("Warning: {}", whole(&error.to_string()));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if pods.is_empty() && !args.follow {
                    eprintln!("jobqueue {} has no workers now; -f waits for them", args.name);
                    return Ok(());
                }
                let running = |status: &Value| status["phase"].as_str().is_some_and(|phase| phase != "Pending");
                for pod in pods.iter().filter(|pod| running(&pod.data["status"])) {
                    let instance = Instance {
                        uid: pod.uid().unwrap_or_default(),
                        restarts: restarts(&pod.data["status"], &args.container),
                    };
                    if let (Some(news), Some(share)) = (&news, begun.begin(&instance)) {
                        let log = params(args, share);
                        tokio::spawn(tail(cluster.clone(), pod.name_any(), instance, log, news.clone()));
                    }
                }
                if !args.follow {
                    // Nobody else comes: the stream ends with the last of these.
                    news = None;
                }
            }
            next = heard.recv() => match next {
                None => return failure.map_or(Ok(()), Err),
                // The same for every pod.
                Some(News::Failed(_, error @ Error::Forbidden(_))) => return Err(error),
                // The others go on; this one is tried again, should anybody wait for that.
                Some(News::Failed(instance, error)) => {
                    begun.0.remove(&instance);
                    if told.insert(instance.uid) {
                        eprintln!("Warning: {}", whole(&error.to_string()));
                    }
                    failure.get_or_insert(error);
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

/// How often a container of a pod was started again. One that stays beside the others stands among the init containers.
fn restarts(status: &Value, container: &str) -> u64 {
    let of = |kind: &str| status[kind].as_array().into_iter().flatten();
    of("containerStatuses")
        .chain(of("initContainerStatuses"))
        .find(|one| one["name"] == container)
        .and_then(|one| one["restartCount"].as_u64())
        .unwrap_or_default()
}

fn params(args: &Logs, share: Share) -> LogParams {
    let asked = share == Share::Asked;
    LogParams {
        container: Some(args.container.clone()),
        follow: args.follow,
        tail_lines: asked.then_some(args.tail),
        since_seconds: args
            .since
            .filter(|_| asked)
            .map(|since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
        ..LogParams::default()
    }
}

async fn tail(
    cluster: Cluster,
    pod: String,
    instance: Instance,
    params: LogParams,
    news: mpsc::Sender<News>,
) {
    let pods = cluster.pods();
    let stream =
        match cluster.ask(&format!("read the logs of pod {pod}"), pods.log_stream(&pod, &params)).await {
            Ok(stream) => stream,
            // It went while it was asked.
            Err(Error::NotFound(_)) => return,
            Err(error) => {
                let _ = news.send(News::Failed(instance, error)).await;
                return;
            }
        };
    let mut stream = std::pin::pin!(stream);
    loop {
        match next_line(&mut stream).await {
            Ok(None) => return,
            Ok(Some(line)) => {
                if news.send(News::Line(pod.clone(), line)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // Said as a line of its own: to begin anew would print what was printed already.
                let line = format!("(the rest could not be read: {error})");
                let _ = news.send(News::Line(pod, line)).await;
                return;
            }
        }
    }
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
    fn each_line_names_its_pod() {
        assert_eq!(prefixed("hello-1", "{}", None), "[hello-1] {}\n");
        assert_eq!(prefixed("hello-1", "{}", Some(36)), "\x1b[36m[hello-1]\x1b[0m {}\n");
    }

    #[test]
    fn a_container_that_was_started_again_is_followed_from_its_start() {
        let status = |restarts: u64| {
            serde_json::json!({
                "containerStatuses": [{ "name": "worker", "restartCount": restarts }],
                "initContainerStatuses": [{ "name": "app", "restartCount": 7 }],
            })
        };
        assert_eq!((restarts(&status(2), "worker"), restarts(&status(2), "app")), (2, 7));
        assert_eq!(restarts(&Value::Null, "worker"), 0);

        let mut begun = Begun::default();
        let of = |uid: &str, restarts| Instance { uid: uid.into(), restarts };
        assert_eq!(begun.begin(&of("a", 1)), Some(Share::Asked));
        assert_eq!(begun.begin(&of("a", 1)), None, "it is followed already");
        assert_eq!(begun.begin(&of("a", 2)), Some(Share::Whole));
        assert_eq!(begun.begin(&of("b", 2)), Some(Share::Asked), "another pod");
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
