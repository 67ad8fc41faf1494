//! Detects duplicates: Stacks that manage the same Pulumi stack and would revert each other's changes. Only one of
//! these Stacks takes precedence and starts runs: the oldest Stack that has applied the Pulumi stack, even if its `up`
//! has failed. If no Stack has applied the Pulumi stack, the oldest Stack takes precedence. The other Stacks are stalled
//! until a user deletes the Stack that takes precedence, or until that Stack manages another Pulumi stack.
//!
//! A Stack in another namespace takes precedence only if it has applied the Pulumi stack, and this Stack has not. With
//! `--no-cross-namespace-refs`, a Stack in another namespace never takes precedence. Otherwise, a user could block a
//! Stack in another namespace by creating a Stack for the same Pulumi stack. The agent of a Stack reports what the Stack
//! has applied, and a user can replace this agent. A false report can therefore block only Stacks that have not applied
//! the Pulumi stack yet.
//!
//! If only the environment of the pod contains the location of the Pulumi stack, the index cannot compare the Stack
//! before its first run. The index then provides the Pulumi stacks that the other Stacks of the namespace have applied,
//! and the agent compares them with its own before each run ([`DuplicateStacks::begin`]). Two first runs that can use the
//! same Pulumi stack do not overlap, so the second one knows what the first one has applied.
//!
//! The index also determines whether the destroy of a deleted Stack would destroy resources that another Stack of the
//! namespace claims, for example after a user has renamed the Stack in Git. A claim does not depend on the precedence,
//! and a possible claim is sufficient: a part of the Pulumi stack that is still unknown does not rule out the claim.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};

use crate::api::auto::{AppliedByOther, UpdateKind, Workspace};
use crate::api::bounds;
use crate::api::conditions::update_reason;
use crate::api::pulumi::{CurrentUpdate, PulumiStack, Stack};
use crate::controller::stack::backend::{self, Address};
use crate::controller::stack::identity;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::requeue::Requeue;

/// Maximum number of Pulumi stacks that the agent compares with the Pulumi stack of a run.
const MAX_APPLIED_BY_OTHERS: usize = bounds::APPLIED_BY_OTHERS as usize;

/// Pulumi stack that a Stack manages, and the fields that determine the Stack's precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    /// Address of the Pulumi stack. Two Stacks with the same address and the same project manage the same Pulumi stack.
    address: Address,
    /// Address of the Pulumi stack that the last run used, or that the spec defines completely. Does not depend on the
    /// fields of the spec that contain the parts of the address.
    resolved_address: Option<String>,
    /// Address of the Pulumi stack that the spec alone defines completely.
    visible_address: Option<String>,
    /// Volume with the file that contains the applied Pulumi stack, if other Stacks can mount this volume.
    applied_volume: Option<Value>,
    /// Attempt number of the open `up`, which the Stack's status may not contain yet. `None` if no `up` is open.
    open_up: Option<i64>,
    /// Pulumi stack of the next run, without the project that the Workspace reports.
    desired: PulumiStack,
    /// Pulumi stack that contains the resources of the Stack.
    recorded: Option<PulumiStack>,
    is_being_deleted: bool,
    project: Option<String>,
    /// Whether the Stack's spec contains the project name.
    names_project: bool,
    /// Whether the controller has read the project from the Workspace. Each later reconciliation of the Stack updates
    /// the project in the claim.
    is_project_read: bool,
    /// Whether the Stack has completed an `up` of this Pulumi stack.
    has_applied: bool,
    /// Whether the Stack may have resources in this Pulumi stack, also because of a failed `up`.
    may_have_resources: bool,
    created: Timestamp,
}

