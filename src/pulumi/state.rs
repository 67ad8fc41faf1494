//! Finds and removes the pending create operations that an interrupted run left in a stack's state, lists the resources
//! in the state, and finds its secrets provider. The state has the format that `pulumi stack export` writes.
//!
//! A state can be large. Therefore, this module parses the state as a stream and keeps only the pending operations in
//! memory. To remove pending operations, this module replaces only the part of the text that contains them.

use std::io::Read;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Type of a pending operation that creates a resource.
const CREATING: &str = "creating";
/// Type of a secrets provider that is identified by a URL.
const CLOUD: &str = "cloud";

/// The reason why reading a state failed. The message contains no parts of the state, because these parts can be
/// secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    #[error("failed to parse the exported state at line {line}, column {column}")]
    Malformed { line: usize, column: usize },
    #[error("failed to read the exported state: {0}")]
    Read(String),
}

impl From<serde_json::Error> for StateError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => StateError::Read(kind.to_string()),
            None => StateError::Malformed { line: error.line(), column: error.column() },
        }
    }
}

#[derive(Deserialize)]
struct Exported {
    deployment: Option<Deployment>,
}

#[derive(Deserialize)]
struct Deployment {
    pending_operations: Option<Vec<PendingOperation>>,
}

#[derive(Deserialize)]
struct PendingOperation {
    #[serde(default)]
    r#type: String,
    resource: Option<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    urn: String,
}

#[derive(Deserialize)]
struct ExportedResources {
    deployment: Option<Resources>,
}

#[derive(Deserialize)]
struct Resources {
    resources: Option<Vec<Resource>>,
}

#[derive(Deserialize)]
struct ExportedEncryption {
    deployment: Option<EncryptedDeployment>,
}

#[derive(Deserialize)]
struct EncryptedDeployment {
    secrets_providers: Option<SecretsProvider>,
}

#[derive(Deserialize)]
struct SecretsProvider {
    #[serde(default)]
    r#type: String,
    state: Option<SecretsProviderState>,
}

#[derive(Deserialize)]
struct SecretsProviderState {
    url: Option<String>,
}

#[derive(Deserialize)]
struct RawExported<'a> {
    #[serde(borrow)]
    deployment: Option<RawDeployment<'a>>,
}

#[derive(Deserialize)]
struct RawDeployment<'a> {
    #[serde(borrow)]
    pending_operations: Option<&'a RawValue>,
}

