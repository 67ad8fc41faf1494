//! Limits the rate of rejected tokens, per peer and in total, because the API server reviews each token.
//!
//! Accepted tokens do not count. While a limit is exceeded, the endpoint still reviews the tokens that the API server
//! has recently accepted: behind a proxy or `kubectl port-forward`, all clients have the same address, so a client with
//! invalid tokens could otherwise block the other clients.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::server::{Bucket, Rate};

/// Rate limit for a peer's rejected tokens.
const PER_PEER: Rate = Rate { burst: 10, interval: Duration::from_secs(3) };
/// Rate limit for the rejected tokens from all peers together.
const IN_TOTAL: Rate = Rate { burst: 50, interval: Duration::from_millis(200) };
/// Maximum number of peers that have their own rate limit. Only the total rate limit applies to further peers.
const MAX_PEERS: usize = 1024;
/// Maximum number of accepted tokens that the limits do not affect. A further token replaces the oldest token.
const MAX_ACCEPTED: usize = 1024;
/// Time after its last acceptance for which the limits do not affect a token.
const ACCEPTED_AGE: Duration = Duration::from_secs(60 * 60);

/// SHA-256 hash of a token. The process does not keep the tokens of its clients.
type TokenHash = [u8; 32];

/// Rate limits of rejected tokens. Hold the lock only for short critical sections, and never across an `.await`.
#[derive(Default)]
pub(super) struct RejectedTokens(Mutex<State>);

#[derive(Default)]
struct State {
    total: Option<Bucket>,
    peers: HashMap<IpAddr, Bucket>,
    /// Time at which the API server last accepted a token.
    accepted: HashMap<TokenHash, Instant>,
}

impl RejectedTokens {
    /// Returns whether the limits permit a review of the token.
    pub(super) fn may_review(&self, peer: Option<IpAddr>, token: &str, now: Instant) -> bool {
        let state = self.lock();
        let accepted = state.accepted.get(&hash(token));
        if accepted.is_some_and(|accepted| now.saturating_duration_since(*accepted) < ACCEPTED_AGE) {
            return true;
        }
        let own = peer.and_then(|peer| state.peers.get(&peer).copied());
        Bucket::take(own, PER_PEER, now).is_some() && Bucket::take(state.total, IN_TOTAL, now).is_some()
    }

    /// Records that the API server has accepted a token.
    pub(super) fn accept(&self, token: &str, now: Instant) {
        let (mut state, token) = (self.lock(), hash(token));
        if state.accepted.len() >= MAX_ACCEPTED && !state.accepted.contains_key(&token) {
            let oldest = state.accepted.iter().min_by_key(|(_, accepted)| **accepted).map(|(token, _)| *token);
            if let Some(oldest) = oldest {
                state.accepted.remove(&oldest);
            }
        }
        state.accepted.insert(token, now);
    }

    /// Counts a token that the API server has rejected.
    pub(super) fn reject(&self, peer: Option<IpAddr>, token: &str, now: Instant) {
        let mut state = self.lock();
        state.accepted.remove(&hash(token));
        // Concurrent reviews can exceed a limit. The limit then stays exceeded.
        state.total = Bucket::take(state.total, IN_TOTAL, now).or(state.total);
        let Some(peer) = peer else { return };
        if state.peers.len() >= MAX_PEERS {
            state.peers.retain(|_, bucket| !bucket.is_full(now));
        }
        let known = state.peers.get(&peer).copied();
        let Some(bucket) = Bucket::take(known, PER_PEER, now) else { return };
        if known.is_some() || state.peers.len() < MAX_PEERS {
            state.peers.insert(peer, bucket);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    /// Reviews a token that the API server rejects. Returns whether the limits permit the review.
    fn rejected(limits: &RejectedTokens, peer: Option<IpAddr>, now: Instant) -> bool {
        let may_review = limits.may_review(peer, "random", now);
        if may_review {
            limits.reject(peer, "random", now);
        }
        may_review
    }

    #[test]
    fn a_peer_may_send_ten_rejected_tokens_and_then_one_every_three_seconds() {
        let (limits, begin) = (RejectedTokens::default(), Instant::now());
        assert!((0..10).all(|_| rejected(&limits, peer(1), begin)));
        for (milliseconds, expected) in [(0, false), (2999, false), (3000, true), (3001, false), (6000, true)] {
            let now = begin + Duration::from_millis(milliseconds);
            assert_eq!(rejected(&limits, peer(1), now), expected, "after {milliseconds} ms");
        }
        assert!(rejected(&limits, peer(2), begin), "another peer");
    }

    #[test]
    fn accepted_tokens_do_not_count_and_are_reviewed_while_a_limit_is_exceeded() {
        let (limits, begin) = (RejectedTokens::default(), Instant::now());
        for _ in 0..100 {
            assert!(limits.may_review(peer(1), "valid", begin));
            limits.accept("valid", begin);
        }
        while rejected(&limits, peer(1), begin) {}
        assert!(limits.may_review(peer(1), "valid", begin));
        assert!(!limits.may_review(peer(1), "unknown", begin));
        limits.reject(peer(1), "valid", begin);
        assert!(!limits.may_review(peer(1), "valid", begin), "the token is no longer valid");
        limits.accept("old", begin);
        let later = begin + ACCEPTED_AGE;
        while rejected(&limits, peer(1), later) {}
        assert!(!limits.may_review(peer(1), "old", later));
    }

    #[test]
    fn all_peers_share_a_limit_and_the_memory_is_bounded() {
        let (limits, begin) = (RejectedTokens::default(), Instant::now());
        assert_eq!((0..10_000).filter(|number| rejected(&limits, peer(*number), begin)).count(), 50);
        for number in 0..2 * MAX_PEERS as u32 {
            limits.reject(peer(number), "random", begin);
            limits.accept(&format!("token-{number}"), begin + Duration::from_millis(number.into()));
        }
        let state = limits.lock();
        assert_eq!((state.peers.len(), state.accepted.len()), (MAX_PEERS, MAX_ACCEPTED));
        let newest = 2 * MAX_PEERS as u32 - 1;
        assert!(state.accepted.contains_key(&hash(&format!("token-{newest}"))));
    }
}
