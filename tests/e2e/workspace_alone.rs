//! Tests user-created Workspaces: their sources, their templates, and the messages about invalid Workspaces.

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::{Update, UpdatePhase, Workspace};
use pulumi_controller::api::conditions::{PROGRESSING, READY, STALLED, find};
use pulumi_controller::api::names::{PULUMI_CONTAINER, workspace_object, workspace_pod};
use pulumi_controller::api::pulumi::SourceArtifact;
use serde_json::{Value, json};

use crate::by_hand::{
    condition_is, init_container, output, phase, run_update, stack_name, until_ready, until_stalled, until_workspace,
    update, workspace,
};
use crate::harness::{Poll, Program, ProviderLog, Scene, WaitLimit, api_call, in_scene, once, run, wait_until};
use crate::runs_parts::{exec, until_update};

/// Returns a program with one output.
fn with_text(name: &str, word: &str) -> Program {
    Program::new(name).output("result", json!(word))
}

fn flux(artifact: &SourceArtifact) -> Value {
    json!({"url": artifact.url, "digest": artifact.digest})
}

/// Returns a script that writes the project file to a directory.
fn write_script(program: &Program, directory: &str) -> String {
    let file = program.file("Pulumi.yaml").content;
    format!("mkdir -p {directory} && cat >{directory}/Pulumi.yaml <<'END'\n{file}\nEND\n")
}

async fn pod_uid(scene: &Scene, workspace: &str) -> Option<String> {
    let name = workspace_pod(workspace);
    api_call(format!("reading the pod {name}"), scene.api::<Pod>().get(&name)).await.uid()
}

#[test]
fn an_archive_url_can_be_the_source_and_a_new_archive_keeps_the_pod() {
    run("alone-flux", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&with_text("alone-flux", "one").files()).await;
        let artifact = source.artifact_of(&first).await;
        workspace(scene, "main", json!({"flux": flux(&artifact)})).await;
        let ready = until_ready(scene, "main").await;
        let in_place = ready.status.and_then(|status| status.artifact).map(|artifact| artifact.digest.to_string());
        assert_eq!(in_place.as_ref(), Some(&artifact.digest));
        let ran = run_update(scene, "one", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("one"));
        let pod = pod_uid(scene, "main").await;

        let second = source.push(&with_text("alone-flux", "two").files()).await;
        let artifact = source.artifact_of(&second).await;
        scene.patch::<Workspace>("main", json!({"spec": {"flux": flux(&artifact)}})).await;
        until_ready(scene, "main").await;
        let ran = run_update(scene, "two", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("two"));
        assert_eq!(pod_uid(scene, "main").await, pod, "the new source was installed in the same pod");
    });
}

#[test]
fn a_push_to_a_polled_repository_keeps_the_pod() {
    run("alone-git", async |scene| {
        let source = scene.source("app").await;
        let first = source.push_without_notification(&with_text("alone-git", "one").files()).await;
        workspace(scene, "main", json!({"git": {"url": source.url(), "ref": "main"}})).await;
        let ready = until_ready(scene, "main").await;
        let in_place = ready.status.and_then(|status| status.artifact).map(|artifact| artifact.revision);
        assert_eq!(in_place, Some(first.revision()));
        let ran = run_update(scene, "one", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("one"));
        let pod = pod_uid(scene, "main").await;

        let second = source.push_without_notification(&with_text("alone-git", "two").files()).await;
        until_workspace(scene, "main", "to have the pushed revision", WaitLimit::Run, |workspace| {
            let artifact = workspace.status.as_ref().and_then(|status| status.artifact.as_ref());
            condition_is(workspace, READY, "True", &[])
                && artifact.is_some_and(|artifact| artifact.revision == second.revision())
        })
        .await;
        let ran = run_update(scene, "two", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("two"));
        assert_eq!(pod_uid(scene, "main").await, pod, "the new source was installed in the same pod");

        let missing = json!({"spec": {"git": {"ref": "nowhere"}}});
        scene.patch::<Workspace>("main", missing).await;
        until_workspace(scene, "main", "to report that the branch does not exist", WaitLimit::Run, |workspace| {
            condition_is(workspace, READY, "False", &["no branch or tag nowhere"])
                && !condition_is(workspace, STALLED, "True", &[])
        })
        .await;
    });
}

