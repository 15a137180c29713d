//! Which addresses may be dialled, and what may be said there: also those that a Sentinel or a Cluster node names, and whatever a name resolves to at
//! that moment.
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where connections may lead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reach {
    /// Anywhere.
    #[default]
    Any,
    /// To other machines: for a process that dials what others tell it to.
    Elsewhere(Bounds),
}

/// What is allowed to a Redis that others have named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bounds {
    /// None of these.
    pub never: Vec<IpAddr>,
    /// Nothing but these networks; empty: all.
    pub only: Vec<IpNet>,
    /// A reply may take this many bytes here.
    pub largest_reply: u64,
    /// What it shares with others; `None`: nothing.
    pub allowance: Option<Allowance>,
}

/// What the replies of several Redises may take together. However many there are: each alone is bounded, and so they are.
#[derive(Debug, Clone)]
pub struct Allowance(Arc<Semaphore>);

/// It is given out in pieces of this size.
const PIECE: u64 = 64 << 10;

impl Allowance {
    /// This many bytes for all.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(bytes / PIECE).unwrap_or(Semaphore::MAX_PERMITS))))
    }

    /// Takes at least so many bytes until what is answered is dropped; nothing if there are not as many left.
    pub(super) fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE)).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(pieces).ok()
    }

    /// How many bytes so many pieces are.
    pub(super) fn bytes(taken: &OwnedSemaphorePermit) -> u64 {
        PIECE * taken.num_permits() as u64
    }

    /// Whether anybody else has it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl PartialEq for Allowance {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Allowance {}

impl Reach {
    /// Why an address may not be dialled.
    pub fn refusal(&self, address: IpAddr) -> Option<&'static str> {
        let Self::Elsewhere(bounds) = self else { return None };
        let address = address.to_canonical();
        let link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        match address {
            _ if address.is_loopback() || address.is_unspecified() => {
                Some("a loopback address is not allowed here")
            }
            _ if link_local || address.is_multicast() => Some("a link-local address is not allowed here"),
            _ if bounds.never.contains(&address) => Some("this address is not allowed here"),
            _ if !bounds.only.is_empty() && !bounds.only.iter().any(|network| network.contains(&address)) => {
                Some("this address is in none of the networks that are allowed here")
            }
            _ => None,
        }
    }

    /// How many bytes a reply may take here, and of what; `None`: as many as it likes.
    pub fn largest_reply(&self) -> Option<(u64, Option<&Allowance>)> {
        match self {
            Self::Any => None,
            Self::Elsewhere(bounds) => Some((bounds.largest_reply, bounds.allowance.as_ref())),
        }
    }

    /// Why a socket of this machine may not be opened.
    pub fn refusal_of_socket(&self) -> Option<&'static str> {
        matches!(self, Self::Elsewhere(_)).then_some("a unix socket is not allowed here")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_machines_are_reached_when_others_say_where_to_dial() {
        let never = vec!["10.96.0.1".parse().unwrap()];
        let reach = Reach::Elsewhere(Bounds { never, ..Bounds::default() });
        for refused in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "0.0.0.0",
            "169.254.169.254",
            "fe80::1",
            "::ffff:127.0.0.1",
            "10.96.0.1",
            "224.0.0.1",
        ] {
            assert!(reach.refusal(refused.parse().unwrap()).is_some(), "{refused}");
        }
        for allowed in ["10.96.0.2", "192.168.1.1", "2001:db8::1"] {
            assert_eq!(reach.refusal(allowed.parse().unwrap()), None, "{allowed}");
        }
        assert!(reach.refusal_of_socket().is_some());
        assert_eq!(Reach::Any.refusal("127.0.0.1".parse().unwrap()), None);
        assert_eq!(Reach::Any.refusal_of_socket(), None);
    }

    #[test]
    fn when_networks_are_named_nothing_else_is_reached() {
        let only = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let reach =
            Reach::Elsewhere(Bounds { never: vec!["10.0.0.1".parse().unwrap()], only, ..Bounds::default() });
        for allowed in ["10.9.9.9", "2001:db8::1", "::ffff:10.9.9.9"] {
            assert_eq!(reach.refusal(allowed.parse().unwrap()), None, "{allowed}");
        }
        for refused in ["10.0.0.1", "192.168.1.1", "2001:db9::1", "127.0.0.1"] {
            assert!(reach.refusal(refused.parse().unwrap()).is_some(), "{refused}");
        }
    }
}
