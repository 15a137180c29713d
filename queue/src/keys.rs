//! Every key name, in one place. With one shard and no Cluster, keys are as configured; otherwise shard n's
//! keys are `{<prefix>:<n>}:` + what follows `<prefix>:`, a complete set in one hash slot.
use std::fmt::Write as _;

use crate::store::ownership::claim;

/// The names of one queue of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueKeys {
    /// What people call it: `high`.
    pub name: String,
    /// The waiting list.
    pub queue: String,
    /// Jobs whose process died while it held them: part of the queue, served before it.
    pub suspects: String,
    /// Jobs that wait for their backoff to pass.
    pub delayed: String,
    /// Finished jobs.
    pub completed: String,
    /// Jobs that are given up.
    pub dead_letters: String,
    /// Figures for the autoscaler: reserved, done, failed, `busy_ms`.
    pub counters: String,
    /// Where jobs are kept that the lists only name (protocol `async`).
    pub jobs: JobKeys,
}

/// The names of jobs that are kept apart from the lists, which hold only their ids: protocol `async`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKeys {
    /// What they all begin with: `jobs:`, or `{jobs:3}:` for a shard.
    base: String,
}

impl JobKeys {
    /// Keys that begin with `base`.
    pub fn new(base: impl Into<String>) -> Self {
        Self { base: base.into() }
    }
    /// A job: a string that holds its JSON.
    pub fn data(&self, id: &str) -> String {
        format!("{}data:{id}", self.base)
    }
    /// The ids of all jobs of one status, by the time they entered it.
    pub fn index(&self, status: &str) -> String {
        format!("{}index:{status}", self.base)
    }
    /// The channel on which every change of a status is published: `<id> <status>`.
    pub fn events(&self) -> String {
        format!("{}events", self.base)
    }
    /// Which job was created under an idempotency key, by the hash of that key in hex.
    pub fn idem(&self, hash: &str) -> String {
        format!("{}idem:{hash}", self.base)
    }
}

/// The names that a shard's keys are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// The prefix of every key.
    pub prefix: String,
    /// (name, key) in the order of priority.
    pub queues: Vec<(String, String)>,
    /// `%s` = the lane's id and queue.
    pub processing_pattern: String,
    /// `%s` = the lane's id.
    pub heartbeat_pattern: String,
    /// `%s` = the queue's name.
    pub delayed_pattern: String,
    /// `%s` = the queue's name; `None` = behind the queue's own key, which is then ours.
    pub suspects_pattern: Option<String>,
    /// The completed list.
    pub completed: String,
    /// The dead letters.
    pub dead_letters: String,
    /// They are a sorted set, by the time they were given up, and not a list.
    pub dead_letters_sorted: bool,
    /// A set of the names of queues that nobody may fetch from, where another program has one.
    pub paused_queues: Option<String>,
    /// The queues hold only the names of jobs; the completed are then a sorted set of names.
    pub by_name: bool,
    /// How many shards.
    pub shards: u16,
    /// Whether keys carry a hash tag even with one shard.
    pub cluster: bool,
}

/// The keys of one shard.
#[derive(Debug, Clone)]
pub struct Keys {
    naming: Naming,
    shard: u16,
    /// In the order of priority.
    pub queues: Vec<QueueKeys>,
}

impl Keys {
    /// The keys of shard `shard`.
    pub fn new(naming: &Naming, shard: u16) -> Self {
        let mut keys = Self { naming: naming.clone(), shard, queues: Vec::new() };
        let queue = |(name, key): &(String, String)| QueueKeys {
            name: name.clone(),
            queue: keys.tagged(key),
            suspects: match &naming.suspects_pattern {
                Some(pattern) => keys.tagged(&pattern.replace("%s", name)),
                None => format!("{}:suspects", keys.tagged(key)),
            },
            delayed: keys.tagged(&naming.delayed_pattern.replace("%s", name)),
            completed: keys.tagged(&naming.completed),
            dead_letters: keys.tagged(&naming.dead_letters),
            counters: keys.own("counters"),
            jobs: keys.jobs(),
        };
        keys.queues = naming.queues.iter().map(queue).collect();
        keys
    }

    /// Every shard's keys.
    pub fn all(naming: &Naming) -> Vec<Self> {
        (0..naming.shards).map(|shard| Self::new(naming, shard)).collect()
    }

