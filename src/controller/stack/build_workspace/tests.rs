//! Tests for the generated Workspace.

use super::*;
use crate::api::pulumi::LiteralRef;
use crate::artifact::Digest;

fn stack(spec: StackSpec) -> Stack {
    let mut stack = Stack::new("app", StackSpec { stack: "org/proj/dev".to_owned(), ..spec });
    stack.metadata.namespace = Some("apps".to_owned());
    stack.metadata.uid = Some("uid-1".to_owned());
    stack
}

fn secret(namespace: Option<&str>) -> ResourceRef {
    let namespace = namespace.map(str::to_owned);
    let secret = Some(SecretSelector { namespace, name: "s".to_owned(), key: "k".to_owned() });
    ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() }
}

fn planned(spec: StackSpec) -> Value {
    let planned = planned_workspace(spec);
    serde_json::to_value(planned).expect("valid JSON")
}

fn artifact() -> ArtifactReference {
    ArtifactReference { digest: Digest::of(b"a"), revision: String::new(), dir: String::new() }
}

fn planned_workspace(spec: StackSpec) -> Workspace {
    workspace(&stack(spec), &artifact()).expect("planned Workspace")
}

#[test]
fn a_stack_is_converted_to_a_workspace() {
    let spec = StackSpec {
        backend: Some("s3://state".to_owned()),
        env_refs: [("TOKEN".to_owned(), secret(Some("apps")))].into(),
        config: [("a".to_owned(), json!(1))].into(),
        ..StackSpec::default()
    };
    let workspace = planned(spec);
    assert_eq!(workspace["spec"]["serviceAccountName"], json!("default"));
    assert_eq!(workspace["spec"]["env"][0], json!({"name": "PULUMI_BACKEND_URL", "value": "s3://state"}));
    assert_eq!(workspace["spec"]["env"][1]["valueFrom"]["secretKeyRef"], json!({"name": "s", "key": "k"}));
    assert_eq!(workspace["spec"]["stacks"][0]["config"][0], json!({"key": "a", "value": 1}));
    assert_eq!(workspace["metadata"]["labels"]["pulumi.com/stack-name"], json!("app"));
    assert_eq!(workspace["metadata"]["ownerReferences"][0]["uid"], json!("uid-1"));
}

#[test]
fn empty_strings_set_no_variables() {
    let empty = || Some(String::new());
    let spec = StackSpec {
        backend: empty(),
        access_token_secret: empty(),
        env_secrets: vec!["aws".to_owned()],
        ..StackSpec::default()
    };
    let workspace = planned_workspace(spec);
    assert_eq!(workspace.spec.env, Vec::<Value>::new());
    assert_eq!(workspace.spec.env_from, [json!({"secretRef": {"name": "aws"}})]);
}

#[test]
fn config_contains_the_values_of_all_config_fields() {
    let spec = json!({
        "stack": "dev",
        "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}},
        "config": {"plain": [1]},
        "configRef": {"map": {"name": "m", "key": "k", "json": true}},
        "secrets": {"inline": "x"},
        "secretsRef": {
            "literal": {"type": "Literal", "literal": {"value": "y"}},
            "secret": {"type": "Secret", "secret": {"name": "s", "key": "k"}},
        },
        "environment": ["org/env"],
        "pathKeys": ["literal"],
    });
    let read = |spec: Value| serde_json::from_value::<StackSpec>(spec).expect("valid spec");
    let planned = planned(read(spec.clone()));
    assert_eq!(
        planned["spec"]["stacks"][0]["config"],
        json!([
            {"key": "inline", "value": "x", "secret": true},
            {"key": "literal", "value": "y", "path": true, "secret": true},
            {"key": "map", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}, "json": true}},
            {"key": "plain", "value": [1]},
            {"key": "secret", "secret": true, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ])
    );
    assert_eq!(planned["spec"]["stacks"][0]["environment"], json!(["org/env"]));
    let refused = |field: &str, value: Value| {
        let mut spec = spec.clone();
        spec[field] = value;
        config(&stack(read(spec))).expect_err("should be rejected").to_string()
    };
    assert_eq!(
        refused("secrets", json!({"plain": "x"})),
        "config key plain is set in both spec.config and spec.secrets; remove one of them"
    );
    let unknown = refused("pathKeys", json!(["other"]));
    assert!(unknown.starts_with("invalid spec.pathKeys: \"other\" is not a key of"), "{unknown}");
    let other = json!({"a": {"type": "Secret", "secret": {"namespace": "other", "name": "s", "key": "k"}}});
    let expected = "invalid spec.secretsRef.a: a Secret in another namespace is not allowed: use a Secret in the \
                    namespace of the Stack";
    assert_eq!(refused("secretsRef", other), expected);
    let env = refused("secretsRef", json!({"a": {"type": "Env", "env": {"name": "A"}}}));
    assert!(env.starts_with("invalid spec.secretsRef.a: types Env and FS are not supported"), "{env}");
}

