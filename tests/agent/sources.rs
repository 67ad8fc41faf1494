//! Sources over the wire, and what they depend on.

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
async fn dependencies_are_installed_before_the_source_is_put_in_place_and_a_failure_leaves_the_old_one() {
    let cli = "case \"$*\" in
        *install*) echo installing; [ -f broken ] && { echo 'no such package: left-pad' >&2; exit 1; }
                   mkdir node_modules; ls -d /proc/$$ >/dev/null;;
        esac";
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    let (good, bytes) = archive(&[("Pulumi.yaml", NODE), ("package.json", "{}")]);
    workspace.put_archive(good.clone(), bytes).await.unwrap();
    assert!(workspace.path("share/workspace/node_modules").is_dir());
    let (broken, bytes) = archive(&[("Pulumi.yaml", NODE), ("package.json", "{}"), ("broken", "")]);
    let refusal = workspace.put_archive(broken, bytes).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("no such package: left-pad"), "{refusal}");
    assert_eq!(workspace.status().await.artifact, Some(good));
    assert!(workspace.path("share/workspace/node_modules").is_dir());
    assert!(workspace.log().contains("install: no such package"), "{}", workspace.log());
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
