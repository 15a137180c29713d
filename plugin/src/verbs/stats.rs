//! `stats`: what waits, runs, is delayed and dead, from the status with its age, or from Redis.
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{AbortHandle, abortable};
use futures::stream::{self, FuturesUnordered};
use jiff::Timestamp;
use kube::ResourceExt;
use operator::api::v1alpha1::JobQueue;
use tokio::sync::Semaphore;

use crate::cli::{DataFormat, Format, Stats};
use crate::cluster::{Cluster, Listing};
use crate::error::Error;
use crate::figures::{Figures, or_dash};
use crate::interrupt::Interrupt;
use crate::remote::{self, Remote};
use crate::table::{Cell, Paint, Table, Tone, age, whole};
use crate::{live, print};

/// So many queues are asked at once.
const AT_ONCE: usize = 8;
/// How often `--watch` looks.
const EVERY: Duration = Duration::from_secs(2);
/// How soon a queue that could not be asked is asked again.
const AGAIN: Duration = Duration::from_secs(3);

/// Prints the figures, once or again and again.
pub async fn run(cluster: &Cluster, args: &Stats, interrupt: &Interrupt) -> Result<(), Error> {
    let queues = interrupt.or(cluster.select(&args.which)).await?.tell();
    if args.watch {
        return watch(cluster, args, queues, interrupt).await;
    }
    let now = Timestamp::now();
    let mut figures: Vec<Figures> = queues.iter().map(|queue| Figures::of(queue, now)).collect();
    let mut failures = vec![];
    if args.live {
        let asked = stream::iter(&queues).map(|queue| ask(cluster, queue, interrupt)).buffered(AT_ONCE);
        for (figures, answer) in figures.iter_mut().zip(asked.collect::<Vec<_>>().await) {
            match answer {
                Ok(answer) => *figures = std::mem::take(figures).with(&answer),
                Err(error) => failures.push(error),
            }
        }
    }
    if figures.is_empty() && args.output.is_none_or(|format| format == Format::Wide) {
        eprintln!("No jobqueues found");
    } else if failures.is_empty() || figures.len() > failures.len() {
        print::text(&page(args, &figures, now))?;
    }
    // The first is the exit code, all of them are told.
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|error| eprintln!("Error: {}", whole(&error.to_string())));
    Err(first)
}

/// What Redis says of a queue now.
pub async fn ask(cluster: &Cluster, queue: &JobQueue, interrupt: &Interrupt) -> Result<live::Stats, Error> {
    let cluster = cluster.within(&queue.namespace().unwrap_or_default());
    remote::with(&cluster, queue, interrupt, async |remote| {
        let (answer, ended) = remote.json::<live::Stats>(&["stats".into()]).await?;
        // Some keys could not be read: their names are part of the answer, and of the error.
        if ended.code == 0 { Ok(answer) } else { Err(remote.failed(&ended)) }
    })
    .await
}

/// What Redis says of a queue, again and again, until somebody stops it.
pub async fn follow(remote: &Remote<'_>, mut heard: impl FnMut(live::Stats)) -> Result<(), Error> {
    let mut line = Vec::new();
    let command = ["stats".into(), "--watch".into(), EVERY.as_secs().to_string(), "-o".into(), "json".into()];
    let ended = remote
        .run(&command, remote::Input::Held, &mut |said| {
            let remote::Said::Answer(part) = said else { return Ok(None) };
            line.extend_from_slice(part);
            while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                let rest = line.split_off(end + 1);
                if let Ok(stats) = serde_json::from_slice(&line) {
                    heard(stats);
                }
                line = rest;
            }
            Ok(None)
        })
        .await?;
    Err(remote.failed(&ended))
}

/// What is known while it is watched, by the uid of each queue: its figures, or why there are none.
#[derive(Debug, Clone, Default, PartialEq)]
struct Heard {
    live: BTreeMap<String, live::Stats>,
    errors: BTreeMap<String, String>,
}

