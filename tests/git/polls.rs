//! Tests the number of requests that the controller sends to a server.

use pulumi_controller::source::git::{KnownArtifact, Lookup};
use serde_json::json;

use crate::follower::Controller;
use crate::http_server::Server;
use crate::repository::Repository;

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_stacks_on_one_repository_share_one_poll_and_fetch() {
    let repository = Repository::with_project();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": server.url(), "branch": "main", "resyncFrequencySeconds": 60});
    let mut resolved = Vec::new();
    for index in 0..500 {
        resolved.push(controller.resolve_as(&format!("app-{index}"), &fields, &Lookup::default()).await.unwrap());
    }
    assert!(resolved.iter().all(|other| other.digest == resolved[0].digest));
    // A fetch opens a second connection and requests the capabilities again.
    assert_eq!(server.requests(), (2, 1));
    repository.write("more", "more");
    let commit = repository.commit();
    let moved = controller
        .resolve_as("app-7", &fields, &Lookup { request: Some("now".to_owned()), is_new: true, known: None })
        .await
        .unwrap();
    assert_eq!(moved.revision, format!("main@sha1:{commit}"));
    let other = controller.immediate_result("app-499", &fields, &Lookup::default()).unwrap();
    assert_eq!(other.revision, moved.revision, "both Stacks use the same response");
    assert_eq!(server.requests(), (4, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_controller_does_not_refetch_applied_revisions() {
    let repository = Repository::with_project();
    let server = Server::of(&repository).await;
    let fields = json!({"projectRepo": server.url(), "branch": "main"});
    let first = Controller::new().await.resolve(&fields).await.unwrap();
    let before = server.requests();
    let known = KnownArtifact {
        revision: repository.head(),
        digest: first.digest.clone(),
        selection: None,
        metadata: first.metadata.clone(),
    };
    let lookup = Lookup { known: Some(known), ..Lookup::default() };
    let mut controller = Controller::new().await;
    let again = controller.resolve_as("app", &fields, &lookup).await.unwrap();
    assert_eq!((again.digest, again.revision, again.metadata), (first.digest, first.revision, first.metadata));
    assert_eq!(server.requests(), (before.0 + 1, before.1));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_lost_from_the_store_is_fetched_again() {
    let repository = Repository::with_project();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": server.url(), "branch": "main"});
    let before = controller.resolve(&fields).await.unwrap();
    controller.store.discard(&before.digest).unwrap();
    controller.git.fetch_again(crate::follower::origin(&before));
    let after = controller.resolve(&fields).await.unwrap();
    assert_eq!(after.digest, before.digest);
    assert!(controller.store.contains(&after.digest));
}
