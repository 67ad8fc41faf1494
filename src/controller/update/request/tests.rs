//! Tests for the run bindings and requests.

mod interrupted_runs;

use serde_json::{Value, json};

use super::*;
use crate::api::auto::{ArtifactReference, UpdateSpec, UpdateStatus, WorkspaceSpec, WorkspaceStatus};
use crate::artifact::Digest;

fn pod(spec: Value) -> Pod {
    let containers = json!([{"name": "pulumi", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": "containerd://c"}]);
    let pod =
        json!({"metadata": {"name": "app-workspace-0"}, "spec": spec, "status": {"containerStatuses": containers}});
    serde_json::from_value(pod).expect("valid pod")
}

fn workspace() -> Workspace {
    let mut workspace = Workspace::new("app", WorkspaceSpec::default());
    workspace.status = Some(WorkspaceStatus {
        pod_uid: Some("pod-uid".to_owned()),
        agent_start_id: Some("start".to_owned()),
        ..WorkspaceStatus::default()
    });
    workspace
}

fn update(spec: UpdateSpec) -> Update {
    let (workspace_name, stack_name) = ("app".to_owned(), "dev".to_owned());
    Update::new("app-1", UpdateSpec { workspace_name, stack_name, ..spec })
}

#[test]
fn a_run_binding_contains_host_node_and_container() {
    let rows = [
        (json!({"containers": [], "nodeName": "n1", "hostname": "app-workspace-0"}), "app-workspace-0", "n1"),
        (json!({"containers": [], "hostname": "mine"}), "mine", ""),
        (json!({"containers": []}), "app-workspace-0", ""),
        (json!({"containers": [], "hostNetwork": true, "hostname": "app-workspace-0"}), "", ""),
    ];
    for (spec, host, node) in rows {
        let timeouts = RunTimeouts::default();
        let found = binding(&update(UpdateSpec::default()), &workspace(), &pod(spec), timeouts).expect("run binding");
        assert_eq!((found.host.as_str(), found.node_name.as_str()), (host, node));
        assert_eq!(found.container_id, "containerd://c");
    }
}

#[test]
fn a_run_without_an_artifact_is_bound_to_the_installed_artifact() {
    let digest = |content: &str| Digest::of(content.as_bytes());
    let artifact =
        |content: &str| ArtifactReference { digest: digest(content), revision: String::new(), dir: String::new() };
    let mut workspace = workspace();
    workspace.status.as_mut().expect("value is set").artifact = Some(artifact("a"));
    let mut update = update(UpdateSpec::default());
    let timeouts = RunTimeouts::default();
    let binding = binding(&update, &workspace, &pod(json!({"containers": []})), timeouts).expect("run binding");
    assert_eq!(binding.artifact, Some(artifact("a")));
    update.status = Some(UpdateStatus { run: Some(binding.clone()), ..UpdateStatus::default() });
    // If the artifact of the Workspace changes, the artifact of the run remains unchanged.
    workspace.status.as_mut().expect("value is set").artifact = Some(artifact("b"));
    let request = run(&update, &workspace, &binding, Vec::new(), RunTimeouts::default()).expect("valid");
    assert_eq!(request.artifact.map(|artifact| artifact.digest), Some(digest("a").to_string()));
    // An earlier controller version started the run, and did not record the artifact in the binding.
    update.spec.artifact = Some(artifact("c"));
    update.status = Some(UpdateStatus { run: Some(RunBinding::default()), ..UpdateStatus::default() });
    assert_eq!(update.artifact(), Some(&artifact("c")));
}

#[test]
fn missing_or_invalid_spec_fields_are_reported_by_name() {
    let whole = json!({"workspaceName": "app", "stackName": "dev", "type": "refresh"});
    let rows = [
        (json!({}), None),
        (json!({"workspaceName": ""}), Some("spec.workspaceName is required")),
        (json!({"stackName": ""}), Some("spec.stackName is required")),
        (json!({"stackName": "a/b/c/d"}), Some("spec.stackName: invalid stack name \"a/b/c/d\"")),
        (
            json!({"workspaceName": "../secrets/a"}),
            Some("invalid spec.workspaceName \"../secrets/a\": must be the name"),
        ),
        (json!({"type": "import"}), Some("invalid spec.type: must be up, preview, refresh or destroy")),
        (json!({"ttlAfterCompleted": "soon"}), Some("invalid spec.ttlAfterCompleted \"soon\": must be a duration")),
    ];
    for (changes, expected) in rows {
        let mut spec = whole.clone();
        spec.as_object_mut().expect("is a map").extend(changes.as_object().expect("is a map").clone());
        let update = Update::new("by-hand", serde_json::from_value(spec).expect("valid object"));
        let error = check(&update).err().map(|error| error.to_string());
        assert_eq!(
            error.as_deref().map(|error| expected.is_some_and(|w| error.starts_with(w))),
            expected.map(|_| true),
            "{error:?}"
        );
    }
    let long = Update::new(&"a".repeat(64), serde_json::from_value(whole).expect("valid object"));
    assert!(check(&long).is_err_and(|error| error.to_string().contains("at most 63 characters")));
    let empty: UpdateSpec = serde_json::from_value(json!({})).expect("an object of another controller can be read");
    assert_eq!(empty.kind, UpdateKind::Unknown);
}

#[test]
fn the_run_request_lists_directories_that_must_not_be_empty() {
    let mut workspace = workspace();
    let env_from = json!([{"secretRef": {"name": "aws"}}, {"configMapRef": {"name": "defaults"}}]);
    workspace.spec.env_from = serde_json::from_value(env_from).expect("is a list");
    let binding = RunBinding { empty_references: vec!["ConfigMap/defaults".to_owned()], ..RunBinding::default() };
    let request =
        run(&update(UpdateSpec::default()), &workspace, &binding, Vec::new(), RunTimeouts::default()).expect("valid");
    assert_eq!(request.required_directories, ["/var/run/secrets/stacks.pulumi.com/secrets/aws"]);
    assert_eq!(required_protocol_version(&update(UpdateSpec::default()), &workspace), 0);
    let mut waits = update(UpdateSpec::default());
    let now = jiff::Timestamp::UNIX_EPOCH;
    waits.status =
        Some(crate::controller::update::status::waiting(&waits, update_reason::REFERENCE_NOT_FOUND, "waits", now));
    assert_eq!(required_protocol_version(&waits, &workspace), 3, "the object is created after the pod");
}

#[test]
fn the_login_of_a_run_covers_its_timeout_and_requires_a_newer_agent() {
    let mut workspace = workspace();
    let oidc = json!({"organization": "acme", "user": "jane"});
    workspace.spec.pulumi_cloud_oidc = Some(serde_json::from_value(oidc).expect("valid"));
    let update = update(UpdateSpec { timeout: Some("2h".to_owned()), ..UpdateSpec::default() });
    let timeouts = RunTimeouts { default: Duration::ZERO, maximum: Duration::from_secs(3600) };
    let request = run(&update, &workspace, &RunBinding::default(), Vec::new(), timeouts).expect("valid");
    let login = request.oidc_login.expect("has a login");
    assert_eq!((login.organization.as_str(), login.user.as_str(), login.expiration_seconds), ("acme", "jane", 7200));
    assert_eq!(required_protocol_version(&update, &workspace), 5);
}

#[test]
fn a_cached_update_requires_the_same_agent_as_the_update() {
    let digest = Digest::of(b"plan");
    let rows = [
        json!({}),
        json!({"target": ["urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"]}),
        json!({"replace": ["urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"]}),
        json!({"type": "destroy"}),
        json!({"type": "destroy", "appliedStack": {"name": "dev", "backend": "s3://state"}}),
        json!({"appliedStack": {"name": "acme/dev"}}),
        json!({"appliedByOthers": [{"owner": "web", "name": "dev", "project": "web", "backend": "s3://state"}]}),
        json!({"type": "preview", "savePlan": true}),
        json!({"type": "preview", "previewOf": "destroy"}),
        json!({"plan": {"updateName": "app-0", "fileDigest": digest}}),
        json!({"timeout": "1h"}),
        json!({"idleTimeout": "1h"}),
        json!({"timeout": "soon", "target": ["urn"]}),
        json!({"pendingCreates": "Stop"}),
        json!({"type": "import"}),
        json!({"message": "a long story", "artifact": {"digest": digest, "revision": "r"}}),
    ];
    let mut versions = std::collections::BTreeSet::new();
    for row in rows {
        let mut spec = json!({"workspaceName": "app", "stackName": "dev", "type": "up"});
        spec.as_object_mut().expect("is a map").extend(row.as_object().expect("is a map").clone());
        let whole = Update::new("app-1", serde_json::from_value(spec).expect("valid object"));
        let mut cached = whole.clone();
        crate::runtime::watch::strip_update(&mut cached);
        let required = required_protocol_version(&whole, &workspace());
        assert_eq!(required_protocol_version(&cached, &workspace()), required, "{row}");
        versions.insert(required);
    }
    assert!(versions.len() > 4, "{versions:?}");
}

#[test]
fn timeouts_and_user_decisions_are_passed_to_the_agent() {
    let spec = UpdateSpec {
        timeout: Some("1m30s".to_owned()),
        idle_timeout: Some("500ms".to_owned()),
        pending_creates: Some(PendingCreates::Clear),
        lock_recovery: LockRecovery::Manual,
        ..UpdateSpec::default()
    };
    let of = |spec: UpdateSpec| {
        let timeouts = RunTimeouts { default: Duration::from_secs(3600), maximum: Duration::from_secs(7200) };
        run(&update(spec), &workspace(), &RunBinding::default(), Vec::new(), timeouts).expect("valid")
    };
    let request = of(spec);
    assert_eq!((request.timeout_seconds, request.idle_timeout_seconds, request.lock_recovery), (90, 1, false));
    assert_eq!(request.pending_creates(), proto::PendingCreates::Clear);
    let none = of(UpdateSpec::default());
    assert_eq!((none.timeout_seconds, none.idle_timeout_seconds, none.lock_recovery), (3600, 0, true));
    let unlimited = of(UpdateSpec { timeout: Some("0s".to_owned()), ..UpdateSpec::default() });
    assert_eq!(unlimited.timeout_seconds, 7200, "the timeout is limited to the maximum");
    assert_eq!(none.pending_creates(), proto::PendingCreates::Unspecified);
    let wrong = update(UpdateSpec { idle_timeout: Some("soon".to_owned()), ..UpdateSpec::default() });
    let error = idle_timeout(&wrong).expect_err("should be rejected").to_string();
    assert!(error.contains("spec.idleTimeout") && error.contains("\"soon\""), "{error}");
}

#[test]
fn the_metadata_of_the_source_is_limited_and_passed_to_the_agent() {
    let metadata = SourceMetadata {
        head: Some("1a2b".to_owned()),
        message: Some("Add a bucket\n\nIt stores logs.".to_owned()),
        author: Some(format!("Ada\0{}", "a".repeat(2000))),
        ..SourceMetadata::default()
    };
    let of = |source: Option<SourceMetadata>| {
        let update = update(UpdateSpec { source: source.map(Box::new), ..UpdateSpec::default() });
        run(&update, &workspace(), &RunBinding::default(), Vec::new(), RunTimeouts::default()).expect("valid").source
    };
    let expected = proto::SourceMetadata {
        head: "1a2b".to_owned(),
        message: "Add a bucket".to_owned(),
        author: format!("Ada{}", "a".repeat(1021)),
        ..proto::SourceMetadata::default()
    };
    assert_eq!(of(Some(metadata)), Some(expected));
    assert_eq!(of(None), None);
}

#[test]
fn the_maximum_timeout_limits_the_spec_and_the_default_timeout() {
    use TimeoutSource::{Default, Maximum, Spec};
    // Each row contains the default timeout, the maximum timeout, `spec.timeout`, and the timeout that applies.
    let rows = [
        (10, 60, None, (10, Default)),
        (10, 60, Some(30), (30, Spec)),
        (10, 60, Some(60), (60, Spec)),
        (10, 60, Some(61), (60, Maximum)),
        (10, 60, Some(0), (60, Maximum)),
        (0, 60, None, (60, Maximum)),
        (90, 60, None, (60, Maximum)),
        (10, 0, Some(0), (0, Spec)),
        (0, 0, None, (0, Default)),
    ];
    for (default, maximum, spec, (duration, source)) in rows {
        let seconds = Duration::from_secs;
        let timeouts = RunTimeouts { default: seconds(default), maximum: seconds(maximum) };
        let expected = RunTimeout { duration: seconds(duration), source };
        assert_eq!(timeouts.of(spec.map(seconds)), expected, "{timeouts:?}, spec.timeout {spec:?}");
    }
}

#[test]
fn a_bound_run_keeps_its_timeout_when_its_update_changes() {
    use TimeoutSource::{Maximum, Spec};
    let seconds = Duration::from_secs;
    let (timeouts, pod) = (RunTimeouts { default: seconds(60), maximum: seconds(600) }, pod(json!({"containers": []})));
    // The second value matches the pattern in the CRD schema, but the controller cannot represent this duration.
    for (changed, without_bound) in [("40s", (40, Spec)), ("99999999999999999999h", (600, Maximum))] {
        let mut update = update(UpdateSpec { timeout: Some("90s".to_owned()), ..UpdateSpec::default() });
        let binding = binding(&update, &workspace(), &pod, timeouts).expect("run binding");
        assert_eq!(binding.timeout.as_deref(), Some("1m30s"));
        update.status = Some(UpdateStatus { run: Some(binding), ..UpdateStatus::default() });
        assert_eq!(timeout(&update, timeouts), RunTimeout { duration: seconds(90), source: Spec });
        update.spec.timeout = Some(changed.to_owned());
        assert_eq!(timeout(&update, timeouts), RunTimeout { duration: seconds(90), source: Spec }, "{changed}");
        assert_eq!(timeout(&update, RunTimeouts::default()).duration, seconds(90), "{changed}, with other flags");
        // An earlier version of the controller recorded the binding.
        update.status.as_mut().expect("value is set").run = Some(RunBinding::default());
        let (duration, source) = without_bound;
        assert_eq!(timeout(&update, timeouts), RunTimeout { duration: seconds(duration), source }, "{changed}");
    }
    let mut unlimited = update(UpdateSpec { timeout: Some("0s".to_owned()), ..UpdateSpec::default() });
    let binding = binding(&unlimited, &workspace(), &pod, RunTimeouts::default()).expect("run binding");
    assert_eq!(binding.timeout.as_deref(), Some("0s"));
    unlimited.status = Some(UpdateStatus { run: Some(binding), ..UpdateStatus::default() });
    assert_eq!(timeout(&unlimited, timeouts).duration, Duration::ZERO, "the run was bound without a timeout");
}