    /// The shard a job belongs to: consistent (jump) hash of its id, so that raising N moves only 1/N of them.
    pub fn shard_of(job_id: &str, shards: u16) -> u16 {
        let mut key = fnv1a(job_id.as_bytes());
        let (mut bucket, mut next) = (0i64, 0i64);
        while next < i64::from(shards) {
            bucket = next;
            key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                reason = "Lamping and Veach's jump hash is defined on doubles; all values are below 2^31"
            )]
            let jumped = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
            next = jumped;
        }
        u16::try_from(bucket).unwrap_or(0)
    }

    /// A key whose hash slot is the shard's.
    pub fn slot_key(&self) -> String {
        self.own("lanes")
    }

    fn tagged(&self, key: &str) -> String {
        if self.naming.shards == 1 && !self.naming.cluster {
            return key.to_owned();
        }
        let prefix = &self.naming.prefix;
        let rest = key.strip_prefix(prefix.as_str()).map_or(key, |rest| rest.trim_start_matches(':'));
        format!("{{{prefix}:{}}}:{rest}", self.shard)
    }

    fn own(&self, name: &str) -> String {
        self.tagged(&format!("{}:{name}", self.naming.prefix))
    }

    /// Where jobs are kept that the lists only name.
    pub fn jobs(&self) -> JobKeys {
        JobKeys::new(self.own(""))
    }

    /// The registry of lanes: a sorted set scored by lease expiry, so a reaper reads only expired ones.
    pub fn lanes(&self) -> String {
        self.own("lanes")
    }
    /// Numbers lanes; never used twice.
    pub fn lane_seq(&self) -> String {
        self.own("lane_seq")
    }
    /// Fenced lanes whose lists are being emptied.
    pub fn reaping(&self) -> String {
        self.own("reaping")
    }
    /// While it exists, nobody reserves.
    pub fn paused(&self) -> String {
        self.own("paused")
    }
    /// The names of queues that nobody may fetch from, where another program has such a set.
    pub fn paused_queues(&self) -> Option<String> {
        self.naming.paused_queues.as_deref().map(|key| self.tagged(key))
    }
    /// While it exists, this process reserves nothing.
    pub fn quiet(&self, process: &str) -> String {
        self.own(&format!("quiet:{process}"))
    }
    /// While it exists, the operator reaps and workers do not.
    pub fn central(&self) -> String {
        self.own("central")
    }
    /// Why a process' handler died.
    pub fn handler_death(&self, process: &str) -> String {
        self.own(&format!("handler-death:{process}"))
    }
    /// While it exists, the breaker of this queue was open a cooldown ago or later, as its workers said.
    pub fn breaker(&self, queue: &str) -> String {
        self.own(&format!("breaker:{queue}"))
    }
    /// Who exports the queue-wide gauges.
    pub fn gauges(&self) -> String {
        self.own("gauges")
    }
    /// Figures for the autoscaler.
    pub fn counters(&self) -> String {
        self.own("counters")
    }
    /// The number of shards and the layout version.
    pub fn layout(&self) -> String {
        self.own("layout")
    }
    /// What a producer has enqueued already.
    pub fn seen(&self, producer: &str) -> String {
        self.own(&format!("seen:{producer}"))
    }
    /// The layout in which a producer has written down what it has enqueued.
    pub fn seen_layout(&self, producer: &str) -> String {
        self.own(&format!("seen-layout:{producer}"))
    }
    /// The places that what a producer has enqueued comes from.
    pub fn seen_in(&self, producer: &str) -> String {
        self.own(&format!("seen-in:{producer}"))
    }
    /// The producers' rate limit, under the name it was given: of the first shard, for all of them.
    pub fn rate_limit(&self, key: &str) -> String {
        self.tagged(key)
    }
    /// The mark of one enqueue call.
    pub fn enqueued(&self, call: &str) -> String {
        self.own(&format!("enqueued:{call}"))
    }
    /// The completed list.
    pub fn completed(&self) -> String {
        self.tagged(&self.naming.completed)
    }
    /// The dead letters.
    pub fn dead_letters(&self) -> String {
        self.tagged(&self.naming.dead_letters)
    }
    /// Whether the queues and the dead letters belong to another program, and only what is beside them is ours.
    pub fn queues_are_foreign(&self) -> bool {
        self.naming.suspects_pattern.is_some()
    }
    /// Whether the queues hold only the names of jobs.
    pub fn names_jobs(&self) -> bool {
        self.naming.by_name
    }
    /// What `TYPE` says of the completed.
    pub fn completed_kind(&self) -> &'static str {
        if self.naming.by_name { "zset" } else { "list" }
    }
    /// What `TYPE` says of the dead letters.
    pub fn dead_letters_kind(&self) -> &'static str {
        if self.naming.dead_letters_sorted { "zset" } else { "list" }
    }
    /// A lane's record.
    pub fn record(&self, lane: &str) -> String {
        self.own(&format!("lane:{lane}"))
    }
    /// What a lane's user may do is tried on this key, which nobody ever sees.
    pub fn tried(&self, lane: &str) -> String {
        self.own(&format!("tried:{lane}"))
    }
    /// A lane's heartbeat.
    pub fn heartbeat(&self, lane: &str) -> String {
        self.tagged(&self.naming.heartbeat_pattern.replace("%s", lane))
    }

    /// A lane's lists: for each queue what it holds, what a parked fetch brought, the same from the suspects.
    pub fn lists(&self, lane: &str) -> Vec<LaneLists> {
        let list = |queue: &QueueKeys, suffix: &str| {
            let mut id = lane.to_owned();
            let _ = write!(id, ":{}{suffix}", queue.name);
            self.tagged(&self.naming.processing_pattern.replace("%s", &id))
        };
        let lists = |queue: &QueueKeys| LaneLists {
            held: list(queue, ""),
            parked: list(queue, PARKED),
            parked_suspects: list(queue, PARKED_SUSPECTS),
        };
        self.queues.iter().map(lists).collect()
    }

    /// A pattern that matches every processing list, ours and those of any client that follows the seed.
    pub fn processing_glob(&self) -> String {
        escape_glob(&self.tagged(&self.naming.processing_pattern)).replace("%s", "*")
    }

    /// What `TYPE` must say of one of these keys; `None` for a key that is none of them.
    pub fn kind_of(&self, key: &str) -> Option<&'static str> {
        let of_queue = |queue: &QueueKeys| match key {
            _ if key == queue.queue || key == queue.suspects => Some("list"),
            _ if key == queue.completed => Some(self.completed_kind()),
            _ if key == queue.dead_letters => Some(self.dead_letters_kind()),
            _ if key == queue.delayed => Some("zset"),
            _ => None,
        };
        let jobs = self.jobs();
        self.queues.iter().find_map(of_queue).or_else(|| match key {
            _ if key.starts_with(&jobs.index("")) => Some("zset"),
            _ if key.starts_with(&jobs.data("")) || key.starts_with(&jobs.idem("")) => Some("string"),
            _ if key == self.lanes() || key == self.reaping() => Some("zset"),
            _ if key.starts_with(&self.seen_in("")) => Some("zset"),
            _ if key == self.counters() => Some("hash"),
            _ if key.starts_with(&self.seen("")) || key.starts_with(&self.record("")) => Some("hash"),
            _ if self.is_word(key) => Some("string"),
            _ => self.holder_of(key).map(|_| "list"),
        })
    }

    /// Whether a key holds one word: a mark, a number, whose something is.
    fn is_word(&self, key: &str) -> bool {
        let alone = [
            self.lane_seq(),
            self.paused(),
            self.central(),
            self.gauges(),
            self.layout(),
            claim(&self.lanes()),
        ];
        let families = [
            self.quiet(""),
            self.handler_death(""),
            self.breaker(""),
            self.enqueued(""),
            self.seen_layout(""),
        ];
        alone.iter().any(|known| known == key)
            || self.queues.iter().any(|queue| claim(&queue.queue) == key)
            || families.iter().any(|family| key.starts_with(family.as_str()))
            || self.lane_of_heartbeat(key).is_some()
    }

    /// Patterns that match every key under the prefix, of all shards: in a Cluster those of this one's node.
    pub fn prefix_globs(&self) -> [String; 2] {
        let prefix = escape_glob(&self.naming.prefix);
        [format!("{prefix}:*"), format!("{{{prefix}:*")]
    }

    fn lane_of_heartbeat<'a>(&self, key: &'a str) -> Option<&'a str> {
        let pattern = self.tagged(&self.naming.heartbeat_pattern);
        let (before, after) = pattern.split_once("%s")?;
        key.strip_prefix(before)?.strip_suffix(after)
    }

    /// The lane and the queue of a processing list; the queue is empty in those of a client that follows the seed, which
    /// have the lane alone. `None` for a list of others: a prefix may begin with ours and go on as the pattern does, so
    /// that `jobqueue:worker:shop:worker:host-1-1:low:processing` belongs to the set `jobqueue:worker:shop`.
    pub fn holder_of<'a>(&self, list: &'a str) -> Option<(&'a str, &'a str)> {
        let pattern = self.tagged(&self.naming.processing_pattern);
        let (before, after) = pattern.split_once("%s")?;
        let id = list.strip_prefix(before)?.strip_suffix(after)?;
        let (lane, rest) = id.split_once(':').unwrap_or((id, ""));
        let parked = || rest.strip_suffix(PARKED).or_else(|| rest.strip_suffix(PARKED_SUSPECTS));
        // A name of ours may have a colon in it.
        let is_queue = |queue: &str| {
            !queue.is_empty() && !queue.contains(':') || self.queues.iter().any(|known| known.name == queue)
        };
        let queue = [Some(rest), parked()].into_iter().flatten().find(|queue| is_queue(queue));
        match queue {
            _ if lane.is_empty() => None,
            None if id.contains(':') => None,
            queue => Some((lane, queue.unwrap_or_default())),
        }
    }
}

