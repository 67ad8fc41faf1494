//! Tests runs with which other clients interfere. Another run holds the stack lock, a user runs a command in the pod,
//! or an administrator drains the node.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{self, PROGRESSING, READY, RECONCILING, stack_reason, update_reason};
use pulumi_controller::api::names::{ANNOTATION_REQUESTED_AT, LABEL_RUN, RUN_OPEN, workspace_object};
use serde_json::json;

use crate::harness::{Poll, Program, Scene, WaitLimit, condition, has_condition, once, run, wait_until};
use crate::runs_parts::{evict, exec, shell_in_pod, slow};

#[test]
fn a_kubectl_exec_command_starts_in_the_program_directory() {
    run("exec", async |scene| {
        let source = scene.source("app").await;
        let program = |word: &str| {
            let program = Program::new("exec").output("result", json!(word));
            [program.file("infra/prod/Pulumi.yaml"), program.file("other/Pulumi.yaml")]
        };
        let commit = source.push(&program("one")).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.flux_source.as_mut().expect("Flux source").dir = Some("infra/prod".to_owned());
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        let pod = main.pod_and_restarts().await;
        let name = main.get().await.spec.stack;
        assert_eq!(
            exec(scene, "main", &["pulumi", "stack", "--show-name"]).await.trim(),
            name,
            "the stack is selected"
        );
        assert!(exec(scene, "main", &["pulumi", "stack", "ls"]).await.contains(&name));

        let commit = source.push(&program("two")).await;
        main.until_applied(&commit).await;
        assert_eq!(exec(scene, "main", &["pulumi", "stack", "output", "result"]).await.trim(), "two");
        assert!(exec(scene, "main", &["cat", "Pulumi.yaml"]).await.contains("two"), "the new source is installed");
        assert_eq!(main.pod_and_restarts().await, pod);
    });
}

#[test]
fn a_run_waits_for_a_foreign_lock_and_reports_its_holder() {
    run("locked", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("locked", 60).files()).await;
        let other = scene.start(scene.stack("other", &source)).await;
        other.log.wait_for("create", "slow", "begin").await;
        // A Stack with the same Pulumi stack and backend in another namespace is not a duplicate, because the
        // controller compares only Stacks in the same namespace.
        let elsewhere = Scene::new("locked-too").await;
        source.track_in(&elsewhere).await;
        let mut same = elsewhere.stack("main", &source);
        same.spec.stack = other.get().await.spec.stack;
        let main = elsewhere.start(same).await;
        let locked = main
            .until("to report the holder of the lock", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_CONFLICT)
                    && has_condition(stack, RECONCILING, "True", stack_reason::UPDATE_CONFLICT)
            })
            .await;
        let message = condition(&locked, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("other-workspace-0") && !message.contains(" ago"), "{message}");
        // A second run fails because of the same lock.
        main.annotate(ANNOTATION_REQUESTED_AT, "now").await;
        main.until("to have found the lock twice", WaitLimit::Run, |stack| {
            stack.status.as_ref().and_then(|status| status.last_update.as_ref()).is_some_and(|last| last.conflicts == 2)
        })
        .await;
        let events = main.until_event("StackUpdateConflictDetected").await;
        let warnings: Vec<_> = events.iter().filter(|event| event.type_.as_deref() == Some("Warning")).collect();
        let reasons: Vec<_> = warnings.iter().filter_map(|event| event.reason.as_deref()).collect();
        assert_eq!(reasons, ["StackUpdateConflictDetected"], "one event for the lock: {warnings:#?}");
        assert_eq!(warnings[0].count.unwrap_or(1), 1, "{warnings:#?}");

        other.until_applied(&commit).await;
        let stack = main.until_applied_within(WaitLimit::Long, &commit).await;
        assert_eq!(stack.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
        assert_eq!(main.log.operations().await, once(&["create slow"]));
        elsewhere.remove().await;
    });
}

