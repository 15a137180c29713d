use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const NOW: u64 = 1_800_000_000_000;

/// A ready pod that holds this many jobs.
fn busy(uid: &str, held: u64) -> Worker {
    let pod = json!({
        "metadata": {
            "name": uid, "uid": uid, "namespace": "n", "creationTimestamp": "2026-11-16T10:00:00Z",
            "labels": { "pod-template-hash": "one" },
        },
        "spec": { "nodeName": "node" },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-16T10:00:05Z" }] },
    });
    Worker { pod: serde_json::from_value(pod).unwrap(), held, drained: false }
}

fn unready(mut worker: Worker) -> Worker {
    worker.pod.status.as_mut().unwrap().conditions[0].status = "False".into();
    worker
}

fn pending(mut worker: Worker) -> Worker {
    worker.pod.spec.node_name = None;
    worker.pod.status.as_mut().unwrap().phase = "Pending".into();
    unready(worker)
}

/// One that was told to drain.
fn draining(mut worker: Worker) -> Worker {
    let marks = [(DRAINING, NOW.to_string()), (COST, DRAINING_COST.to_owned())];
    worker.pod.annotations_mut().extend(marks.map(|(name, value)| (name.to_owned(), value)));
    worker
}

/// One that has come to rest, and of which nobody has noticed yet.
fn rested(worker: Worker) -> Worker {
    Worker { drained: true, held: 0, ..draining(worker) }
}

/// One that says that it has come to rest.
fn marked(mut worker: Worker) -> Worker {
    worker.pod.annotations_mut().insert(COST.into(), RESTED_COST.into());
    worker
}

/// One that has come to rest and says so, and whose kubelet has noticed.
fn drained(worker: Worker) -> Worker {
    marked(unready(rested(worker)))
}

fn of_template(mut worker: Worker, template: &str) -> Worker {
    worker.pod.labels_mut().insert("pod-template-hash".into(), template.into());
    worker
}

fn to(current: usize, desired: i32) -> Situation {
    let current = i32::try_from(current).unwrap();
    Situation { current, desired, settled: true, timeout_ms: None, now_ms: NOW }
}

fn uids(order: &[&Worker]) -> Vec<String> {
    order.iter().map(|worker| worker.uid()).collect()
}

#[test]
fn the_least_busy_worker_is_drained_and_nobody_goes_yet() {
    let workers = [busy("a", 3), busy("b", 0), busy("c", 1)];
    let plan = plan(&workers, to(3, 2));
    assert_eq!(plan, Plan { drain: vec!["b".into()], draining: 1, ..Plan::default() });
}

#[test]
fn a_worker_goes_only_once_it_has_come_to_rest() {
    let waiting = [busy("a", 3), draining(busy("b", 1))];
    let not_yet = Plan { draining: 1, ..Plan::default() };
    assert_eq!(plan(&waiting, to(2, 1)), not_yet, "it still has a job");
    let ready = marked(rested(busy("b", 0)));
    assert_eq!(plan(&[busy("a", 3), ready], to(2, 1)), not_yet, "a could be taken in its place");
    let silent = unready(rested(busy("b", 0)));
    let to_be_told = Plan { rested: vec!["b".into()], ..not_yet };
    assert_eq!(plan(&[busy("a", 3), silent], to(2, 1)), to_be_told, "it has to say so first");
    let ready = [busy("a", 3), drained(busy("b", 0))];
    assert_eq!(plan(&ready, to(2, 1)).replicas, Some(1));
}

#[test]
fn a_busy_pod_that_is_not_ready_keeps_everybody_because_it_would_be_taken_first() {
    // Unready and without our cost it still goes after those with it; with several to go it would be among them.
    let workers = [unready(busy("ill", 5)), drained(busy("b", 0)), busy("c", 2)];
    let plan = plan(&workers, to(3, 1));
    assert_eq!(plan.drain, ["ill"], "it is made to finish");
    assert_eq!(plan.replicas, Some(2), "only the one that has come to rest goes");
}

