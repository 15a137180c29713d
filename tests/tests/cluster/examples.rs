//! What strangers apply first: the API server must accept it, whatever images it names.
use std::path::Path;

use e2e::kubernetes::{Namespace, OPERATOR_NAMESPACE};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[tokio::test]
async fn every_example_is_accepted() {
    let space = Namespace::create("examples").await;
    let files = std::fs::read_dir(Path::new(ROOT).join("examples")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let examples: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    assert!(examples.len() > 5, "{examples:?}");
    for path in examples {
        let path = path.to_str().unwrap();
        let answer = space.kubectl(&["apply", "--dry-run=server", "-f", path]).await;
        let said = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(said.contains("jobqueue.jobqueue.dev/"), "{path} has no JobQueue: {said}");
    }
    space.delete().await;
}

#[tokio::test]
async fn the_manifest_is_accepted() {
    let space = Namespace::create("manifest").await;
    let text = std::fs::read_to_string(Path::new(ROOT).join("deploy/jobqueue.yaml")).unwrap();
    // The chart's operator is in the namespace that the manifest names, under another release: selectors never change.
    let text = text
        .replace(&format!("namespace: {OPERATOR_NAMESPACE}"), &format!("namespace: {}", space.name))
        .replace(&format!("name: {OPERATOR_NAMESPACE}"), &format!("name: {}", space.name));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", path];
    let said = space.kubectl(&apply).await.unwrap_or_else(|error| panic!("{error}"));
    for part in ["customresourcedefinition", "deployment.apps/jobqueue-operator", "clusterrolebinding"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    space.delete().await;
}
