//! Flux sources: any object with `status.artifact`.

use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Resource, ResourceExt};

use crate::api::pulumi::{FluxSource, SourceReference};
use crate::api::source::SourceArtifact;
use crate::artifact::{Digest, Directory};
use crate::source::{Resolved, Unavailable};

/// The API group of Flux's own sources.
pub const GROUP: &str = "source.toolkit.fluxcd.io";
/// The version of that group that is read.
pub const VERSION: &str = "v1";
/// The kinds that can be named in a `sourceRef`.
pub const KINDS: [&str; 1] = ["GitRepository"];

/// How long one read of a source may take.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// The API resource of a source kind. Flux's plurals are regular but for `GitRepository` and `OCIRepository`.
pub fn api_resource(kind: &str) -> ApiResource {
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{}ies", stem.to_lowercase()),
        None => format!("{}s", kind.to_lowercase()),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), &plural)
}

/// Reads the source and says which artifact it has now.
pub async fn resolve(client: &Client, namespace: &str, source: &FluxSource) -> Result<Resolved, Unavailable> {
    let resource = check_reference(&source.source_ref)?;
    let directory = parse_directory(source.dir.as_deref())?;
    let name = source.source_ref.name.as_str();
    let what = format!("{} {namespace}/{name}", resource.kind);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let object = match tokio::time::timeout(READ_TIMEOUT, api.get_opt(name)).await {
        Err(_) => return Err(Unavailable::NotYet(format!("reading {what} took longer than {READ_TIMEOUT:?}"))),
        Ok(Err(error)) => return Err(Unavailable::NotYet(format!("cannot read {what}: {error}"))),
        Ok(Ok(None)) => return Err(Unavailable::NotYet(format!("{what} does not exist"))),
        Ok(Ok(Some(object))) => object,
    };
    artifact_of(&object, &what, directory)
}

/// Checks that a reference names a kind that is supported.
fn check_reference(reference: &SourceReference) -> Result<ApiResource, Unavailable> {
    let (group, kind) = (
        reference.api_version.as_deref().map_or(GROUP, |v| v.split_once('/').map_or("", |(group, _)| group)),
        reference.kind.as_str(),
    );
    if group != GROUP || !KINDS.contains(&kind) {
        let group_and_kind = format!("{}/{kind}", reference.api_version.as_deref().unwrap_or(GROUP));
        return Err(Unavailable::Invalid(format!(
            "spec.fluxSource.sourceRef names {group_and_kind}, which is not supported; supported: {} of {GROUP}",
            KINDS.join(", "),
        )));
    }
    Ok(api_resource(kind))
}

fn parse_directory(dir: Option<&str>) -> Result<Directory, Unavailable> {
    dir.unwrap_or_default()
        .parse()
        .map_err(|error| Unavailable::Invalid(format!("spec.fluxSource.dir is not valid: {error}")))
}

/// Reads `status.artifact`. The source's Ready condition is not asked: a source whose upstream is down keeps its last
/// artifact, and that one is still good. An artifact of an older spec is not: the source is about to replace it.
fn artifact_of(object: &DynamicObject, what: &str, directory: Directory) -> Result<Resolved, Unavailable> {
    let status = object.data.get("status");
    let artifact = status.and_then(|s| s.get("artifact")).filter(|a| !a.is_null());
    let Some(artifact) = artifact else {
        return Err(Unavailable::NotYet(format!("{what} has no artifact yet{}", ready_message(object))));
    };
    let observed = status.and_then(|s| s.get("observedGeneration")).and_then(serde_json::Value::as_i64);
    if let (Some(observed), Some(generation)) = (observed, object.meta().generation)
        && observed >= 0
        && observed < generation
    {
        return Err(Unavailable::NotYet(format!("{what} was changed and has no artifact of its new spec yet")));
    }
    let artifact: SourceArtifact = serde_json::from_value(artifact.clone())
        .map_err(|error| Unavailable::Invalid(format!("status.artifact of {what} cannot be read: {error}")))?;
    let digest = artifact
        .digest
        .parse::<Digest>()
        .map_err(|error| Unavailable::NotYet(format!("the artifact of {what} is refused: {error}")))?;
    Ok(Resolved { url: artifact.url, revision: artifact.revision, digest, directory })
}

