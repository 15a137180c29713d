//! Jobs that a change of the spec would leave where nobody serves them: a queue is taken out of `spec.queues`, or another
//! Redis is named. Such a change waits until there are none: the workers go on with the configuration that they have,
//! and with its last job the change takes place by itself.
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jobqueue::config::Config;
use jobqueue::connect::Connector;
use jobqueue::keys::Keys;
use jobqueue::store::{Session, StoreError, ownership::claim};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use serde_json::Value;

use super::build::{self, CONFIG_HASH, Children, DEPLOYMENT, is_managed};
use super::config::REDIS_SECRET_DIR;
use super::names::Names;
use super::resolve::Resolved;
use super::rollout::Rollout;
use super::{Context, Error};
use crate::api::conditions::REDIS_REACHABLE;
use crate::api::v1alpha1::{JobQueue, Protocol};
use crate::observer::Target;

/// Whoever wants the change at once, and the jobs to stay behind, names what they are left in.
pub const LEAVE: &str = "jobqueue.dev/leave-jobs";

/// How long a Redis may take to answer.
const ASKING: Duration = Duration::from_secs(1);

/// What workers serve now and would not serve any more.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Some queues, by name.
    Queues(Vec<String>),
    /// All of them: the Redis is another one, or the same under another name.
    Redis(String),
}

impl Left {
    /// The value of the annotation that lets the change take place.
    fn word(&self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Queues(names) => names.join(","),
            Self::Redis(address) => address.clone(),
        }
    }
}

/// What a change from one configuration to another leaves behind. A managed Redis is always the same.
pub fn left(now: &Config, then: &Config, managed: bool) -> Left {
    if !managed && place(now) != place(then) {
        return Left::Redis(place(now));
    }
    let gone = taken_out(now, then);
    if gone.is_empty() { Left::Nothing } else { Left::Queues(gone) }
}

/// Where a Redis is, in one word. A master of the same name that other Sentinels know is another one.
pub(super) fn place(config: &Config) -> String {
    let redis = &config.redis;
    let master = &redis.sentinel.master;
    if master.is_empty() {
        return format!("{}/{}", redis.addr, redis.db);
    }
    let mut sentinels = redis.sentinel.addrs.clone();
    sentinels.sort();
    format!("{master}@{}/{}", sentinels.join(","), redis.db)
}

/// Whether two configurations name the same Redis in the same words. A managed one is always the same.
pub fn is_same_place(now: &Config, then: &Config, managed: bool) -> bool {
    managed || place(now) == place(then)
}

/// The names of the queues whose lists are not served any more.
pub fn taken_out(now: &Config, then: &Config) -> Vec<String> {
    let keys = |config: &Config| -> BTreeMap<String, String> {
        let worker = &config.worker;
        let named = worker.priorities.iter();
        named.filter_map(|name| Some((worker.queues.get(name)?.clone(), name.clone()))).collect()
    };
    let kept = keys(then);
    keys(now).into_iter().filter(|(key, _)| !kept.contains_key(key)).map(|(_, name)| name).collect()
}

impl Context {
    /// Refuses a change that would leave jobs behind; `live` is the configuration that the workers have.
    pub(super) async fn leave_no_jobs(
        &self,
        queue: &JobQueue,
        children: &Children,
        resolved: &Resolved,
        live: Option<&DynamicObject>,
    ) -> Result<(), Error> {
        let then = &children.rendered.config;
        // Sidekiq's queues are everybody's.
        let Some(now) = live.and_then(served).filter(|_| queue.spec.protocol != Protocol::Sidekiq) else {
            return Ok(());
        };
        let left = left(&now, then, is_managed(queue));
        if left == Left::Nothing || queue.annotations().get(LEAVE) == Some(&left.word()) {
            return Ok(());
        }
        // Before the API server is asked for what it takes: who has no turn comes back, and would ask again.
        let _turn = self.pace.ask().ok_or(Error::Busy)?;
        let Some(before) = self.before(queue, &now, then, resolved, live).await? else {
            // It is put right, or its change was interrupted.
            return Ok(());
        };
        if matches!(left, Left::Redis(_)) {
            let after = self.target(queue, then, resolved.redis_secret.as_ref(), before.asked.clone());
            if is_same(&after).await.unwrap_or(false) {
                return Ok(());
            }
        }
        let name = queue.name_any();
        let anyway = format!("kubectl annotate jobqueue {name} {LEAVE}='{}'", left.word());
        let message = match (count(&before, &left).await, &left) {
            (Ok(0), _) => return Ok(()),
            (Ok(jobs), Left::Redis(address)) => format!(
                "{jobs} jobs and dead letters are in Redis {address}, which spec.redis.external does not name any more: workers go on \
                 there, and the change takes place when there are none; to leave them behind: {anyway}"
            ),
            (Ok(jobs), _) => format!(
                "{jobs} jobs are in queues that spec.queues does not name any more ({}): workers go on with them, and the change takes \
                 place when there are none; to leave them behind: {anyway}",
                left.word()
            ),
            (Err(error), _) if !was_reachable(queue) => {
                // Whoever names another Redis because this one is gone, or was never there, is not to be held up.
                let note = format!("Did not ask {} for jobs that are left behind: {error}", left.word());
                self.publish(queue, EventType::Warning, "JobsMayBeLeft", "Reconcile", note).await;
                return Ok(());
            }
            (Err(error), _) => format!(
                "whether jobs would be left behind in {} cannot be asked: {error}; to go on without them: {anyway}",
                left.word()
            ),
        };
        // Workers are scaled by what they serve, also by an operator that has just begun to lead.
        self.observer.watch(&ObjectRef::from_obj(queue), before);
        Err(Error::Waits { reason: "JobsLeftBehind", message })
    }

