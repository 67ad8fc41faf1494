//! Findings about the source of a Stack.

use pulumi_controller::api::pulumi::{GitAuth, Stack, StackSpec};
use serde_json::Value;

use super::finding::{Finding, in_template};

/// Schemes of repository URLs that the controller supports.
const HTTP: [&str; 2] = ["https", "http"];
const SSH: [&str; 3] = ["ssh", "git+ssh", "ssh+git"];

pub fn findings(stack: &Stack) -> Vec<Finding> {
    let spec = &stack.spec;
    let mut all: Vec<Finding> = several(spec).into_iter().collect();
    all.extend(repository(spec));
    all.extend(template(spec));
    all.extend(directories(spec));
    all
}

/// Returns the fields of the repository that are set, in the order in which the controller names them.
fn repository_fields(spec: &StackSpec) -> Vec<&'static str> {
    let fields = [
        ("projectRepo", spec.project_repo.is_some()),
        ("branch", spec.branch.is_some()),
        ("commit", spec.commit.is_some()),
        ("repoDir", spec.repo_dir.is_some()),
        ("gitAuth", spec.git_auth.is_some()),
        ("gitAuthSecret", spec.git_auth_secret.is_some()),
    ];
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect()
}

fn several(spec: &StackSpec) -> Option<Finding> {
    let in_template = |field: &str| in_template(spec, &format!("/spec/{field}")).is_some();
    let repository = repository_fields(spec).first().map(|field| format!("spec.{field}"));
    let others = [
        ("spec.fluxSource", spec.flux_source.is_some()),
        ("spec.programRef", spec.program_ref.is_some()),
        ("spec.workspaceTemplate.spec.git", in_template("git")),
        ("spec.workspaceTemplate.spec.flux", in_template("flux")),
        ("spec.workspaceTemplate.spec.local", in_template("local")),
        ("spec.workspaceTemplate.spec.projectInfo", in_template("projectInfo")),
    ];
    let others = others.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field.to_owned());
    let set: Vec<String> = repository.into_iter().chain(others).collect();
    let change = "the controller rejects a Stack with several sources";
    (set.len() > 1).then(|| Finding::required(set.join(", "), change, "keep only the source that the operator uses"))
}

fn repository(spec: &StackSpec) -> Vec<Finding> {
    let fields = repository_fields(spec);
    let Some(url) = spec.project_repo.as_deref().map(str::trim).filter(|url| !url.is_empty()) else {
        let has_other = spec.flux_source.is_some() || spec.program_ref.is_some();
        let unused = fields.first().filter(|_| !has_other);
        let change = "the controller rejects the fields of a repository without spec.projectRepo";
        let finding = |field: &&str| Finding::required(format!("spec.{field}"), change, "remove the field");
        return unused.map(finding).into_iter().collect();
    };
    let given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.trim().is_empty());
    let change = |what: &str| format!("the controller rejects a repository {what}");
    let mut all = match (given(&spec.branch), given(&spec.commit)) {
        (true, true) => {
            let action = "keep only the field that the operator uses";
            vec![Finding::required("spec.branch, spec.commit", change("with several references"), action)]
        }
        (false, false) if spec.git_ref.is_none() => {
            let action = "set spec.branch or spec.commit";
            vec![Finding::required("spec.projectRepo", change("without a reference"), action)]
        }
        _ => Vec::new(),
    };
    let empty = GitAuth::default();
    let auth = spec.git_auth.as_deref().unwrap_or(&empty);
    let kinds = [
        ("spec.gitAuth.accessToken", auth.access_token.is_some()),
        ("spec.gitAuth.sshAuth", auth.ssh_auth.is_some()),
        ("spec.gitAuth.basicAuth", auth.basic_auth.is_some()),
        ("spec.gitAuth.githubApp", auth.github_app.is_some()),
    ];
    let kinds: Vec<&str> = kinds.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect();
    if kinds.len() > 1 {
        let action = "keep only the credentials that the operator uses";
        all.push(Finding::required(kinds.join(", "), change("with several kinds of credentials"), action));
    }
    let credentials = match (auth.ssh_auth.is_some(), kinds.len()) {
        (_, 2..) => Credentials::Unknown,
        (true, _) => Credentials::Key,
        (false, 1) => Credentials::Other,
        _ if spec.git_auth_secret.as_deref().is_some_and(|name| !name.is_empty()) => Credentials::Unknown,
        _ => Credentials::None,
    };
    all.extend(address("spec.projectRepo", url, credentials));
    all
}

