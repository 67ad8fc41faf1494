//! Tests the delivery of sources to the agent.

use std::time::Instant;

use pulumi_controller::artifact::InPod;
use pulumi_controller::rpc::proto;
use pulumi_controller::rpc::protocol::PROTOCOL_VERSION;

use crate::harness::{POLL, TEST_TIMEOUT, Workspace, archive, has_pulumi};

const YAML: &str = "name: example\nruntime: yaml\n";
const NODE: &str = "name: example\nruntime: nodejs\n";

#[tokio::test]
async fn a_source_with_a_wrong_digest_is_rejected_and_the_old_one_is_kept() {
    let workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    let before = workspace.put(YAML).await;
    let (artifact, mut bytes) = archive(&[("Pulumi.yaml", YAML), ("more", "more")]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let refusal = workspace.put_archive(artifact.clone(), bytes).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains(&artifact.digest), "{refusal}");
    let status = workspace.status().await;
    assert_eq!(status.artifact, Some(before.clone()));
    assert_eq!((status.project_name.as_str(), status.protocol_version), ("example", PROTOCOL_VERSION));
    assert!(!workspace.path("share/workspace/more").exists());
    let (_, bytes) = archive(&[("Pulumi.yaml", YAML)]);
    assert!(workspace.put_archive(before, bytes).await.unwrap(), "the installed source is unchanged");
}

#[tokio::test]
async fn the_agent_reports_readiness_and_the_cli_version() {
    let mut workspace = Workspace::start_with(Some("[ \"$*\" = version ] || echo v3.259.0; echo v3.259.0"), &[]).await;
    assert_eq!(workspace.readiness().await, "HTTP/1.1 200 OK");
    let end = Instant::now() + TEST_TIMEOUT;
    let mut status = workspace.status().await;
    while status.pulumi_version.is_empty() && Instant::now() < end {
        tokio::time::sleep(POLL).await;
        status = workspace.status().await;
    }
    assert_eq!(status.pulumi_version, "v3.259.0");
    let first = status.start_id;
    workspace.terminate();
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    workspace.start_agent().await;
    assert_ne!(workspace.status().await.start_id, first);
}

/// In a pod with user-defined init containers, the agent receives the source before the CLI is available.
#[tokio::test]
async fn the_agent_finds_the_source_fetched_by_the_init_container() {
    let mut workspace = Workspace::start_fetch().await;
    assert_eq!(workspace.status().await.artifact, None);
    let refusal = workspace.connect().await.drain().await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("init containers are running"), "{refusal}");
    let (wrong, mut bytes) = archive(&[("Pulumi.yaml", YAML), ("more", "more")]);
    bytes.reverse();
    let refusal = workspace.put_archive(wrong.clone(), bytes).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains(&wrong.digest), "{refusal}");
    assert!(workspace.is_running(), "the init container waits for another source");

    let artifact = workspace.put(YAML).await;
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    std::fs::write(workspace.path("share/workspace/made-by-the-init-container"), "").unwrap();
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, Some(artifact));
    assert!(workspace.path("share/workspace/made-by-the-init-container").exists());
}

#[tokio::test]
async fn the_init_container_fails_if_terminated_before_a_source_arrives() {
    let mut workspace = Workspace::start_fetch().await;
    workspace.terminate();
    assert_eq!(workspace.wait_for_exit().await, Some(1));
}

#[tokio::test]
async fn the_agent_installs_dependencies_of_a_source_older_than_the_cli() {
    let cli = "case \"$*\" in
        *install*) [ -f mended ] || { echo 'no such package: left-pad' >&2; exit 1; }
                   mkdir node_modules;;
        esac";
    let mut workspace = Workspace::start_fetch_with(Some(cli)).await;
    let (artifact, bytes) = archive(&[("Pulumi.yaml", NODE), ("package.json", "{}")]);
    assert!(!workspace.put_archive(artifact.clone(), bytes.clone()).await.unwrap());
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    assert!(!workspace.path("share/workspace/node_modules").exists(), "the init container has no CLI");

    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, None, "no source is reported before its installation");
    let failure = workspace.until_installed(&artifact).await.unwrap_err();
    assert!(failure.contains("no such package: left-pad"), "{failure}");
    std::fs::write(workspace.path("share/workspace/mended"), "").unwrap();
    workspace.until("the dependencies are installed", |status| status.artifact.as_ref() == Some(&artifact)).await;
    assert!(workspace.path("share/workspace/node_modules").is_dir());
    assert!(workspace.path("share/workspace/mended").exists(), "the source directory is not replaced");

    workspace.terminate();
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, Some(artifact), "the source is recorded");
}