#[test]
fn an_unready_pod_that_does_not_drain_is_chosen_before_a_ready_one() {
    let workers = [unready(busy("ill", 5)), busy("idle", 0)];
    assert_eq!(plan(&workers, to(2, 1)).drain, ["ill"], "idle would be spared, and the work of ill lost");
}

#[test]
fn pending_pods_go_first_but_are_told_to_be_quiet_before() {
    let workers = [busy("a", 3), pending(busy("new", 0))];
    assert_eq!(plan(&workers, to(2, 1)), Plan { drain: vec!["new".into()], draining: 1, ..Plan::default() });
    let told = marked(rested(pending(busy("new", 0))));
    assert_eq!(plan(&[busy("a", 3), told], to(2, 1)).replicas, Some(1));
}

#[test]
fn a_pending_pod_is_told_before_a_drained_one_can_go() {
    // It stands first whatever the other does, so nobody could go as long as it was not told.
    let workers = [pending(busy("new", 0)), drained(busy("b", 0))];
    let plan = plan(&workers, to(2, 1));
    assert_eq!((plan.drain, plan.resume), (vec!["new".to_owned()], vec!["b".to_owned()]));
}

#[test]
fn those_that_have_come_to_rest_do_not_wait_for_the_others() {
    let workers = [draining(busy("long", 1)), drained(busy("b", 0)), drained(busy("c", 0))];
    assert_eq!(plan(&workers, to(3, 0)).replicas, Some(1));
}

#[test]
fn one_that_drains_cannot_be_taken_in_place_of_one_that_rests() {
    // The last one ran longest, and its app was started again: of two that cost the same it would go first.
    let mut long = unready(draining(busy("long", 1)));
    long.pod.metadata.creation_timestamp = None;
    let silent = unready(rested(busy("b", 0)));
    let plans = |rested: Worker| plan(&[long.clone(), rested], to(2, 0));
    assert_eq!(plans(silent.clone()), Plan { rested: vec!["b".into()], draining: 2, ..Plan::default() });
    assert_eq!(plans(marked(silent)).going, ["b"]);
}

#[test]
fn nobody_goes_while_one_that_says_it_rests_works_again() {
    let awake = || unready(draining(busy("awake", 1)));
    let workers = |awake| [awake, drained(busy("b", 0)), busy("c", 1)];
    let told_again = Plan { drain: vec!["awake".into()], draining: 2, ..Plan::default() };
    assert_eq!(plan(&workers(marked(awake())), to(3, 1)), told_again);
    assert_eq!(plan(&workers(awake()), to(3, 1)).going, ["b"], "its job may last for hours");
    let resumed = plan(&workers(marked(awake())), to(3, 3)).resume;
    assert_eq!(resumed, ["awake", "b"], "nor does it go on saying so");
}

#[test]
fn half_a_mark_holds_nobody_up() {
    // A patch that was written late: the pod works again, and its word is gone.
    let half = || marked(busy("half", 1));
    let workers = [half(), drained(busy("b", 0)), busy("c", 1)];
    let told = plan(&workers, to(3, 2));
    assert_eq!((&told.resume, &told.replicas), (&vec!["half".to_owned()], &None));
    let chosen = plan(&workers, to(3, 0));
    assert!(chosen.drain.contains(&"half".to_owned()) && chosen.resume.is_empty(), "{chosen:?}");
    assert_eq!(plan(&[half(), busy("c", 1)], to(2, 2)).resume, ["half"]);
}

#[test]
fn when_everybody_goes_nobody_can_be_taken_in_anybodys_place() {
    let rested = rested(busy("a", 0));
    assert_eq!(
        plan(std::slice::from_ref(&rested), to(1, 0)).replicas,
        Some(0),
        "no need to wait for its kubelet"
    );
    let busy = draining(busy("b", 1));
    assert_eq!(plan(&[rested, busy], to(2, 0)).replicas, None, "b may become unready, and would be taken");
}

