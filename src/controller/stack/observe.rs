//! Reads the state that the Stack controller needs for a reconciliation. This module contains all API server reads
//! before a decision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::SelectorExt;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::artifact::InPod;
use crate::controller::namespaces::RunSettings;
use crate::controller::stack::annotations::{has_new_request, requests};
use crate::controller::stack::approval;
use crate::controller::stack::context::Context;
use crate::controller::stack::observed::{Deletion, Observed, OtherClaim};
use crate::controller::stack::policy_packs::{self, RequestedPack, ResolvedPack};
use crate::controller::stack::prerequisites::{self, Dependency, Rule};
use crate::controller::stack::workspace_state::{Readiness, from_reference, last_in_place, readiness};
use crate::controller::stack::{deletion, drift, pko_migration, run};
use crate::controller::update::is_outputs_of;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::first_objects::FirstReader;
use crate::runtime::reads::ReadError;
use crate::source::flux::Reference;
use crate::source::git::{KnownArtifact, Lookup};
use crate::source::{self, Resolved, Unavailable};

/// Reads the state that one reconciliation step requires.
pub async fn observe(mut stack: Stack, context: &Context) -> Result<Observed, ReadError> {
    let account = &mut stack.spec.service_account_name;
    *account = account.take().filter(|name| !name.is_empty()).or_else(|| context.default_service_account.clone());
    let namespace = stack.namespace().unwrap_or_default();
    let name = stack.name_any();
    let (workspace, is_first) = read_workspace(&namespace, &name, context).await?;
    let update = match current_update_name(&stack) {
        Some(current) => context.reader.get_opt::<Update>(&namespace, current).await?,
        None => None,
    };
    let outputs = match update.as_ref().filter(|u| u.is_complete()) {
        Some(update) => outputs_of(update, &namespace, context).await?,
        None => None,
    };
    let source = observe_source(&stack, update.as_ref(), workspace.as_ref(), is_first, context).await;
    let is_at_hand = |digest| InPod::of(digest).is_some() || context.store.is_granted(digest, &namespace);
    let in_store = matches!(&source, Some(Ok(resolved)) if is_at_hand(&resolved.digest));
    let policy_packs = observe_policy_packs(&stack, update.as_ref(), workspace.as_ref(), context).await;
    let updates = context.updates_of(&namespace, &name);
    let deletion = observe_deletion(&stack, workspace.as_ref(), context);
    let (mut dependencies, mut watched) = (Vec::new(), BTreeSet::new());
    let (mut cycle, mut denied_dependency) = (None, None);
    if update.is_none() && stack.metadata.deletion_timestamp.is_none() {
        watched = changed_watched_objects(&stack, workspace.as_ref(), context).await?;
        denied_dependency = context
            .no_cross_namespace_refs
            .then(|| prerequisites::cross_namespace_reference(&stack.spec, &namespace))
            .flatten();
        if denied_dependency.is_none() {
            dependencies = observe_dependencies(&stack, context).await?;
        }
        cycle = context.dependents.cycle(&stack);
    }
    let plan = approval::observe(&stack, update.as_ref(), context).await?;
    let run_settings = observe_run_settings(&namespace, update.as_ref(), context).await?;
    let duplicate = context.duplicates.preceding(&stack, workspace.as_ref(), &context.reader).await?;
    Ok(Observed {
        interval_jitter: context.interval_jitter,
        duplicate,
        owner: context.duplicates.owner(&stack),
        plan,
        run_settings,
        is_destroy_limit_exceeded: context.destroy_limit.is_exceeded(&stack),
        stack,
        source,
        in_store,
        policy_packs,
        is_workspace_mutated: workspace.as_ref().is_some_and(|found| context.mutated_workspaces.contains(found)),
        workspace,
        slot_wait: update.as_ref().and_then(|update| context.run_queue.wait_of(update)),
        update,
        outputs,
        dependencies,
        cycle,
        denied_dependency,
        watched,
        updates,
        deletion,
    })
}

/// Returns the Workspace of the Stack, and whether this is the first reconciliation after the controller started. The
/// first reconciliation uses the Workspace in the initial list of the watch.
async fn read_workspace(
    namespace: &str,
    name: &str,
    context: &Context,
) -> Result<(Option<Workspace>, bool), ReadError> {
    match context.first_workspaces.take(FirstReader::StackController, namespace, name) {
        Some(listed) => Ok((Some(listed), true)),
        None => Ok((context.reader.get_opt::<Workspace>(namespace, name).await?, false)),
    }
}

