//! The example with previews and review environments of pull requests, and the comments that Flux posts.

use std::path::Path;

use serde_json::Value;

use super::Example;
use crate::harness::{Call, Scene, run};

pub static EXAMPLE: Example = Example::new("pull-requests", "greeting", 4);

#[test]
fn pull_requests() {
    run("example-pull-requests", async |scene| {
        let project = EXAMPLE.prepare(scene).await;
        EXAMPLE.run_readme(scene, &project).await;

        let update = "Preview: 1 to update\n- update pulumi:index:Stash memory (input)\n";
        let rename = "Preview: 1 to create, 1 to delete\n- delete pulumi:index:Stash memory\n- create pulumi:index:Stash archive\n";
        let first = until_commented(scene, "preview-7", update).await;
        let second = until_commented(scene, "preview-7", rename).await;
        assert_eq!(marker(&first), marker(&second), "Flux updates the comment with this marker");
        assert!(second.contains("* `revision`: refs/pull/7/head@sha1:"), "{second}");

        let mut markers = Vec::new();
        for event in ["2 created\n", "the Stack expired at ", "2 deleted\n"] {
            markers.push(marker(&until_commented(scene, "review-7", event).await).to_owned());
        }
        markers.dedup();
        assert_eq!(markers.len(), 1, "{markers:?}");
        assert_ne!(markers.first().map(String::as_str), Some(marker(&first)), "each Stack has its own comment");

        let calls = scene.calls().await;
        let is_start = |call: &Call| ["Initial stack", "New commit"].iter().any(|start| comment(call).contains(start));
        assert!(!calls.iter().any(is_start), "a comment about the start of a run: {calls:#?}");
    });
}

/// Waits until Flux has posted a comment about a Stack with this text on the pull request, and returns the comment.
async fn until_commented(scene: &Scene, stack: &str, text: &str) -> String {
    let path = format!("/api/v3/repos/{}/greeting/issues/7/comments", scene.namespace);
    let object = format!("Stack/{}/{stack}\n", scene.namespace);
    let is_match = |call: &Call| {
        let comment = comment(call);
        call.method == "POST" && call.path == path && comment.contains(&object) && comment.contains(text)
    };
    let call = scene.until_called(&format!("the comment {text:?} about {stack}"), is_match).await;
    comment(&call).to_owned()
}

fn comment(call: &Call) -> &str {
    call.body["body"].as_str().unwrap_or_default()
}

/// Returns the first line of a comment. With this line, Flux finds the comment that it updates. The simulated Git provider
/// stores no comments, so Flux posts each version of a comment.
fn marker(comment: &str) -> &str {
    comment.lines().next().unwrap_or_default()
}

/// The test cluster has no Flux Operator, so a test without a cluster compares the ResourceSets with the Kustomizations in
/// the README.
#[test]
fn the_resource_sets_create_the_kustomizations_of_the_readme() {
    let filled = read("resourceset.yaml")
        .replace("<< inputs.id | quote >>", "\"7\"")
        .replace("<< inputs.id >>", "7")
        .replace("<< inputs.provider.namespace >>", EXAMPLE.namespace);
    let sets = filled.split("\n---\n").map(parse).filter(|object| object["kind"] == "ResourceSet");
    let created: Vec<Value> =
        sets.flat_map(|set| set["spec"]["resources"].as_array().cloned().unwrap_or_default()).collect();
    let expected = ["pull-request.yaml", "review.yaml"].map(|name| {
        let mut kustomization = parse(&read(name));
        kustomization["metadata"]["namespace"] = EXAMPLE.namespace.into();
        kustomization
    });
    assert_eq!(created, expected);
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(EXAMPLE.directory).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("valid YAML")
}