impl Claim {
    /// Returns the sort key of the claim. The claim with the smallest key takes precedence.
    fn sort_key<'a>(&self, key: &'a ObjectKey) -> (bool, Timestamp, &'a ObjectKey) {
        (!self.may_have_resources, self.created, key)
    }

    /// Returns whether this Stack may manage the Pulumi stack `applied`, or may have resources in it.
    fn may_manage(&self, applied: &PulumiStack) -> bool {
        let desired = PulumiStack { project: self.project.clone(), ..self.desired.clone() };
        [Some(&desired), self.recorded.as_ref()].into_iter().flatten().any(|own| !identity::differ(own, applied))
    }

    /// Returns whether this Stack can use the Pulumi stack of another Stack with the same stack name. `address` is the
    /// address of this Pulumi stack. An unknown part does not distinguish two Pulumi stacks.
    fn can_use(&self, project: Option<&String>, address: Option<&String>) -> bool {
        let differ =
            |one: Option<&String>, other: Option<&String>| one.zip(other).is_some_and(|(one, other)| one != other);
        !differ(self.project.as_ref(), project) && !differ(self.visible_address.as_ref(), address)
    }

    /// Returns the names of the Pulumi stacks of this Stack, without the organization and the project.
    fn names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.desired), self.recorded.as_ref()].into_iter().flatten().map(|own| identity::parts(&own.name).stack)
    }
}

/// Stack that takes precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateStack {
    pub namespace: String,
    pub name: String,
    pub project: String,
}

impl DuplicateStack {
    /// Returns the advice for `stack`, which manages the same Pulumi stack as this Stack.
    pub fn handover(&self, stack: &Stack) -> String {
        let effect = match Some(&self.namespace) == stack.metadata.namespace.as_ref() {
            true => format!("While this Stack exists, the deletion of Stack {self} does not destroy the resources"),
            false => {
                format!("The deletion of Stack {self} destroys the resources if its spec.destroyOnFinalize is true")
            }
        };
        format!(
            "To hand the resources over to this Stack, set spec.destroyOnFinalize of Stack {self} to false, and delete that Stack. \
             {effect}. To leave the resources to Stack {self}, delete this Stack, change its spec.stack or spec.backend, or set \
             spec.preview"
        )
    }
}

impl fmt::Display for DuplicateStack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// Reason why a run cannot start because of other Stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The first run of the Stack with this name is open. The two runs can use the same Pulumi stack.
    FirstRun(String),
    /// Too many Stacks have applied a Pulumi stack that can be the same.
    TooMany,
}

/// Claims of all Stacks, indexed by address.
#[derive(Default)]
struct Claims {
    by_key: HashMap<ObjectKey, Claim>,
    by_address: HashMap<ScopedAddress, HashSet<ObjectKey>>,
}

/// Address, and the namespace within which the address is comparable. `None` means the whole cluster.
type ScopedAddress = (Option<String>, String);

impl Claims {
    /// Replaces the claim of a Stack, and returns the previous claim.
    fn replace(&mut self, key: &ObjectKey, claim: Option<Claim>) -> Option<Claim> {
        let previous = self.by_key.remove(key);
        for address in previous.iter().flat_map(|previous| indexed_addresses(key, previous)) {
            if let Some(keys) = self.by_address.get_mut(&address) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
        if let Some(claim) = claim {
            for address in indexed_addresses(key, &claim) {
                self.by_address.entry(address).or_default().insert(key.clone());
            }
            self.by_key.insert(key.clone(), claim);
        }
        previous
    }

    /// Returns the Stacks in a namespace that use a Pulumi stack with this name, without the organization and the project.
    fn with_name<'a>(
        &'a self,
        namespace: &str,
        name: &str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Claim)> + use<'a> {
        self.with_address(&name_address(namespace, name))
    }

    /// Returns the Pulumi stacks that other Stacks in the namespace have applied and that this Stack can use.
    fn applied_by_others(
        &self,
        stack: &Stack,
        own_key: &ObjectKey,
        own: &Claim,
    ) -> impl Iterator<Item = AppliedByOther> {
        let name = identity::parts(&own.desired.name).stack;
        let others = self.with_name(&own_key.0, name).filter(move |(other, _)| *other != own_key);
        others.filter_map(move |((_, owner), claim)| {
            let applied = claim.recorded.as_ref().filter(|applied| identity::parts(&applied.name).stack == name)?;
            let project = applied.project.as_ref().or(claim.project.as_ref());
            let file = applied.backend.as_deref().and_then(|url| url.strip_prefix("file://"));
            // Without a shared volume, each pod has its own file.
            let is_reachable = file.is_none_or(|path| {
                claim.applied_volume.is_some() && backend::shared_volume(stack, path) == claim.applied_volume
            });
            let address = backend::resolved_address(applied, true);
            let can_be_same = is_reachable && own.can_use(project, address.as_ref());
            let stack = PulumiStack { project: project.cloned(), ..applied.clone() };
            can_be_same.then(|| AppliedByOther { owner: owner.clone(), stack })
        })
    }

    fn with_address<'a>(
        &'a self,
        address: &ScopedAddress,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Claim)> + use<'a> {
        let keys = self.by_address.get(address).into_iter().flatten();
        keys.filter_map(|key| self.by_key.get_key_value(key))
    }
}

