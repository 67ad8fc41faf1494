//! Tests that the index equals a scan of the store after arbitrary watch events, and tests for the wait for complete
//! caches.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::*;

/// Returns an object whose data has the given groups as keys.
fn object(name: &str, groups: &BTreeSet<u8>) -> ConfigMap {
    let data: serde_json::Map<_, _> = groups.iter().map(|group| (group.to_string(), json!(""))).collect();
    serde_json::from_value(json!({"metadata": {"namespace": "apps", "name": name}, "data": data})).unwrap()
}

fn groups_of(object: &ConfigMap) -> Vec<String> {
    object.data.iter().flatten().map(|(group, _)| group.clone()).collect()
}

fn names(objects: &[Arc<ConfigMap>]) -> BTreeSet<String> {
    objects.iter().map(|object| object.name_any()).collect()
}

#[test]
fn objects_move_between_groups_and_empty_groups_are_removed() {
    let (index, mut writer) = indexed(groups_of);
    let group = |name: &str| names(&index.in_group(&name.to_owned())).into_iter().collect::<Vec<_>>();
    writer.apply(&Event::Apply(object("a", &[1, 2].into())));
    writer.apply(&Event::Apply(object("b", &[2].into())));
    assert_eq!((group("1"), group("2")), (vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]));
    writer.apply(&Event::Apply(object("a", &[3].into())));
    assert_eq!((group("1"), group("2"), group("3")), (vec![], vec!["b".to_owned()], vec!["a".to_owned()]));
    assert!(!index.has_group(&"1".to_owned()));
    // No earlier event contained the group of the deleted version.
    writer.apply(&Event::Delete(object("a", &[9].into())));
    assert!(!index.has_group(&"3".to_owned()) && !index.has_group(&"9".to_owned()));
    assert_eq!(index.groups.read().unwrap().len(), 1);
}

#[test]
fn one_object_of_each_selected_group_is_returned() {
    let (index, mut writer) = indexed(groups_of);
    for (name, group) in [("a", 1), ("b", 1), ("c", 2), ("d", 3)] {
        writer.apply(&Event::Apply(object(name, &[group].into())));
    }
    let found = names(&index.one_per_group(|group| group != "3"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains("c") && !found.contains("d"), "{found:?}");
}

#[test]
fn a_group_contains_the_newest_version_of_each_object() {
    let (index, mut writer) = indexed(groups_of);
    for version in ["1", "2"] {
        let mut changed = object("a", &[1].into());
        changed.metadata.resource_version = Some(version.to_owned());
        writer.apply(&Event::Apply(changed));
    }
    let found = index.in_group(&"1".to_owned());
    assert_eq!(
        found.iter().map(|object| object.metadata.resource_version.clone()).collect::<Vec<_>>(),
        [Some("2".to_owned())]
    );
}

#[test]
fn a_list_replaces_the_index_only_after_its_last_object_is_read() {
    let (index, mut writer) = indexed(groups_of);
    writer.apply(&Event::Apply(object("old", &[1].into())));
    writer.apply(&Event::Init);
    writer.apply(&Event::InitApply(object("new", &[1].into())));
    assert_eq!(names(&index.in_group(&"1".to_owned())), ["old".to_owned()].into());
    writer.apply(&Event::InitDone);
    assert_eq!(names(&index.in_group(&"1".to_owned())), ["new".to_owned()].into());
}

fn events() -> impl Strategy<Value = Vec<Event<ConfigMap>>> {
    let some = || (0..6_u8, proptest::collection::btree_set(0..4_u8, 0..3));
    let some = move || some().prop_map(|(name, groups)| object(&name.to_string(), &groups));
    let list = proptest::collection::vec(some(), 0..4).prop_map(|objects| {
        let listed = objects.into_iter().map(Event::InitApply);
        std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]).collect::<Vec<_>>()
    });
    let step = prop_oneof![
        6 => some().prop_map(|object| vec![Event::Apply(object)]),
        3 => some().prop_map(|object| vec![Event::Delete(object)]),
        1 => list,
    ];
    proptest::collection::vec(step, 0..40).prop_map(|steps| steps.into_iter().flatten().collect())
}

proptest! {
    #[test]
    fn a_group_equals_the_result_of_a_full_scan(events in events()) {
        let (index, mut writer) = indexed(groups_of);
        for event in events {
            writer.apply(&event);
            for group in (0..4_u8).map(|group| group.to_string()) {
                let all = index.store().state();
                let scanned: Vec<_> = all.into_iter().filter(|object| groups_of(object).contains(&group)).collect();
                prop_assert_eq!(names(&index.in_group(&group)), names(&scanned));
                prop_assert_eq!(index.has_group(&group), !scanned.is_empty());
            }
        }
    }
}

fn cache<K>() -> (Indexed<K, ()>, IndexWriter<K, ()>)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    indexed(|_| vec![()])
}

/// Several controllers, each with several reconciliations, wait for the Update list.
#[tokio::test(start_paused = true)]
async fn all_reconciliations_continue_when_the_initial_list_is_complete() {
    let (updates, mut writer) = cache::<ConfigMap>();
    let controllers = [CacheSync::default().with(&updates), CacheSync::default().with(&updates)];
    let start = Instant::now();
    let reconcile = async |controller: usize| {
        controllers[controller].wait().await.expect("the list is complete within the timeout");
        assert_eq!(updates.in_group(&()).len(), 1, "the groups are built before the wait ends");
        start.elapsed()
    };
    let list = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut listed = ConfigMap::default();
        listed.metadata.name = Some("listed".to_owned());
        for event in [Event::Init, Event::InitApply(listed), Event::InitDone] {
            writer.apply(&event);
        }
    };
    let (times, ()) = tokio::join!(join_all((0..10).map(|number| reconcile(number % 2))), list);
    assert_eq!(times, [Duration::from_secs(2); 10]);
}

#[tokio::test(start_paused = true)]
async fn cache_sync_waits_for_the_first_list_of_every_cache() {
    let (one, mut one_writer) = cache::<ConfigMap>();
    let (two, mut two_writer) = cache::<Secret>();
    let sync = CacheSync::default().with(&one).with(&two);
    let mut listed = ConfigMap::default();
    listed.metadata.name = Some("listed".to_owned());
    for event in [Event::Init, Event::InitApply(listed), Event::InitDone] {
        assert!(sync.wait().await.is_err(), "before {event:?}");
        one_writer.apply(&event);
    }
    let error = sync.wait().await.expect_err("should time out without both lists").to_string();
    assert_eq!(error, "waiting for cache sync of Secret");
    two_writer.apply(&Event::Init);
    let (waited, ()) = tokio::join!(sync.wait(), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        two_writer.apply(&Event::InitDone);
    });
    assert!(waited.is_ok(), "the wait ends after the list: {waited:?}");
    two_writer.apply(&Event::Init);
    assert!(sync.wait().await.is_ok(), "the cache keeps its objects while a watch restarts");
}
