//! Replies no larger than we are ready to take. The client library reads whatever a server announces; for a process that
//! dials what others tell it to, one reply could be all its memory.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use super::Allowance;

/// What a value costs us beside its bytes.
const VALUE: u64 = 64;
/// What every connection may take without asking: the usual reply. Many connections take many times as much.
const FREE: u64 = 256 << 10;
/// The longest first line whose number matters: a kind and 20 digits.
const HEADER: usize = 24;

/// A stream on which a reply that costs more than it may is an error.
pub struct Metered<S> {
    stream: S,
    meter: Meter,
}

impl<S> Metered<S> {
    /// Replies that cost at most this many bytes, which an allowance has to have left. `held` says how much of it the
    /// connection has.
    pub fn new(stream: S, most: u64, allowance: Option<&Allowance>, held: &Arc<AtomicU64>) -> Self {
        let share = allowance.map(|allowance| Share::of(allowance.clone(), Arc::clone(held)));
        Self { stream, meter: Meter { share, ..Meter::new(most) } }
    }
}

/// Follows replies (RESP2 and RESP3) and adds up what each costs.
struct Meter {
    most: u64,
    spent: u64,
    /// Values of this reply that are still to come.
    left: u64,
    /// Bytes of a string that are still to come, its line end included.
    bulk: u64,
    /// The beginning of the present line.
    line: Vec<u8>,
    share: Option<Share>,
}

/// A connection's part of an allowance: what its largest reply took, for as long as it stands. So long does the client keep
/// the buffer that the reply was in.
struct Share {
    allowance: Allowance,
    taken: Option<OwnedSemaphorePermit>,
    held: Arc<AtomicU64>,
}

impl Share {
    fn of(allowance: Allowance, held: Arc<AtomicU64>) -> Self {
        Self { allowance, taken: None, held }
    }

    /// Whether a reply may cost this much.
    fn grants(&mut self, cost: u64) -> bool {
        let missing = cost.saturating_sub(FREE + self.held.load(Ordering::Relaxed));
        if missing == 0 {
            return true;
        }
        let Some(more) = self.allowance.take(missing) else { return false };
        self.held.fetch_add(Allowance::bytes(&more), Ordering::Relaxed);
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            none => *none = Some(more),
        }
        true
    }
}

impl Meter {
    fn new(most: u64) -> Self {
        Self { most, spent: 0, left: 1, bulk: 0, line: Vec::with_capacity(HEADER), share: None }
    }

