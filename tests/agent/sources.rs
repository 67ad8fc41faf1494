//! Sources over the wire.

use std::time::Instant;

use crate::harness::{PATIENCE, POLL, Workspace, archive};

const YAML: &str = "name: example\nruntime: yaml\n";
const NODE: &str = "name: example\nruntime: nodejs\n";

#[tokio::test]
async fn a_source_with_a_wrong_digest_is_refused_and_the_old_one_stays() {
    let workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    let before = workspace.put(YAML).await;
    let (artifact, mut bytes) = archive(&[("Pulumi.yaml", YAML), ("more", "more")]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let refusal = workspace.put_archive(artifact.clone(), bytes).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains(&artifact.digest), "{refusal}");
    assert_eq!(workspace.status().await.artifact, Some(before.clone()));
    assert!(!workspace.path("share/workspace/more").exists());
    let (_, bytes) = archive(&[("Pulumi.yaml", YAML)]);
    assert!(workspace.put_archive(before, bytes).await.unwrap(), "what is in place is unchanged");
}

#[tokio::test]
async fn the_agent_answers_readiness_and_knows_the_cli() {
    let mut workspace = Workspace::start_with(Some("[ \"$*\" = version ] || echo v3.259.0; echo v3.259.0"), &[]).await;
    assert_eq!(workspace.readiness().await, "HTTP/1.1 200 OK");
    let end = Instant::now() + PATIENCE;
    let mut status = workspace.status().await;
    while status.pulumi_version.is_empty() && Instant::now() < end {
        tokio::time::sleep(POLL).await;
        status = workspace.status().await;
    }
    assert_eq!(status.pulumi_version, "v3.259.0");
    let first = status.start_id;
    workspace.terminate();
    assert_eq!(workspace.ended().await, Some(0));
    workspace.start_agent().await;
    assert_ne!(workspace.status().await.start_id, first);
}

/// As in a pod with init containers of the user: the source comes before there is a CLI.
#[tokio::test]
async fn what_the_init_container_fetched_is_found_by_the_agent() {
    let mut workspace = Workspace::start_fetch().await;
    assert_eq!(workspace.status().await.artifact, None);
    let refusal = workspace.connect().await.drain().await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("init containers have not run yet"), "{refusal}");
    let (wrong, mut bytes) = archive(&[("Pulumi.yaml", YAML), ("more", "more")]);
    bytes.reverse();
    let refusal = workspace.put_archive(wrong.clone(), bytes).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains(&wrong.digest), "{refusal}");
    assert!(workspace.is_running(), "it waits for another source");

    let artifact = workspace.put(YAML).await;
    assert_eq!(workspace.ended().await, Some(0));
    std::fs::write(workspace.path("share/workspace/made-by-the-init-container"), "").unwrap();
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, Some(artifact));
    assert!(workspace.path("share/workspace/made-by-the-init-container").exists());
}

#[tokio::test]
async fn the_init_container_ends_with_an_error_when_the_pod_ends_before_a_source_came() {
    let mut workspace = Workspace::start_fetch().await;
    workspace.terminate();
    assert_eq!(workspace.ended().await, Some(1));
}

#[tokio::test]
async fn the_agent_installs_the_dependencies_of_a_source_that_came_before_there_was_a_cli() {
    let cli = "case \"$*\" in
        *install*) [ -f mended ] || { echo 'no such package: left-pad' >&2; exit 1; }
                   mkdir node_modules;;
        esac";
    let mut workspace = Workspace::start_fetch_with(Some(cli)).await;
    let (artifact, bytes) = archive(&[("Pulumi.yaml", NODE), ("package.json", "{}")]);
    assert!(!workspace.put_archive(artifact.clone(), bytes.clone()).await.unwrap());
    assert_eq!(workspace.ended().await, Some(0));
    assert!(!workspace.path("share/workspace/node_modules").exists(), "the init container has no CLI");

    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, None, "it cannot be worked with yet");
    let failure = workspace.until_in_place(&artifact).await.unwrap_err();
    assert!(failure.contains("no such package: left-pad"), "{failure}");
    std::fs::write(workspace.path("share/workspace/mended"), "").unwrap();
    workspace.until("the dependencies are installed", |status| status.artifact.as_ref() == Some(&artifact)).await;
    assert!(workspace.path("share/workspace/node_modules").is_dir());
    assert!(workspace.path("share/workspace/mended").exists(), "the tree was not exchanged");

    workspace.terminate();
    assert_eq!(workspace.ended().await, Some(0));
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, Some(artifact), "it is remembered");
}
