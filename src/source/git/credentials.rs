//! Reads the data that a connection to a repository requires: credentials from Secrets, and trusted host keys or CA
//! certificates. Reads the Secrets again for each connection. Caches GitHub App tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::api::names;
use crate::file_watch::{Cached, FileWatch};
use crate::http_client::addresses;
use crate::source::git::error::GitError;
use crate::source::git::github_app::{self, App, Tokens};
use crate::source::git::http_client::Clients;
use crate::source::git::request::{Access, HttpLogin};
use crate::source::git::spec::{Auth, Key, Value};
use crate::source::git::url::Location;
use crate::text::chain;

/// Timeout for reading a Secret.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Keys of a Secret that contain a private key for SSH. Secrets for a Flux `GitRepository` have the second key.
const SSH_KEYS: [&str; 2] = ["sshPrivateKey", "identity"];
/// Maximum size of the file with the host keys or CA certificates for all Stacks, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Credentials for a repository, and the host keys and CA certificates that verify the servers that receive the
/// credentials.
#[derive(Clone, Default)]
struct Credentials {
    login: Login,
    /// Trusted host keys in the OpenSSH `known_hosts` format.
    known_hosts: Vec<String>,
    /// CA certificates to trust in addition to the system certificates, in PEM format.
    authorities: Vec<String>,
}

/// Credentials that the controller sends to the server.
#[derive(Clone, Default)]
enum Login {
    #[default]
    Nothing,
    Http(HttpLogin),
    Ssh {
        key: String,
        passphrase: Option<String>,
    },
    GitHubApp(App),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::Nothing => "Nothing",
            Login::Http(_) => "Http",
            Login::Ssh { .. } => "Ssh",
            Login::GitHubApp(_) => "GitHubApp",
        })
    }
}

/// Reads the credentials, and the trusted host keys or CA certificates, for connections to repositories.
pub struct AccessReader {
    client: Client,
    clients: Clients,
    tokens: Tokens,
    trust: Trust,
    local_addresses: bool,
}

/// The optional files `known_hosts` and `ca.crt` for all Stacks.
struct Trust {
    directory: PathBuf,
    watch: FileWatch,
    known_hosts: Cached<Option<String>>,
    authorities: Cached<Option<String>>,
}

impl Trust {
    fn new(directory: PathBuf) -> Self {
        let (watch, known_hosts, authorities) = (FileWatch::new(), Cached::default(), Cached::default());
        Self { directory, watch, known_hosts, authorities }
    }

    async fn known_hosts(&self) -> Result<Option<String>, GitError> {
        self.read("known_hosts", &self.known_hosts).await
    }

    async fn authorities(&self) -> Result<Option<String>, GitError> {
        self.read("ca.crt", &self.authorities).await
    }

    async fn read(&self, name: &str, cached: &Cached<Option<String>>) -> Result<Option<String>, GitError> {
        let version = self.watch.version([self.directory.as_path()]);
        if let Some(content) = cached.find(version) {
            return Ok(content);
        }
        let content = read_file(&self.directory.join(name)).await?;
        cached.keep(version, content.clone());
        Ok(content)
    }
}

impl AccessReader {
    /// Creates a reader. `trust` is the directory with the optional files `known_hosts` and `ca.crt` for all Stacks. If
    /// `local_addresses` is true, a server may have a loopback or link-local address.
    pub fn new(client: Client, trust: PathBuf, local_addresses: bool) -> Self {
        let trust = Trust::new(trust);
        Self { client, clients: Clients::from_environment(), tokens: Tokens::default(), trust, local_addresses }
    }

    /// Reads the Secrets to which `key` refers, and the trusted host keys or CA certificates for all Stacks.
    pub async fn read(&self, key: &Key) -> Result<Access, GitError> {
        let Credentials { login, known_hosts, authorities } = read(&self.client, key).await?;
        match (login, key.repository.location()) {
            (Login::Ssh { key, passphrase }, Location::Ssh(_)) => {
                let for_all = self.trust.known_hosts().await?;
                Ok(Access::Ssh { key, passphrase, known_hosts: known_hosts.into_iter().chain(for_all).collect() })
            }
            (Login::Ssh { key, passphrase }, Location::Http(_)) => {
                Ok(Access::Ssh { key, passphrase, known_hosts: Vec::new() })
            }
            (Login::Nothing, Location::Ssh(_)) => {
                let missing = match &key.auth {
                    Auth::Secret(name) => format!("Secret {name} has no sshPrivateKey"),
                    _ => "the optional SSH key does not exist".to_owned(),
                };
                Err(GitError::Credentials(format!("{} is an SSH URL, but {missing}", key.repository)))
            }
            (login, _) => self.http(login, authorities).await,
        }
    }

