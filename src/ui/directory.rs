//! Rows for all Stacks in the controller's scope. A watch keeps the rows up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt as _;
use kube::Api;
use kube::ResourceExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::UiError;
use super::row::{Key, Row};
use crate::api::pulumi::Stack;
use crate::api::tolerant::Tolerant;
use crate::runtime::tolerant_watcher;

/// Rows of all Stacks. Cheap to clone. Hold the lock only for short critical sections, and never across an `.await`.
#[derive(Clone)]
pub(super) struct Directory(Arc<Shared>);

struct Shared {
    state: RwLock<State>,
    /// Number of changes to the rows. Streams subscribe to this value to wait for the next change.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<Key, Arc<Row>>,
    /// Stacks in the initial list of a restarted watch. When the list is complete, the directory removes all other
    /// Stacks.
    listed: BTreeSet<Key>,
    is_listed: bool,
}

impl Default for Directory {
    fn default() -> Self {
        Directory(Arc::new(Shared { state: RwLock::default(), changes: watch::channel(0).0 }))
    }
}

impl Directory {
    /// Returns all rows, sorted by namespace and name.
    ///
    /// # Errors
    /// Returns an error if the initial list of Stacks is not complete yet.
    pub(super) fn rows(&self) -> Result<Vec<Arc<Row>>, UiError> {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        if !state.is_listed {
            return Err(UiError::NotListed);
        }
        Ok(state.rows.values().cloned().collect())
    }

    /// Returns the namespaces that contain Stacks.
    pub(super) fn namespaces(&self) -> BTreeSet<String> {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        state.rows.keys().map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Returns the row of a Stack.
    pub(super) fn row(&self, key: &Key) -> Option<Arc<Row>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner).rows.get(key).cloned()
    }

    /// Returns a channel that reports each change to a row.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Applies a watch event.
    pub(super) fn apply(&self, event: &Event<Stack>) {
        let key = |stack: &Stack| (stack.namespace().unwrap_or_default(), stack.name_any());
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(stack) => drop(state.rows.insert(key(stack), Arc::new(Row::of(stack)))),
            Event::Delete(stack) => drop(state.rows.remove(&key(stack))),
            Event::Init => state.listed.clear(),
            Event::InitApply(stack) => {
                state.listed.insert(key(stack));
                state.rows.insert(key(stack), Arc::new(Row::of(stack)));
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut state.listed);
                state.rows.retain(|key, _| listed.contains(key));
                state.is_listed = true;
            }
        }
        drop(state);
        self.0.changes.send_modify(|number| *number = number.wrapping_add(1));
    }
}

/// Watches the Stacks, and keeps the directory up to date.
pub(super) async fn follow(
    api: Api<Tolerant<Stack>>,
    config: watcher::Config,
    directory: Directory,
    end: CancellationToken,
) {
    let mut changes = pin!(tolerant_watcher::watcher(api, config));
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            () = end.cancelled() => return,
        };
        match change {
            Some(Ok(event)) => directory.apply(&event),
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to watch Stacks for the web UI");
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::stack;

    fn names(directory: &Directory) -> Vec<String> {
        directory.rows().unwrap().iter().map(|row| row.name.clone()).collect()
    }

    #[test]
    fn the_directory_contains_the_stacks_of_the_last_list_and_of_later_events() {
        let of = |name: &str| stack(name, &json!({}), &json!({}));
        let directory = Directory::default();
        assert!(matches!(directory.rows(), Err(UiError::NotListed)));
        let changes = directory.changes();
        for event in [Event::Init, Event::InitApply(of("b")), Event::InitApply(of("a")), Event::InitDone] {
            directory.apply(&event);
        }
        assert_eq!(names(&directory), ["a", "b"]);
        directory.apply(&Event::Apply(of("c")));
        directory.apply(&Event::Delete(of("a")));
        assert_eq!(names(&directory), ["b", "c"]);
        for event in [Event::Init, Event::InitApply(of("c")), Event::InitDone] {
            directory.apply(&event);
        }
        assert_eq!(names(&directory), ["c"]);
        assert!(directory.row(&("apps".to_owned(), "c".to_owned())).is_some());
        assert!(changes.has_changed().unwrap());
    }
}
