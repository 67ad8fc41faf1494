//! Parses the repository fields of a Stack. Performs no I/O.

use std::fmt;
use std::time::Duration;

use crate::api::pulumi::{GitAuth, ResourceRef, StackSpec};
use crate::artifact::Directory;
use crate::source::git::paths::Paths;
use crate::source::git::reference::Reference;
use crate::source::git::semver_range::SemverRange;
use crate::source::git::url::{Place, RepositoryUrl};

/// Minimum poll interval of a repository.
pub const MIN_INTERVAL: Duration = Duration::from_secs(60);

/// The repository of a follower and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositorySpec {
    pub key: Key,
    /// Directory of the project.
    pub directory: Directory,
    /// Patterns of the files whose changes start a run. `None` if every new commit does.
    pub paths: Option<Paths>,
    /// Interval at which the repository is polled.
    pub every: Duration,
}

/// Identifies a repository in the cache. Followers with equal keys share its polls and results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub repository: RepositoryUrl,
    pub reference: Reference,
    /// Whether the complete history is fetched.
    pub full_history: bool,
    pub auth: Auth,
    /// Namespace of the Secrets in `auth`; empty if there are none.
    pub namespace: String,
}

/// Credentials for a repository, as values or Secret references.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Auth {
    Nothing,
    /// A Secret whose keys determine the type of the credentials.
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
        /// Whether a missing Secret or key means that the value is not set.
        optional: bool,
    },
}

/// Hides literal values, which can be secret.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Literal(_) => f.write_str("Literal(…)"),
            Value::Key { secret, key, .. } => write!(f, "Key({secret}/{key})"),
        }
    }
}

impl RepositorySpec {
    /// Parses the repository fields of a Stack. Returns `None` if no such field is set.
    ///
    /// # Errors
    /// Returns the reason why the fields are invalid.
    pub fn of_stack(spec: &StackSpec, namespace: &str) -> Result<Option<Self>, String> {
        names_git(spec).then(|| parse(spec, namespace)).transpose()
    }
}

/// Returns whether any field of a Stack selects a Git repository as its source.
pub fn names_git(spec: &StackSpec) -> bool {
    field(spec).is_some()
}

/// Returns the first field of a Stack that selects a Git repository as its source.
pub fn field(spec: &StackSpec) -> Option<&'static str> {
    let fields = [
        ("projectRepo", spec.project_repo.is_some()),
        ("branch", spec.branch.is_some()),
        ("commit", spec.commit.is_some()),
        ("gitRef", spec.git_ref.is_some()),
        ("repoDir", spec.repo_dir.is_some()),
        ("gitAuth", spec.git_auth.is_some()),
        ("gitAuthSecret", spec.git_auth_secret.is_some()),
        ("paths", !spec.paths.is_empty()),
    ];
    fields.into_iter().find(|(_, is_given)| *is_given).map(|(field, _)| field)
}

fn parse(spec: &StackSpec, namespace: &str) -> Result<RepositorySpec, String> {
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
    let namespace = if auth.names_secret() { namespace.to_owned() } else { String::new() };
    let key =
        Key { repository, reference: reference(spec)?, full_history: spec.shallow == Some(false), auth, namespace };
    Ok(RepositorySpec { key, directory, paths, every: interval(spec) })
}

/// Returns the poll interval that a Stack requests, at least [`MIN_INTERVAL`].
pub fn interval(spec: &StackSpec) -> Duration {
    let seconds = spec.resync_frequency_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
    Duration::from_secs(seconds).max(MIN_INTERVAL)
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
    if let Some(given) = &spec.git_auth {
        return structured(given, namespace);
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
                Some(_) => invalid("cross-namespace refs are not allowed"),
                None => Ok(Value::Key { secret: secret.name.clone(), key: secret.key.clone(), optional: false }),
            }
        }
        ("Secret", None, _) => invalid("type Secret requires `secret.name` and `secret.key`"),
        ("Literal", _, Some(literal)) => Ok(Value::Literal(literal.value.clone())),
        _ => invalid("credentials must be in a Secret: set type Secret, `secret.name` and `secret.key`"),
    }
}