/// A Workspace must not receive another namespace's artifact from the artifact store, even if the user knows the
/// digest.
#[test]
fn artifacts_of_other_namespaces_are_reported_as_unknown() {
    run("team-a", async |team_a| {
        let source = team_a.source("app").await;
        let commit = source.push(&with_text("team-a", "secret").files()).await;
        let artifact = source.artifact_of(&commit).await;
        workspace(team_a, "main", json!({"flux": flux(&artifact)})).await;
        until_ready(team_a, "main").await;
        in_scene("team-b", async |team_b| {
            let unknown = format!("sha256:{}", "0".repeat(64));
            for (name, digest) in [("known", artifact.digest.as_str()), ("unknown", &unknown)] {
                workspace(team_b, name, json!({"artifact": {"digest": digest, "revision": "main@sha1:1"}})).await;
            }
            workspace(team_b, "by-url", json!({"flux": flux(&artifact)})).await;
            let words = ["waiting for source main@sha1:1 to be fetched"];
            for name in ["known", "unknown"] {
                until_workspace(team_b, name, "to report that the artifact is missing", WaitLimit::Run, |workspace| {
                    condition_is(workspace, READY, "False", &words)
                })
                .await;
            }
            until_stalled(team_b, "by-url", &["the source of the artifact is in another namespace"]).await;
            // The status of an Update with this digest contains the same message.
            let reported = async |workspace: &str, digest: &str| {
                let run = json!({"artifact": {"digest": digest, "revision": "main@sha1:1"}});
                update(team_b, workspace, workspace, "up", run).await;
                let waits = |update: &Update| phase(update) == Some(UpdatePhase::Waiting);
                let waiting = until_update(team_b, workspace, "to wait", WaitLimit::Run, waits).await;
                let conditions = waiting.status.unwrap_or_default().conditions;
                let text = find(&conditions, PROGRESSING).map(|text| (text.reason.clone(), text.message.clone()));
                let (reason, message) = text.expect("waiting Update with a reason");
                format!("{reason}: {}", message.replace(workspace, "WORKSPACE"))
            };
            assert_eq!(reported("known", &artifact.digest).await, reported("unknown", &unknown).await);
        })
        .await;
    });
}

#[test]
fn archives_from_forbidden_hosts_or_with_wrong_digests_are_rejected() {
    run("alone-refused", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("alone-refused", "one").files()).await;
        let artifact = source.artifact_of(&commit).await;
        let elsewhere = json!({"url": "http://kubernetes.default.svc/a.tar.gz", "digest": artifact.digest});
        workspace(scene, "main", json!({"flux": elsewhere})).await;
        // A Workspace user must not be able to make the controller send requests to other Services.
        until_stalled(scene, "main", &["kubernetes.default", "neither a Service in the controller's namespace"]).await;

        let other = format!("sha256:{}", "0".repeat(64));
        scene.patch::<Workspace>("main", json!({"spec": {"flux": {"url": artifact.url, "digest": other}}})).await;
        until_workspace(scene, "main", "to report the wrong digest", WaitLimit::Run, |workspace| {
            condition_is(workspace, READY, "False", &["do not match the digest", &other])
                && !condition_is(workspace, STALLED, "True", &[])
        })
        .await;

        scene.patch::<Workspace>("main", json!({"spec": {"flux": {"digest": ""}}})).await;
        until_stalled(scene, "main", &["flux.digest", "a digest is required to verify the artifact"]).await;

        scene.patch::<Workspace>("main", json!({"spec": {"flux": flux(&artifact)}})).await;
        until_ready(scene, "main").await;
    });
}

#[test]
fn two_sources_are_rejected_until_one_of_them_is_removed() {
    run("alone-two", async |scene| {
        let info = json!({"name": "alone-two", "runtime": "yaml"});
        workspace(scene, "main", json!({"local": {"dir": "/app"}, "projectInfo": info})).await;
        until_stalled(scene, "main", &["local and projectInfo are mutually exclusive", "remove one of them"]).await;
        scene.patch::<Workspace>("main", json!({"spec": {"local": null}})).await;
        until_ready(scene, "main").await;
    });
}

#[test]
fn a_destroy_needs_only_the_project_info_in_the_status() {
    run("alone-head", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("alone-head").step("step", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        workspace(scene, "main", json!({"flux": flux(&source.artifact_of(&commit).await)})).await;
        let log = ProviderLog::of(&stack_name(scene));
        run_update(scene, "make", "main", "up", json!({})).await;

        // The runtime is irrelevant, because the destroy neither runs a program nor installs dependencies.
        let info = json!({"name": "alone-head", "runtime": "nodejs"});
        scene.patch::<Workspace>("main", json!({"spec": {"flux": null, "projectInfo": info}})).await;
        until_ready(scene, "main").await;
        run_update(scene, "unmake", "main", "destroy", json!({"remove": true})).await;
        assert_eq!(log.operations().await, once(&["create step", "delete step"]));
    });
}

