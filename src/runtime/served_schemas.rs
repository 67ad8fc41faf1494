//! Compares the CustomResourceDefinitions that the API server serves with the definitions of this controller version.
//! The API server silently drops fields that an older definition lacks, so the controller would lose its record of
//! started runs.

use std::io::{self, Read, Write};
use std::time::Duration;

use http::Request;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::api::definitions::{api_versions, custom_resource_definitions};
use crate::runtime::reads::ReadError;
use crate::subprocess::{self, Limits, Subprocess};

/// Interval between two reads of the served schemas while fields are missing.
const INTERVAL: Duration = Duration::from_secs(3);
/// Minimum interval between two log messages about the same problem.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of missing fields that the message about a CustomResourceDefinition lists.
const MAX_LISTED_FIELDS: usize = 5;
/// Schema keyword with which the API server keeps fields that are not in the schema.
const PRESERVE_UNKNOWN_FIELDS: &str = "x-kubernetes-preserve-unknown-fields";
/// Command-line argument that selects the child's role.
const ROLE: &str = "compare-schemas";
/// Limits of the child process.
const LIMITS: Limits = Limits {
    memory: 96 << 20,
    address_space: 512 << 20,
    stack: 8 << 20,
    cpu: Duration::from_secs(10),
    nice: 0,
    wall: Duration::from_secs(30),
    file_size: 0,
    open_files: 16,
    threads: false,
    response: 64 << 10,
};

/// Served schemas for one version of an API group.
#[derive(Debug, Serialize, Deserialize)]
struct Served {
    group: String,
    version: String,
    /// OpenAPI document, or `None` if the version is not served.
    document: Option<String>,
}

/// Waits until the API server serves all fields that this version defines, and logs missing fields. The reads require
/// only the `system:discovery` permissions, which all ServiceAccounts have by default. Without these permissions, the
/// controller skips the comparison.
///
/// A child process compares the definitions, because they require megabytes of memory that the allocator would not
/// return to the operating system.
pub async fn until_complete(client: &Client, timeout: Duration, subprocess: &Subprocess) {
    let compare = async |served: &[Served]| {
        let request = serde_json::to_vec(served).map_err(|error| error.to_string())?;
        let response = subprocess.run(ROLE, &request, &LIMITS).await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&response).map_err(|error| error.to_string())
    };
    until_complete_by(client, timeout, compare).await;
}

/// Compares the served documents from stdin with the definitions of this version, and writes the problems to stdout.
/// This function runs in the child process.
///
/// # Errors
/// Returns an error if the limits cannot be applied or the documents cannot be read.
pub fn compare_stdin() -> io::Result<()> {
    let mut request = Vec::new();
    subprocess::confined_input()?.read_to_end(&mut request)?;
    let served: Vec<Served> = serde_json::from_slice(&request)?;
    drop(request);
    io::stdout().write_all(&serde_json::to_vec(&problems(&served)?)?)
}