/// Returns the addresses of the Pulumi stack, and the names by which [`Claims::with_name`] finds the Stack.
fn indexed_addresses(key: &ObjectKey, claim: &Claim) -> Vec<ScopedAddress> {
    let names = claim.names().map(|name| name_address(&key.0, name));
    scoped_addresses(key, claim).into_iter().chain(names).collect()
}

fn name_address(namespace: &str, name: &str) -> ScopedAddress {
    (Some(namespace.to_owned()), json!(["name", name]).to_string())
}

/// Returns the addresses of the Pulumi stack. Two Stacks with the same address manage the same Pulumi stack.
fn scoped_addresses(key: &ObjectKey, claim: &Claim) -> Vec<ScopedAddress> {
    let in_namespace = |address: &String| (Some(key.0.clone()), address.clone());
    let resolved = claim.resolved_address.as_ref().map(in_namespace);
    let in_cluster = claim.address.in_cluster.clone().map(|address| (None, address));
    [in_namespace(&claim.address.in_namespace)].into_iter().chain(resolved).chain(in_cluster).collect()
}

/// Stacks that wait for another Stack that takes precedence.
#[derive(Default)]
struct WaitingStacks {
    by_preceding: HashMap<ObjectKey, HashSet<ObjectKey>>,
    preceding_of: HashMap<ObjectKey, ObjectKey>,
}

impl WaitingStacks {
    /// Records that the Stack `key` now waits for the Stack `preceding` and for no other Stack.
    fn wait(&mut self, key: ObjectKey, preceding: ObjectKey) {
        self.remove(&key);
        self.by_preceding.entry(preceding.clone()).or_default().insert(key.clone());
        self.preceding_of.insert(key, preceding);
    }

    /// Removes the Stack `key` from the index, because it no longer waits for another Stack.
    fn remove(&mut self, key: &ObjectKey) {
        let Some(preceding) = self.preceding_of.remove(key) else { return };
        if let Some(waiting) = self.by_preceding.get_mut(&preceding) {
            waiting.remove(key);
            if waiting.is_empty() {
                self.by_preceding.remove(&preceding);
            }
        }
    }

    /// Removes the Stacks that wait for the Stack `preceding` from the index, and returns them.
    fn take(&mut self, preceding: &ObjectKey) -> HashSet<ObjectKey> {
        let waiting = self.by_preceding.remove(preceding).unwrap_or_default();
        for key in &waiting {
            self.preceding_of.remove(key);
        }
        waiting
    }
}

/// Index of the Pulumi stacks that all Stacks manage. Cheap to clone.
#[derive(Clone)]
pub struct DuplicateStacks {
    /// Whether the index compares only Stacks in the same namespace.
    no_cross_namespace_refs: bool,
    claims: Arc<Mutex<Claims>>,
    waiting: Arc<Mutex<WaitingStacks>>,
    requeue: Requeue<Stack>,
}

impl fmt::Debug for DuplicateStacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DuplicateStacks").finish_non_exhaustive()
    }
}

impl DuplicateStacks {
    /// Creates an empty index. `requeue` receives the Stacks that the controller must reconcile again.
    pub fn new(requeue: Requeue<Stack>, no_cross_namespace_refs: bool) -> DuplicateStacks {
        DuplicateStacks { no_cross_namespace_refs, claims: Arc::default(), waiting: Arc::default(), requeue }
    }

