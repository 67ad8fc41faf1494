//! Findings about single fields of a Stack, apart from its sources, references and pod template.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use pulumi_controller::api::duration;
use pulumi_controller::api::names::is_object_name;
use pulumi_controller::api::pulumi::{PrerequisiteReference, Stack, StackSpec};
use serde_json::Value;

use super::finding::Finding;

/// Maximum length of the name of a Stack, in characters.
const MAX_NAME: usize = 42;
/// Maximum number of parts in the name of a Pulumi stack: the organization, the project and the stack.
const MAX_PARTS: usize = 3;
/// URL schemes of the backends that the controller supports in addition to Pulumi Cloud. They are case-sensitive.
const SELF_MANAGED: [&str; 5] = ["s3", "gs", "azblob", "postgres", "file"];
/// Fields of `updateTemplate.spec` that a template cannot set.
const UPDATE_FIELDS: [&str; 3] = ["stackName", "type", "workspaceName"];

pub fn findings(stack: &Stack) -> Vec<Finding> {
    let spec = &stack.spec;
    let single = [
        open_run(stack),
        name(stack),
        pulumi_stack(spec),
        backend(spec),
        service_account(spec),
        expected_refresh(spec),
        existing_stack(stack),
    ];
    let mut all: Vec<Finding> = single.into_iter().flatten().collect();
    all.extend(duplicate_keys(spec));
    all.extend(prerequisites(spec));
    all.extend(update_template(spec));
    all
}

fn open_run(stack: &Stack) -> Option<Finding> {
    let open = &stack.status.as_ref()?.current_update.as_ref()?.name;
    let change = format!("stopping the operator interrupts the open run {open}");
    Some(Finding::required("status.currentUpdate", change, "wait until the run has ended"))
}

fn name(stack: &Stack) -> Option<Finding> {
    let change = format!("the controller rejects names of Stacks with more than {MAX_NAME} characters");
    let action = "create a Stack with a shorter name for the same Pulumi stack";
    (stack.name_any().len() > MAX_NAME).then(|| Finding::required("metadata.name", change, action))
}

fn pulumi_stack(spec: &StackSpec) -> Option<Finding> {
    let is_part = |part: &str| !part.trim().is_empty() && !part.starts_with('-');
    let parts = spec.stack.split('/');
    let is_valid = parts.clone().count() <= MAX_PARTS && parts.clone().all(is_part);
    let change = "the controller rejects a name of a Pulumi stack in another form";
    let action = "use the form <stack>, <organization>/<stack> or <organization>/<project>/<stack>";
    (!is_valid).then(|| Finding::required("spec.stack", change, action))
}

fn backend(spec: &StackSpec) -> Option<Finding> {
    let variable = spec.env_refs.get("PULUMI_BACKEND_URL").and_then(|variable| variable.literal.as_ref());
    let urls = [
        ("spec.backend", spec.backend.as_deref()),
        ("spec.envRefs[PULUMI_BACKEND_URL]", variable.map(|literal| literal.value.as_str())),
    ];
    urls.into_iter().find_map(|(field, url)| {
        let url = url.map(str::trim).filter(|url| !url.is_empty())?;
        // The message omits the rest of the URL, because it can contain credentials.
        let scheme = url.split_once("://").map_or(url, |(scheme, _)| scheme);
        let is_cloud = ["http", "https"].iter().any(|cloud| scheme.eq_ignore_ascii_case(cloud));
        let is_supported = url.contains("://") && (is_cloud || SELF_MANAGED.contains(&scheme));
        let change = format!("the controller does not support backends with the scheme {scheme:?}");
        (!is_supported).then(|| Finding::required(field, change, "move the state to another backend"))
    })
}

fn service_account(spec: &StackSpec) -> Option<Finding> {
    let name = spec.service_account_name.as_deref().filter(|name| !is_object_name(name))?;
    let change = format!("the controller rejects {name:?}, which is not a valid name of a ServiceAccount");
    Some(Finding::required("spec.serviceAccountName", change, "correct the name, or remove the field"))
}

fn expected_refresh(spec: &StackSpec) -> Option<Finding> {
    let is_enforced = spec.expect_no_refresh_changes.unwrap_or_default() && spec.refresh.unwrap_or_default();
    let change = "a run fails if its refresh finds drift; the operator ignores the field";
    let action = "remove the field, or correct the drift first";
    is_enforced.then(|| Finding::required("spec.expectNoRefreshChanges", change, action))
}

/// Returns a finding for a Stack whose Pulumi stack may not exist. A successful run of the operator has created it.
fn existing_stack(stack: &Stack) -> Option<Finding> {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let has_succeeded = last.is_some_and(|last| last.state.as_deref() == Some("succeeded"));
    let is_enforced = stack.spec.use_local_stack_only.unwrap_or_default() && !has_succeeded;
    let change = "a run does not create a missing Pulumi stack; the operator ignores the field";
    let action = "create the Pulumi stack, or remove the field";
    is_enforced.then(|| Finding::required("spec.useLocalStackOnly", change, action))
}

fn duplicate_keys(spec: &StackSpec) -> Vec<Finding> {
    let config = spec.config.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| ("config", key));
    let config = config.chain(spec.config_ref.keys().map(|key| ("configRef", key)));
    let secrets = spec.secrets.keys().map(|key| ("secrets", key));
    let secrets = secrets.chain(spec.secrets_ref.keys().map(|key| ("secretsRef", key)));
    let mut first = BTreeMap::new();
    let duplicate = |(field, key)| {
        let other = *first.entry(key).or_insert(field);
        let change = format!("the controller rejects a key that spec.{other} also sets");
        (other != field).then(|| Finding::required(format!("spec.{field}[{key}]"), change, "remove one of the values"))
    };
    config.chain(secrets).filter_map(duplicate).collect()
}

fn prerequisites(spec: &StackSpec) -> Vec<Finding> {
    let finding = |prerequisite: &PrerequisiteReference| {
        let name = &prerequisite.name;
        let is_name = is_object_name(name) && name.len() <= MAX_NAME;
        let within = prerequisite.requirement.as_ref().and_then(|found| found.succeeded_within_duration.as_deref());
        let is_duration = within.is_none_or(|within| duration::seconds(within).is_some());
        match (is_name, is_duration) {
            (false, _) => {
                let change = format!("the controller rejects {name:?}, which is not a valid name of a Stack");
                Some(Finding::required("spec.prerequisites", change, "correct the name"))
            }
            (_, false) => {
                let field = format!("spec.prerequisites[{name}].requirement.succeededWithinDuration");
                let change = "the controller rejects a value that is not a duration";
                Some(Finding::required(field, change, "use a duration such as 1h30m or 45s"))
            }
            _ => None,
        }
    };
    spec.prerequisites.iter().filter_map(finding).collect()
}

fn update_template(spec: &StackSpec) -> Vec<Finding> {
    let template = spec.update_template.as_ref().and_then(|template| template.get("spec"));
    let fields = template.and_then(Value::as_object).into_iter().flatten().map(|(field, _)| field);
    let rejected = fields.filter(|field| UPDATE_FIELDS.contains(&field.as_str()));
    let finding = |field: &String| {
        let field = format!("spec.updateTemplate.spec.{field}");
        Finding::required(field, "the controller rejects this field", "remove the field")
    };
    rejected.map(finding).collect()
}