#[test]
fn a_pod_that_nobody_knew_keeps_everybody() {
    let (rested, known) = (drained(busy("b", 0)), busy("a", 3));
    let plan = plan(&[known.clone(), rested.clone()], to(2, 1));
    let takes = |there: &[&Worker]| {
        let there = there.iter().map(|worker| worker.pod.clone()).collect();
        takes_only(&plan.going, there, plan.replicas.unwrap())
    };
    assert!(takes(&[&known, &rested]));
    assert!(takes(&[&known]), "it has gone by itself");
    assert!(!takes(&[&known, &rested, &busy("new", 0)]), "two would go");
    assert!(!takes(&[&unready(busy("ill", 1)), &pending(busy("late", 0)), &rested]), "others would go first");
}

#[test]
fn when_work_returns_the_workers_resume() {
    let workers = [busy("a", 3), draining(busy("b", 1)), drained(busy("c", 0))];
    let mut resumed = plan(&workers, to(3, 3)).resume;
    resumed.sort();
    assert_eq!(resumed, ["b", "c"]);
    assert_eq!(
        plan(&workers, to(3, 2)),
        Plan { resume: vec!["b".into()], replicas: Some(2), going: vec!["c".into()], ..Plan::default() }
    );
}

#[test]
fn nobody_goes_during_a_rollout() {
    let old = of_template(drained(busy("old", 0)), "two");
    let plan = plan(&[old, busy("new", 1)], to(2, 1));
    assert_eq!(plan, Plan { resume: vec!["old".into()], ..Plan::default() });
}

#[test]
fn pods_that_are_about_to_be_made_are_waited_for() {
    let workers = [drained(busy("a", 0))];
    let unsettled = Situation { settled: false, ..to(3, 0) };
    assert_eq!(plan(&workers, unsettled), Plan { draining: 1, ..Plan::default() });
}

#[test]
fn those_that_were_given_up_stay_quiet_until_they_are_deleted() {
    // Three were asked to go and one is left to work; the ReplicaSet has deleted one of them so far.
    let workers = [busy("a", 3), drained(busy("b", 0)), drained(busy("c", 0))];
    for desired in [0, 1, 2, 9] {
        let deleting = Situation { settled: false, ..to(1, desired) };
        assert_eq!(plan(&workers, deleting), Plan::default(), "for {desired}");
    }
}

#[test]
fn those_that_were_given_up_are_not_counted_among_those_that_drain() {
    let pods = |workers: &[Worker]| workers.iter().map(|worker| worker.pod.clone()).collect::<Vec<_>>();
    let workers = [busy("a", 3), drained(busy("b", 0)), draining(busy("c", 1))];
    for (current, draining) in [(3, 2), (2, 1), (1, 0), (0, 0)] {
        assert_eq!(super::draining(pods(&workers), current), draining, "of {current}");
    }
}

#[test]
fn when_nobody_deletes_those_that_were_given_up_only_the_others_resume() {
    let workers = [busy("a", 3), drained(busy("b", 0)), drained(busy("c", 0)), draining(busy("d", 1))];
    let resumed = Plan { resume: vec!["d".into()], going: vec!["b".into(), "c".into()], ..Plan::default() };
    assert_eq!(plan(&workers, to(2, 2)), resumed);
    let more = plan(&workers, to(2, 3));
    assert_eq!(
        (more.replicas, more.resume),
        (Some(3), vec!["d".into()]),
        "one of them when that was asked for"
    );
    let fewer = plan(&workers, to(2, 1));
    assert_eq!((fewer.resume, fewer.replicas, fewer.draining), (vec![], None, 1), "d has a job");
}

#[test]
fn pods_that_cannot_be_made_are_not_waited_for() {
    let plan = plan(&[busy("a", 1)], to(5, 2));
    assert_eq!(plan.replicas, Some(2), "nobody has to go for that");
    assert!(plan.drain.is_empty());
}

