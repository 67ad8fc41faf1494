//! Renders the Helm chart and the kustomize overlays, and compares their objects. If `helm` or `kubectl` is not on the
//! `PATH`, each test skips itself or, if the environment variable `CI` is set, fails. `tests/generated` checks the
//! chart files without Helm.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a missing prerequisite fails the test"
)]

#[path = "../manifest_files/mod.rs"]
#[expect(dead_code, reason = "only `covers` is used")]
mod manifest_files;
mod objects;
#[path = "../required_programs/mod.rs"]
mod required_programs;
mod schemas;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::Parser;
use pulumi_controller::cli::{CommandLine, Role};
use pulumi_controller::config::ManagerConfig;
use serde_json::Value;

use objects::{Objects, is_read_without_loss, parse};
use schemas::Schemas;

/// Kubernetes version for the templates. Without this flag, Helm uses the version of its client library.
const KUBE_VERSION: &str = "--kube-version=1.33.0";
/// Image of the kustomize base.
const IMAGE: &str = "--set=image.registry=localhost,image.repository=pulumi-controller,image.tag=dev";

/// A kustomization, and the chart values and the namespace that render the same objects.
struct Case {
    /// Name of the values file in `deploy/chart/ci` without its suffix. Empty for the default values.
    values: &'static str,
    namespace: &'static str,
    overlay: &'static str,
    component: Option<&'static str>,
}

const fn case(values: &'static str, namespace: &'static str, overlay: &'static str) -> Case {
    Case { values, namespace, overlay, component: None }
}

const fn with_component(component: &'static str) -> Case {
    Case { values: component, namespace: "flux-system", overlay: "default", component: Some(component) }
}

const CASES: [Case; 14] = [
    case("", "flux-system", "default"),
    case("no-flux", "pulumi-controller", "no-flux"),
    case("multi-tenant", "flux-system", "multi-tenant"),
    case("sharded", "flux-system", "sharded"),
    case("single-namespace", "pulumi-team-system", "single-namespace"),
    with_component("receiver"),
    with_component("watch-secrets"),
    with_component("admission-policy"),
    with_component("prometheus-rule"),
    with_component("grafana-dashboards"),
    with_component("history-api"),
    with_component("web-ui"),
    with_component("openshift"),
    with_component("spiffe"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn chart() -> PathBuf {
    root().join("deploy/chart")
}

fn has_tools(test: &str) -> bool {
    required_programs::has_programs(test, &["helm", "kubectl"])
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

fn stdout(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn helm(arguments: &[&str], chart: &Path) -> Command {
    let mut command = Command::new("helm");
    command.args(arguments).arg(chart);
    command
}

fn values_file(values: &str) -> Option<PathBuf> {
    (!values.is_empty()).then(|| chart().join(format!("ci/{values}-values.yaml")))
}

fn template(chart: &Path, namespace: &str, values: &str) -> Objects {
    let mut command = helm(&["template", "pulumi-controller", "--namespace", namespace, KUBE_VERSION], chart);
    match values_file(values) {
        // The values in the file `all` contain their own image.
        Some(file) if values == "all" => command.arg("--values").arg(file),
        Some(file) => command.arg(IMAGE).arg("--values").arg(file),
        None => command.arg(IMAGE),
    };
    parse(&stdout(&mut command))
}

fn kustomize(folder: &Path) -> Objects {
    parse(&stdout(Command::new("kubectl").arg("kustomize").arg(folder)))
}

/// Renders an overlay. The directory for an additional component is in cargo's target directory, because kustomize
/// requires relative paths.
fn render_overlay(case: &Case) -> Objects {
    let overlay = root().join("kustomize/overlays").join(case.overlay);
    let Some(component) = case.component else { return kustomize(&overlay) };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let depth = folder.path().canonicalize().unwrap().components().count() - 1;
    let relative = |path: &str| {
        let path = root().canonicalize().unwrap().join(path);
        format!("{}{}", "../".repeat(depth), path.strip_prefix("/").unwrap().display())
    };
    let kustomization = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [relative(&format!("kustomize/overlays/{}", case.overlay))],
        "components": [relative(&format!("kustomize/components/{component}"))],
    });
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    kustomize(folder.path())
}

#[test]
fn the_chart_renders_the_same_objects_as_the_overlays() {
    if !has_tools("the comparison of the chart with the overlays") {
        return;
    }
    for case in &CASES {
        let differences = template(&chart(), case.namespace, case.values).differences(&render_overlay(case));
        assert!(differences.is_empty(), "values {:?}:\n{}", case.values, differences.join("\n"));
    }
}

/// Checks that the object comparison finds each kind of difference.
#[test]
fn a_changed_a_missing_and_an_additional_object_are_found() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}";
    let changed = parse(&text.replace("80", "81"));
    assert_eq!(parse(text).differences(&parse(text)), Vec::<String>::new());
    assert_eq!(parse(text).differences(&changed).len(), 1);
    assert_eq!(parse(text).differences(&parse("")).len(), 1);
    assert_eq!(parse("").differences(&parse(text)).len(), 1);
}

