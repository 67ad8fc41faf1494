//! The resources that a run changes. The list has a limited size, because a stack can have 100,000 resources.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};

use super::events::{MAX_URN, ResourceState, ResourceStep};
use super::operations::{Effect, MISSING, REASSIGN, RELINQUISH, RENAME};

/// Maximum number of steps in the list.
pub const MAX_STEPS: usize = 200;
/// Maximum total size of the steps in the list, in bytes.
const MAX_SIZE: usize = 256 * 1024;
/// Maximum length of an operation name, in bytes. All engine operations have shorter names.
const MAX_OPERATION: usize = 64;
/// Assumed memory overhead per field, in bytes.
const OVERHEAD: usize = 8;
/// Maximum number of hashes in a [`HashedSet`].
const MAX_HASHES: usize = 500_000;
/// Maximum total size of the URNs in the deletion list, in bytes.
const MAX_DELETIONS: usize = 32 * 1024 * 1024;
const STACK_TYPE: &str = "pulumi:pulumi:Stack";
/// Type prefix of providers.
const PROVIDER_TYPE: &str = "pulumi:providers:";
/// Name prefix of default providers, which the engine creates if a program specifies no provider.
const DEFAULT_PROVIDER: &str = "default";
const CREATE: &str = "create";
const DELETE: &str = "delete";
const READ: &str = "read";
const REFRESH: &str = "refresh";
const REPLACE: &str = "replace";
const SAME: &str = "same";
const UPDATE: &str = "update";
/// The planned change to a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    pub urn: String,
    /// Operation of the engine, or an operation in [`super::operations`] that the engine does not report. The
    /// operations of a resource replacement form one step, `replace`.
    pub operation: String,
    /// Paths of the changed properties. For `rename`, the new URN.
    pub properties: Vec<String>,
}

/// A set of limited size that stores the hash of each value.
#[derive(Clone, Debug, Default)]
pub(super) struct HashedSet {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl HashedSet {
    /// Adds a value, unless the set is full. Returns `false` if the set already contains the value, and `true`
    /// otherwise.
    pub(super) fn insert(&mut self, value: impl Hash) -> bool {
        let hash = self.hasher.hash_one(value);
        match self.is_full() {
            true => !self.hashes.contains(&hash),
            false => self.hashes.insert(hash),
        }
    }

    pub(super) fn contains(&self, value: impl Hash) -> bool {
        self.hashes.contains(&self.hasher.hash_one(value))
    }

    pub(super) fn is_full(&self) -> bool {
        self.hashes.len() >= MAX_HASHES
    }
}

/// Collects the changed resources from a run's events.
#[derive(Clone, Debug, Default)]
pub struct PlannedSteps {
    /// Whether the run is a refresh.
    is_refresh: bool,
    /// The deletions and other losses, the replacements and the other steps, in this order.
    groups: [Vec<PlannedStep>; 3],
    /// Index of the first group that accepts no more steps, because the list is full.
    full_from: Option<usize>,
    /// Total size of the steps in the list, in bytes.
    size: usize,
    /// All changed resources and their operations. The set prevents duplicates, because the engine can report the same
    /// change repeatedly.
    known: HashedSet,
    count: usize,
    /// Number of resources for each operation that the engine does not report.
    derived: BTreeMap<&'static str, u64>,
    /// The URNs of all deletions. `None` if the caller does not need a list of the deletions.
    deletions: Option<Deletions>,
}

/// URNs, with a limited total size.
#[derive(Clone, Debug, Default)]
struct Deletions {
    urns: BTreeSet<String>,
    size: usize,
}

impl PlannedSteps {
    /// Creates a collector for a refresh.
    pub fn of_refresh() -> Self {
        PlannedSteps { is_refresh: true, ..PlannedSteps::default() }
    }

    /// Creates a collector for a destroy, which also collects the URNs of all deletions.
    pub fn of_destroy() -> Self {
        PlannedSteps { deletions: Some(Deletions::default()), ..PlannedSteps::default() }
    }

    /// Adds a completed step of the engine.
    pub(super) fn observe(&mut self, step: &ResourceStep) {
        if step.operation == DELETE
            && let Some(deletions) = &mut self.deletions
        {
            deletions.add(&step.urn);
        }
        if step.resource_type == STACK_TYPE {
            return;
        }
        if self.is_change(step) {
            let properties = step.properties.as_deref().unwrap_or_default();
            self.add(&step.urn, &step.operation, properties);
        }
        if !self.is_refresh {
            for (urn, operation, property) in derived(step) {
                if self.add(urn, operation, &[property.to_owned()]) {
                    *self.derived.entry(operation).or_default() += 1;
                }
            }
        }
    }

    fn is_change(&self, step: &ResourceStep) -> bool {
        let is_compared = !self.is_refresh || step.operation != UPDATE || is_compared_by_refresh(step);
        Effect::of(&step.operation) != Some(Effect::None) && is_compared && !is_default_provider(step)
    }

    /// Adds the operation on a resource. Returns `false` if the collector already contains the operation.
    fn add(&mut self, urn: &str, operation: &str, properties: &[String]) -> bool {
        let operation = operation.get(..operation.floor_char_boundary(MAX_OPERATION)).unwrap_or_default();
        let (operation, group) = match Effect::of(operation) {
            Some(Effect::Loss) => (operation, 0),
            Some(Effect::Replacement) => (REPLACE, 1),
            _ => (operation, 2),
        };
        if !self.known.insert((urn, operation)) {
            self.add_properties(urn, operation, group, properties);
            return false;
        }
        self.count += 1;
        // Without a complete URN, the controller cannot compare the resource with patterns.
        if self.full_from.is_some_and(|full| group >= full) || urn.len() > MAX_URN {
            return true;
        }
        let planned = PlannedStep {
            urn: urn.to_owned(),
            operation: operation.to_owned(),
            properties: properties.iter().filter(|path| !path.is_empty()).cloned().collect(),
        };
        self.size += size(&planned);
        if let Some(steps) = self.groups.get_mut(group) {
            steps.push(planned);
        }
        self.truncate();
        true
    }