fn template(spec: &StackSpec) -> Vec<Finding> {
    let url = in_template(spec, "/spec/git/url").and_then(Value::as_str).map(str::trim).unwrap_or_default();
    let auth = in_template(spec, "/spec/git/auth").and_then(Value::as_object);
    let credentials = match auth.filter(|auth| auth.values().any(|value| !value.is_null())) {
        Some(auth) if auth.contains_key("sshPrivateKey") => Credentials::Key,
        Some(_) => Credentials::Other,
        None => Credentials::None,
    };
    let is_git = in_template(spec, "/spec/git").is_some();
    let mut all = if is_git { address("spec.workspaceTemplate.spec.git.url", url, credentials) } else { Vec::new() };
    let digest = in_template(spec, "/spec/flux/digest").and_then(Value::as_str).unwrap_or_default();
    if in_template(spec, "/spec/flux").is_some() && digest.is_empty() {
        let change = "the controller rejects an artifact without its digest";
        all.push(Finding::required("spec.workspaceTemplate.spec.flux.digest", change, "set the field"));
    }
    all
}

/// Credentials for a repository.
enum Credentials {
    None,
    /// SSH key.
    Key,
    /// The kind is unknown, for example because the keys of a Secret determine it.
    Unknown,
    /// Token, password or GitHub App.
    Other,
}

/// Returns the findings about the URL of a repository. The findings do not contain the URL, because it can contain a
/// password.
fn address(field: &str, url: &str, credentials: Credentials) -> Vec<Finding> {
    let required = |change: &str, action: &str| vec![Finding::required(field, change, action)];
    if has_password(url) {
        let action = "store the password in a Secret, and set spec.gitAuthSecret";
        return required("the controller rejects a repository URL with a password", action);
    }
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_in = |schemes: &[&str]| scheme.as_deref().is_some_and(|scheme| schemes.contains(&scheme));
    let is_ssh = is_in(&SSH) || (scheme.is_none() && url.contains(':'));
    if !is_ssh && !is_in(&HTTP) {
        return required("the controller rejects other repository URLs", "use a URL with https, http or SSH");
    }
    if scheme.is_some() && url.contains(['?', '#']) {
        return required("the controller rejects a repository URL with a query or a fragment", "remove it");
    }
    let mut all = match (is_ssh, credentials) {
        (true, Credentials::None | Credentials::Other) => {
            required("the controller rejects an SSH URL without an SSH key", "set spec.gitAuth.sshAuth")
        }
        (false, Credentials::Key) => {
            required("the controller rejects an SSH key for a URL without SSH", "use an SSH URL, or another credential")
        }
        _ => Vec::new(),
    };
    if is_ssh {
        let change = "the controller does not read the operator's known_hosts file";
        all.push(Finding::optional(field, change, "copy it to the ConfigMap pulumi-controller-git"));
    }
    all
}

fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    let user = authority.and_then(|authority| authority.rsplit_once('@')).map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':'))
}

fn directories(spec: &StackSpec) -> Vec<Finding> {
    let template = |field: &str| in_template(spec, &format!("/spec/{field}/dir")).and_then(Value::as_str);
    let directories = [
        ("spec.repoDir", spec.repo_dir.as_deref()),
        ("spec.fluxSource.dir", spec.flux_source.as_ref().and_then(|source| source.dir.as_deref())),
        ("spec.workspaceTemplate.spec.git.dir", template("git")),
        ("spec.workspaceTemplate.spec.flux.dir", template("flux")),
        ("spec.workspaceTemplate.spec.local.dir", template("local")),
    ];
    let is_outside = |directory: &str| directory.contains('\\') || directory.split('/').any(|part| part == "..");
    let rejected = directories.into_iter().filter(|(_, directory)| directory.is_some_and(is_outside));
    let change = "the controller rejects `..` and backslashes in a directory";
    rejected.map(|(field, _)| Finding::required(field, change, "use a path below the root of the source")).collect()
}
