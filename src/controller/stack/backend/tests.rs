//! Tests for the comparison of backends.

use super::*;

fn stack(namespace: &str, spec: &Value) -> Stack {
    let mut whole = json!({"stack": "dev"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut stack = Stack::new("app", serde_json::from_value(whole).unwrap());
    stack.metadata.namespace = Some(namespace.to_owned());
    stack
}

fn same_in_cluster(one: &Value, other: &Value) -> bool {
    let of = |namespace: &str, spec: &Value| address(&stack(namespace, spec)).and_then(|address| address.in_cluster);
    of("a", one).is_some() && of("a", one) == of("b", other)
}

fn same_in_namespace(one: &Value, other: &Value) -> bool {
    let of = |spec: &Value| address(&stack("a", spec)).map(|address| address.in_namespace);
    of(one).is_some() && of(one) == of(other)
}

fn literal(name: &str, value: &str) -> Value {
    json!({name: {"type": "Literal", "literal": {"value": value}}})
}

fn kept(name: &str) -> Value {
    json!({name: {"type": "Secret", "secret": {"name": "s", "key": "k"}}})
}

const CLOUD: &str = "https://api.pulumi.com";

/// Returns a spec with a default organization for Pulumi Cloud.
fn in_default(organization: &str, stack: &str, token: &str) -> Value {
    let variables = literal("PULUMI_DEFAULT_ORGANIZATION", organization);
    json!({"backend": CLOUD, "stack": stack, "accessTokenSecret": token, "envRefs": variables})
}

fn pod(spec: &Value) -> Value {
    json!({"spec": {"podTemplate": {"spec": spec}}})
}

/// Returns a spec with the backend `url`, and with one volume of this kind in the pod.
fn in_volume(kind: &str, path: &str, url: &str) -> Value {
    let mounts = json!([{"name": "data", "mountPath": path}, {"name": "root", "mountPath": "/"}]);
    let volumes = json!([{"name": "data", kind: {}}, {"name": "root", "emptyDir": {}}]);
    let template = pod(&json!({"containers": [{"name": "pulumi", "volumeMounts": mounts}], "volumes": volumes}));
    json!({"backend": url, "workspaceTemplate": template})
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn stacks_conflict_only_if_they_provably_share_a_pulumi_stack() {
    let both = |spec: Value| (spec.clone(), spec);
    let with_env =
        |value: &str| pod(&json!({"containers": [{"name": "pulumi", "env": [{"name": URL, "value": value}]}]}));
    // Columns: two specs, whether their addresses are equal within a namespace, and whether they are equal across
    // namespaces.
    let rows = [
        ("one bucket", (json!({"backend": "gs://state/"}), json!({"backend": "gs://state"})), true, true),
        ("two buckets", (json!({"backend": "gs://state"}), json!({"backend": "gs://other"})), false, false),
        (
            "different bucket names",
            (json!({"backend": "gs://s"}), json!({"backend": "gs://s", "stack": "prod"})),
            false,
            false,
        ),
        (
            "a bucket has no organizations",
            (json!({"backend": "gs://s"}), json!({"backend": "gs://s", "stack": "organization/dev"})),
            true,
            true,
        ),
        ("a file in the pod", both(json!({"backend": "file:///state"})), false, false),
        ("a file in a volume of the pod", both(in_volume("emptyDir", "/data", "file:///data/state")), false, false),
        ("a file in a shared volume", both(in_volume("nfs", "/data/", "file:///data/state/")), true, false),
        ("a file beside a shared volume", both(in_volume("nfs", "/data", "file:///database")), false, false),
        (
            "files in different volumes",
            (in_volume("nfs", "/data", "file:///data"), in_volume("hostPath", "/data", "file:///data")),
            false,
            false,
        ),
        ("an S3 bucket", both(json!({"backend": "s3://s"})), true, true),
        (
            "an S3 bucket in other spellings",
            (
                json!({"backend": "s3://s?endpoint=10.0.0.7"}),
                json!({"backend": "S3://s/?x=y&endpoint=http://10.0.0.7:80"}),
            ),
            true,
            true,
        ),
        (
            "an endpoint in the URL, or in a variable",
            (
                json!({"backend": "s3://s?endpoint=10.0.0.7"}),
                json!({"backend": "s3://s", "envRefs": literal("AWS_ENDPOINT_URL", "http://10.0.0.7")}),
            ),
            true,
            false,
        ),
        (
            "an S3 bucket behind another endpoint",
            (
                json!({"backend": "s3://s"}),
                json!({"backend": "s3://s", "envRefs": literal("AWS_ENDPOINT_URL", "http://minio")}),
            ),
            false,
            false,
        ),
        (
            "unrelated environment variables",
            (
                json!({"backend": "s3://s", "envRefs": kept("AWS_ACCESS_KEY_ID")}),
                json!({"backend": "s3://s", "envRefs": kept("PULUMI_CONFIG_PASSPHRASE")}),
            ),
            true,
            true,
        ),
        (
            "values of other variables are unknown",
            both(json!({"backend": "s3://s", "envSecrets": ["aws"]})),
            true,
            false,
        ),
        (
            "an endpoint in a Secret",
            both(json!({"backend": "s3://s", "envRefs": kept("AWS_ENDPOINT_URL")})),
            true,
            false,
        ),
        ("a short name of an endpoint", both(json!({"backend": "s3://s?endpoint=minio:9000"})), true, false),
        (
            "the name of a pod of a Service",
            both(json!({"backend": "s3://s?endpoint=http://minio-0.minio:9000"})),
            true,
            false,
        ),
        (
            "a fully qualified endpoint",
            both(json!({"backend": "s3://s?endpoint=http://minio.apps.svc:9000"})),
            true,
            true,
        ),
        (
            "a short name in a variable",
            both(json!({"backend": "s3://s", "envRefs": literal("AWS_ENDPOINT_URL", "http://minio")})),
            true,
            false,
        ),
        (
            "a fully qualified name in a variable",
            both(json!({"backend": "s3://s", "envRefs": literal("AWS_ENDPOINT_URL", "http://minio.apps.svc")})),
            true,
            true,
        ),
        ("an address", both(json!({"backend": "s3://s?endpoint=10.0.0.7:9000"})), true, true),
        ("the pod's own address", both(json!({"backend": "s3://s?endpoint=127.0.0.1:9000"})), true, false),
        ("an Azure URL with account", both(json!({"backend": "azblob://s?storage_account=acme"})), true, true),
        ("an Azure URL without account", both(json!({"backend": "azblob://s"})), true, false),
        ("a database", both(json!({"backend": "postgres://db.example.com/state"})), true, true),
        ("a database by its short name", both(json!({"backend": "postgres://db/state"})), true, false),
        (
            "logins to different organizations",
            (
                json!({"backend": "https://pulumi.example.com", "pulumiCloudOIDC": {"organization": "a"}}),
                json!({"backend": "https://pulumi.example.com", "pulumiCloudOIDC": {"organization": "b"}}),
            ),
            false,
            false,
        ),
        (
            "logins with different expirations",
            (
                json!({"backend": "https://pulumi.example.com", "pulumiCloudOIDC": {"organization": "a"}}),
                json!({
                    "backend": "https://pulumi.example.com",
                    "pulumiCloudOIDC": {"organization": "a", "expiration": "1h"},
                }),
            ),
            true,
            false,
        ),
        (
            "a URL in the template",
            (
                json!({"backend": "gs://s"}),
                json!({"workspaceTemplate": {"spec": {"env": [{"name": URL, "value": "gs://s"}]}}}),
            ),
            true,
            true,
        ),
        (
            "a URL in the pod's template",
            (json!({"backend": "gs://s"}), json!({"workspaceTemplate": with_env("gs://s")})),
            true,
            true,
        ),
        (
            "the pod's template takes precedence",
            (json!({"backend": "gs://s"}), json!({"backend": "gs://s", "workspaceTemplate": with_env("gs://other")})),
            false,
            false,
        ),
        (
            "host names from hostAliases of the pod",
            both(json!({"backend": "https://pulumi.example.com", "stack": "acme/dev",
                "workspaceTemplate": pod(&json!({"hostAliases": [{"ip": "10.0.0.1"}]}))})),
            true,
            false,
        ),
        ("a URL in a Secret of each namespace", both(json!({"envRefs": kept(URL)})), true, false),
        ("no backend in the Stack", both(json!({"stack": "acme/web/prod"})), true, false),
        (
            "Pulumi Cloud with different tokens for the same organization",
            (
                json!({"backend": "https://api.pulumi.com", "stack": "acme/p/dev", "accessTokenSecret": "one"}),
                json!({"backend": "https://api.pulumi.com", "stack": "acme/p/dev", "accessTokenSecret": "two"}),
            ),
            true,
            true,
        ),
        (
            "Pulumi Cloud, and each token selects its own organization",
            both(json!({"backend": "https://api.pulumi.com", "accessTokenSecret": "t"})),
            true,
            false,
        ),
        (
            "different default organizations",
            (in_default("acme", "dev", "t"), in_default("other", "dev", "t")),
            false,
            false,
        ),
        ("the same default organization", (in_default("acme", "dev", "t"), in_default("acme", "dev", "u")), true, true),
        (
            "a default organization, and a name with this organization",
            (in_default("acme", "dev", "t"), in_default("other", "acme/p/dev", "t")),
            true,
            true,
        ),
        ("an empty default organization", both(in_default("", "dev", "t")), true, false),
        (
            "a default organization in a Secret",
            (json!({"backend": CLOUD, "envRefs": kept("PULUMI_DEFAULT_ORGANIZATION")}), json!({"backend": CLOUD})),
            false,
            false,
        ),
        (
            "the same default organization in a Secret",
            both(json!({"backend": CLOUD, "envRefs": kept("PULUMI_DEFAULT_ORGANIZATION")})),
            true,
            false,
        ),
        (
            "a bucket has no default organization",
            (
                json!({"backend": "gs://s", "envRefs": literal("PULUMI_DEFAULT_ORGANIZATION", "acme")}),
                json!({"backend": "gs://s"}),
            ),
            true,
            true,
        ),
        (
            "a service by its short name",
            both(json!({"backend": "http://pulumi:8080", "stack": "acme/dev"})),
            true,
            false,
        ),
    ];
    for (name, (one, other), in_namespace, in_cluster) in rows {
        assert_eq!(same_in_namespace(&one, &other), in_namespace, "{name}, in one namespace");
        assert_eq!(same_in_cluster(&one, &other), in_cluster, "{name}, in two namespaces");
    }
}

#[test]
fn only_a_completely_known_location_is_comparable() {
    let of = |name: &str, url: &str, has_run: bool| {
        let stack = PulumiStack { name: name.to_owned(), project: None, backend: Some(url.to_owned()) };
        resolved_address(&stack, has_run)
    };
    let rows = [
        ("dev", "s3://s", false, false),
        ("dev", "s3://s", true, true),
        ("dev", "s3://s?endpoint=minio", false, true),
        ("dev", "gs://s", false, false),
        ("dev", "gs://s", true, true),
        ("dev", "azblob://s", true, false),
        ("dev", "azblob://s?storage_account=acme", false, true),
        ("dev", "postgres://db/state", false, true),
        ("dev", "https://api.pulumi.com", true, false),
        ("acme/dev", "https://api.pulumi.com", false, true),
        ("dev", "file:///state", true, false),
    ];
    for (name, url, has_run, expected) in rows {
        assert_eq!(of(name, url, has_run).is_some(), expected, "{name} {url}");
    }
    assert_eq!(of("organization/web/dev", "s3://s", true), of("dev", "s3://s/?region=x", true));
    assert_ne!(of("acme/dev", "https://api.pulumi.com", true), of("other/dev", "https://api.pulumi.com", true));
}
