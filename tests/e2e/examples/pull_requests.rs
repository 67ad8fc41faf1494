//! Tests the example with previews and review environments for pull requests, and the comments that Flux posts. The
//! Flux Operator processes the ResourceSets of the example with a simulated GitHub.

use std::path::Path;

use serde_json::{Value, json};

use super::Example;
use super::project::Project;
use crate::harness::{Call, FaultServer, Scene, run};

pub static EXAMPLE: Example = Example::new("pull-requests", "greeting", 4);

#[test]
fn pull_requests() {
    run("example-pull-requests", async |scene| {
        let project = EXAMPLE.prepare(scene).await;
        // Skips step 8, because another test runs this step with the Flux Operator.
        EXAMPLE.run_steps(scene, &project, &steps(|step| !step.starts_with("8. ")), EXAMPLE.outputs).await;

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

/// Waits until Flux has posted a comment that concerns a Stack and contains this text, and returns the comment.
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

/// Returns the first line of a comment, with which Flux identifies the comment to update. The simulated Git provider
/// stores no comments, so Flux posts a new comment for each version.
fn marker(comment: &str) -> &str {
    comment.lines().next().unwrap_or_default()
}

/// Creates branches and pull requests that change different values.
const OPEN_PULL_REQUESTS: &str = r#"
for number in 7 8 9; do
    git -C repository checkout --quiet -B "edition-$number" origin/main
    sed -i "s/edition: 1/edition: $number/" repository/program/Pulumi.yaml
    git -C repository commit --quiet --all --message "Publish edition $number"
    git -C repository push --quiet origin "HEAD:edition-$number" "HEAD:refs/pull/$number/head"
done
"#;

#[test]
fn resource_sets_create_and_delete_the_stacks_of_labeled_pull_requests() {
    run("example-resource-sets", async |scene| {
        let project = EXAMPLE.prepare(scene).await;
        EXAMPLE.run_steps(scene, &project, &steps(|step| step.starts_with("1. ") || step.starts_with("2. ")), 0).await;
        project.bash(OPEN_PULL_REQUESTS).await;
        list_pull_requests(scene, &[(7, &["preview", "review"]), (8, &["preview"]), (9, &["review"])]).await;
        EXAMPLE.run_steps(scene, &project, &steps(|step| step.starts_with("8. ")), 0).await;

        // `kubectl wait` can wait only until a single object exists.
        for stack in ["preview-7", "preview-8", "review-7"] {
            kubectl(scene, &project, &format!("wait --for=create --timeout=2m stack/{stack}")).await;
        }
        let ready = "wait --for=condition=Ready --timeout=5m stack/preview-7 stack/preview-8 stack/review-7";
        kubectl(scene, &project, ready).await;
        assert_eq!(stacks(scene, &project).await, ["greeting", "preview-7", "preview-8", "review-7"]);
        let sentence = kubectl(scene, &project, "get stack review-7 -o jsonpath={.status.outputs.sentence}").await;
        assert!(sentence.ends_with("edition 7."), "{sentence}");
        for (stack, number) in [("preview-7", "7"), ("preview-8", "8"), ("review-7", "7")] {
            let annotation = r"jsonpath={.metadata.annotations.event\.toolkit\.fluxcd\.io/change_request}";
            let found = kubectl(scene, &project, &format!("get stack {stack} -o '{annotation}'")).await;
            assert_eq!(found, number, "the pull request of {stack}");
        }

        list_pull_requests(scene, &[(8, &["preview"])]).await;
        for name in ["previews", "reviews"] {
            let group = "fluxcd.controlplane.io";
            let plural = "resourcesetinputproviders";
            scene.source_object(group, "ResourceSetInputProvider", plural, name).request_reconciliation().await;
        }
        kubectl(scene, &project, "wait --for=delete --timeout=5m stack/preview-7 stack/review-7").await;
        assert_eq!(stacks(scene, &project).await, ["greeting", "preview-8"]);

        kubectl(scene, &project, "delete -f resourceset.yaml").await;
        kubectl(scene, &project, "wait --for=delete --timeout=5m stack/preview-8").await;
        EXAMPLE.run_steps(scene, &project, &steps(|step| step.starts_with("9. ")), 0).await;
    });
}

/// Returns the steps of the README that `is_selected` selects.
fn steps(is_selected: impl Fn(&str) -> bool) -> String {
    let readme = read("README.md");
    let selected: Vec<&str> = readme.split("\n## ").filter(|step| is_selected(step)).collect();
    selected.join("\n")
}

/// Sets the open pull requests that the simulated GitHub lists, and their labels.
async fn list_pull_requests(scene: &Scene, open: &[(u32, &[&str])]) {
    let pulls = open.iter().map(|(number, labels)| {
        let labels: Vec<Value> = labels.iter().map(|label| json!({"name": label})).collect();
        let head = json!({"ref": format!("edition-{number}"), "sha": "0".repeat(40)});
        json!({"number": number, "title": "A change", "user": {"login": "ada"}, "head": head, "labels": labels})
    });
    let pulls = Value::Array(pulls.collect());
    drop(FaultServer::of(scene).upload("greeting/pulls", pulls.to_string().into_bytes()).await);
}

async fn kubectl(scene: &Scene, project: &Project, arguments: &str) -> String {
    project.bash(&format!("kubectl --namespace {} {arguments}", scene.namespace)).await
}

/// Returns the names of the Stacks in alphabetical order.
async fn stacks(scene: &Scene, project: &Project) -> Vec<String> {
    let names = kubectl(scene, project, "get stacks -o name").await;
    names.lines().map(|line| line.trim_start_matches("stack.pulumi.com/").to_owned()).collect()
}

/// Compares the objects that the commands of the README create with the objects of the ResourceSets. The test needs no
/// cluster.
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
