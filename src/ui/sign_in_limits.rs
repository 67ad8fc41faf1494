//! Limits the rate of sign-ins, per peer and in total. Each sign-in causes a request to the API server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::server::{Bucket, Rate};

/// Rate limit for a peer's sign-ins.
const PER_PEER: Rate = Rate { burst: 10, interval: Duration::from_secs(3) };
/// Rate limit for the sign-ins from all peers together.
const IN_TOTAL: Rate = Rate { burst: 50, interval: Duration::from_millis(200) };
/// Maximum number of peers that have their own rate limit. Only the total rate limit applies to further peers.
const MAX_PEERS: usize = 1024;

/// Rate limits of sign-ins. Hold the lock only for short critical sections, and never across an `.await`.
#[derive(Default)]
pub(super) struct SignInLimits(Mutex<State>);

#[derive(Default)]
struct State {
    total: Option<Bucket>,
    peers: HashMap<IpAddr, Bucket>,
}

impl SignInLimits {
    /// Counts a sign-in, and returns whether the rate limits permit it. A sign-in that exceeds the rate limit of its
    /// peer does not count towards the total rate limit.
    pub(super) fn may_sign_in(&self, peer: Option<IpAddr>, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peer {
            if state.peers.len() >= MAX_PEERS {
                state.peers.retain(|_, bucket| !bucket.is_full(now));
            }
            let known = state.peers.get(&peer).copied();
            let Some(bucket) = Bucket::take(known, PER_PEER, now) else { return false };
            if known.is_some() || state.peers.len() < MAX_PEERS {
                state.peers.insert(peer, bucket);
            }
        }
        let Some(total) = Bucket::take(state.total, IN_TOTAL, now) else { return false };
        state.total = Some(total);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    #[test]
    fn a_peer_may_sign_in_ten_times_and_then_every_three_seconds() {
        let (limits, begin) = (SignInLimits::default(), Instant::now());
        let at = |milliseconds: u64| begin + Duration::from_millis(milliseconds);
        assert!((0..10).all(|_| limits.may_sign_in(peer(1), begin)));
        let rows = [(0, false), (2999, false), (3000, true), (3001, false), (6000, true), (6000, false)];
        for (milliseconds, expected) in rows {
            assert_eq!(limits.may_sign_in(peer(1), at(milliseconds)), expected, "after {milliseconds} ms");
        }
        assert!(limits.may_sign_in(peer(2), begin), "another peer");
    }

    #[test]
    fn all_peers_share_a_limit_and_their_number_is_bounded() {
        let (limits, begin) = (SignInLimits::default(), Instant::now());
        let allowed = (0..10_000).filter(|number| limits.may_sign_in(peer(*number), begin)).count();
        assert_eq!(allowed, 50);
        assert!(limits.0.lock().unwrap().peers.len() <= MAX_PEERS);
        assert!(limits.may_sign_in(peer(0), begin + Duration::from_secs(60)));
    }
}
