//! Selects the pool pods that the controller creates and deletes. All functions are pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio::time::Instant;

/// Maximum number of pools per namespace. Without this limit, each Workspace with a different template would have its
/// own pool of idle pods.
const MAX_POOLS: usize = 4;

/// Workspace that can take a pod, or could take a pod until recently.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub namespace: String,
    pub workspace: String,
    /// Key of the pool.
    pub key: String,
    pub is_asleep: bool,
    /// Time at which the Workspace last went to sleep or woke up.
    pub since: Instant,
}

/// Pool pod that no Workspace has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreePod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Key of the pool.
    pub key: String,
    pub is_ready: bool,
    /// Whether the pod's containers have terminated and will not restart.
    pub has_ended: bool,
}

/// Change to a pool pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Delete(FreePod),
    /// Check the pod's certificate, and replace the certificate if it is missing or outdated.
    Certify(FreePod),
    /// Create a pod in the pool with the given key. The Service of the given Workspace owns the pod.
    Create {
        namespace: String,
        key: String,
        workspace: String,
    },
}

impl Change {
    pub fn namespace(&self) -> &str {
        match self {
            Change::Delete(pod) | Change::Certify(pod) => &pod.namespace,
            Change::Create { namespace, .. } => namespace,
        }
    }

    /// Returns whether the change deletes a pod whose containers have terminated.
    pub fn deletes_ended_pod(&self) -> bool {
        matches!(self, Change::Delete(pod) if pod.has_ended)
    }
}

/// Demand for a pool that at least one Workspace uses.
#[derive(Default)]
struct Demand<'a> {
    asleep: Vec<&'a str>,
    awake: usize,
    last_use: Option<Instant>,
}

/// Returns the changes to the pools. `sizes` contains the number of idle pods per pool, by namespace. The plan
/// contains no changes to namespaces that are missing from `sizes`. `certified` contains the UIDs of the pods with
/// current certificates. If `keeps_unused` is `true`, the plan keeps the pods in pools that no Workspace uses.
pub fn plan(
    waiting: &[Waiting],
    pods: &[FreePod],
    sizes: &HashMap<String, usize>,
    certified: &HashSet<String>,
    keeps_unused: bool,
) -> Vec<Change> {
    let mut namespaces: BTreeMap<&str, Members<'_>> = BTreeMap::new();
    for waiting in waiting {
        namespaces.entry(&waiting.namespace).or_default().waiting.push(waiting);
    }
    for pod in pods {
        namespaces.entry(&pod.namespace).or_default().pods.entry(&pod.key).or_default().push(pod);
    }
    let mut changes = Vec::new();
    for (namespace, members) in namespaces {
        if let Some(&size) = sizes.get(namespace) {
            plan_namespace(namespace, members, size, certified, keeps_unused, &mut changes);
        }
    }
    changes
}

/// Workspaces and free pods of a namespace.
#[derive(Default)]
struct Members<'a> {
    waiting: Vec<&'a Waiting>,
    /// Free pods by pool key. Tenants can create pods with many different keys, so the plan groups the pods only once.
    pods: BTreeMap<&'a str, Vec<&'a FreePod>>,
}

/// Adds the changes to the pools of a namespace to `changes`.
fn plan_namespace(
    namespace: &str,
    mut members: Members<'_>,
    size: usize,
    certified: &HashSet<String>,
    keeps_unused: bool,
    changes: &mut Vec<Change>,
) {
    let demands = demands(members.waiting.iter().copied());
    let pools = most_recent(&demands);
    let keys: BTreeSet<&str> = members.pods.keys().chain(demands.keys()).copied().collect();
    for key in keys {
        let demand = demands.get(key);
        let size = if demand.is_none() || pools.contains(key) { size } else { 0 };
        let (wanted, kept) = match demand {
            Some(demand) => (size.min(demand.asleep.len()), size.min(demand.asleep.len().saturating_add(demand.awake))),
            None => (0, if keeps_unused { size } else { 0 }),
        };
        let mut existing = members.pods.remove(key).unwrap_or_default();
        changes.extend(existing.extract_if(.., |pod| pod.has_ended).map(|pod| Change::Delete(pod.clone())));
        existing.sort_by_cached_key(|pod| (!pod.is_ready, pod.name.clone()));
        changes.extend(existing.iter().skip(kept).map(|pod| Change::Delete((*pod).clone())));
        let uncertified = existing.iter().take(kept).filter(|pod| !certified.contains(&pod.uid));
        changes.extend(uncertified.map(|pod| Change::Certify((*pod).clone())));
        let owner = demand.and_then(|demand| demand.asleep.first());
        changes.extend(owner.into_iter().flat_map(|workspace| {
            let (namespace, key, workspace) = (namespace.to_owned(), key.to_owned(), (*workspace).to_owned());
            let create = Change::Create { namespace, key, workspace };
            std::iter::repeat_n(create, wanted.saturating_sub(existing.len()))
        }));
    }
}