/// An init container writes the program to a shared directory. The test uses this directory like a directory in the
/// image.
#[test]
fn a_directory_of_the_image_can_be_the_source() {
    run("alone-local", async |scene| {
        let app = json!([{"name": "app", "mountPath": "/app"}]);
        let make =
            init_container(scene, "make", &write_script(&with_text("alone-local", "here"), "/app/infra"), app.clone());
        let template = json!({"spec": {
            "initContainers": [make],
            "containers": [{"name": PULUMI_CONTAINER, "volumeMounts": app}],
            "volumes": [{"name": "app", "emptyDir": {}}],
        }});
        workspace(scene, "main", json!({"local": {"dir": "/app/nowhere"}, "podTemplate": template})).await;
        until_workspace(scene, "main", "to report the directory that it searched", WaitLimit::Run, |workspace| {
            condition_is(workspace, READY, "False", &["the image has no Pulumi project in /app/nowhere"])
        })
        .await;
        scene.patch::<Workspace>("main", json!({"spec": {"local": {"dir": "/app/infra"}}})).await;
        until_ready(scene, "main").await;
        let ran = run_update(scene, "one", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("here"));
        assert!(exec(scene, "main", &["cat", "Pulumi.yaml"]).await.contains("\"alone-local\""));
    });
}

#[test]
fn an_init_container_fills_the_workspace_without_a_source() {
    run("alone-none", async |scene| {
        workspace(scene, "main", json!({})).await;
        until_workspace(scene, "main", "to report that it is empty", WaitLimit::Run, |workspace| {
            let words = ["no source is specified", "no init container has put a Pulumi project"];
            condition_is(workspace, READY, "False", &words)
        })
        .await;
        let share = json!([{"name": "share", "mountPath": "/share"}]);
        let make =
            init_container(scene, "make", &write_script(&with_text("alone-none", "filled"), "/share/workspace"), share);
        let template = json!({"spec": {"initContainers": [make]}});
        scene.patch::<Workspace>("main", json!({"spec": {"podTemplate": template}})).await;
        until_ready(scene, "main").await;
        let ran = run_update(scene, "one", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("filled"));
        assert!(exec(scene, "main", &["cat", "Pulumi.yaml"]).await.contains("\"alone-none\""));
    });
}

#[test]
fn a_stack_without_a_source_runs_files_from_an_init_container() {
    run("stack-none", async |scene| {
        let share = json!([{"name": "share", "mountPath": "/share"}]);
        let script = |word: &str| write_script(&with_text("stack-none", word), "/share/workspace");
        let template = |word: &str| json!({"spec": {"initContainers": [init_container(scene, "make", &script(word), share.clone())]}});
        let mut stack = scene.stack_on("main", "");
        stack.spec.flux_source = None;
        stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"] = template("one");
        let main = scene.start(stack).await;
        let done = main.until_revision("").await;
        assert_eq!(json!(done.status.expect("a status").outputs), json!({"result": "one"}));

        main.change(json!({"spec": {"workspaceTemplate": {"spec": {"podTemplate": template("two")}}}})).await;
        let done = main.until_revision("").await;
        assert_eq!(json!(done.status.expect("a status").outputs), json!({"result": "two"}));
        assert_eq!(main.updates().await.len(), 2);
    });
}

#[test]
fn a_workspace_recovers_when_its_bad_image_is_fixed() {
    run("alone-image", async |scene| {
        let info = json!({"name": "alone-image", "runtime": "yaml"});
        let bad = json!({"projectInfo": info, "image": "127.0.0.1:1/there-is-no-such-image:1"});
        workspace(scene, "main", bad).await;
        until_workspace(scene, "main", "to report the image", WaitLimit::Run, |workspace| {
            condition_is(workspace, READY, "False", &["there-is-no-such-image"])
                && !condition_is(workspace, STALLED, "True", &[])
        })
        .await;
        scene.patch::<Workspace>("main", json!({"spec": {"image": scene.pulumi_image()}})).await;
        until_ready(scene, "main").await;
    });
}