    /// Adds the properties to a step that the list contains without properties. The first operation of a replacement
    /// can be a deletion, for which the engine reports no properties.
    fn add_properties(&mut self, urn: &str, operation: &str, group: usize, properties: &[String]) {
        let is_same = |step: &&mut PlannedStep| step.urn == urn && step.operation == operation;
        let Some(step) = self.groups.get_mut(group).and_then(|steps| steps.iter_mut().find(is_same)) else { return };
        if step.properties.is_empty() {
            step.properties = properties.to_vec();
            self.size += properties.iter().map(|path| path.len() + OVERHEAD).sum::<usize>();
            self.truncate();
        }
    }

    /// Removes steps from the end until the list is within its limits.
    fn truncate(&mut self) {
        while self.groups.iter().map(Vec::len).sum::<usize>() > MAX_STEPS || self.size > MAX_SIZE {
            let Some((group, steps)) = self.groups.iter_mut().enumerate().rfind(|(_, steps)| !steps.is_empty()) else {
                return;
            };
            if let Some(last) = steps.pop() {
                self.size -= size(&last);
            }
            self.full_from = Some(group);
        }
    }

    /// Returns the number of resources that the run changes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of resources for each operation that the engine does not report.
    pub fn derived(&self) -> &BTreeMap<&'static str, u64> {
        &self.derived
    }

    /// Returns the changed resources: first deletions and other losses, then replacements, then other changes. Omits
    /// resources that do not fit into the list, and resources with an overlong URN.
    pub fn steps(&self) -> impl Iterator<Item = &PlannedStep> {
        self.groups.iter().flatten()
    }

    /// Returns the sorted URNs of all deletions. Returns `None` if their total size exceeds the limit, or if the
    /// collector does not collect deletions.
    pub fn deletions(&self) -> Option<&BTreeSet<String>> {
        self.deletions.as_ref().filter(|deletions| deletions.size <= MAX_DELETIONS).map(|deletions| &deletions.urns)
    }
}

impl Deletions {
    fn add(&mut self, urn: &str) {
        if self.size <= MAX_DELETIONS && self.urns.insert(urn.to_owned()) {
            self.size += urn.len();
        }
    }
}

/// Returns the changes in a step that the engine does not report as an operation. Each change consists of the URN in the
/// state before the step, the operation, and a property for the list.
fn derived(step: &ResourceStep) -> impl Iterator<Item = (&str, &'static str, &str)> {
    let old = step.old.as_ref();
    let managed = old.filter(|old| old.is_managed && !old.is_replaced);
    let is_renamed = |old: &&ResourceState| !old.is_external && !old.urn.is_empty() && old.urn != step.urn;
    let is_reassigned = |old: &&ResourceState| {
        let provider = step.new.as_ref().map(|new| new.provider.as_str()).unwrap_or_default();
        // A new version of a plugin has another default provider.
        step.operation == SAME
            && provider != old.provider
            && !(is_default_provider_name(name(provider)) && is_default_provider_name(name(&old.provider)))
    };
    let changes = [
        managed.filter(|_| step.operation == REFRESH && step.new.is_none()).map(|old| (MISSING, old, "")),
        managed.filter(|_| step.operation == READ).map(|old| (RELINQUISH, old, "")),
        old.filter(is_renamed).map(|old| (RENAME, old, step.urn.as_str())),
        managed.filter(is_reassigned).map(|old| (REASSIGN, old, "provider")),
    ];
    changes.into_iter().flatten().map(|(operation, old, property)| (old.urn.as_str(), operation, property))
}

/// Returns whether a refresh has compared the resource that it reports as updated. If a refresh runs the program, the
/// engine reports the stack, providers and components as updated without comparing them with actual resources. The
/// properties can be missing for a compared resource, because some providers do not report them, and old versions of the
/// CLI report none.
fn is_compared_by_refresh(step: &ResourceStep) -> bool {
    let is_managed = step.new.as_ref().or(step.old.as_ref()).is_some_and(|state| state.is_managed);
    !step.resource_type.starts_with(PROVIDER_TYPE) && (step.properties.is_some() || is_managed)
}

/// Returns whether the step creates or deletes a default provider. The engine does not count default providers as
/// resources.
fn is_default_provider(step: &ResourceStep) -> bool {
    // An update to a default provider, for example to its region, counts as a change to a resource.
    let is_by_use = step.operation == CREATE || step.operation == DELETE;
    step.resource_type.starts_with(PROVIDER_TYPE) && is_default_provider_name(name(&step.urn)) && is_by_use
}

/// Returns whether a provider has the name of a default provider: `default`, or `default_` with a version.
fn is_default_provider_name(name: &str) -> bool {
    let version = name.strip_prefix(DEFAULT_PROVIDER).unwrap_or("no");
    version.strip_prefix('_').map_or(version.is_empty(), |rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the name of a resource, or an empty string if the URN is invalid.
fn name(urn: &str) -> &str {
    urn.splitn(4, "::").nth(3).unwrap_or_default()
}

fn size(step: &PlannedStep) -> usize {
    let texts = step.properties.iter().chain([&step.urn, &step.operation]);
    texts.map(|text| text.len() + OVERHEAD).sum()
}

#[cfg(test)]
mod tests;
