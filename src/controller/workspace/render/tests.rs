//! Tests for rendered objects and rejected templates.

mod service;

use serde_json::{Value, json};

use super::*;
use crate::api::auto::Workspace;
use crate::api::bounds;
use crate::controller::workspace::pod_settings::PodRestrictions;

fn settings() -> PodSettings {
    PodSettings {
        agent_image: "controller:1".to_owned(),
        agent_image_pull_policy: Some("IfNotPresent".to_owned()),
        default_image: "pulumi/pulumi:latest-nonroot".to_owned(),
        default_access_token_secret: None,
        assigns_user: true,
        eviction_protection: true,
        restrictions: PodRestrictions::default(),
        storage: Default::default(),
    }
}

fn workspace(spec: Value) -> Workspace {
    let metadata = json!({"name": "app", "namespace": "team"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("valid Workspace")
}

fn rendered(spec: Value) -> Result<Rendered, SpecError> {
    render("app", "team", &workspace(spec), &settings())
}

fn with_template(pod_template: Value) -> Result<Rendered, SpecError> {
    rendered(json!({"podTemplate": pod_template}))
}

fn template(rendered: &Rendered) -> &Value {
    rendered.stateful_set.pointer("/spec/template").expect("template is set")
}

fn pulumi(rendered: &Rendered) -> &Value {
    let containers = template(rendered)["spec"]["containers"].as_array().expect("containers are set");
    containers.iter().find(|container| container["name"] == "pulumi").expect("container is set")
}

#[test]
fn a_service_a_stateful_set_and_a_disruption_budget_are_rendered() {
    let rendered = rendered(json!({
        "image": "pulumi/pulumi:3",
        "imagePullPolicy": "IfNotPresent",
        "serviceAccountName": "deployer",
        "env": [
            {"name": "PULUMI_BACKEND_URL", "value": "s3://state"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a.secret", "key": "token"}}},
            {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "a.secret", "key": "other"}}},
        ],
    }))
    .expect("renders");
    let pretty = |value: &Value| serde_json::to_string_pretty(value).expect("valid JSON");
    insta::assert_snapshot!("service", pretty(&rendered.service));
    insta::assert_snapshot!("stateful_set", pretty(&rendered.stateful_set));
    insta::assert_snapshot!("budget", pretty(rendered.budget.as_ref().expect("runs are protected")));
}

#[test]
fn the_service_account_is_always_set_and_never_its_deprecated_alias() {
    let rows = [
        (json!({}), "default"),
        (json!({"serviceAccountName": "a"}), "a"),
        (json!({"podTemplate": {"spec": {"serviceAccountName": "b"}}}), "b"),
        (json!({"serviceAccountName": "a", "podTemplate": {"spec": {"serviceAccountName": "b"}}}), "b"),
        (json!({"serviceAccountName": "a", "podTemplate": {"spec": {"serviceAccountName": null}}}), "default"),
        (json!({"podTemplate": {"spec": {"serviceAccount": "c"}}}), "c"),
        (json!({"serviceAccountName": "a", "podTemplate": {"spec": {"serviceAccount": "c"}}}), "a"),
        (json!({"podTemplate": {"spec": {"serviceAccount": ""}}}), "default"),
    ];
    for (spec, expected) in rows {
        let rendered = rendered(spec.clone()).expect("renders");
        let pod = &template(&rendered)["spec"];
        assert_eq!((&pod["serviceAccountName"], pod.get("serviceAccount")), (&json!(expected), None), "{spec}");
    }
}

#[test]
fn a_value_that_kubernetes_cannot_use_is_reported_with_its_field() {
    let container = |field: &str, value: Value| {
        let mut container = json!({"name": "extra", "image": "busybox:1"});
        container[field] = value;
        json!({"podTemplate": {"spec": {"containers": [container]}}})
    };
    let resources = || json!({"limits": {"memory": "1GB"}});
    let cache = json!({"name": "cache", "emptyDir": {"sizeLimit": "10GB"}});
    let rows = [
        (
            json!({"resources": resources()}),
            "invalid spec.containers[pulumi].resources.limits.memory of the pod: \"1GB\"",
        ),
        (
            container("resources", resources()),
            "invalid spec.containers[extra].resources.limits.memory of the pod: \"1GB\"",
        ),
        (json!({"podTemplate": {"spec": {"volumes": [cache]}}}), "invalid spec.volumes[cache].emptyDir.sizeLimit"),
        (json!({"image": "Not An Image"}), "invalid image of container pulumi: \"Not An Image\""),
        (container("image", json!("busybox:")), "invalid image of container extra: \"busybox:\""),
    ];
    for (spec, expected) in rows {
        let error = rendered(spec).expect_err("should be rejected").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn the_error_for_a_template_above_the_size_limit_names_the_template() {
    let large = |bytes: usize| json!({"metadata": {"labels": {"a": "x".repeat(bytes)}}});
    let result = |spec: Value| rendered(spec).expect_err("should be rejected").to_string();
    let message = result(json!({"podTemplate": large(bounds::TEMPLATE_BYTES)}));
    assert!(
        message.starts_with("podTemplate must be at most 262144 bytes") && message.contains("but has 2621"),
        "{message}"
    );
    for field in ["serviceTemplate", "resources"] {
        let message = result(json!({field: large(bounds::SMALL_TEMPLATE_BYTES)}));
        assert!(message.starts_with(&format!("{field} must be at most 65536 bytes as JSON")), "{message}");
    }
}

#[test]
fn the_number_of_different_referenced_objects_is_limited() {
    let limit = usize::try_from(bounds::REFERENCED_OBJECTS).expect("number in range");
    let with = |objects: usize| {
        let key = |number: usize| json!({"name": format!("object-{number}"), "key": "k"});
        let item = |number: usize| json!({"key": format!("c{number}"), "valueFrom": {"secretKeyRef": key(number)}});
        let config: Vec<Value> = (2..objects).map(item).collect();
        let variable = |name: &str| json!({"name": name, "valueFrom": {"secretKeyRef": key(0)}});
        rendered(json!({
            "env": [variable("A"), variable("B")],
            "envFrom": [{"configMapRef": {"name": "object-0", "optional": true}}],
            "stacks": [{"name": "dev", "config": config}, {"name": "prod", "config": config}],
        }))
    };
    assert!(with(limit).is_ok(), "several references to the same object count once");
    let message = with(limit + 1).expect_err("should be rejected").to_string();
    let expected = "the environment and the configuration reference 201 different Secrets and ConfigMaps, and the \
                    maximum is 200: store the values in fewer objects";
    assert_eq!(message, expected);
}

#[test]
fn only_memory_is_requested_by_default() {
    let cases = [
        (json!(null), json!({"requests": {"memory": "16Mi"}})),
        (json!({"requests": null}), json!({"requests": {"memory": "16Mi"}})),
        (json!({"requests": {"cpu": "1m"}}), json!({"requests": {"cpu": "1m", "memory": "16Mi"}})),
        (json!({"requests": {"memory": "1Gi"}}), json!({"requests": {"memory": "1Gi"}})),
        (json!({"limits": {"memory": "1Gi"}}), json!({"limits": {"memory": "1Gi"}})),
        (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
    ];
    for (requested, expected) in cases {
        let rendered = rendered(json!({"resources": requested})).expect("renders");
        assert_eq!(pulumi(&rendered)["resources"], expected, "{requested}");
    }
}

#[test]
fn the_generated_init_containers_have_the_resources_of_the_pulumi_container() {
    let resources = json!({
        "requests": {"cpu": "100m", "memory": "128Mi", "nvidia.com/gpu": "1"}, "limits": {"memory": "256Mi"},
        "claims": [{"name": "gpu"}],
    });
    let taken_over = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}});
    let own = json!({"requests": {"memory": "32Mi"}});
    let in_template = json!({"spec": {"containers": [{"name": "pulumi", "resources": resources}]}});
    let of_bootstrap = json!({"spec": {"initContainers": [{"name": "bootstrap", "resources": own}]}});
    let with_user = json!({"spec": {"initContainers": [{"name": "mine", "image": "i"}]}});
    let rows = [
        ("default", json!({}), vec![json!({"requests": {"memory": "16Mi"}})]),
        ("resources", json!({"resources": resources}), vec![taken_over.clone()]),
        ("podTemplate", json!({"podTemplate": in_template}), vec![taken_over.clone()]),
        ("own values", json!({"resources": resources, "podTemplate": of_bootstrap}), vec![own]),
        (
            "a user-defined init container",
            json!({"resources": resources, "podTemplate": with_user, "artifact": {"digest": format!("sha256:{}", "0".repeat(64))}}),
            vec![taken_over.clone(), taken_over, Value::Null],
        ),
    ];
    for (name, spec, expected) in rows {
        let rendered = rendered(spec).expect("renders");
        let containers = template(&rendered)["spec"]["initContainers"].as_array().expect("is a list").clone();
        let found: Vec<Value> = containers.iter().map(|container| container["resources"].clone()).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn the_spec_or_else_the_flag_decides_about_the_protection_from_evictions() {
    for (spec, flag, expected) in [
        (json!({}), true, true),
        (json!({}), false, false),
        (json!({"evictionProtection": true}), false, true),
        (json!({"evictionProtection": false}), true, false),
    ] {
        let settings = PodSettings { eviction_protection: flag, ..settings() };
        let rendered = render("app", "team", &workspace(spec.clone()), &settings).expect("renders");
        assert_eq!(rendered.budget.is_some(), expected, "{spec} {flag}");
    }
}

#[test]
fn the_cluster_can_assign_the_user_of_a_pod_that_meets_the_restricted_standard() {
    let restricted = PodRestrictions { is_restricted: true, ..PodRestrictions::default() };
    let settings = PodSettings { assigns_user: false, restrictions: restricted, ..settings() };
    let rendered = render("app", "team", &workspace(json!({})), &settings).expect("meets the standard");
    let text = template(&rendered).to_string();
    assert!(!text.contains("runAsUser") && !text.contains("runAsGroup") && !text.contains("fsGroup"), "{text}");
}

#[test]
fn the_pod_runs_on_linux_and_can_be_evicted_while_it_is_idle_unless_the_user_decides() {
    let of = |template: Value| {
        let rendered = with_template(template).expect("renders");
        let template = self::template(&rendered).clone();
        let annotation = "cluster-autoscaler.kubernetes.io/safe-to-evict";
        (template["spec"]["nodeSelector"].clone(), template["metadata"]["annotations"][annotation].clone())
    };
    assert_eq!(of(json!({})), (json!({"kubernetes.io/os": "linux"}), json!("true")));
    let metadata = json!({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}});
    let spec = json!({"nodeSelector": {"pool": "a"}});
    let expected = (json!({"kubernetes.io/os": "linux", "pool": "a"}), json!("false"));
    assert_eq!(of(json!({"metadata": metadata, "spec": spec})), expected);
}

#[test]
fn a_persistent_volume_replaces_the_share_volume() {
    let claim = |rendered: &Rendered, name: &str| {
        let volumes = template(rendered)["spec"]["volumes"].as_array().expect("volumes are set").clone();
        let volume = volumes.into_iter().find(|volume| volume["name"] == name);
        volume.map(|volume| volume["persistentVolumeClaim"]["claimName"].clone())
    };
    let group = |rendered: &Rendered| template(rendered)["spec"]["securityContext"]["fsGroup"].clone();
    let bootstrap = |rendered: &Rendered| template(rendered)["spec"]["initContainers"][0]["command"].clone();
    let artifact = json!({"digest": crate::artifact::Digest::of(b"a")});
    let nothing = rendered(json!({"artifact": artifact})).expect("renders");
    assert_eq!((claim(&nothing, "share"), group(&nothing)), (Some(Value::Null), Value::Null));

    let volume = json!({"keep": "Volume", "claim": "web"});
    let kept = rendered(json!({"artifact": artifact, "idle": volume})).expect("renders");
    assert_eq!((claim(&kept, "share"), group(&kept)), (Some(json!("web")), json!(1000)));
    let command = bootstrap(&kept);
    assert_eq!(command.as_array().expect("a list")[6..], [json!("--owner"), json!("app")], "{command}");
    let from_init_containers = rendered(json!({"idle": volume})).expect("renders");
    let command = bootstrap(&from_init_containers);
    assert_eq!(command.as_array().expect("a list").last(), Some(&json!("--discard-source")), "{command}");

    let baseline = rendered(json!({"artifact": artifact, "idle": volume, "securityProfile": "baseline"}));
    assert_eq!(group(&baseline.expect("renders")), json!(1000), "bootstrap does not run as root");
    let cached = rendered(json!({"artifact": artifact, "idle": {"keep": "Caches", "claim": "all"}})).expect("renders");
    assert_eq!((claim(&cached, "share"), claim(&cached, "dependency-cache")), (Some(Value::Null), Some(json!("all"))));
    let mounts = &pulumi(&cached)["volumeMounts"];
    let mount = json!({"name": "dependency-cache", "mountPath": "/var/cache/pulumi-controller"});
    assert!(mounts.as_array().expect("a list").contains(&mount), "{mounts}");
    let other = json!({"spec": {"volumes": [{"name": "share", "emptyDir": {}, "persistentVolumeClaim": null}]}});
    let error = rendered(json!({"idle": volume, "podTemplate": other})).expect_err("is rejected").to_string();
    assert_eq!(error, "podTemplate must not change spec.volumes[share]: the controller manages it");
}

#[test]
fn the_pod_template_is_merged_into_the_generated_template() {
    let rendered = with_template(json!({
        "metadata": {"labels": {"team": "blue"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "securityContext": {"fsGroup": 1000},
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {"name": "pulumi", "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                 "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "aFieldOfTheFuture": {"kept": true},
        },
    }))
    .expect("renders");
    let spec = &template(&rendered)["spec"];
    assert_eq!(spec["nodeSelector"], json!({"disk": "ssd", "kubernetes.io/os": "linux"}));
    assert_eq!(spec["securityContext"]["runAsUser"], 1000);
    assert_eq!(spec["securityContext"]["fsGroup"], 1000);
    assert_eq!(spec["aFieldOfTheFuture"], json!({"kept": true}));
    assert_eq!(spec["volumes"].as_array().expect("volumes are set").len(), 4);
    let secret = &pulumi(&rendered)["env"][0]["valueFrom"]["secretKeyRef"];
    assert_eq!(secret, &json!({"name": "s", "key": "k", "optional": true}));
    let labels = &template(&rendered)["metadata"]["labels"];
    assert_eq!(labels["team"], "blue");
    assert_eq!(labels["auto.pulumi.com/workspace-name"], "app");
}

#[test]
fn the_credentials_for_pulumi_cloud_are_mounted_and_protected() {
    let settings = PodSettings { default_access_token_secret: Some("pulumi-cloud".to_owned()), ..settings() };
    let of = |spec: Value| render("app", "team", &workspace(spec), &settings);
    let last_volume = |rendered: &Rendered| {
        let volumes = template(rendered)["spec"]["volumes"].as_array().expect("volumes are set");
        volumes.last().cloned().expect("is not empty")
    };
    let default = of(json!({})).expect("renders");
    assert_eq!(last_volume(&default)["secret"]["secretName"], "pulumi-cloud");
    let without = rendered(json!({})).expect("renders");
    assert_ne!(default.revision_hash, without.revision_hash, "a pod without the volume has no credentials");
    let other_backend = of(json!({"env": [{"name": "PULUMI_BACKEND_URL", "value": "s3://state"}]})).expect("renders");
    assert_eq!(last_volume(&other_backend)["name"], "tls");

    let oidc = json!({"organization": "acme"});
    let login = of(json!({"pulumiCloudOIDC": oidc})).expect("renders");
    let volume = last_volume(&login);
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["audience"], "urn:pulumi:org:acme");
    let mounts = pulumi(&login)["volumeMounts"].as_array().expect("mounts are set");
    assert!(mounts.iter().any(|mount| mount["name"] == volume["name"]), "{mounts:?}");
    let changed = json!({"spec": {"volumes": [{"name": volume["name"], "emptyDir": {}}]}});
    let error = of(json!({"pulumiCloudOIDC": oidc, "podTemplate": changed})).expect_err("should be rejected");
    assert!(error.to_string().contains("the controller manages it"), "{error}");
    let above = json!({"spec": {"containers": [{"name": "pulumi", "volumeMounts": [
        {"name": "mine", "mountPath": "/var/run/secrets/stacks.pulumi.com/oidc/token"},
    ]}]}});
    let error = with_template(above).expect_err("should be rejected");
    assert!(error.to_string().contains("volumeMounts[/var/run/secrets/stacks.pulumi.com/oidc/token]"), "{error}");
}

#[test]
fn the_error_for_an_unsupported_pod_template_field_names_the_field() {
    let unsupported = [
        (json!({"kind": "PodTemplate"}), "kind"),
        (json!({"metadata": {"ownerReferences": []}}), "metadata.ownerReferences"),
        (json!({"spec": {"ephemeralContainers": [{"name": "mine"}]}}), "spec.ephemeralContainers"),
        (json!({"spec": {"hostPID": true}}), "spec.hostPID"),
        (json!({"spec": {"shareProcessNamespace": true}}), "spec.shareProcessNamespace"),
        (json!({"spec": {"restartPolicy": "Never"}}), "spec.restartPolicy"),
    ];
    for (pod_template, field) in unsupported {
        let error = with_template(pod_template).expect_err(field);
        assert_eq!(error.to_string(), format!("podTemplate.{field} is not supported"));
    }
}

#[test]
fn the_error_for_a_protected_pod_template_field_names_the_field() {
    let container = |fields: Value| {
        let mut container = json!({"name": "pulumi"});
        for (name, value) in fields.as_object().expect("is a map") {
            container[name] = value.clone();
        }
        json!({"spec": {"containers": [container]}})
    };
    let mount = |path: &str| container(json!({"volumeMounts": [{"name": "mine", "mountPath": path}]}));
    let init =
        |name: &str, field: &str, value: Value| json!({"spec": {"initContainers": [{"name": name, field: value}]}});
    let protected = [
        (init("bootstrap", "image", json!("mine")), "spec.initContainers[bootstrap].image"),
        (init("bootstrap", "restartPolicy", json!("Always")), "spec.initContainers[bootstrap].restartPolicy"),
        (init("fetch", "command", json!(["sh"])), "spec.initContainers[fetch].command"),
        (init("fetch", "$patch", json!("delete")), "the init container fetch"),
        (json!({"spec": {"initContainers": null}}), "the init container bootstrap"),
        (json!({"spec": {"$patch": "replace", "containers": []}}), "the init container bootstrap"),
        (json!({"metadata": {"labels": {"auto.pulumi.com/component": "x"}}}), "the label auto.pulumi.com/component"),
        (json!({"metadata": {"labels": {"auto.pulumi.com/run": "open"}}}), "the label auto.pulumi.com/run"),
        (
            json!({"metadata": {"annotations": {"auto.pulumi.com/revision-hash": "x"}}}),
            "the annotation auto.pulumi.com/revision-hash",
        ),
        (json!({"spec": {"volumes": [{"name": "share", "emptyDir": {"medium": "Memory"}}]}}), "spec.volumes[share]"),
        (json!({"spec": {"volumes": [{"name": "tls", "$patch": "delete"}]}}), "spec.volumes[tls]"),
        (json!({"spec": {"containers": [{"name": "pulumi", "$patch": "delete"}]}}), "the container pulumi"),
        (json!({"spec": {"containers": null}}), "the container pulumi"),
        (container(json!({"command": ["sh"]})), "spec.containers[pulumi].command"),
        (container(json!({"args": ["x"]})), "spec.containers[pulumi].args"),
        (container(json!({"workingDir": "/"})), "spec.containers[pulumi].workingDir"),
        (
            container(json!({"volumeMounts": [{"mountPath": "/share", "readOnly": true}]})),
            "spec.containers[pulumi].volumeMounts[/share]",
        ),
        (container(json!({"env": [{"name": "POD_UID", "$patch": "delete"}]})), "spec.containers[pulumi].env[POD_UID]"),
        (mount("/share/source/x"), "spec.containers[pulumi].volumeMounts[/share/source/x]"),
        (mount("/share/bin/"), "spec.containers[pulumi].volumeMounts[/share/bin]"),
        (mount("/share//./staging"), "spec.containers[pulumi].volumeMounts[/share/staging]"),
        (mount("/share/cache/../previous"), "spec.containers[pulumi].volumeMounts[/share/previous]"),
        (mount("share/settings/kept"), "spec.containers[pulumi].volumeMounts[/share/settings/kept]"),
        (
            mount("/var/run/pulumi-controller/tls"),
            "spec.containers[pulumi].volumeMounts[/var/run/pulumi-controller/tls]",
        ),
    ];
    for (pod_template, field) in protected {
        let error = with_template(pod_template).expect_err(field);
        assert_eq!(error.to_string(), format!("podTemplate must not change {field}: the controller manages it"));
    }
    let nameless = with_template(json!({"spec": {"volumes": [{"emptyDir": {}}]}})).expect_err("nameless");
    assert_eq!(nameless.to_string(), "podTemplate: spec.volumes[0] must have the merge key `name`");
}

/// Returns the names of the rendered init containers, and the revision hash.
fn with_init_containers(init_containers: &Value, digest: char) -> (Vec<String>, String) {
    let artifact = json!({"digest": format!("sha256:{}", digest.to_string().repeat(64)), "dir": "./infra"});
    let rendered =
        rendered(json!({"artifact": artifact, "podTemplate": {"spec": {"initContainers": init_containers}}}))
            .expect("renders");
    let template = template(&rendered);
    let containers = template["spec"]["initContainers"].as_array().expect("is a list");
    let names = containers.iter().map(|container| container["name"].as_str().expect("name").to_owned()).collect();
    assert_eq!(template["metadata"]["annotations"]["auto.pulumi.com/revision-hash"], json!(rendered.revision_hash));
    (names, rendered.revision_hash)
}

#[test]
fn the_revision_hash_includes_the_source_if_init_containers_need_it() {
    let prepare = json!([{"name": "prepare", "image": "tool:1"}]);
    let (names, first) = with_init_containers(&prepare, 'a');
    assert_eq!(names, ["bootstrap", "fetch", "prepare"]);
    assert_eq!(with_init_containers(&prepare, 'a').1, first);
    assert_ne!(with_init_containers(&prepare, 'b').1, first, "another source requires another pod");

    let proxy = json!([{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}]);
    let (names, first) = with_init_containers(&proxy, 'a');
    assert_eq!(names, ["bootstrap", "proxy"]);
    assert_eq!(
        with_init_containers(&proxy, 'b').1,
        first,
        "no container waits for the source, so another source requires no other pod"
    );
}

#[test]
fn a_template_can_set_resources_of_controller_init_containers() {
    let limits = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    let rendered = with_template(json!({"spec": {"initContainers": [
        {"name": "bootstrap", "resources": limits, "securityContext": {"readOnlyRootFilesystem": true}},
        {"name": "fetch", "resources": limits},
    ]}}))
    .expect("renders");
    let containers = template(&rendered)["spec"]["initContainers"].as_array().expect("is a list");
    assert_eq!(containers.len(), 1, "no container waits for a source");
    assert_eq!(containers[0]["resources"]["limits"], limits["limits"]);
    assert_eq!(containers[0]["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
}

#[test]
fn a_template_can_add_variables_and_mounts_to_the_fetch_container() {
    let rendered = with_template(json!({"spec": {
        "initContainers": [
            {
                "name": "fetch", "env": [{"name": "SSH_KNOWN_HOSTS", "value": "/hosts/known_hosts"}],
                "volumeMounts": [{"name": "hosts", "mountPath": "/hosts"}],
            },
            {"name": "prepare", "image": "tool:1"},
        ],
        "volumes": [{"name": "hosts", "configMap": {"name": "hosts"}}],
    }}));
    assert!(rendered.is_ok(), "{rendered:?}");
    let init =
        |name: &str, field: &str, value: Value| json!({"spec": {"initContainers": [{"name": name, field: value}]}});
    let protected = [
        (init("bootstrap", "env", json!([{"name": "A", "value": "b"}])), "spec.initContainers[bootstrap].env"),
        (init("fetch", "env", json!([{"name": "POD_UID", "value": "b"}])), "spec.initContainers[fetch].env[POD_UID]"),
        (
            init("fetch", "volumeMounts", json!([{"name": "mine", "mountPath": "/share"}])),
            "spec.initContainers[fetch].volumeMounts[/share]",
        ),
        (
            init("fetch", "volumeMounts", json!([{"name": "mine", "mountPath": "/share/staging/x"}])),
            "spec.initContainers[fetch].volumeMounts[/share/staging/x]",
        ),
    ];
    for (pod_template, field) in protected {
        let error = with_template(pod_template).expect_err(field);
        assert_eq!(error.to_string(), format!("podTemplate must not change {field}: the controller manages it"));
    }
}

#[test]
fn harmless_pod_template_changes_are_allowed() {
    let allowed = [
        json!(null),
        json!({}),
        json!({"spec": {"hostPID": false, "shareProcessNamespace": false, "restartPolicy": "Always"}}),
        json!({"spec": {"hostNetwork": true, "dnsPolicy": "None"}}),
        json!({"spec": {"containers": [{"name": "pulumi", "image": "mine", "livenessProbe": {"exec": {}}}]}}),
        json!({"spec": {"containers": [{"name": "pulumi", "volumeMounts": [{"name": "m", "mountPath": "/share/cache"}]}]}}),
    ];
    for pod_template in allowed {
        let rendered = with_template(pod_template.clone());
        assert!(rendered.is_ok(), "{pod_template}: {rendered:?}");
    }
}

#[test]
fn a_restricted_installation_rejects_non_compliant_pods() {
    let restrictions = PodRestrictions { is_restricted: true, ..PodRestrictions::default() };
    let settings = PodSettings { restrictions, ..settings() };
    let result = |spec: Value| render("app", "team", &workspace(spec), &settings).map(drop).map_err(|e| e.to_string());
    let sidecar = |context: Value| json!({"podTemplate": {"spec": {"containers": [{"name": "proxy", "securityContext": context}]}}});
    assert_eq!(
        result(json!({"envFrom": [{"secretRef": {"name": "s"}}]})),
        Ok(()),
        "the rendered pod meets the Pod Security Standard"
    );
    assert_eq!(result(sidecar(json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}))), Ok(()));
    let rows = [
        (sidecar(json!({})), "Privilege Escalation: spec.containers[proxy].securityContext.allowPrivilegeEscalation"),
        (json!({"securityProfile": "baseline"}), "Running as Non-root: spec.initContainers[bootstrap]"),
        (json!({"podTemplate": {"spec": {"hostNetwork": true}}}), "Host Namespaces: spec.hostNetwork"),
        (
            json!({"podTemplate": {"spec": {"securityContext": {"$patch": "replace"}}}}),
            "Seccomp: spec.initContainers[bootstrap]",
        ),
    ];
    for (spec, words) in rows {
        let text = result(spec).expect_err(words);
        assert!(
            text.contains(words) && text.ends_with("this controller runs with --restrict-workspace-pods"),
            "{text}"
        );
    }
}

#[test]
fn a_name_too_long_for_labels_is_rejected() {
    let workspace = workspace(json!({}));
    assert!(render(&"a".repeat(42), "team", &workspace, &settings()).is_ok());
    assert!(render(&"a".repeat(43), "team", &workspace, &settings()).is_err());
}

#[test]
fn the_agent_image_changes_the_stateful_set_but_not_the_revision_hash() {
    let before = rendered(json!({})).expect("renders");
    let newer = PodSettings { agent_image: "controller:2".to_owned(), ..settings() };
    let after = render("app", "team", &workspace(json!({})), &newer).expect("renders");
    assert_eq!(before.revision_hash, after.revision_hash);
    assert_ne!(before.rendered_hash, after.rendered_hash);
}

#[test]
fn user_variables_do_not_override_controller_variables() {
    let rendered = rendered(json!({"env": [{"name": "POD_UID", "value": "mine"}]})).expect("renders");
    let environment = pulumi(&rendered)["env"].as_array().expect("is a list").clone();
    let named: Vec<_> = environment.iter().filter(|variable| variable["name"] == "POD_UID").collect();
    assert_eq!(named.len(), 1);
    assert_eq!(named[0]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.uid");
}

#[test]
fn commands_in_the_pod_have_a_user_and_writable_directories() {
    let read_only = json!({"name": "pulumi", "securityContext": {"readOnlyRootFilesystem": true}});
    let mut with_tmp = read_only.clone();
    with_tmp["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    let mut with_variables = read_only.clone();
    with_variables["env"] = json!([{"name": "TMPDIR", "value": "/mine"}, {"name": "PULUMI_HOME", "value": "/mine"}]);
    let home = "/share/home/.pulumi";
    for (spec, container, expected) in [
        (json!({}), json!({"name": "pulumi"}), [Some("pulumi"), Some(home), None]),
        (json!({}), read_only.clone(), [Some("pulumi"), Some(home), Some("/share/home/.tmp")]),
        (json!({}), with_tmp, [Some("pulumi"), Some(home), None]),
        (json!({}), with_variables, [Some("pulumi"), Some("/mine"), Some("/mine")]),
        (
            json!({"env": [{"name": "USER", "value": "me"}, {"name": "TMPDIR", "value": "/mine"}]}),
            read_only,
            [Some("me"), Some(home), Some("/mine")],
        ),
    ] {
        let mut spec = spec;
        spec["podTemplate"] = json!({"spec": {"containers": [container]}});
        let rendered = rendered(spec.clone()).expect("renders");
        let environment = pulumi(&rendered)["env"].as_array().expect("is a list").clone();
        for (name, expected) in ["USER", "PULUMI_HOME", "TMPDIR"].into_iter().zip(expected) {
            let values = environment.iter().filter(|variable| variable["name"] == name);
            let values: Vec<_> = values.filter_map(|variable| variable["value"].as_str()).collect();
            assert_eq!(values, Vec::from_iter(expected), "{name} in {spec}");
        }
    }
}

#[test]
fn the_agent_gets_the_effective_termination_grace_period() {
    let users = json!({"name": "POD_TERMINATION_GRACE_SECONDS", "value": "1"});
    let container = json!([{"name": "pulumi", "env": [users]}]);
    for (spec, expected) in [
        (json!({}), "600"),
        (json!({"terminationGracePeriodSeconds": 45}), "45"),
        (json!({"terminationGracePeriodSeconds": null}), "30"),
        (json!({"terminationGracePeriodSeconds": 45, "containers": container}), "45"),
    ] {
        let rendered = with_template(json!({"spec": spec})).expect("renders");
        let environment = pulumi(&rendered)["env"].as_array().expect("is a list").clone();
        let values = environment.iter().filter(|variable| variable["name"] == "POD_TERMINATION_GRACE_SECONDS");
        let values: Vec<_> = values.map(|variable| variable["value"].as_str().unwrap_or_default().to_owned()).collect();
        assert_eq!(values, [expected], "{spec}");
    }
}

#[test]
fn a_termination_grace_period_above_the_maximum_is_rejected() {
    let grace = |seconds: u64| with_template(json!({"spec": {"terminationGracePeriodSeconds": seconds}}));
    assert!(grace(14_400).is_ok());
    let error = grace(14_401).expect_err("more than the maximum").to_string();
    assert_eq!(
        error,
        "podTemplate.spec.terminationGracePeriodSeconds: 14401 is more than the maximum of 14400 (4 hours)"
    );
}

#[test]
fn a_sleeping_workspace_has_no_replicas_and_the_same_pod_revision() {
    let awake = workspace(json!({}));
    let mut asleep = awake.clone();
    let sleep = Some(crate::api::auto::WorkspaceSleep::default());
    asleep.status = Some(crate::api::auto::WorkspaceStatus { sleep, ..Default::default() });
    let of = |workspace: &Workspace| render("app", "team", workspace, &settings()).expect("renders");
    let (awake, asleep) = (of(&awake), of(&asleep));
    assert_eq!((awake.replicas, asleep.replicas), (1, 0));
    assert_eq!(asleep.stateful_set.pointer("/spec/replicas"), Some(&json!(0)));
    assert_eq!(awake.revision_hash, asleep.revision_hash);
    assert_ne!(awake.parts_hash, asleep.parts_hash, "the StatefulSet is applied again");
}

#[test]
fn a_workspace_with_a_pooled_pod_has_no_replicas_and_the_same_revision() {
    let awake = workspace(json!({}));
    let with_pod = |uid: &str| {
        let mut workspace = awake.clone();
        let pooled_pod = Some(crate::api::auto::PooledPod { name: "pulumi-pool-a-b".to_owned(), uid: uid.to_owned() });
        workspace.status = Some(crate::api::auto::WorkspaceStatus { pooled_pod, ..Default::default() });
        render("app", "team", &workspace, &settings()).expect("renders")
    };
    let own = render("app", "team", &awake, &settings()).expect("renders");
    let (first, second) = (with_pod("1"), with_pod("2"));
    assert_eq!((own.replicas, first.replicas), (1, 0));
    assert_eq!(own.revision_hash, first.revision_hash);
    assert_eq!(first.rendered_hash, second.rendered_hash, "the StatefulSet is not applied again");
    assert_ne!(first.parts_hash, second.parts_hash, "the Secret of the other pod is read");
}