/// What the source says of itself, to be put behind "has no artifact yet".
fn ready_message(object: &DynamicObject) -> String {
    let conditions = object.data.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    let ready = conditions.into_iter().flatten().find(|c| c.get("type").and_then(|t| t.as_str()) == Some("Ready"));
    match ready.and_then(|c| c.get("message")).and_then(serde_json::Value::as_str) {
        Some(message) if !message.is_empty() => format!(": {message}"),
        _ => String::new(),
    }
}

/// Whether an object is the one that a reference names.
pub fn is_named_by(object: &DynamicObject, kind: &str, reference: &SourceReference) -> bool {
    reference.kind == kind && reference.name == object.name_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn source(status: serde_json::Value) -> DynamicObject {
        let mut object = DynamicObject::new("app", &api_resource("GitRepository")).within("apps");
        object.metadata.generation = Some(2);
        object.data = json!({"status": status});
        object
    }

    fn resolve(status: serde_json::Value) -> Result<Resolved, Unavailable> {
        artifact_of(&source(status), "GitRepository apps/app", "".parse().expect("root"))
    }

    #[test]
    fn an_artifact_is_taken_whatever_ready_says() {
        let resolved = resolve(json!({
            "observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "False", "message": "upstream is down"}],
            "artifact": {"url": "http://s/a.tar.gz", "revision": "main@sha1:1", "digest": DIGEST},
        }));
        assert_eq!(resolved.map(|r| r.revision), Ok("main@sha1:1".to_owned()));
    }

    #[test]
    fn what_cannot_be_taken_is_named() {
        let artifact = |digest: &str| json!({"url": "http://s/a.tar.gz", "revision": "r", "digest": digest});
        let rows = [
            (json!({}), "has no artifact yet"),
            (
                json!({"conditions": [{"type": "Ready", "status": "False", "message": "auth failed"}]}),
                "has no artifact yet: auth failed",
            ),
            (json!({"observedGeneration": 1, "artifact": artifact(DIGEST)}), "was changed"),
            (json!({"observedGeneration": 2, "artifact": artifact("")}), "is refused"),
            (json!({"observedGeneration": 2, "artifact": artifact("sha1:aa")}), "is refused"),
            (json!({"artifact": {"url": 1}}), "cannot be read"),
        ];
        for (status, wanted) in rows {
            let error = resolve(status).expect_err("it is refused").to_string();
            assert!(error.contains(wanted), "{error:?} does not say {wanted:?}");
            assert!(error.contains("GitRepository apps/app"), "{error:?} does not name the source");
        }
    }

    #[test]
    fn plurals_are_those_of_flux() {
        let rows = [("GitRepository", "gitrepositories"), ("OCIRepository", "ocirepositories"), ("Bucket", "buckets")];
        for (kind, plural) in rows {
            assert_eq!(api_resource(kind).plural, plural);
        }
    }

    #[test]
    fn a_reference_to_another_kind_is_refused_by_name() {
        let reference = |api_version: Option<&str>, kind: &str| SourceReference {
            api_version: api_version.map(str::to_owned),
            kind: kind.to_owned(),
            name: "x".to_owned(),
        };
        assert!(check_reference(&reference(None, "GitRepository")).is_ok());
        assert!(check_reference(&reference(Some("source.toolkit.fluxcd.io/v1beta2"), "GitRepository")).is_ok());
        assert!(check_reference(&reference(Some("v1"), "GitRepository")).is_err());
        let error = check_reference(&reference(Some("example.com/v1"), "Thing")).expect_err("unknown");
        assert!(error.to_string().contains("example.com/v1/Thing"), "{error}");
    }
}
