//! The producer with its volume.
use serde_json::{Value, json};

use super::part::part;
use super::template::Image;
use super::worker::{mount, pod, resources};
use super::{Child, DEPLOYMENT, Error, Plan};

pub(super) fn deployment(plan: &Plan) -> Result<Child, Error> {
    let Some(producer) = &plan.queue.spec.producer else {
        return Ok(Child::new(&DEPLOYMENT, plan.names.part("producer"), None));
    };
    let mut pod = pod(plan, "producer", "--role=producer");
    pod["spec"]["containers"][0]["resources"] = resources(None, Image::Ours);
    let path = producer.scan_dir.clone().unwrap_or_else(|| "/data".into());
    mount(&mut pod, "jobqueue-data", &path, &Value::Object(producer.volume.clone()));
    // One, and the old one gone before the new one starts: the volume may be attached to one node only.
    part(plan, "producer", Some(1), &json!({ "type": "Recreate" }), pod, producer.template.as_ref())
}