    /// What workers serve while they go on with the configuration that they have, `now`. A Redis that the spec names still
    /// is reached as the spec says. For any other one the workers' Deployment must vouch: whoever may change a `ConfigMap`
    /// must not choose where we send the credentials of Redis.
    pub(super) async fn before(
        &self,
        queue: &JobQueue,
        now: &Config,
        then: &Config,
        resolved: &Resolved,
        live: Option<&DynamicObject>,
    ) -> Result<Option<Target>, Error> {
        let names = Names::of(queue);
        let deployment = self.dynamic(&DEPLOYMENT, queue).get_opt(&names.part("worker")).await?;
        let deployment =
            deployment.and_then(|deployment| serde_json::to_value(deployment).ok()).unwrap_or_default();
        let asked = Rollout::of(&deployment).asked;
        if is_same_place(now, then, is_managed(queue)) {
            let config = Config { redis: then.redis.clone(), ..now.clone() };
            return Ok(Some(self.target(queue, &config, resolved.redis_secret.as_ref(), asked)));
        }
        if !vouches_for(&deployment, live) {
            return Ok(None);
        }
        let secret = match mounted(&deployment["spec"]["template"]["spec"]) {
            Some(name) => self.find_secret(&names.namespace, name).await?,
            None => None,
        };
        Ok(Some(self.target(queue, now, secret.as_ref(), asked)))
    }
}

/// Whether a Deployment was made for the configuration in this `ConfigMap`.
fn vouches_for(deployment: &Value, config: Option<&DynamicObject>) -> bool {
    let text = config.map_or(&Value::Null, |config| &config.data["data"]["config.yaml"]);
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    text.is_string() && annotations[CONFIG_HASH] == build::hash(text)
}

/// The configuration in a `ConfigMap` of ours; one that somebody has spoilt says nothing.
pub(super) fn served(live: &DynamicObject) -> Option<Config> {
    let text = live.data["data"]["config.yaml"].as_str()?;
    let tree: Value = serde_saphyr::from_str(text).ok()?;
    Config::from_value(tree).ok().map(|loaded| loaded.config)
}

/// The name of the Secret with Redis' credentials in a pod of ours.
fn mounted(pod: &Value) -> Option<&str> {
    let mounts = pod["containers"][0]["volumeMounts"].as_array()?;
    let mount = mounts.iter().find(|mount| mount["mountPath"] == REDIS_SECRET_DIR)?;
    let volumes = pod["volumes"].as_array()?;
    volumes.iter().find(|volume| volume["name"] == mount["name"])?["secret"]["secretName"].as_str()
}

fn was_reachable(queue: &JobQueue) -> bool {
    let conditions = queue.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == REDIS_REACHABLE && one.status == "True")
}

pub(super) fn session(target: &Target, shard: &Keys) -> Session {
    Session::new(&Connector::new(target.settings.clone()), shard, ASKING)
}

