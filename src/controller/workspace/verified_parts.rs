//! Cache of Workspaces whose Service, certificate, PodDisruptionBudget and StatefulSet were correct a short time ago. A
//! Workspace is reconciled a dozen times while a pod starts and a run executes, almost always because of the pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::controller::authority::Generations;

/// Time for which the objects are trusted while the pod is ready. A deleted object is needed only by the next pod.
const TRUSTED_AT_REST: Duration = Duration::from_secs(10 * 60);
/// Time for which the objects are trusted while the pod is not ready, which a missing object may cause.
const TRUSTED_AT_START: Duration = Duration::from_secs(60);

/// Verified objects by namespace and name of the Workspace.
#[derive(Default)]
pub(super) struct VerifiedParts {
    /// Locked only for short sections.
    known: Mutex<HashMap<(String, String), Known>>,
}

/// State of the objects of one Workspace.
enum Known {
    Right(Seen),
    /// An object has changed. Earlier reads may be stale.
    ChangedAt(Instant),
}

/// Inputs for which the objects were correct, and the time of the read.
struct Seen {
    parts_hash: String,
    authority: Arc<Generations>,
    at: Instant,
}

impl VerifiedParts {
    /// Returns whether the objects with this hash need not be read again. `ready` is the readiness of the pod.
    pub(super) fn contains(
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

    /// Records that all objects were read, starting at `begun`, and are correct.
    pub(super) fn insert(
        &self,
        workspace: (&str, &str),
        parts_hash: &str,
        authority: &Arc<Generations>,
        begun: Instant,
    ) {
        let mut known = self.lock();
        known.retain(|_, known| known.at().elapsed() < TRUSTED_AT_REST);
        if matches!(known.get(&key(workspace)), Some(Known::ChangedAt(changed)) if *changed >= begun) {
            return;
        }
        let seen = Seen { parts_hash: parts_hash.to_owned(), authority: authority.clone(), at: begun };
        known.insert(key(workspace), Known::Right(seen));
    }

    /// Records that an object has changed or is not correct.
    pub(super) fn invalidate(&self, workspace: (&str, &str)) {
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
    async fn verified_parts_expire_and_apply_only_to_the_verified_inputs() {
        let (verified, ours, next) = (VerifiedParts::default(), authority(), authority());
        assert!(!verified.contains(APP, "a", &ours, true), "never seen");
        verified.insert(APP, "a", &ours, Instant::now());
        assert!(verified.contains(APP, "a", &ours, true));
        assert!(!verified.contains(APP, "b", &ours, true), "another spec");
        assert!(!verified.contains(APP, "a", &next, true), "another authority");
        assert!(!verified.contains(("team", "other"), "a", &ours, true));
        tokio::time::advance(TRUSTED_AT_START).await;
        assert!(!verified.contains(APP, "a", &ours, false), "too long for a pod that does not become ready");
        assert!(verified.contains(APP, "a", &ours, true));
        tokio::time::advance(TRUSTED_AT_REST).await;
        assert!(!verified.contains(APP, "a", &ours, true), "long ago");
        let begun = Instant::now();
        verified.insert(APP, "a", &ours, begun);
        verified.invalidate(APP);
        assert!(!verified.contains(APP, "a", &ours, true), "changed since");
        verified.insert(APP, "a", &ours, begun);
        assert!(!verified.contains(APP, "a", &ours, true), "changed while it was read");
        tokio::time::advance(Duration::from_millis(1)).await;
        verified.insert(APP, "a", &ours, Instant::now());
        assert!(verified.contains(APP, "a", &ours, true), "read again");
    }
}
