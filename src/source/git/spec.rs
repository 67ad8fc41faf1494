//! Parses the repository fields of a Stack or a Workspace. This module performs no I/O.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::auto::{GitRepository, GitRepositoryAuth, SecretKeySelector};
use crate::api::pulumi::{GitAuth, ResourceRef, StackSpec};
use crate::artifact::Directory;
use crate::source::git::paths::Paths;
use crate::source::git::reference::Reference;
use crate::source::git::semver_range::SemverRange;
use crate::source::git::url::{Location, RepositoryUrl};

/// Minimum poll interval of a repository.
pub const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum poll interval of a repository.
pub const MAX_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A follower's repository, and the follower's settings for this repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositorySpec {
    pub key: Key,
    /// Directory of the Pulumi project in the repository.
    pub directory: Directory,
    /// Patterns that match the files whose changes trigger a run. `None` if every new commit triggers a run.
    pub paths: Option<Paths>,
    /// Poll interval of the repository.
    pub interval: Duration,
}

/// The cache key for a repository. Followers with equal keys share polls and results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub repository: RepositoryUrl,
    pub reference: Reference,
    /// Whether to fetch the complete history.
    pub full_history: bool,
    pub auth: Auth,
    /// Namespace of the Secrets in `auth`. Empty if `auth` refers to no Secrets.
    pub namespace: String,
}

/// The origin of an artifact that is built from a Git repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub key: Arc<Key>,
    /// Hash of the commit.
    pub commit: String,
    /// Digest of the files that match the Stack's `spec.paths`. `None` if `spec.paths` is not set.
    pub selection: Option<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Credentials for a repository, as literal values or Secret references.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Auth {
    Nothing,
    /// The name of a Secret. The Secret's keys determine the type of the credentials.
    Secret(String),
    Token(Value),
    Basic {
        user: Value,
        password: Value,
    },
    Ssh {
        key: Value,
        passphrase: Option<Value>,
    },
    GitHubApp {
        app_id: Value,
        installation_id: Value,
        private_key: Value,
        base_url: Option<String>,
    },
}

/// A literal value or a reference to a Secret key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Value {
    Literal(String),
    Key {
        secret: String,
        key: String,
        /// Whether the Secret or the key may be missing. If the Secret or the key is missing, the value is not set.
        optional: bool,
    },
}

/// The output omits literal values, because they can be secret.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Literal(_) => f.write_str("Literal(…)"),
            Value::Key { secret, key, .. } => write!(f, "Key({secret}/{key})"),
        }
    }
}

impl RepositorySpec {
    /// Converts a Stack's repository fields. Returns `None` if no repository field is set.
    ///
    /// # Errors
    /// Returns the reason why the fields are invalid.
    pub fn of_stack(spec: &StackSpec, namespace: &str) -> Result<Option<Self>, String> {
        has_git_fields(spec).then(|| repository_spec(spec, namespace)).transpose()
    }
}

/// Returns whether a field in a Stack's spec selects a Git repository as the source.
pub fn has_git_fields(spec: &StackSpec) -> bool {
    field(spec).is_some()
}

/// Returns the first field in a Stack's spec that selects a Git repository as the source.
pub fn field(spec: &StackSpec) -> Option<&'static str> {
    spec.git_fields().next()
}

fn repository_spec(spec: &StackSpec, namespace: &str) -> Result<RepositorySpec, String> {
    let objects = [("fluxSource", spec.flux_source.is_some()), ("programRef", spec.program_ref.is_some())];
    if let (Some(one), Some((other, _))) = (field(spec), objects.into_iter().find(|(_, is_given)| *is_given)) {
        return Err(exclusive(one, other));
    }
    let url = spec.project_repo.as_deref().map(str::trim).filter(|url| !url.is_empty());
    let url = url.ok_or(
        "spec.projectRepo is missing: branch, commit, gitRef, repoDir, gitAuth, gitAuthSecret and paths require it",
    )?;
    let repository = RepositoryUrl::parse(url).map_err(|why| format!("invalid spec.projectRepo: {why}"))?;
    let auth = auth(spec, namespace)?;
    let ssh_fields = "spec.gitAuth.sshAuth (or spec.gitAuthSecret)";
    check_fit(&repository, &auth, ssh_fields)?;
    let directory = spec.repo_dir.as_deref().unwrap_or_default();
    let directory = directory.parse().map_err(|error| format!("invalid spec.repoDir: {error}"))?;
    let paths = Paths::parse(&spec.paths).map_err(|why| format!("invalid spec.paths: {why}"))?;
    let namespace = if auth.refers_to_secret() { namespace.to_owned() } else { String::new() };
    let key =
        Key { repository, reference: reference(spec)?, full_history: spec.shallow == Some(false), auth, namespace };
    Ok(RepositorySpec { key, directory, paths, interval: interval(spec) })
}

/// Returns a Stack's poll interval: the interval from the spec, but at least [`MIN_INTERVAL`] and at most
/// [`MAX_INTERVAL`].
pub fn interval(spec: &StackSpec) -> Duration {
    let seconds = spec.resync_frequency_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
    Duration::from_secs(seconds).clamp(MIN_INTERVAL, MAX_INTERVAL)
}

