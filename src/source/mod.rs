//! Resolves a Stack's source to an artifact, or returns the reason why no artifact is available.

pub mod flux;
pub mod git;
pub mod inline;
pub mod kinds;
pub mod program;
mod resolution;

use crate::api::pulumi::StackSpec;
use crate::artifact::Directory;
use crate::source::flux::Reference;
use crate::source::kinds::GroupKind;

pub use resolution::{Origin, Resolved, Unavailable};

/// Returns the reference to a Stack's source object.
pub fn reference(spec: &StackSpec) -> Result<Reference, Unavailable> {
    match (&spec.flux_source, &spec.program_ref) {
        (Some(source), None) => Reference::parse(source),
        (None, Some(reference)) => {
            let (name, directory) = (reference.name.clone(), Directory::root());
            Ok(Reference { kind: program::kind(), name, namespace: None, directory })
        }
        (Some(_), Some(_)) => Err(Unavailable::Invalid(
            "spec.fluxSource and spec.programRef are mutually exclusive: remove one of them".to_owned(),
        )),
        (None, None) => {
            Err(Unavailable::Invalid("Stack has no source object: set spec.fluxSource or spec.programRef".to_owned()))
        }
    }
}

/// Returns the source for a Stack that refers to neither a source object nor a repository. The source is the inline
/// source in the `workspaceTemplate`, if any. Otherwise, the init containers provide the files. Returns `None` if the
/// Stack refers to a source object or a repository.
pub fn without_object(spec: &StackSpec) -> Result<Option<Resolved>, Unavailable> {
    let inline = template_source(spec)?;
    let object = [
        ("fluxSource", spec.flux_source.is_some()),
        ("programRef", spec.program_ref.is_some()),
        (git::field(spec).unwrap_or("projectRepo"), git::has_git_fields(spec)),
    ];
    match (object.into_iter().find(|(_, is_set)| *is_set), inline.first()) {
        (Some((object, _)), Some(field)) => Err(Unavailable::Invalid(format!(
            "spec.{object} and spec.workspaceTemplate.spec.{field} are mutually exclusive: remove one of them"
        ))),
        (Some(_), None) => Ok(None),
        (None, Some("git")) => inline.repository("").map(|_| None).map_err(in_template),
        (None, _) => Ok(Some(inline.resolve().map_err(in_template)?.unwrap_or_else(inline::from_init_containers))),
    }
}

/// Returns a Stack's repository, if the spec or the `workspaceTemplate` contains one.
pub fn repository(spec: &StackSpec, namespace: &str) -> Result<Option<git::RepositorySpec>, Unavailable> {
    if let Some(repository) = git::RepositorySpec::of_stack(spec, namespace).map_err(Unavailable::Invalid)? {
        return Ok(Some(repository));
    }
    let repository = template_source(spec)?.repository(namespace).map_err(in_template)?;
    Ok(repository.map(|repository| git::RepositorySpec { interval: git::interval(spec), ..repository }))
}

/// Returns the inline source in a Stack's `workspaceTemplate`.
fn template_source(spec: &StackSpec) -> Result<inline::InlineSource, Unavailable> {
    let template = spec.workspace_template.as_ref().and_then(|template| template.get("spec"));
    Ok(template.map(inline::InlineSource::of_template).transpose().map_err(in_template)?.unwrap_or_default())
}

fn in_template(error: inline::InlineSourceError) -> Unavailable {
    Unavailable::Invalid(format!("spec.workspaceTemplate.spec: {error}"))
}

/// Returns the kind, namespace and name of each source object that a Stack in the namespace `own` uses. The result
/// includes the policy pack sources. If an invalid spec contains two program sources, returns both objects.
pub fn named_objects(spec: &StackSpec, own: &str) -> Vec<(GroupKind, (String, String))> {
    let flux = spec.flux_source.iter().map(|source| &source.source_ref);
    let flux = flux.chain(spec.policy_packs.iter().map(|pack| &pack.source_ref));
    let flux = flux.filter_map(|source| {
        let namespace = within(source.namespace.as_deref(), own).to_owned();
        Some((flux::kind_of(source)?, (namespace, source.name.clone())))
    });
    let program = spec.program_ref.as_ref();
    let program = program.map(|reference| (program::kind(), (own.to_owned(), reference.name.clone())));
    flux.chain(program).collect()
}

