//! Whose a queue is: two that served the same lists by different rules would ruin each other's jobs.
use redis::Cmd;

use super::{Call, DISOWN, OWN, PAGE_COUNT, Session, StoreError, list, number, text};
use crate::effects::Side;
use crate::keys::escape_glob;

/// How often the lanes may change while their jobs are counted.
const COUNTS: usize = 5;

impl Session {
    /// Claims the queue under `key` for `owner`, or says who has it. `gone` is an earlier answer whose owner was found
    /// not to exist any more: it is replaced only if it still stands there.
    pub async fn own(&mut self, key: &str, owner: &str, gone: Option<&str>) -> Result<String, StoreError> {
        let mut call = Call::new(vec![claim(key)]);
        call.arg(owner).arg(gone.unwrap_or_default());
        self.eval(&OWN, &call).await.map(text)
    }

    /// Gives up the claim of the queue under `key`, if it is `owner`'s.
    pub async fn disown(&mut self, key: &str, owner: &str) -> Result<bool, StoreError> {
        let mut call = Call::new(vec![claim(key)]);
        call.arg(owner);
        self.eval(&DISOWN, &call).await.map(|answer| number(&answer) == Some(1))
    }

    /// Who has claimed each of these queues.
    pub async fn owners(&mut self, keys: &[String]) -> Result<Vec<Option<String>>, StoreError> {
        let asked = keys.iter().map(|key| command("GET", &claim(key))).collect();
        let answers = self.query_all(asked).await?;
        Ok(answers.into_iter().map(|owner| (owner != redis::Value::Nil).then(|| text(owner))).collect())
    }
}

