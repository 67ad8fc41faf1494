//! `outputs`: prints the outputs of a Stack.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::{Update, UpdateKind, UpdatePhase};
use pulumi_controller::api::output_keys::stored_key;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::text::printable_line;
use serde::Serialize;
use serde_json::Value;

use crate::plugin::args::{Format, OutputFlags};
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::progress::Progress;
use crate::plugin::screen::{self, Screen, table};
use crate::plugin::select::full_name;
use crate::plugin::updates;

/// Placeholder for a secret output in the status of a Stack.
const MASKED: &str = "[secret]";
/// Maximum number of output names in a message.
const MAX_NAMES: usize = 20;

/// Prints the outputs of a Stack. With `--show-secrets`, reads the values of secret outputs from a Secret. The user
/// must have permission to read this Secret.
///
/// # Errors
///
/// Returns an error if the Stack or the output does not exist, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &OutputFlags, format: Format) -> Result<(), PluginError> {
    let stack: Stack = cluster.get(cluster.namespace(), &flags.stack).await?;
    let mut outputs = stack.status.as_ref().map(|status| status.outputs.clone()).unwrap_or_default();
    if let Some(name) = &flags.name {
        if !outputs.contains_key(name) {
            return Err(missing(&stack, &outputs, name));
        }
        outputs.retain(|output, _| output == name);
    }
    let mut progress = Progress::new();
    if outputs.is_empty() {
        let name = full_name(&stack);
        progress.note(&format!("Stack {name} has no outputs: no `up` has succeeded, or the program has none"));
    }
    if flags.show_secrets && outputs.values().any(is_masked) {
        let secret = secret(cluster, &stack).await?;
        reveal(&stack, &mut outputs, secret.data.as_ref())?;
    } else if outputs.values().any(is_masked) {
        progress.note("to print the values of secret outputs, add --show-secrets");
    }
    match flags.name.as_ref().and_then(|name| outputs.remove(name)) {
        Some(value) => screen::print(&SingleOutput(value), format),
        None => screen::print(&Outputs(outputs), format),
    }
}

/// Returns the error for an output that does not exist.
fn missing(stack: &Stack, outputs: &BTreeMap<String, Value>, name: &str) -> PluginError {
    let names: Vec<String> = outputs.keys().take(MAX_NAMES).map(|name| printable_line(name)).collect();
    let others = match (names.join(", "), outputs.len().saturating_sub(MAX_NAMES)) {
        _ if names.is_empty() => "it has no outputs".to_owned(),
        (names, 0) => format!("it has: {names}"),
        (names, more) => format!("it has: {names} and {more} more"),
    };
    PluginError::Missing(format!("Stack {} has no output `{name}`; {others}", full_name(stack)))
}

/// Returns the Secret that contains the outputs of the last successful `up`.
async fn secret(cluster: &Cluster, stack: &Stack) -> Result<Secret, PluginError> {
    let namespace = cluster.namespace();
    let updates = updates::list(cluster, namespace, &stack.name_any()).await?;
    let Some(name) = secret_name(&updates) else {
        return Err(PluginError::Failed(format!(
            "failed to read the secret outputs of Stack {}: no Update contains them; request a run: kubectl pulumi \
             reconcile",
            full_name(stack)
        )));
    };
    cluster.get(namespace, name).await
}

/// Returns the name of the outputs Secret from the newest successful `up`. `updates` are sorted, newest first.
fn secret_name(updates: &[Update]) -> Option<&str> {
    updates.iter().filter(|update| update.spec.kind == UpdateKind::Up).find_map(|update| {
        let status = update.status.as_ref().filter(|status| status.phase == Some(UpdatePhase::Succeeded))?;
        status.outputs.as_deref()
    })
}

fn is_masked(value: &Value) -> bool {
    value.as_str() == Some(MASKED)
}

/// Replaces the masked values with the values from the Secret, which contains each output as JSON.
fn reveal(
    stack: &Stack,
    outputs: &mut BTreeMap<String, Value>,
    data: Option<&BTreeMap<String, ByteString>>,
) -> Result<(), PluginError> {
    for (name, value) in outputs.iter_mut().filter(|(_, value)| is_masked(value)) {
        let key = stored_key(name, |key| data.is_some_and(|data| data.contains_key(key)));
        let bytes = data.and_then(|data| data.get(&key));
        // The message omits the parser error, because the error can contain parts of the secret value.
        let found = bytes.and_then(|bytes| serde_json::from_slice(&bytes.0).ok());
        *value = found.ok_or_else(|| {
            PluginError::Failed(format!(
                "failed to read the secret output {name} of Stack {}: its Secret has no valid value in the key {key}; \
                 request a run: kubectl pulumi reconcile",
                full_name(stack)
            ))
        })?;
    }
    Ok(())
}