/// Returns `namespace`, or `own` if `namespace` is missing or empty.
pub fn within<'n>(namespace: Option<&'n str>, own: &'n str) -> &'n str {
    namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    use crate::api::pulumi::{FluxSource, ProgramReference, SourceReference};
    use crate::artifact::InPod;

    fn flux(api_version: Option<&str>, kind: &str, name: &str) -> Option<FluxSource> {
        let api_version = api_version.map(str::to_owned);
        let source_ref = SourceReference { api_version, kind: kind.to_owned(), name: name.to_owned(), namespace: None };
        Some(FluxSource { source_ref, dir: None })
    }

    fn program(name: &str) -> Option<ProgramReference> {
        Some(ProgramReference { name: name.to_owned() })
    }

    #[test]
    fn a_stack_has_one_source_object_and_follows_only_its_changes() {
        let bucket = GroupKind::new(flux::GROUP, "Bucket");
        let rows = [
            (flux(None, "Bucket", "app"), None, Some((&bucket, "app"))),
            (None, program("app"), Some((&program::kind(), "app"))),
            (flux(Some("pulumi.com/v1"), "Program", "app"), None, Some((&program::kind(), "app"))),
            (flux(None, "Bucket", "app"), program("app"), None),
            (None, None, None),
        ];
        for (flux_source, program_ref, expected) in rows {
            let spec = StackSpec { flux_source, program_ref, ..StackSpec::default() };
            match (reference(&spec), expected) {
                (Ok(found), Some((kind, name))) => {
                    assert_eq!((&found.kind, found.name.as_str()), (kind, name));
                    let object = (kind.clone(), ("apps".to_owned(), name.to_owned()));
                    assert_eq!(named_objects(&spec, "apps"), [object], "{spec:?}");
                }
                (Err(Unavailable::Invalid(message)), None) => {
                    assert!(message.contains("spec.fluxSource") && message.contains("spec.programRef"), "{message}");
                }
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_template_or_init_containers_can_provide_the_source() {
        let spec =
            |template: serde_json::Value| StackSpec { workspace_template: Some(template), ..StackSpec::default() };
        let found = |spec: &StackSpec| without_object(spec).expect("valid").expect("a source");
        let in_pod = |spec: &StackSpec| InPod::of(&found(spec).digest);
        assert_eq!(in_pod(&StackSpec::default()), Some(InPod::InitContainers));
        for empty in [json!({}), json!({"spec": null}), json!({"spec": {"image": "a", "local": null}})] {
            assert_eq!(in_pod(&spec(empty)), Some(InPod::InitContainers));
        }
        let local = spec(json!({"spec": {"local": {"dir": "/app"}}}));
        assert_eq!((in_pod(&local), found(&local).revision.as_str()), (Some(InPod::Image), ""));
        let object = StackSpec { program_ref: program("app"), ..spec(json!({"spec": {"image": "a"}})) };
        assert_eq!(without_object(&object), Ok(None));

        let refused = |spec: &StackSpec| without_object(spec).expect_err("refused").to_string();
        let both = StackSpec { flux_source: flux(None, "Bucket", "app"), ..local };
        assert_eq!(
            refused(&both),
            "spec.fluxSource and spec.workspaceTemplate.spec.local are mutually exclusive: remove one of them"
        );
        let two = spec(json!({"spec": {"local": {"dir": "/app"}, "projectInfo": {"name": "a", "runtime": "yaml"}}}));
        assert!(refused(&two).starts_with("spec.workspaceTemplate.spec: local and projectInfo are mutually exclusive"));
        assert!(
            refused(&spec(json!({"spec": {"local": 1}}))).contains("spec.workspaceTemplate.spec: invalid source: ")
        );
    }
}