#[test]
fn after_the_drain_timeout_a_busy_worker_goes() {
    let bounded = Situation { timeout_ms: Some(5_000), now_ms: NOW + 4_999, ..to(1, 0) };
    let workers = [draining(busy("a", 1))];
    assert_eq!(plan(&workers, bounded).replicas, None);
    assert_eq!(plan(&workers, Situation { now_ms: NOW + 5_000, ..bounded }).replicas, Some(0));
}

#[test]
fn a_pod_that_is_being_deleted_is_not_counted() {
    let mut going = busy("a", 1);
    going.pod.metadata.deletion_timestamp = going.pod.metadata.creation_timestamp.clone();
    let plan = plan(&[going, busy("b", 1)], to(2, 1));
    assert_eq!(plan.replicas, Some(1), "one goes already");
}

#[test]
fn the_order_is_the_replica_sets_own() {
    let mut crowded = busy("crowded", 0);
    crowded.pod.spec.node_name = Some("full".into());
    let mut crowded_too = busy("crowded-too", 0);
    crowded_too.pod.spec.node_name = Some("full".into());
    let mut restarted = unready(busy("restarted", 0));
    restarted.pod.status.as_mut().unwrap().container_statuses =
        vec![crate::pods::ContainerStatus { restart_count: 4, ..crate::pods::ContainerStatus::default() }];
    restarted.pod.spec.node_name = Some("second".into());
    let mut sidecar = unready(busy("sidecar", 0));
    sidecar.pod.spec.node_name = Some("fourth".into());
    sidecar.pod.spec.init_containers =
        vec![crate::pods::InitContainer { name: "app".into(), restart_policy: "Always".into() }];
    sidecar.pod.status.as_mut().unwrap().init_container_statuses = vec![crate::pods::ContainerStatus {
        name: "app".into(),
        restart_count: 1,
        ..crate::pods::ContainerStatus::default()
    }];
    let mut cheap = busy("cheap", 0);
    cheap.pod.annotations_mut().insert(COST.into(), "-5".into());
    let mut ill = unready(busy("ill", 0));
    ill.pod.spec.node_name = Some("third".into());
    let workers =
        [busy("well", 0), crowded, crowded_too, cheap, ill, sidecar, restarted, pending(busy("new", 0))];
    let all: Vec<&Worker> = workers.iter().collect();
    let order = uids(&deletion_order(&all, NOW));
    // Unassigned, then unready (more restarts first, then of sidecars), then by cost, then from crowded nodes.
    assert_eq!(order[..5], ["new", "restarted", "sidecar", "ill", "cheap"]);
    assert_eq!(order[7], "well", "{order:?}");
}

#[test]
fn ages_count_by_their_magnitude() {
    let at = |seconds: i64| Some(Timestamp::from_second(1_800_000_000 - seconds).unwrap());
    assert_eq!(younger_first(at(10), at(11), NOW), Ordering::Equal);
    assert_eq!(younger_first(at(10), at(100), NOW), Ordering::Less);
    assert_eq!(younger_first(at(1000), at(100), NOW), Ordering::Greater);
}

/// Any pod in any state.
fn any_worker(uid: usize) -> impl Strategy<Value = Worker> {
    (0u64..4, any::<bool>(), 0u8..8).prop_map(move |(held, ill, state)| {
        let worker = busy(&format!("w{uid}"), held);
        let worker = if ill { unready(worker) } else { worker };
        match state {
            0 => pending(Worker { held: 0, ..worker }),
            1 => draining(worker),
            2 => drained(worker),
            3 => rested(worker),
            4 => marked(draining(worker)),
            5 => marked(worker),
            _ => worker,
        }
    })
}

