//! Tests for parsing the repository fields of Stacks and Workspaces.

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
fn the_polling_interval_has_a_minimum_and_a_maximum() {
    let interval = |seconds: Json| {
        let fields = json!({"projectRepo": HTTPS, "branch": "main", "resyncFrequencySeconds": seconds});
        read(&fields).unwrap().unwrap().interval.as_secs()
    };
    let month = 30 * 24 * 60 * 60;
    let rows = [
        (json!(null), 60),
        (json!(1), 60),
        (json!(-5), 60),
        (json!(60), 60),
        (json!(300), 300),
        (json!(month), month),
        (json!(month + 1), month),
        (json!(i64::MAX), month),
    ];
    for (seconds, expected) in rows {
        assert_eq!(interval(seconds.clone()), expected, "{seconds}");
    }
}

#[test]
fn every_auth_method_of_a_stack_is_parsed() {
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
    assert_eq!(auth(HTTPS, json!({"gitAuthSecret": "x", "gitAuth": {}})), Auth::Secret("x".to_owned()));
    assert_eq!(auth(HTTPS, json!({"gitAuth": {}})), Auth::Nothing);
}

#[test]
fn the_error_for_invalid_git_fields_of_a_stack_states_the_reason() {
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
        (json!({"projectRepo": ssh, "branch": "a", "gitAuth": {"accessToken": secret("t")}}), "spec.gitAuth.sshAuth"),
        (
            json!({"projectRepo": HTTPS, "branch": "a", "gitAuth": {"sshAuth": {"sshPrivateKey": secret("k")}}}),
            "requires an SSH URL",
        ),
        (json!({"projectRepo": HTTPS, "branch": "a", "gitAuth": {"accessToken": other}}), "in another namespace"),
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

fn read_workspace(fields: Json) -> Result<RepositorySpec, String> {
    RepositorySpec::of_workspace(&serde_json::from_value(fields).unwrap(), "apps")
}

fn at(key: &str) -> Json {
    json!({"name": "s", "key": key})
}

#[test]
fn the_repository_of_a_workspace_is_parsed_as_in_pko() {
    let expected = read_workspace(json!({"url": HTTPS, "ref": "v1", "dir": "deploy", "shallow": false})).unwrap();
    assert_eq!(expected.key.reference, Reference::Name("v1".to_owned()));
    assert_eq!((expected.directory.as_str(), expected.key.full_history), ("deploy", true));
    assert_eq!(expected.key.namespace, "", "namespaces share a repository without a Secret");
    let plain = read_workspace(json!({"url": HTTPS})).unwrap();
    assert_eq!((plain.key.reference, plain.key.full_history), (Reference::Name("HEAD".to_owned()), false));
}

#[test]
fn every_auth_method_of_a_workspace_is_parsed() {
    let auth =
        |url: &str, auth: Json| read_workspace(json!({"url": url, "auth": auth})).map(|expected| expected.key.auth);
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
fn the_error_for_invalid_git_fields_of_a_workspace_states_the_reason() {
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
        let message = read_workspace(fields.clone()).expect_err("invalid");
        assert!(message.contains(expected), "{fields}: {message}");
    }
}