impl Session {
    /// Adds (`>password`) or removes (`<password`) a password of Redis' default user. Connections that stand, stand.
    pub async fn change_password(&mut self, change: &str) -> Result<(), StoreError> {
        let mut command = redis::Cmd::new();
        command.arg("ACL").arg("SETUSER").arg("default").arg(change);
        match self.query(&command).await {
            // Removed already, by an attempt whose end nobody heard of.
            Err(StoreError::Unexpected(reason)) if reason.contains("does not exist") => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    /// How many jobs the queues of `keys` hold, wherever they are: waiting, suspected, delayed or in a lane's lists; with
    /// the dead letters of all queues if `dead` says so. All of one instant: a job on its way is counted where it is.
    pub async fn jobs_left(&mut self, dead: bool) -> Result<u64, StoreError> {
        let keys = self.keys.clone();
        let mut fixed: Vec<Cmd> = Vec::new();
        for queue in &keys.queues {
            fixed.extend([command("LLEN", &queue.queue), command("LLEN", &queue.suspects)]);
            fixed.push(command("ZCARD", &queue.delayed));
        }
        if dead {
            fixed.push(command("LLEN", &keys.dead_letters()));
        }
        for _ in 0..COUNTS {
            let mut lanes = self.lanes(0, usize::MAX >> 1).await?;
            lanes.extend(self.reaping(usize::MAX >> 1).await?);
            let lists = lanes.iter().flat_map(|lane| keys.lists(lane));
            let lists = lists.flat_map(|lists| [lists.held, lists.parked, lists.parked_suspects]);
            let counts: Vec<Cmd> =
                fixed.iter().cloned().chain(lists.map(|list| command("LLEN", &list))).collect();
            let counted = counts.len();
            let who = [keys.lanes(), keys.reaping()].map(|registry| {
                let mut all = command("ZRANGE", &registry);
                all.arg(0).arg(-1);
                all
            });
            let transaction = [vec![word("MULTI")], counts, who.to_vec(), vec![word("EXEC")]].concat();
            let answers = self.query_all(transaction).await?;
            let answers = list(answers.into_iter().next_back().unwrap_or(redis::Value::Nil))?;
            let (counts, who) = answers.split_at(counted.min(answers.len()));
            let mut known = true;
            for registry in who {
                let now = list(registry.clone())?.into_iter().map(text);
                known &= now.into_iter().all(|lane| lanes.contains(&lane));
            }
            if known {
                return Ok(counts.iter().filter_map(number).sum());
            }
            // A lane that was registered meanwhile may hold what waited before.
        }
        Err(StoreError::Later("lanes come and go while their jobs are counted".into()))
    }

    /// Moves what is suspected back to the consuming end of its queue: for one whose jobs are another program's, and whose
    /// suspects are about to be deleted.
    pub async fn clear_suspects(&mut self, side: Side) -> Result<(), StoreError> {
        for queue in self.keys.queues.clone() {
            loop {
                // The next one out last, so that it is the next one out again.
                let mut one = command("LMOVE", &queue.suspects);
                one.arg(&queue.queue).arg(side.opposite().word()).arg(side.word());
                let answers = self.query_all(vec![one; PAGE_COUNT]).await?;
                if answers.contains(&redis::Value::Nil) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Deletes every key of this shard, its jobs included: for a queue that is deleted with all it holds. Nobody may work
    /// on it any more. Keys are named one by one: another queue's prefix may begin with this one's. Queues and dead letters
    /// of another program stay; what lanes still hold of them, and what is suspected, is to be given back first.
    ///
    /// Whoever gives up in the middle, and begins again, finds less to do; the claims go last.
    pub async fn delete_all(&mut self) -> Result<(), StoreError> {
        let keys = self.keys.clone();
        let mut lanes = self.lanes(0, usize::MAX >> 1).await?;
        lanes.extend(self.reaping(usize::MAX >> 1).await?);
        for page in lanes.chunks(PAGE_COUNT) {
            let of = |lane: &String| {
                let lists = keys.lists(lane).into_iter();
                let lists = lists.flat_map(|lists| [lists.held, lists.parked, lists.parked_suspects]);
                lists.chain([keys.record(lane), keys.heartbeat(lane)]).collect::<Vec<_>>()
            };
            self.unlink_all(&page.iter().flat_map(of).collect::<Vec<_>>()).await?;
        }
        let mut families = vec![self.keys.seen(""), self.keys.enqueued(""), self.keys.quiet("")];
        families.extend([self.keys.seen_in(""), self.keys.seen_layout("")]);
        if self.keys.names_jobs() {
            let jobs = self.keys.jobs();
            families.extend([jobs.data(""), jobs.index(""), jobs.idem("")]);
        }
        for family in families {
            let mut cursor = "0".to_owned();
            loop {
                let (next, keys) =
                    self.scan_any(&cursor, &format!("{}*", escape_glob(&family)), 1000).await?;
                // A member of the family is one word longer; anything else belongs to somebody else.
                let is_member =
                    |key: &String| key.strip_prefix(&family).is_some_and(|rest| !rest.contains(':'));
                self.unlink_all(&keys.into_iter().filter(is_member).collect::<Vec<_>>()).await?;
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        let foreign = keys.queues_are_foreign();
        let of_queues = keys.queues.iter().flat_map(|queue| {
            let mut own = vec![queue.suspects.clone(), queue.delayed.clone()];
            own.extend((!foreign).then(|| queue.queue.clone()));
            own
        });
        let own = [
            keys.lanes(),
            keys.lane_seq(),
            keys.reaping(),
            keys.paused(),
            keys.central(),
            keys.gauges(),
            keys.counters(),
            keys.layout(),
            keys.completed(),
        ];
        let all = of_queues.chain(own).chain((!foreign).then(|| keys.dead_letters()));
        self.unlink_all(&all.collect::<Vec<_>>()).await?;
        let lists = keys.queues.iter().filter(|_| !foreign).map(|queue| claim(&queue.queue));
        self.unlink_all(&lists.chain([claim(&keys.lanes())]).collect::<Vec<_>>()).await
    }

    /// Deletes keys of this shard, which are all of one slot, in one step. Their memory is freed beside it.
    async fn unlink_all(&mut self, keys: &[String]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut unlink = word("UNLINK");
        unlink.arg(keys);
        self.query(&unlink).await.map(|_| ())
    }
}

fn word(name: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name);
    command
}

fn command(name: &str, key: &str) -> Cmd {
    let mut command = word(name);
    command.arg(key);
    command
}

/// The key of the claim of a queue: beside it, whatever else the two owners call their keys.
pub fn claim(key: &str) -> String {
    format!("{key}:owner")
}
