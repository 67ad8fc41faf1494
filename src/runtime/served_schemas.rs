//! Compares the CustomResourceDefinitions that the API server serves with those of this version. The API server drops fields that an
//! older definition does not have, without an error: a controller would forget which runs it has started.

use std::time::Duration;

use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::runtime::reads::ReadError;

/// How often the schemas are read until they are complete.
const INTERVAL: Duration = Duration::from_secs(3);
/// How often the same problem is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of fields that are named for each CustomResourceDefinition.
const MOST_FIELDS: usize = 5;
/// With this value, the API server keeps what the schema does not name.
const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";

/// Waits until the API server serves every field of these definitions, and logs what is missing. Needs no permission beyond
/// `system:discovery`, which all ServiceAccounts have; without it, nothing is compared. Takes the definitions: they have megabytes.
pub async fn until_complete(client: &Client, timeout: Duration, definitions: Vec<CustomResourceDefinition>) {
    let mut logged: Option<(String, Instant)> = None;
    loop {
        let problem = match problems(client, timeout, &definitions).await {
            Ok(problems) if problems.is_empty() => {
                if logged.is_some() {
                    tracing::info!("all fields of the CustomResourceDefinitions are served now");
                }
                return;
            }
            Ok(problems) => format!(
                "{}. Apply the CustomResourceDefinitions of this version; until then this process is not ready and does not lead",
                problems.join("; ")
            ),
            Err(error) if error.is_forbidden() => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot compare the CustomResourceDefinitions with those of this version");
                return;
            }
            Err(error) => format!("cannot read the served schemas: {}", crate::telemetry::chain(&error)),
        };
        let is_logged = logged.as_ref().is_some_and(|(text, at)| *text == problem && at.elapsed() < LOG_INTERVAL);
        if !is_logged {
            tracing::error!(problem, "the CustomResourceDefinitions are not those of this version");
            logged = Some((problem, Instant::now()));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A sentence for each definition that is not served as it should be.
async fn problems(
    client: &Client,
    timeout: Duration,
    definitions: &[CustomResourceDefinition],
) -> Result<Vec<String>, ReadError> {
    let mut problems = Vec::new();
    for definition in definitions {
        let spec = &definition.spec;
        let Some(version) = spec.versions.iter().find(|version| version.storage) else { continue };
        let served = served(client, timeout, &spec.group, &version.name).await?;
        let ours = serde_json::to_value(&version.schema).unwrap_or_default();
        let ours = ours.get("openAPIV3Schema").unwrap_or(&Value::Null);
        let name = format!("{}.{}", spec.names.plural, spec.group);
        match served.as_ref().and_then(|served| schema_of(served, &spec.names.kind)) {
            None => problems.push(format!("the CustomResourceDefinition {name} does not serve {}", version.name)),
            Some(served) => {
                let missing = missing_fields(ours, served);
                if !missing.is_empty() {
                    problems.push(format!(
                        "the CustomResourceDefinition {name} is older than this controller and drops {}",
                        named(&missing)
                    ));
                }
            }
        }
    }
    Ok(problems)
}

/// The OpenAPI document of a version; none where nothing of that version is served.
async fn served(client: &Client, timeout: Duration, group: &str, version: &str) -> Result<Option<Value>, ReadError> {
    let what = || format!("the OpenAPI schemas of {group}/{version}");
    let request = async {
        let request = Request::get(format!("/openapi/v3/apis/{group}/{version}")).body(Vec::new());
        client.request::<Value>(request.map_err(kube::Error::HttpError)?).await
    };
    match tokio::time::timeout(timeout, request).await {
        Ok(Ok(document)) => Ok(Some(document)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(kube::Error::Api(status))) => Err(ReadError::Refused {
            what: what(),
            code: status.code,
            reason: status.reason.clone(),
            message: status.message.clone(),
        }),
        Ok(Err(source)) => Err(ReadError::Request { what: what(), source: Box::new(source) }),
        Err(_) => Err(ReadError::Timeout { what: what(), limit: timeout }),
    }
}

/// The schema of a kind in the OpenAPI document of its version.
fn schema_of<'a>(document: &'a Value, kind: &str) -> Option<&'a Value> {
    let schemas = document.pointer("/components/schemas")?.as_object()?;
    schemas.values().find(|schema| {
        let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
        kinds.into_iter().flatten().any(|named| named.get("kind").and_then(Value::as_str) == Some(kind))
    })
}

fn named(missing: &[String]) -> String {
    let more = missing.len().saturating_sub(MOST_FIELDS);
    let named = missing.iter().take(MOST_FIELDS).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named} and {more} more fields") }
}

/// The paths of the fields of `spec` and `status` that the served schema does not have.
fn missing_fields(ours: &Value, served: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    for part in ["spec", "status"] {
        if let Some(ours) = ours.get("properties").and_then(|properties| properties.get(part)) {
            let served = served.get("properties").and_then(|properties| properties.get(part));
            compare(part, ours, served, &mut missing);
        }
    }
    missing
}