#[test]
fn a_run_waits_for_a_manual_command_in_the_pod_and_reports_it() {
    run("session", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("session", 12).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        // The command needs no options, because the pod contains the project, the stack, the backend and the
        // credentials.
        let mut destroying = shell_in_pod(scene, "main", "cd /share/workspace && pulumi destroy --yes --skip-preview")
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("kubectl starts");
        main.log.wait_for("delete", "slow", "begin").await;

        main.annotate(ANNOTATION_REQUESTED_AT, "now").await;
        let waits = |stack: &_| {
            let is_reason = |message: &str| message.contains("; up of");
            condition(stack, READY).is_some_and(|ready| is_reason(&ready.message))
        };
        let text = main.until("to report the interactive session", WaitLimit::Reaction, waits).await;
        assert!(has_condition(&text, RECONCILING, "True", stack_reason::STACK_PROCESSING));
        let ended = tokio::time::timeout(WaitLimit::Reaction.limit(), destroying.wait()).await;
        assert!(ended.is_ok_and(|status| status.is_ok_and(|status| status.success())), "the session ended normally");

        let done = main
            .until("to have run afterwards", WaitLimit::Long, |stack| {
                let status = stack.status.clone().unwrap_or_default();
                status.current_update.is_none()
                    && status.last_update.is_some_and(|last| last.inputs.requested_at.as_deref() == Some("now"))
                    && has_condition(stack, READY, "True", stack_reason::PROCESSING_COMPLETED)
            })
            .await;
        assert_eq!(done.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
        assert_eq!(main.log.operations().await, once(&["create slow", "delete slow", "create slow"]));
        let held = scene.timeline.states_of::<Update>().into_iter().any(|update| {
            let conditions = update.status.map(|status| status.conditions).unwrap_or_default();
            conditions::find(&conditions, PROGRESSING).is_some_and(|c| c.reason == update_reason::INTERACTIVE_SESSION)
        });
        assert!(held, "the Update reports the open session");
        assert_eq!(main.updates().await.len(), 2);
    });
}

#[test]
fn a_drain_waits_for_an_open_run_but_not_for_an_idle_pod() {
    run("drain", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("drain", 12).files()).await;
        let keep =
            json!({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "karpenter.sh/do-not-disrupt": "false"});
        let mut stack = scene.stack("main", &source);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"]["metadata"]["annotations"] =
            keep.clone();
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "begin").await;
        // The test waits until the pod is running, because the API server can evict a pending pod despite a
        // PodDisruptionBudget.
        wait_until("the kubelet to report a running pod", WaitLimit::Reaction, async || {
            let phase = main.pod().await.status.and_then(|status| status.phase);
            if phase.as_deref() == Some("Running") { Poll::Found(()) } else { Poll::NotYet(format!("{phase:?}")) }
        })
        .await;
        assert_eq!(evict(scene, "main").await, Err(429), "a run is open");

        main.until_applied(&commit).await;
        assert_eq!(main.log.operations().await, once(&["create slow"]));
        let idle = |pod: &Pod| pod.labels().get(LABEL_RUN).map(String::as_str) != Some(RUN_OPEN);
        wait_until("the pod to be idle", WaitLimit::Reaction, async || match main.pod().await {
            pod if idle(&pod) => Poll::Found(()),
            pod => Poll::NotYet(format!("{:?}", pod.metadata)),
        })
        .await;
        let idle = main.pod().await;
        for (name, value) in keep.as_object().expect("is a map") {
            assert_eq!(idle.annotations().get(name).map(String::as_str), value.as_str(), "the value of the user");
        }
        let before = idle.uid();
        assert_eq!(evict(scene, "main").await, Ok(()), "an idle pod can be evicted");
        wait_until("a new pod to replace it", WaitLimit::Run, async || {
            match scene.api::<Pod>().get_opt("main-workspace-0").await {
                Ok(Some(pod)) if pod.uid() != before => Poll::Found(()),
                other => Poll::NotYet(format!("{:?}", other.map(|pod| pod.map(|pod| pod.metadata)))),
            }
        })
        .await;

        main.delete().await;
        main.until_gone().await;
        let budgets = scene.list::<PodDisruptionBudget>().await;
        assert!(
            !budgets.iter().any(|budget| budget.name_any() == workspace_object("main")),
            "the PodDisruptionBudget is deleted with the Workspace"
        );
    });
}
