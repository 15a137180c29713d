//! Shards, on one Redis and on a Cluster of three: every transition declares its keys, or the Cluster refuses it.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{
    CONSUMING, config, enqueue, failure, fresh_prefix, id_of, ids, job, kill, large_job, reaper_settings,
    registration, shared_server,
};
use e2e::{Cluster, Options, RedisServer, eventually};
use jobqueue::effects::{Decision, Side};
use jobqueue::engine::Engine;
use jobqueue::keys::Keys;
use jobqueue::layout::{self, Watch};
use jobqueue::outcome::Outcome;
use jobqueue::promoter;
use jobqueue::reaper::Reaper;
use jobqueue::store::{
    Cycle, Fenced, LaneHandle, PageKind, Parked, QueueAsk, Session, Settlement, Status, Turn,
};
use serde_json::json;
use tokio::sync::OnceCell;

const SOON: Duration = Duration::from_secs(30);
const SHARDS: u16 = 5;

async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER.get_or_init(Cluster::start).await
}

fn engine_on(addr: &str, cluster: bool) -> Engine {
    let worker = json!({ "shards": SHARDS, "backoff": { "base": "1ms", "max": "1ms" } });
    let redis = json!({ "addr": addr, "cluster": cluster });
    Engine::new(&config(json!({ "key_prefix": fresh_prefix(), "redis": redis, "worker": worker })))
}

async fn clustered() -> Engine {
    engine_on(&cluster().await.addrs()[1].to_string(), true)
}

fn ask(seq: u64, held: usize, room: usize) -> Cycle {
    let queue = QueueAsk { limit: room, suspects: room, expected: held, ..QueueAsk::default() };
    Cycle { seq, room, queues: vec![queue, QueueAsk::default()], ..Cycle::default() }
}

async fn cycle(session: &mut Session, lane: &LaneHandle, cycle: &Cycle) -> Vec<Bytes> {
    let answer =
        session.persist(async |session| session.cycle(lane, cycle, CONSUMING, Some(100)).await).await;
    let cycled = answer.unwrap().unwrap();
    assert!(cycled.statuses.iter().all(|status| *status == Status::Settled), "{cycled:?}");
    assert_eq!(cycled.refusals, []);
    cycled.queues[0].jobs.clone()
}

fn settlement(
    engine: &Engine,
    session: &Session,
    raw: &Bytes,
    outcome: &Outcome,
    position: Option<usize>,
) -> Settlement {
    let job = engine.protocol.decode(raw.clone()).unwrap();
    let decision =
        engine.protocol.settle(&job, outcome, &session.keys.queues[0], session.now_ms(), &id_of(raw));
    let Decision { verdict, effects } = decision;
    Settlement { queue: 0, raw: raw.clone(), position, verdict, effects }
}

/// Every transition of the engine on one shard; ends with each of the jobs in a place that is known.
async fn whole_life(engine: &Engine, keys: &Keys) {
    let mut session = engine.session(keys);
    let high = keys.queues[0].clone();
    let names = ["a", "b", "c", "d", "e"];
    let mut jobs = enqueue(&high.queue, &names.map(job));
    jobs.extend(enqueue(&high.queue, &[large_job("large", 5000)]));
    jobs[0].seen = Some(("/data/f".into(), "1:1".into()));
    session.enqueue("1", &keys.seen("p"), Side::Left, &jobs).await.unwrap();
    assert_eq!(session.limit(&keys.seen("rate"), 10, 3).await.unwrap().granted, 3);
    let lane = session.register(&registration(60_000)).await.unwrap();
    let lists = lane.lists[0].clone();
    assert_eq!(session.park(&high.queue, &lists.parked, CONSUMING, SOON).await.unwrap(), Some(job("a")));
    let mut first = ask(1, 0, 5);
    (first.queues[0].parked, first.queues[0].parked_suspects) = (Parked::Look, Parked::Release);
    let got = cycle(&mut session, &lane, &first).await;
    assert_eq!(ids(&got), ["a", "b", "c", "d", "e"]);
    let large = cycle(&mut session, &lane, &ask(2, 5, 1)).await.remove(0);
    let mut settle = ask(3, 6, 0);
    settle.settlements.push(settlement(engine, &session, &large, &Outcome::Done, Some(5)));
    settle.settlements.push(settlement(engine, &session, &got[1], &failure(), None));
    settle.settlements.push(settlement(engine, &session, &got[2], &kill(), None));
    settle.settlements.push(settlement(engine, &session, &got[3], &Outcome::Released, None));
    settle.queues[0].done.push(got[0].clone());
    cycle(&mut session, &lane, &settle).await;
    assert_eq!(session.extend(&[(&lane, b"e")], 60_000, "high=closed").await.unwrap(), [true]);
    eventually(SOON, "the promotion", async || {
        promoter::pass(&mut session, &engine.protocol).await.unwrap().moved == 1
    })
    .await;
    let letters = session.page(&high.dead_letters, PageKind::Tail, 10).await.unwrap().entries;
    let (origin, revived) = engine.protocol.revive(&letters[0]);
    assert_eq!(origin.as_deref(), Some(high.queue.as_str()));
    let turn = Turn::push(high.queue.clone(), Side::Left, revived);
    assert_eq!(session.turn(&high.dead_letters, &[(letters[0].clone(), turn)]).await.unwrap(), 1);

    assert_eq!(session.fence(&lane.id, true, "heartbeat").await.unwrap(), Fenced::Fenced);
    let mut reaper =
        Reaper::new(engine.session(keys), engine.protocol.clone(), reaper_settings(Duration::ZERO));
    assert_eq!(reaper.pass().await.unwrap().moved.len(), 1);
    eventually(SOON, "the lane to be forgotten", async || {
        reaper.pass().await.unwrap();
        session.lane(&lane.id).await.unwrap().is_none()
    })
    .await;
    let second = session.register(&registration(60_000)).await.unwrap();
    assert_eq!(
        ids(&cycle(&mut session, &second, &ask(1, 0, 9)).await),
        ["e", "d", "b", "c"],
        "suspects, released, retried"
    );
    assert!(!session.close(&second, false).await.unwrap(), "it holds jobs");
    reaper.pass().await.unwrap();
    let snapshot = session.snapshot(CONSUMING).await.unwrap();
    assert_eq!((snapshot.queues[0].waiting, snapshot.completed, snapshot.dead_letters), (4, 2, 0));
    let third = session.register(&registration(60_000)).await.unwrap();
    assert!(session.close(&third, false).await.unwrap());
}