async fn until_complete_by(
    client: &Client,
    timeout: Duration,
    compare: impl AsyncFn(&[Served]) -> Result<Vec<String>, String>,
) {
    let mut logged: Option<(String, Instant)> = None;
    loop {
        let problem = match served(client, timeout).await {
            Ok(served) => match compare(&served).await {
                Ok(problems) if problems.is_empty() => {
                    if logged.is_some() {
                        tracing::info!("CustomResourceDefinitions match this version");
                    }
                    return;
                }
                Ok(problems) => format!(
                    "{}: apply the CustomResourceDefinitions of this version; until then, this process is not ready and does not become the leader",
                    problems.join("; ")
                ),
                Err(error) => format!("failed to compare the served schemas with this version: {error}"),
            },
            Err(error) if error.is_forbidden() => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "skipping the comparison of the CustomResourceDefinitions with this version");
                return;
            }
            Err(error) => crate::telemetry::chain(&error),
        };
        let is_logged = logged.as_ref().is_some_and(|(text, at)| *text == problem && at.elapsed() < LOG_INTERVAL);
        if !is_logged {
            tracing::error!(problem, "failed to verify that the CustomResourceDefinitions match this version");
            logged = Some((problem, Instant::now()));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Returns a message for each definition that the API server does not serve completely.
fn problems(served: &[Served]) -> io::Result<Vec<String>> {
    let mut documents = Vec::new();
    for Served { group, version, document } in served {
        let document: Option<Value> = document.as_deref().map(serde_json::from_str).transpose()?;
        documents.push(((group.as_str(), version.as_str()), document));
    }
    let mut problems = Vec::new();
    for definition in custom_resource_definitions() {
        let spec = &definition.spec;
        let Some(version) = spec.versions.iter().find(|version| version.storage) else { continue };
        let names = (spec.group.as_str(), version.name.as_str());
        let document = documents.iter().find(|(of, _)| *of == names).and_then(|(_, document)| document.as_ref());
        let ours = serde_json::to_value(&version.schema)?;
        let ours = ours.get("openAPIV3Schema").unwrap_or(&Value::Null);
        let name = format!("{}.{}", spec.names.plural, spec.group);
        match document.and_then(|document| schema_of(document, &spec.names.kind)) {
            None => problems.push(format!("CustomResourceDefinition {name} does not serve version {}", version.name)),
            Some(served) => {
                let missing = missing_fields(ours, served);
                if !missing.is_empty() {
                    problems.push(format!(
                        "CustomResourceDefinition {name} is older than this controller and lacks {}",
                        list_fields(&missing)
                    ));
                }
            }
        }
    }
    Ok(problems)
}

/// Returns the OpenAPI documents for the storage versions of this controller's kinds.
async fn served(client: &Client, timeout: Duration) -> Result<Vec<Served>, ReadError> {
    let mut all = Vec::new();
    for (group, version) in api_versions() {
        let document = document(client, timeout, &group, &version).await?;
        all.push(Served { group, version, document });
    }
    Ok(all)
}

/// Returns the OpenAPI document for a version, or `None` if the API server does not serve the version.
async fn document(client: &Client, timeout: Duration, group: &str, version: &str) -> Result<Option<String>, ReadError> {
    let what = || format!("read the OpenAPI schemas of {group}/{version}");
    let request = async {
        let request = Request::get(format!("/openapi/v3/apis/{group}/{version}")).body(Vec::new());
        client.request_text(request.map_err(kube::Error::HttpError)?).await
    };
    match tokio::time::timeout(timeout, request).await {
        Ok(Ok(document)) => Ok(Some(document)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(kube::Error::Api(status))) => Err(ReadError::Refused {
            request: what(),
            code: status.code,
            reason: status.reason.clone(),
            message: status.message.clone(),
        }),
        Ok(Err(source)) => Err(ReadError::Request { request: what(), source: Box::new(source) }),
        Err(_) => Err(ReadError::Timeout { request: what(), limit: timeout }),
    }
}

/// Returns a kind's schema from the OpenAPI document for the kind's version.
fn schema_of<'a>(document: &'a Value, kind: &str) -> Option<&'a Value> {
    let schemas = document.pointer("/components/schemas")?.as_object()?;
    schemas.values().find(|schema| {
        let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
        kinds.into_iter().flatten().any(|named| named.get("kind").and_then(Value::as_str) == Some(kind))
    })
}

fn list_fields(missing: &[String]) -> String {
    let more = missing.len().saturating_sub(MAX_LISTED_FIELDS);
    let listed = missing.iter().take(MAX_LISTED_FIELDS).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

/// Returns the paths of the `spec` and `status` fields that the served schema lacks.
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
    if preserves_unknown_fields(served) {
        return;
    }
    if preserves_unknown_fields(ours) {
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

fn preserves_unknown_fields(schema: &Value) -> bool {
    schema.get(PRESERVE_UNKNOWN_FIELDS).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests;
