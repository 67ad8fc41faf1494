//! Merge of a Stack's `updateTemplate` over the Update generated for a run.

use serde_json::Value;

use super::keys::UPDATE;
use super::strategic::merge;
use super::template::{Template, TemplateError};
use crate::api::auto::Update;

/// Fields that identify the run, such as its type and artifact, are excluded because the Stack sets them.
const TEMPLATE: Template = Template {
    name: "updateTemplate",
    spec_fields: &[
        "continueOnError",
        "expectNoChanges",
        "expectNoRefreshChanges",
        "idleTimeout",
        "lockRecovery",
        "message",
        "parallel",
        "priority",
        "refresh",
        "remove",
        "replace",
        "runProgram",
        "target",
        "targetDependents",
        "timeout",
        "ttlAfterCompleted",
    ],
};

/// Merges a Stack's `updateTemplate` (`metadata` and `spec`) over a generated Update.
pub fn update_template(generated: &Update, template: &Value) -> Result<Update, TemplateError> {
    let template = TEMPLATE.check(template)?;
    let generated = serde_json::to_value(generated).map_err(TemplateError::Generated)?;
    let merged = merge(generated, &Value::Object(template), &UPDATE).map_err(TEMPLATE.merge_error())?;
    serde_json::from_value(merged).map_err(TEMPLATE.invalid())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::auto::UpdateSpec;

    #[test]
    fn an_update_template_sets_options_but_not_the_identity_of_a_run() {
        let spec = UpdateSpec { message: Some("generated".to_owned()), refresh: Some(true), ..UpdateSpec::default() };
        let generated = Update::new("app-1", spec);
        let template = json!({
            "metadata": {"labels": {"team": "a"}},
            "spec": {"parallel": 3, "continueOnError": true, "ttlAfterCompleted": "1h", "refresh": null},
        });
        let merged = update_template(&generated, &template).expect("valid");
        assert_eq!(merged.metadata.labels, Some([("team".to_owned(), "a".to_owned())].into()));
        let spec = merged.spec;
        assert_eq!((spec.parallel, spec.continue_on_error, spec.refresh), (Some(3), Some(true), None));
        assert_eq!((spec.ttl_after_completed.as_deref(), spec.message.as_deref()), (Some("1h"), Some("generated")));
        let rows = [
            (json!({"spec": {"type": "preview"}}), "updateTemplate.spec.type is not supported"),
            (json!({"spec": {"artifact": {}}}), "updateTemplate.spec.artifact is not supported"),
            (json!({"data": {}}), "updateTemplate.data is not supported"),
            (json!({"metadata": {"name": "x"}}), "updateTemplate.metadata.name is not supported"),
            (json!({"spec": []}), "updateTemplate.spec must be an object"),
        ];
        for (template, wanted) in rows {
            assert_eq!(update_template(&generated, &template).expect_err("refused").to_string(), wanted);
        }
        let wrong =
            update_template(&generated, &json!({"spec": {"parallel": "many"}})).expect_err("refused").to_string();
        assert!(wrong.starts_with("invalid updateTemplate: "), "{wrong}");
    }
}