/// Orders the changes so that the namespaces take turns, with one change per namespace and turn. Each turn starts with
/// the namespace after `last`, the namespace of the last change that the controller has tried. A round is limited to a
/// number of changes, so without this order a namespace with many changes would block the pools of other namespaces.
pub fn in_turns(changes: Vec<Change>, last: &str) -> Vec<Change> {
    let mut turns: HashMap<String, usize> = HashMap::new();
    let with_turn = |change: Change| {
        let next = turns.entry(change.namespace().to_owned()).or_default();
        let turn = *next;
        *next += 1;
        (turn, change)
    };
    let mut ordered: Vec<(usize, Change)> = changes.into_iter().map(with_turn).collect();
    let position = |namespace: &str| namespace <= last;
    ordered.sort_by(|(turn, change), (other_turn, other)| {
        let (namespace, other) = (change.namespace(), other.namespace());
        (turn, position(namespace), namespace).cmp(&(other_turn, position(other), other))
    });
    ordered.into_iter().map(|(_, change)| change).collect()
}

/// Returns the demand for each pool in a namespace, by pool key.
fn demands<'a>(waiting: impl Iterator<Item = &'a Waiting>) -> BTreeMap<&'a str, Demand<'a>> {
    let mut demands: BTreeMap<&str, Demand<'_>> = BTreeMap::new();
    for Waiting { workspace, key, is_asleep, since, .. } in waiting {
        let demand = demands.entry(key).or_default();
        match *is_asleep {
            true => demand.asleep.push(workspace),
            false => demand.awake += 1,
        }
        demand.last_use = demand.last_use.max(Some(*since));
    }
    demands.values_mut().for_each(|demand| demand.asleep.sort_unstable());
    demands
}

