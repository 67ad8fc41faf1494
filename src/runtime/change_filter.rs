//! Filters watch events by the relevant state of each object. Most changes of a starting pod are not relevant to any
//! controller.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use futures::{Stream, TryStreamExt};
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};

/// Drops events of objects whose `state` has not changed since their last event. Deletions always pass.
pub fn only_changes<K, S>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    state: impl Fn(&K) -> S,
) -> impl Stream<Item = Result<K, watcher::Error>>
where
    K: Resource<DynamicType = ()> + Debug,
    S: Hash,
{
    let mut seen = Seen::default();
    events.try_filter_map(move |event| std::future::ready(Ok(seen.sift(event, &state))))
}

/// Hash of the last state of each object, by UID.
#[derive(Default)]
struct Seen {
    states: HashMap<String, u64>,
    /// States in the list of a restarted watch. Objects that are missing from this list were deleted.
    listed: HashMap<String, u64>,
}

impl Seen {
    fn sift<K: Resource<DynamicType = ()>, S: Hash>(&mut self, event: Event<K>, state: impl Fn(&K) -> S) -> Option<K> {
        let key = |object: &K| object.uid().unwrap_or_default();
        match event {
            Event::Apply(object) => {
                let now = hash(&state(&object));
                let before = self.states.insert(key(&object), now);
                (before != Some(now)).then_some(object)
            }
            Event::Delete(object) => {
                self.states.remove(&key(&object));
                Some(object)
            }
            Event::Init => {
                self.listed.clear();
                None
            }
            Event::InitApply(object) => {
                let now = hash(&state(&object));
                self.listed.insert(key(&object), now);
                (self.states.get(&key(&object)) != Some(&now)).then_some(object)
            }
            Event::InitDone => {
                self.states = std::mem::take(&mut self.listed);
                None
            }
        }
    }
}

fn hash(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(uid: &str, state: &str) -> ConfigMap {
        let object = json!({"metadata": {"uid": uid, "name": uid}, "data": {"state": state}});
        serde_json::from_value(object).expect("a ConfigMap")
    }

    fn state(object: &ConfigMap) -> Option<String> {
        object.data.as_ref()?.get("state").cloned()
    }

    #[test]
    fn unchanged_objects_are_filtered_and_deletions_pass() {
        let mut seen = Seen::default();
        let steps = [
            (Event::Init, false),
            (Event::InitApply(object("a", "1")), true),
            (Event::InitApply(object("b", "1")), true),
            (Event::InitDone, false),
            (Event::Apply(object("a", "1")), false),
            (Event::Apply(object("a", "2")), true),
            (Event::Apply(object("b", "1")), false),
            (Event::Delete(object("a", "2")), true),
            (Event::Apply(object("a", "2")), true),
            // The watch restarts; b was deleted in the meantime, without an event.
            (Event::Init, false),
            (Event::InitApply(object("a", "2")), false),
            (Event::InitDone, false),
            (Event::Apply(object("b", "1")), true),
        ];
        for (number, (event, comes)) in steps.into_iter().enumerate() {
            let text = format!("step {number}: {event:?}");
            assert_eq!(seen.sift(event, state).is_some(), comes, "{text}");
        }
    }
}
