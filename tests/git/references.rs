//! Tests that references resolve to the correct commits. The program `git` creates the repositories.

use serde_json::json;

use crate::follower::Controller;
use crate::http_server::Server;
use crate::repository::Repository;

#[tokio::test(flavor = "multi_thread")]
async fn branches_tags_commits_and_ranges_are_found() {
    let repository = Repository::with_project();
    let first = repository.head();
    repository.git(&["tag", "v1.2.0"]);
    repository.git(&["tag", "--annotate", "--message", "a release", "v1.10.0"]);
    repository.git(&["branch", "feature/x"]);
    repository.write("more", "more");
    let second = repository.commit();
    repository.git(&["tag", "v2.0.0-rc.1"]);
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let rows = [
        (json!({"branch": "main"}), format!("main@sha1:{second}"), Some("refs/heads/main")),
        (json!({"branch": "refs/heads/main"}), format!("main@sha1:{second}"), Some("refs/heads/main")),
        (json!({"branch": "feature/x"}), format!("feature/x@sha1:{first}"), Some("refs/heads/feature/x")),
        (json!({"branch": "refs/tags/v1.10.0"}), format!("v1.10.0@sha1:{first}"), Some("refs/tags/v1.10.0")),
        (json!({"commit": "v1.2.0"}), format!("v1.2.0@sha1:{first}"), Some("refs/tags/v1.2.0")),
        (json!({"commit": first}), format!("sha1:{first}"), None),
        (json!({"gitRef": {"semver": ">=1.0.0 <2.0.0"}}), format!("v1.10.0@sha1:{first}"), Some("refs/tags/v1.10.0")),
        (
            json!({"gitRef": {"semver": ">=2.0.0-0"}}),
            format!("v2.0.0-rc.1@sha1:{second}"),
            Some("refs/tags/v2.0.0-rc.1"),
        ),
    ];
    for (mut fields, expected, head_name) in rows {
        fields["projectRepo"] = json!(server.url());
        let resolved = controller.resolve(&fields).await.unwrap_or_else(|error| panic!("{fields}: {error}"));
        assert_eq!(resolved.revision, expected, "{fields}");
        assert_eq!(controller.files(&resolved).contains_key("more"), expected.ends_with(&second), "{fields}");
        let metadata = resolved.metadata.expect("Git metadata");
        assert_eq!(metadata.head_name.as_deref(), head_name, "{fields}");
        assert!(metadata.head.is_some_and(|head| expected.ends_with(&head)), "{fields}");
        assert_eq!(metadata.repository_url, Some(server.url()), "{fields}");
        let commit = [metadata.message, metadata.author, metadata.author_email, metadata.committer];
        assert_eq!(commit.map(Option::unwrap), ["a change", "Test", "test@example.com", "Test"], "{fields}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commit_can_move_forward_and_back() {
    let repository = Repository::with_project();
    let first = repository.head();
    repository.write("more", "more");
    let second = repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let mut digests = Vec::new();
    for commit in [&first, &second, &first] {
        let resolved = controller.resolve(&json!({"projectRepo": server.url(), "commit": commit})).await.unwrap();
        assert_eq!(resolved.revision, format!("sha1:{commit}"));
        digests.push(resolved.digest);
    }
    assert_eq!(digests[0], digests[2]);
    assert_ne!(digests[0], digests[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sha256_repository_is_fetched() {
    let repository = Repository::sha256();
    repository.write("Pulumi.yaml", "name: app\n");
    let commit = repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let resolved = controller.resolve(&json!({"projectRepo": server.url(), "branch": "main"})).await.unwrap();
    assert_eq!(resolved.revision, format!("main@sha256:{commit}"));
    assert_eq!(controller.files(&resolved)["Pulumi.yaml"], "name: app\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_full_history_is_fetched_if_shallow_is_false() {
    let repository = Repository::with_project();
    repository.write("more", "more");
    let commit = repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": server.url(), "branch": "main", "shallow": false});
    let resolved = controller.resolve(&fields).await.unwrap();
    assert_eq!(resolved.revision, format!("main@sha1:{commit}"));
    let shallow = controller.resolve(&json!({"projectRepo": server.url(), "branch": "main"})).await.unwrap();
    assert_eq!(resolved.digest, shallow.digest, "the files are the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_force_push_to_another_history_is_fetched() {
    let repository = Repository::with_project();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": server.url(), "branch": "main"});
    let before = controller.resolve(&fields).await.unwrap();
    repository.git(&["checkout", "--quiet", "--orphan", "other"]);
    repository.write("Pulumi.yaml", "name: other\n");
    let commit = repository.commit();
    repository.git(&["branch", "--force", "main", "other"]);
    let after = controller.resolve_now(&fields, "now").await.unwrap();
    assert_eq!(after.revision, format!("main@sha1:{commit}"));
    assert_ne!(after.digest, before.digest);
}