/// What the name of a list ends with, behind its queue's, that a parked fetch moves jobs to.
const PARKED: &str = ":parked";
/// The same for the suspects.
const PARKED_SUSPECTS: &str = ":parked-suspects";

/// The lists of one lane for one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneLists {
    /// Reserved jobs.
    pub held: String,
    /// What a parked fetch brought, until the next cycle moves it to `held`.
    pub parked: String,
    /// The same, from the suspects.
    pub parked_suspects: String,
}

pub(crate) fn escape_glob(key: &str) -> String {
    key.chars().fold(String::with_capacity(key.len()), |mut escaped, c| {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn naming(shards: u16, cluster: bool) -> Naming {
        Naming {
            prefix: "jobqueue".into(),
            queues: vec![
                ("high".into(), "jobqueue:high_priority".into()),
                ("low".into(), "jobqueue:low_priority".into()),
            ],
            processing_pattern: "jobqueue:worker:%s:processing".into(),
            heartbeat_pattern: "jobqueue:processing:worker:%s".into(),
            delayed_pattern: "jobqueue:delayed:%s".into(),
            suspects_pattern: None,
            completed: "jobqueue:completed".into(),
            dead_letters: "jobqueue:dead_letter".into(),
            dead_letters_sorted: false,
            paused_queues: None,
            by_name: false,
            shards,
            cluster,
        }
    }

    #[test]
    fn one_shard_has_the_seeds_keys() {
        let keys = Keys::new(&naming(1, false), 0);
        assert_eq!(keys.queues[0].queue, "jobqueue:high_priority");
        assert_eq!(keys.queues[0].suspects, "jobqueue:high_priority:suspects");
        assert_eq!(keys.queues[1].delayed, "jobqueue:delayed:low");
        assert_eq!(keys.heartbeat("h-1-2"), "jobqueue:processing:worker:h-1-2");
        assert_eq!(keys.lists("h-1-2")[0].held, "jobqueue:worker:h-1-2:high:processing");
        assert_eq!(keys.processing_glob(), "jobqueue:worker:*:processing");
    }

    #[test]
    fn a_list_of_a_set_whose_prefix_begins_with_ours_is_not_taken_for_one_of_our_lanes() {
        let mut keys = Keys::new(&naming(1, false), 0);
        let holder = |keys: &Keys, id: &str| {
            let list = format!("jobqueue:worker:{id}:processing");
            keys.holder_of(&list).map(|(lane, queue)| (lane.to_owned(), queue.to_owned()))
        };
        let of = |lane: &str, queue: &str| Some((lane.to_owned(), queue.to_owned()));
        assert_eq!(holder(&keys, "h-1-2"), of("h-1-2", ""), "as the seeds have it");
        for list in &keys.lists("h-1-2")[1..] {
            for list in [&list.held, &list.parked, &list.parked_suspects] {
                assert_eq!(keys.holder_of(list), Some(("h-1-2", "low")), "{list}");
            }
        }
        assert_eq!(
            holder(&keys, "h-1-2:removed"),
            of("h-1-2", "removed"),
            "also of a queue that is not configured"
        );
        for prefix in ["jobqueue:worker", "jobqueue:worker:shop"] {
            let others = Keys::new(
                &Naming {
                    prefix: prefix.into(),
                    processing_pattern: format!("{prefix}:worker:%s:processing"),
                    ..naming(1, false)
                },
                0,
            );
            let lists = others.lists("host-1-1").into_iter();
            for list in lists.flat_map(|lists| [lists.held, lists.parked, lists.parked_suspects]) {
                assert_eq!(keys.holder_of(&list), None, "{list}");
            }
        }
        for id in ["", ":high", "h-1-2:", "h-1-2:high:", "h-1-2::parked", "h-1-2:high:later"] {
            assert_eq!(holder(&keys, id), None, "{id}");
        }
        keys.queues[0].name = "a:b".into();
        assert_eq!(holder(&keys, "h-1-2:a:b"), of("h-1-2", "a:b"), "a name of ours");
        assert_eq!(holder(&keys, "h-1-2:a:b:parked"), of("h-1-2", "a:b"));
    }

    #[test]
    fn every_key_of_a_shard_has_its_hash_tag() {
        let keys = Keys::new(&naming(3, true), 2);
        let lists = keys.lists("h-1-2");
        let queue = &keys.queues[0];
        let all = [
            &queue.queue,
            &queue.suspects,
            &queue.delayed,
            &queue.completed,
            &queue.dead_letters,
            &queue.counters,
            &keys.lanes(),
            &keys.paused(),
            &keys.record("h-1-2"),
            &keys.heartbeat("h-1-2"),
            &lists[0].held,
            &lists[0].parked_suspects,
        ];
        for key in all {
            assert!(key.starts_with("{jobqueue:2}:"), "{key}");
        }
        assert_eq!(queue.queue, "{jobqueue:2}:high_priority");
    }

    #[test]
    fn jobs_that_lists_only_name_stand_beside_them() {
        let plain = Keys::new(&Naming { prefix: "jobs".into(), ..naming(1, false) }, 0).jobs();
        let names = [plain.data("a"), plain.index("failed"), plain.events(), plain.idem("0f")];
        assert_eq!(names, ["jobs:data:a", "jobs:index:failed", "jobs:events", "jobs:idem:0f"]);
        assert_eq!(Keys::new(&naming(3, true), 2).jobs().data("a"), "{jobqueue:2}:data:a");
    }

    #[test]
    fn every_key_that_holds_jobs_has_a_type() {
        let keys = Keys::new(&naming(2, false), 1);
        let kinds = |keys_of: &[&str]| keys_of.iter().map(|key| keys.kind_of(key)).collect::<Vec<_>>();
        let queue = &keys.queues[1];
        let lists = keys.lists("h-1-2");
        assert_eq!(kinds(&[&queue.queue, &queue.suspects, &lists[0].parked]), [Some("list"); 3]);
        assert_eq!(kinds(&[&keys.dead_letters(), &keys.completed()]), [Some("list"); 2]);
        assert_eq!(
            kinds(&[&queue.delayed, &keys.lanes(), &keys.reaping(), &keys.seen_in("0a")]),
            [Some("zset"); 4]
        );
        assert_eq!(kinds(&[&keys.counters(), &keys.seen("0a"), &keys.record("h-1-2")]), [Some("hash"); 3]);
        let words = [keys.layout(), keys.quiet("u"), keys.heartbeat("h-1-2"), claim(&queue.queue)];
        assert_eq!(words.map(|key| keys.kind_of(&key)), [Some("string"); 4]);
        assert_eq!(keys.kind_of("jobqueue:low_priority"), None, "the key of no shard");
    }

    #[test]
    fn raising_the_shards_moves_few_jobs() {
        let ids: Vec<String> = (0..10_000).map(|i| format!("job-{i}")).collect();
        let moved = ids.iter().filter(|id| Keys::shard_of(id, 4) != Keys::shard_of(id, 5)).count();
        assert!((1_500..2_500).contains(&moved), "about a fifth of them, not {moved}");
        for shard in 0..4 {
            let here = ids.iter().filter(|id| Keys::shard_of(id, 4) == shard).count();
            assert!((2_000..3_000).contains(&here), "shard {shard} has {here}");
        }
    }
}