proptest! {
    /// Whoever rests goes as soon as the marks are written that were planned: nothing holds it up that only a job's end could
    /// change. The exception is somebody who would be taken in its place.
    #[test]
    fn marks_are_all_that_anybody_waits_for(
        workers in (1usize..8).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        desired in 0i32..8,
    ) {
        let current = workers.len();
        let first = plan(&workers, to(current, desired));
        let mut written = workers.clone();
        for worker in &mut written {
            let uid = worker.uid();
            let word = worker.word().cloned().unwrap_or_else(|| NOW.to_string());
            let notes = worker.pod.annotations_mut();
            if first.drain.contains(&uid) {
                notes.extend([(DRAINING.into(), word), (COST.into(), DRAINING_COST.into())]);
            } else if first.rested.contains(&uid) {
                notes.extend([(DRAINING.into(), word), (COST.into(), RESTED_COST.into())]);
            } else if first.resume.contains(&uid) {
                notes.remove(DRAINING);
                notes.remove(COST);
            }
        }
        let second = plan(&written, to(current, desired));
        prop_assert!(second.rested.is_empty() && second.resume.is_empty(), "{first:?}, then {second:?}");
        let chosen = |worker: &&Worker| worker.word().is_some();
        let first_to_go = {
            let all: Vec<&Worker> = written.iter().collect();
            deletion_order(&all, NOW).into_iter().take(current.saturating_sub(usize::try_from(desired).unwrap()))
                .take_while(|worker| worker.drained && worker.goes_first() && chosen(worker)).count()
        };
        prop_assert_eq!(second.going.len().max(first_to_go), second.going.len());
    }

    /// Whatever a ReplicaSet takes of the pods when the plan is carried out, it has come to rest: by whatever it decides
    /// between those that cost the same, and also when others turn unready before it does.
    #[test]
    fn nobody_with_a_job_is_ever_taken(
        workers in (1usize..8).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        desired in 0i32..8,
    ) {
        let desired = desired.min(count(workers.len()));
        let plan = plan(&workers, to(workers.len(), desired));
        if let Some(replicas) = plan.replicas {
            let all: Vec<&Worker> = workers.iter().collect();
            let gone = workers.len() - usize::try_from(replicas).unwrap();
            for worker in deletion_order(&all, NOW).iter().take(gone) {
                prop_assert!(worker.drained && worker.held == 0, "{} of {plan:?}", worker.uid());
            }
            let key = |worker: &Worker| (worker.standing(), worker.cost());
            let last = deletion_order(&all, NOW).into_iter().take(gone).map(key).max();
            for other in workers.iter().filter(|worker| !worker.drained) {
                prop_assert!(last < Some(key(&unready(other.clone()))), "{} of {plan:?}", other.uid());
            }
            prop_assert!(replicas >= desired);
        }
    }

    /// Also when the cluster is not what the plan was made on: pods nobody knew, pods that are gone, another readiness.
    #[test]
    fn nobody_with_a_job_is_taken_by_a_plan_that_is_out_of_date(
        known in (1usize..6).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        unknown in (0usize..3).prop_flat_map(|count| (10..10 + count).map(any_worker).collect::<Vec<_>>()),
        fate in proptest::collection::vec(0u8..4, 6),
        current in 1usize..9,
        desired in 0i32..8,
    ) {
        let plan = plan(&known, to(current, desired));
        let mut there: Vec<Worker> = unknown;
        for (worker, fate) in known.iter().zip(fate) {
            match fate {
                0 => {}
                1 => there.push(unready(worker.clone())),
                _ => there.push(worker.clone()),
            }
        }
        let pods: Vec<Pod> = there.iter().map(|worker| worker.pod.clone()).collect();
        let Some(replicas) = plan.replicas.filter(|replicas| takes_only(&plan.going, pods, *replicas)) else {
            return Ok(());
        };
        let all: Vec<&Worker> = there.iter().collect();
        let gone = there.len().saturating_sub(usize::try_from(replicas).unwrap());
        for worker in deletion_order(&all, NOW).iter().take(gone) {
            prop_assert!(worker.drained && worker.held == 0, "{} of {plan:?}", worker.uid());
            prop_assert!(known.iter().any(|one| one.uid() == worker.uid()), "nobody has asked {}", worker.uid());
        }
    }

    /// However often it is planned, as many drain as are too many, and it comes to an end.
    #[test]
    fn the_surplus_drains_and_goes(
        workers in (1usize..8).prop_flat_map(|count| (0..count).map(any_worker).collect::<Vec<_>>()),
        desired in 0i32..8,
    ) {
        let mut there: BTreeMap<String, Worker> = workers.into_iter().map(|worker| (worker.uid(), worker)).collect();
        let mut current = there.len();
        let desired = desired.min(count(current));
        for _ in 0..20 {
            let now: Vec<Worker> = there.values().cloned().collect();
            let next = plan(&now, to(current, desired));
            for uid in &next.drain {
                let worker = there[uid].clone();
                there.insert(uid.clone(), drained(worker));
            }
            for uid in &next.resume {
                let worker = there.get_mut(uid).unwrap();
                worker.pod.annotations_mut().clear();
                worker.drained = false;
            }
            if let Some(replicas) = next.replicas {
                let order: Vec<&Worker> = now.iter().collect();
                let gone = current - usize::try_from(replicas).unwrap();
                for uid in uids(&deletion_order(&order, NOW)).into_iter().take(gone) {
                    there.remove(&uid);
                }
                current = usize::try_from(replicas).unwrap();
            }
            // Those that were told finish their jobs.
            for worker in there.values_mut().filter(|worker| worker.word().is_some()) {
                *worker = drained(worker.clone());
            }
        }
        prop_assert_eq!(current, there.len());
        prop_assert!(current <= usize::try_from(desired).unwrap(), "{} for {}", current, desired);
    }

    /// A ReplicaSet takes its time: whom it deletes it chooses when it begins, and it may be away meanwhile. Nobody whom it
    /// deletes has been told to work again, whatever is wished for until then.
    #[test]
    fn nobody_who_is_about_to_be_deleted_works_again(
        count in 1usize..8,
        seconds in proptest::collection::vec((0i32..8, 0usize..3, any::<bool>()), 1..40),
    ) {
        let mut there: BTreeMap<String, Worker> =
            (0..count).map(|at| (format!("w{at}"), busy(&format!("w{at}"), 1))).collect();
        let (mut current, mut made, mut chosen) = (count, count, Vec::<String>::new());
        for (desired, deleted, away) in seconds {
            let now: Vec<Worker> = there.values().cloned().collect();
            let next = plan(&now, Situation { settled: away, ..to(current, desired) });
            for uid in &next.drain {
                *there.get_mut(uid).unwrap() = draining(now.iter().find(|one| one.uid() == *uid).unwrap().clone());
            }
            for uid in &next.resume {
                there.insert(uid.clone(), busy(uid, 1));
            }
            let pods = there.values().map(|worker| worker.pod.clone()).collect();
            if let Some(replicas) = next.replicas {
                let to = usize::try_from(replicas).unwrap();
                if to > current || takes_only(&next.going, pods, replicas) {
                    current = to;
                }
            }
            if away {
                chosen.clear();
                continue;
            }
            if chosen.is_empty() {
                let all: Vec<&Worker> = there.values().collect();
                let surplus = all.len().saturating_sub(current);
                chosen = uids(&deletion_order(&all, NOW)).into_iter().take(surplus).rev().collect();
                for _ in there.len()..current {
                    there.insert(format!("w{made}"), busy(&format!("w{made}"), 1));
                    made += 1;
                }
            }
            for uid in chosen.split_off(chosen.len().saturating_sub(deleted)) {
                let gone = there.remove(&uid).unwrap();
                prop_assert!(gone.drained && gone.word().is_some(), "{uid} worked again");
            }
            // Those that were told finish their jobs.
            for worker in there.values_mut().filter(|worker| worker.word().is_some()) {
                *worker = drained(worker.clone());
            }
        }
    }
}