#[test]
fn a_typo_in_a_template_is_reported_until_it_is_fixed() {
    run("alone-typo", async |scene| {
        let info = json!({"name": "alone-typo", "runtime": "yaml"});
        let typo = json!({"spec": {"containers": [{"name": PULUMI_CONTAINER, "imagee": "x"}]}});
        workspace(scene, "main", json!({"projectInfo": info, "podTemplate": typo})).await;
        until_stalled(scene, "main", &["imagee"]).await;
        let wrong = json!({"spec": {"securityContext": {"supplementalGroupsPolicy": "Many"}}});
        scene.patch::<Workspace>("main", json!({"spec": {"podTemplate": null}})).await;
        scene.patch::<Workspace>("main", json!({"spec": {"podTemplate": wrong}})).await;
        until_stalled(scene, "main", &["supplementalGroupsPolicy"]).await;
        let profile = json!({"podTemplate": null, "securityProfile": "privileged"});
        scene.patch::<Workspace>("main", json!({"spec": profile})).await;
        until_stalled(scene, "main", &["securityProfile", "must be restricted or baseline"]).await;
        // This namespace permits only pods that comply with the Pod Security Standard `restricted`.
        scene.patch::<Workspace>("main", json!({"spec": {"securityProfile": "baseline"}})).await;
        until_workspace(scene, "main", "to report the rejected pod", WaitLimit::Run, |workspace| {
            condition_is(workspace, READY, "False", &["violates PodSecurity"])
        })
        .await;
        scene.patch::<Workspace>("main", json!({"spec": {"securityProfile": null}})).await;
        until_ready(scene, "main").await;
    });
}

#[test]
fn a_removed_service_account_is_replaced_by_the_default() {
    run("alone-account", async |scene| {
        let info = json!({"name": "alone-account", "runtime": "yaml"});
        workspace(scene, "main", json!({"projectInfo": info, "serviceAccountName": "there-is-none"})).await;
        until_workspace(scene, "main", "to report the ServiceAccount", WaitLimit::Run, |workspace| {
            condition_is(workspace, READY, "False", &["failed to create the pod", "\"there-is-none\" not found"])
        })
        .await;
        scene.patch::<Workspace>("main", json!({"spec": {"serviceAccountName": null}})).await;
        until_ready(scene, "main").await;
        let pod = api_call("reading the pod".to_owned(), scene.api::<Pod>().get(&workspace_pod("main"))).await;
        assert_eq!(pod.spec.and_then(|spec| spec.service_account_name).as_deref(), Some("default"));
    });
}

#[test]
fn the_baseline_profile_supports_an_image_with_another_user() {
    run("alone-baseline", async |scene| {
        let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
        let namespaces = Api::<Namespace>::all(scene.client.clone());
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&labels));
        let patched = namespaces.patch(&scene.namespace, &parameters, &patch);
        api_call("permitting the baseline profile".to_owned(), patched).await;
        let info = json!({"name": "alone-baseline", "runtime": "yaml"});
        workspace(scene, "main", json!({"projectInfo": info, "securityProfile": "baseline"})).await;
        until_ready(scene, "main").await;
        run_update(scene, "one", "main", "up", json!({})).await;
    });
}

#[test]
fn service_labels_and_annotations_follow_the_template() {
    run("alone-service", async |scene| {
        let info = json!({"name": "alone-service", "runtime": "yaml"});
        let template = json!({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}}});
        workspace(scene, "main", json!({"projectInfo": info, "serviceTemplate": template})).await;
        until_ready(scene, "main").await;
        until_service(scene, (Some("a"), Some("x"))).await;
        let pod = pod_uid(scene, "main").await;
        let other = json!({"metadata": {"labels": {"team": null}, "annotations": {"note": "y"}}});
        scene.patch::<Workspace>("main", json!({"spec": {"serviceTemplate": other}})).await;
        until_service(scene, (None, Some("y"))).await;
        assert_eq!(pod_uid(scene, "main").await, pod, "the pod is not replaced");
    });
}

async fn until_service(scene: &Scene, expected: (Option<&str>, Option<&str>)) {
    let name = workspace_object("main");
    wait_until(format!("the Service to have {expected:?}"), WaitLimit::Reaction, async || {
        match scene.api::<Service>().get(&name).await {
            Ok(service) => {
                let label = service.labels().get("team").map(String::as_str);
                let note = service.annotations().get("note").map(String::as_str);
                if (label, note) == expected {
                    Poll::Found(())
                } else {
                    Poll::NotYet(format!("{:?}", service.metadata))
                }
            }
            Err(error) => Poll::NotYet(error.to_string()),
        }
    })
    .await;
}