    async fn http(&self, login: Login, authorities: Vec<String>) -> Result<Access, GitError> {
        let for_all = self.trust.authorities().await?;
        let login = match login {
            Login::Http(login) => Some(login),
            Login::GitHubApp(app) => {
                let refusal = addresses::refusal(app.api(), &self.clients.proxies.hosts());
                if let Some(why) = refusal.filter(|_| !self.local_addresses) {
                    return Err(GitError::Address(why));
                }
                let client = self.clients.client(for_all.clone(), authorities.clone(), self.local_addresses)?;
                let (user, password) = (github_app::TOKEN_USER.to_owned(), self.tokens.token(&app, &client).await?);
                Some(HttpLogin::Basic { user, password })
            }
            Login::Nothing | Login::Ssh { .. } => None,
        };
        let authorities = authorities.into_iter().chain(for_all).collect();
        Ok(Access::Http { login, authorities, proxies: self.clients.proxies.clone() })
    }

    /// Discards all cached GitHub App tokens. The poller calls this function after a server has rejected a token.
    pub fn discard_tokens(&self) {
        self.tokens.clear();
    }
}

/// Reads a file. Returns `None` if the file does not exist.
async fn read_file(path: &Path) -> Result<Option<String>, GitError> {
    let failed = |why: String| GitError::Credentials(format!("failed to read {}: {why}", path.display()));
    match tokio::fs::metadata(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(failed(format!("file exceeds the limit of {MAX_FILE} bytes")));
        }
        Ok(_) => {}
    }
    tokio::fs::read_to_string(path).await.map(Some).map_err(|error| failed(error.to_string()))
}

type Data = BTreeMap<String, ByteString>;

/// Reads the Secrets to which `key` refers.
async fn read(client: &Client, key: &Key) -> Result<Credentials, GitError> {
    let mut secrets: BTreeMap<String, Data> = BTreeMap::new();
    for name in key.auth.secrets() {
        if let Some(data) = read_secret(client, &key.namespace, name, key.auth.needs(name)).await? {
            secrets.insert(name.to_owned(), data);
        }
    }
    make(&key.auth, &secrets, key.repository.host()).map_err(GitError::Credentials)
}

/// Reads a Secret. Returns `None` if the Secret does not exist and `is_needed` is false.
async fn read_secret(client: &Client, namespace: &str, name: &str, is_needed: bool) -> Result<Option<Data>, GitError> {
    if !names::is_object_name(name) {
        return Err(GitError::Credentials(format!("invalid Secret name {name:?}: must be an RFC 1123 subdomain")));
    }
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let failed = |why: String| format!("failed to read Secret {namespace}/{name}: {why}");
    match tokio::time::timeout(READ_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(Some(secret))) => Ok(Some(secret.data.unwrap_or_default())),
        Ok(Ok(None)) if !is_needed => Ok(None),
        Ok(Ok(None)) => Err(GitError::Credentials(format!("failed to read Secret {namespace}/{name}: not found"))),
        Ok(Err(error)) if is_rejection(&error) => Err(GitError::Credentials(failed(error.to_string()))),
        Ok(Err(error)) => Err(GitError::CredentialsUnavailable(failed(chain(&error)))),
        Err(_) => {
            let why = format!("timed out after {} s", READ_TIMEOUT.as_secs());
            Err(GitError::CredentialsUnavailable(failed(why)))
        }
    }
}

