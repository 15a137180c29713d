//! In which order the queues are asked. Strict is the order of the configuration; weighted draws one a slot, as each
//! of Sidekiq's threads does: a queue of weight 5 stands first five times as often as one of weight 1, and none starves.

/// So many queues can be drawn: an order is a byte a queue.
pub const MOST_WEIGHTED: usize = 255;

/// One order a slot: for each of `slots` the numbers of all queues, from 1, a byte each. Empty when the order is strict
/// (no weights). `below(n)` is a random number below n.
pub fn orders(weights: &[u32], slots: usize, mut below: impl FnMut(u64) -> u64) -> Vec<u8> {
    if weights.is_empty() || weights.len() > MOST_WEIGHTED {
        return Vec::new();
    }
    let all: Vec<(u8, u64)> =
        (1..=u8::MAX).zip(weights).map(|(queue, weight)| (queue, u64::from((*weight).max(1)))).collect();
    let mut orders = Vec::with_capacity(slots * weights.len());
    for _ in 0..slots {
        let mut left = all.clone();
        let mut sum: u64 = left.iter().map(|(_, weight)| weight).sum();
        while left.len() > 1 {
            let mut drawn = below(sum);
            let at = left.iter().position(|(_, weight)| {
                let here = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                here
            });
            let (queue, weight) = left.remove(at.unwrap_or(0));
            sum -= weight;
            orders.push(queue);
        }
        orders.extend(left.iter().map(|(queue, _)| *queue));
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_weights_the_order_is_strict() {
        assert!(orders(&[], 10, |_| 0).is_empty());
    }

    #[test]
    fn a_queue_stands_first_as_often_as_its_weight_says() {
        let mut random = fastrand::Rng::with_seed(7);
        let drawn = orders(&[5, 1, 2], 80_000, |below| random.u64(0..below));
        let first = |queue: u8| drawn.chunks(3).filter(|order| order[0] == queue).count();
        for (queue, expected) in [(1, 50_000), (2, 10_000), (3, 20_000)] {
            let count = first(queue);
            assert!(count.abs_diff(expected) < 1_000, "queue {queue}: {count} times first");
        }
    }

    proptest! {
        #[test]
        fn every_order_names_every_queue_once(weights in proptest::collection::vec(0u32..1000, 1..20), slots in 0usize..20, seed: u64) {
            let mut random = fastrand::Rng::with_seed(seed);
            let drawn = orders(&weights, slots, |below| random.u64(0..below));
            prop_assert_eq!(drawn.len(), slots * weights.len());
            for order in drawn.chunks(weights.len()) {
                let mut sorted = order.to_vec();
                sorted.sort_unstable();
                prop_assert!(sorted.iter().copied().eq(1..=u8::try_from(weights.len()).unwrap()));
            }
        }
    }
}
