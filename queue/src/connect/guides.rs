//! Whom to ask where to connect: Sentinels know the master, every node of a Cluster knows the owner of a slot.
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use redis::Value;

use super::text;

/// Nodes of a Cluster are remembered up to this many: whoever is asked names all others.
const MOST: usize = 64;

/// Who knew the way last is asked first. One that hangs, or names a node that is gone, takes its time once, and is asked
/// last from then on.
pub(super) struct Guides(Mutex<VecDeque<String>>);

impl Guides {
    pub(super) fn new(configured: &[String]) -> Self {
        Self(Mutex::new(configured.iter().cloned().collect()))
    }

    /// All of them, in the order in which to ask.
    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// This one is being asked. Last for now: whoever asks may be out of time before the answer.
    pub(super) fn asked(&self, guide: &str) {
        self.to_end(guide, VecDeque::push_back);
    }

    /// It knew the way: it is asked first from now on.
    pub(super) fn knew(&self, guide: &str) {
        self.to_end(guide, VecDeque::push_front);
    }

    /// These can be asked too.
    pub(super) fn named(&self, others: impl IntoIterator<Item = String>) {
        let mut guides = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for other in others {
            if guides.len() < MOST && !guides.contains(&other) {
                guides.push_back(other);
            }
        }
    }

    fn to_end(&self, guide: &str, push: fn(&mut VecDeque<String>, String)) {
        let mut guides = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = guides.iter().position(|known| known == guide)
            && let Some(guide) = guides.remove(at)
        {
            push(&mut guides, guide);
        }
    }
}

/// The hash slot of a key: CRC16 of its tag, if it has one, modulo 16384.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16384
}

/// The master of a slot in an answer to `CLUSTER SLOTS`.
pub(super) fn owner(slots: &[Value], slot: u16, asked: &str) -> Option<String> {
    slots.iter().find_map(|range| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), master, ..] = parts.as_slice() else { return None };
        (*first..=*last).contains(&i64::from(slot)).then(|| address(master, asked))?
    })
}

/// Every node in such an answer.
pub(super) fn nodes<'a>(slots: &'a [Value], asked: &'a str) -> impl Iterator<Item = String> + 'a {
    let parts =
        slots.iter().filter_map(|range| if let Value::Array(parts) = range { Some(parts) } else { None });
    parts.flat_map(|parts| parts.iter().skip(2)).filter_map(|node| address(node, asked))
}

/// The address of a node; an empty host means the node that was asked.
fn address(node: &Value, asked: &str) -> Option<String> {
    let Value::Array(node) = node else { return None };
    let (host, port) = (text(node.first()?), text(node.get(1)?));
    let asked_host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
    Some(format!("{}:{port}", if host.is_empty() { asked_host } else { &host }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_of_its_hash_tag() {
        assert_eq!(slot_of("123456789"), 12739, "the published check value of the CRC");
        assert_eq!(slot_of("{jobqueue:1}:lanes"), slot_of("{jobqueue:1}:high_priority"));
        assert_ne!(slot_of("{jobqueue:1}:lanes"), slot_of("{jobqueue:2}:lanes"));
        assert_ne!(slot_of("{}a"), slot_of("{}b"), "an empty tag is no tag");
    }

    #[test]
    fn who_knew_the_way_is_asked_first_and_who_did_not_last() {
        let guides = Guides::new(&["a:1".into(), "b:1".into(), "c:1".into()]);
        guides.asked("a:1");
        guides.asked("b:1");
        guides.named(["d:1".into(), "c:1".into()]);
        guides.knew("b:1");
        assert_eq!(guides.all(), ["b:1", "c:1", "a:1", "d:1"]);
    }

    #[test]
    fn every_node_of_a_cluster_is_known_once_one_has_answered() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let node = |host: &str, port| Value::Array(vec![bulk(host), Value::Int(port), bulk("id")]);
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let slots = [
            range(0, 99, vec![node("10.0.0.1", 7000), node("10.0.0.2", 7000)]),
            range(100, 16383, vec![node("", 7001)]),
        ];
        assert_eq!(owner(&slots, 7, "seed:7001").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(owner(&slots, 100, "seed:7001").as_deref(), Some("seed:7001"), "the node itself");
        assert_eq!(
            nodes(&slots, "seed:7001").collect::<Vec<_>>(),
            ["10.0.0.1:7000", "10.0.0.2:7000", "seed:7001"]
        );
    }
}