fn reference(spec: &StackSpec) -> Result<Reference, String> {
    let given = |text: &Option<String>| text.as_deref().map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned);
    let semver = spec.git_ref.as_ref().and_then(|reference| given(&reference.semver));
    match (given(&spec.branch), given(&spec.commit), semver) {
        (Some(branch), None, None) => Ok(Reference::Name(branch)),
        (None, Some(commit), None) => Ok(Reference::commit_or_name(&commit)),
        (None, None, Some(range)) => {
            SemverRange::parse(&range).map(Reference::Semver).map_err(|why| format!("spec.gitRef.semver: {why}"))
        }
        (None, None, None) => {
            Err("spec.projectRepo requires a reference: set spec.branch, spec.commit or spec.gitRef.semver".to_owned())
        }
        (Some(_), Some(_), _) => Err(exclusive("branch", "commit")),
        (Some(_), None, Some(_)) => Err(exclusive("branch", "gitRef.semver")),
        (None, Some(_), Some(_)) => Err(exclusive("commit", "gitRef.semver")),
    }
}

fn exclusive(one: &str, other: &str) -> String {
    format!("spec.{one} and spec.{other} are mutually exclusive: remove one of them")
}

fn auth(spec: &StackSpec, namespace: &str) -> Result<Auth, String> {
    let given = spec.git_auth.as_deref().map(|given| structured(given, namespace)).transpose()?;
    // An empty `gitAuth` selects no credentials, so it does not override `gitAuthSecret`.
    if let Some(given) = given.filter(|auth| *auth != Auth::Nothing) {
        return Ok(given);
    }
    match spec.git_auth_secret.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => Ok(Auth::Secret(name.to_owned())),
        None => Ok(Auth::Nothing),
    }
}

fn structured(given: &GitAuth, namespace: &str) -> Result<Auth, String> {
    let value = |field: &str, reference: &ResourceRef| value(field, reference, namespace);
    match given {
        GitAuth { access_token: None, ssh_auth: None, basic_auth: None, github_app: None } => Ok(Auth::Nothing),
        GitAuth { access_token: Some(token), ssh_auth: None, basic_auth: None, github_app: None } => {
            Ok(Auth::Token(value("accessToken", token)?))
        }
        GitAuth { access_token: None, ssh_auth: Some(ssh), basic_auth: None, github_app: None } => Ok(Auth::Ssh {
            key: value("sshAuth.sshPrivateKey", &ssh.ssh_private_key)?,
            passphrase: ssh.password.as_ref().map(|p| value("sshAuth.password", p)).transpose()?,
        }),
        GitAuth { access_token: None, ssh_auth: None, basic_auth: Some(basic), github_app: None } => Ok(Auth::Basic {
            user: value("basicAuth.userName", &basic.user_name)?,
            password: value("basicAuth.password", &basic.password)?,
        }),
        GitAuth { access_token: None, ssh_auth: None, basic_auth: None, github_app: Some(app) } => {
            Ok(Auth::GitHubApp {
                app_id: value("githubApp.appID", &app.app_id)?,
                installation_id: value("githubApp.installationID", &app.installation_id)?,
                private_key: value("githubApp.privateKey", &app.private_key)?,
                base_url: app.base_url.clone(),
            })
        }
        GitAuth { access_token, ssh_auth, basic_auth, github_app } => {
            let fields = [
                ("gitAuth.accessToken", access_token.is_some()),
                ("gitAuth.sshAuth", ssh_auth.is_some()),
                ("gitAuth.basicAuth", basic_auth.is_some()),
                ("gitAuth.githubApp", github_app.is_some()),
            ];
            let mut given = fields.into_iter().filter(|(_, is_given)| *is_given).map(|(field, _)| field);
            Err(exclusive(given.next().unwrap_or_default(), given.next().unwrap_or_default()))
        }
    }
}

fn value(field: &str, reference: &ResourceRef, namespace: &str) -> Result<Value, String> {
    let invalid = |what: &str| Err(format!("spec.gitAuth.{field}: {what}"));
    match (reference.kind.as_str(), &reference.secret, &reference.literal) {
        ("Secret", Some(secret), _) => {
            match secret.namespace.as_deref().filter(|other| !other.is_empty() && *other != namespace) {
                Some(_) => {
                    invalid("a Secret in another namespace is not allowed: use a Secret in the namespace of the Stack")
                }
                None => Ok(Value::Key { secret: secret.name.clone(), key: secret.key.clone(), optional: false }),
            }
        }
        ("Secret", None, _) => invalid("type Secret requires `secret.name` and `secret.key`"),
        ("Literal", _, Some(literal)) => Ok(Value::Literal(literal.value.clone())),
        ("Literal", _, None) => invalid("type Literal requires `literal.value`"),
        _ => invalid("credentials must be in a Secret: set type Secret, `secret.name` and `secret.key`"),
    }
}

/// The default reference.
const DEFAULT_REFERENCE: &str = "HEAD";