/// Returns whether the API server rejected the request, for example because of a missing permission. Other errors, such
/// as a failed connection or a response with the status 429 or 503, are temporary.
fn is_rejection(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

/// Builds the credentials from the Secrets.
fn make(auth: &Auth, secrets: &BTreeMap<String, Data>, host: &str) -> Result<Credentials, String> {
    let value = |value: &Value| value_of(value, secrets);
    let nothing = Data::new();
    let login = match auth {
        Auth::Nothing => Login::Nothing,
        Auth::Secret(name) => login_of(name, secrets.get(name).unwrap_or(&nothing), host)?,
        Auth::Token(token) => value(token)?.map_or(Login::Nothing, token_login),
        Auth::Basic { user, password } => match (value(user)?, value(password)?) {
            (None, None) => Login::Nothing,
            (user, password) => {
                let text = |value: Option<String>| value.map(one_line).unwrap_or_default();
                Login::Http(HttpLogin::Basic { user: text(user), password: text(password) })
            }
        },
        Auth::Ssh { key, passphrase } => {
            let passphrase = passphrase.as_ref().map(value).transpose()?.flatten().map(one_line);
            value(key)?.map_or(Login::Nothing, |key| Login::Ssh { key, passphrase })
        }
        Auth::GitHubApp { app_id, installation_id, private_key, base_url } => {
            match (value(app_id)?, value(installation_id)?, value(private_key)?) {
                (Some(app), Some(installation), Some(key)) => {
                    let (app, installation) = (one_line(app), one_line(installation));
                    Login::GitHubApp(App::new(app, installation, key, base_url.as_deref(), host)?)
                }
                _ => Login::Nothing,
            }
        }
    };
    let all = |keys: &'static [&'static str]| {
        let found =
            secrets.values().flat_map(move |data| keys.iter().filter_map(move |key| data.get(*key)).filter_map(text));
        found.collect::<Vec<_>>()
    };
    Ok(Credentials { login, known_hosts: all(&["known_hosts"]), authorities: all(&["ca.crt", "caFile"]) })
}

/// Returns a value as a string, or `None` if the value is optional and does not exist.
fn value_of(value: &Value, secrets: &BTreeMap<String, Data>) -> Result<Option<String>, String> {
    let (secret, key, optional) = match value {
        Value::Literal(text) => return Ok(Some(text.clone())),
        Value::Key { secret, key, optional } => (secret, key, *optional),
    };
    match secrets.get(secret).and_then(|data| data.get(key)) {
        Some(found) => text(found).map(Some).ok_or_else(|| format!("key {key} of Secret {secret} is not valid UTF-8")),
        None if optional => Ok(None),
        None => Err(format!("Secret {secret} has no key {key}")),
    }
}

/// Returns the credentials in a Secret. The Secret's keys determine the type of the credentials, with the same
/// precedence as in the Pulumi Kubernetes Operator, and then as in Flux. A Secret that contains only host keys or CA
/// certificates is valid and results in no credentials. `host` is the host of the repository.
fn login_of(name: &str, data: &Data, host: &str) -> Result<Login, String> {
    let get = |key: &str| match data.get(key) {
        Some(bytes) => text(bytes).map(Some).ok_or_else(|| format!("key {key} of Secret {name} is not valid UTF-8")),
        None => Ok(None),
    };
    for key in SSH_KEYS {
        if let Some(key) = get(key)? {
            return Ok(Login::Ssh { key, passphrase: get("password")?.map(one_line).filter(|text| !text.is_empty()) });
        }
    }
    if let Some(token) = get("accessToken")? {
        return Ok(token_login(token));
    }
    if let Some(token) = get("bearerToken")? {
        return Ok(Login::Http(HttpLogin::Bearer(one_line(token))));
    }
    if let Some(app) = get("githubAppID")? {
        let needed = |key: &str| get(key)?.ok_or_else(|| format!("Secret {name} has githubAppID, but no {key}"));
        let (installation, private_key) = (needed("githubAppInstallationID")?, needed("githubAppPrivateKey")?);
        let base_url = get("githubAppBaseURL")?;
        let app = App::new(one_line(app), one_line(installation), private_key, base_url.as_deref(), host)?;
        return Ok(Login::GitHubApp(app));
    }
    match (get("username")?, get("password")?) {
        (Some(user), Some(password)) => {
            Ok(Login::Http(HttpLogin::Basic { user: one_line(user), password: one_line(password) }))
        }
        (None, None) if ["ca.crt", "caFile", "known_hosts"].iter().any(|key| data.contains_key(*key)) => {
            Ok(Login::Nothing)
        }
        _ => Err(format!(
            "Secret {name} has no credentials: set sshPrivateKey, accessToken, bearerToken, username and password, or the \
             keys of a GitHub App"
        )),
    }
}

