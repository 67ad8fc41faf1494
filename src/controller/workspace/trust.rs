//! What need not be read again yet: Service, certificate and StatefulSet of a Workspace were all as they shall be a short
//! while ago. While a pod starts and a run comes and goes a Workspace is looked at a dozen times, and nearly all of it is
//! about the pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::controller::authority::Generations;

/// How long the parts are trusted: at rest each look finds out how they are.
const TRUSTED_FOR: Duration = Duration::from_secs(60);

/// The parts that were seen to be right, by namespace and name of the Workspace.
#[derive(Default)]
pub(super) struct Trust {
    /// Locked for short sections only.
    seen: Mutex<HashMap<(String, String), Seen>>,
}

/// What they were right for, and when.
struct Seen {
    rendered_hash: String,
    authority: Arc<Generations>,
    at: Instant,
}

impl Trust {
    /// Whether the parts need not be read, if this is what is wanted of them.
    pub(super) fn holds(&self, workspace: (&str, &str), rendered_hash: &str, authority: &Arc<Generations>) -> bool {
        self.lock().get(&key(workspace)).is_some_and(|seen| {
            seen.rendered_hash == rendered_hash
                && Arc::ptr_eq(&seen.authority, authority)
                && seen.at.elapsed() < TRUSTED_FOR
        })
    }

    /// All parts were seen, and they are as wanted.
    pub(super) fn note(&self, workspace: (&str, &str), rendered_hash: &str, authority: &Arc<Generations>) {
        let seen = Seen { rendered_hash: rendered_hash.to_owned(), authority: authority.clone(), at: Instant::now() };
        let mut known = self.lock();
        known.retain(|_, seen| seen.at.elapsed() < TRUSTED_FOR);
        known.insert(key(workspace), seen);
    }

    /// Something has changed, or is about to.
    pub(super) fn end(&self, workspace: (&str, &str)) {
        self.lock().remove(&key(workspace));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (trust, ours, next) = (Trust::default(), authority(), authority());
        assert!(!trust.holds(APP, "a", &ours), "never seen");
        trust.note(APP, "a", &ours);
        assert!(trust.holds(APP, "a", &ours));
        assert!(!trust.holds(APP, "b", &ours), "another spec");
        assert!(!trust.holds(APP, "a", &next), "another authority");
        assert!(!trust.holds(("team", "other"), "a", &ours));
        tokio::time::advance(TRUSTED_FOR).await;
        assert!(!trust.holds(APP, "a", &ours), "long ago");
        trust.note(APP, "a", &ours);
        trust.end(APP);
        assert!(!trust.holds(APP, "a", &ours), "changed since");
    }
}
