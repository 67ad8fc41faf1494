//! Protocol versions of the agents, and the digest that identifies the settings in messages between the controller and
//! an agent.
//!
//! An agent silently ignores fields that it does not support. The controller therefore sends a request only to an agent
//! whose protocol version supports the request.

use sha2::{Digest, Sha256};

use crate::rpc::proto::environment_variable::Source;
use crate::rpc::proto::{
    ConfigItem, EnvironmentVariable, OperationKind, PolicyPack, PreviewOf, RunOptions, RunRequest, Settings,
};

/// Protocol version of this agent. If you add a field to the run request that changes how an agent executes the run,
/// increase this version. For requests with the new field, return the increased version from [`required_version`].
///
/// Version 2: a destroy fails if the backend does not contain the Pulumi stack.
///
/// Version 3: a run waits until the required directories are mounted.
///
/// Version 4: a destroy fails if its Pulumi stack is not the applied stack.
///
/// Version 5: a run logs in to Pulumi Cloud with the pod's ServiceAccount token, and adds the organization of the
/// applied stack to its stack name.
///
/// Version 6: a preview saves its plan or previews another operation, and a run follows a plan.
///
/// Version 7: the agent installs policy packs, and a run enforces them.
///
/// Version 8: the environment can contain templates, inherited variables and optional entries.
///
/// Version 9: an `up` or a preview fails if the backend does not have the applied stack.
///
/// Version 10: a run fails if another Stack has applied its Pulumi stack.
pub const PROTOCOL_VERSION: u32 = 10;
/// Minimum protocol version of an agent that does not run in the Pulumi stacks of other Stacks. An older agent would
/// delete the resources of the other Stack.
const APPLIED_BY_OTHERS_VERSION: u32 = 10;
/// Minimum protocol version of an agent that does not create a missing applied stack. An older agent would create the
/// stack, and all resources a second time.
const APPLIED_STACK_VERSION: u32 = 9;
/// Minimum protocol version of an agent that supports all kinds of environment variables. An older agent rejects the
/// source and the run.
pub const ENVIRONMENT_VERSION: u32 = 8;
/// Minimum protocol version of an agent that supports policy packs. An older agent computes a different digest for
/// settings with policy packs, and rejects the run.
pub const POLICY_PACK_VERSION: u32 = 7;
/// Minimum protocol version of an agent that supports plans. An older agent runs without the plan, and always previews
/// an `up`.
const PLAN_VERSION: u32 = 6;
/// Minimum protocol version of an agent that logs in to Pulumi Cloud. An older agent runs without credentials.
const OIDC_LOGIN_VERSION: u32 = 5;
/// Minimum protocol version of an agent that uses the organization of the applied stack. An older agent could use the
/// stack of another organization.
const ORGANIZATION_VERSION: u32 = 5;
/// Minimum protocol version of an agent that waits until the kubelet has mounted Secrets and ConfigMaps.
pub const MOUNT_WAIT_VERSION: u32 = 3;

/// Returns the minimum protocol version that an agent needs for this run.
pub fn required_version(request: &RunRequest) -> u32 {
    if !request.applied_by_others.is_empty() {
        return APPLIED_BY_OTHERS_VERSION;
    }
    let is_forward = matches!(request.kind(), OperationKind::Up | OperationKind::Preview);
    if is_forward && request.applied_stack.is_some() && !request.create_stack {
        return APPLIED_STACK_VERSION;
    }
    if request.environment.iter().any(is_new_variable) {
        return ENVIRONMENT_VERSION;
    }
    if request.settings.as_ref().is_some_and(|settings| !settings.policy_packs.is_empty()) {
        return POLICY_PACK_VERSION;
    }
    let previews_another = |options: &RunOptions| options.preview_of() != PreviewOf::Up;
    if !request.plan.is_empty() || request.options.as_ref().is_some_and(|o| o.save_plan || previews_another(o)) {
        return PLAN_VERSION;
    }
    if request.oidc_login.is_some() {
        return OIDC_LOGIN_VERSION;
    }
    if request.applied_stack.as_ref().is_some_and(|applied| applied.name.contains('/')) {
        return ORGANIZATION_VERSION;
    }
    if request.kind() == OperationKind::Destroy {
        return if request.applied_stack.is_some() { 4 } else { 2 };
    }
    let is_first = matches!(request.kind(), OperationKind::Up | OperationKind::Unspecified)
        && request.options.as_ref().is_none_or(|options| *options == RunOptions::default())
        && request.pending_creates == 0
        && request.timeout_seconds == 0
        && request.idle_timeout_seconds == 0
        && request
            .settings
            .as_ref()
            .is_none_or(|settings| settings.environments.is_empty() && settings.config.iter().all(is_plain));
    if is_first { 0 } else { 1 }
}

/// Returns whether an agent needs [`ENVIRONMENT_VERSION`] for a variable.
pub fn is_new_variable(variable: &EnvironmentVariable) -> bool {
    variable.optional || matches!(variable.source, Some(Source::Template(_) | Source::Inherited(_)))
}

fn is_plain(item: &ConfigItem) -> bool {
    *item == ConfigItem { key: item.key.clone(), value: item.value.clone(), ..ConfigItem::default() }
}

/// Returns the digest of settings in the form `sha256:hex`. The order of the configuration items does not affect the
/// digest.
pub fn settings_digest(settings: &Settings) -> String {
    let mut config: Vec<&ConfigItem> = settings.config.iter().collect();
    config
        .sort_unstable_by(|one, other| (&one.key, &one.value, &one.file).cmp(&(&other.key, &other.value, &other.file)));
    let mut hasher = Sha256::new();
    add(&mut hasher, &settings.stack);
    for item in config {
        add(&mut hasher, &item.key);
        add(&mut hasher, &item.value);
        // An item that has only a key and a value must have the same digest as in earlier versions, which lack the
        // other fields.
        if *item != (ConfigItem { key: item.key.clone(), value: item.value.clone(), ..ConfigItem::default() }) {
            add(&mut hasher, &format!("{:?}", (&item.file, &item.variable, item.json, item.path, item.secret)));
        }
    }
    for environment in &settings.environments {
        add(&mut hasher, &format!("environment {environment}"));
    }
    for PolicyPack { name, artifact, config } in &settings.policy_packs {
        let (digest, directory) = artifact.as_ref().map_or(("", ""), |of| (of.digest.as_str(), of.directory.as_str()));
        add(&mut hasher, &format!("policy pack {:?}", (name, digest, directory, config)));
    }
    format!("sha256:{}", hex::encode(hasher.finalize()))
}

/// Adds a string and its length to a hash. Without the length, different lists of strings could have the same digest.
fn add(hasher: &mut Sha256, text: &str) {
    hasher.update((text.len() as u64).to_be_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests;