/// Resolves the source of the Stack. Returns `None` if this step does not require the source. `is_first` is true for
/// the first reconciliation after the controller started.
async fn observe_source(
    stack: &Stack,
    update: Option<&Update>,
    workspace: Option<&Workspace>,
    is_first: bool,
    context: &Context,
) -> Option<Result<Resolved, Unavailable>> {
    if needs_source(stack, update, workspace) {
        return Some(resolve(stack, is_first, context).await);
    }
    // The controller does not poll the repository of a suspended or deleted Stack.
    if stack.spec.suspend.unwrap_or_default() || stack.metadata.deletion_timestamp.is_some() {
        context.git.forget(&(stack.namespace().unwrap_or_default(), stack.name_any()));
    }
    None
}

/// Resolves the policy packs of the Stack. Returns an empty list if this step does not require the source.
async fn observe_policy_packs(
    stack: &Stack,
    update: Option<&Update>,
    workspace: Option<&Workspace>,
    context: &Context,
) -> Result<Vec<ResolvedPack>, Unavailable> {
    if stack.metadata.deletion_timestamp.is_some() || !needs_source(stack, update, workspace) {
        return Ok(Vec::new());
    }
    let (cluster, own_only) = (&context.cluster_policy_packs, context.no_cross_namespace_refs);
    let requested = policy_packs::requested(stack, cluster, own_only)?;
    let own = stack.namespace().unwrap_or_default();
    let own = own.as_str();
    let resolving = requested.into_iter().map(|pack| async move {
        let found = resolve_object(&pack.namespace, &pack.source, false, context).await;
        let resolved = found.map_err(|why| policy_packs::named(&pack.name, why))?;
        let in_store = context.store.is_granted(&resolved.digest, own);
        let RequestedPack { name, namespace, config, .. } = pack;
        Ok::<_, Unavailable>(ResolvedPack { name, namespace, resolved, config, in_store })
    });
    // The controller sends these requests concurrently, because the number of policy packs is limited.
    let packs = futures::future::try_join_all(resolving).await?;
    policy_packs::distinct(packs, cluster.len())
}

/// Returns the pauses and the schedule that are defined outside the Stack. For a started run, returns none, because
/// pauses and schedules affect only the start of a run.
async fn observe_run_settings(
    namespace: &str,
    current: Option<&Update>,
    context: &Context,
) -> Result<RunSettings, ReadError> {
    let has_started = current.and_then(|update| update.status.as_ref()).is_some_and(|status| status.run.is_some());
    match has_started {
        true => Ok(RunSettings::default()),
        false => context.namespaces.run_settings(namespace).await,
    }
}

/// Returns the state for a destroy: the artifacts that the destroy can use, and the dependents that the controller must
/// destroy first. Returns `None` if the Stack is not being deleted.
fn observe_deletion(stack: &Stack, workspace: Option<&Workspace>, context: &Context) -> Option<Deletion> {
    stack.metadata.deletion_timestamp.as_ref()?;
    let namespace = stack.namespace().unwrap_or_default();
    let requested = workspace.and_then(|w| from_reference(w.spec.artifact.as_ref()?));
    let is_at_hand = |resolved: &Resolved| {
        InPod::of(&resolved.digest).is_some() || context.store.is_granted(&resolved.digest, &namespace)
    };
    let without_source = deletion::without_source(stack);
    let (mut dependents, mut claim) = (Vec::new(), OtherClaim::None);
    if deletion::has_to_destroy(stack) {
        claim = observe_claim(stack, context);
        if context.dependents.cycle(stack).is_none() {
            dependents = context.dependents.of(stack);
        }
    }
    Some(Deletion {
        requested: requested.filter(is_at_hand),
        is_stored: without_source.as_ref().is_some_and(is_at_hand),
        without_source,
        dependents,
        claim,
    })
}

/// Returns the other Stack that claims the Pulumi stack of a deleted Stack. The cache receives the creation of a Stack
/// before a later deletion, so the claim is known when the cache contains the deletion of this Stack.
fn observe_claim(stack: &Stack, context: &Context) -> OtherClaim {
    let cached = context.dependents.cached(&(stack.namespace().unwrap_or_default(), stack.name_any()));
    match cached.is_some_and(|cached| cached.metadata.deletion_timestamp.is_some()) {
        true => context.duplicates.claimant(stack).map_or(OtherClaim::None, OtherClaim::By),
        false => OtherClaim::Unknown,
    }
}

