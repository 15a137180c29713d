//! Data operations: `worker --role=admin` inside of a pod of the queue, so that Kubernetes decides who may, and no
//! password leaves the cluster.
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::ResourceExt;
use kube::api::{AttachParams, DynamicObject};
use operator::api::v1alpha1::JobQueue;
use operator::drain::DRAINING;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::guest;
use crate::interrupt::Interrupt;

/// As much of the answer is on its way at once.
const BUFFER: usize = 64 * 1024;
/// An answer that is held whole may be this large.
const LARGEST_ANSWER: usize = 256 * 1024 * 1024;
/// A command that was told to stop has this long to say what it did.
const LAST_WORDS: Duration = Duration::from_secs(20);
/// Pods that a command is tried in before it is given up: workers may leave one after the other while a queue shrinks.
const TRIES: usize = 3;
/// The exit code of a process that was killed: as the commands do when their pod leaves.
const KILLED: u8 = 137;

/// Where the commands of one queue run.
#[derive(Debug)]
pub struct Remote<'a> {
    cluster: &'a Cluster,
    interrupt: &'a Interrupt,
    /// The name of the queue.
    queue: String,
    seat: Seat,
}

/// A container with the worker in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The program.
    pub program: String,
    /// Its `--config=`.
    pub config: String,
    /// Whether the pod was made for this.
    pub guest: bool,
    /// Whether the pod drains: it may be gone at any moment.
    drains: bool,
}

/// What a command says.
#[derive(Debug)]
pub enum Said<'a> {
    /// Part of the answer.
    Answer(&'a [u8]),
    /// A line beside it: progress, or an error.
    Aside(&'a str),
}

/// How a command ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Its exit code.
    pub code: u8,
    /// What it said beside the answer that was no progress.
    pub said: String,
}

/// What a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a> {
    /// Nothing: the end of it tells the command to stop. Such a command may be begun again elsewhere.
    Held,
    /// This, and then the end.
    Bytes(&'a [u8]),
}