    /// Records the Pulumi stack that a Stack manages. If the watch cannot parse a Stack, it provides an earlier version,
    /// whose spec contains no Pulumi stack. The claim then remains as it was.
    pub fn record(&self, stack: &Stack) {
        if stack.spec.stack.is_empty() {
            return;
        }
        let key = key(stack);
        let mut claims = lock(&self.claims);
        let claim = claim(stack, claims.by_key.get(&key));
        let previous = claims.replace(&key, claim.clone());
        if previous == claim {
            return;
        }
        let deleted = claim.iter().flat_map(|claim| claim.names().flat_map(|name| claims.with_name(&key.0, name)));
        let deleted = deleted.filter(|(other, claim)| claim.is_being_deleted && **other != key);
        let deleted: HashSet<ObjectKey> = deleted.map(|(other, _)| other.clone()).collect();
        drop(claims);
        self.requeue(deleted);
        if previous.is_some() {
            self.requeue_waiting(&key);
        }
    }

    /// Returns the Stacks in the index that do not exist according to `exists`. If a list of the watch fails, no event
    /// reports the deletion of a Stack that only this list contained.
    pub fn missing(&self, exists: impl Fn(&ObjectKey) -> bool) -> Vec<ObjectKey> {
        lock(&self.claims).by_key.keys().filter(|key| !exists(key)).cloned().collect()
    }

