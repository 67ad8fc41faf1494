//! Determines where a Stack stores its Pulumi state, according to the Stack's fields. The location is unknown if these
//! fields do not define it completely.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::names::{ACCESS_TOKEN_KEY, PULUMI_CONTAINER};
use crate::api::pulumi::{PulumiStack, ResourceRef, Stack};
use crate::controller;
use crate::pulumi::{backend, stack_name};

const URL: &str = backend::URL_VARIABLE;
const TOKEN: &str = backend::TOKEN_VARIABLE;
const DEFAULT_ORGANIZATION: &str = backend::DEFAULT_ORGANIZATION_VARIABLE;
/// Minimum number of labels in an absolute host name. The DNS resolver in a pod appends the pod's namespace to shorter
/// names, such as `minio` and `minio-0.minio`.
const LABELS_OF_ABSOLUTE_NAME: usize = 3;

/// Backend, organization and name of a Pulumi stack, as comparable strings. Callers compare the project separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Address within a namespace. Two Stacks in a namespace have the same address if they have the same settings.
    pub(super) in_namespace: String,
    /// Address within the cluster. Stacks that manage the same Pulumi stack have the same address in all namespaces.
    /// `None` if the location is unknown: the Stack does not contain the backend URL, or the location depends on the
    /// namespace or the pod.
    pub(super) in_cluster: Option<String>,
}

/// Returns the address of a Stack. Returns `None` if the Pulumi state is in a file that other Stacks cannot access.
pub(super) fn address(stack: &Stack) -> Option<Address> {
    let stack_name::Parts { organization, stack: name, .. } = stack_name::parts(&stack.spec.stack);
    let variables = variables(stack);
    let (text, url) = match variables.get(URL) {
        Some(Value::String(text)) => {
            (completed(text, &variables), json!(backend::location(&completed(text, &variables))))
        }
        other => (String::new(), other.cloned().unwrap_or_default()),
    };
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    let default = variables.get(DEFAULT_ORGANIZATION);
    let organization = organization
        .or_else(|| applied_organization(stack, name, &text))
        .or_else(|| default.and_then(Value::as_str).filter(|name| !name.is_empty()));
    let with = |prefix: &str| json!(variables.iter().filter(|(name, _)| name.starts_with(prefix)).collect::<Vec<_>>());
    // If the URL lacks parts of the location, environment variables can contain them.
    let completing = match scheme.as_str() {
        "file" => shared_volume(stack, rest)?,
        "s3" => with("AWS_ENDPOINT"),
        "azblob" => with("AZURE_STORAGE"),
        "gs" => with("STORAGE_EMULATOR"),
        // If the stack name contains no organization, a variable or the access token determines the organization.
        "" | "http" | "https" if organization.is_none() => match &stack.spec.pulumi_cloud_oidc {
            Some(oidc) => json!([default, oidc.organization, oidc.team, oidc.user]),
            None => json!([default, variables.get(TOKEN)]),
        },
        "" | "http" | "https" => json!(organization),
        _ => Value::Null,
    };
    let server = ["endpoint", "storage_account"].into_iter().find_map(|name| backend::parameter(&text, name));
    let unseen = unseen(stack);
    let in_namespace = match scheme.as_str() {
        "s3" | "azblob" if server.is_some() => json!([url, name]),
        "s3" | "azblob" | "" => json!([url, completing, unseen, name]),
        _ => json!([url, completing, name]),
    };
    let has_absolute = |parameter: &str| backend::parameter(&text, parameter).is_none_or(|host| is_absolute(&host));
    let is_certain = match scheme.as_str() {
        "s3" => has_absolute("endpoint") && values(&completing).all(is_absolute),
        "azblob" => server.is_some() && values(&completing).next().is_none() && has_absolute("domain"),
        "gs" => values(&completing).all(is_absolute),
        "http" | "https" => organization.is_some() && is_absolute(rest),
        "postgres" => is_absolute(rest),
        _ => false,
    };
    let in_cluster = (is_certain && unseen.is_null()).then(|| json!([url, completing, name]).to_string());
    Some(Address { in_namespace: in_namespace.to_string(), in_cluster })
}

/// Returns the organization of the applied Pulumi stack if that stack has this name and this backend.
fn applied_organization<'a>(stack: &'a Stack, name: &str, url: &str) -> Option<&'a str> {
    let applied = controller::qualified(stack.status.as_ref()?.applied_stack.as_ref()?);
    let backend = Some(url).filter(|url| !url.is_empty());
    stack_name::Qualified { name, project: None, backend }.organization_of(&applied)
}

/// Returns the volume in the pod template that contains a file, and the file's path. Returns `None` if no volume
/// contains the file, or if each pod has its own volume.
pub(super) fn shared_volume(stack: &Stack, path: &str) -> Option<Value> {
    let path = path.split('?').next().unwrap_or_default();
    let is_above = |mount: &&Value| {
        let directory = mount.get("mountPath").and_then(Value::as_str).map(|path| path.trim_end_matches('/'));
        let below = directory.and_then(|directory| path.strip_prefix(directory));
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    };
    let length = |mount: &&Value| mount.get("mountPath").and_then(Value::as_str).map_or(0, str::len);
    let mount = in_template(stack, "volumeMounts").filter(is_above).max_by_key(length)?;
    let volumes = pod_template(stack)?.get("volumes")?.as_array()?;
    let volume = volumes.iter().find(|volume| volume.get("name") == mount.get("name"))?;
    let is_of_pod = ["emptyDir", "ephemeral"].iter().any(|kind| volume.get(kind).is_some());
    (!is_of_pod).then(|| json!([volume, mount]))
}

