//! What need not be read again yet: Service, certificate and StatefulSet of a Workspace were all as they shall be a short
//! while ago. While a pod starts and a run comes and goes a Workspace is looked at a dozen times, and nearly all of it is
//! about the pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::controller::authority::Generations;

/// How long the parts are trusted while their pod is ready: what somebody has taken away since is needed by the next pod only.
const TRUSTED_AT_REST: Duration = Duration::from_secs(10 * 60);
/// How long while the pod is not ready, which may be for want of one of them.
const TRUSTED_AT_START: Duration = Duration::from_secs(60);

/// The parts that were seen to be right, by namespace and name of the Workspace.
#[derive(Default)]
pub(super) struct VerifiedParts {
    /// Locked for short sections only.
    known: Mutex<HashMap<(String, String), Known>>,
}

/// What is known of the parts of one Workspace.
enum Known {
    Right(Seen),
    /// Something has changed. What was read before may be from before.
    ChangedAt(Instant),
}

/// What they were right for, and when.
struct Seen {
    parts_hash: String,
    authority: Arc<Generations>,
    at: Instant,
}

impl VerifiedParts {
    /// Whether the parts need not be read, if this is what is wanted of them, and the pod is ready or not.
    pub(super) fn holds(
        &self,
        workspace: (&str, &str),
        parts_hash: &str,
        authority: &Arc<Generations>,
        ready: bool,
    ) -> bool {
        let trusted_for = if ready { TRUSTED_AT_REST } else { TRUSTED_AT_START };
        let known = self.lock();
        let Some(Known::Right(seen)) = known.get(&key(workspace)) else { return false };
        seen.parts_hash == parts_hash && Arc::ptr_eq(&seen.authority, authority) && seen.at.elapsed() < trusted_for
    }

    /// All parts were read, from `begun` on, and they are as wanted.
    pub(super) fn note(&self, workspace: (&str, &str), parts_hash: &str, authority: &Arc<Generations>, begun: Instant) {
        let mut known = self.lock();
        known.retain(|_, known| known.at().elapsed() < TRUSTED_AT_REST);
        if matches!(known.get(&key(workspace)), Some(Known::ChangedAt(changed)) if *changed >= begun) {
            return;
        }
        let seen = Seen { parts_hash: parts_hash.to_owned(), authority: authority.clone(), at: begun };
        known.insert(key(workspace), Known::Right(seen));
    }

    /// Something has changed, or is not as wanted.
    pub(super) fn end(&self, workspace: (&str, &str)) {
        self.lock().insert(key(workspace), Known::ChangedAt(Instant::now()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn at(&self) -> Instant {
        match self {
            Known::Right(seen) => seen.at,
            Known::ChangedAt(changed) => *changed,
        }
    }
}

fn key((namespace, name): (&str, &str)) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::rpc::identity::Authority;

    const APP: (&str, &str) = ("team", "app");

    fn authority() -> Arc<Generations> {
        Arc::new(Generations::first(Authority::generate(Timestamp::now()).expect("an authority")))
    }

    #[tokio::test(start_paused = true)]
    async fn parts_are_trusted_for_a_while_and_only_for_what_they_were_seen_to_be() {
        let (verified, ours, next) = (VerifiedParts::default(), authority(), authority());
        assert!(!verified.holds(APP, "a", &ours, true), "never seen");
        verified.note(APP, "a", &ours, Instant::now());
        assert!(verified.holds(APP, "a", &ours, true));
        assert!(!verified.holds(APP, "b", &ours, true), "another spec");
        assert!(!verified.holds(APP, "a", &next, true), "another authority");
        assert!(!verified.holds(("team", "other"), "a", &ours, true));
        tokio::time::advance(TRUSTED_AT_START).await;
        assert!(!verified.holds(APP, "a", &ours, false), "too long for a pod that does not become ready");
        assert!(verified.holds(APP, "a", &ours, true));
        tokio::time::advance(TRUSTED_AT_REST).await;
        assert!(!verified.holds(APP, "a", &ours, true), "long ago");
        let begun = Instant::now();
        verified.note(APP, "a", &ours, begun);
        verified.end(APP);
        assert!(!verified.holds(APP, "a", &ours, true), "changed since");
        verified.note(APP, "a", &ours, begun);
        assert!(!verified.holds(APP, "a", &ours, true), "changed while it was read");
        tokio::time::advance(Duration::from_millis(1)).await;
        verified.note(APP, "a", &ours, Instant::now());
        assert!(verified.holds(APP, "a", &ours, true), "read anew");
    }
}
