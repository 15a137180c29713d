//! The Redis that is run for a queue.
use e2e::audit::{Audit, Request};
use e2e::kubernetes::{LOW, Namespace, given, on_the_test_cluster, patiently};

#[tokio::test]
async fn a_redis_that_cannot_start_makes_way_for_one_that_can() {
    let space = Namespace::create("stuck").await;
    space.queue("orders", "{redis: {managed: {image: 'localhost/none:1'}}}").await;
    let waiting = async || {
        let pod = space.find("pod", "orders-redis-0").await.unwrap_or_default();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone()
    };
    patiently("a pod without an image", async || {
        let reason = waiting().await;
        if reason == "ErrImagePull" || reason == "ImagePullBackOff" { Ok(()) } else { Err(reason) }
    })
    .await;
    let image = format!(r#"{{"spec": {{"redis": {{"managed": {{"image": "{}"}}}}}}}}"#, given("REDIS_IMAGE"));
    space.patch("orders", &image).await;
    space.await_ready("orders").await;
    space.delete().await;
}

#[tokio::test]
async fn a_redis_that_never_ran_takes_the_image_that_the_operator_has_now() {
    let space = Namespace::create("never-ran").await;
    space.queue("orders", "{redis: {managed: {image: 'localhost/none:1'}}}").await;
    patiently("a pod without an image", async || {
        let pod = space.find("pod", "orders-redis-0").await.unwrap_or_default();
        let reason = pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
        if reason == "ErrImagePull" || reason == "ImagePullBackOff" { Ok(()) } else { Err(reason) }
    })
    .await;
    // As if that image had been the operator's own when the queue was created.
    space.patch("orders", r#"{"spec": {"redis": null}}"#).await;
    space.await_ready("orders").await;
    let image =
        space.get("statefulset", "orders-redis").await["spec"]["template"]["spec"]["containers"][0]["image"]
            .clone();
    assert_eq!(image, given("REDIS_IMAGE"));
    space.delete().await;
}

#[tokio::test]
async fn a_size_in_other_words_is_written_once() {
    if !on_the_test_cluster() {
        return;
    }
    let space = Namespace::create("words").await;
    space.queue("orders", "{redis: {managed: {storage: {size: 1024Mi}}}}").await;
    space.await_ready("orders").await;
    let claim = space.get("pvc", "orders-redis").await;
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi", "Kubernetes has words of its own");
    let audit = Audit::begin().await;
    // Reconciled, and so compared, several times.
    for number in 1..=3 {
        space.patch("orders", &format!(r#"{{"spec": {{"worker": {{"concurrency": {number}}}}}}}"#)).await;
        patiently("the change", async || {
            let config = space.get("configmap", "orders-config").await["data"]["config.yaml"].clone();
            config.as_str().unwrap_or_default().contains(&format!("count: {number}"))
        })
        .await;
    }
    let redis = space.managed("orders").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    let asked = audit
        .requests()
        .into_iter()
        .filter(|request| request.namespace == space.name && request.resource == "/persistentvolumeclaims");
    let (writes, reads): (Vec<_>, Vec<_>) = asked.partition(Request::is_write);
    assert!(reads.len() >= 3 && writes.is_empty(), "{} reads, {writes:?}", reads.len());
    space.delete().await;
}

#[tokio::test]
async fn jobs_that_are_kept_nowhere_are_not_durable() {
    let space = Namespace::create("ephemeral").await;
    space.queue("orders", "{redis: {managed: {storage: {ephemeral: {}}}}}").await;
    space.await_ready("orders").await;
    let durable = space.condition("orders", "Durable").await;
    assert!(durable.starts_with("False/Ephemeral") && durable.contains("all jobs are lost"), "{durable}");
    assert!(space.find("pvc", "orders-redis").await.is_none());
    let redis = space.managed("orders").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    space.queue("kept", "{}").await;
    space.await_condition("kept", "Durable", "True/Volume").await;
    space.delete().await;
}

#[tokio::test]
async fn a_volume_that_cannot_be_changed_is_told_by_the_field_that_asks_for_it() {
    let space = Namespace::create("fixed").await;
    let sized = |size: &str| format!("{{redis: {{managed: {{storage: {{size: {size}}}}}}}}}");
    space.queue("orders", &sized("2Gi")).await;
    space.await_ready("orders").await;
    space.queue("orders", &sized("1Gi")).await;
    let told = space.await_condition("orders", "Stalled", "True/VolumeUnchangeable").await;
    assert!(told.contains("spec.redis.managed.storage.size back to 2Gi"), "{told}");
    space.queue("orders", &sized("2Gi")).await;
    space.await_ready("orders").await;
    space.delete().await;
}
