//! Validates rendered objects with kubeconform. The test generates the schemas from the Kubernetes OpenAPI document, so
//! the validation needs neither a cluster nor a network.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::objects::Objects;
use crate::required_programs::{has_programs, report_skipped};

/// Environment variable that contains the path of the OpenAPI document, which `tests/cluster/cluster openapi` prints.
const DOCUMENT: &str = "KUBERNETES_OPENAPI";
/// Prometheus Operator kinds, which the OpenAPI document does not contain.
const OTHER_KINDS: &str = "PrometheusRule,ServiceMonitor";
/// File with all definitions, to which the schemas of the kinds refer.
const DEFINITIONS: &str = "_definitions.json";

/// A directory with one schema for each kind.
pub struct Schemas(TempDir);

impl Schemas {
    /// Generates the schemas. If a program or the OpenAPI document is missing, reports the test as skipped and returns
    /// `None`.
    pub fn generate(test: &str) -> Option<Schemas> {
        if !has_programs(test, &["helm", "kubectl", "kubeconform"]) {
            return None;
        }
        let Some(document) = std::env::var_os(DOCUMENT).filter(|path| !path.is_empty()) else {
            report_skipped(test, &format!("{DOCUMENT} is not set: run `tests/run chart`"));
            return None;
        };
        let document = PathBuf::from(document);
        let text = std::fs::read_to_string(&document).unwrap_or_else(|error| panic!("{}: {error}", document.display()));
        let folder = tempfile::tempdir().unwrap();
        write(&serde_json::from_str(&text).unwrap(), folder.path());
        Some(Schemas(folder))
    }

    /// Returns the output of kubeconform if an object is not valid.
    pub fn errors(&self, objects: &Objects) -> Option<String> {
        let manifest = self.0.path().join("manifest.yaml");
        let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
        std::fs::write(&manifest, documents.join("\n---\n")).unwrap();
        let location = format!("{}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json", self.0.path().display());
        let mut command = Command::new("kubeconform");
        command.args(["-strict", "-skip", OTHER_KINDS, "-schema-location", &location]).arg(&manifest);
        let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (!output.status.success()).then_some(text)
    }
}

/// Writes the definitions, and one file for each kind. The files have the names that kubeconform expects.
fn write(document: &Value, folder: &Path) {
    let mut definitions = document["definitions"].clone();
    for definition in definitions.as_object_mut().expect("definitions").values_mut() {
        restrict(definition);
    }
    // The API server accepts numbers in addition to strings.
    for (name, number) in [
        ("io.k8s.apimachinery.pkg.api.resource.Quantity", "number"),
        ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", "integer"),
    ] {
        assert!(definitions[name].is_object(), "the document has no definition of {name}");
        definitions[name] = json!({"type": ["string", number]});
    }
    for (name, definition) in definitions.as_object().expect("definitions") {
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let text = |field: &str| kind[field].as_str().unwrap_or_default().to_lowercase();
            let (group, version) = (text("group"), text("version"));
            // kubeconform's file names contain only the first part of the API group.
            let suffix = match group.split('.').next() {
                Some(first) if !first.is_empty() => format!("{first}-{version}"),
                _ => version,
            };
            let file = format!("{}-{suffix}.json", text("kind"));
            let schema = json!({"$ref": format!("{DEFINITIONS}#/definitions/{name}")});
            std::fs::write(folder.join(file), schema.to_string()).unwrap();
        }
    }
    std::fs::write(folder.join(DEFINITIONS), json!({"definitions": definitions}).to_string()).unwrap();
}

/// Changes a schema so that it rejects unknown fields, like strict validation in `kubectl apply`.
fn restrict(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(restrict);
        fields.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    for part in ["additionalProperties", "items"] {
        if let Some(part) = fields.get_mut(part) {
            restrict(part);
        }
    }
}
