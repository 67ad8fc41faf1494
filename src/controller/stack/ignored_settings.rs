//! Settings of a Stack that have no effect in combination with its other settings. The API server rejects such
//! combinations of fields that the Pulumi Kubernetes Operator does not have. For the fields of the operator, and for the
//! fields that `spec.preview` switches off, the condition `SettingsIgnored` lists them.

use jiff::Timestamp;
use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;

use crate::api::cli_options;
use crate::api::conditions::{self, ConditionUpdate, SETTINGS_IGNORED, Status, settings_reason};
use crate::api::names::RESERVED_VARIABLES;
use crate::api::pulumi::{GitAuth, ResourceRef, Stack, StackSpec, StackStatus};
use crate::controller::stack::backoff::{self, FIRST_BACKOFF, MIN_RESYNC};
use crate::controller::stack::{backend, ownership};
use crate::pulumi::backend::{TOKEN_VARIABLE, URL_VARIABLE};
use crate::runtime::events::{Event, EventKind};
use crate::source::git;

/// Maximum number of settings in the message.
const MAX_LISTED: usize = 20;

/// Returns an error message if the spec contains an environment variable without which a run would do something else
/// than the user expects. The agent does not pass such a variable to the CLI.
pub fn check(stack: &Stack) -> Result<(), String> {
    let refused = |variable: Variable<'_>| {
        let Variable { field, name } = variable;
        let effect = cli_options::effect_of_removal(name)?;
        Some(format!("invalid spec.{field}: runs ignore {name} and {effect}; {}", cli_options::instead_of(name)))
    };
    variables(stack).find_map(refused).map_or(Ok(()), Err)
}

/// Sets the condition `SettingsIgnored`, or removes it if all settings have an effect.
pub fn keep(stack: &Stack, status: &mut StackStatus, now: Timestamp) {
    let ignored = ignored(stack, status);
    if ignored.is_empty() {
        return conditions::remove(&mut status.conditions, SETTINGS_IGNORED);
    }
    let more = ignored.len().saturating_sub(MAX_LISTED);
    let listed = ignored.into_iter().take(MAX_LISTED).collect::<Vec<_>>().join("; ");
    let message = if more > 0 { format!("{listed}; and {more} more") } else { listed };
    let reason = settings_reason::SETTINGS_IGNORED;
    let condition = ConditionUpdate { kind: SETTINGS_IGNORED, status: Status::True, reason, message: &message };
    let generation = stack.metadata.generation.unwrap_or_default();
    conditions::set(&mut status.conditions, &condition, generation, now);
}

/// Returns the event about settings without effect. Returns `None` if the previous status contains the same message.
pub fn event(stack: &Stack, status: &StackStatus) -> Option<Event> {
    let found = conditions::find(&status.conditions, SETTINGS_IGNORED)?;
    let before = stack.status.as_ref().and_then(|before| conditions::find(&before.conditions, SETTINGS_IGNORED));
    let is_new = before.is_none_or(|before| before.message != found.message);
    is_new.then(|| Event::new(stack, EventKind::Warning, settings_reason::SETTINGS_IGNORED, found.message.as_str()))
}

/// Returns the fields that have no effect in combination with other fields, and the ends of the sentences about them.
pub fn settings_without_effect() -> Vec<(&'static str, &'static str)> {
    rows(&StackSpec::default()).map(|(field, _, why)| (field, why)).collect()
}

fn rows(spec: &StackSpec) -> impl Iterator<Item = Row> {
    combinations(spec).into_iter().chain(switched_off(spec)).chain(overridden(spec))
}

/// Returns a sentence for each setting without effect.
fn ignored(stack: &Stack, status: &StackStatus) -> Vec<String> {
    let spec = &stack.spec;
    let combinations = rows(spec).filter(|(_, is_ignored, _)| *is_ignored);
    let mut all: Vec<String> =
        combinations.map(|(field, _, why)| format!("spec.{field} has no effect {why}")).collect();
    let nulls = spec.config.iter().filter(|(_, value)| value.is_null());
    all.extend(nulls.map(|(key, _)| format!("spec.config[{key}] has no effect: null sets no value")));
    all.extend(unused_values(spec));
    all.extend(template_parts(stack));
    let visible: Vec<Variable<'_>> = variables(stack).collect();
    let reserved = visible.iter().filter(|variable| RESERVED_VARIABLES.contains(&variable.name));
    all.extend(reserved.map(|Variable { field, name }| {
        format!("environment variable {name} in spec.{field} has no effect: the controller sets it")
    }));
    // With a variable that would restrict the run, no run starts ([`check`]).
    let is_removed = |name: &str| cli_options::is_removed(name) && cli_options::effect_of_removal(name).is_none();
    let options = visible.iter().filter(|variable| is_removed(variable.name));
    all.extend(options.map(|Variable { field, name }| {
        format!("environment variable {name} in spec.{field} has no effect: {}", cli_options::instead_of(name))
    }));
    let reported = status.last_update.iter().flat_map(|last| &last.ignored_variables);
    let hidden = reported.filter(|name| visible.iter().all(|variable| variable.name != name.as_str()));
    all.extend(
        hidden.map(|name| format!("environment variable {name} has no effect: {}", cli_options::instead_of(name))),
    );
    all
}

