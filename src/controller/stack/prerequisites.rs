//! Checks the dependencies of a Stack before a run.

use std::hash::Hash;
use std::sync::Arc;

use expression::ExpressionError;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::auto::UpdateKind;
use crate::api::conditions::{self, READY};
use crate::api::pulumi::{LastUpdate, RunInputs, Stack, StackSpec, StackStatus};
use crate::api::{duration, names};
use crate::runtime::backoff::ObjectKey;
use crate::source;

pub mod evaluator;
pub mod expression;

/// Maximum length of the name of a Stack, as in the rule of its CustomResourceDefinition.
const MAX_STACK_NAME: usize = 42;

/// Dependency of a Stack. `stack` is `None` if the dependency does not exist.
#[derive(Clone, Debug)]
pub struct Dependency {
    /// Name of the dependency for messages. The name includes the namespace if the dependency and the Stack are in
    /// different namespaces.
    pub name: String,
    pub rule: Rule,
    pub stack: Option<Arc<Stack>>,
    /// Result of the expression. `None` if the rule contains no expression or the evaluation is not complete.
    pub result: Option<Result<bool, ExpressionError>>,
}

/// Condition that a dependency must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The last run has succeeded with the current spec and the current request, and is not the preview of a plan.
    /// `within` is the maximum time between the completion of this run and the check.
    Succeeded { within: Option<SignedDuration> },
    /// The dependency is `Ready` for its current generation. If both Stacks use the same source, the dependency must
    /// also have applied the same revision.
    Ready,
    /// The expression evaluates to `true`.
    Expression(String),
}

/// Result of checking all dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DependencyState {
    Satisfied,
    /// A dependency is unmet for another reason than the age of its last run. Contains the message.
    Unmet(String),
    /// The last runs of some dependencies are too old. All other requirements are met.
    Stale {
        message: String,
        dependencies: Vec<Stale>,
    },
    /// The controller does not allow a dependency in another namespace. Contains the message.
    Denied(String),
    /// The evaluation of an expression is not complete. The evaluator requeues the Stack when the result is available.
    Evaluating,
    /// The dependencies form a cycle, or an expression is invalid or exceeds a limit. Another evaluation with the same
    /// objects would also fail.
    Invalid(String),
}

/// Dependency that must run again because its last run is too old. The request value contains the name of the last run,
/// so a repeated request has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    pub name: String,
    /// Maximum age of the last run.
    pub limit: SignedDuration,
    pub request: String,
}

/// Returns the dependencies in a spec, with their rules. `own` is the namespace of the Stack.
pub fn rules(spec: &StackSpec, own: &str) -> Vec<(ObjectKey, Rule)> {
    let prerequisites = spec.prerequisites.iter().map(|prerequisite| {
        let within = prerequisite.requirement.as_ref().and_then(|r| r.succeeded_within_duration.as_deref());
        let within = within.and_then(duration::seconds).map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
        // With a duration of zero seconds, no run would be recent enough, and the prerequisite would run repeatedly.
        let within = within.map(|seconds| seconds.max(1));
        let rule = Rule::Succeeded { within: within.map(SignedDuration::from_secs) };
        ((own.to_owned(), prerequisite.name.clone()), rule)
    });
    let dependencies = spec.depends_on.iter().map(|dependency| {
        let namespace = source::within(dependency.namespace.as_deref(), own).to_owned();
        let rule = dependency.ready_expr.clone().map_or(Rule::Ready, Rule::Expression);
        ((namespace, dependency.name.clone()), rule)
    });
    prerequisites.chain(dependencies).collect()
}

/// Returns the namespace and the name of each dependency in a spec. `own` is the namespace of the Stack.
pub fn references<'a>(spec: &'a StackSpec, own: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let prerequisites = spec.prerequisites.iter().map(move |prerequisite| (own, prerequisite.name.as_str()));
    let dependencies = spec.depends_on.iter();
    let dependencies = dependencies.map(move |d| (source::within(d.namespace.as_deref(), own), d.name.as_str()));
    prerequisites.chain(dependencies)
}