#[test]
fn the_packaged_chart_renders_the_same_objects_as_the_directory() {
    if !has_tools("the package of the chart") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().to_str().unwrap();
    stdout(&mut helm(&["package", "--destination", destination], &chart()));
    let package = folder.path().join(format!("pulumi-controller-{}.tgz", env!("CARGO_PKG_VERSION")));
    let (packaged, directory) = (template(&package, "flux-system", ""), template(&chart(), "flux-system", ""));
    assert_eq!(packaged.differences(&directory), Vec::<String>::new());
}

fn all_values() -> Vec<String> {
    let files = std::fs::read_dir(chart().join("ci")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut values: Vec<_> = names.map(|name| name.strip_suffix("-values.yaml").unwrap().to_owned()).collect();
    values.push(String::new());
    values
}

#[test]
fn helm_lint_accepts_the_chart_with_all_test_values() {
    if !has_tools("helm lint") {
        return;
    }
    for values in all_values() {
        let mut command = helm(&["lint", "--strict", KUBE_VERSION], &chart());
        command.args(values_file(&values).into_iter().flat_map(|file| ["--values".into(), file.into_os_string()]));
        stdout(&mut command);
    }
}

/// Finds misspelled fields without kubeconform, because deserializing an object drops unknown fields.
#[test]
fn all_rendered_objects_have_only_fields_of_their_kind() {
    if !has_tools("the validation of the rendered objects") {
        return;
    }
    for values in all_values() {
        for object in template(&chart(), "flux-system", &values).iter() {
            let result = is_read_without_loss(object);
            assert!(result.is_ok(), "values {values:?}: {}: {}", object["kind"], result.unwrap_err());
        }
    }
}

#[test]
fn kubeconform_accepts_the_objects_of_the_chart_and_of_the_overlays() {
    let Some(schemas) = Schemas::generate("the validation with kubeconform") else { return };
    for values in all_values() {
        let errors = schemas.errors(&template(&chart(), "flux-system", &values));
        assert_eq!(errors, None, "values {values:?}");
    }
    for case in &CASES {
        let errors = schemas.errors(&render_overlay(case));
        assert_eq!(errors, None, "the overlay {} with {:?}", case.overlay, case.component);
    }
}

/// Checks that the schemas describe the fields and their types.
#[test]
fn kubeconform_rejects_an_unknown_field_a_wrong_type_and_a_missing_field() {
    let Some(schemas) = Schemas::generate("the validation with kubeconform") else { return };
    let valid = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80, targetPort: http}]}}";
    assert_eq!(schemas.errors(&parse(valid)), None);
    for (from, to) in [("ports:", "portz:"), ("80", "eighty"), ("port: 80, ", "")] {
        let errors = schemas.errors(&parse(&valid.replace(from, to))).unwrap_or_default();
        assert!(errors.contains("Service"), "{from} -> {to}: {errors:?}");
    }
}