    /// Looks at what has come.
    fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.bulk > 0 {
                let now = usize::try_from(self.bulk).unwrap_or(usize::MAX).min(bytes.len());
                self.bulk -= now as u64;
                bytes = &bytes[now..];
                self.end();
                continue;
            }
            self.spend(1)?;
            bytes = rest;
            if *first == b'\n' {
                self.header()?;
                self.line.clear();
            } else if self.line.len() < HEADER {
                self.line.push(*first);
            }
        }
        Ok(())
    }

    /// A line says what follows it.
    fn header(&mut self) -> io::Result<()> {
        let (kind, digits) = self.line.split_first().unwrap_or((&b'+', &[]));
        let number = || {
            let text = std::str::from_utf8(digits).unwrap_or_default().trim_end();
            // RESP2 has -1 for nothing.
            text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok())
        };
        let members = match kind {
            b'$' | b'=' | b'!' => {
                if let Some(length) = number() {
                    self.spend(length)?;
                    self.bulk = length.saturating_add(2);
                }
                0
            }
            b'*' | b'~' | b'>' => number().unwrap_or(0),
            b'%' => number().unwrap_or(0).saturating_mul(2),
            // An attribute stands before the value it belongs to.
            b'|' => number().unwrap_or(0).saturating_mul(2).saturating_add(1),
            _ => 0,
        };
        self.spend(members.saturating_mul(VALUE))?;
        self.left = self.left.saturating_sub(1).saturating_add(members);
        self.end();
        Ok(())
    }

    /// With its last value a reply is over, and the next one may cost as much again.
    fn end(&mut self) {
        if self.left == 0 && self.bulk == 0 {
            (self.left, self.spent) = (1, 0);
        }
    }

    fn spend(&mut self, cost: u64) -> io::Result<()> {
        self.spent = self.spent.saturating_add(cost);
        let reason = if self.spent > self.most {
            format!("a reply takes more than the {} bytes that it may", self.most)
        } else if self.share.as_mut().is_some_and(|share| !share.grants(self.spent)) {
            "a reply takes more than others have left of what replies may take together".into()
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, reason))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match read {
            Poll::Ready(Ok(())) => Poll::Ready(self.meter.take(&buffer.filled()[before..])),
            other => other,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(most: u64, text: &[u8]) -> bool {
        Meter::new(most).take(text).is_ok()
    }

    #[test]
    fn a_string_that_is_announced_too_long_is_refused_before_it_comes() {
        assert!(taken(100, b"$50\r\n"));
        assert!(!taken(100, b"$1000000000\r\n"));
        assert!(!taken(100, b"*2\r\n+OK\r\n$1000000000\r\n"), "also within a list");
    }

    #[test]
    fn a_list_of_too_many_is_refused_before_they_come() {
        assert!(taken(1000, b"*10\r\n"));
        assert!(!taken(1000, b"*1000000000\r\n"));
        assert!(!taken(1000, b"%1000000000\r\n"));
        assert!(!taken(1000, b"*9223372036854775807\r\n*9223372036854775807\r\n"));
    }

    #[test]
    fn a_line_without_end_is_refused() {
        assert!(!taken(100, &[b'+'; 200]));
    }

    #[test]
    fn nothing_and_numbers_that_are_none_cost_what_they_are() {
        assert!(taken(100, b"$-1\r\n*-1\r\n_\r\n:12\r\n$x\r\n*0\r\n"));
    }

    #[test]
    fn replies_of_several_connections_share_what_they_may_take_until_one_of_them_ends() {
        let allowance = Allowance::new(4 << 20);
        let connection = || {
            let share = Share::of(allowance.clone(), Arc::default());
            Meter { share: Some(share), ..Meter::new(64 << 20) }
        };
        let take = |meter: &mut Meter, size: u64| meter.take(format!("${size}\r\n").as_bytes()).is_ok();
        let (mut first, mut second) = (connection(), connection());
        assert!(take(&mut first, 3 << 20));
        assert!(!take(&mut second, 3 << 20), "also after the reply of the first, whose buffer is there");
        assert!(take(&mut connection(), 200 << 10), "the usual reply always may");
        drop(first);
        assert!(take(&mut connection(), 3 << 20));
        assert!(!take(&mut connection(), 5 << 20), "there is no more than that");
    }

    /// A reply and what it costs.
    fn reply() -> impl Strategy<Value = (Vec<u8>, u64)> {
        let leaf = prop_oneof![
            (0usize..30).prop_map(|size| {
                let mut text = format!("${size}\r\n").into_bytes();
                text.extend(vec![b'*'; size]);
                text.extend(b"\r\n");
                let header = format!("${size}\r\n").len();
                (text, (header + size) as u64)
            }),
            Just((b":17\r\n".to_vec(), 5)),
            Just((b"$-1\r\n".to_vec(), 5)),
        ];
        leaf.prop_recursive(3, 30, 5, |inner| {
            proptest::collection::vec(inner, 0..5).prop_map(|members| {
                let mut text = format!("*{}\r\n", members.len()).into_bytes();
                let mut cost = text.len() as u64 + VALUE * members.len() as u64;
                for (member, its) in members {
                    text.extend(member);
                    cost += its;
                }
                (text, cost)
            })
        })
    }

    proptest! {
        /// However the replies are cut into reads, each is measured by itself.
        #[test]
        fn each_reply_may_cost_as_much(replies in proptest::collection::vec(reply(), 1..6), cut in 1usize..20) {
            let dearest = replies.iter().map(|(_, cost)| *cost).max().unwrap_or(0);
            let text: Vec<u8> = replies.into_iter().flat_map(|(text, _)| text).collect();
            let taken = |most| {
                let mut meter = Meter::new(most);
                text.chunks(cut).all(|bytes| meter.take(bytes).is_ok())
            };
            prop_assert!(taken(dearest));
            prop_assert!(!taken(dearest - 1));
        }
    }
}