/// Whether the queue's claim stands in this Redis already: then it is the one that workers use now, by another name.
async fn is_same(target: &Target) -> Result<bool, StoreError> {
    let Some(shard) = target.shards.first() else { return Ok(false) };
    let claimed = session(target, shard).get(&claim(&shard.lanes())).await?;
    Ok(claimed.as_ref() == Some(&target.owner))
}

/// How many jobs would be left behind; in another Redis dead letters would be too.
async fn count(target: &Target, left: &Left) -> Result<u64, StoreError> {
    let mut jobs = 0;
    for shard in &target.shards {
        let mut session = session(target, shard);
        if let Left::Queues(names) = left {
            let names: HashSet<&String> = names.iter().collect();
            session.keys.queues.retain(|queue| names.contains(&queue.name));
        }
        jobs += session.jobs_left(matches!(left, Left::Redis(_))).await?;
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(tree: Value) -> Config {
        Config::from_value(tree).unwrap().config
    }

    fn queues(names: &[&str]) -> Config {
        let keys: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!(format!("list:{name}")))).collect();
        config(
            json!({ "worker": { "priorities": names, "queues": keys }, "producer": { "default_priority": names[0] } }),
        )
    }

    #[test]
    fn queues_that_are_added_or_change_places_leave_nothing() {
        assert_eq!(left(&queues(&["a", "b"]), &queues(&["b", "a", "c"]), false), Left::Nothing);
    }

    #[test]
    fn a_queue_that_is_removed_is_left() {
        let gone = left(&queues(&["a", "b", "c"]), &queues(&["b"]), true);
        assert_eq!(gone, Left::Queues(vec!["a".into(), "c".into()]));
        assert_eq!(gone.word(), "a,c");
    }

    #[test]
    fn another_address_database_or_master_is_another_redis() {
        let at = |tree: Value| config(json!({ "redis": tree }));
        let now = at(json!({ "addr": "one:6379" }));
        assert_eq!(left(&now, &at(json!({ "addr": "two:6379" })), false), Left::Redis("one:6379/0".into()));
        assert_eq!(left(&now, &at(json!({ "addr": "one:6379", "db": 1 })), false).word(), "one:6379/0");
        let sentinel = |master: &str| at(json!({ "sentinel": { "master": master, "addrs": ["one:26379"] } }));
        assert_eq!(
            left(&sentinel("main"), &sentinel("other"), false),
            Left::Redis("main@one:26379/0".into())
        );
        assert_eq!(left(&now, &at(json!({ "addr": "one:6379", "username": "other" })), false), Left::Nothing);
        assert_eq!(left(&now, &at(json!({ "addr": "two:6379" })), true), Left::Nothing, "a managed one");
    }

    #[test]
    fn a_master_of_the_same_name_behind_other_sentinels_is_another_redis() {
        let behind =
            |addrs: Value| config(json!({ "redis": { "sentinel": { "master": "main", "addrs": addrs } } }));
        let now = behind(json!(["a:26379", "b:26379"]));
        let word = "main@a:26379,b:26379/0";
        assert_eq!(left(&now, &behind(json!(["c:26379"])), false), Left::Redis(word.into()));
        assert_eq!(
            left(&now, &behind(json!(["b:26379", "a:26379"])), false),
            Left::Nothing,
            "in another order"
        );
    }

    #[test]
    fn a_configuration_that_no_deployment_was_made_for_says_nothing() {
        let config = |text: &str| -> DynamicObject {
            serde_json::from_value(json!({ "metadata": {}, "data": { "config.yaml": text } })).unwrap()
        };
        let deployment = json!({ "spec": { "template": { "metadata": { "annotations": {
            "jobqueue.dev/config-hash": build::hash(&json!("redis: {addr: one:6379}")) } } } } });
        assert!(vouches_for(&deployment, Some(&config("redis: {addr: one:6379}"))));
        assert!(!vouches_for(&deployment, Some(&config("redis: {addr: mine:6379}"))));
        assert!(!vouches_for(&Value::Null, Some(&config("redis: {addr: one:6379}"))));
        assert!(!vouches_for(&deployment, None));
    }

    #[test]
    fn the_secret_is_the_one_that_the_workers_have_mounted() {
        let pod = json!({ "containers": [{ "volumeMounts": [{ "name": "r", "mountPath": REDIS_SECRET_DIR }] }],
            "volumes": [{ "name": "other" }, { "name": "r", "secret": { "secretName": "login" } }] });
        assert_eq!(mounted(&pod), Some("login"));
        assert_eq!(mounted(&json!({})), None);
    }
}
