//! What kubectl tells somebody who has not read our documentation.
use e2e::kubernetes::{Namespace, kubectl};

#[tokio::test]
async fn kubectl_tells_a_newcomer_what_is_going_on() {
    let space = Namespace::create("newcomer").await;
    space.queue("hello", "{}").await;
    space.await_ready("hello").await;
    let get = space.kubectl(&["get", "jobq"]).await.unwrap();
    for word in ["READY", "WAITING", "RUNNING", "WORKERS", "AGE", "hello", "True", "0/0"] {
        assert!(get.contains(word), "{word} in: {get}");
    }
    let wide = space.kubectl(&["get", "jobqueues", "-o", "wide"]).await.unwrap();
    for word in ["DEAD", "PROTOCOL", "files", "No jobs, no workers: they start with the first job"] {
        assert!(wide.contains(word), "{word} in: {wide}");
    }
    let describe = space.kubectl(&["describe", "jobq", "hello"]).await.unwrap();
    for word in [
        "Redis answers",
        "Jobs are kept on a volume",
        "No workers are wanted",
        "Between 0 and 10 workers, one for each 100 jobs",
        "jobqueue:low_priority",
        "Events:",
        "Ready",
        "jobqueue-operator",
    ] {
        assert!(describe.contains(word), "{word} in: {describe}");
    }
    space.delete().await;
}

#[tokio::test]
async fn kubectl_explain_reads_like_documentation() {
    let cases = [
        ("jobqueue", "A queue of background jobs, the workers that run them, and the Redis that keeps them."),
        ("jobqueue.spec.scaling", "How many workers there are, and when that changes."),
        ("jobqueue.spec.scaling", "The most workers in mode Auto."),
        ("jobqueue.spec.scaling.mode", "the number of workers follows the number of jobs"),
        ("jobqueue.spec.redis.external", "A Redis that exists already"),
        ("jobqueue.spec.worker.app", "Your application as a container beside the worker."),
        ("jobqueue.status", "conditions"),
    ];
    for (path, words) in cases {
        let text = kubectl(&["explain", path]).await.unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{path}: {text}");
    }
}
