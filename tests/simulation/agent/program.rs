//! The Pulumi YAML programs that the simulated CLI understands: resources without dependencies, and outputs.

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::Value;

use super::super::backend::StackId;

#[derive(Clone, Debug, Default)]
pub struct Program {
    pub project: String,
    pub runtime: String,
    /// Resources, by name.
    resources: BTreeMap<String, Value>,
    outputs: BTreeMap<String, Value>,
}

impl Program {
    /// Reads the program in an archive. Returns `None` if the archive contains no project.
    pub fn read(archive: &[u8]) -> Option<Program> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        for entry in archive.entries().ok()? {
            let mut entry = entry.ok()?;
            if entry.path().ok()?.file_name()? != "Pulumi.yaml" {
                continue;
            }
            let mut text = String::new();
            entry.read_to_string(&mut text).ok()?;
            let project: Value = serde_saphyr::from_str(&text).ok()?;
            let word = |name: &str| project.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let map = |name: &str| {
                let entries = project.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
                entries.into_iter().collect()
            };
            let (resources, outputs) = (map("resources"), map("outputs"));
            return Some(Program { project: word("name"), runtime: word("runtime"), resources, outputs });
        }
        None
    }

    /// Returns the resources by URN, with their properties, for this configuration.
    pub fn resources(&self, stack: &StackId, config: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let resource = |(name, resource): (&String, &Value)| {
            let kind = resource.get("type").and_then(Value::as_str).unwrap_or_default();
            let properties = resource.get("properties").unwrap_or(&Value::Null).to_string();
            (stack.urn(kind, name), interpolated(&properties, config))
        };
        self.resources.iter().map(resource).collect()
    }

    /// Returns the outputs as JSON texts, for this configuration.
    pub fn outputs(&self, config: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        self.outputs.iter().map(|(name, value)| (name.clone(), interpolated(&value.to_string(), config))).collect()
    }
}

/// Replaces each `${key}` with the value of the configuration.
fn interpolated(text: &str, config: &BTreeMap<String, String>) -> String {
    config.iter().fold(text.to_owned(), |text, (key, value)| text.replace(&format!("${{{key}}}"), value))
}