/// Checks that the type of the credentials fits the URL. `ssh_fields` names the fields for an SSH key in the error.
pub fn check_fit(repository: &RepositoryUrl, auth: &Auth, ssh_fields: &str) -> Result<(), String> {
    match (repository.place(), auth) {
        (Place::Http(_), Auth::Ssh { .. }) => Err(format!("{ssh_fields} requires an SSH URL, not {repository}")),
        (Place::Ssh(_), Auth::Token(_) | Auth::Basic { .. } | Auth::GitHubApp { .. }) => Err(format!(
            "{repository} is an SSH URL, which requires a key: set {ssh_fields}; tokens and passwords require an https URL"
        )),
        (Place::Ssh(_), Auth::Nothing) => {
            Err(format!("{repository} is an SSH URL, which requires a key: set {ssh_fields}"))
        }
        _ => Ok(()),
    }
}

impl Auth {
    pub fn names_secret(&self) -> bool {
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

    /// Returns whether this Secret is required.
    pub fn needs(&self, secret: &str) -> bool {
        matches!(self, Auth::Secret(_)) || self.values().iter().any(|value| value.needs(secret))
    }

    /// Returns the distinct names of all Secrets.
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
    /// Returns whether the value requires this Secret.
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
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(fields: &Json) -> Result<Option<RepositorySpec>, String> {
        let mut spec = json!({"stack": "dev"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        RepositorySpec::of_stack(&serde_json::from_value(spec).unwrap(), "apps")
    }

    fn secret(key: &str) -> Json {
        json!({"type": "Secret", "secret": {"name": "s", "key": key}})
    }

    const HTTPS: &str = "https://example.com/app";

    #[test]
    fn a_stack_without_git_fields_has_no_repository() {
        assert_eq!(read(&json!({"fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}})), Ok(None));
    }

    #[test]
    fn stacks_with_the_same_repository_and_reference_share_a_key() {
        let key = |fields: Json| read(&fields).unwrap().unwrap().key;
        let main = key(json!({"projectRepo": HTTPS, "branch": "main"}));
        assert_eq!(key(json!({"projectRepo": HTTPS, "branch": "main", "repoDir": "a", "paths": ["/a"]})), main);
        assert_ne!(key(json!({"projectRepo": HTTPS, "branch": "dev"})), main);
        assert_ne!(key(json!({"projectRepo": HTTPS, "branch": "main", "shallow": false})), main);
        assert_eq!(main.namespace, "", "namespaces share a repository without a Secret");
        let private = key(json!({"projectRepo": HTTPS, "branch": "main", "gitAuthSecret": "s"}));
        assert_eq!((private.namespace.as_str(), private.auth.secrets()), ("apps", vec!["s"]));
    }

    #[test]
    fn the_interval_has_a_minimum() {
        let every = |seconds: Json| {
            let fields = json!({"projectRepo": HTTPS, "branch": "main", "resyncFrequencySeconds": seconds});
            read(&fields).unwrap().unwrap().every.as_secs()
        };
        let rows = [(json!(null), 60), (json!(1), 60), (json!(-5), 60), (json!(60), 60), (json!(300), 300)];
        for (seconds, expected) in rows {
            assert_eq!(every(seconds.clone()), expected, "{seconds}");
        }
    }

    #[test]
    fn every_auth_method_is_parsed() {
        let auth = |url: &str, fields: Json| {
            let mut all = json!({"projectRepo": url, "branch": "main"});
            all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            read(&all).unwrap().unwrap().key.auth
        };
        let at = |key: &str| Value::Key { secret: "s".to_owned(), key: key.to_owned(), optional: false };
        assert_eq!(auth(HTTPS, json!({"gitAuth": {"accessToken": secret("t")}})), Auth::Token(at("t")));
        let basic =
            json!({"gitAuth": {"basicAuth": {"userName": secret("u"), "password": secret("p")}}, "gitAuthSecret": "x"});
        assert_eq!(auth(HTTPS, basic), Auth::Basic { user: at("u"), password: at("p") }, "gitAuth takes precedence");
        let ssh = json!({"gitAuth": {"sshAuth": {"sshPrivateKey": secret("k"), "password": secret("p")}}});
        assert_eq!(auth("git@host:app", ssh), Auth::Ssh { key: at("k"), passphrase: Some(at("p")) });
        let app = json!({"gitAuth": {"githubApp": {"appID": {"type": "Literal", "literal": {"value": "hidden"}},
            "installationID": secret("i"), "privateKey": secret("k"), "baseURL": "https://ghe.example/api/v3"}}});
        let app = auth(HTTPS, app);
        assert_eq!(app.secrets(), ["s"]);
        assert!(!format!("{app:?}").contains("hidden"), "{app:?}");
        assert_eq!(auth(HTTPS, json!({"gitAuthSecret": "x"})), Auth::Secret("x".to_owned()));
    }

    #[test]
    fn invalid_git_specs_are_rejected_with_a_reason() {
        let ssh = "git@host:app";
        let flux = json!({"sourceRef": {"kind": "Bucket", "name": "b"}});
        let other = json!({"type": "Secret", "secret": {"namespace": "other", "name": "s", "key": "k"}});
        let rows = [
            (json!({"repoDir": "a"}), "spec.projectRepo is missing"),
            (json!({"paths": ["/a"]}), "spec.projectRepo is missing"),
            (json!({"projectRepo": HTTPS}), "spec.projectRepo requires a reference"),
            (
                json!({"projectRepo": HTTPS, "branch": "a", "commit": "b"}),
                "spec.branch and spec.commit are mutually exclusive",
            ),
            (
                json!({"projectRepo": HTTPS, "commit": "a", "gitRef": {"semver": "1"}}),
                "spec.commit and spec.gitRef.semver are mutually exclusive",
            ),
            (
                json!({"projectRepo": HTTPS, "gitRef": {"semver": "newest"}}),
                "spec.gitRef.semver: invalid version range \"newest\"",
            ),
            (
                json!({"projectRepo": HTTPS, "branch": "a", "fluxSource": flux}),
                "spec.projectRepo and spec.fluxSource are mutually exclusive: remove one of them",
            ),
            (
                json!({"projectRepo": HTTPS, "branch": "a", "programRef": {"name": "p"}}),
                "spec.projectRepo and spec.programRef are mutually exclusive",
            ),
            (json!({"branch": "a", "fluxSource": flux}), "spec.branch and spec.fluxSource are mutually exclusive"),
            (json!({"projectRepo": "/srv/app", "branch": "a"}), "invalid spec.projectRepo"),
            (json!({"projectRepo": HTTPS, "branch": "a", "repoDir": "../b"}), "invalid spec.repoDir"),
            (json!({"projectRepo": HTTPS, "branch": "a", "paths": [""]}), "invalid spec.paths"),
            (json!({"projectRepo": ssh, "branch": "a"}), "requires a key"),
            (
                json!({"projectRepo": ssh, "branch": "a", "gitAuth": {"accessToken": secret("t")}}),
                "spec.gitAuth.sshAuth",
            ),
            (
                json!({"projectRepo": HTTPS, "branch": "a", "gitAuth": {"sshAuth": {"sshPrivateKey": secret("k")}}}),
                "requires an SSH URL",
            ),
            (json!({"projectRepo": HTTPS, "branch": "a", "gitAuth": {"accessToken": other}}), "cross-namespace"),
            (
                json!({"projectRepo": HTTPS, "branch": "a", "gitAuth": {"accessToken": {"type": "FS"}}}),
                "credentials must be in a Secret",
            ),
        ];
        for (fields, expected) in rows {
            let Err(message) = read(&fields) else { panic!("{fields}") };
            assert!(message.contains(expected), "{fields}: {message}");
        }
    }
}
