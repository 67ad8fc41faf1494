//! Tests for the dependents index and the cycle search.

use futures::{FutureExt, StreamExt};
use serde_json::json;

use super::*;
use crate::runtime::index::StoreWriter as _;

fn stack(namespace: &str, name: &str, needs: &[&str]) -> Stack {
    let prerequisites: Vec<_> = needs.iter().map(|name| json!({"name": name})).collect();
    serde_json::from_value(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"namespace": namespace, "name": name},
        "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}, "prerequisites": prerequisites},
    }))
    .unwrap()
}

fn ready(name: &str, status: &str, reason: &str) -> Stack {
    let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    Stack { status: serde_json::from_value(json!({"conditions": [ready]})).unwrap(), ..stack("apps", name, &[]) }
}

/// Returns the Stacks that the events requeue, in order.
fn requeued(no_cross_namespace_refs: bool, events: Vec<Event<Stack>>) -> Vec<String> {
    let (store, mut writer) = stacks();
    let (dependents, mut requeued) = Dependents::new(store, no_cross_namespace_refs);
    let mut names = Vec::new();
    for event in events {
        writer.apply(&event);
        dependents.handle(&event);
        let stacks = std::iter::from_fn(|| requeued.next().now_or_never().flatten());
        names.extend(stacks.map(|stack| format!("{}/{}", stack.namespace.unwrap_or_default(), stack.name)));
    }
    names
}

fn listed(stacks: impl IntoIterator<Item = Stack>) -> Vec<Event<Stack>> {
    let all = stacks.into_iter().map(Event::InitApply);
    std::iter::once(Event::Init).chain(all).chain([Event::InitDone]).collect()
}

#[test]
fn dependents_are_requeued_when_the_state_of_a_dependency_changes() {
    let others = [("apps", "a", vec!["base"]), ("apps", "b", vec![]), ("more", "c", vec!["base"])];
    let others = others.map(|(namespace, name, needs)| Event::Apply(stack(namespace, name, &needs)));
    let base = [
        Event::Apply(ready("base", "False", "UpdateFailed")),
        // A new reason of `Ready` unblocks no dependents.
        Event::Apply(ready("base", "False", "NotReadyInProgress")),
        Event::Apply(ready("base", "True", "ProcessingCompleted")),
        Event::Apply(ready("base", "True", "ProcessingCompleted")),
        Event::Delete(ready("base", "True", "ProcessingCompleted")),
    ];
    assert_eq!(requeued(true, others.into_iter().chain(base).collect()), ["apps/a"; 3]);
}

#[test]
fn the_dependencies_of_a_deleted_stack_are_requeued() {
    let app = || stack("apps", "app", &["base"]);
    let seen = vec![Event::Apply(app()), Event::Delete(app())];
    assert_eq!(requeued(true, seen), ["apps/base"]);
    let unseen = listed([app(), stack("apps", "base", &[])]).into_iter().chain(listed([stack("apps", "base", &[])]));
    assert_eq!(
        requeued(true, unseen.collect()),
        ["apps/app", "apps/base"],
        "the second list does not contain the dependent"
    );
}

#[test]
fn a_dependency_cycle_is_reported_in_a_bounded_message() {
    let (store, mut writer) = stacks();
    let mut add = |name: &str, needs: &str| writer.apply(&Event::Apply(stack("apps", name, &[needs])));
    let (dependents, _requeued) = Dependents::new(store, true);
    [("a", "base"), ("d", "a"), ("b", "none")].iter().for_each(|(name, needs)| add(name, needs));
    assert_eq!(dependents.cycle(&stack("apps", "base", &["d"])).unwrap(), ["base", "d", "a", "base"]);
    assert_eq!(dependents.cycle(&stack("apps", "base", &["b"])), None);
    assert_eq!(dependents.cycle(&stack("apps", "new", &["new"])).unwrap(), ["new", "new"]);
    (0..100).for_each(|number| add(&format!("n{number}"), &format!("n{}", (number + 1) % 100)));
    let named = dependents.cycle(&stack("apps", "n0", &["n1"])).unwrap();
    assert_eq!((named.len(), named.last().map(String::as_str)), (MAX_LISTED + 2, Some("n0")), "{named:?}");
}