/// Opens a seat for a queue, in a pod of its own if it has none, and does the work; again elsewhere when the pod was gone
/// before the work has said anything. Should it not get to the end, the pod is deleted with all others before the process
/// ends.
pub async fn with<T>(
    cluster: &Cluster,
    queue: &JobQueue,
    interrupt: &Interrupt,
    mut work: impl AsyncFnMut(&Remote<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut gone = Vec::new();
    loop {
        let name = queue.name_any();
        let seats = interrupt.or(find(cluster, &name)).await?;
        let seat = match seats.into_iter().find(|seat| !seat.drains && !gone.contains(&seat.pod)) {
            Some(seat) => seat,
            None => invite(cluster, queue, interrupt).await?,
        };
        let remote = Remote { cluster, interrupt, queue: name, seat };
        let outcome = work(&remote).await;
        if remote.seat.guest {
            cluster.dismiss(Some(&remote.seat.pod)).await;
        }
        match outcome {
            Err(Error::PodGone { pod, .. }) if gone.len() + 1 < TRIES => gone.push(pod),
            outcome => return outcome,
        }
    }
}

/// The same for a queue that has pods; nothing if it has none.
pub async fn among_workers<T>(
    cluster: &Cluster,
    queue: &str,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Remote<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let Some(seat) = find(cluster, queue).await?.into_iter().next() else { return Ok(None) };
    let remote = Remote { cluster, interrupt, queue: queue.into(), seat };
    work(&remote).await.map(Some)
}

/// The pods of the queue that run the worker, those that drain last.
async fn find(cluster: &Cluster, queue: &str) -> Result<Vec<Seat>, Error> {
    let mut seats = Vec::new();
    for part in ["worker", "producer", "api"] {
        let pods = cluster.pods_of(queue, Some(part)).await?;
        seats.extend(pods.iter().filter_map(|pod| seat(pod, part)));
    }
    seats.sort_by_key(|seat| seat.drains);
    Ok(seats)
}

/// The container of a pod that a command can run in: pure.
fn seat(pod: &DynamicObject, part: &str) -> Option<Seat> {
    let status = &pod.data["status"];
    let leaves = pod.metadata.deletion_timestamp.is_some();
    let named = |list: &Value| list.as_array()?.iter().find(|one| one["name"] == part).cloned();
    if leaves || named(&status["containerStatuses"])?["state"]["running"].is_null() {
        return None;
    }
    let container = named(&pod.data["spec"]["containers"])?;
    let program = container["command"][0].as_str().unwrap_or("/worker").to_owned();
    Some(Seat {
        pod: pod.name_any(),
        container: part.into(),
        program,
        config: guest::config_argument(&container),
        guest: false,
        drains: pod.annotations().contains_key(DRAINING),
    })
}

async fn invite(cluster: &Cluster, queue: &JobQueue, interrupt: &Interrupt) -> Result<Seat, Error> {
    let (pod, config) = guest::create(cluster, queue).await?;
    if let Err(error) = interrupt.or(guest::started(cluster, &pod)).await {
        cluster.dismiss(Some(&pod)).await;
        return Err(error);
    }
    Ok(Seat {
        pod,
        container: guest::CONTAINER.into(),
        program: "/worker".into(),
        config,
        guest: true,
        drains: false,
    })
}

impl Remote<'_> {
    /// Where it runs.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Runs a command whose answer is JSON. It may have done a part only: then its exit code is not 0, and it said why.
    pub async fn json<T: DeserializeOwned>(&self, command: &[String]) -> Result<(T, Ended), Error> {
        self.json_of(command, Input::Held, &mut |_| ()).await
    }

    /// The same, with something to read, and somebody who hears what is said beside the answer.
    pub async fn json_of<T: DeserializeOwned>(
        &self,
        command: &[String],
        input: Input<'_>,
        aside: &mut dyn FnMut(&str),
    ) -> Result<(T, Ended), Error> {
        let mut answer = Vec::new();
        let command = with_flags(command, &["--output=json"]);
        let ended = self
            .run(&command, input, &mut |said| {
                match said {
                    Said::Answer(part) if answer.len() + part.len() > LARGEST_ANSWER => {
                        return Err(Error::Failed(
                            "the answer is too large; ask for less with --count".into(),
                        ));
                    }
                    Said::Answer(part) => answer.extend_from_slice(part),
                    Said::Aside(line) => aside(line),
                }
                Ok(None)
            })
            .await?;
        match serde_json::from_slice(&answer) {
            Ok(answer) => Ok((answer, ended)),
            // Without an answer, what it said is all there is.
            Err(_) if ended.code != 0 => Err(self.failed(&ended)),
            Err(error) => Err(Error::Failed(format!(
                "the worker in pod {} answered what this version does not understand ({error}); \
                 kubectl jobqueue --version compares the versions",
                self.seat.pod
            ))),
        }
    }

    /// Runs a command; `heard` gets what it says as it comes, and may answer on its standard input.
    pub async fn run(
        &self,
        command: &[String],
        input: Input<'_>,
        heard: &mut dyn FnMut(Said<'_>) -> Result<Option<String>, Error>,
    ) -> Result<Ended, Error> {
        let mut words = vec![self.seat.program.clone(), "--role=admin".into(), self.seat.config.clone()];
        let held: &[&str] = if input == Input::Held { &["--until-stdin-closes"] } else { &[] };
        words.extend(with_flags(command, held));
        let params = AttachParams::default()
            .container(&self.seat.container)
            .stdin(true)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(BUFFER)
            .max_stdin_buf_size(BUFFER);
        let what = format!("run a command in pod {}", self.seat.pod);
        let pods = self.cluster.pods();
        let started = self.cluster.ask(&what, pods.exec(&self.seat.pod, words, &params));
        let mut process = self.interrupt.or(started).await.map_err(|error| match error {
            Error::NotFound(why) => Error::PodGone { pod: self.seat.pod.clone(), why },
            Error::Interrupted => abandoned(input),
            other => other,
        })?;
        let broken = || Error::Unreachable(format!("the connection to pod {} broke", self.seat.pod));
        let status = process.take_status().ok_or_else(broken)?;
        let (mut stdin, mut stdout) = (process.stdin(), process.stdout().ok_or_else(broken)?);
        let mut stderr = BufReader::new(process.stderr().ok_or_else(broken)?).split(b'\n');
        let mut upload = None;
        if let (Input::Bytes(bytes), Some(mut writer)) = (input, stdin.take_if(|_| input != Input::Held)) {
            let bytes = bytes.to_vec();
            // Beside the answer: a command that ends early reads no more.
            upload = Some(tokio::spawn(async move {
                let _ = writer.write_all(&bytes).await;
                let _ = writer.shutdown().await;
            }));
        }
        let mut ended = Ended::default();
        // What was sent may have been done, although nothing was said of it.
        let mut unheard = input == Input::Held;
        let (mut chunk, mut answering, mut talking) = (vec![0; BUFFER], true, true);
        let (mut told, mut cut) = (false, false);
        let silent = tokio::time::sleep(Duration::MAX / 4);
        tokio::pin!(silent);
        while answering || talking {
            tokio::select! {
                read = stdout.read(&mut chunk), if answering => match read {
                    Ok(0) | Err(_) => answering = false,
                    Ok(length) => {
                        unheard = false;
                        if let Some(reply) = heard(Said::Answer(&chunk[..length]))? && let Some(stdin) = &mut stdin {
                            let _ = stdin.write_all(reply.as_bytes()).await;
                        }
                    }
                },
                line = stderr.next_segment(), if talking => match line {
                    Ok(Some(line)) => {
                        unheard = false;
                        let line = String::from_utf8_lossy(&line);
                        if !line.starts_with('{') {
                            ended.said.push_str(line.trim_end());
                            ended.said.push('\n');
                        }
                        heard(Said::Aside(&line))?;
                    }
                    _ => talking = false,
                },
                () = self.interrupt.told(1), if !told => {
                    told = true;
                    // The end of its input tells the command to stop: what it did is in its answer.
                    if let Some(mut stdin) = stdin.take() {
                        let _ = stdin.shutdown().await;
                    }
                    // An input that is not all there is refused: the command knows how long it should be.
                    if let Some(upload) = upload.take_if(|upload| !upload.is_finished()) {
                        upload.abort();
                        cut = true;
                    }
                    silent.as_mut().reset(tokio::time::Instant::now() + LAST_WORDS);
                }
                () = self.interrupt.told(2) => return Err(abandoned(input)),
                () = &mut silent, if told => return Err(abandoned(input)),
            }
        }
        ended.code = code(end(status.await), unheard, &self.seat.pod)?;
        if cut && ended.code != 0 {
            return Err(Error::Interrupted);
        }
        Ok(ended)
    }

    /// What a command that failed said, as an error of ours.
    pub fn failed(&self, ended: &Ended) -> Error {
        let lines: Vec<&str> =
            ended.said.lines().map(|line| line.strip_prefix("Error: ").unwrap_or(line)).collect();
        let said = lines.join("; ");
        let said = if said.is_empty() { format!("ended with exit code {}", ended.code) } else { said };
        if ended.code == 130 {
            return Error::Interrupted;
        }
        if said.contains("unrecognized subcommand") || said.contains("unexpected argument") {
            return Error::Failed(format!(
                "the worker in pod {} is too old for this command; kubectl jobqueue --version compares the versions",
                self.seat.pod
            ));
        }
        Error::Remote { code: ended.code, said: format!("jobqueue {}: {said}", self.queue) }
    }
}

/// What is known of a command that nobody waits for any more: one that holds its input may be run again, of another it
/// matters what it did. Pure.
fn abandoned(input: Input<'_>) -> Error {
    match input {
        Input::Held => Error::Interrupted,
        Input::Bytes(_) => Error::Abandoned("the command did not say what it did".into()),
    }
}

/// The exit code of a command, or why it has none: pure. `unheard`: it has said nothing, and may be begun anew elsewhere.
fn code(end: End, unheard: bool, pod: &str) -> Result<u8, Error> {
    match end {
        End::Exited(KILLED) | End::Broken if unheard => {
            Err(Error::PodGone { pod: pod.into(), why: "the command was cut off".into() })
        }
        // Killed are also those that need more memory than there is.
        End::Exited(KILLED) => {
            Err(Error::CutOff { why: format!("pod {pod} went away, or ran out of memory,") })
        }
        End::Broken => Err(Error::CutOff { why: format!("the connection to pod {pod} broke") }),
        End::Exited(code) => Ok(code),
        // It was never begun, whatever was to be sent.
        End::NotStarted(why) => Err(Error::PodGone { pod: pod.into(), why }),
    }
}

/// A command with more flags: behind a `--` stands what is none, whatever it looks like.
fn with_flags(command: &[String], flags: &[&str]) -> Vec<String> {
    let at = command.iter().position(|word| word == "--").unwrap_or(command.len());
    let (before, behind) = command.split_at(at);
    let flags = flags.iter().map(|flag| (*flag).to_owned());
    before.iter().cloned().chain(flags).chain(behind.iter().cloned()).collect()
}

/// What the worker in a pod says of its version.
pub async fn version_in(cluster: &Cluster, pod: &DynamicObject) -> Result<String, Error> {
    let name = pod.name_any();
    let Some(seat) = seat(pod, "worker") else { return Ok("not known: it is starting".into()) };
    let params = AttachParams::default().container(&seat.container).stderr(false);
    let command = [seat.program.as_str(), "--version"];
    let what = format!("run a command in pod {name}");
    let mut process = cluster.ask(&what, cluster.pods().exec(&name, command, &params)).await?;
    let mut said = String::new();
    if let Some(stdout) = process.stdout() {
        let _ = stdout.take(200).read_to_string(&mut said).await;
    }
    Ok(said.trim().rsplit(' ').next().unwrap_or_default().to_owned())
}

/// How a process ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// With this code.
    Exited(u8),
    /// Not at all: it was not started, because.
    NotStarted(String),
    /// Nobody knows: the connection broke before it was told.
    Broken,
}

