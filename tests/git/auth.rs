//! Tests credentials for Git over HTTP, and the hosts to which the controller sends these credentials.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::follower::Controller;
use crate::github::GitHub;
use crate::http_server::Server;
use crate::repository::Repository;
use crate::tls::Tls;

fn secret(key: &str) -> Value {
    json!({"type": "Secret", "secret": {"name": "git", "key": key}})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_password_or_token_is_accepted() {
    let repository = Repository::with_project();
    let rows: [(&str, &[(&str, &str)], Value); 5] = [
        ("", &[("bearerToken", "hunter2\n")], json!({"gitAuthSecret": "git"})),
        ("me", &[("username", "me"), ("password", "hunter2\n")], json!({"gitAuthSecret": "git"})),
        ("git", &[("accessToken", "hunter2")], json!({"gitAuthSecret": "git"})),
        ("git", &[("t", "hunter2")], json!({"gitAuth": {"accessToken": secret("t")}})),
        (
            "me",
            &[("u", "me"), ("p", "hunter2")],
            json!({"gitAuth": {"basicAuth": {"userName": secret("u"), "password": secret("p")}}}),
        ),
    ];
    for (user, entries, auth) in rows {
        let server = Server::private(&repository, user, "hunter2").await;
        let mut controller = Controller::new().await;
        controller.secrets.set("git", entries);
        let mut fields = json!({"projectRepo": server.url(), "branch": "main"});
        fields.as_object_mut().unwrap().extend(auth.as_object().unwrap().clone());
        controller.resolve(&fields).await.unwrap_or_else(|error| panic!("{fields}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_errors_are_reported_without_revealing_them() {
    let repository = Repository::with_project();
    let server = Server::private(&repository, "me", "right").await;
    let user_hint = "set spec.gitAuth.basicAuth, or username and password, or bearerToken in the Secret";
    let rows: [(&[(&str, &str)], bool, &str); 8] = [
        (&[("accessToken", "right")], true, "server rejected the access token (HTTP 401)"),
        (&[("accessToken", "right")], true, user_hint),
        (&[("bearerToken", "hunter2")], true, "server rejected the credentials (HTTP 401)"),
        (&[], false, "server requires credentials (HTTP 401)"),
        (&[("username", "me"), ("password", "hunter2")], true, "server rejected the credentials (HTTP 401)"),
        (&[("token", "hunter2")], true, "has no credentials: set sshPrivateKey, accessToken"),
        (&[("sshPrivateKey", "hunter2")], true, "requires an SSH URL"),
        (&[], true, "failed to read Secret apps/git: not found"),
    ];
    for (entries, is_given, expected) in rows {
        let mut controller = Controller::new().await;
        if !entries.is_empty() {
            controller.secrets.set("git", entries);
        }
        let mut fields = json!({"projectRepo": server.url(), "branch": "main"});
        if is_given {
            fields["gitAuthSecret"] = json!("git");
        }
        let error = controller.resolve(&fields).await.expect_err("should be rejected");
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!error.contains("hunter2") && !error.contains("hidden words"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_is_read_on_the_next_request() {
    let repository = Repository::with_project();
    let server = Server::private(&repository, "me", "old").await;
    let mut controller = Controller::new().await;
    controller.secrets.set("git", &[("username", "me"), ("password", "old")]);
    let fields = json!({"projectRepo": server.url(), "branch": "main", "gitAuthSecret": "git"});
    let before = controller.resolve(&fields).await.unwrap();
    server.set_login("me", "new");
    let error = controller.resolve_now(&fields, "one").await.expect_err("should reject the old password");
    assert!(error.contains("server rejected the credentials"), "{error}");
    controller.secrets.set("git", &[("username", "me"), ("password", "new")]);
    let after = controller.resolve_now(&fields, "two").await.unwrap();
    assert_eq!(after.digest, before.digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_ca_is_trusted_per_secret_or_for_all_stacks() {
    let repository = Repository::with_project();
    let server = Server::private(&repository, "me", "hunter2").await;
    let tls = Tls::in_front_of(server.address).await;
    let fields = json!({"projectRepo": tls.url(), "branch": "main", "gitAuthSecret": "git"});
    let login = [("username", "me"), ("password", "hunter2"), ("ca.crt", tls.authority.as_str())];
    let mut controller = Controller::new().await;
    controller.secrets.set("git", &login[..2]);
    let error = controller.resolve(&fields).await.expect_err("the certificate is not trusted");
    assert!(error.contains("server is unreachable") && error.contains("certificate"), "{error}");
    let mut controller = Controller::new().await;
    controller.secrets.set("git", &login);
    controller.resolve(&fields).await.unwrap();
    let mut controller = Controller::new().await;
    controller.secrets.set("git", &login[..2]);
    controller.trust("ca.crt", &tls.authority);
    controller.resolve(&fields).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_the_repository_is_followed() {
    let repository = Repository::with_project();
    let server = Server::redirecting(&repository).await;
    let mut controller = Controller::new().await;
    let url = server.url().replace("/app", "/moved/app");
    let resolved = controller.resolve(&json!({"projectRepo": url, "branch": "main"})).await.unwrap();
    assert_eq!(resolved.revision, format!("main@sha1:{}", repository.head()));
}

/// Returns an RSA private key in PEM format, either traditional or PKCS#8, and the public key as PKCS#1.
fn app_key(directory: &TempDir, traditional: bool) -> (String, Vec<u8>) {
    let path = directory.path().join(format!("app-{traditional}.pem"));
    let run = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
        assert!(
            output.status.success(),
            "openssl {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    let file = path.to_str().unwrap();
    match traditional {
        true => run(&["genrsa", "-traditional", "-out", file, "2048"]),
        false => run(&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", file]),
    };
    let public = run(&["rsa", "-in", file, "-RSAPublicKey_out", "-outform", "DER"]);
    (std::fs::read_to_string(&path).unwrap(), public)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_github_app_token_is_cached_while_it_is_valid() {
    let (repository, directory) = (Repository::with_project(), TempDir::new().unwrap());
    for traditional in [true, false] {
        let (private, public) = app_key(&directory, traditional);
        let expected = if traditional { "BEGIN RSA PRIVATE KEY" } else { "BEGIN PRIVATE KEY" };
        assert!(private.contains(expected), "the key has the other format");
        let server = Server::private(&repository, "x-access-token", "hunter2").await;
        let github = GitHub::start(public, "hunter2").await;
        let mut controller = Controller::new().await;
        controller.secrets.set("git", &[("app", "12"), ("installation", "34"), ("key", &private)]);
        let app = json!({"appID": secret("app"), "installationID": secret("installation"), "privateKey": secret("key"),
            "baseURL": github.base_url});
        let fields = json!({"projectRepo": server.url(), "branch": "main", "gitAuth": {"githubApp": app}});
        controller.resolve(&fields).await.unwrap();
        controller.resolve_now(&fields, "again").await.unwrap();
        assert_eq!(github.exchanges(), 1, "one token exchange");
        // The server revokes the token before the token expires.
        server.set_login("x-access-token", "another");
        *github.token.lock().unwrap() = "another".to_owned();
        let error = controller.resolve_now(&fields, "refused").await.expect_err("should reject the token");
        assert!(error.contains("server rejected the credentials") && !error.contains("hunter2"), "{error}");
        controller.resolve_now(&fields, "renewed").await.unwrap();
        assert_eq!(github.exchanges(), 2);
        // The keys of a Secret for a Flux GitRepository.
        let (id, key, url) =
            (("githubAppID", "12"), ("githubAppPrivateKey", private.as_str()), github.base_url.as_str());
        controller.secrets.set("git", &[id, ("githubAppInstallationID", "34"), key, ("githubAppBaseURL", url)]);
        let flux = json!({"projectRepo": server.url(), "branch": "main", "gitAuthSecret": "git"});
        controller.resolve(&flux).await.unwrap();
        controller.secrets.set("git", &[("app", "12"), ("installation", "35"), ("key", &private)]);
        let error = controller.resolve_now(&fields, "gone").await.expect_err("should report the missing installation");
        assert!(error.contains("installation 35 of the App not found"), "{error}");
    }
}
