//! Parses the repository fields of a Workspace. Performs no I/O.

use crate::api::auto::{GitRepository, GitRepositoryAuth, SecretKeySelector};
use crate::source::git::reference::Reference;
use crate::source::git::spec::{Auth, Key, MIN_INTERVAL, RepositorySpec, Value, check_fit};
use crate::source::git::url::RepositoryUrl;

/// Reference that is followed by default.
const DEFAULT_REFERENCE: &str = "HEAD";

impl RepositorySpec {
    /// Parses the repository of a Workspace in this namespace.
    ///
    /// # Errors
    /// Returns the reason why the fields are invalid.
    pub fn of_workspace(given: &GitRepository, namespace: &str) -> Result<Self, String> {
        let repository = RepositoryUrl::parse(given.url.trim()).map_err(|why| format!("invalid git.url: {why}"))?;
        let auth = auth(given.auth.as_ref())?;
        check_fit(&repository, &auth, "git.auth.sshPrivateKey")?;
        let directory = given.dir.as_deref().unwrap_or_default();
        let directory = directory.parse().map_err(|error| format!("invalid git.dir: {error}"))?;
        let reference = given.reference.as_deref().map(str::trim).filter(|reference| !reference.is_empty());
        let namespace = if auth.names_secret() { namespace.to_owned() } else { String::new() };
        let key = Key {
            repository,
            reference: Reference::commit_or_name(reference.unwrap_or(DEFAULT_REFERENCE)),
            full_history: given.shallow == Some(false),
            auth,
            namespace,
        };
        Ok(RepositorySpec { key, directory, paths: None, every: MIN_INTERVAL })
    }
}

fn auth(given: Option<&GitRepositoryAuth>) -> Result<Auth, String> {
    let Some(given) = given else { return Ok(Auth::Nothing) };
    match (&given.ssh_private_key, &given.token, &given.username, &given.password, &given.github_app) {
        (None, None, None, None, None) => Ok(Auth::Nothing),
        (Some(key), None, None, passphrase, None) => {
            Ok(Auth::Ssh { key: value(key), passphrase: passphrase.as_ref().map(value) })
        }
        (None, Some(token), None, None, None) => Ok(Auth::Token(value(token))),
        (None, None, Some(user), Some(password), None) => {
            Ok(Auth::Basic { user: value(user), password: value(password) })
        }
        (None, None, None, None, Some(app)) => Ok(Auth::GitHubApp {
            app_id: value(&app.app_id),
            installation_id: value(&app.installation_id),
            private_key: value(&app.private_key),
            base_url: None,
        }),
        _ => {
            Err("git.auth must have exactly one of sshPrivateKey (optionally with password), token, username with password, and githubApp"
                .to_owned())
        }
    }
}

fn value(selector: &SecretKeySelector) -> Value {
    let (secret, key) = (selector.name.clone(), selector.key.clone());
    Value::Key { secret, key, optional: selector.optional.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(fields: Json) -> Result<RepositorySpec, String> {
        RepositorySpec::of_workspace(&serde_json::from_value(fields).unwrap(), "apps")
    }

    fn at(key: &str) -> Json {
        json!({"name": "s", "key": key})
    }

    const HTTPS: &str = "https://example.com/app";

    #[test]
    fn a_repository_is_parsed_as_in_the_operator() {
        let expected = read(json!({"url": HTTPS, "ref": "v1", "dir": "deploy", "shallow": false})).unwrap();
        assert_eq!(expected.key.reference, Reference::Name("v1".to_owned()));
        assert_eq!((expected.directory.as_str(), expected.key.full_history), ("deploy", true));
        assert_eq!(expected.key.namespace, "", "namespaces share a repository without a Secret");
        let plain = read(json!({"url": HTTPS})).unwrap();
        assert_eq!((plain.key.reference, plain.key.full_history), (Reference::Name("HEAD".to_owned()), false));
    }

    #[test]
    fn every_auth_method_is_parsed() {
        let auth = |url: &str, auth: Json| read(json!({"url": url, "auth": auth})).map(|expected| expected.key.auth);
        let key = |key: &str| Value::Key { secret: "s".to_owned(), key: key.to_owned(), optional: key == "o" };
        assert_eq!(auth(HTTPS, json!({"token": at("t")})), Ok(Auth::Token(key("t"))));
        let optional = json!({"token": {"name": "s", "key": "o", "optional": true}});
        assert_eq!(auth(HTTPS, optional), Ok(Auth::Token(key("o"))));
        let basic = auth(HTTPS, json!({"username": at("u"), "password": at("p")}));
        assert_eq!(basic, Ok(Auth::Basic { user: key("u"), password: key("p") }));
        let ssh = auth("git@host:app", json!({"sshPrivateKey": at("k"), "password": at("p")}));
        assert_eq!(ssh, Ok(Auth::Ssh { key: key("k"), passphrase: Some(key("p")) }));
        let app = json!({"githubApp": {"appID": at("a"), "installationID": at("i"), "privateKey": at("k")}});
        assert_eq!(auth(HTTPS, app).unwrap().secrets(), ["s"]);
    }

    #[test]
    fn invalid_git_specs_are_rejected_with_a_reason() {
        let rows = [
            (json!({}), "invalid git.url"),
            (json!({"url": HTTPS, "dir": "../a"}), "invalid git.dir"),
            (json!({"url": HTTPS, "auth": {"username": at("u")}}), "git.auth must have exactly one of"),
            (
                json!({"url": HTTPS, "auth": {"token": at("t"), "sshPrivateKey": at("k")}}),
                "git.auth must have exactly one of",
            ),
            (json!({"url": HTTPS, "auth": {"sshPrivateKey": at("k")}}), "git.auth.sshPrivateKey requires an SSH URL"),
            (json!({"url": "git@host:app"}), "set git.auth.sshPrivateKey"),
        ];
        for (fields, expected) in rows {
            let message = read(fields.clone()).expect_err("invalid");
            assert!(message.contains(expected), "{fields}: {message}");
        }
    }
}
