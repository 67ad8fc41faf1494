//! Checks that the settings file in the workspace pod contains the Stack configuration.
//!
//! The agent writes the configuration at the start of a run. Before the first run with the installed source, for
//! example after a pod replacement, the pod contains only the settings file from the source. A preview would then
//! report changes that no run would make.

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::phase;
use serde_json::{Deserializer, Value};

/// Returns a message if a preview would not use the Stack configuration. The message contains the cause and the next
/// step. `records` contains the agent's records about the installed source and the last written settings.
pub fn refusal(stack: &Stack, pod: &str, records: &str) -> Option<String> {
    if is_written(&stack.spec.stack, records) {
        return None;
    }
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    let resume = match phase::is_suspended(stack) {
        true => format!("kubectl pulumi resume -n {namespace} {name}, and then "),
        false => String::new(),
    };
    Some(format!(
        "no run has used the source in Pod {pod} since the pod started or the source changed, so the pod does not contain \
         the configuration of the Stack; first run: {resume}kubectl pulumi reconcile -n {namespace} {name}"
    ))
}

/// Returns whether the agent has written the settings of this Pulumi stack to the installed source.
fn is_written(stack: &str, records: &str) -> bool {
    let records: Vec<Value> = Deserializer::from_str(records).into_iter::<Value>().map_while(Result::ok).collect();
    let [source, settings] = records.as_slice() else { return false };
    let source_tree = source.pointer("/current_source/tree").and_then(Value::as_str);
    // If a run has failed early, the agent has not encrypted all secret values.
    let is_complete = settings.get("missing_secrets").and_then(Value::as_array).is_none_or(Vec::is_empty);
    let recorded = settings.get("stack").and_then(Value::as_str).unwrap_or_default();
    // If a default organization is set, the record contains the fully qualified name of the Pulumi stack.
    let is_of_stack = recorded == stack || recorded.rsplit('/').next() == Some(stack);
    is_complete && is_of_stack && source_tree.is_some() && source_tree == settings.get("tree").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;

    #[test]
    fn a_preview_requires_a_run_with_the_installed_source() {
        let source = |tree: &str| json!({ "current_source": { "digest": "sha256:a", "tree": tree } }).to_string();
        let settings = |tree: &str, stack: &str, missing: &[&str]| {
            json!({ "tree": tree, "stack": stack, "missing_secrets": missing }).to_string()
        };
        let rows = [
            ("a run has used the source", format!("{}\n{}", source("a"), settings("a", "dev", &[])), true),
            ("with an organization", format!("{}{}", source("a"), settings("a", "acme/web/dev", &[])), true),
            ("no source and no run", String::new(), false),
            ("no run in this pod", source("a"), false),
            ("no source", settings("a", "dev", &[]), false),
            ("the source has changed", format!("{}{}", source("b"), settings("a", "dev", &[])), false),
            ("another Pulumi stack", format!("{}{}", source("a"), settings("a", "test", &[])), false),
            ("a secret is missing", format!("{}{}", source("a"), settings("a", "dev", &["web:key"])), false),
            ("no records", "not JSON".to_owned(), false),
        ];
        for (case, records, expected) in rows {
            assert_eq!(is_written("dev", &records), expected, "{case}");
        }
    }

    #[test]
    fn the_refusal_contains_the_command_that_starts_a_run() {
        let cause = refusal(&stack("web", &json!({}), &json!({})), "web-workspace-0", "").unwrap();
        assert!(cause.ends_with("first run: kubectl pulumi reconcile -n apps web"), "{cause}");
        let suspended = stack("web", &json!({ "suspend": true }), &json!({}));
        let cause = refusal(&suspended, "web-workspace-0", "").unwrap();
        assert!(cause.contains("kubectl pulumi resume -n apps web, and then kubectl pulumi reconcile"), "{cause}");
    }
}
