//! `top`: queues, workers and scaling, live. The model decides, the renderer draws, this file asks and listens.
mod model;
mod render;

use std::time::Duration;

use jiff::Timestamp;
use jobqueue::terminal::counted;
use kube::ResourceExt;
use kube::api::DynamicObject;
use operator::api::v1alpha1::JobQueue;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::cli::{Selector, Top, Which};
use crate::cluster::{Cluster, Listing, last_seen};
use crate::error::Error;
use crate::figures::Figures;
use crate::interrupt::Interrupt;
use crate::live::{Letter, Letters, Stats};
use crate::remote;
use crate::verbs::{dlq, patch, stats};
use model::{Decision, Key, Looked, Model, Wish};

/// How often the queues are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How often events are.
const EVENTS_EVERY: Duration = Duration::from_secs(5);
/// Whoever steps through the queues shall not start a command in a pod of each.
const STEPPING: Duration = Duration::from_millis(300);
/// How soon somebody who could not be asked is asked again.
const AGAIN: Duration = Duration::from_secs(3);
/// So many dead letters are read.
const LETTERS: u64 = 200;

/// What comes from outside.
enum News {
    Key(KeyEvent),
    Resized,
    Queues(Result<Listing, Error>),
    Live(Key, Box<Result<Option<Stats>, String>>),
    Decisions(Key, Vec<Decision>),
    Letters(Key, Result<Vec<Letter>, String>),
    Told(String),
}

/// Takes the terminal until somebody leaves.
pub async fn run(cluster: &Cluster, args: &Top, interrupt: &Interrupt) -> Result<(), Error> {
    use std::io::IsTerminal as _;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Error::Usage("top needs a terminal; kubectl jobqueue stats -w does not".into()));
    }
    // Whatever is wrong with the call is said before the screen is taken.
    let which = Which { name: None, all_namespaces: args.all_namespaces, selector: args.selector.clone() };
    let first = interrupt.or(cluster.select(&which)).await?;
    if let Some(name) = &args.name {
        interrupt.or(cluster.queue(name)).await?;
    }
    let mut model = Model {
        place: if args.all_namespaces { "all namespaces".into() } else { cluster.namespace.clone() },
        selected: args.name.clone().map(|name| (cluster.namespace.clone(), name)),
        ..Model::default()
    };
    let (news, mut heard) = mpsc::channel(64);
    model.looked(looked(&first));
    let mut terminal =
        ratatui::try_init().map_err(|error| Error::Failed(format!("cannot use the terminal: {error}")))?;
    listen(news.clone());
    // Everything on this thread: what asks a pod cannot be moved between threads, and all of it ends with the screen.
    let outcome = LocalSet::new()
        .run_until(async {
            spawn_local(look(cluster.clone(), which, news.clone()));
            watch(&mut terminal, &mut model, cluster, interrupt, &news, &mut heard).await
        })
        .await;
    ratatui::restore();
    outcome
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    model: &mut Model,
    cluster: &Cluster,
    interrupt: &Interrupt,
    news: &mpsc::Sender<News>,
    heard: &mut mpsc::Receiver<News>,
) -> Result<(), Error> {
    let mut about: Option<(Key, JoinHandle<()>)> = None;
    loop {
        if about.as_ref().map(|(queue, _)| queue) != model.selected.as_ref() {
            if let Some((_, task)) = about.take() {
                task.abort();
            }
            about = model.selected.clone().map(|queue| {
                let task = spawn_local(follow(
                    cluster.within(&queue.0),
                    queue.clone(),
                    interrupt.clone(),
                    news.clone(),
                ));
                (queue, task)
            });
        }
        terminal
            .draw(|frame| render::render(frame, model, Timestamp::now()))
            .map_err(|error| Error::Failed(format!("cannot draw: {error}")))?;
        let next = tokio::select! {
            next = heard.recv() => next,
            () = interrupt.told(1) => None,
        };
        let wish = match next {
            None => break,
            Some(News::Key(key)) => model.press(key),
            Some(News::Resized) => None,
            Some(News::Queues(queues)) => {
                model.looked(
                    queues.map_or_else(|error| Looked::Not(error.to_string()), |found| looked(&found)),
                );
                None
            }
            Some(News::Live(queue, live)) => {
                model.heard_live(&queue, *live);
                None
            }
            Some(News::Decisions(queue, decisions)) => {
                model.heard_decisions(&queue, decisions);
                None
            }
            Some(News::Letters(queue, letters)) => {
                model.heard_letters(&queue, letters);
                None
            }
            Some(News::Told(message)) => {
                model.message = Some(message);
                None
            }
        };
        match wish {
            None => {}
            Some(Wish::Quit) => break,
            Some(Wish::Pause(queue, pause)) => {
                spawn_local(change(cluster.within(&queue.0), queue, pause, news.clone()));
            }
            Some(Wish::Dead(queue)) => {
                spawn_local(read_letters(cluster.within(&queue.0), queue, interrupt.clone(), news.clone()));
            }
        }
    }
    if let Some((_, task)) = about {
        task.abort();
    }
    Ok(())
}

