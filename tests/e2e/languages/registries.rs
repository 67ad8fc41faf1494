//! Tests registries that require a token. A Secret contains the package manager's settings file with the token.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use super::{
    destroy, first_outputs, go_modules, npm, program_files, set_config, set_environment, stack, template, until_message,
};
use crate::harness::languages::REGISTRY_HOST;
use crate::harness::{File, Scene, Source, run};

/// Token that the registry requires for paths below `/private`.
pub const TOKEN: &str = "test-token";
/// Mount path of the Secret.
const SETTINGS: &str = "/etc/registry";

/// Settings of a package manager.
pub struct Settings {
    /// Name and content of the file in the Secret.
    file: (&'static str, String),
    /// Environment variable that contains the path of the settings file.
    variable: &'static str,
    /// Environment variable that contains the registry address without a token. The test removes this variable, because
    /// the variable would take precedence over the settings file.
    replaced: &'static str,
    /// Part of the message that the Stack reports while the Secret contains a wrong token.
    pub refusal: &'static str,
}

impl Settings {
    pub fn npm() -> Settings {
        let address = format!("//{REGISTRY_HOST}/private/npm/");
        Settings {
            file: (".npmrc", format!("registry=http:{address}\n{address}:_authToken=TOKEN\n")),
            variable: "NPM_CONFIG_USERCONFIG",
            replaced: "NPM_CONFIG_REGISTRY",
            refusal: "401",
        }
    }

    pub fn pip() -> Settings {
        let index = format!("http://user:TOKEN@{REGISTRY_HOST}/private/pypi/simple/");
        Settings {
            file: ("pip.conf", format!("[global]\nindex-url = {index}\ntrusted-host = {REGISTRY_HOST}\n")),
            variable: "PIP_CONFIG_FILE",
            replaced: "PIP_INDEX_URL",
            refusal: "401",
        }
    }

    /// Returns the settings of Go. The registry must use HTTPS, because the command `go` sends credentials only over
    /// HTTPS.
    pub fn go() -> Settings {
        Settings {
            file: ("env", format!("GOPROXY=https://user:TOKEN@{REGISTRY_HOST}/private/go\n")),
            variable: "GOENV",
            replaced: "GOPROXY",
            refusal: "401",
        }
    }

    /// Creates the Secret with a token.
    pub async fn create_secret(&self, scene: &Scene, token: &str) {
        let (name, content) = (self.file.0, self.file.1.replace("TOKEN", token));
        let data = json!({name: content, "ca.crt": certificate(scene).await});
        scene.create::<Secret>(json!({"metadata": {"name": "registry"}, "stringData": data})).await;
    }

    /// Replaces the token in the Secret.
    pub async fn replace_token(&self, scene: &Scene, token: &str) {
        let (name, content) = (self.file.0, self.file.1.replace("TOKEN", token));
        scene.patch::<Secret>("registry", json!({"stringData": {name: content}})).await;
    }

    /// Returns a Stack that uses the settings in the Secret.
    pub fn stack(&self, scene: &Scene, source: &Source<'_>) -> Stack {
        let mut stack = stack(scene, source);
        let variables =
            [(self.variable, format!("{SETTINGS}/{}", self.file.0)), ("SSL_CERT_FILE", format!("{SETTINGS}/ca.crt"))];
        set_environment(&mut stack, &variables.each_ref().map(|(name, value)| (*name, value.as_str())));
        template(&mut stack)["env"]
            .as_array_mut()
            .expect("a list")
            .retain(|variable| variable["name"] != self.replaced);
        template(&mut stack)["podTemplate"] = pod_template();
        set_config(&mut stack, "greeting", "hello");
        stack.spec.secrets = [("password".to_owned(), "hunter22".to_owned())].into();
        stack
    }
}

/// Mounts the Secret `registry` into the container that installs the dependencies.
fn pod_template() -> Value {
    let mount = json!({"name": "registry", "mountPath": SETTINGS, "readOnly": true});
    let volume = json!({"name": "registry", "secret": {"secretName": "registry"}});
    json!({"spec": {"volumes": [volume], "containers": [{"name": "pulumi", "volumeMounts": [mount]}]}})
}

/// Starts a Stack with a wrong token. After the test has corrected the Secret, the installation must succeed without
/// another change.
async fn check(scene: &Scene, files: &[File], settings: Settings) {
    settings.create_secret(scene, "wrong").await;
    let source = scene.source("app").await;
    let commit = source.push(files).await;
    let main = scene.start(settings.stack(scene, &source)).await;
    until_message(&main, settings.refusal).await;

    settings.replace_token(scene, TOKEN).await;
    let outputs = first_outputs(&main, &commit).await;
    assert_eq!(outputs["greeting"], json!("hello"));
    let log = main.pod_log("pulumi").await;
    assert!(!log.contains(TOKEN), "the log contains the token: {log}");
    destroy(&main).await;
}

#[test]
fn npm_installs_with_the_token_in_npmrc_from_a_secret() {
    run("npmrc", async |scene| {
        check(scene, &[npm("npm"), program_files("typescript")].concat(), Settings::npm()).await;
    });
}

#[test]
fn pip_installs_with_the_token_in_pip_conf_from_a_secret() {
    run("pip-conf", async |scene| check(scene, &program_files("python"), Settings::pip()).await);
}

#[test]
fn go_downloads_modules_with_the_token_in_goenv_from_a_secret() {
    run("goenv", async |scene| {
        check(scene, &[go_modules("go"), program_files("go")].concat(), Settings::go()).await;
    });
}

/// Reads the registry's certificate through the API server proxy.
async fn certificate(scene: &Scene) -> String {
    let path = "/api/v1/namespaces/test-services/services/http:packages:http/proxy/ca.crt";
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    let response = scene.client.request_text(request).await.expect("the certificate of the registry");
    assert!(response.starts_with("-----BEGIN CERTIFICATE-----"), "{response}");
    response
}