/// Outputs by name.
#[derive(Serialize)]
#[serde(transparent)]
struct Outputs(BTreeMap<String, Value>);

/// Value of one output.
#[derive(Serialize)]
#[serde(transparent)]
struct SingleOutput(Value);

impl Screen for Outputs {
    fn text(&self) -> String {
        let rows: Vec<_> = self.0.iter().map(|(name, value)| vec![name.clone(), plain(value)]).collect();
        table(&["OUTPUT", "VALUE"], &rows)
    }
}

impl Screen for SingleOutput {
    fn text(&self) -> String {
        plain(&self.0) + "\n"
    }
}

/// Returns a string without quotation marks, and any other value as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use pulumi_controller::api::output_keys;
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::{stack, update};
    use crate::plugin::reference_tests::assert_example;

    fn outputs() -> BTreeMap<String, Value> {
        let outputs = json!({ "bucket": "logs-4f1c", "password": "[secret]", "ports": [80, 443] });
        serde_json::from_value(outputs).unwrap()
    }

    #[test]
    fn secret_outputs_are_masked_unless_they_are_requested() {
        assert_example("kubectl pulumi outputs web", &Outputs(outputs()).text());
        let stack = stack("web", &json!({}), &json!({}));
        let data = BTreeMap::from([("password".to_owned(), ByteString(b"\"hunter2\"".to_vec()))]);
        let mut revealed = outputs();
        reveal(&stack, &mut revealed, Some(&data)).unwrap();
        assert_eq!(revealed.get("password"), Some(&json!("hunter2")));
        assert_eq!(revealed.get("ports"), Some(&json!([80, 443])));
    }

    #[test]
    fn outputs_with_similar_names_have_their_own_values() {
        let stack = stack("web", &json!({}), &json!({}));
        let names = ["db password", "db_password", "..hidden"];
        let values = names.map(|name| ByteString(json!(format!("value of {name}")).to_string().into_bytes()));
        let data: BTreeMap<String, ByteString> = output_keys::keys(names.into_iter()).into_iter().zip(values).collect();
        let mut revealed: BTreeMap<String, Value> = names.map(|name| (name.to_owned(), json!(MASKED))).into();
        reveal(&stack, &mut revealed, Some(&data)).unwrap();
        for name in names {
            assert_eq!(revealed.get(name), Some(&json!(format!("value of {name}"))));
        }
    }

    #[test]
    fn the_error_about_a_missing_output_lists_the_outputs() {
        let stack = stack("web", &json!({}), &json!({}));
        let error = missing(&stack, &outputs(), "nope");
        let expected = "Stack apps/web has no output `nope`; it has: bucket, password, ports";
        assert_eq!((error.exit_code(), error.to_string().as_str()), (3, expected));
        let many = (0..22).map(|n| (format!("o{n:02}"), json!(n))).collect();
        assert!(missing(&stack, &many, "nope").to_string().ends_with("o18, o19 and 2 more"));
        let none = missing(&stack, &BTreeMap::new(), "nope").to_string();
        assert_eq!(none, "Stack apps/web has no output `nope`; it has no outputs");
    }

    #[test]
    fn an_error_about_a_secret_output_does_not_contain_its_value() {
        let stack = stack("web", &json!({}), &json!({}));
        let data = BTreeMap::from([("password".to_owned(), ByteString(b"hunter2".to_vec()))]);
        let error = reveal(&stack, &mut outputs(), Some(&data)).unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("hunter2"), "{error}");
        assert!(reveal(&stack, &mut outputs(), None).is_err());
    }

    #[test]
    fn the_secret_is_that_of_the_newest_successful_update() {
        let with = |kind: &str, phase: &str| update("web-1", kind, &json!({ "phase": phase, "outputs": phase }));
        let updates = [with("preview", "Succeeded"), with("up", "Failed"), with("up", "Succeeded")];
        assert_eq!(secret_name(&updates), Some("Succeeded"));
        assert_eq!(secret_name(&updates[..2]), None);
    }

    #[test]
    fn a_single_string_has_no_quotation_marks() {
        assert_eq!(SingleOutput(json!("logs-4f1c")).text(), "logs-4f1c\n");
        assert_eq!(SingleOutput(json!({ "a": 1 })).text(), "{\"a\":1}\n");
    }
}
