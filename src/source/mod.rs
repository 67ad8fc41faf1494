//! FairQueue a reference to a source into an artifact, or says why there is none yet.

pub mod flux;
pub mod git;
pub mod inline;
pub mod kinds;
pub mod program;

use std::sync::Arc;

use crate::api::pulumi::StackSpec;
use crate::artifact::{Digest, Directory};
use crate::source::flux::Reference;
use crate::source::kinds::GroupKind;

/// An artifact that can be fetched: what a source has right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where its bytes come from.
    pub origin: Origin,
    /// The source's revision, such as `main@sha1:…`.
    pub revision: String,
    /// The revision that the artifact was made from, where its source says so: the commit of what was pushed to a registry.
    pub origin_revision: Option<String>,
    /// Digest of the archive.
    pub digest: Digest,
    /// The project's directory in the archive.
    pub directory: Directory,
    /// Equal for two archives of one revision with the same files. None where only the digest shows it.
    pub content_id: Option<String>,
}

impl Resolved {
    /// A digest of the files that matter, where it was said which do.
    pub fn selection(&self) -> Option<&str> {
        match &self.origin {
            Origin::Git(origin) => origin.selection.as_deref(),
            Origin::Url(_) | Origin::Made(_) | Origin::InPod => None,
        }
    }
}

/// Where the bytes of an artifact come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A server has them. Its URL may go stale at any time; the digest does not.
    Url(String),
    /// They were made here, of what is written in the source itself.
    Made(Arc<[u8]>),
    /// They were fetched from a repository and packed here, straight into the store.
    Git(Box<git::Origin>),
    /// There are none: it is in the pod already.
    InPod,
}

/// Why there is no artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It is not ready yet, or cannot be read at the moment. A retry finds it.
    #[error("{0}")]
    NotYet(String),
    /// It does not exist, or cannot be used as it is: a user has to create or change an object, or to push another commit. A retry notices
    /// that.
    #[error("{0}")]
    Stalled(String),
    /// It is being looked at right now; the Stack is woken once more is known.
    #[error("{0}")]
    Looking(String),
    /// Only a change of the Stack or of the source object can mend it.
    #[error("{0}")]
    Invalid(String),
    /// It is in another namespace, where this controller lets nobody refer to.
    #[error("{0}")]
    Denied(String),
}

/// The one source that a Stack names.
pub fn reference(spec: &StackSpec) -> Result<Reference, Unavailable> {
    match (&spec.flux_source, &spec.program_ref) {
        (Some(source), None) => Reference::parse(source),
        (None, Some(reference)) => {
            let (name, directory) = (reference.name.clone(), Directory::root());
            Ok(Reference { kind: program::kind(), name, namespace: None, directory })
        }
        (Some(_), Some(_)) => Err(Unavailable::Invalid(
            "spec.fluxSource and spec.programRef are both given, and a Stack has one source: remove one of them"
                .to_owned(),
        )),
        (None, None) => Err(Unavailable::Invalid(
            "the Stack names no object as its source: neither spec.fluxSource nor spec.programRef is given".to_owned(),
        )),
    }
}

/// The source of a Stack that names neither an object of the API nor a repository: what its `workspaceTemplate` says, else what its
/// init containers bring. None where it names one of them.
pub fn without_object(spec: &StackSpec) -> Result<Option<Resolved>, Unavailable> {
    let written = template_source(spec)?;
    let object = [
        ("fluxSource", spec.flux_source.is_some()),
        ("programRef", spec.program_ref.is_some()),
        (git::field(spec).unwrap_or("projectRepo"), git::names_git(spec)),
    ];
    match (object.into_iter().find(|(_, is_given)| *is_given), written.first()) {
        (Some((object, _)), Some(field)) => Err(Unavailable::Invalid(format!(
            "spec.{object} and spec.workspaceTemplate.spec.{field} are both given, and a Stack has one source: remove one of them"
        ))),
        (Some(_), None) => Ok(None),
        (None, Some("git")) => written.repository("").map(|_| None).map_err(in_template),
        (None, _) => Ok(Some(written.resolve().map_err(in_template)?.unwrap_or_else(inline::from_init_containers))),
    }
}

/// The repository that a Stack follows, by its own fields or by those of its `workspaceTemplate`, if it follows one.
pub fn repository(spec: &StackSpec, namespace: &str) -> Result<Option<git::RepositorySpec>, Unavailable> {
    if let Some(wanted) = git::wanted(spec, namespace)? {
        return Ok(Some(wanted));
    }
    let written = template_source(spec)?.repository(namespace).map_err(in_template)?;
    Ok(written.map(|wanted| git::RepositorySpec { every: git::interval(spec), ..wanted }))
}

/// The source that a Stack's `workspaceTemplate` says.
fn template_source(spec: &StackSpec) -> Result<inline::InlineSource, Unavailable> {
    let template = spec.workspace_template.as_ref().and_then(|template| template.get("spec"));
    Ok(template.map(inline::InlineSource::of_template).transpose().map_err(in_template)?.unwrap_or_default())
}

fn in_template(error: inline::InlineSourceError) -> Unavailable {
    Unavailable::Invalid(format!("spec.workspaceTemplate.spec: {error}"))
}

/// The objects that a Stack in the namespace `own` names as its source: the kind, and namespace and name. A Stack that names
/// two of them is told so, whichever changes.
pub fn named_objects(spec: &StackSpec, own: &str) -> Vec<(GroupKind, (String, String))> {
    let flux = spec.flux_source.as_ref().map(|source| &source.source_ref);
    let flux = flux.and_then(|source| {
        let namespace = within(source.namespace.as_deref(), own).to_owned();
        Some((flux::kind_of(source)?, (namespace, source.name.clone())))
    });
    let program = spec.program_ref.as_ref();
    let program = program.map(|reference| (program::kind(), (own.to_owned(), reference.name.clone())));
    flux.into_iter().chain(program).collect()
}

/// The namespace that is said, else the one of the object that says none.
pub fn within<'n>(said: Option<&'n str>, own: &'n str) -> &'n str {
    said.filter(|namespace| !namespace.is_empty()).unwrap_or(own)
}

#[cfg(test)]
mod tests;
