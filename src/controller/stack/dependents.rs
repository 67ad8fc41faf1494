//! Who waits for a Stack: those that name it as what has to be done first are woken when it may be.

use std::fmt;

use futures::Stream;
use futures::channel::mpsc;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::pulumi::Stack;
use crate::controller::stack::groups::{StackGroup, Stacks};
use crate::controller::stack::prerequisites;
use crate::runtime::backoff::ObjectKey;

/// How many Stacks may wait to be woken. One for which there is no room looks again by itself.
const WAITING: usize = 1024;

/// Knows who needs whom. Cheap to clone.
#[derive(Clone)]
pub struct Dependents {
    stacks: Stacks,
    /// Whether what a Stack names in another namespace counts for nothing: else who may write there could hold up the end of this one.
    no_cross_namespace_refs: bool,
    wake: mpsc::Sender<ObjectRef<Stack>>,
}

impl fmt::Debug for Dependents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Dependents").finish_non_exhaustive()
    }
}

impl Dependents {
    /// With the Stacks to wake, which the Stack controller reads.
    pub fn new(
        stacks: Stacks,
        no_cross_namespace_refs: bool,
    ) -> (Dependents, impl Stream<Item = ObjectRef<Stack>> + Send + 'static) {
        let (wake, woken) = mpsc::channel(WAITING);
        (Dependents { stacks, no_cross_namespace_refs, wake }, woken)
    }

    /// Where others wake Stacks.
    pub fn waker(&self) -> mpsc::Sender<ObjectRef<Stack>> {
        self.wake.clone()
    }

    /// Wakes those that need this Stack: it has changed, or stands otherwise than before.
    pub fn wake(&self, stack: &Stack) {
        self.of(stack).iter().for_each(|dependent| self.wake_one(dependent));
    }

    /// Wakes those that this Stack needs: it is gone, and one of them may have waited for that to go itself.
    pub fn wake_needed(&self, stack: &Stack) {
        let own = stack.namespace().unwrap_or_default();
        prerequisites::asked(&stack.spec, &own).iter().for_each(|(needed, _)| self.wake_one(needed));
    }

    /// Those that need this Stack.
    pub fn of(&self, stack: &Stack) -> Vec<ObjectKey> {
        let key = key(stack);
        let dependents = self.stacks.in_group(&StackGroup::Needs(key.clone()));
        let dependents = dependents.iter().map(|dependent| self::key(dependent));
        dependents.filter(|(namespace, _)| *namespace == key.0 || !self.no_cross_namespace_refs).collect()
    }

    fn wake_one(&self, (namespace, name): &ObjectKey) {
        if self.wake.clone().try_send(ObjectRef::new(name).within(namespace)).is_err() {
            tracing::debug!(stack = name, "it could not be woken; it looks again by itself");
        }
    }

    /// The way from a Stack over those that it needs back to itself, as it calls them.
    pub fn cycle(&self, stack: &Stack) -> Option<Vec<String>> {
        let of = key(stack);
        let needs = |other: &ObjectKey| match *other == of {
            true => needs(stack),
            false => {
                let found = self.stacks.store().get(&ObjectRef::new(&other.1).within(&other.0));
                found.map(|found| self::needs(&found)).unwrap_or_default()
            }
        };
        let way = prerequisites::cycle(&of, &needs)?;
        Some(way.iter().map(|key| prerequisites::called(key, &of.0)).collect())
    }
}

fn key(stack: &Stack) -> ObjectKey {
    (stack.namespace().unwrap_or_default(), stack.name_any())
}

/// Those that a Stack needs.
fn needs(stack: &Stack) -> Vec<ObjectKey> {
    let own = stack.namespace().unwrap_or_default();
    prerequisites::asked(&stack.spec, &own).into_iter().map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::controller::stack::groups::stacks;
    use crate::runtime::index::StoreWriter as _;

    fn stack(namespace: &str, name: &str, needs: &[&str]) -> Stack {
        let prerequisites: Vec<_> = needs.iter().map(|name| json!({"name": name})).collect();
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"namespace": namespace, "name": name},
            "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}, "prerequisites": prerequisites},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn those_that_need_a_stack_are_woken_and_no_others() {
        let (store, mut writer) = stacks();
        let others =
            [("apps", "a", vec!["base"]), ("apps", "b", vec![]), ("more", "c", vec!["base"]), ("apps", "d", vec!["a"])];
        for (namespace, name, needs) in others {
            writer.apply(&Event::Apply(stack(namespace, name, &needs)));
        }
        let (dependents, woken) = Dependents::new(store, true);
        dependents.wake(&stack("apps", "base", &[]));
        assert_eq!(dependents.cycle(&stack("apps", "base", &["d"])).unwrap(), ["base", "d", "a", "base"]);
        assert_eq!(dependents.cycle(&stack("apps", "base", &["b"])), None);
        drop(dependents);
        let woken: Vec<String> = woken.map(|stack| stack.to_string()).collect().await;
        assert_eq!(woken.len(), 1, "{woken:?}");
        assert!(woken[0].contains("Stack") && woken[0].contains("a."), "{woken:?}");
    }

    #[tokio::test]
    async fn nobody_in_another_namespace_counts_where_nobody_may_refer_there() {
        let (store, mut writer) = stacks();
        let mut stranger = stack("more", "stranger", &[]);
        let base = json!([{"name": "base", "namespace": "apps"}]);
        stranger.spec.depends_on = serde_json::from_value(base).unwrap();
        writer.apply(&Event::Apply(stranger));
        let of = |no_cross_namespace_refs| {
            let (dependents, _woken) = Dependents::new(store.clone(), no_cross_namespace_refs);
            dependents.of(&stack("apps", "base", &[]))
        };
        assert_eq!(of(true), []);
        assert_eq!(of(false), [("more".to_owned(), "stranger".to_owned())]);
    }
}
