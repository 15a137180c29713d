//! `stats`: what waits, runs, is delayed and dead, from the status with its age, or from Redis.
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use operator::api::v1alpha1::JobQueue;
use tokio::sync::Semaphore;

use crate::cli::{DataFormat, Format, Stats};
use crate::cluster::Cluster;
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
    if args.watch && !queues.is_empty() {
        return watch(cluster, args, &queues, interrupt).await;
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

/// What is known while it is watched: the figures of each queue, and why there are none.
#[derive(Debug, Clone, Default, PartialEq)]
struct Heard {
    live: BTreeMap<usize, live::Stats>,
    errors: BTreeMap<usize, String>,
}

async fn watch(
    cluster: &Cluster,
    args: &Stats,
    queues: &[JobQueue],
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let heard: Mutex<Heard> = Mutex::default();
    let starting = Semaphore::new(AT_ONCE);
    let watched = queues.iter().enumerate().map(|(at, queue)| {
        let alone = queues.len() == 1;
        keep_following(cluster, queue, at, alone, interrupt, &heard, &starting)
    });
    let followed = async {
        // All have given up: there is nothing left to look at.
        let given_up = futures::future::try_join_all(watched).await?;
        given_up.into_iter().next().map_or(Ok(()), Err)
    };
    let printed = async {
        let mut tick = tokio::time::interval(EVERY);
        let mut last = Heard::default();
        loop {
            tick.tick().await;
            let now = heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if now == last {
                continue;
            }
            let at = Timestamp::now();
            // The number of workers is Kubernetes' to tell; what cannot be read stays as it was.
            let fresh =
                cluster.select(&args.which).await.map_or_else(|_| queues.to_vec(), |found| found.queues);
            let figures: Vec<Figures> = queues
                .iter()
                .enumerate()
                .map(|(number, queue)| {
                    let same = |one: &&JobQueue| one.uid() == queue.uid();
                    let figures = Figures::of(fresh.iter().find(same).unwrap_or(queue), at);
                    now.live.get(&number).map_or(figures.clone(), |live| figures.with(live))
                })
                .collect();
            let mut page = page(args, &figures, at);
            if std::io::stdout().is_terminal() && args.output.is_none_or(|format| format == Format::Wide) {
                page.insert_str(0, "\x1b[H\x1b[2J");
            }
            if !print::more(&page)? {
                return Ok(());
            }
            now.errors.values().for_each(|error| eprintln!("Warning: {}", whole(error)));
            last = now;
        }
    };
    tokio::select! {
        outcome = followed => outcome,
        outcome = printed => outcome,
    }
}

/// Follows one queue for as long as it can be: a pod that goes is followed by another. What it gave up for is the answer;
/// an error ends all.
async fn keep_following(
    cluster: &Cluster,
    queue: &JobQueue,
    at: usize,
    alone: bool,
    interrupt: &Interrupt,
    heard: &Mutex<Heard>,
    starting: &Semaphore,
) -> Result<Error, Error> {
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
                heard.live.insert(at, stats.clone());
                heard.errors.remove(&at);
            });
        };
        let outcome =
            remote::with(&within, queue, interrupt, async |remote| follow(remote, &mut hear).await).await;
        let Err(error) = outcome else { continue };
        // A command that was interrupted, and not by us, went with its pod.
        if interrupt.is_told() || (alone && !ever) {
            return Err(error);
        }
        // The status knows something still.
        told(&mut |heard| {
            heard.live.remove(&at);
            heard.errors.insert(at, error.to_string());
        });
        if matches!(error, Error::Forbidden(_)) {
            return Ok(error);
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
            Cell::toned(if breaker == "open" { Tone::Bad } else { Tone::Dim }, breaker),
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