/// The API server accepts at most 63 characters in a Service name and in a label value.
#[test]
fn all_names_and_label_values_have_at_most_63_characters() {
    if !has_tools("the lengths of names") {
        return;
    }
    for values in all_values() {
        for object in template(&chart(), "flux-system", &values).iter() {
            let paths = ["/metadata/labels", "/spec/template/metadata/labels", "/spec/selector/matchLabels"];
            let labels = paths.into_iter().filter_map(|path| object.pointer(path)?.as_object());
            let texts = labels.flat_map(|labels| labels.values()).chain([&object["metadata"]["name"]]);
            for text in texts.filter_map(Value::as_str) {
                assert!(text.len() <= 63, "values {values:?}: {}: {text}", object["kind"]);
            }
        }
    }
}

/// The examples must use the published image, and set only values that the chart accepts.
#[test]
fn the_chart_accepts_the_values_of_the_examples() {
    if !has_tools("the values of the examples") {
        return;
    }
    let paths = [
        ("examples/helm-release/helmrelease.yaml", "/spec/values"),
        ("examples/pulumi-yaml-install/Pulumi.yaml", "/resources/release/properties/values"),
    ];
    for (path, pointer) in paths {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let document: Value = serde_saphyr::from_str(&text).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, document.pointer(pointer).unwrap().to_string()).unwrap();
        let mut command =
            helm(&["template", "pulumi-controller", "--namespace", "flux-system", KUBE_VERSION], &chart());
        let objects = parse(&stdout(command.arg("--values").arg(file.path())));
        let images: Vec<_> = containers(&objects).map(|container| container["image"].as_str().unwrap()).collect();
        let image = concat!("ghcr.io/pulumi-controller/pulumi-controller:v", env!("CARGO_PKG_VERSION"));
        assert_eq!(images, [image], "{path}");
        let budgets = objects.iter().filter(|object| object["kind"] == "PodDisruptionBudget").count();
        assert_eq!(budgets, 1, "{path}: the values have an effect");
    }
}

#[test]
fn the_names_of_a_release_and_a_namespace_are_strings_even_if_they_are_numbers() {
    if !has_tools("the numeric names in the chart") {
        return;
    }
    let mut command = helm(&["template", "10023", "--namespace", "10023", KUBE_VERSION], &chart());
    let values = "serviceMonitor.enabled=true,receiver.enabled=true,ui.enabled=true,podDisruptionBudget.enabled=true";
    for object in parse(&stdout(command.args(["--set", values]))).iter() {
        assert!(!has_numeric_name(object), "{object}");
    }
}

fn has_numeric_name(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_i64() == Some(10_023),
        Value::Array(items) => items.iter().any(has_numeric_name),
        Value::Object(fields) => fields.values().any(has_numeric_name),
        _ => false,
    }
}

fn containers(objects: &Objects) -> impl Iterator<Item = &Value> {
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    deployments.map(|deployment| &deployment["spec"]["template"]["spec"]["containers"][0])
}

/// A controller without permission to write its Lease would never become the leader.
#[test]
fn the_controller_accepts_its_flags_and_may_write_its_lease() {
    if !has_tools("the flags in the chart") {
        return;
    }
    for values in all_values() {
        let objects = template(&chart(), "flux-system", &values);
        let own = |object: &&Value| object["kind"] == "Role" && object["metadata"]["namespace"] == "flux-system";
        let role = objects.iter().find(own);
        assert_eq!(role.is_none(), values == "minimal-rights", "values {values:?}");
        let rules = role.and_then(|role| role["rules"].as_array());
        let leases: Option<Vec<_>> =
            rules.map(|rules| rules.iter().filter_map(|rule| rule["resourceNames"].as_array()).flatten().collect());
        let mut count = 0;
        for container in containers(&objects) {
            let image = container["image"].as_str().unwrap();
            let arguments = container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
            let arguments = arguments.map(|argument| argument.replace("$(RUNTIME_NAMESPACE)", "flux-system"));
            let environment = [format!("--agent-image={image}"), "--runtime-namespace=flux-system".to_owned()];
            let line = std::iter::once("pulumi-controller".to_owned()).chain(arguments).chain(environment);
            let Role::Manager(flags) = CommandLine::try_parse_from(line).expect("valid flags").into_role() else {
                panic!("values {values:?}: not the manager role");
            };
            let config = ManagerConfig::from_flags(flags).expect("valid flags");
            let lease = Value::from(config.leader_election.expect("leader election is enabled").lease_name);
            let is_allowed = leases.as_ref().is_none_or(|leases| leases.contains(&&lease));
            assert!(is_allowed, "values {values:?}: no permission for the Lease {lease}: {leases:?}");
            let agent = container["env"].as_array().unwrap().iter().find(|variable| variable["name"] == "AGENT_IMAGE");
            assert_eq!(agent.unwrap()["value"], image, "values {values:?}");
            count += 1;
        }
        let expected = match values.as_str() {
            "sharded" => 2,
            "shard-names" => 4,
            _ => 1,
        };
        assert_eq!(count, expected, "values {values:?}");
    }
}

