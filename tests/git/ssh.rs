//! Tests repositories over SSH.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::follower::Controller;
use crate::repository::Repository;
use crate::ssh_server::{SshServer, key_pair};

fn fields(url: &str) -> Value {
    json!({"projectRepo": url, "branch": "main", "gitAuthSecret": "ssh"})
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_every_type_work_with_and_without_a_passphrase() {
    let (repository, keys) = (Repository::with_project(), TempDir::new().unwrap());
    let commit = repository.head();
    let rows: [(&[&str], &str, bool); 5] = [
        (&["ed25519"], "", true),
        (&["ed25519"], "hunter2", false),
        (&["ecdsa"], "", true),
        (&["rsa", "-b", "2048"], "", true),
        (&["rsa", "-b", "2048", "-m", "PEM"], "hunter2", false),
    ];
    for (index, (kind, passphrase, accept_version)) in rows.into_iter().enumerate() {
        let (private, public) = key_pair(keys.path(), &format!("key{index}"), kind, passphrase);
        let server = SshServer::of(&repository, &public, accept_version);
        let mut controller = Controller::new().await;
        let mut secret = vec![("sshPrivateKey", private.as_str())];
        let known = server.known_host("host");
        secret.push(("known_hosts", &known));
        if !passphrase.is_empty() {
            secret.push(("password", passphrase));
        }
        controller.secrets.set("ssh", &secret);
        let resolved =
            controller.resolve(&fields(&server.url())).await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert_eq!(resolved.revision, format!("main@sha1:{commit}"));
        assert!(controller.files(&resolved).contains_key("Pulumi.yaml"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_key_of_any_type_is_trusted_per_secret_or_for_all_stacks() {
    let (repository, keys) = (Repository::with_project(), TempDir::new().unwrap());
    let (private, public) = key_pair(keys.path(), "key", &["ed25519"], "");
    let server = SshServer::of(&repository, &public, true);
    for (in_secret, key) in [(true, "host"), (true, "host_rsa"), (false, "host"), (false, "host_rsa")] {
        let mut controller = Controller::new().await;
        let known = server.known_host(key);
        let secret = [("sshPrivateKey", private.as_str()), ("known_hosts", known.as_str())];
        controller.secrets.set("ssh", if in_secret { &secret } else { &secret[..1] });
        if !in_secret {
            controller.trust("known_hosts", &known);
        }
        controller.resolve(&fields(&server.url())).await.unwrap_or_else(|error| panic!("{in_secret} {key}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_errors_are_reported() {
    let (repository, keys) = (Repository::with_project(), TempDir::new().unwrap());
    let (private, public) = key_pair(keys.path(), "key", &["ed25519"], "");
    let (other, other_public) = key_pair(keys.path(), "other", &["ed25519"], "");
    let (encrypted, _) = key_pair(keys.path(), "encrypted", &["ed25519"], "hunter2");
    let server = SshServer::of(&repository, &public, true);
    let known = server.known_host("host");
    let another = format!("[127.0.0.1]:{} {other_public}", server.port);
    let port = format!("ssh-keyscan -p {} 127.0.0.1", server.port);
    let rows: [(&[(&str, &str)], String, &[&str]); 6] = [
        (&[("sshPrivateKey", &private)], server.url(), &["unknown host key", "SHA256:", &port, "known_hosts"]),
        (&[("sshPrivateKey", &private), ("known_hosts", &another)], server.url(), &["does not match known_hosts"]),
        (&[("sshPrivateKey", &other), ("known_hosts", &known)], server.url(), &["server rejected the credentials"]),
        (&[("sshPrivateKey", &encrypted), ("known_hosts", &known)], server.url(), &["SSH key requires a passphrase"]),
        (
            &[("sshPrivateKey", &private), ("known_hosts", &known)],
            server.url_of("/no/such/place"),
            &["repository not found", "/no/such/place"],
        ),
        (&[("accessToken", "t"), ("known_hosts", &known)], server.url(), &["has no sshPrivateKey"]),
    ];
    for (secret, url, parts) in rows {
        let mut controller = Controller::new().await;
        controller.secrets.set("ssh", secret);
        let error = controller.resolve(&fields(&url)).await.expect_err("should be rejected");
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("PRIVATE KEY") && !error.contains("hunter2"), "{error}");
    }
}
