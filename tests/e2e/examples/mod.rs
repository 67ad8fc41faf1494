//! Runs all commands from the examples' READMEs in a fresh copy of the project, and compares the command output with
//! the output blocks in the READMEs. The test replaces only addresses, credentials, namespaces and images. Programs in
//! `bin` replace the Flux CLI, the AWS CLI and the Argo CD CLI, which are not available in the test environment.

mod getting_started;
pub mod kubernetes_provider;
mod languages;
mod project;
mod pull_requests;
mod readme;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::harness::kubernetes_provider::{IMAGE as PROVIDER_IMAGE, plugin_variables};
use crate::harness::languages::{IMAGE, registry_variables};
use crate::harness::{Call, Environment, File, Scene, run};
use project::{Project, entries};
use readme::{Block, blocks};

/// Commands that the test skips, because the scene creates and deletes the namespace.
const SCENE_COMMANDS: [&str; 2] = ["kubectl create namespace ", "kubectl delete namespace "];

/// Examples whose commands the test does not run, because they need programs or controllers that the test cluster does
/// not have. The suite `install` validates the manifests of all examples except `pulumi-yaml-install`. The suite `chart`
/// renders the chart with the values from `helm-release` and `pulumi-yaml-install`. The tests in `installation` install
/// the controller with the object kinds that these examples use, and with the program of `pulumi-yaml-install`.
const NOT_RUN: [&str; 3] = ["flux-operator", "helm-release", "pulumi-yaml-install"];

/// Names in the state backend URLs of the example manifests: `s3://NAME-state`.
const BACKENDS: [&str; 8] = ["by-hand", "greeting", "greeting-review", "hello", "network", "prepared", "teams", "web"];

/// An example, and the settings that differ between examples.
pub struct Example {
    directory: &'static str,
    /// Namespace in the README.
    namespace: &'static str,
    /// Name of the Git repository that the README requires. The repository has the branch `main`.
    repository: Option<&'static str>,
    image: Image,
    /// Number of output blocks in the README.
    outputs: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Image {
    /// The Pulumi CLI with the YAML language host, and a shell.
    Pulumi,
    /// The same programs, and the Kubernetes provider.
    KubernetesProvider,
    /// All language runtimes, and Git.
    Languages,
    /// The same programs. The CLI downloads the Kubernetes provider from a server in the cluster.
    LanguagesAndPlugins,
}

impl Image {
    fn name(self) -> &'static str {
        match self {
            Image::Pulumi => Environment::get().pulumi_image.as_str(),
            Image::KubernetesProvider => PROVIDER_IMAGE,
            Image::Languages | Image::LanguagesAndPlugins => IMAGE,
        }
    }

    /// Returns the environment variables that a Workspace needs to install packages and plugins.
    fn variables(self) -> Option<Value> {
        match self {
            Image::Pulumi | Image::KubernetesProvider => None,
            Image::Languages => Some(registry_variables()),
            Image::LanguagesAndPlugins => {
                let lists = [registry_variables(), plugin_variables()];
                Some(lists.iter().flat_map(|list| list.as_array().expect("a list")).cloned().collect())
            }
        }
    }
}

impl Example {
    const fn new(directory: &'static str, namespace: &'static str, outputs: usize) -> Example {
        Example { directory, namespace, repository: Some(namespace), image: Image::Pulumi, outputs }
    }

    const fn with_repository(self, repository: &'static str) -> Example {
        Example { repository: Some(repository), ..self }
    }

    const fn without_repository(self) -> Example {
        Example { repository: None, ..self }
    }

    const fn with_languages(self) -> Example {
        Example { image: Image::Languages, ..self }
    }

    const fn with_kubernetes_provider(self) -> Example {
        let image = match self.image {
            Image::Pulumi | Image::KubernetesProvider => Image::KubernetesProvider,
            Image::Languages | Image::LanguagesAndPlugins => Image::LanguagesAndPlugins,
        };
        Example { image, ..self }
    }

    /// Copies the project, and edits all manifests according to the READMEs.
    async fn prepare(&self, scene: &Scene) -> Project {
        if let Some(repository) = self.repository {
            let readme = File { path: "README.md".to_owned(), content: "A repository\n".to_owned() };
            scene.source(repository).await.push_without_notification(&[readme]).await;
        }
        let project = Project::with_example(self.directory).await;
        let values = values(scene);
        project.edit_manifests(|text| self.with_image(&replaced(text, &values)));
        project
    }