/// Returns an address of a Pulumi stack that is comparable within a namespace. Returns `None` if a part of the location
/// is unknown. `has_run` determines whether an agent has reported the URL. An agent reports all parts of the location,
/// so an S3 URL without an endpoint then refers to AWS.
pub(super) fn resolved_address(stack: &PulumiStack, has_run: bool) -> Option<String> {
    let url = stack.backend.as_deref()?;
    let stack = controller::qualified(stack);
    let (scheme, _) = url.split_once("://")?;
    let is_complete = match scheme {
        "s3" => has_run || backend::parameter(url, "endpoint").is_some(),
        "azblob" => backend::parameter(url, "storage_account").is_some(),
        "gs" => has_run,
        "postgres" => true,
        "http" | "https" => stack.organization().is_some(),
        _ => false,
    };
    let name = stack_name::parts(stack.name).stack;
    is_complete.then(|| json!(["resolved", backend::location(url), stack.organization(), name]).to_string())
}

/// Returns the values in a list of environment variables. For each value that the Stack does not contain, returns an
/// empty string, which is not a valid host.
fn values(variables: &Value) -> impl Iterator<Item = &str> {
    variables
        .as_array()
        .into_iter()
        .flatten()
        .map(|variable| variable.get(1).and_then(Value::as_str).unwrap_or_default())
}

/// Returns whether the host name in a URL refers to the same host in each pod of the cluster. The scheme of the URL is
/// optional.
fn is_absolute(url: &str) -> bool {
    let location = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = location.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return !address.is_loopback() && !address.is_unspecified();
    }
    let name = host.trim_end_matches('.');
    let labels = name.split('.').filter(|label| !label.is_empty()).count();
    name != "localhost"
        && !name.ends_with(".localhost")
        && (labels >= LABELS_OF_ABSOLUTE_NAME || name.len() < host.len())
}

/// Returns the URL of the backend without credentials. Returns `None` if the Stack does not contain the URL.
pub(super) fn url(stack: &Stack) -> Option<String> {
    let variables = variables(stack);
    backend::without_credentials(&completed(variables.get(URL)?.as_str()?, &variables))
}

/// Returns a URL with the parts of the location in environment variables whose values the Stack contains.
fn completed(url: &str, variables: &BTreeMap<String, Value>) -> String {
    backend::completed(url, |_, names| {
        let first = names.iter().find_map(|name| variables.get(*name));
        first.and_then(Value::as_str).map(Cow::Borrowed)
    })
}

/// Returns the environment variables that the Stack sets individually. Each entry contains the name, and the value or a
/// reference to the value.
fn variables(stack: &Stack) -> BTreeMap<String, Value> {
    let namespace = stack.namespace().unwrap_or_default();
    let mut variables = BTreeMap::new();
    if let Some(url) = stack.spec.backend_url() {
        variables.insert(URL.to_owned(), json!(url.trim_end_matches('/')));
    }
    if let Some(secret) = stack.spec.access_token_secret.as_ref().filter(|name| !name.is_empty()) {
        variables.insert(TOKEN.to_owned(), json!([namespace, secret, ACCESS_TOKEN_KEY]));
    }
    for (name, ResourceRef { literal, secret, config_map, .. }) in &stack.spec.env_refs {
        let value = match literal {
            Some(literal) => json!(literal.value.trim_end_matches('/')),
            None => json!([namespace, secret, config_map]),
        };
        variables.insert(name.clone(), value);
    }
    for variable in in_template(stack, "env") {
        let (Some(name), value) = (variable.get("name").and_then(Value::as_str), variable.get("value")) else {
            continue;
        };
        let value = match value.and_then(Value::as_str) {
            Some(value) => json!(value.trim_end_matches('/')),
            None => json!([namespace, variable.get("valueFrom")]),
        };
        variables.insert(name.to_owned(), value);
    }
    variables
}

/// Returns the settings whose effect on the backend is unknown: the `envFrom` sources and the pod's name resolution.
fn unseen(stack: &Stack) -> Value {
    let sources: Vec<&Value> = in_template(stack, "envFrom").collect();
    let pod = pod_template(stack);
    let names: Vec<&Value> =
        ["hostAliases", "dnsConfig", "dnsPolicy"].iter().filter_map(|field| pod?.get(field)).collect();
    if stack.spec.envs.is_empty() && stack.spec.env_secrets.is_empty() && sources.is_empty() && names.is_empty() {
        return Value::Null;
    }
    json!([stack.spec.envs, stack.spec.env_secrets, sources, names])
}

/// Returns the items of a list in the workspace template, followed by the items of the same list in the pod template.
/// The later items take precedence.
pub(super) fn in_template<'a>(stack: &'a Stack, list: &'a str) -> impl Iterator<Item = &'a Value> {
    let of_workspace = workspace_template(stack).and_then(|spec| spec.get(list)?.as_array());
    let containers = pod_template(stack).and_then(|spec| spec.get("containers")?.as_array());
    let is_ours = |container: &&Value| container.get("name").and_then(Value::as_str) == Some(PULUMI_CONTAINER);
    let of_container = containers.into_iter().flatten().filter(is_ours);
    let of_container = of_container.filter_map(move |container| container.get(list)?.as_array());
    of_workspace.into_iter().chain(of_container).flatten()
}

fn workspace_template(stack: &Stack) -> Option<&Value> {
    stack.spec.workspace_template.as_ref()?.get("spec")
}

fn pod_template(stack: &Stack) -> Option<&Value> {
    workspace_template(stack)?.get("podTemplate")?.get("spec")
}

#[cfg(test)]
mod tests;