#[tokio::test]
async fn every_transition_runs_on_every_shard_of_a_cluster() {
    let engine = clustered().await;
    let mut owners = BTreeSet::new();
    for keys in &engine.shards {
        owners.insert(cluster().await.owner_of(cluster().await.slot_of(&keys.slot_key())));
        whole_life(&engine, keys).await;
    }
    assert!(owners.len() > 1, "the shards are on several nodes: {owners:?}");
}

#[tokio::test]
async fn a_node_that_hangs_does_not_hide_the_cluster() {
    let (hung, _open) = crate::connect::hung().await;
    let seeds = format!("{hung},{}", cluster().await.addrs()[0]);
    let engine = engine_on(&seeds, true);
    for keys in &engine.shards {
        engine.session(keys).time().await.unwrap();
    }
}

#[tokio::test]
async fn shards_on_one_redis_are_complete_sets_of_keys() {
    let engine = engine_on(&shared_server().await.addr().to_string(), false);
    assert_eq!(engine.shards.len(), usize::from(SHARDS));
    for keys in &engine.shards {
        whole_life(&engine, keys).await;
    }
}

#[tokio::test]
async fn orphans_of_a_cluster_are_found_on_their_own_node() {
    let engine = clustered().await;
    let keys = &engine.shards[1];
    let mut session = engine.session(keys);
    let orphan = keys.lists("host-9-9")[1].held.clone();
    session.enqueue("1", &keys.seen("p"), Side::Left, &enqueue(&orphan, &[job("a")])).await.unwrap();
    let mut reaper =
        Reaper::new(engine.session(keys), engine.protocol.clone(), reaper_settings(Duration::ZERO));
    eventually(SOON, "the rescue", async || !reaper.pass().await.unwrap().moved.is_empty()).await;
    assert_eq!(session.snapshot(CONSUMING).await.unwrap().queues[1].suspects, 1);
}

#[tokio::test]
async fn each_job_has_one_shard_by_its_id() {
    let engine = clustered().await;
    let names: Vec<String> = (0..200).map(|n| format!("job-{n}")).collect();
    for name in &names {
        let keys = engine.shard_of(name);
        let mut session = engine.session(keys);
        let jobs = enqueue(&keys.queues[0].queue, &[job(name)]);
        session.enqueue(name, &keys.seen("p"), Side::Left, &jobs).await.unwrap();
    }
    let mut found = Vec::new();
    for keys in &engine.shards {
        let page = engine.session(keys).page(&keys.queues[0].queue, PageKind::Head, 100).await.unwrap();
        assert!((10..=90).contains(&page.entries.len()), "{} of 200 on one of 5", page.entries.len());
        found.extend(ids(&page.entries));
    }
    let mut names = names;
    names.sort();
    found.sort();
    assert_eq!(found, names);
}

