//! The number of shards changes while processes of the earlier layout still serve.
use crate::scene::{SOON, Scene, addr_of, api_options};
use e2e::{Options, Recorder, RedisServer, Worker, WorkerOptions, eventually};
use serde_json::json;

fn worker(scene: &Scene, recorder: &Recorder, shards: u16) -> WorkerOptions {
    let options = WorkerOptions::new("worker").redis(scene.server.addr()).recorded_by(recorder);
    options.env("PROTOCOL", "async").env("WORKER_SHARDS", shards)
}

/// Another API on the same Redis, ready to serve.
async fn api(scene: &mut Scene, shards: u16) -> Worker {
    let api = Worker::spawn(&api_options(scene.server.addr()).env("WORKER_SHARDS", shards));
    scene.addr = addr_of(&api).await;
    eventually(SOON, "the API to be ready", async || scene.get("/readyz").await.status == 200).await;
    api
}

async fn is(scene: &Scene, id: &str, status: &str) {
    eventually(SOON, &format!("{id} to be {status}"), async || {
        let answer = scene.get(&format!("/jobs/{id}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        if answer.body["status"] == status { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn what_a_process_of_the_earlier_layout_takes_is_seen_by_all_and_run() {
    for (before, after) in [(1, 3), (3, 1)] {
        let recorder = Recorder::start().await;
        let mut scene = Scene::with(|options| options.env("WORKER_SHARDS", before)).await;
        let old = scene.addr;
        // No workers, and nothing in any shard.
        let _new = api(&mut scene, after).await;
        let new = scene.addr;
        let mut ids = Vec::new();
        let mut take = async |scene: &mut Scene| {
            for (at, other) in [(old, new), (new, old)] {
                scene.addr = at;
                let id = scene.create("t").await;
                scene.addr = other;
                assert_eq!(scene.get(&format!("/jobs/{id}")).await.status, 200, "{before} -> {after}");
                ids.push(id);
            }
        };
        take(&mut scene).await;
        let worker = Worker::spawn(&worker(&scene, &recorder, after));
        worker.wait_for_log("Opened a lane").await;
        // All of it is run, and then there is nothing in the earlier layout again.
        recorder.wait_answered(2).await;
        take(&mut scene).await;
        for id in &ids {
            recorder.wait_started(id, 1).await;
            for addr in [old, new] {
                scene.addr = addr;
                is(&scene, id, "completed").await;
            }
        }
    }
}

#[tokio::test]
async fn a_worker_finds_what_is_pushed_in_another_layout_while_it_runs() {
    let recorder = Recorder::start().await;
    let scene = Scene::start().await;
    let worker = Worker::spawn(&worker(&scene, &recorder, 3));
    worker.wait_for_log("Opened a lane").await;
    let id = scene.create("t").await;
    worker.wait_for_log("Serving the shards of another layout too, they hold jobs").await;
    is(&scene, &id, "completed").await;
}

#[tokio::test]
async fn a_finished_job_is_found_after_the_number_of_shards_has_changed() {
    for (before, after) in [(1, 3), (3, 1)] {
        let recorder = Recorder::start().await;
        let server = RedisServer::start(Options::default()).await;
        let mut scene = Scene::on(server, |options| options.env("WORKER_SHARDS", before)).await;
        let mut ids = Vec::new();
        {
            let mut worker = Worker::spawn(&worker(&scene, &recorder, before));
            // One in each shard, as a rule; wherever they are.
            for _ in 0..9 {
                let created = scene.post("/jobs", &json!({ "type": "t" })).await;
                ids.push(created.body["id"].as_str().unwrap().to_owned());
            }
            for id in &ids {
                is(&scene, id, "completed").await;
            }
            worker.sigterm();
            assert!(worker.wait_exit(SOON).await.success());
            scene.api.kill9();
        }
        let next = Worker::spawn(&worker(&scene, &recorder, after));
        next.wait_for_log("Opened a lane").await;
        let _api = api(&mut scene, after).await;
        for id in &ids {
            let found = scene.get(&format!("/jobs/{id}")).await;
            assert_eq!(
                (found.status, &found.body["status"]),
                (200, &json!("completed")),
                "{before} -> {after}"
            );
        }
        let listed = scene.get("/jobs?status=completed").await;
        assert_eq!(listed.body["jobs"].as_array().unwrap().len(), 9, "{listed:?}");
    }
}
