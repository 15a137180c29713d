//! How many shards there are, written down: when their number changes, jobs in the old ones must not be forgotten.
//!
//! `<prefix>:layout` holds `v1 <shards> <tagged>` of the widest layout that anybody has pushed in: written before the
//! first push, and never taken back, since nobody can know that the last process of an earlier layout is gone. Whoever
//! serves looks there again and again: shards of another layout that hold jobs are served as well, without pushing to
//! them. That a shard is empty is not written down, so nothing has to keep it so.
//!
//! What a producer has enqueued is remembered beside the queue that it was pushed to, so it moves with the layout: its
//! own one is in `<prefix>:seen-layout:<producer>`.
use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::keys::{Keys, Naming};
use crate::store::{PAGE_COUNT, Session, StoreError};

/// The version of the key layout. One minor version back is understood; there is none yet.
pub const VERSION: &str = "v1";

/// A layout that was written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// How many shards.
    pub shards: u16,
    /// Their keys carry hash tags.
    pub tagged: bool,
}

/// What a start finds.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A newer version wrote here.
    #[error("{key} = {value}: written by a newer version of jobqueue; upgrade this one")]
    Newer {
        /// The key.
        key: String,
        /// What it holds.
        value: String,
    },
    /// Redis did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Layout {
    /// The layout of a configuration.
    pub fn of(naming: &Naming) -> Self {
        Self { shards: naming.shards, tagged: naming.shards > 1 || naming.cluster }
    }

    /// As it is written down.
    pub fn to_text(self) -> String {
        format!("{VERSION} {} {}", self.shards, if self.tagged { "tagged" } else { "plain" })
    }

    /// As it was written down.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next() != Some(VERSION) {
            return None;
        }
        let shards = words.next()?.parse().ok()?;
        Some(Self { shards, tagged: words.next()? == "tagged" })
    }

    /// The shards of another layout that `self` does not have: served as long as they hold jobs, never pushed to.
    pub fn leftovers(self, other: Self, naming: &Naming) -> Vec<Keys> {
        let old = Naming { shards: other.shards, cluster: other.tagged, ..naming.clone() };
        let kept = if self.tagged == other.tagged { self.shards } else { 0 };
        (kept..other.shards).map(|shard| Keys::new(&old, shard)).collect()
    }
}

/// The first shards of all layouts that there can be, this one's first: there they are written down. A tagged and a plain
/// layout have different ones; in a Cluster only the tagged one can be.
fn first_shards(naming: &Naming) -> Vec<Keys> {
    let mut shards = vec![Keys::new(naming, 0)];
    if !naming.cluster {
        let plain = Naming { shards: 1, cluster: false, ..naming.clone() };
        let tagged = Naming { cluster: true, ..plain.clone() };
        let others = [plain, tagged].map(|naming| Keys::new(&naming, 0));
        shards.extend(others.into_iter().filter(|keys| keys.layout() != Keys::new(naming, 0).layout()));
    }
    shards
}

/// Where layouts are written down.
fn places(naming: &Naming) -> Vec<String> {
    first_shards(naming).iter().map(Keys::layout).collect()
}

/// The layouts that are written down at some of these places, of which the first is this one's own.
async fn read(session: &mut Session, places: Vec<String>) -> Result<Vec<(String, Layout)>, LayoutError> {
    let mut found = Vec::new();
    for (at, place) in places.into_iter().enumerate() {
        let text = match session.get(&place).await {
            // Where another layout would be written down: an ACL user of this one's keys has never written there.
            Err(StoreError::Denied { .. }) if at > 0 => continue,
            answer => answer?,
        };
        let Some(text) = text else { continue };
        match Layout::parse(&text) {
            Some(layout) => found.push((place, layout)),
            None => return Err(LayoutError::Newer { key: place, value: text }),
        }
    }
    Ok(found)
}

/// Looks at layouts, each time by the same connections.
pub struct Watch {
    engine: Engine,
    /// Of the first shard.
    own: Session,
    /// Of the shards that other layouts have: in a Cluster each may live on another node.
    others: BTreeMap<String, Session>,
}

impl Watch {
    /// For the layout of an engine.
    pub fn new(engine: &Engine) -> Self {
        let own = engine.session(&Keys::new(&engine.naming, 0));
        Self { engine: engine.clone(), own, others: BTreeMap::new() }
    }

    /// Writes down that the shards of this layout are in use: to be called before the first push.
    pub async fn write_down(&mut self) -> Result<(), LayoutError> {
        let layout = Layout::of(&self.engine.naming);
        let key = self.own.keys.layout();
        let mut found = self.own.get(&key).await?;
        if found.as_deref().and_then(Layout::parse).is_none_or(|found| found.shards < layout.shards) {
            found = Some(self.own.widen(VERSION, layout.shards, &layout.to_text()).await?);
        }
        match found {
            Some(value) if Layout::parse(&value).is_none() => Err(LayoutError::Newer { key, value }),
            _ => Ok(()),
        }
    }

    /// The shards of other layouts that hold jobs that somebody has to run, or dead letters. Writes nothing.
    pub async fn leftovers(&mut self) -> Result<Vec<Keys>, LayoutError> {
        self.others_with(false).await
    }

    /// The same, and those that hold jobs which are over and can still be read.
    pub async fn remains(&mut self) -> Result<Vec<Keys>, LayoutError> {
        self.others_with(true).await
    }