#[tokio::test]
async fn a_slot_that_moves_away_is_followed_with_everything_in_it() {
    // A Cluster of its own: slots that move would get in the way of the others.
    let cluster = Cluster::start().await;
    let engine = engine_on(&cluster.addrs()[0].to_string(), true);
    let keys = engine.shards[0].clone();
    let mut session = engine.session(&keys);
    let jobs = enqueue(&keys.queues[0].queue, &["a", "b", "c"].map(job));
    session.enqueue("1", &keys.seen("p"), Side::Left, &jobs).await.unwrap();
    let lane = session.register(&registration(60_000)).await.unwrap();
    let got = cycle(&mut session, &lane, &ask(1, 0, 1)).await;
    let slot = cluster.slot_of(&keys.slot_key());
    let to = (cluster.owner_of(slot) + 1) % 3;

    cluster.begin_slot_move(slot, to).await;
    let mut settle = ask(2, 1, 1);
    settle.queues[0].done.push(got[0].clone());
    // Half-way the old owner still has the keys; later it says ASK, TRYAGAIN or MOVED: all pass.
    let settling = cycle(&mut session, &lane, &settle);
    let (second, ()) = tokio::join!(settling, cluster.finish_slot_move(slot, to));
    assert_eq!(ids(&second), ["b"]);
    let mut parked = engine.session(&keys);
    let into = lane.lists[0].parked.clone();
    let third =
        parked.persist(async |parked| parked.park(&keys.queues[0].queue, &into, CONSUMING, SOON).await);
    assert_eq!(third.await.unwrap(), Some(job("c")));
    let mut last = ask(3, 1, 0);
    last.queues[0].parked = Parked::Look;
    assert_eq!(ids(&cycle(&mut session, &lane, &last).await), ["c"]);
    assert_eq!(session.snapshot(CONSUMING).await.unwrap().completed, 1);
    assert!(cluster.nodes()[to].cli(&["EXISTS", &keys.completed()]) == "1");
}

#[tokio::test]
async fn shards_above_a_lowered_number_are_found_until_they_are_empty() {
    let addr = shared_server().await.addr().to_string();
    let prefix = fresh_prefix();
    let with = |shards: u16| {
        let tree = json!({ "key_prefix": prefix, "redis": { "addr": addr }, "worker": { "shards": shards } });
        Engine::new(&config(tree))
    };
    let (one, two, four) = (with(1), with(2), with(4));
    Watch::new(&four).write_down().await.unwrap();
    let keys = &four.shards[3];
    let mut session = four.session(keys);
    session
        .enqueue("1", &keys.seen("p"), Side::Left, &enqueue(&keys.queues[0].queue, &[job("a")]))
        .await
        .unwrap();
    for engine in [&two, &one] {
        Watch::new(engine).write_down().await.unwrap();
        let leftovers = layout::leftovers(engine).await.unwrap();
        let queues: Vec<_> = leftovers.iter().map(|keys| &keys.queues[0].queue).collect();
        assert_eq!(queues, [&keys.queues[0].queue], "also by keys without tags");
    }
    // A dead letter is the last that is left: it must be found until somebody has requeued or purged it.
    let letters = keys.dead_letters();
    session.enqueue("2", &keys.seen("p"), Side::Left, &enqueue(&letters, &[job("dead")])).await.unwrap();
    session.unlink(&keys.queues[0].queue).await.unwrap();
    assert_eq!(layout::leftovers(&one).await.unwrap().len(), 1);
    session.unlink(&letters).await.unwrap();
    // Who serves it because another does would do so for ever.
    let lane = session.register(&registration(60_000)).await.unwrap();
    assert!(layout::leftovers(&two).await.unwrap().is_empty());
    session
        .enqueue("3", &keys.seen("p"), Side::Left, &enqueue(&lane.lists[0].parked, &[job("b")]))
        .await
        .unwrap();
    assert_eq!(layout::leftovers(&two).await.unwrap().len(), 1, "but a lane that holds a job counts");
    session.unlink(&lane.lists[0].parked).await.unwrap();
    assert!(layout::leftovers(&two).await.unwrap().is_empty());
    // Somebody still works with the earlier layout.
    session
        .enqueue("4", &keys.seen("p"), Side::Left, &enqueue(&keys.queues[0].queue, &[job("late")]))
        .await
        .unwrap();
    for engine in [&two, &one] {
        Watch::new(engine).write_down().await.unwrap();
        assert_eq!(layout::leftovers(engine).await.unwrap().len(), 1, "it was never forgotten");
    }
}

#[tokio::test]
async fn a_layout_is_written_down_in_a_full_redis_and_never_made_narrower() {
    let server = RedisServer::start(Options::default()).await;
    let with = |shards: u16| {
        let redis = json!({ "addr": server.addr().to_string() });
        Engine::new(&config(json!({ "redis": redis, "worker": { "shards": shards } })))
    };
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let (two, four) = (with(2), with(4));
    let (mut narrow, mut wide) = (Watch::new(&two), Watch::new(&four));
    let both = tokio::join!(narrow.write_down(), wide.write_down());
    both.0.unwrap();
    both.1.unwrap();
    narrow.write_down().await.unwrap();
    assert_eq!(server.cli(&["GET", "{jobqueue:0}:layout"]), "v1 4 tagged");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["SET", "{jobqueue:0}:layout", "v2 4"]);
    let newer = narrow.write_down().await.unwrap_err();
    assert!(newer.to_string().contains("newer version"), "{newer}");
    assert_eq!(server.cli(&["GET", "{jobqueue:0}:layout"]), "v2 4");
}