    /// Replaces the images of all containers. Adds the test cluster's package registry to workspace pods.
    fn with_image(&self, text: &str) -> String {
        let image = self.image.name();
        let variables = self.image.variables().filter(|_| text.contains("workspaceTemplate:"));
        let lines = text.lines().map(|line| match (line.split_once("image: "), &variables) {
            (Some((indent, _)), Some(variables)) if indent.trim().is_empty() => {
                format!("{indent}image: {image}\n{indent}env: {variables}\n")
            }
            (Some((indent, _)), None) if indent.trim().is_empty() => format!("{indent}image: {image}\n"),
            _ => format!("{line}\n"),
        });
        lines.collect()
    }

    async fn run_readme(&self, scene: &Scene, project: &Project) {
        let readme = std::fs::read_to_string(project.example().join("README.md")).expect("the example has a README");
        self.run_steps(scene, project, &readme, self.outputs).await;
    }

    /// Runs the commands in one part of the README. The part must contain this number of output blocks.
    async fn run_steps(&self, scene: &Scene, project: &Project, text: &str, outputs: usize) {
        let environment = Environment::get();
        let registry = environment.registry_url.trim_start_matches("http://");
        let (git, namespace) = (&environment.git_url, &scene.namespace);
        let values = [
            ("https://git.example.com/".to_owned(), format!("{git}/{namespace}-")),
            ("oci://registry.example.com/".to_owned(), format!("oci://{registry}/{namespace}/")),
            (format!("s3://{}", self.namespace), format!("s3://{namespace}")),
            (format!("namespace {}", self.namespace), format!("namespace {namespace}")),
            (format!("namespaces/{}/", self.namespace), format!("namespaces/{namespace}/")),
            (format!("serviceaccount:{}:", self.namespace), format!("serviceaccount:{namespace}:")),
        ];
        let (mut output, mut compared) = (String::new(), 0);
        for block in blocks(text) {
            match block {
                Block::Commands(commands) => {
                    let is_run = |line: &&str| !SCENE_COMMANDS.iter().any(|command| line.starts_with(command));
                    let commands: Vec<&str> = commands.lines().filter(is_run).collect();
                    output = project.bash(&replaced(&commands.join("\n"), &values)).await;
                }
                Block::Output(expected) => {
                    let directory = self.directory;
                    assert_eq!(output.trim(), expected.trim(), "the output differs from the README of {directory}");
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, outputs, "number of outputs in the README of {}", self.directory);
    }

    /// Runs the example as a test with its own scene.
    fn test(&self) {
        run(&format!("example-{}", self.directory), async |scene| {
            let project = self.prepare(scene).await;
            self.run_readme(scene, &project).await;
        });
    }
}

/// Maps each value in the manifests that a user must replace to the corresponding value for the test cluster. Each test
/// run has its own state.
fn values(scene: &Scene) -> Vec<(String, String)> {
    let environment = Environment::get();
    let namespace = &scene.namespace;
    let (access_key, secret_key) = (&environment.s3_access_key, &environment.s3_secret_key);
    let backend = environment.s3_backend_url.replacen('?', &format!("/{namespace}?"), 1);
    let backends = BACKENDS.map(|name| (format!("s3://{name}-state?region=eu-central-1"), backend.clone()));
    let registry = &environment.registry_host_in_cluster;
    let values = [
        ("https://git.example.com/", format!("{}/{namespace}-", environment.git_url_in_cluster)),
        ("url: oci://registry.example.com/", format!("insecure: true\n  url: oci://{registry}/{namespace}/")),
        ("AWS_ACCESS_KEY_ID: change-me", format!("AWS_ACCESS_KEY_ID: {access_key}")),
        ("AWS_SECRET_ACCESS_KEY: change-me", format!("AWS_SECRET_ACCESS_KEY: {secret_key}")),
        ("accesskey: change-me", format!("accesskey: {access_key}")),
        ("secretkey: change-me", format!("secretkey: {secret_key}")),
        ("bucketName: greeting", format!("insecure: true\n  bucketName: {namespace}")),
        ("endpoint: s3.example.com", format!("endpoint: {}", environment.s3_host_in_cluster)),
        ("region: eu-central-1", "region: us-east-1".to_owned()),
        (
            "url: https://github.com/pulumi-controller/pulumi-controller\n  ref:\n    tag: v0.1.0",
            format!("url: {}/{namespace}-project.git\n  ref:\n    branch: main", environment.git_url_in_cluster),
        ),
        ("https://chat.example.com/hooks/pulumi", scene.hook_url("chat")),
        ("https://github.com/example/greeting", scene.git_host("greeting")),
        ("targetNamespace: greeting", format!("targetNamespace: {namespace}")),
        ("    namespace: greeting", format!("    namespace: {namespace}")),
        ("    namespace: web", format!("    namespace: {namespace}")),
        ("busybox:1.37.0", environment.pulumi_image.clone()),
        ("web-namespace-labels", format!("{namespace}-labels")),
        ("resourceNames: [web]", format!("resourceNames: [{namespace}]")),
        ("    namespace: teams", format!("    namespace: {namespace}")),
    ];
    backends.into_iter().chain(values.map(|(from, to)| (from.to_owned(), to))).collect()
}

fn replaced(text: &str, values: &[(String, String)]) -> String {
    values.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

static EXAMPLES: [Example; 11] = [
    Example::new("external-artifact", "greeting", 1),
    Example::new("flux-bucket", "greeting", 1).without_repository(),
    Example::new("flux-git", "greeting", 3),
    Example::new("flux-oci", "greeting", 1).without_repository(),
    Example::new("flux-webhook", "greeting", 1),
    Example::new("git", "hello", 2),
    Example::new("init-containers", "prepared", 1),
    Example::new("other-source", "greeting", 1),
    Example::new("program", "greeting", 1).without_repository(),
    Example::new("run-limits", "greeting", 1),
    Example::new("webhook", "hello", 1),
];

static ARGO_CD: Example = Example::new("argo-cd", "greeting", 2).with_repository("fleet");
static FLUX_BOOTSTRAP: Example = Example::new("flux-bootstrap", "apps", 1).without_repository();
static NOTIFICATIONS: Example = Example::new("notifications", "greeting", 0);

#[test]
fn every_example_is_run_or_is_listed_as_not_run() {
    let others = [&ARGO_CD, &FLUX_BOOTSTRAP, &NOTIFICATIONS, &getting_started::EXAMPLE, &pull_requests::EXAMPLE];
    let examples = EXAMPLES.iter().chain(&languages::EXAMPLES).chain(&kubernetes_provider::EXAMPLES).chain(others);
    let listed: BTreeSet<String> =
        examples.map(|example| example.directory).chain(NOT_RUN).map(str::to_owned).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let directories = entries(&folder).filter(|path| path.is_dir());
    let names = directories.filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
    assert_eq!(listed, names.collect::<BTreeSet<String>>());
}

/// Runs the example in this directory.
fn test(examples: &[Example], directory: &str) {
    examples.iter().find(|example| example.directory == directory).expect("an example with this name").test();
}

#[test]
fn external_artifact() {
    test(&EXAMPLES, "external-artifact");
}

#[test]
fn flux_bucket() {
    test(&EXAMPLES, "flux-bucket");
}

#[test]
fn flux_git() {
    test(&EXAMPLES, "flux-git");
}

#[test]
fn flux_oci() {
    test(&EXAMPLES, "flux-oci");
}

#[test]
fn flux_webhook() {
    test(&EXAMPLES, "flux-webhook");
}

#[test]
fn git() {
    test(&EXAMPLES, "git");
}

#[test]
fn init_containers() {
    test(&EXAMPLES, "init-containers");
}

#[test]
fn other_source() {
    test(&EXAMPLES, "other-source");
}

#[test]
fn program() {
    test(&EXAMPLES, "program");
}

#[test]
fn run_limits() {
    test(&EXAMPLES, "run-limits");
}

#[test]
fn webhook() {
    test(&EXAMPLES, "webhook");
}

/// Runs the example for Argo CD. The tests in `installation` call this function, because only their test suite installs
/// Argo CD.
pub async fn run_argo_cd(scene: &Scene) {
    let project = ARGO_CD.prepare(scene).await;
    ARGO_CD.run_readme(scene, &project).await;
}

/// The test adds the files that `flux bootstrap` creates to the fleet repository, because the README requires these
/// files.
#[test]
fn flux_bootstrap() {
    run("example-flux-bootstrap", async |scene| {
        let project = FLUX_BOOTSTRAP.prepare(scene).await;
        let folder = project.example().join("FLEET/clusters/production/flux-system");
        std::fs::create_dir_all(&folder).expect("a directory of the fleet repository");
        std::fs::copy(&Environment::get().flux_components, folder.join("gotk-components.yaml"))
            .expect("the manifest with the Flux components");
        let sync = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata:\n  name: flux-system\n";
        std::fs::write(folder.join("gotk-sync.yaml"), sync).expect("a file of the fleet repository");
        FLUX_BOOTSTRAP.run_readme(scene, &project).await;
    });
}

#[test]
fn notifications() {
    run("example-notifications", async |scene| {
        let project = NOTIFICATIONS.prepare(scene).await;
        NOTIFICATIONS.run_readme(scene, &project).await;
        let is_message = |call: &Call| call.path.ends_with("/chat") && call.body["reason"] == "ProcessingCompleted";
        scene.until_called("the message about the first run", is_message).await;
        let is_status = |call: &Call| call.path.contains("/greeting/statuses/") && call.body["state"] == "success";
        scene.until_called("the commit status", is_status).await;
    });
}