    async fn others_with(&mut self, finished: bool) -> Result<Vec<Keys>, LayoutError> {
        let naming = &self.engine.naming;
        let mut found = Vec::new();
        for (_, layout) in read(&mut self.own, places(naming)).await? {
            for keys in Layout::of(naming).leftovers(layout, naming) {
                let session = self.others.entry(keys.lanes()).or_insert_with(|| self.engine.session(&keys));
                // In the order in which a job goes: asked the other way round, one that ends in between is in neither answer.
                if !session.is_empty().await? || finished && session.has_finished().await? {
                    found.push(keys);
                }
            }
        }
        Ok(found)
    }

    /// What was said to Redis so far, for `redis_round_trips_total`.
    pub fn round_trips(&mut self) -> u64 {
        let sessions = self.others.values_mut().chain([&mut self.own]);
        sessions.map(|session| std::mem::take(&mut session.round_trips)).sum()
    }
}

/// The shards of other layouts that hold jobs that somebody has to run, or dead letters. Writes nothing.
pub async fn leftovers(engine: &Engine) -> Result<Vec<Keys>, LayoutError> {
    Watch::new(engine).leftovers().await
}

/// Brings what a producer has seen to where this layout looks for it, page by page: written where it belongs before it
/// is removed where it was, so it can be left off at any point and begun again. Answers how much was moved. To be called
/// before the first push.
pub async fn carry_seen(engine: &Engine, producer: &str) -> Result<u64, LayoutError> {
    let naming = &engine.naming;
    let now = Layout::of(naming);
    let firsts = first_shards(naming);
    let mut session = engine.session(&firsts[0]);
    let marks: Vec<_> = firsts.iter().map(|keys| keys.seen_layout(producer)).collect();
    let own_mark = marks[0].clone();
    let written = read(&mut session, marks).await?;
    let mut before: Vec<Layout> = written.iter().map(|(_, layout)| *layout).collect();
    if before.is_empty() {
        // Written by a version that did not say so: in any layout that is known, and one shard always may have been.
        before.extend(read(&mut session, places(naming)).await?.into_iter().map(|(_, layout)| layout));
        before.extend((!naming.cluster).then_some(Layout { shards: 1, tagged: false }));
    }
    let mut moved = 0;
    for layout in before.into_iter().filter(|layout| *layout != now) {
        let old = Naming { shards: layout.shards, cluster: layout.tagged, ..naming.clone() };
        for shard in 0..layout.shards {
            moved += carry_shard(engine, producer, &Keys::new(&old, shard)).await?;
        }
    }
    if !written.iter().any(|(place, layout)| *place == own_mark && *layout == now) {
        session.set(&own_mark, &now.to_text()).await?;
    }
    for (place, _) in written.iter().filter(|(place, _)| *place != own_mark) {
        session.unlink(place).await?;
    }
    Ok(moved)
}

/// The same for one shard of another layout.
async fn carry_shard(engine: &Engine, producer: &str, from: &Keys) -> Result<u64, LayoutError> {
    let key = from.seen(producer);
    let mut session = engine.session(from);
    let (mut moved, mut cursor) = (0, String::from("0"));
    loop {
        let (next, paths) = match session.hash_scan(&key, &cursor, PAGE_COUNT).await {
            // An ACL user of this layout's keys has never written there.
            Err(StoreError::Denied { .. }) => return Ok(moved),
            page => page?,
        };
        let states = if paths.is_empty() { Vec::new() } else { session.hash_get(&key, &paths).await? };
        let mut homes: BTreeMap<u16, Vec<(String, String)>> = BTreeMap::new();
        for (path, state) in paths.into_iter().zip(states) {
            let home = Keys::shard_of(&path, engine.naming.shards);
            let stays = Keys::new(&engine.naming, home).seen(producer) == key;
            if let (Some(state), false) = (state, stays) {
                homes.entry(home).or_default().push((path, state));
            }
        }
        for (home, fields) in homes {
            let home = Keys::new(&engine.naming, home);
            engine.session(&home).hash_add(&home.seen(producer), &fields).await?;
            let paths: Vec<String> = fields.into_iter().map(|(path, _)| path).collect();
            session.hash_remove(&key, &paths).await?;
            moved += paths.len() as u64;
        }
        if next == "0" {
            return Ok(moved);
        }
        cursor = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::naming;

    #[test]
    fn is_read_as_it_was_written() {
        for layout in [Layout { shards: 1, tagged: false }, Layout { shards: 16, tagged: true }] {
            assert_eq!(Layout::parse(&layout.to_text()), Some(layout));
        }
        assert_eq!(Layout::parse("v2 3 tagged"), None);
        assert_eq!(Layout::parse("nonsense"), None);
    }

    #[test]
    fn a_lowered_number_leaves_the_shards_above_it() {
        let leftovers = Layout { shards: 2, tagged: true }
            .leftovers(Layout { shards: 4, tagged: true }, &naming(2, false));
        let queues: Vec<_> = leftovers.iter().map(|keys| keys.queues[0].queue.as_str()).collect();
        assert_eq!(queues, ["{jobqueue:2}:high_priority", "{jobqueue:3}:high_priority"]);
    }

    #[test]
    fn sharding_a_queue_leaves_its_plain_keys() {
        let leftovers = Layout { shards: 3, tagged: true }
            .leftovers(Layout { shards: 1, tagged: false }, &naming(3, false));
        assert_eq!(leftovers[0].queues[0].queue, "jobqueue:high_priority");
        assert_eq!(leftovers.len(), 1);
    }

    #[test]
    fn a_raised_number_leaves_nothing() {
        let leftovers = Layout { shards: 4, tagged: true }
            .leftovers(Layout { shards: 2, tagged: true }, &naming(4, false));
        assert!(leftovers.is_empty());
    }
}
