//! A cluster that has no volumes to give.
use std::process::Command;

use e2e::kubernetes::{Namespace, kubectl, on_the_test_cluster};
use serde_json::Value;

use crate::alone;

const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Classes that are no default, for as long as this lives: other tests need one, however this one ends.
struct NoDefault(Vec<String>);

impl NoDefault {
    async fn begin() -> Self {
        let found = kubectl(&["get", "storageclasses", "-o", "json"]).await.expect("storage classes");
        let list: Value = serde_json::from_str(&found).expect("JSON");
        let classes = list["items"].as_array().cloned().unwrap_or_default();
        let defaults = classes.iter().filter(|class| class["metadata"]["annotations"][DEFAULT] == "true");
        let name = |class: &Value| class["metadata"]["name"].as_str().map(str::to_owned);
        let guard = Self(defaults.filter_map(name).collect());
        guard.set(false);
        guard
    }

    fn set(&self, default: bool) {
        for class in &self.0 {
            let annotation = format!("{DEFAULT}={default}");
            let arguments = ["annotate", "storageclass", class, &annotation, "--overwrite"];
            let done = Command::new("kubectl").args(arguments).output().expect("kubectl");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
    }
}

impl Drop for NoDefault {
    fn drop(&mut self) {
        self.set(true);
    }
}

#[tokio::test]
async fn without_a_storage_class_a_queue_says_what_to_do_until_there_is_one() {
    // Nobody wants that done to a cluster of theirs.
    if !on_the_test_cluster() {
        return;
    }
    let _turn = alone().await;
    let space = Namespace::create("classless").await;
    let without = NoDefault::begin().await;
    space.queue("orders", "{}").await;
    let stalled = space.await_condition("orders", "Stalled", "True/NoStorageClass").await;
    for way_out in ["storage.storageClassName", "{ephemeral: {}}"] {
        assert!(stalled.contains(way_out), "{stalled}");
    }
    assert!(space.find("pvc", "orders-redis").await.is_none(), "it would stay pending for ever");
    space.queue("fleeting", "{redis: {managed: {storage: {ephemeral: {}}}}}").await;
    space.await_ready("fleeting").await;
    drop(without);
    space.await_ready("orders").await;
    space.delete().await;
}