impl RepositorySpec {
    /// Parses the repository fields of a Workspace in this namespace.
    ///
    /// # Errors
    /// Returns the reason why the fields are invalid.
    pub fn of_workspace(given: &GitRepository, namespace: &str) -> Result<Self, String> {
        let repository = RepositoryUrl::parse(given.url.trim()).map_err(|why| format!("invalid git.url: {why}"))?;
        let auth = workspace_auth(given.auth.as_ref())?;
        check_fit(&repository, &auth, "git.auth.sshPrivateKey")?;
        let directory = given.dir.as_deref().unwrap_or_default();
        let directory = directory.parse().map_err(|error| format!("invalid git.dir: {error}"))?;
        let reference = given.reference.as_deref().map(str::trim).filter(|reference| !reference.is_empty());
        let namespace = if auth.refers_to_secret() { namespace.to_owned() } else { String::new() };
        let key = Key {
            repository,
            reference: Reference::commit_or_name(reference.unwrap_or(DEFAULT_REFERENCE)),
            full_history: given.shallow == Some(false),
            auth,
            namespace,
        };
        Ok(RepositorySpec { key, directory, paths: None, interval: MIN_INTERVAL })
    }
}

fn workspace_auth(given: Option<&GitRepositoryAuth>) -> Result<Auth, String> {
    let Some(given) = given else { return Ok(Auth::Nothing) };
    match (&given.ssh_private_key, &given.token, &given.username, &given.password, &given.github_app) {
        (None, None, None, None, None) => Ok(Auth::Nothing),
        (Some(key), None, None, passphrase, None) => {
            Ok(Auth::Ssh { key: workspace_value(key), passphrase: passphrase.as_ref().map(workspace_value) })
        }
        (None, Some(token), None, None, None) => Ok(Auth::Token(workspace_value(token))),
        (None, None, Some(user), Some(password), None) => {
            Ok(Auth::Basic { user: workspace_value(user), password: workspace_value(password) })
        }
        (None, None, None, None, Some(app)) => Ok(Auth::GitHubApp {
            app_id: workspace_value(&app.app_id),
            installation_id: workspace_value(&app.installation_id),
            private_key: workspace_value(&app.private_key),
            base_url: None,
        }),
        _ => {
            Err("git.auth must have exactly one of sshPrivateKey (optionally with password), token, username with password, and githubApp"
                .to_owned())
        }
    }
}

fn workspace_value(selector: &SecretKeySelector) -> Value {
    let (secret, key) = (selector.name.clone(), selector.key.clone());
    Value::Key { secret, key, optional: selector.optional.unwrap_or_default() }
}

/// Returns an error if the type of the credentials does not match the URL's protocol. The error message lists
/// `ssh_fields`, the names of the fields for an SSH key.
pub fn check_fit(repository: &RepositoryUrl, auth: &Auth, ssh_fields: &str) -> Result<(), String> {
    match (repository.location(), auth) {
        (Location::Http(_), Auth::Ssh { .. }) => Err(format!("{ssh_fields} requires an SSH URL, not {repository}")),
        (Location::Ssh(_), Auth::Token(_) | Auth::Basic { .. } | Auth::GitHubApp { .. }) => Err(format!(
            "{repository} is an SSH URL, which requires a key: set {ssh_fields}; tokens and passwords require an https URL"
        )),
        (Location::Ssh(_), Auth::Nothing) => {
            Err(format!("{repository} is an SSH URL, which requires a key: set {ssh_fields}"))
        }
        _ => Ok(()),
    }
}

impl Auth {
    /// Returns whether the credentials refer to at least one Secret.
    pub fn refers_to_secret(&self) -> bool {
        matches!(self, Auth::Secret(_)) || self.values().iter().any(|value| matches!(value, Value::Key { .. }))
    }

    fn values(&self) -> Vec<&Value> {
        match self {
            Auth::Nothing | Auth::Secret(_) => Vec::new(),
            Auth::Token(token) => vec![token],
            Auth::Basic { user, password } => vec![user, password],
            Auth::Ssh { key, passphrase } => std::iter::once(key).chain(passphrase).collect(),
            Auth::GitHubApp { app_id, installation_id, private_key, .. } => vec![app_id, installation_id, private_key],
        }
    }

    /// Returns whether the Secret `secret` is required.
    pub fn needs(&self, secret: &str) -> bool {
        matches!(self, Auth::Secret(_)) || self.values().iter().any(|value| value.needs(secret))
    }

    /// Returns the distinct names of the Secrets to which the credentials refer.
    pub fn secrets(&self) -> Vec<&str> {
        let mut names: Vec<&str> = match self {
            Auth::Secret(name) => vec![name],
            _ => self.values().into_iter().filter_map(Value::secret).collect(),
        };
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Value {
    /// Returns whether the value refers to the Secret `name` and requires it.
    fn needs(&self, name: &str) -> bool {
        matches!(self, Value::Key { secret, optional: false, .. } if secret == name)
    }

    fn secret(&self) -> Option<&str> {
        match self {
            Value::Literal(_) => None,
            Value::Key { secret, .. } => Some(secret),
        }
    }
}

#[cfg(test)]
mod tests;