    /// Removes a deleted Stack from the index.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.claims).replace(key, None);
        lock(&self.waiting).remove(key);
        self.requeue_waiting(key);
    }

    /// Returns the Stack that takes precedence over this Stack. Returns `None` if this Stack is not a duplicate, or if
    /// its project is unknown.
    pub async fn preceding(
        &self,
        stack: &Stack,
        workspace: Option<&Workspace>,
        reader: &Reader,
    ) -> Result<Option<DuplicateStack>, ReadError> {
        let own_key = key(stack);
        let Some(own) = self.record_project(&own_key, project_in(workspace)) else { return Ok(None) };
        let Some(project) = own.project.clone() else { return Ok(None) };
        for (key, claim) in self.preceding_claims(&own_key, &own) {
            let theirs = match claim.project {
                Some(project) => Some(project),
                None if claim.is_project_read => None,
                None => {
                    let workspace = reader.get_opt::<Workspace>(&key.0, &key.1).await?;
                    self.record_project(&key, project_in(workspace.as_ref())).and_then(|claim| claim.project)
                }
            };
            if theirs.as_ref() == Some(&project) {
                lock(&self.waiting).wait(own_key, key.clone());
                return Ok(Some(DuplicateStack { namespace: key.0, name: key.1, project }));
            }
        }
        Ok(None)
    }

    /// Returns the name of another Stack in the namespace that claims the Pulumi stack in which this Stack has resources,
    /// so that a destroy would destroy resources of the other Stack. Of several deleted Stacks, each Stack waits for the
    /// Stacks that precede it. The index requeues this Stack when the claim changes.
    pub fn claimant(&self, stack: &Stack) -> Option<String> {
        let own_key = key(stack);
        let claims = lock(&self.claims);
        let own = claims.by_key.get(&own_key)?;
        let recorded = identity::recorded(stack)?;
        let recorded = PulumiStack { project: recorded.project.or_else(|| own.project.clone()), ..recorded };
        let is_file = |claim: &Claim| claim.desired.backend.as_ref().is_some_and(|url| url.starts_with("file:"));
        let claims_it = |(other, claim): &(&ObjectKey, &Claim)| {
            **other != own_key
                && claim.may_manage(&recorded)
                && (!is_file(claim) || claim.address == own.address)
                && (!claim.is_being_deleted || claim.sort_key(other) < own.sort_key(&own_key))
        };
        let name = identity::parts(&recorded.name).stack;
        let others = claims.with_name(&own_key.0, name).filter(claims_it);
        let first =
            others.min_by(|(one_key, one), (other_key, other)| one.sort_key(one_key).cmp(&other.sort_key(other_key)));
        let first = first.map(|(key, _)| key.clone());
        drop(claims);
        let first = first?;
        lock(&self.waiting).wait(own_key, first.clone());
        Some(first.1)
    }

    /// Returns the Pulumi stacks that other Stacks in the namespace have applied and that the run can use, and reserves
    /// the first run of the Stack. The caller must record the run in the status, or call [`DuplicateStacks::abandon`].
    ///
    /// # Errors
    ///
    /// Returns the reason if the run must not start yet. The index requeues this Stack when another first run ends.
    pub fn begin(&self, stack: &Stack, current: &CurrentUpdate) -> Result<Vec<AppliedByOther>, Obstacle> {
        let own_key = key(stack);
        let mut claims = lock(&self.claims);
        let Some(own) = claims.by_key.get(&own_key) else { return Ok(Vec::new()) };
        let is_up = current.kind == UpdateKind::Up;
        let is_first = is_up && !own.may_have_resources;
        let name = identity::parts(&own.desired.name).stack;
        let has_open_first_run = |(other, claim): &(&ObjectKey, &Claim)| {
            **other != own_key
                && claim.open_up.is_some()
                && !claim.may_have_resources
                && own.can_use(claim.project.as_ref(), claim.visible_address.as_ref())
        };
        let open = claims.with_name(&own_key.0, name).filter(|_| is_first).find(has_open_first_run);
        if let Some(open) = open.map(|(other, _)| other.clone()) {
            drop(claims);
            lock(&self.waiting).wait(own_key, open.clone());
            return Err(Obstacle::FirstRun(open.1));
        }
        let applied: Vec<AppliedByOther> = claims.applied_by_others(stack, &own_key, own).collect();
        if applied.len() > MAX_APPLIED_BY_OTHERS {
            return Err(Obstacle::TooMany);
        }
        let attempts = stack.status.as_ref().and_then(|status| status.attempts).unwrap_or_default();
        if let Some(own) = claims.by_key.get_mut(&own_key).filter(|_| is_up) {
            own.open_up = Some(attempts.saturating_add(1));
        }
        Ok(applied)
    }

    /// Removes the reservation of [`DuplicateStacks::begin`], because the run was not recorded.
    pub fn abandon(&self, stack: &Stack) {
        let own_key = key(stack);
        if let Some(own) = lock(&self.claims).by_key.get_mut(&own_key) {
            own.open_up = None;
        }
        self.requeue_waiting(&own_key);
    }

    /// Returns the other Stack that has applied the Pulumi stack of the last run, if the agent did not start this run for
    /// this reason. The index requeues this Stack when the claim of the other Stack changes.
    pub fn owner(&self, stack: &Stack) -> Option<DuplicateStack> {
        let last = stack.status.as_ref()?.last_update.as_ref()?;
        let is_duplicate = last.reason.as_deref() == Some(update_reason::DUPLICATE_STACK);
        let used = last.pulumi_stack.as_ref().filter(|_| is_duplicate)?;
        let own_key = key(stack);
        let claims = lock(&self.claims);
        let own = claims.by_key.get(&own_key)?;
        let is_used = |other: &AppliedByOther| !identity::differ(&other.stack, used);
        let found = claims.applied_by_others(stack, &own_key, own).find(is_used);
        drop(claims);
        let AppliedByOther { owner: name, .. } = found?;
        let (namespace, project) = (own_key.0.clone(), used.project.clone().unwrap_or_default());
        lock(&self.waiting).wait(own_key, (namespace.clone(), name.clone()));
        Some(DuplicateStack { namespace, name, project })
    }

    /// Records the project that the Workspace reports, and returns the claim of the Stack.
    fn record_project(&self, key: &ObjectKey, project: Option<String>) -> Option<Claim> {
        let mut claims = lock(&self.claims);
        let claim = claims.by_key.get_mut(key)?;
        claim.is_project_read = true;
        let is_new = project.is_some() && !claim.names_project && claim.project != project;
        if is_new {
            claim.project = project;
        }
        let claim = claim.clone();
        drop(claims);
        if is_new {
            self.requeue_waiting(key);
        }
        Some(claim)
    }

    /// Returns the claims with the same address that take precedence over this claim, in order of precedence.
    fn preceding_claims(&self, key: &ObjectKey, own: &Claim) -> Vec<(ObjectKey, Claim)> {
        let claims = lock(&self.claims);
        let is_comparable = |address: &ScopedAddress, other: &ObjectKey, claim: &Claim| match address.0 {
            Some(_) => true,
            // The creation times do not matter: a user can create a Stack in advance.
            None => other.0 != key.0 && claim.has_applied && !own.may_have_resources && !self.no_cross_namespace_refs,
        };
        let precedes = |(other, claim): &(&ObjectKey, &Claim)| claim.sort_key(other) < own.sort_key(key);
        let mut preceding = Vec::new();
        for address in scoped_addresses(key, own) {
            let same = claims
                .with_address(&address)
                .filter(|(other, claim)| is_comparable(&address, other, claim))
                .filter(precedes);
            preceding.extend(same.map(|(key, claim)| (key.clone(), claim.clone())));
        }
        preceding.sort_by(|(one_key, one), (other_key, other)| one.sort_key(one_key).cmp(&other.sort_key(other_key)));
        preceding
    }

    fn requeue_waiting(&self, key: &ObjectKey) {
        let waiting = lock(&self.waiting).take(key);
        self.requeue(waiting);
    }

    fn requeue(&self, stacks: HashSet<ObjectKey>) {
        for (namespace, name) in stacks {
            self.requeue.request(ObjectRef::new(&name).within(&namespace));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(stack: &Stack) -> ObjectKey {
    (stack.namespace().unwrap_or_default(), stack.name_any())
}

fn project_in(workspace: Option<&Workspace>) -> Option<String> {
    workspace?.status.as_ref()?.project_name.clone()
}

/// Returns the claim of a Stack. A Stack with `spec.preview` changes no resources and can preview the Pulumi stack of
/// another Stack, so it has no claim.
fn claim(stack: &Stack, previous: Option<&Claim>) -> Option<Claim> {
    if stack.spec.preview.unwrap_or_default() {
        return None;
    }
    let address = backend::address(stack)?;
    let named = identity::parts(&stack.spec.stack).project.map(str::to_owned);
    let names_project = named.is_some();
    let status = stack.status.as_ref();
    // After a restart of the controller, the Workspace can be absent. The last run then provides the project.
    let of_last_run = || status?.project_info.as_ref().map(|info| info.name.clone());
    let recorded =
        previous.and_then(|previous| previous.project.clone()).or_else(of_last_run).filter(|_| !names_project);
    let is_project_read = previous.is_some_and(|previous| previous.is_project_read);
    let created = stack.creation_timestamp().map(|time| time.0).unwrap_or_default();
    let is_applied_here = identity::has_applied_here(stack, None);
    let has_applied = is_applied_here && status.is_some_and(|s| s.last_applied_revision.is_some());
    let applied = status.and_then(|status| status.applied_stack.as_ref()).filter(|_| is_applied_here);
    let desired = identity::desired(stack, None);
    let visible = PulumiStack { backend: backend::url(stack), ..desired.clone() };
    let recorded_stack = identity::recorded(stack);
    let applied_file = recorded_stack.as_ref().and_then(|applied| applied.backend.as_deref()?.strip_prefix("file://"));
    let attempts = status.and_then(|status| status.attempts).unwrap_or_default();
    let is_open = status.and_then(|s| s.current_update.as_ref()).is_some_and(|run| run.kind == UpdateKind::Up);
    // The watch can deliver a version of the Stack from before the record of the run.
    let reserved = previous.and_then(|previous| previous.open_up).filter(|attempt| *attempt > attempts);
    let resolved_address = backend::resolved_address(applied.unwrap_or(&desired), applied.is_some());
    Some(Claim {
        address,
        resolved_address,
        visible_address: backend::resolved_address(&visible, false),
        applied_volume: applied_file.and_then(|path| backend::shared_volume(stack, path)),
        open_up: if is_open { Some(attempts) } else { reserved },
        desired,
        recorded: recorded_stack,
        is_being_deleted: stack.metadata.deletion_timestamp.is_some(),
        project: named.or(recorded),
        names_project,
        is_project_read,
        has_applied,
        may_have_resources: is_applied_here,
        created,
    })
}

#[cfg(test)]
mod tests;