/// Returns the changed Secrets and ConfigMaps that match the watch selector. Sends one GET request for the metadata of
/// each object.
async fn changed_watched_objects(
    stack: &Stack,
    workspace: Option<&Workspace>,
    context: &Context,
) -> Result<BTreeSet<String>, ReadError> {
    let mut watched = BTreeSet::new();
    let Some(selector) = &context.watched else { return Ok(watched) };
    let namespace = stack.namespace().unwrap_or_default();
    for object in run::changed_objects(stack, workspace) {
        let labels = match object.split_once('/') {
            Some(("Secret", name)) => labels::<Secret>(&namespace, name, context).await?,
            Some(("ConfigMap", name)) => labels::<ConfigMap>(&namespace, name, context).await?,
            _ => None,
        };
        if labels.is_some_and(|labels| selector.matches(&labels)) {
            watched.insert(object.to_owned());
        }
    }
    Ok(watched)
}

/// Returns the labels of an object. Returns `None` if the object does not exist, or if the API server forbids the read.
async fn labels<K>(
    namespace: &str,
    name: &str,
    context: &Context,
) -> Result<Option<BTreeMap<String, String>>, ReadError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match context.reader.get_metadata_opt::<K>(namespace, name).await {
        Ok(found) => Ok(found.map(|object| object.metadata.labels.unwrap_or_default())),
        Err(error) if error.is_forbidden() => {
            tracing::debug!(%error, "failed to read the labels of a changed object; the change triggers no run");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the Stack's dependencies, most of them from the cache. When a dependency changes, the watch that fills the
/// cache requeues this Stack.
async fn observe_dependencies(stack: &Stack, context: &Context) -> Result<Vec<Dependency>, ReadError> {
    let own = stack.namespace().unwrap_or_default();
    let mut dependencies = Vec::new();
    for (key, rule) in prerequisites::rules(&stack.spec, &own) {
        let found = read_dependency(&key, &rule, context).await?;
        let result = match (&rule, &found) {
            (Rule::Expression(expression), Some(found)) => context.evaluator.evaluate(expression, stack, found).await,
            _ => None,
        };
        dependencies.push(Dependency { name: prerequisites::display_name(&key, &own), rule, stack: found, result });
    }
    Ok(dependencies)
}

/// Reads a dependency from the cache or from the API server. The cache contains only some fields, but expressions can
/// use all fields. The cache also lacks the Stacks of other shards.
async fn read_dependency(key: &ObjectKey, rule: &Rule, context: &Context) -> Result<Option<Arc<Stack>>, ReadError> {
    let cached = context.dependents.cached(key);
    let is_gone = cached.is_none() && context.scope.watches_all_of(&key.0);
    let is_enough = cached.is_some() && !matches!(rule, Rule::Expression(_));
    if is_gone || is_enough {
        return Ok(cached);
    }
    if let Some(whole) = cached.and_then(|part| context.stack_cache.get(key, &part)) {
        return Ok(Some(whole));
    }
    let whole = context.reader.get_opt::<Stack>(&key.0, &key.1).await?.map(Arc::new);
    whole.iter().for_each(|whole| context.stack_cache.keep(key, whole));
    Ok(whole)
}

/// Resolves the source of the Stack, and starts the watch for the source's kind.
async fn resolve(stack: &Stack, is_first: bool, context: &Context) -> Result<Resolved, Unavailable> {
    let follower = (stack.namespace().unwrap_or_default(), stack.name_any());
    let without_object = source::without_object(&stack.spec);
    let desired = match &without_object {
        Ok(None) => source::repository(&stack.spec, &follower.0),
        _ => Ok(None),
    };
    match desired {
        Ok(Some(desired)) => return context.git.resolve(&follower, &desired, &git_lookup(stack)),
        other => {
            context.git.forget(&follower);
            other?;
        }
    }
    if let Some(resolved) = without_object? {
        return Ok(resolved);
    }
    let reference = source::reference(&stack.spec)?;
    let namespace = source::within(reference.namespace.as_deref(), &follower.0);
    if namespace != follower.0 && context.no_cross_namespace_refs {
        let (kind, name) = (&reference.kind.kind, &reference.name);
        return Err(Unavailable::Denied(format!(
            "spec.fluxSource.sourceRef: {kind} {namespace}/{name} is in another namespace, and \
             --no-cross-namespace-refs is set"
        )));
    }
    resolve_object(namespace, &reference, is_first, context).await
}

/// Resolves a source object, and starts the watch for its kind.
async fn resolve_object(
    namespace: &str,
    reference: &Reference,
    is_first: bool,
    context: &Context,
) -> Result<Resolved, Unavailable> {
    let found = match is_first {
        true => context.source_watches.find_first(namespace, reference).await?,
        false => context.sources.find(namespace, reference).await?,
    };
    context.source_watches.keep(&found.resource)?;
    let mut resolved = found.artifact(reference.directory.clone())?;
    resolved.content_id = resolved.content_id.filter(|_| context.same_revision_kinds.contains(&reference.kind));
    Ok(resolved)
}

/// Returns the parameters of the repository lookup.
fn git_lookup(stack: &Stack) -> Lookup {
    let (reconcile_request, requested_at) = requests(stack);
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let is_new = last.is_some() && has_new_request(stack);
    let known = last.filter(|last| Some(last.inputs.generation) == stack.metadata.generation).and_then(|last| {
        let (digest, selection) = (last.inputs.digest.clone()?, last.inputs.paths_digest.clone());
        let (revision, metadata) = (last.last_attempted_commit.clone()?, last.source.as_deref().cloned());
        Some(KnownArtifact { revision, digest, selection, metadata })
    });
    let request = [reconcile_request, requested_at].map(Option::unwrap_or_default).join("\n");
    Lookup { request: Some(request), is_new, known }
}

pub fn current_update_name(stack: &Stack) -> Option<&str> {
    Some(stack.status.as_ref()?.current_update.as_ref()?.name.as_str())
}

/// Returns the Secret with an Update's outputs. Returns `None` if the Update does not own the Secret.
async fn outputs_of(update: &Update, namespace: &str, context: &Context) -> Result<Option<Secret>, ReadError> {
    let Some(name) = update.status.as_ref().and_then(pko_migration::outputs_name) else { return Ok(None) };
    let secret = context.reader.get_opt::<Secret>(namespace, name).await?;
    Ok(secret.filter(|secret| is_outputs_of(secret, update)))
}

/// Returns whether this step requires the source. After the start of a run, only a drift check still requires the
/// source. A suspended Stack requires the source only if a user has woken up the Workspace and its pod waits for the
/// source. A deleted Stack requires the source only for a destroy, and only if its pod contains no artifact.
fn needs_source(stack: &Stack, update: Option<&Update>, workspace: Option<&Workspace>) -> bool {
    // If the source changes, the controller may revoke an Update whose run has not started. A started run uses its
    // artifact until it completes.
    let has_started = |u: &Update| u.status.as_ref().is_some_and(|status| status.run.is_some());
    // A newer source ends a drift check.
    let is_check = |u: &Update| drift::is_check_of(u.spec.preview_of, u.spec.save_plan);
    if update.is_some_and(|u| u.is_complete() || has_started(u) && !is_check(u)) {
        return false;
    }
    match stack.metadata.deletion_timestamp {
        Some(_) => deletion::has_to_destroy(stack) && workspace.is_none_or(|w| last_in_place(w).is_none()),
        None => {
            let lacks_source = |workspace| matches!(readiness(workspace), Readiness::LacksSource(_));
            !stack.spec.suspend.unwrap_or_default() || workspace.is_some_and(lacks_source)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::auto::WorkspaceSpec;
    use crate::api::pulumi::StackSpec;

    #[test]
    fn a_suspended_stack_requires_its_source_only_if_its_pod_lacks_it() {
        let mut workspace = Workspace::new("web", WorkspaceSpec::default());
        workspace.metadata.generation = Some(1);
        let mut stack = Stack::new("web", StackSpec::default());
        let mut needs = |suspend: bool, reason: &str| {
            let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
            let status = json!({"observedGeneration": 1, "conditions": [ready]});
            workspace.status = Some(serde_json::from_value(status).unwrap());
            stack.spec.suspend = Some(suspend);
            needs_source(&stack, None, Some(&workspace))
        };
        assert!(needs(false, "Waking") && needs(false, "ArtifactUnavailable"));
        assert!(!needs(true, "Waking") && needs(true, "ArtifactUnavailable"));
        let suspended = Stack::new("web", StackSpec { suspend: Some(true), ..StackSpec::default() });
        assert!(!needs_source(&suspended, None, None));
    }
}