/// Returns the keys of the most recently used pools, limited to [`MAX_POOLS`].
fn most_recent<'a>(demands: &BTreeMap<&'a str, Demand<'_>>) -> HashSet<&'a str> {
    let mut keys: Vec<(&str, Option<Instant>)> = demands.iter().map(|(key, demand)| (*key, demand.last_use)).collect();
    keys.sort_by_key(|(key, last_use)| (Reverse(*last_use), *key));
    keys.into_iter().take(MAX_POOLS).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a Workspace. `second` is the time at which the Workspace last went to sleep or woke up.
    fn workspace(name: &str, key: &str, is_asleep: bool, second: u64) -> Waiting {
        let (namespace, since) = ("team".to_owned(), start() + Duration::from_secs(second));
        Waiting { namespace, workspace: name.to_owned(), key: key.to_owned(), is_asleep, since }
    }

    fn start() -> Instant {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *START
    }

    fn asleep(name: &str, key: &str) -> Waiting {
        workspace(name, key, true, 0)
    }

    fn pod(name: &str, key: &str, is_ready: bool) -> FreePod {
        let (namespace, uid) = ("team".to_owned(), name.to_owned());
        FreePod { namespace, name: name.to_owned(), uid, key: key.to_owned(), is_ready, has_ended: false }
    }

    /// Returns the changes to the pools of a namespace as strings. `size` is the number of idle pods per pool.
    fn changes(waiting: &[Waiting], pods: &[FreePod], size: usize, keeps_unused: bool) -> Vec<String> {
        let certified = pods.iter().map(|pod| pod.uid.clone()).filter(|uid| uid != "new").collect();
        let planned = plan(waiting, pods, &[("team".to_owned(), size)].into(), &certified, keeps_unused);
        let describe = |change: Change| match change {
            Change::Delete(pod) => format!("delete {}", pod.name),
            Change::Certify(pod) => format!("certify {}", pod.name),
            Change::Create { key, workspace, .. } => format!("create {key} of {workspace}"),
        };
        planned.into_iter().map(describe).collect()
    }

    #[test]
    fn a_pool_has_at_most_one_pod_for_each_sleeping_workspace() {
        let two = [asleep("b", "k"), asleep("a", "k")];
        let none: [&str; 0] = [];
        assert_eq!(changes(&two, &[], 0, false), none);
        assert_eq!(changes(&two, &[], 1, false), ["create k of a"]);
        assert_eq!(changes(&two, &[], 3, false), ["create k of a", "create k of a"]);
        assert_eq!(changes(&two, &[pod("p", "k", false)], 3, false), ["create k of a"]);
        let pods = [pod("p1", "k", false), pod("p2", "k", true), pod("p3", "k", true)];
        assert_eq!(changes(&two, &pods, 3, false), ["delete p1"], "ready pods are kept");
        assert_eq!(
            changes(&two, &pods, 0, false),
            ["delete p2", "delete p3", "delete p1"],
            "the annotation was removed"
        );
        assert_eq!(changes(&[asleep("a", "k")], &[pod("new", "k", false)], 1, false), ["certify new"]);
        let evicted = FreePod { has_ended: true, ..pod("p", "k", false) };
        assert!(Change::Delete(evicted.clone()).deletes_ended_pod());
        assert!(!Change::Delete(pod("p", "k", false)).deletes_ended_pod());
        assert!(!Change::Certify(evicted.clone()).deletes_ended_pod());
        assert_eq!(changes(&[asleep("a", "k")], &[evicted], 1, false), ["delete p", "create k of a"]);
    }

    #[test]
    fn a_pool_keeps_its_pods_for_a_while_after_a_workspace_has_woken_up() {
        let pods = [pod("p1", "k", true), pod("p2", "k", true)];
        let awake = [workspace("a", "k", false, 9)];
        assert_eq!(changes(&awake, &pods, 2, false), ["delete p2"], "one pod for one Workspace");
        assert_eq!(changes(&awake, &[], 2, false).len(), 0, "no pod is created");
        assert_eq!(changes(&[], &pods, 2, false), ["delete p1", "delete p2"]);
        assert_eq!(changes(&[], &pods, 2, true).len(), 0, "not all Workspaces are known after a start");
        assert_eq!(changes(&[], &pods, 0, true), ["delete p1", "delete p2"]);
    }

    #[test]
    fn a_namespace_has_a_limited_number_of_pools() {
        let keys = ["a", "b", "c", "d", "e"];
        let waiting: Vec<Waiting> = (0..).zip(keys).map(|(second, key)| workspace(key, key, true, second)).collect();
        let expected = ["create b of b", "create c of c", "create d of d", "create e of e"];
        assert_eq!(changes(&waiting, &[], 1, false), expected);
        let pods = keys.map(|key| pod(key, key, true));
        assert_eq!(changes(&waiting, &pods, 1, false), ["delete a"], "the pod of the least recently used pool");
    }

    #[test]
    fn the_namespaces_take_turns() {
        let delete = |namespace: &str, name: usize| {
            Change::Delete(FreePod { namespace: namespace.to_owned(), ..pod(&name.to_string(), "k", true) })
        };
        let of = |namespace: &str, count: usize| (0..count).map(|number| delete(namespace, number)).collect::<Vec<_>>();
        let changes = [of("a", 40), of("b", 2), of("c", 1)].concat();
        let first = |last: &str, count: usize| {
            let ordered = in_turns(changes.clone(), last);
            assert_eq!(ordered.len(), changes.len());
            let describe = |change: &Change| match change {
                Change::Delete(pod) => format!("{}{}", pod.namespace, pod.name),
                other => panic!("{other:?}"),
            };
            ordered.iter().take(count).map(describe).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(first("", 7), "a0 b0 c0 a1 b1 a2 a3");
        assert_eq!(first("a", 6), "b0 c0 a0 b1 a1 a2", "the namespace of the last change is last");
        assert_eq!(first("b", 6), "c0 a0 b0 a1 b1 a2");
        assert_eq!(first("c", 4), "a0 b0 c0 a1");
        assert_eq!(first("bb", 4), "c0 a0 b0 a1", "a namespace without changes");
    }

    #[test]
    fn the_plan_groups_the_pods_of_several_namespaces() {
        let of = |namespace: &str, name: &str, key: &str| FreePod {
            namespace: namespace.to_owned(),
            ..pod(name, key, true)
        };
        let pods = [of("b", "b1", "k"), of("a", "a1", "k"), of("a", "a2", "j"), of("c", "c1", "k")];
        let sizes = [("a".to_owned(), 1), ("b".to_owned(), 1)].into();
        let planned = plan(&[], &pods, &sizes, &HashSet::new(), false);
        let expected = [&pods[2], &pods[1], &pods[0]].map(|pod| Change::Delete(pod.clone()));
        assert_eq!(planned, expected, "the settings of namespace c are unknown");
    }

    #[test]
    fn a_namespace_whose_settings_are_unknown_is_not_changed() {
        let planned = plan(&[asleep("a", "k")], &[pod("p", "j", true)], &HashMap::new(), &HashSet::new(), false);
        assert!(planned.is_empty(), "{planned:?}");
    }
}