fn looked(found: &Listing) -> Looked {
    let now = Timestamp::now();
    let figures = found.queues.iter().map(|queue| Figures::of(queue, now)).collect();
    Looked::At(figures, found.unreadable.first().map(|(_, error)| error.to_string()))
}

/// Keys, on a thread of its own: reading them blocks.
fn listen(news: mpsc::Sender<News>) {
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let one = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => News::Key(key),
                Event::Resize(..) => News::Resized,
                _ => continue,
            };
            if news.blocking_send(one).is_err() {
                return;
            }
        }
    });
}

/// The queues, again and again.
async fn look(cluster: Cluster, which: Which, news: mpsc::Sender<News>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if news.send(News::Queues(cluster.select(&which).await)).await.is_err() {
            return;
        }
    }
}

/// What the selected queue does: its workers by Redis, and what was decided about it.
async fn follow(cluster: Cluster, queue: Key, interrupt: Interrupt, news: mpsc::Sender<News>) {
    tokio::time::sleep(STEPPING).await;
    let decisions = async {
        loop {
            if let Ok(object) = cluster.queue(&queue.1).await
                && let Ok(events) = cluster.events_of(&object).await
            {
                let _ = news.send(News::Decisions(queue.clone(), decisions(&object, &events))).await;
            }
            tokio::time::sleep(EVENTS_EVERY).await;
        }
    };
    let workers = async {
        loop {
            let outcome = remote::among_workers(&cluster, &queue.1, &interrupt, async |remote| {
                stats::follow(remote, |stats| {
                    // A screen that is behind shows the next figures.
                    let _ = news.try_send(News::Live(queue.clone(), Box::new(Ok(Some(stats)))));
                })
                .await
            })
            .await;
            let told = match outcome {
                Ok(_) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
            let _ = news.send(News::Live(queue.clone(), Box::new(told))).await;
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::join!(decisions, workers);
}

/// What was decided about the number of workers, the last one last.
fn decisions(queue: &JobQueue, events: &[DynamicObject]) -> Vec<Decision> {
    let about =
        |event: &&DynamicObject| ["Scaled", "Draining"].iter().any(|reason| event.data["reason"] == *reason);
    let mut decisions: Vec<Decision> = events
        .iter()
        .filter(about)
        .map(|event| Decision {
            at: last_seen(&event.data)
                .and_then(|text| text.parse().ok())
                .or(event.creation_timestamp().map(|at| at.0)),
            text: event.data["message"]
                .as_str()
                .or(event.data["note"].as_str())
                .unwrap_or_default()
                .to_owned(),
        })
        .collect();
    let scaling = queue.status.as_ref().and_then(|status| status.scaling.as_ref());
    // Events are forgotten after an hour; the last decision is not.
    if let (true, Some(scaling)) = (decisions.is_empty(), scaling) {
        decisions.push(Decision {
            at: Some(scaling.time.0),
            text: format!("{}: {}", counted(scaling.replicas, "worker"), scaling.reason),
        });
    }
    decisions.sort_by_key(|one| one.at);
    decisions
}

async fn change(cluster: Cluster, queue: Key, pause: bool, news: mpsc::Sender<News>) {
    let verb = if pause { "pause" } else { "resume" };
    let outcome = patch(&cluster, &queue.1, verb, &serde_json::json!({ "spec": { "paused": pause } })).await;
    let message = match outcome {
        Ok(()) => format!("{} {verb}d", queue.1),
        Err(error) => error.to_string(),
    };
    let _ = news.send(News::Told(message)).await;
}

async fn read_letters(cluster: Cluster, queue: Key, interrupt: Interrupt, news: mpsc::Sender<News>) {
    let read = async {
        let object = cluster.queue(&queue.1).await?;
        remote::with(&cluster, &object, &interrupt, async |remote| {
            let (answer, ended) = dlq::letters(remote, &Selector::default(), LETTERS, LETTERS).await?;
            if ended.code == 0 { Ok(answer) } else { Err(remote.failed(&ended)) }
        })
        .await
    };
    let letters = match read.await {
        Ok(answer) => Ok(serde_json::from_value::<Letters>(answer).unwrap_or_default().letters),
        Err(error) => Err(error.to_string()),
    };
    let _ = news.send(News::Letters(queue, letters)).await;
}