/// Field, whether it has no effect, and the end of the sentence about it.
type Row = (&'static str, bool, &'static str);

fn is(value: Option<bool>) -> bool {
    value == Some(true)
}

/// Returns the combinations of settings without effect.
fn combinations(spec: &StackSpec) -> [Row; 15] {
    let template = |field: &str| in_template(spec.update_template.as_ref(), field);
    let refreshes = template("refresh").and_then(Value::as_bool).or(spec.refresh) == Some(true);
    let targets = !spec.targets.is_empty() || template("target").is_some();
    let polls = git::has_git_fields(spec) || in_template(spec.workspace_template.as_ref(), "git").is_some();
    let has_interval = |text: &Option<String>| backoff::interval(text.as_deref()).is_some();
    let resyncs = is(spec.continue_resync_on_commit_match) && !has_interval(&spec.interval);
    let retries = has_interval(&spec.retry_interval);
    let has_variable = |name: &str| spec.env_refs.contains_key(name);
    let seconds = spec.resync_frequency_seconds.filter(|seconds| *seconds != 0);
    let longest = spec.retry_max_backoff_duration_seconds;
    let git_auth = spec.git_auth.as_deref();
    let is_given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    [
        ("expectNoRefreshChanges", is(spec.expect_no_refresh_changes) && !refreshes, "without spec.refresh"),
        ("targetDependents", is(spec.target_dependents) && !targets, "without spec.targets"),
        (
            "updateTemplate.spec.targetDependents",
            template("targetDependents") == Some(&Value::Bool(true)) && !targets,
            "without spec.targets",
        ),
        ("continueResyncOnCommitMatch", is(spec.continue_resync_on_commit_match) && !resyncs, "with spec.interval"),
        ("resyncFrequencySeconds", seconds.is_some_and(|n| n < MIN_RESYNC), "below its minimum of 60"),
        (
            "resyncFrequencySeconds",
            seconds.is_some() && !polls && !resyncs,
            "without spec.projectRepo and without spec.continueResyncOnCommitMatch",
        ),
        (
            "retryMaxBackoffDurationSeconds",
            longest.is_some_and(|n| n < FIRST_BACKOFF.as_secs()),
            "below its minimum of 10",
        ),
        ("retryMaxBackoffDurationSeconds", longest.is_some() && retries, "with spec.retryInterval"),
        ("shallow", spec.shallow.is_some() && spec.project_repo.is_none(), "without spec.projectRepo"),
        ("gitAuth", git_auth.is_some_and(GitAuth::is_empty), "without accessToken, sshAuth, basicAuth or githubApp"),
        (
            "gitAuthSecret",
            is_given(&spec.git_auth_secret) && git_auth.is_some_and(|auth| !auth.is_empty()),
            "with spec.gitAuth",
        ),
        ("backend", is_given(&spec.backend) && has_variable(URL_VARIABLE), "with spec.envRefs.PULUMI_BACKEND_URL"),
        (
            "accessTokenSecret",
            is_given(&spec.access_token_secret) && has_variable(TOKEN_VARIABLE),
            "with spec.envRefs.PULUMI_ACCESS_TOKEN",
        ),
        (
            "runProgram",
            is(spec.run_program) && !is(spec.destroy_on_finalize) && !refreshes && spec.drift.is_none(),
            "without spec.destroyOnFinalize, spec.refresh or spec.drift",
        ),
        (
            "updateTemplate.spec.remove",
            template("remove") == Some(&Value::Bool(true)) && !is(spec.destroy_on_finalize),
            "without spec.destroyOnFinalize",
        ),
    ]
}

/// Returns the settings that `spec.preview` or `destroyOnFinalize: false` switches off. The API server accepts them, so
/// that a user can change these two fields without a change to other fields.
fn switched_off(spec: &StackSpec) -> [Row; 7] {
    let preview = is(spec.preview);
    [
        ("approval", preview && spec.approval.is_some(), "with spec.preview"),
        ("destroyOnFinalize", preview && is(spec.destroy_on_finalize), "with spec.preview"),
        (
            "removeStack",
            is(spec.remove_stack) && spec.destroy_on_finalize == Some(false),
            "with spec.destroyOnFinalize: false",
        ),
        ("removeStack", preview && is(spec.remove_stack), "with spec.preview"),
        ("drift", preview && spec.drift.is_some(), "with spec.preview"),
        ("schedule", preview && spec.schedule.is_some(), "with spec.preview"),
        ("writeOutputsTo", preview && !spec.write_outputs_to.is_empty(), "with spec.preview"),
    ]
}

