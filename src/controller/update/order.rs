//! Order in which the Updates of a Workspace run. The Updates with an open run come first. The other Updates are ordered
//! by creation time and then by name. In all functions, `siblings` contains all Updates of the same Workspace.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::auto::Update;

/// Returns the open Update directly before `update`. The run of `update` cannot start while there is such an Update.
pub fn preceding<'a>(update: &Update, siblings: &'a [Arc<Update>]) -> Option<&'a Arc<Update>> {
    let precedes = |other: &&Arc<Update>| is_other_open(other, update) && position(other) < position(update);
    siblings.iter().filter(precedes).max_by(|one, other| position(one).cmp(&position(other)))
}

/// Returns another Update with an open run. If the pod is marked for `update`, only such an Update precedes `update`.
pub fn open_run<'a>(update: &Update, siblings: &'a [Arc<Update>]) -> Option<&'a Arc<Update>> {
    siblings.iter().find(|other| is_other_open(other, update) && !is_queued(other))
}

/// Returns the open Update directly after `update`, which can itself be completed or deleted.
pub fn following<'a>(update: &Update, siblings: &'a [Arc<Update>]) -> Option<&'a Arc<Update>> {
    let follows = |other: &&Arc<Update>| is_other_open(other, update) && position(other) > position(update);
    siblings.iter().filter(follows).min_by(|one, other| position(one).cmp(&position(other)))
}

/// Returns the Updates that do not wait for another Update: all Updates with an open run, and the first of the other
/// Updates. While a run is open, the latter waits for this run, but the copy of the Update in the cache can be outdated.
pub fn first(siblings: &[Arc<Update>]) -> impl Iterator<Item = &Arc<Update>> {
    let open = || siblings.iter().filter(|update| !update.is_complete());
    let queued = open().filter(|update| is_queued(update));
    let next = queued.min_by(|one, other| position(one).cmp(&position(other)));
    open().filter(|update| !is_queued(update)).chain(next)
}

fn is_other_open(other: &Update, update: &Update) -> bool {
    other.metadata.uid != update.metadata.uid && !other.is_complete()
}

/// Returns whether the run of an Update is not bound.
fn is_queued(update: &Update) -> bool {
    update.status.as_ref().is_none_or(|status| status.run.is_none())
}

/// Returns the sort key of an Update.
fn position(update: &Update) -> (bool, Option<&Time>, Option<&str>) {
    (is_queued(update), update.metadata.creation_timestamp.as_ref(), update.metadata.name.as_deref())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kube::ResourceExt;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{self, COMPLETE, ConditionUpdate, Status};

    fn update(name: &str, second: i64, started: bool) -> Arc<Update> {
        let mut update = Update::new(name, UpdateSpec::default());
        update.metadata.uid = Some(name.to_owned());
        update.metadata.creation_timestamp = Timestamp::from_second(second).ok().map(Time);
        let run = started.then(RunBinding::default);
        update.status = Some(UpdateStatus { run, ..UpdateStatus::default() });
        Arc::new(update)
    }

    fn completed(update: &Arc<Update>) -> Arc<Update> {
        let mut update = Update::clone(update);
        let complete = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
        let status = update.status.get_or_insert_default();
        conditions::set(&mut status.conditions, &complete, 1, Timestamp::UNIX_EPOCH);
        Arc::new(update)
    }

    fn name(found: Option<&Arc<Update>>) -> Option<String> {
        found.map(|update| update.name_any())
    }

    #[test]
    fn an_open_run_is_first_then_updates_are_ordered_by_time_and_name() {
        let (old, a, b, open) =
            (update("old", 5, false), update("a", 10, false), update("b", 10, false), update("open", 20, true));
        let all = [b.clone(), a.clone(), open.clone(), old.clone()];
        let rows = [
            (&open, None, Some("old")),
            (&old, Some("open"), Some("a")),
            (&a, Some("old"), Some("b")),
            (&b, Some("a"), None),
        ];
        for (update, before, after) in rows {
            assert_eq!(name(preceding(update, &all)).as_deref(), before, "before {}", update.name_any());
            assert_eq!(name(following(update, &all)).as_deref(), after, "after {}", update.name_any());
            // The Updates around a completed or deleted Update are those that were around the open Update.
            let without: Vec<_> = all.iter().filter(|other| other.uid() != update.uid()).cloned().collect();
            assert_eq!(name(following(update, &without)).as_deref(), after, "after the deleted {}", update.name_any());
            let ended = completed(update);
            let with_ended: Vec<_> = without.iter().chain([&ended]).cloned().collect();
            assert_eq!(name(following(&ended, &with_ended)).as_deref(), after, "after the ended {}", update.name_any());
            if let Some(next) = all.iter().find(|other| Some(other.name_any().as_str()) == after) {
                assert_eq!(name(preceding(next, &with_ended)).as_deref(), before, "{} has ended", update.name_any());
            }
        }
    }

    #[test]
    fn an_outdated_copy_of_an_update_does_not_precede_it() {
        let (waiting, started) = (update("a", 10, false), update("a", 10, true));
        for (update, cached) in [(&waiting, &started), (&started, &waiting)] {
            assert_eq!(name(preceding(update, std::slice::from_ref(cached))), None);
            assert_eq!(name(following(update, std::slice::from_ref(cached))), None);
        }
    }
}