/// Returns the fields of a dependency's status that `check` reads.
pub fn part_of_status(status: StackStatus) -> StackStatus {
    let ready = status.conditions.into_iter().filter(|condition| condition.type_ == READY);
    let last = status.last_update.map(|last| LastUpdate {
        name: last.name,
        kind: last.kind,
        state: last.state,
        inputs: RunInputs {
            generation: last.inputs.generation,
            reconcile_request: last.inputs.reconcile_request,
            ..RunInputs::default()
        },
        last_resync_time: last.last_resync_time,
        ..LastUpdate::default()
    });
    StackStatus {
        observed_generation: status.observed_generation,
        conditions: ready.map(|ready| Condition { message: String::new(), ..ready }).collect(),
        last_applied_revision: status.last_applied_revision,
        last_update: last,
        ..StackStatus::default()
    }
}

/// Returns the fields of a Stack whose changes can unblock its dependents.
pub fn watched_fields(stack: &Stack) -> impl Hash {
    let status = stack.status.as_ref();
    let last = status.and_then(|status| status.last_update.as_ref());
    let request = stack.annotations().get(names::ANNOTATION_RECONCILIATION_REQUEST).cloned();
    let seen = status.map(|status| {
        let is_ready = conditions::is_true(&status.conditions, READY);
        (status.observed_generation, is_ready, status.last_applied_revision.clone())
    });
    let ended = last.map(|last| {
        (last.name.clone(), last.state.clone(), last.inputs.generation, last.inputs.reconcile_request.clone())
    });
    (request, seen, ended)
}

/// Checks the names of the dependencies. A Stack with an invalid name cannot exist, so the Stack would wait forever.
/// Returns the error message.
pub fn check_names(spec: &StackSpec) -> Result<(), String> {
    let prerequisites = spec.prerequisites.iter().map(|prerequisite| ("prerequisites", &prerequisite.name));
    let dependencies = spec.depends_on.iter().map(|dependency| ("dependsOn", &dependency.name));
    let is_valid = |name: &str| names::is_object_name(name) && name.len() <= MAX_STACK_NAME;
    match prerequisites.chain(dependencies).find(|(_, name)| !is_valid(name)) {
        Some((field, name)) => Err(format!("invalid spec.{field}: {name:?} is not a valid name of a Stack")),
        None => Ok(()),
    }
}

/// Returns a message if the spec contains a dependency in another namespace. The caller must check whether
/// `--no-cross-namespace-refs` forbids the dependency.
pub fn cross_namespace_reference(spec: &StackSpec, own: &str) -> Option<String> {
    let elsewhere = references(spec, own).find(|(namespace, _)| *namespace != own);
    elsewhere.map(|(namespace, name)| {
        format!(
            "spec.dependsOn: Stack {namespace}/{name} is in another namespace, and --no-cross-namespace-refs is set"
        )
    })
}

/// Returns the name of a Stack for messages. Includes the namespace if the namespace differs from `own`.
pub fn display_name((namespace, name): &ObjectKey, own: &str) -> String {
    if namespace == own { name.clone() } else { format!("{namespace}/{name}") }
}

/// Checks whether a run of this Stack with this revision can start. Checks all dependencies, even after an unmet one,
/// so that one reconciliation requests the runs of all stale dependencies. Requests no run while a dependency is unmet
/// for another reason. Otherwise, a stale dependency would run again each time its last run is too old, until the other
/// dependency is met.
pub fn check(of: &Stack, revision: &str, needed: &[Dependency], now: Timestamp) -> DependencyState {
    let mut stale = Vec::new();
    let mut problems = Vec::new();
    for needed in needed {
        let problem = match (&needed.stack, &needed.rule) {
            (None, _) => Some("not found".to_owned()),
            (Some(stack), Rule::Ready) => not_ready(stack).or_else(|| not_applied(of, revision, stack)),
            (Some(_), Rule::Expression(expression)) => match &needed.result {
                Some(Ok(true)) => None,
                Some(Err(ExpressionError::Invalid(why) | ExpressionError::LimitExceeded(why))) => {
                    let name = &needed.name;
                    return DependencyState::Invalid(format!(
                        "invalid spec.dependsOn: readyExpr of {name}, {expression:?}: {why}"
                    ));
                }
                Some(Err(ExpressionError::Failed(why))) => Some(format!("failed to evaluate readyExpr: {why}")),
                Some(Ok(false)) => Some("readyExpr is false".to_owned()),
                None => return DependencyState::Evaluating,
            },
            (Some(stack), Rule::Succeeded { within }) => {
                let problem = not_succeeded(stack);
                if problem.is_none() {
                    stale.extend(within.and_then(|limit| too_old(&needed.name, stack, limit, now)));
                }
                problem
            }
        };
        problems.extend(problem.map(|problem| format!("{}: {problem}", needed.name)));
    }
    if problems.is_empty() && stale.is_empty() {
        return DependencyState::Satisfied;
    }
    let is_requested = problems.is_empty();
    problems.extend(stale.iter().map(|stale| stale.message(is_requested)));
    let message = format!("waiting for {}", problems.join("; "));
    if is_requested { DependencyState::Stale { message, dependencies: stale } } else { DependencyState::Unmet(message) }
}