/// Returns the URNs of the resources with a pending create operation.
pub fn pending_creates(state: impl Read) -> Result<Vec<String>, StateError> {
    let exported: Exported = serde_json::from_reader(state)?;
    let pending = exported.deployment.and_then(|deployment| deployment.pending_operations).unwrap_or_default();
    let creating = pending.into_iter().filter(|operation| operation.r#type == CREATING);
    Ok(creating.map(|operation| operation.resource.map(|resource| resource.urn).unwrap_or_default()).collect())
}

/// Returns the URNs of all resources in a state. If the state contains old copies of a resource, the list contains the
/// URN of this resource repeatedly.
pub fn resources(state: impl Read) -> Result<Vec<String>, StateError> {
    let exported: ExportedResources = serde_json::from_reader(state)?;
    let resources = exported.deployment.and_then(|deployment| deployment.resources).unwrap_or_default();
    Ok(resources.into_iter().map(|resource| resource.urn).collect())
}

/// Returns the secrets provider of a state: the URL of a key, `passphrase` or `service`. Returns `None` if the state
/// specifies no secrets provider.
pub fn secrets_provider(state: impl Read) -> Result<Option<String>, StateError> {
    let exported: ExportedEncryption = serde_json::from_reader(state)?;
    let provider = exported.deployment.and_then(|deployment| deployment.secrets_providers);
    Ok(provider.map(|SecretsProvider { r#type, state }| match r#type.as_str() {
        CLOUD => state.and_then(|state| state.url).unwrap_or_default(),
        _ => r#type,
    }))
}

/// Returns the state without the pending create operations. All other parts are unchanged. Returns `None` if the state
/// contains no pending create operations.
pub fn without_pending_creates(state: &str) -> Result<Option<String>, StateError> {
    let exported: RawExported<'_> = serde_json::from_str(state)?;
    let Some(pending) = exported.deployment.and_then(|deployment| deployment.pending_operations) else {
        return Ok(None);
    };
    let operations: Option<Vec<&RawValue>> = serde_json::from_str(pending.get())?;
    let operations = operations.unwrap_or_default();
    let mut kept = Vec::with_capacity(operations.len());
    for operation in &operations {
        let read: PendingOperation = serde_json::from_str(operation.get())?;
        if read.r#type != CREATING {
            kept.push(operation.get());
        }
    }
    if kept.len() == operations.len() {
        return Ok(None);
    }
    // `pending` is a slice of `state`, so the difference between the two addresses is the offset of `pending`.
    let start = pending.get().as_ptr().addr() - state.as_ptr().addr();
    let mut changed = state.to_owned();
    changed.replace_range(start..start + pending.get().len(), &format!("[{}]", kept.join(",")));
    Ok(Some(changed))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a state with parts that parsing and serialization would change: large numbers, key order, spaces and
    /// escapes. One resource has an input with the same name as the list of pending operations.
    fn state(pending: &str) -> String {
        format!(
            "{{\n  \"version\": 3,\n  \"deployment\": {{\"zeta\": 123456789012345678901234567890.10,  \"alpha\":\"\\u00e9\",\n\
             \"resources\": [{{\"urn\": \"urn:a\", \"inputs\": {{\"pending_operations\": [{{\"type\": \"creating\"}}]}}}}]{pending},\n\
             \"metadata\": {{}}}}}}\n"
        )
    }

    const CREATE: &str = r#"{"resource": {"urn": "urn:new", "inputs": {"n": 1.0}}, "type": "creating"}"#;
    const UPDATE: &str = r#"{"resource": {"urn": "urn:old", "inputs": {"n": 1.0}}, "type": "updating"}"#;

    #[test]
    fn all_resources_in_a_state_are_listed() {
        assert_eq!(resources(state("").as_bytes()).unwrap(), ["urn:a"]);
        for empty in ["{}", r#"{"deployment": null}"#, r#"{"deployment": {"resources": null}}"#] {
            assert_eq!(resources(empty.as_bytes()).unwrap(), Vec::<String>::new(), "{empty}");
        }
    }

    #[test]
    fn the_secrets_provider_of_a_state_is_found() {
        let provider = |provider: &str| {
            let state =
                format!(r#"{{"version": 3, "deployment": {{"secrets_providers": {provider}, "resources": []}}}}"#);
            secrets_provider(state.as_bytes()).unwrap()
        };
        let key = provider(r#"{"type": "cloud", "state": {"url": "hashivault://key", "encryptedkey": "a2V5"}}"#);
        assert_eq!(key.as_deref(), Some("hashivault://key"));
        let passphrase = provider(r#"{"type": "passphrase", "state": {"salt": "v1:a:b"}}"#);
        assert_eq!(passphrase.as_deref(), Some("passphrase"));
        assert_eq!(provider("null"), None);
        assert_eq!(secrets_provider(state("").as_bytes()), Ok(None));
    }

    #[test]
    fn pending_creates_are_found_and_removed_without_other_changes() {
        let pending = |operations: &[&str]| state(&format!(",\"pending_operations\": [{}]", operations.join(", ")));
        let left = |operations: &[&str]| state(&format!(",\"pending_operations\": [{}]", operations.join(",")));
        let table = [
            (state(""), vec![], None),
            (state(",\"pending_operations\": null"), vec![], None),
            (pending(&[]), vec![], None),
            (pending(&[UPDATE]), vec![], None),
            (pending(&[CREATE]), vec!["urn:new"], Some(left(&[]))),
            (pending(&[UPDATE, CREATE, UPDATE]), vec!["urn:new"], Some(left(&[UPDATE, UPDATE]))),
            (pending(&[CREATE, r#"{"type": "creating"}"#]), vec!["urn:new", ""], Some(left(&[]))),
            (r#"{"version": 3, "deployment": null}"#.to_owned(), vec![], None),
            (r#"{"version": 3}"#.to_owned(), vec![], None),
        ];
        for (text, found, changed) in table {
            assert_eq!(pending_creates(text.as_bytes()).expect("a state"), found, "{text}");
            assert_eq!(without_pending_creates(&text).expect("a state"), changed, "{text}");
        }
    }

    #[test]
    fn an_invalid_state_is_rejected_without_quoting_it() {
        for text in
            ["", "hunter2", "[]", "{\"deployment\": \"hunter2\"}", "{\"deployment\": {\"pending_operations\": {}}}"]
        {
            let error = pending_creates(text.as_bytes()).expect_err("should reject invalid JSON");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            let error = without_pending_creates(text).expect_err("should reject invalid JSON");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let error = pending_creates(Broken).expect_err("should report the read error");
        assert!(matches!(error, StateError::Read(_)), "{error}");
    }

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_causes_a_panic(text in "(\\{|\\}|\\[|\\]|\"deployment\":|\"pending_operations\":|\"type\":|\"creating\"|,|null|.){0,40}") {
            let _ = pending_creates(text.as_bytes());
            let _ = without_pending_creates(&text);
        }

        #[test]
        fn only_pending_creates_are_removed_from_the_state(updates in proptest::collection::vec(any::<bool>(), 0..6)) {
            let operations: Vec<_> = updates.iter().map(|update| if *update { UPDATE } else { CREATE }).collect();
            let text = state(&format!(",\"pending_operations\": [{}]", operations.join(" , ")));
            let creations = updates.iter().filter(|update| !**update).count();
            prop_assert_eq!(pending_creates(text.as_bytes()).expect("a state").len(), creations);
            let changed = without_pending_creates(&text).expect("a state").unwrap_or(text);
            prop_assert_eq!(pending_creates(changed.as_bytes()).expect("a state").len(), 0);
            prop_assert_eq!(changed.matches("urn:old").count(), updates.len() - creations);
        }
    }
}