fn token_login(token: String) -> Login {
    Login::Http(HttpLogin::Token(one_line(token)))
}

fn text(bytes: &ByteString) -> Option<String> {
    String::from_utf8(bytes.0.clone()).ok()
}

/// Removes trailing line breaks, because a value from a file often ends with a line break.
fn one_line(text: String) -> String {
    text.trim_end_matches(['\r', '\n']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::fake_api::{FakeResponse, client};
    use crate::source::git::reference::Reference;
    use crate::source::git::url::RepositoryUrl;

    fn secrets(entries: &[(&str, &str)]) -> BTreeMap<String, Data> {
        let data =
            entries.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect();
        [("s".to_owned(), data)].into()
    }

    fn described(auth: &Auth, entries: &[(&str, &str)]) -> Result<String, String> {
        let made = make(auth, &secrets(entries), "github.com")?;
        Ok(match made.login {
            Login::Nothing => "nothing".to_owned(),
            Login::Http(HttpLogin::Token(token)) => format!("token {token}"),
            Login::Http(HttpLogin::Basic { user, password }) => format!("{user}:{password}"),
            Login::Http(HttpLogin::Bearer(token)) => format!("bearer {token}"),
            Login::Ssh { key, passphrase } => format!("ssh {key} {passphrase:?}"),
            Login::GitHubApp(_) => "app".to_owned(),
        })
    }

    #[test]
    fn the_keys_of_a_secret_determine_the_credentials() {
        let auth = Auth::Secret("s".to_owned());
        let app = ("githubAppID", "12\n");
        let (installation, private_key) = (("githubAppInstallationID", "34"), ("githubAppPrivateKey", "k"));
        let rows: [(&[(&str, &str)], &str); 9] = [
            (&[("sshPrivateKey", "k"), ("password", "p\n"), ("accessToken", "t")], "ssh k Some(\"p\")"),
            (&[("sshPrivateKey", "k")], "ssh k None"),
            (&[("identity", "k"), ("identity.pub", "b"), ("known_hosts", "h")], "ssh k None"),
            (&[("accessToken", "t\n"), ("username", "u"), ("password", "p")], "token t"),
            (&[("bearerToken", "t\n"), ("ca.crt", "c")], "bearer t"),
            (&[app, installation, private_key, ("githubAppBaseURL", "https://github.example.com/api/v3")], "app"),
            (&[("username", "u"), ("password", "p")], "u:p"),
            (&[("ca.crt", "c")], "nothing"),
            (&[("known_hosts", "h")], "nothing"),
        ];
        for (entries, expected) in rows {
            assert_eq!(described(&auth, entries).as_deref(), Ok(expected), "{entries:?}");
        }
        for entries in [&[][..], &[("username", "u")], &[("token", "t")]] {
            let message = described(&auth, entries).expect_err("should reject an empty Secret");
            assert!(message.contains("Secret s has no credentials: set sshPrivateKey"), "{message}");
        }
        for (entries, expected) in [
            (&[app, private_key][..], "Secret s has githubAppID, but no githubAppInstallationID"),
            (&[app, installation], "Secret s has githubAppID, but no githubAppPrivateKey"),
            (&[("githubAppID", "a b"), installation, private_key], "invalid appID of the GitHub App"),
        ] {
            let message = described(&auth, entries).expect_err(expected);
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn ca_and_known_hosts_are_read_from_the_credentials_secret() {
        let auth = Auth::Token(Value::Key { secret: "s".to_owned(), key: "t".to_owned(), optional: false });
        let made = make(&auth, &secrets(&[("t", "x"), ("ca.crt", "c"), ("known_hosts", "h")]), "h").unwrap();
        assert_eq!((made.authorities, made.known_hosts), (vec!["c".to_owned()], vec!["h".to_owned()]));
        let message = described(&auth, &[]).expect_err("the key is missing");
        assert_eq!(message, "Secret s has no key t");
    }

    #[test]
    fn a_missing_optional_credential_is_omitted() {
        let at = |key: &str| Value::Key { secret: "s".to_owned(), key: key.to_owned(), optional: true };
        let basic = Auth::Basic { user: at("u"), password: at("p") };
        let ssh = Auth::Ssh { key: at("k"), passphrase: Some(at("p")) };
        let app = Auth::GitHubApp { app_id: at("a"), installation_id: at("i"), private_key: at("k"), base_url: None };
        let rows: [(&Auth, &[(&str, &str)], &str); 8] = [
            (&Auth::Token(at("t")), &[("t", "x")], "token x"),
            (&Auth::Token(at("t")), &[], "nothing"),
            (&basic, &[("u", "me"), ("p", "x")], "me:x"),
            (&basic, &[("u", "me")], "me:"),
            (&basic, &[], "nothing"),
            (&ssh, &[("k", "x")], "ssh x None"),
            (&ssh, &[("p", "x")], "nothing"),
            (&app, &[("a", "1"), ("i", "2")], "nothing"),
        ];
        for (auth, entries, expected) in rows {
            assert_eq!(described(auth, entries).as_deref(), Ok(expected), "{auth:?} {entries:?}");
            assert!(!auth.needs("s"), "{auth:?}");
        }
        let needed = Auth::Basic {
            user: at("u"),
            password: Value::Key { secret: "s".to_owned(), key: "p".to_owned(), optional: false },
        };
        assert!(needed.needs("s") && !needed.needs("other"));
        assert!(make(&Auth::Token(at("t")), &BTreeMap::new(), "h").is_ok(), "an optional Secret may be missing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_temporary_error_of_the_api_server_needs_no_user_action() {
        // Columns: the response, whether the error is temporary, and a part of the message.
        let rows: [(FakeResponse, bool, &str); 7] = [
            (FakeResponse::refusal(404, "NotFound"), false, "failed to read Secret apps/s: not found"),
            (FakeResponse::refusal(403, "Forbidden"), false, "failed to read Secret apps/s: "),
            (FakeResponse::refusal(401, "Unauthorized"), false, "failed to read Secret apps/s: "),
            (FakeResponse::refusal(429, "TooManyRequests"), true, "failed to read Secret apps/s: "),
            (FakeResponse::refusal(500, "InternalError"), true, "failed to read Secret apps/s: "),
            (FakeResponse::refusal(503, "ServiceUnavailable"), true, "failed to read Secret apps/s: "),
            (FakeResponse::Silence, true, "failed to read Secret apps/s: timed out after 15 s"),
        ];
        for (response, is_temporary, expected) in rows {
            let (client, _) = client(move |_| response.clone());
            let error = read_secret(&client, "apps", "s", true).await.expect_err(expected);
            let found = (error.is_transient(), error.is_stalled());
            assert_eq!(found, (is_temporary, !is_temporary), "{error}");
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn the_error_for_an_ssh_url_without_a_key_names_the_secret() {
        let secret = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"known_hosts": "aA=="},
        });
        let (client, _) = client(move |_| FakeResponse::Json(200, secret.clone()));
        let reader = AccessReader::new(client, "/nonexistent".into(), false);
        let optional = Value::Key { secret: "s".to_owned(), key: "k".to_owned(), optional: true };
        let rows = [
            (Auth::Secret("s".to_owned()), "git@example.com:app is an SSH URL, but Secret s has no sshPrivateKey"),
            (
                Auth::Ssh { key: optional, passphrase: None },
                "git@example.com:app is an SSH URL, but the optional SSH key does not exist",
            ),
        ];
        for (auth, expected) in rows {
            let key = Key {
                repository: RepositoryUrl::parse("git@example.com:app").unwrap(),
                reference: Reference::Name("main".to_owned()),
                full_history: false,
                auth,
                namespace: "apps".to_owned(),
            };
            assert_eq!(reader.read(&key).await.map(drop).expect_err(expected).to_string(), expected);
        }
    }

    #[test]
    fn debug_output_does_not_contain_credentials() {
        let http = HttpLogin::Basic { user: "u".to_owned(), password: "hunter2".to_owned() };
        let login = Login::Http(http.clone());
        let shown = format!("{http:?} {login:?} {:?}", Credentials { login: login.clone(), ..Credentials::default() });
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