#[test]
fn a_workspace_template_cannot_change_name_namespace_or_own_labels() {
    let template = json!({"metadata": {"labels": {"team": "a", "pulumi.com/component": "mine"}}});
    let workspace = planned(StackSpec { workspace_template: Some(template), ..StackSpec::default() });
    assert_eq!(workspace["metadata"]["name"], json!("app"));
    assert_eq!(workspace["metadata"]["namespace"], json!("apps"));
    assert_eq!(workspace["metadata"]["labels"]["team"], json!("a"));
    assert_eq!(workspace["metadata"]["labels"]["pulumi.com/component"], json!("stack"));
    let template = json!({"metadata": {"labels": {"$patch": "delete"}}});
    let workspace = planned(StackSpec { workspace_template: Some(template), ..StackSpec::default() });
    assert_eq!(workspace["metadata"]["labels"]["pulumi.com/stack-name"], json!("app"));
}

#[test]
fn the_largest_stack_allowed_by_the_schema_fits_into_its_workspace() {
    let entries = usize::try_from(bounds::ENTRIES).expect("number in range");
    let references = usize::try_from(bounds::REFERENCES).expect("number in range");
    let names =
        |prefix: &str, count: usize| -> Vec<String> { (0..count).map(|number| format!("{prefix}{number}")).collect() };
    let map = |prefix: &str| names(prefix, entries).into_iter();
    let config = ConfigReference { name: "m".to_owned(), key: "k".to_owned(), json: None };
    let workspace = planned_workspace(StackSpec {
        backend: Some("s3://state".to_owned()),
        access_token_secret: Some("token".to_owned()),
        envs: names("env", references),
        env_secrets: names("secret", references),
        env_refs: map("V").map(|name| (name, secret(None))).collect(),
        config: map("c").map(|name| (name, json!(1))).collect(),
        config_ref: map("r").map(|name| (name, config.clone())).collect(),
        secrets: map("s").map(|name| (name, "x".to_owned())).collect(),
        secrets_ref: map("t").map(|name| (name, secret(None))).collect(),
        environment: names("org/env", references),
        ..StackSpec::default()
    });
    let stack = &workspace.spec.stacks[0];
    let counts = [
        (workspace.spec.env.len(), bounds::WORKSPACE_ENV),
        (workspace.spec.env_from.len(), bounds::WORKSPACE_ENV_FROM),
        (stack.config.len(), bounds::WORKSPACE_CONFIG),
        (stack.environment.len(), bounds::WORKSPACE_ENVIRONMENTS),
    ];
    for (found, limit) in counts {
        assert!(found > 0 && u32::try_from(found).expect("number in range") < limit, "{counts:?}");
    }
}

#[test]
fn the_error_about_a_template_that_is_too_large_contains_its_field() {
    let template = json!({"spec": {"podTemplate": {"spec": {"hostname": "x".repeat(bounds::TEMPLATE_BYTES)}}}});
    let spec = StackSpec { workspace_template: Some(template), ..StackSpec::default() };
    let error = workspace(&stack(spec), &artifact()).expect_err("should be rejected").to_string();
    assert_eq!(error, "spec.workspaceTemplate must be at most 262144 bytes as JSON, but has 262193 bytes");
}