/// Prints the figures again and again. Queues come and go: each is followed for as long as it is there.
async fn watch(
    cluster: &Cluster,
    args: &Stats,
    mut queues: Vec<JobQueue>,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let heard: Mutex<Heard> = Mutex::default();
    let starting = Semaphore::new(AT_ONCE);
    let mut followed: BTreeMap<String, AbortHandle> = BTreeMap::new();
    let mut following = FuturesUnordered::new();
    let mut given_up: BTreeMap<String, Error> = BTreeMap::new();
    let mut looking = Box::pin(look(cluster, args));
    let mut last = None;
    loop {
        let alone = args.which.name.is_some() && queues.len() == 1;
        let there: BTreeSet<String> = queues.iter().map(uid).collect();
        for queue in &queues {
            if let Entry::Vacant(place) = followed.entry(uid(queue)) {
                let one = keep_following(cluster, queue.clone(), alone, interrupt, &heard, &starting);
                let (task, handle) = abortable(one);
                place.insert(handle);
                following.push(task);
            }
        }
        followed.retain(|queue, task| {
            if !there.contains(queue) {
                task.abort();
            }
            there.contains(queue)
        });
        given_up.retain(|queue, _| there.contains(queue));
        // Nobody is left who could be asked: there is nothing to look at.
        if !there.is_empty() && there.iter().all(|queue| given_up.contains_key(queue)) {
            return given_up.into_values().next().map_or(Ok(()), Err);
        }
        let found = tokio::select! {
            Some(ended) = following.next() => {
                // Whoever was called off was so because its queue is gone.
                if let Ok(ended) = ended {
                    let (queue, why) = ended?;
                    given_up.insert(queue, why);
                }
                continue;
            }
            () = interrupt.told(1), if following.is_empty() => return Err(Error::Interrupted),
            found = &mut looking => found,
        };
        looking = Box::pin(look(cluster, args));
        match found {
            Ok(found) => queues = found.queues,
            // The one that was asked for is gone.
            Err(error @ Error::NotFound(_)) => return Err(error),
            // The number of workers is Kubernetes' to tell; what cannot be read stays as it was.
            Err(_) => {}
        }
        let now = {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.live.retain(|queue, _| queues.iter().any(|one| uid(one) == *queue));
            heard.errors.retain(|queue, _| queues.iter().any(|one| uid(one) == *queue));
            (queues.iter().map(uid).collect::<Vec<_>>(), heard.clone())
        };
        if last.as_ref() == Some(&now) {
            continue;
        }
        if !print_heard(args, &queues, &now.1)? {
            return Ok(());
        }
        last = Some(now);
    }
}

fn uid(queue: &JobQueue) -> String {
    queue.uid().unwrap_or_default()
}

/// The queues, a little later.
async fn look(cluster: &Cluster, args: &Stats) -> Result<Listing, Error> {
    tokio::time::sleep(EVERY).await;
    cluster.select(&args.which).await
}

/// Prints what is known now; `false` when nobody reads any more.
fn print_heard(args: &Stats, queues: &[JobQueue], heard: &Heard) -> Result<bool, Error> {
    let is_table = args.output.is_none_or(|format| format == Format::Wide);
    let at = Timestamp::now();
    let figures: Vec<Figures> = queues
        .iter()
        .map(|queue| {
            let figures = Figures::of(queue, at);
            heard.live.get(&uid(queue)).map_or(figures.clone(), |live| figures.with(live))
        })
        .collect();
    let mut page = page(args, &figures, at);
    if std::io::stdout().is_terminal() && is_table {
        page.insert_str(0, "\x1b[H\x1b[2J");
    }
    let read = print::more(&page)?;
    if queues.is_empty() && is_table {
        eprintln!("No jobqueues found; waiting for one");
    }
    heard.errors.values().for_each(|error| eprintln!("Warning: {}", whole(error)));
    Ok(read)
}

