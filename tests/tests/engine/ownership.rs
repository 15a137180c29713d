//! Whose a queue is, and its end.
use e2e::engine::{Bench, CONSUMING, fresh_prefix, job, shared_server};
use jobqueue::store::ownership::claim;
use redis::AsyncCommands as _;
use serde_json::json;

const ME: &str = "cluster/team/mine/1";
const YOU: &str = "cluster/team/yours/2";

#[tokio::test]
async fn the_first_to_claim_a_queue_owns_it() {
    let bench = Bench::new().await;
    let (mut session, key) = (bench.session(), bench.high().queue);
    assert_eq!(session.own(&key, ME, None).await.unwrap(), ME);
    assert_eq!(session.own(&key, YOU, None).await.unwrap(), ME);
    // As after a lost reply: asking again changes nothing.
    assert_eq!(session.own(&key, ME, None).await.unwrap(), ME);
}

#[tokio::test]
async fn a_look_shows_whose_the_queues_are_also_after_redis_has_lost_its_data() {
    let mut bench = Bench::new().await;
    let (mut session, registry) = (bench.session(), bench.keys.lanes());
    assert_eq!(session.snapshot(CONSUMING).await.unwrap().owner, "");
    session.own(&registry, ME, None).await.unwrap();
    assert_eq!(session.snapshot(CONSUMING).await.unwrap().owner, ME);
    bench.redis.del::<_, ()>(claim(&registry)).await.unwrap();
    assert_eq!(session.snapshot(CONSUMING).await.unwrap().owner, "");
}

#[tokio::test]
async fn an_owner_that_is_gone_is_replaced_only_if_it_still_stands_there() {
    let bench = Bench::new().await;
    let (mut session, key) = (bench.session(), bench.high().queue);
    session.own(&key, ME, None).await.unwrap();
    assert_eq!(session.own(&key, YOU, Some("cluster/team/other/3")).await.unwrap(), ME);
    assert_eq!(session.own(&key, YOU, Some(ME)).await.unwrap(), YOU);
    assert_eq!(session.own(&key, "cluster/team/late/4", Some(ME)).await.unwrap(), YOU);
}

#[tokio::test]
async fn the_end_of_a_queue_leaves_nothing_of_it_and_everything_of_others() {
    let prefix = fresh_prefix();
    let mut mine = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
    // Another whose prefix begins with mine.
    let mut other =
        Bench::on(shared_server().await, json!({ "key_prefix": format!("{prefix}:seen:more") })).await;
    for bench in [&mut mine, &mut other] {
        let (high, low) = (bench.high().queue, bench.low().queue);
        bench.push(&high, &[job("a"), job("b")]).await;
        bench.push(&low, &[job("c")]).await;
        bench.session().own(&high, ME, None).await.unwrap();
        bench.lane().await.reserve(1).await;
    }
    let seen = mine.session().keys.seen("inbox");
    let _: () = mine.redis.hset(&seen, "file", "state").await.unwrap();
    mine.session().delete_all().await.unwrap();
    let left: Vec<String> = mine.redis.keys(format!("{prefix}:*")).await.unwrap();
    let of_mine: Vec<&String> =
        left.iter().filter(|key| !key.starts_with(&format!("{prefix}:seen:more:"))).collect();
    assert!(of_mine.is_empty(), "{of_mine:?}");
    assert!(left.contains(&claim(&other.high().queue)));
    assert_eq!(other.census().await.len(), 3);
}

#[tokio::test]
async fn jobs_are_counted_wherever_they_are_and_for_the_queues_asked_about() {
    let mut bench = Bench::new().await;
    let (high, low) = (bench.high().queue, bench.low().queue);
    bench.push(&high, &[job("a"), job("b"), job("c")]).await;
    bench.push(&low, &[job("d")]).await;
    let _: () = bench.redis.lpush(bench.high().suspects, "suspected").await.unwrap();
    let _: () = bench.redis.zadd(bench.high().delayed, "x|delayed", 1).await.unwrap();
    let _: () = bench.redis.lpush(bench.session().keys.dead_letters(), "dead").await.unwrap();
    let mut session = bench.session();
    assert_eq!(session.jobs_left(true).await.unwrap(), 7);
    assert_eq!(session.jobs_left(false).await.unwrap(), 6);
    let mut lane = bench.lane().await;
    lane.reserve(2).await;
    assert_eq!(session.jobs_left(false).await.unwrap(), 6, "two of them are held");
    session.keys.queues.retain(|queue| queue.name == "low");
    assert_eq!(session.jobs_left(false).await.unwrap(), 1);
}