/// Returns the fields that a template overrides.
fn overridden(spec: &StackSpec) -> [Row; 10] {
    let update = |field: &str| in_template(spec.update_template.as_ref(), field).is_some();
    let workspace = |field: &str| in_template(spec.workspace_template.as_ref(), field).is_some();
    [
        (
            "expectNoRefreshChanges",
            spec.expect_no_refresh_changes.is_some() && update("expectNoRefreshChanges"),
            "with spec.updateTemplate.spec.expectNoRefreshChanges",
        ),
        (
            "idleTimeout",
            spec.idle_timeout.is_some() && update("idleTimeout"),
            "with spec.updateTemplate.spec.idleTimeout",
        ),
        ("priority", spec.priority.is_some() && update("priority"), "with spec.updateTemplate.spec.priority"),
        (
            "pulumiLogLevel",
            spec.pulumi_log_level.is_some() && workspace("pulumiLogLevel"),
            "with spec.workspaceTemplate.spec.pulumiLogLevel",
        ),
        ("refresh", spec.refresh.is_some() && update("refresh"), "with spec.updateTemplate.spec.refresh"),
        ("removeStack", spec.remove_stack.is_some() && update("remove"), "with spec.updateTemplate.spec.remove"),
        ("runProgram", spec.run_program.is_some() && update("runProgram"), "with spec.updateTemplate.spec.runProgram"),
        (
            "targetDependents",
            spec.target_dependents.is_some() && update("targetDependents"),
            "with spec.updateTemplate.spec.targetDependents",
        ),
        ("targets", !spec.targets.is_empty() && update("target"), "with spec.updateTemplate.spec.target"),
        ("timeout", spec.timeout.is_some() && update("timeout"), "with spec.updateTemplate.spec.timeout"),
    ]
}

/// Returns the value of a field in the `spec` of a template.
fn in_template<'a>(template: Option<&'a Value>, field: &str) -> Option<&'a Value> {
    template?.get("spec")?.get(field).filter(|value| !value.is_null())
}

/// Returns a sentence for each value in a reference of another type.
fn unused_values(spec: &StackSpec) -> Vec<String> {
    let of_variables = spec.env_refs.iter().map(|(name, reference)| (format!("envRefs.{name}"), reference));
    let of_secrets = spec.secrets_ref.iter().map(|(key, reference)| (format!("secretsRef.{key}"), reference));
    let of_git = spec.git_auth.iter().flat_map(|auth| auth.references());
    let of_git = of_git.map(|(field, reference)| (format!("gitAuth.{field}"), reference));
    let unused = |(field, reference): (String, &ResourceRef)| {
        let values = [
            (ConfigMap::KIND, "configMap", reference.config_map.is_some()),
            ("Env", "env", reference.env.is_some()),
            ("FS", "filesystem", reference.filesystem.is_some()),
            ("Literal", "literal", reference.literal.is_some()),
            ("Secret", "secret", reference.secret.is_some()),
        ];
        let kind = reference.kind.clone();
        let unused = values.into_iter().filter(|(of, _, is_set)| *is_set && *of != reference.kind);
        unused.map(|(_, value, _)| format!("spec.{field}.{value} has no effect with type {kind}")).collect::<Vec<_>>()
    };
    of_variables.chain(of_secrets).chain(of_git).flat_map(unused).collect()
}

/// Returns a sentence for each part of a template that the controller does not merge.
fn template_parts(stack: &Stack) -> Vec<String> {
    let spec = &stack.spec;
    let own = ownership::labels(stack);
    let mut all = Vec::new();
    for (name, template) in [("updateTemplate", &spec.update_template), ("workspaceTemplate", &spec.workspace_template)]
    {
        let Some(template) = template else { continue };
        let is_set = |field: &&str| template.get(*field).is_some_and(|value| !value.is_null());
        let parts = ["apiVersion", "kind", "status"].into_iter().filter(is_set);
        all.extend(parts.map(|part| format!("spec.{name}.{part} has no effect: a template sets metadata and spec")));
        let labels = template.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let replaced =
            labels.filter(|(key, value)| own.get(*key).is_some_and(|own| Some(own.as_str()) != value.as_str()));
        all.extend(replaced.map(|(key, _)| {
            format!("spec.{name}.metadata.labels[{key}] has no effect: the controller sets this label")
        }));
    }
    let stacks = in_template(spec.workspace_template.as_ref(), "stacks").and_then(Value::as_array);
    let names = stacks.into_iter().flatten().filter_map(|item| item.get("name")?.as_str());
    all.extend(names.filter(|name| *name != spec.stack).map(|name| {
        format!(
            "spec.workspaceTemplate.spec.stacks[{name}] has no effect on the runs of this Stack, which use Pulumi stack {}",
            spec.stack
        )
    }));
    all
}

/// Environment variable of the CLI whose name is in the spec.
struct Variable<'a> {
    /// Field that contains the variable.
    field: &'static str,
    name: &'a str,
}

fn variables(stack: &Stack) -> impl Iterator<Item = Variable<'_>> {
    let is_kept = |entry: &&Value| entry.get("$patch").is_none();
    let names = backend::in_template(stack, "env").filter(is_kept).filter_map(|entry| entry.get("name")?.as_str());
    let in_template = names.map(|name| Variable { field: "workspaceTemplate", name });
    stack.spec.env_refs.keys().map(|name| Variable { field: "envRefs", name }).chain(in_template)
}

#[cfg(test)]
mod tests;