/// Returns the dependency if its last run ended earlier than `limit` before `now`.
fn too_old(name: &str, stack: &Stack, limit: SignedDuration, now: Timestamp) -> Option<Stale> {
    let last = stack.status.as_ref()?.last_update.as_ref()?;
    let (run, ended) = (last.name.as_ref()?, last.last_resync_time.as_ref()?.0);
    let is_too_old = now.duration_since(ended) > limit;
    is_too_old.then(|| Stale { name: name.to_owned(), limit, request: format!("after-{run}") })
}

impl Stale {
    fn message(&self, is_requested: bool) -> String {
        let limit = duration::display(self.limit);
        let cause = match is_requested {
            true => format!("last run ended more than {limit} ago; requested another run"),
            false => format!("last run ended more than {limit} ago"),
        };
        format!("{}: {cause}", self.name)
    }
}

fn not_ready(stack: &Stack) -> Option<String> {
    let conditions = stack.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let observed = stack.status.as_ref().and_then(|status| status.observed_generation);
    match conditions::find(conditions, READY) {
        _ if observed != stack.metadata.generation => Some("latest spec is not reconciled yet".to_owned()),
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(format!("not ready ({})", ready.reason)),
        None => Some("not ready".to_owned()),
    }
}

/// Returns a message if a dependency has the same source but has not applied the run's revision.
fn not_applied(of: &Stack, revision: &str, stack: &Stack) -> Option<String> {
    let source = |stack: &Stack| {
        let source = stack.spec.flux_source.as_ref()?;
        let reference = source::flux::Reference::parse(source).ok()?;
        let namespace = source::within(reference.namespace.as_deref(), &stack.namespace()?).to_owned();
        Some((reference.kind, namespace, reference.name))
    };
    let applied = stack.status.as_ref().and_then(|status| status.last_applied_revision.as_deref());
    let is_same = source(of).is_some_and(|own| Some(own) == source(stack));
    (is_same && applied != Some(revision)).then(|| format!("has not applied revision {revision} of the same source"))
}

fn not_succeeded(stack: &Stack) -> Option<String> {
    let Some(last) = stack.status.as_ref().and_then(|status| status.last_update.as_ref()) else {
        return Some("has not run".to_owned());
    };
    let request = stack.annotations().get(names::ANNOTATION_RECONCILIATION_REQUEST);
    if Some(last.inputs.generation) != stack.metadata.generation {
        return Some("spec has changed since the last run".to_owned());
    }
    if request.is_some() && request != last.inputs.reconcile_request.as_ref() {
        return Some("requested run has not ended".to_owned());
    }
    if last.state.as_deref() != Some("succeeded") {
        return Some("last run failed".to_owned());
    }
    // With approvals, a run starts as a preview that saves a plan. Until the controller has executed the plan, the
    // resources are those of an earlier run. With `spec.preview`, all runs of the Stack are previews.
    let is_preview = last.kind.as_deref() == Some(UpdateKind::Preview.as_str());
    let has_only_plan = is_preview && !stack.spec.preview.unwrap_or_default();
    has_only_plan.then(|| "last run created a plan that is not executed yet".to_owned())
}

#[cfg(test)]
mod tests;