/// Returns the descriptor of a source in the pod. Such a source has no archive.
fn in_pod(source: InPod, directory: &str) -> proto::Artifact {
    proto::Artifact { digest: source.digest().to_string(), directory: directory.to_owned() }
}

const PROGRAM: &str = "name: example\nruntime: yaml\noutputs: {greeting: hello}\n";

#[tokio::test]
async fn a_directory_of_the_image_can_be_the_source_even_after_a_restart() {
    if !has_pulumi("a_directory_of_the_image_can_be_the_source_even_after_a_restart") {
        return;
    }
    let mut workspace = Workspace::start().await;
    let place = workspace.path("image/app");
    let from_root = place.to_str().unwrap().trim_start_matches('/').to_owned();
    let artifact = in_pod(InPod::Image, &from_root);
    let refusal = workspace.put_archive(artifact.clone(), Vec::new()).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("the image has no Pulumi project in /"), "{refusal}");

    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("Pulumi.yaml"), PROGRAM).unwrap();
    assert!(!workspace.put_archive(artifact.clone(), Vec::new()).await.unwrap());
    assert!(workspace.put_archive(artifact.clone(), Vec::new()).await.unwrap(), "the source is unchanged");
    assert_eq!(workspace.status().await.artifact, Some(artifact.clone()));
    let request = workspace.request(&[("greeting", "\"one\"")]).await;
    workspace.run(&request).await.unwrap();
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), proto::Outcome::Succeeded, "{}", result.message);
    assert!(
        std::fs::read_to_string(place.join("Pulumi.dev.yaml")).unwrap().contains("one"),
        "the settings are in the project directory"
    );
    workspace.terminate();
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, None, "the image of the container is unchanged");
    workspace.put_archive(artifact.clone(), Vec::new()).await.unwrap();
    assert_eq!(workspace.status().await.artifact, Some(artifact));
}

#[tokio::test]
async fn files_prepared_by_init_containers_can_be_the_source() {
    let cli = "case \"$*\" in *install*) mkdir -p node_modules;; esac";
    let mut workspace = Workspace::start_with(Some(cli), &[]).await;
    let artifact = in_pod(InPod::InitContainers, "");
    let refusal = workspace.put_archive(artifact.clone(), Vec::new()).await.unwrap_err();
    assert!(refusal.message.contains("no init container has put a Pulumi project into"), "{refusal}");

    let place = workspace.path("share/workspace");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("Pulumi.yaml"), NODE).unwrap();
    std::fs::write(place.join("package.json"), "{}").unwrap();
    assert!(!workspace.put_archive(artifact.clone(), Vec::new()).await.unwrap());
    workspace.until_installed(&artifact).await.unwrap();
    assert!(place.join("node_modules").is_dir(), "dependencies are installed in the project directory");
    let (other, bytes) = archive(&[("Pulumi.yaml", YAML)]);
    let refusal = workspace.put_archive(other, bytes).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("another source requires another pod"), "{refusal}");
    assert!(place.join("package.json").is_file(), "the files of the init containers are not replaced");

    workspace.terminate();
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, Some(artifact), "the source is recorded");
}

#[tokio::test]
async fn a_project_file_alone_needs_no_dependency_installation() {
    let workspace = Workspace::start_with(Some("echo it must not be called >&2; exit 1"), &[]).await;
    let artifact = workspace.put(NODE).await;
    workspace.until_installed(&artifact).await.unwrap();
}

/// A destroy does not run the program, so the destroy needs no language host for the project's runtime.
#[tokio::test]
async fn destroy_needs_only_the_project_file() {
    if !has_pulumi("destroy_needs_only_the_project_file") {
        return;
    }
    let workspace = Workspace::start().await;
    let step = "resources: {step: {type: 'testing:index:Step', properties: {name: step, value: one}}}\n";
    workspace.put(&format!("{YAML}{step}")).await;
    let up = workspace.request(&[]).await;
    workspace.run(&up).await.unwrap();
    let (made, _) = workspace.result(&up.id).await;
    assert_eq!(made.outcome(), proto::Outcome::Succeeded, "{}", made.message);

    workspace.put("name: example\nruntime: go\n").await;
    let destroy = proto::RunRequest { kind: proto::OperationKind::Destroy.into(), ..workspace.request(&[]).await };
    workspace.run(&destroy).await.unwrap();
    let (gone, _) = workspace.result(&destroy.id).await;
    assert_eq!(gone.outcome(), proto::Outcome::Succeeded, "{}", gone.message);
    assert_eq!(gone.changes.get("delete"), Some(&2), "the changes include the stack resource: {:?}", gone.changes);
}