/// Follows one queue for as long as it can be: a pod that goes is followed by another. The answer is what it gave up for; an
/// error ends all.
async fn keep_following(
    cluster: &Cluster,
    queue: JobQueue,
    alone: bool,
    interrupt: &Interrupt,
    heard: &Mutex<Heard>,
    starting: &Semaphore,
) -> Result<(String, Error), Error> {
    let within = cluster.within(&queue.namespace().unwrap_or_default());
    let told = |change: &mut dyn FnMut(&mut Heard)| {
        change(&mut heard.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let mut ever = false;
    loop {
        // A hundred queues do not start a hundred commands, or pods, at once.
        let mut permit = starting.acquire().await.ok();
        let mut hear = |stats: live::Stats| {
            permit.take();
            ever = true;
            told(&mut |heard| {
                heard.live.insert(uid(&queue), stats.clone());
                heard.errors.remove(&uid(&queue));
            });
        };
        let outcome =
            remote::with(&within, &queue, interrupt, async |remote| follow(remote, &mut hear).await).await;
        let Err(error) = outcome else { continue };
        // A command that was interrupted, and not by us, went with its pod.
        if interrupt.is_told() || (alone && !ever) {
            return Err(error);
        }
        // The status knows something still.
        told(&mut |heard| {
            heard.live.remove(&uid(&queue));
            heard.errors.insert(uid(&queue), error.to_string());
        });
        if matches!(error, Error::Forbidden(_)) {
            return Ok((uid(&queue), error));
        }
        interrupt
            .or(async {
                tokio::time::sleep(AGAIN).await;
                Ok(())
            })
            .await?;
    }
}

/// The answer, in the form that was asked for: pure but for the terminal's colours.
fn page(args: &Stats, figures: &[Figures], now: Timestamp) -> String {
    match args.output {
        Some(Format::Json | Format::Yaml) => {
            let format = if args.output == Some(Format::Json) { DataFormat::Json } else { DataFormat::Yaml };
            match figures {
                [one] if args.which.name.is_some() => print::data_text(format, one),
                all => print::data_text(format, &all),
            }
        }
        Some(Format::Name) => print::names(figures.iter().map(|one| one.name.clone())),
        wide => {
            let paint = Paint::detect();
            // One look at Redis tells no rate.
            let columns = Columns {
                everywhere: args.which.all_namespaces,
                rate: args.watch || !args.live,
                wide: wide.is_some(),
            };
            let mut page = table(figures, columns, now).render(paint);
            if let ([one], true) = (figures, args.which.name.is_some()) {
                page += "\n";
                page += &lines(one).render(paint);
            }
            page
        }
    }
}

/// Which columns there are beside those that are always there.
#[derive(Debug, Clone, Copy, Default)]
struct Columns {
    everywhere: bool,
    rate: bool,
    wide: bool,
}

/// A line a queue: pure.
fn table(figures: &[Figures], columns: Columns, now: Timestamp) -> Table {
    let Columns { everywhere, rate, wide } = columns;
    let mut header = vec![];
    if everywhere {
        header.push("NAMESPACE");
    }
    header.extend(["NAME", "WAITING", "RUNNING", "DELAYED", "DEAD", "OLDEST"]);
    if rate {
        header.push("RATE");
    }
    header.extend(["WORKERS", "BREAKER", "AS OF"]);
    if wide {
        header.extend(["PROTOCOL", "READY", "MESSAGE"]);
    }
    let mut table = Table::new(header);
    for one in figures {
        let mut row: Vec<Cell> = vec![];
        if everywhere {
            row.push(one.namespace.clone().into());
        }
        row.extend([
            one.name.clone().into(),
            one.waiting.to_string().into(),
            one.in_flight.to_string().into(),
            one.delayed.to_string().into(),
            one.dead(),
            one.oldest().into(),
        ]);
        if rate {
            row.push(one.rate().into());
        }
        row.extend([one.workers(), one.state(), Cell::toned(Tone::Dim, one.age(now))]);
        if wide {
            row.extend([one.protocol.clone().into(), one.readiness(), one.message.clone().into()]);
        }
        table.row(row);
    }
    table
}

/// A line for each queue of one: pure.
fn lines(one: &Figures) -> Table {
    let mut table = Table::new(["QUEUE", "WAITING", "RUNNING", "DELAYED", "OLDEST", "BREAKER", "KEY"]);
    for line in &one.queues {
        let number = |figure: Option<i64>| or_dash(figure.map(|figure| figure.to_string()));
        let breaker = if line.breaker.is_empty() { "closed" } else { &line.breaker };
        table.row(vec![
            line.name.clone().into(),
            line.waiting.to_string().into(),
            number(line.in_flight).into(),
            number(line.delayed).into(),
            or_dash(line.oldest_age_seconds.map(age)).into(),
            Cell::toned(
                match breaker {
                    "open" => Tone::Bad,
                    "half-open" => Tone::Warn,
                    _ => Tone::Dim,
                },
                breaker,
            ),
            Cell::toned(Tone::Dim, line.key.clone()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_every_figure_and_its_age() {
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let figures = Figures {
            namespace: "a".into(),
            name: "hello".into(),
            waiting: 250,
            in_flight: 16,
            dead_letters: 2,
            workers_ready: 2,
            workers_desired: 3,
            oldest_age_seconds: Some(90),
            arrivals_per_minute: Some(120),
            as_of: "2026-01-01T00:00:21Z".parse().ok(),
            ..Figures::default()
        };
        let columns = Columns { everywhere: true, rate: true, wide: false };
        assert_eq!(
            table(std::slice::from_ref(&figures), columns, now).render(Paint(false)),
            "NAMESPACE   NAME    WAITING   RUNNING   DELAYED   DEAD   OLDEST   RATE     WORKERS   BREAKER   AS OF\n\
             a           hello   250       16        0         2      90s      ~120/m   2/3       closed    9s\n"
        );
        let once = table(&[figures], Columns::default(), now).render(Paint(false));
        assert!(!once.contains("RATE") && once.contains("90s      2/3"), "{once}");
    }
}