#[test]
fn conflicting_values_are_rejected_with_the_names_of_the_values() {
    if !has_tools("the conflicts of values") {
        return;
    }
    let rows = [
        ("image.repo=a", "additional properties 'repo' not allowed"),
        ("runs.defaultTimeout=3 hours", "at '/runs/defaultTimeout'"),
        ("multiTenant.enabled=true,watch.namespace=a", "multiTenant.enabled and watch.namespace cannot be combined"),
        ("multiTenant.enabled=true,controller.noCrossNamespaceRefs=false", "requires controller.noCrossNamespaceRefs"),
        ("multiTenant.namespaces={a}", "multiTenant.namespaces requires multiTenant.enabled"),
        ("shards={-a}", "at '/shards/0'"),
        ("shards={a},watch.labelSelector=b", "shards and watch.labelSelector cannot be combined"),
        ("caBundle.configMap.name=a,caBundle.secret.name=b", "caBundle.secret.name cannot be combined"),
        ("git.caCertificate=a,caBundle.secret.name=b", "git.caCertificate and caBundle cannot be combined"),
        ("history.enabled=false,history.url=s3://runs", "history.url requires history.enabled"),
        ("history.endpoint.enabled=true,watch.namespace=a", "history.endpoint.enabled and watch.namespace cannot"),
        ("receiver.ingress.enabled=true", "receiver.ingress.enabled requires receiver.enabled"),
        ("receiver.enabled=true,receiver.ingress.enabled=true", "requires receiver.ingress.hosts"),
        ("ui.ingress.enabled=true", "ui.ingress.enabled requires ui.enabled"),
        (
            "ui.enabled=true,ui.ingress.enabled=true,ui.ingress.hosts={a}",
            "requires ui.ingress.hosts and ui.ingress.tls",
        ),
        ("ui.enabled=true,ui.oidc.issuer=https://a", "requires ui.enabled, ui.url and ui.oidc.clientId"),
        ("ui.oidc.clientId=a", "require ui.oidc.issuer"),
        ("ui.oidc.caBundle.secret.name=a", "require ui.oidc.issuer"),
        (
            "ui.enabled=true,ui.url=https://b,ui.oidc.issuer=https://a,ui.oidc.clientId=a,\
             ui.oidc.caBundle.configMap.name=a,ui.oidc.caBundle.secret.name=b",
            "ui.oidc.caBundle.secret.name cannot be combined",
        ),
        ("flux.enabled=false,flux.namespace=a", "require flux.enabled"),
        ("traces.workspaceEndpoint=grpc://a:1", "require traces.endpoint"),
        ("serviceAccount.create=false", "requires serviceAccount.name"),
        ("podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=1", "cannot be combined"),
        ("podLabels.app=a", "podLabels must not contain app"),
        ("extraEnv[0].name=AGENT_IMAGE", "extraEnv must not contain AGENT_IMAGE"),
        ("extraArgs={--log-level=debug}", "set controller.logLevel instead"),
        ("extraArgs={--storage-path=/a}", "extraArgs must not contain --storage-path"),
    ];
    for (values, expected) in rows {
        let mut command = helm(&["template", "pulumi-controller", KUBE_VERSION], &chart());
        let output = output(command.args(["--set", values]));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(expected), "{values}: {message}");
    }
}
