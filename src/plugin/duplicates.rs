//! Finds Stacks that manage the same Pulumi stack. Only one of these Stacks runs. The controller compares more parts of the
//! location of the state, which only its environment and its agents know.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::{Stack, StackSpec};
use serde_json::{Value, json};

/// Variable with the backend of a Stack. It takes precedence over `spec.backend`.
const BACKEND: &str = "PULUMI_BACKEND_URL";
/// Variable with the organization of Pulumi stacks whose name contains none.
const DEFAULT_ORGANIZATION: &str = "PULUMI_DEFAULT_ORGANIZATION";
/// Parameters of a backend URL that select another server.
const SERVERS: [&str; 3] = ["endpoint", "storage_account", "domain"];

/// Pulumi stack that a Stack manages, apart from its name and its backend.
struct Claim<'a> {
    stack: &'a Stack,
    organization: Option<&'a str>,
    project: Option<String>,
    /// Source of the program. Two Stacks with the same source have the same project.
    source: Value,
}

impl Claim<'_> {
    fn is_same(&self, other: &Claim<'_>) -> bool {
        let is_organization = match (self.organization, other.organization) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        let is_project = match (&self.project, &other.project) {
            (Some(one), Some(other)) => one == other,
            // The operator has not run one of the Stacks yet.
            _ => !self.source.is_null() && self.source == other.source,
        };
        is_organization && is_project
    }
}

/// Returns the first of the earlier Stacks with the same Pulumi stack for each Stack, by index of the later Stack. Compares
/// the Stacks of each namespace, as the controller does by default. A Stack with `spec.preview` changes no resources.
pub fn duplicates(stacks: &[Stack]) -> BTreeMap<usize, &Stack> {
    let mut earlier: BTreeMap<[String; 3], Vec<Claim<'_>>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for (index, stack) in stacks.iter().enumerate().filter(|(_, stack)| !stack.spec.preview.unwrap_or_default()) {
        let (key, claim) = claim(stack);
        let same = earlier.entry(key).or_default();
        if let Some(other) = same.iter().find(|other| claim.is_same(other)) {
            found.insert(index, other.stack);
        }
        same.push(claim);
    }
    found
}

/// Returns the other Stacks with the same Pulumi stack as a Stack.
pub fn with_same_pulumi_stack<'a>(stack: &Stack, others: &'a [Stack]) -> Vec<&'a Stack> {
    let (key, own) = claim(stack);
    let is_other = |other: &&Stack| other.name_any() != stack.name_any() && !other.spec.preview.unwrap_or_default();
    let is_same = |other: &&Stack| {
        let (other_key, other) = claim(other);
        other_key == key && own.is_same(&other)
    };
    others.iter().filter(is_other).filter(is_same).collect()
}

/// Returns the namespace, the backend and the name of the Pulumi stack, which are equal for all Stacks that manage the same
/// Pulumi stack, and the other parts.
fn claim(stack: &Stack) -> ([String; 3], Claim<'_>) {
    let spec = &stack.spec;
    let (organization, project, name) = match spec.stack.split('/').collect::<Vec<_>>().as_slice() {
        [organization, project, name] => (Some(*organization), Some(*project), *name),
        [organization, name] => (Some(*organization), None, *name),
        _ => (None, None, spec.stack.as_str()),
    };
    let known = stack.status.as_ref().and_then(|status| status.project_info.as_ref()).map(|info| &info.name);
    let organization = organization.or_else(|| default_organization(spec));
    let project = project.map(str::to_owned).or_else(|| known.cloned());
    let key = [stack.namespace().unwrap_or_default(), backend(spec).to_string(), name.to_owned()];
    (key, Claim { stack, organization, project, source: source(spec) })
}

/// Returns the backend, or the reference to its URL.
fn backend(spec: &StackSpec) -> Value {
    match spec.env_refs.get(BACKEND) {
        Some(reference) => match &reference.literal {
            Some(literal) => json!(location(&literal.value)),
            None => json!([reference.secret, reference.config_map]),
        },
        None => json!(location(spec.backend.as_deref().unwrap_or_default())),
    }
}

/// Returns the parts of a backend URL that determine the location of the state.
fn location(url: &str) -> Vec<&str> {
    let url = url.trim();
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let is_server = |parameter: &&str| parameter.split_once('=').is_some_and(|(name, _)| SERVERS.contains(&name));
    let mut parameters: Vec<&str> = query.split('&').filter(is_server).collect();
    parameters.sort_unstable();
    std::iter::once(path.trim_end_matches('/')).chain(parameters).collect()
}

/// Returns the source of a Stack, apart from its revision. Returns `null` if the Stack has no source that two Stacks can
/// share.
fn source(spec: &StackSpec) -> Value {
    let directory = |text: Option<&str>| -> String {
        let parts = text.unwrap_or_default().split('/').filter(|part| !matches!(*part, "" | "."));
        parts.collect::<Vec<_>>().join("/")
    };
    let repository = |url: &str, dir: Option<&str>| {
        let url = url.trim().trim_end_matches('/').trim_end_matches(".git");
        json!(["git", url, directory(dir)])
    };
    let template = spec.workspace_template.as_ref();
    let git = |field: &str| template?.pointer(&format!("/spec/git/{field}"))?.as_str();
    if let Some(program) = &spec.program_ref {
        json!(["program", program.name])
    } else if let Some(flux) = &spec.flux_source {
        json!(["flux", flux.source_ref.kind, flux.source_ref.name, directory(flux.dir.as_deref())])
    } else if let Some(url) = &spec.project_repo {
        repository(url, spec.repo_dir.as_deref())
    } else if let Some(url) = git("url") {
        repository(url, git("dir"))
    } else {
        Value::Null
    }
}

/// Returns the organization for a Pulumi stack whose name contains none. Returns `None` if it is unknown.
fn default_organization(spec: &StackSpec) -> Option<&str> {
    let literal = spec.env_refs.get(DEFAULT_ORGANIZATION)?.literal.as_ref()?;
    Some(literal.value.as_str()).filter(|name| !name.is_empty())
}
