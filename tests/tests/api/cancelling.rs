//! Cancelling marks; it never searches.
use crate::scene::{Scene, command};
use serde_json::{Value, json};

#[tokio::test]
async fn a_waiting_or_running_job_is_cancelled_and_stays_so() {
    let scene = Scene::start().await;
    for status in ["pending", "running"] {
        let id = scene.create("t").await;
        if status == "running" {
            scene.move_to(&id, "running").await;
        }
        let cancelled = scene.delete(&format!("/jobs/{id}")).await;
        assert_eq!(
            (cancelled.status, &cancelled.body["status"]),
            (200, &json!("cancelled")),
            "{cancelled:?}"
        );
        assert!(cancelled.body["completed_at"].is_string(), "{cancelled:?}");
        let again = scene.delete(&format!("/jobs/{id}")).await;
        assert_eq!((again.status, &again.body), (200, &cancelled.body), "once more changes nothing");
        let mut redis = scene.redis().await;
        for (index, there) in [(status, false), ("cancelled", true)] {
            let score: Value =
                match command::<Option<f64>>(&mut redis, &["ZSCORE", &format!("jobs:index:{index}"), &id])
                    .await
                {
                    Some(score) => json!(score),
                    None => Value::Null,
                };
            assert_eq!(!score.is_null(), there, "{index}: {score}");
        }
        let ttl: i64 = command(&mut redis, &["TTL", &format!("jobs:data:{id}")]).await;
        assert_eq!(ttl, -1, "it lapses when its id has left the queue");
    }
    assert_eq!(scene.queued().await.len(), 2, "the queue is not searched");
}

#[tokio::test]
async fn a_job_that_is_over_cannot_be_cancelled() {
    let scene = Scene::start().await;
    for status in ["completed", "failed"] {
        let id = scene.create("t").await;
        scene.move_to(&id, status).await;
        scene.delete(&format!("/jobs/{id}")).await.is_problem(409, "already_finished");
        assert_eq!(scene.get(&format!("/jobs/{id}")).await.body["status"], status);
    }
    scene.delete("/jobs/unknown").await.is_problem(404, "job_not_found");
}

#[tokio::test]
async fn a_cancel_is_told_to_whoever_waits() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    let path = format!("/jobs/{id}?wait=30s");
    let (seen, ()) = tokio::join!(scene.get(&path), async {
        crate::waiting::somebody_waits(&scene).await;
        scene.delete(&format!("/jobs/{id}")).await;
    });
    assert_eq!(seen.body["status"], "cancelled");
}

#[tokio::test]
async fn a_cancel_races_with_a_worker_and_one_of_them_wins() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    for _ in 0..200 {
        let id = scene.create("t").await;
        let key = format!("jobs:data:{id}");
        let raw: String = command(&mut redis, &["GET", &key]).await;
        let finished = raw.replace(r#""status":"pending""#, r#""status":"completed""#);
        // What a worker does: its bytes, if the job is still what it was.
        let swap = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0";
        let mut other = redis.clone();
        let path = format!("/jobs/{id}");
        let words = ["EVAL", swap, "1", &key, &raw, &finished];
        let (cancelled, won) = tokio::join!(scene.delete(&path), command::<i64>(&mut other, &words));
        let expected = if won == 1 { (409, "completed") } else { (200, "cancelled") };
        let now = scene.get(&path).await;
        assert_eq!((cancelled.status, now.body["status"].as_str().unwrap()), expected);
    }
}