fn compare(path: &str, ours: &Value, served: Option<&Value>, missing: &mut Vec<String>) {
    let Some(served) = served else {
        missing.push(path.to_owned());
        return;
    };
    if preserves(served) {
        return;
    }
    if preserves(ours) {
        missing.push(format!("{path}.*"));
        return;
    }
    let fields = |schema: &Value| schema.get("properties").and_then(Value::as_object).cloned();
    let served_fields: Map<String, Value> = fields(served).unwrap_or_default();
    for (name, ours) in fields(ours).unwrap_or_default() {
        compare(&format!("{path}.{name}"), &ours, served_fields.get(&name), missing);
    }
    for (keyword, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let Some(ours) = ours.get(keyword).filter(|schema| schema.is_object()) {
            compare(&format!("{path}{suffix}"), ours, served.get(keyword), missing);
        }
    }
}

fn preserves(schema: &Value) -> bool {
    schema.get(PRESERVES).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::api::schema::custom_resource_definitions;
    use crate::runtime::fake_api::{Answer, client};

    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn a_field_that_the_served_schema_lacks_is_named_by_its_path() {
        let text = json!({"type": "string"});
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let list = |items: &Value| json!({"type": "array", "items": items});
        let map = |values: &Value| json!({"type": "object", "additionalProperties": values});
        let rows = [
            (object(json!({"a": text})), object(json!({"a": text, "b": text})), vec![]),
            (object(json!({"a": text, "b": text})), object(json!({"a": text})), vec!["status.b"]),
            (
                object(json!({"a": object(json!({"b": text}))})),
                object(json!({"a": object(json!({}))})),
                vec!["status.a.b"],
            ),
            (
                object(json!({"a": list(&object(json!({"b": text})))})),
                object(json!({"a": list(&object(json!({"c": text})))})),
                vec!["status.a[].b"],
            ),
            (
                object(json!({"a": map(&object(json!({"b": text})))})),
                object(json!({"a": map(&object(json!({})))})),
                vec!["status.a.*.b"],
            ),
            (object(json!({"a": map(&text)})), object(json!({"a": object(json!({}))})), vec!["status.a.*"]),
            (object(json!({"a": object(json!({"b": text}))})), object(json!({"a": any})), vec![]),
            (object(json!({"a": any})), object(json!({"a": object(json!({}))})), vec!["status.a.*"]),
            (object(json!({"a": any})), object(json!({"a": any})), vec![]),
        ];
        for (ours, served, wanted) in rows {
            let (ours, served) = (object(json!({"status": ours})), object(json!({"status": served})));
            assert_eq!(missing_fields(&ours, &served), wanted, "{ours} {served}");
        }
    }

    #[test]
    fn a_definition_has_every_field_of_itself() {
        for definition in custom_resource_definitions() {
            let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
            let ours = &schema["openAPIV3Schema"];
            assert!(ours["properties"]["status"].is_object(), "{}", definition.spec.names.kind);
            assert_eq!(missing_fields(ours, ours), Vec::<String>::new());
        }
    }

    /// What the API server says of one version, with the statuses of Workspaces as they are in an older version or not.
    fn document(path: &str, is_older: bool) -> Option<Value> {
        let mut schemas = Map::new();
        for definition in custom_resource_definitions() {
            let (group, version) = (&definition.spec.group, &definition.spec.versions[0]);
            if path != format!("/openapi/v3/apis/{group}/{}", version.name) {
                continue;
            }
            let kind = &definition.spec.names.kind;
            let mut schema = serde_json::to_value(&version.schema).unwrap()["openAPIV3Schema"].take();
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": group, "version": version.name, "kind": kind}]);
            if is_older && kind == "Workspace" {
                let status = schema["properties"]["status"]["properties"].as_object_mut().unwrap();
                status.remove("mountedInputs").expect("a field");
            }
            schemas.insert(format!("{group}.{kind}"), schema);
        }
        (!schemas.is_empty()).then(|| json!({"openapi": "3.0.0", "components": {"schemas": schemas}}))
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_definition_is_waited_for_until_it_is_replaced() {
        let is_older = Arc::new(Mutex::new(true));
        let seen = is_older.clone();
        let (client, log) = client(move |asked| match document(&asked.path, *seen.lock().unwrap()) {
            Some(document) => Answer::Json(200, document),
            None => Answer::refusal(404, "NotFound"),
        });
        let definitions = custom_resource_definitions();
        let limit = Duration::from_secs(5);
        assert_eq!(
            problems(&client, limit, &definitions).await.unwrap(),
            ["the CustomResourceDefinition workspaces.auto.pulumi.com is older than this controller and drops \
                 status.mountedInputs"]
        );
        let mut waiting = Box::pin(until_complete(&client, limit, definitions.clone()));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut waiting).await.is_err(), "it waits");
        *is_older.lock().unwrap() = false;
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it goes on");
        assert!(log.verbs().iter().all(|verb| verb.starts_with("GET /openapi/v3/apis/")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_definition_that_is_not_served_is_waited_for_and_a_refusal_is_not() {
        let definitions = custom_resource_definitions();
        let limit = Duration::from_secs(5);
        let (absent, _) = client(|_| Answer::refusal(404, "NotFound"));
        let found = problems(&absent, limit, &definitions).await.unwrap();
        assert_eq!(found[0], "the CustomResourceDefinition stacks.pulumi.com does not serve v1");
        let (refused, _) = client(|_| Answer::refusal(403, "Forbidden"));
        let done = tokio::time::timeout(Duration::from_secs(60), until_complete(&refused, limit, definitions)).await;
        done.expect("it does not wait for what it may not read");
    }
}