#[test]
fn cross_namespace_dependents_are_ignored_if_not_allowed() {
    let mut stranger = stack("more", "stranger", &[]);
    let base = json!([{"name": "base", "namespace": "apps"}]);
    stranger.spec.depends_on = serde_json::from_value(base).unwrap();
    let events = || vec![Event::Apply(stranger.clone()), Event::Apply(stack("apps", "base", &[]))];
    assert_eq!(requeued(true, events()), [""; 0]);
    assert_eq!(requeued(false, events()), ["more/stranger"]);
}

#[test]
fn a_stack_is_indexed_by_its_source_and_dependencies() {
    let stack: Stack = serde_json::from_value(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"namespace": "apps", "name": "web"},
        "spec": {
            "stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b", "namespace": "base"}},
            "prerequisites": [{"name": "net"}], "dependsOn": [{"name": "db"}, {"name": "dns", "namespace": "base"}],
        },
    }))
    .expect("valid Stack");
    let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    let bucket = GroupKind::new("source.toolkit.fluxcd.io", "Bucket");
    let expected = [
        StackGroup::Needs(key("apps", "net")),
        StackGroup::Needs(key("apps", "db")),
        StackGroup::Needs(key("base", "dns")),
        StackGroup::SourceKind(bucket.clone()),
        StackGroup::Source(bucket, key("base", "b")),
    ];
    assert_eq!(groups_of(&stack), expected);
}

mod cycle {
    use std::cell::Cell;

    use super::super::*;

    fn key(name: impl ToString) -> ObjectKey {
        ("apps".to_owned(), name.to_string())
    }

    fn find_in(edges: &HashMap<ObjectKey, Vec<ObjectKey>>, of: &ObjectKey) -> Option<Vec<ObjectKey>> {
        find_cycle(of, |at, reach| {
            edges.get(at).into_iter().flatten().for_each(|(namespace, name)| reach(namespace, name))
        })
    }

    #[test]
    fn a_cycle_is_reported_only_for_the_stacks_in_it() {
        let edges: [(&str, &[&str], Option<&str>); 8] = [
            ("a", &["x", "b"], Some("a b c a")),
            ("b", &["c"], Some("b c a b")),
            ("c", &["a", "a"], Some("c a b c")),
            ("self", &["x", "self"], Some("self self")),
            ("before", &["a"], None),
            ("x", &["y"], None),
            ("diamond", &["x", "y"], None),
            ("long", &["l1", "l3"], Some("long l3 long")),
        ];
        let mut all: HashMap<_, _> =
            [("l1", "l2"), ("l2", "l3"), ("l3", "long")].map(|(of, needed)| (key(of), vec![key(needed)])).into();
        all.extend(edges.iter().map(|(of, needs, _)| (key(of), needs.iter().map(key).collect())));
        for (of, _, expected) in edges {
            let found = find_in(&all, &key(of));
            let found = found.map(|path| path.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" "));
            assert_eq!(found.as_deref(), expected, "{of}");
        }
        assert_eq!(find_in(&all, &key("unknown")), None);
    }

    #[test]
    fn cycle_detection_visits_each_stack_once() {
        const STACKS: usize = 10_000;
        for width in [1, 100] {
            let needs = |number: usize| (number + 1..=number + width).filter(|next| *next < STACKS).map(key).collect();
            let mut edges: HashMap<ObjectKey, Vec<ObjectKey>> =
                (0..STACKS).map(|number| (key(number), needs(number))).collect();
            let visits = Cell::new(0);
            let walk = |edges: &HashMap<ObjectKey, Vec<ObjectKey>>| {
                find_cycle(&key(0), |at, reach| {
                    visits.set(visits.get() + 1);
                    edges.get(at).into_iter().flatten().for_each(|(namespace, name)| reach(namespace, name));
                })
            };
            assert_eq!(walk(&edges), None);
            assert_eq!(visits.replace(0), STACKS);
            edges.insert(key(STACKS - 1), vec![key(0)]);
            let path = walk(&edges).expect("a cycle");
            assert_eq!(visits.get(), STACKS);
            assert_eq!((path.first(), path.last()), (Some(&key(0)), Some(&key(0))));
            assert_eq!(path.len(), (STACKS - 1).div_ceil(width) + 2, "the cycle has the shortest length");
        }
    }
}
