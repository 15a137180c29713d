use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::future::FutureExt;
use jobqueue::config::Config;
use serde_json::json;

use super::*;
use crate::observer::{Asked, Carried};
use crate::pods::Pods;

/// An observer that was told of one queue, and what it tells of it. It looks at nothing by itself.
fn watching() -> (Observer, ObjectRef<JobQueue>, UnboundedReceiver<ObjectRef<JobQueue>>) {
    let (changed, told) = unbounded();
    let observer =
        Observer::new(changed, unbounded().0, unbounded().0, Pods::default(), |_| async { false }.boxed());
    let queue = JobQueue::new("orders", serde_json::from_value(json!({})).unwrap());
    let config = Config::from_value(json!({})).unwrap().config;
    let target = Target::new(&config, &queue, "c/n/orders/u".into(), Asked::default());
    let reference = ObjectRef::from_obj(&queue);
    observer.state().queues.insert(reference.clone(), Watched::new(target));
    (observer, reference, told)
}

fn waiting(jobs: u64) -> Look {
    Look { figures: Figures { waiting: vec![jobs, 0], ..Figures::default() }, ..Look::default() }
}

fn away(message: &str) -> Trouble {
    Trouble { kind: Remedy::Wait, message: message.into() }
}

/// How often it was told so far.
fn count(told: &mut UnboundedReceiver<ObjectRef<JobQueue>>) -> usize {
    std::iter::from_fn(|| told.try_recv().ok()).count()
}

#[test]
fn figures_that_change_from_look_to_look_are_told_once_in_a_while() {
    let (observer, queue, mut told) = watching();
    for jobs in 10..60 {
        observer.saw(&queue, Ok(waiting(jobs)));
        // Whoever writes them for another reason does not find new ones, and so does not cause the next write.
        assert_eq!(observer.seen(&queue).unwrap().figures.waiting, [10, 0]);
    }
    assert_eq!(count(&mut told), 1);
    assert_eq!(observer.all()[0].seen.figures.waiting, [59, 0], "gauges show them all");
}

#[test]
fn an_outage_is_told_once_whatever_words_it_has() {
    let (observer, queue, mut told) = watching();
    observer.saw(&queue, Ok(waiting(1)));
    for at in 0..50 {
        observer.saw(&queue, Err(away(if at % 2 == 0 { "timed out" } else { "connection refused" })));
        assert_eq!(observer.seen(&queue).unwrap().trouble, Some(away("timed out")));
    }
    assert_eq!(count(&mut told), 2);
    let refused = Trouble { kind: Remedy::Credentials, message: "no".into() };
    observer.saw(&queue, Err(refused));
    observer.saw(&queue, Ok(waiting(1)));
    assert_eq!(count(&mut told), 2, "what somebody has to do, and that it is over, is told at once");
}

#[test]
fn a_long_outage_keeps_its_first_words_but_what_somebody_has_to_do_is_told_anew() {
    let (observer, queue, mut told) = watching();
    let a_minute_later = || {
        let mut state = observer.state();
        let told = state.queues.get_mut(&queue).and_then(|watched| watched.told.as_mut()).unwrap();
        told.1 -= Duration::from_secs(60);
    };
    observer.saw(&queue, Err(away("no such host")));
    a_minute_later();
    observer.saw(&queue, Err(away("try again")));
    assert_eq!(observer.seen(&queue).unwrap().trouble, Some(away("no such host")));
    assert_eq!(count(&mut told), 1);
    let wrong = |key: &str| Trouble { kind: Remedy::Change, message: format!("{key} is no list") };
    observer.saw(&queue, Err(wrong("a")));
    a_minute_later();
    observer.saw(&queue, Err(wrong("b")));
    assert_eq!(observer.seen(&queue).unwrap().trouble, Some(wrong("b")));
    assert_eq!(count(&mut told), 2);
}

#[test]
fn a_number_of_workers_is_told_when_it_was_asked_for_and_not_before() {
    let (observer, queue, mut told) = watching();
    observer.saw(&queue, Ok(waiting(1)));
    count(&mut told);
    let decision = Decision { replicas: 3, reason: "jobs".into(), inputs: Inputs::default() };
    let decided_at = Instant::now();
    let scale =
        || Scale { from: Asked::default(), decision: decision.clone(), decided: decided_at, going: None };
    let decided = || observer.seen(&queue).unwrap().decision.map(|(decision, _)| decision.replicas);
    observer.wish(&queue, &[], &Plan::default(), Some(scale()), 1);
    observer.carried_out(&queue, Carried { failed: true, ..Carried::default() });
    assert_eq!((decided(), count(&mut told)), (None, 0), "it was refused");
    let waits = observer.state().queues[&queue].patience.is_waiting(Instant::now());
    assert!(waits, "and is not asked for again at once");
    observer.wish(&queue, &[], &Plan::default(), Some(scale()), 2);
    observer.carried_out(&queue, Carried { scaled: Some(decision.clone()), ..Carried::default() });
    assert_eq!((decided(), count(&mut told)), (Some(3), 1));
}

#[test]
fn what_is_decided_before_the_pods_are_known_is_not_kept() {
    let (observer, queue, _told) = watching();
    let mut look = waiting(500);
    look.figures.due_by_queue = vec![0, 0];
    let decision = observer.saw(&queue, Ok(look)).unwrap();
    assert!(decision.replicas > 0, "more workers can come all the same");
    // The first decision that is kept must know who drains.
    assert!(observer.state().queues[&queue].history.is_undecided());
}