/// How a process ended, by what the kubelet says: pure.
fn end(status: Option<Status>) -> End {
    let Some(status) = status else { return End::Broken };
    if status.status.as_deref() == Some("Success") {
        return End::Exited(0);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    match code {
        Some(code) => End::Exited(code.message.as_ref().and_then(|code| code.parse().ok()).unwrap_or(1)),
        None => End::NotStarted(status.message.unwrap_or_else(|| "the kubelet does not say why".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_command_runs_where_the_worker_runs_with_its_program_and_configuration() {
        let object = json!({
            "metadata": { "name": "hello-worker-1" },
            "spec": { "containers": [{ "name": "worker", "command": ["/jobqueue/worker"], "args": ["--role=worker", "--config=/c.yaml"] }] },
            "status": { "containerStatuses": [{ "name": "worker", "state": { "running": {} } }] },
        });
        let found = seat(&pod(object.clone()), "worker").unwrap();
        assert_eq!((found.program.as_str(), found.config.as_str()), ("/jobqueue/worker", "--config=/c.yaml"));
        let mut leaving = object.clone();
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(seat(&pod(leaving), "worker"), None);
        let mut draining = object.clone();
        draining["metadata"]["annotations"] = json!({ DRAINING: "1" });
        assert!(seat(&pod(draining), "worker").unwrap().drains && !found.drains);
        let mut starting = object;
        starting["status"]["containerStatuses"][0]["state"] = json!({ "waiting": {} });
        assert_eq!(seat(&pod(starting), "worker"), None);
    }

    #[test]
    fn an_id_that_looks_like_a_flag_stays_an_id() {
        let command = ["job", "--look-at=5", "--", "-x"].map(str::to_owned);
        assert_eq!(
            with_flags(&command, &["--output=json"]),
            ["job", "--look-at=5", "--output=json", "--", "-x"]
        );
        assert_eq!(with_flags(&command[..1], &["-o"]), ["job", "-o"]);
    }

    #[test]
    fn the_exit_code_of_a_command_is_what_the_kubelet_says() {
        let status = |text: Value| end(serde_json::from_value(text).ok());
        assert_eq!(status(json!({ "status": "Success" })), End::Exited(0));
        let failed = json!({ "status": "Failure", "reason": "NonZeroExitCode", "details": { "causes": [{ "reason": "ExitCode", "message": "130" }] } });
        assert_eq!(status(failed), End::Exited(130));
        let gone = json!({ "status": "Failure", "message": "container not found" });
        assert_eq!(status(gone), End::NotStarted("container not found".into()));
        assert_eq!(end(None), End::Broken);
    }

    #[test]
    fn what_a_command_did_that_nobody_waited_for_is_not_known() {
        assert!(matches!(abandoned(Input::Held), Error::Interrupted));
        assert!(matches!(abandoned(Input::Bytes(&[])), Error::Abandoned(_)));
    }

    #[test]
    fn a_command_that_was_cut_off_is_begun_anew_only_if_it_had_said_nothing() {
        for end in [|| End::Exited(KILLED), || End::Broken] {
            assert!(matches!(code(end(), true, "p"), Err(Error::PodGone { .. })));
            let cut = code(end(), false, "p").unwrap_err();
            assert!(cut.code() == 5 && cut.to_string().contains("run it again"), "{cut}");
        }
        assert!(matches!(code(End::NotStarted("no".into()), false, "p"), Err(Error::PodGone { .. })));
        assert_eq!(code(End::Exited(1), false, "p").ok(), Some(1));
    }
}
