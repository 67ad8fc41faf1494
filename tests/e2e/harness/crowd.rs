//! Creates many Stacks with the same source in several namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use futures::future::join_all;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;
use tokio::time::timeout;

use super::program::Program;
use super::scene::Scene;
use super::stack::{StackHandle, describe, is_done};
use super::wait::WaitLimit;

/// Label of each Stack. The value identifies the Stacks of one crowd.
const LABEL: &str = "pulumi-controller.test/crowd";
/// Name of the GitRepository in each namespace.
const REPOSITORY: &str = "app";

/// Many Stacks that the harness has created at the same time.
pub struct Crowd<'a> {
    pub stacks: Vec<StackHandle<'a>>,
    /// Digest of the artifact that all Stacks use.
    pub digest: String,
    scene: &'a Scene,
    began: Instant,
}

/// Times from the creation of the first Stack until each Stack is Ready.
#[derive(Debug)]
pub struct CompletionTimes {
    /// Times for the Stacks in each namespace, in ascending order.
    pub done: BTreeMap<String, Vec<Duration>>,
    pub all_done: Duration,
}

impl<'a> Crowd<'a> {
    /// Creates the given number of Stacks in each scene simultaneously. The Stacks' program has one resource. The
    /// artifact is available before the harness creates the first Stack.
    pub async fn start(groups: &[(&'a Scene, usize)]) -> Crowd<'a> {
        let (scene, _) = *groups.first().expect("at least one scene");
        let source = scene.source(REPOSITORY).await;
        let program =
            Program::new("crowd").step("member", json!({"value": scene.id})).output("n", json!("${member.count}"));
        let commit = source.push(&program.files()).await;
        for (other, _) in groups.iter().skip(1) {
            source.track_in(other).await;
        }
        let mut digests = BTreeSet::new();
        for (member, _) in groups {
            digests.insert(member.until_served(REPOSITORY, &commit).await.digest);
        }
        assert_eq!(digests.len(), 1, "all namespaces have the same artifact: {digests:?}");
        let digest = digests.pop_first().expect("one digest");
        let began = Instant::now();
        let expected = groups.iter().flat_map(|(scene, count)| (0..*count).map(move |number| (*scene, number)));
        let stacks = join_all(expected.map(|(member, number)| async move {
            let mut stack = member.stack_on(&format!("s{number:02}"), REPOSITORY);
            stack.labels_mut().insert(LABEL.to_owned(), scene.id.clone());
            member.start(stack).await
        }));
        Crowd { stacks: stacks.await, digest, scene, began }
    }

    /// Waits until each Stack has applied the commit. Uses a watch, because polling sixty Stacks would increase the
    /// load.
    pub async fn until_done(&self, wait_limit: WaitLimit) -> CompletionTimes {
        let mut latest: BTreeMap<(String, String), Stack> = BTreeMap::new();
        let mut done: BTreeMap<(String, String), Duration> = BTreeMap::new();
        let watching = async {
            let all = watcher::Config::default().labels(&format!("{LABEL}={}", self.scene.id));
            let changes = watcher(Api::<Stack>::all(self.scene.client.clone()), all);
            let mut changes = pin!(changes.default_backoff().applied_objects());
            while done.len() < self.stacks.len() {
                // The API server can close a watch at any time. The watcher then starts another watch.
                let Ok(Some(stack)) = changes.try_next().await else { continue };
                let key = (stack.namespace().unwrap_or_default(), stack.name_any());
                if is_done(&stack) {
                    done.entry(key.clone()).or_insert_with(|| self.began.elapsed());
                }
                latest.insert(key, stack);
            }
        };
        let in_time = timeout(wait_limit.limit(), watching).await.is_ok();
        let open: Vec<Stack> =
            latest.into_iter().filter(|(key, _)| !done.contains_key(key)).map(|(_, stack)| stack).collect();
        assert!(
            in_time,
            "waited {:?} for {} Stacks to be Ready; {} are Ready. The others:\n{}",
            wait_limit.limit(),
            self.stacks.len(),
            done.len(),
            describe(&open)
        );
        CompletionTimes::new(&done)
    }
}

impl CompletionTimes {
    fn new(done: &BTreeMap<(String, String), Duration>) -> CompletionTimes {
        let mut by_namespace: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        for ((namespace, _), time) in done {
            by_namespace.entry(namespace.clone()).or_default().push(*time);
        }
        by_namespace.values_mut().for_each(|times| times.sort());
        CompletionTimes { done: by_namespace, all_done: done.values().max().copied().unwrap_or_default() }
    }
}

impl std::fmt::Display for CompletionTimes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count: usize = self.done.values().map(Vec::len).sum();
        write!(formatter, "{count} Stacks were Ready after {:.1} s", self.all_done.as_secs_f64())?;
        for (namespace, times) in &self.done {
            let at = |index: usize| times.get(index).copied().unwrap_or_default().as_secs_f64();
            let (first, half, last) = (at(0), at((times.len() - 1) / 2), at(times.len() - 1));
            write!(
                formatter,
                "; {} in {namespace}: the first after {first:.1} s, half after {half:.1} s, the last after {last:.1} s",
                times.len()
            )?;
        }
        Ok(())
    }
}