#[test]
fn the_error_about_an_invalid_duration_contains_its_field() {
    let fields = ["timeout", "idleTimeout", "interval", "retryInterval"];
    for field in fields {
        let with = |text: &str| -> Stack {
            stack(
                serde_json::from_value(
                    json!({"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}, field: text}),
                )
                .expect("valid spec"),
            )
        };
        assert_eq!(check_times(&with("1h30m")), Ok(()));
        let error = check_times(&with("99999999999999999999h")).expect_err("should be rejected").to_string();
        assert!(error.contains(&format!("spec.{field}")), "{error}");
    }
    let within = json!([{"name": "base", "requirement": {"succeededWithinDuration": "soon"}}]);
    let spec = StackSpec { prerequisites: serde_json::from_value(within).expect("is a list"), ..StackSpec::default() };
    let error = check_times(&stack(spec)).expect_err("should be rejected").to_string();
    assert!(error.contains("spec.prerequisites.base.requirement.succeededWithinDuration: \"soon\""), "{error}");
}

#[test]
fn stack_name_and_backend_are_validated() {
    let with = |name: &str, backend: Option<&str>| {
        let spec = StackSpec { backend: backend.map(str::to_owned), ..StackSpec::default() };
        let mut stack = stack(spec);
        name.clone_into(&mut stack.spec.stack);
        check_address(&stack).map_err(|error| error.to_string())
    };
    for backend in [None, Some(""), Some(" \n"), Some("s3://state"), Some("s3://state\n")] {
        assert_eq!(with("acme/web/dev", backend), Ok(()));
    }
    let error = with("a/b/c/d", None).expect_err("should be rejected");
    assert!(error.starts_with("invalid spec.stack: invalid stack name \"a/b/c/d\""), "{error}");
    let error = with("dev", Some("redis://state")).expect_err("should be rejected");
    assert!(error.starts_with("invalid spec.backend: invalid backend URL \"redis://state\""), "{error}");
}

#[test]
fn an_error_names_the_field_of_the_stack() {
    let with = |spec: StackSpec| {
        let stack = stack(spec);
        check_address(&stack).and_then(|()| environment(&stack)).map_err(|error| error.to_string())
    };
    let account = with(StackSpec { service_account_name: Some("A".repeat(254)), ..StackSpec::default() });
    assert!(account.is_err_and(|error| error.starts_with("invalid spec.serviceAccountName: \"AAA")));
    for name in ["", "A=B", "A\0"] {
        let variables = with(StackSpec { env_refs: [(name.to_owned(), secret(None))].into(), ..StackSpec::default() });
        let expected = format!("invalid spec.envRefs: {name:?} is not a valid name of an environment variable");
        assert_eq!(variables, Err(expected));
    }
}

#[test]
fn the_backend_url_has_no_white_space() {
    let urls = [("s3://state\n", Some("s3://state")), (" \n", None)];
    for (url, expected) in urls {
        let spec = StackSpec { backend: Some(url.to_owned()), ..StackSpec::default() };
        let expected = expected.map(|url| json!({"name": "PULUMI_BACKEND_URL", "value": url}));
        assert_eq!(planned_workspace(spec).spec.env, expected.into_iter().collect::<Vec<_>>(), "{url:?}");
    }
}

#[test]
fn the_login_to_pulumi_cloud_excludes_other_tokens_and_backends() {
    let literal = |value: &str| json!({"type": "Literal", "literal": {"value": value}});
    let check = |more: &Value| {
        let mut spec = json!({"stack": "dev", "pulumiCloudOIDC": {"organization": "acme"}});
        spec.as_object_mut().expect("is a map").extend(more.as_object().expect("is a map").clone());
        let found = check_pulumi_cloud(&stack(serde_json::from_value(spec).expect("valid spec")));
        found.map_err(|error| error.to_string())
    };
    let valid = [
        json!({}),
        json!({"backend": "https://pulumi.example.com"}),
        json!({"backend": "", "accessTokenSecret": ""}),
        json!({"backend": "s3://state", "envRefs": {"PULUMI_BACKEND_URL": literal("https://pulumi.example.com")}}),
        json!({"envRefs": {"PULUMI_BACKEND_URL": {"type": "Secret", "secret": {"name": "s", "key": "k"}}}}),
    ];
    for more in valid {
        assert_eq!(check(&more), Ok(()), "{more}");
    }
    let rows = [
        (json!({"accessTokenSecret": "s"}), "spec.pulumiCloudOIDC and spec.accessTokenSecret are mutually exclusive"),
        (
            json!({"envRefs": {"PULUMI_ACCESS_TOKEN": literal("x")}}),
            "spec.pulumiCloudOIDC and spec.envRefs.PULUMI_ACCESS_TOKEN are mutually exclusive",
        ),
        (
            json!({"backend": "s3://state"}),
            "spec.pulumiCloudOIDC requires Pulumi Cloud, but spec.backend is s3://state",
        ),
        (
            json!({"envRefs": {"PULUMI_BACKEND_URL": literal("postgres://u:word@db/state")}}),
            "spec.pulumiCloudOIDC requires Pulumi Cloud, but spec.envRefs.PULUMI_BACKEND_URL is postgres://db/state:",
        ),
        (
            json!({"pulumiCloudOIDC": {"organization": "acme", "expiration": "1m"}}),
            "invalid spec.pulumiCloudOIDC.expiration: must be a duration",
        ),
    ];
    for (more, message) in rows {
        let error = check(&more).expect_err("should be rejected");
        assert!(error.starts_with(message), "{error}");
    }
    let of_environment = |spec: Value| {
        let found = check_pulumi_cloud(&stack(serde_json::from_value(spec).expect("valid spec")));
        found.map_err(|error| error.to_string())
    };
    let environment = json!(["aws/prod"]);
    let message = "spec.environment requires Pulumi Cloud, but spec.backend is s3://state: remove one of them";
    let found = of_environment(json!({"stack": "dev", "environment": environment, "backend": "s3://state"}));
    assert_eq!(found, Err(message.to_owned()));
    assert_eq!(of_environment(json!({"stack": "dev", "environment": environment})), Ok(()), "Pulumi Cloud");
    assert_eq!(of_environment(json!({"stack": "dev", "backend": "s3://state"})), Ok(()), "no environment");
    let spec = StackSpec {
        pulumi_cloud_oidc: Some(Box::new(crate::api::pulumi::PulumiCloudOidc {
            organization: "acme".to_owned(),
            ..Default::default()
        })),
        ..StackSpec::default()
    };
    assert_eq!(check_pulumi_cloud(&stack(StackSpec::default())), Ok(()));
    assert_eq!(planned(spec)["spec"]["pulumiCloudOIDC"], json!({"organization": "acme"}));
}

#[test]
fn the_desired_hash_changes_with_the_desired_workspace() {
    let with =
        |backend: &str| planned_workspace(StackSpec { backend: Some(backend.to_owned()), ..StackSpec::default() });
    assert_eq!(ownership::desired_hash(&with("a")), ownership::desired_hash(&with("a")));
    assert_ne!(ownership::desired_hash(&with("a")), ownership::desired_hash(&with("b")));
}

#[test]
fn the_error_about_an_invalid_reference_contains_its_field() {
    let literal = |literal| ResourceRef { kind: "Literal".to_owned(), literal, ..ResourceRef::default() };
    let rows = [
        (secret(Some("other")), "in another namespace is not allowed"),
        (literal(None), "requires `literal.value`"),
        (ResourceRef { secret: None, ..secret(None) }, "requires `secret.name`"),
        (ResourceRef { kind: "ConfigMap".to_owned(), ..secret(None) }, "`configMap.name`"),
        (ResourceRef { kind: "FS".to_owned(), ..secret(None) }, "not supported"),
        (ResourceRef { kind: "fs".to_owned(), ..secret(None) }, "must be Literal, Secret or ConfigMap"),
    ];
    for (reference, expected) in rows {
        let error = variable("TOKEN", &reference, "apps").expect_err("should be rejected").to_string();
        assert!(error.contains(expected) && error.contains("spec.envRefs.TOKEN"), "{error}");
    }
    assert!(variable("A", &literal(Some(LiteralRef { value: "x".to_owned() })), "apps").is_ok());
    let null = StackSpec { config: [("a".to_owned(), Value::Null)].into(), ..StackSpec::default() };
    assert_eq!(config(&stack(null)), Ok(Vec::new()));
}
