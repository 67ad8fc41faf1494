//! Tree of resources. A URN contains the types of the resource's parents, which determine the branch of the tree.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::parts;
use crate::api::auto::PlannedResource;
use crate::ui::stored_runs::ChangedResource;

/// Maximum depth of the tree. The program chooses the resource types, so the depth needs a limit.
const MAX_DEPTH: usize = 8;
/// Maximum number of properties that the page shows for a resource.
const MAX_PROPERTIES: usize = 20;

/// Resource with its operation.
pub(super) struct Resource<'a> {
    operation: &'a str,
    urn: &'a str,
    properties: &'a [String],
    has_failed: bool,
}

impl<'a> From<&'a PlannedResource> for Resource<'a> {
    fn from(resource: &'a PlannedResource) -> Self {
        let PlannedResource { urn, operation, properties } = resource;
        Resource { operation, urn, properties, has_failed: false }
    }
}

impl<'a> From<&'a ChangedResource> for Resource<'a> {
    fn from(resource: &'a ChangedResource) -> Self {
        let ChangedResource { urn, operation, properties, failed } = resource;
        Resource { operation, urn, properties, has_failed: *failed }
    }
}

/// Resources with the same parents.
#[derive(Default)]
struct Branch<'a> {
    resources: Vec<(&'a str, &'a str, Resource<'a>)>,
    /// Branches of the children, by type.
    children: BTreeMap<&'a str, Branch<'a>>,
}

/// Returns the tree of resources.
pub(super) fn tree<'a>(resources: impl Iterator<Item = Resource<'a>>) -> Markup {
    let mut root = Branch::default();
    for resource in resources {
        let mut parts = resource.urn.splitn(4, "::").skip(2);
        let (types, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or(resource.urn));
        let (parents, kind) = types.rsplit_once('$').unwrap_or(("", types));
        let mut branch = &mut root;
        for parent in parents.split('$').filter(|parent| !parent.is_empty()).take(MAX_DEPTH) {
            branch = branch.children.entry(parent).or_default();
        }
        branch.resources.push((kind, name, resource));
    }
    html! { div.tree { (list(&root)) } }
}

fn list(branch: &Branch<'_>) -> Markup {
    html! {
        ul {
            @for (kind, name, found) in &branch.resources { li { (resource(kind, name, found)) } }
            @for (parent, child) in &branch.children {
                li { span.type { (parts::text(parent)) } (list(child)) }
            }
        }
    }
}

fn resource(kind: &str, name: &str, resource: &Resource<'_>) -> Markup {
    let tone = match resource.operation {
        _ if resource.has_failed => "bad",
        "create" | "import" => "good",
        "delete" | "replace" | "delete-replaced" | "create-replacement" | "relinquish" | "missing" => "bad",
        "same" | "read" => "idle",
        _ => "warn",
    };
    let more = resource.properties.len().saturating_sub(MAX_PROPERTIES);
    html! {
        span class={ "badge " (tone) } { (parts::text(resource.operation)) @if resource.has_failed { " failed" } }
        " " span.type { (parts::text(kind)) } " " strong { (parts::text(name)) }
        @if !resource.properties.is_empty() {
            " "
            span.properties {
                @for (number, property) in resource.properties.iter().take(MAX_PROPERTIES).enumerate() {
                    @if number > 0 { ", " }
                    code { (parts::text(property)) }
                }
                @if more > 0 { " and " (more) " more" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(urn: &str, operation: &str) -> PlannedResource {
        let properties = vec!["tags.<owner>".to_owned()];
        PlannedResource { urn: urn.to_owned(), operation: operation.to_owned(), properties }
    }

    #[test]
    fn resources_are_grouped_by_the_types_of_their_parents() {
        let resources = [
            planned("urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs", "create"),
            planned("urn:pulumi:dev::web::my:Site$aws:rds:Db::main", "delete"),
            planned("bad", "update"),
        ];
        let text = tree(resources.iter().map(Resource::from)).into_string();
        assert!(
            text.contains("<span class=\"type\">my:Site</span><ul><li><span class=\"badge bad\">delete</span>"),
            "{text}"
        );
        assert!(text.contains("<code>tags.&lt;owner&gt;</code>") && text.contains("<strong>bad</strong>"), "{text}");
    }

    #[test]
    fn the_depth_is_limited() {
        let types = vec!["a:b:C"; 1000].join("$");
        let resources = [planned(&format!("urn:pulumi:dev::web::{types}::name"), "create")];
        let text = tree(resources.iter().map(Resource::from)).into_string();
        assert_eq!(text.matches("<ul>").count(), MAX_DEPTH + 1);
    }
}
