//! Indexes of the Stack cache.

use kube::ResourceExt;

use crate::api::pulumi::Stack;
use crate::controller::stack::prerequisites;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::index::{IndexWriter, Indexed, indexed};
use crate::source;
use crate::source::kinds::GroupKind;

/// Object or kind that a Stack refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackGroup {
    /// A dependency.
    Needs(ObjectKey),
    /// The source.
    Source(GroupKind, ObjectKey),
    /// The kind of the source.
    SourceKind(GroupKind),
}

/// The Stack cache, indexed by references.
pub type Stacks = Indexed<Stack, StackGroup>;

/// Creates an empty Stack cache and its writer.
pub fn stacks() -> (Stacks, IndexWriter<Stack, StackGroup>) {
    indexed(groups_of)
}

fn groups_of(stack: &Stack) -> Vec<StackGroup> {
    let own = stack.namespace().unwrap_or_default();
    let needs = prerequisites::references(&stack.spec, &own)
        .map(|(namespace, name)| StackGroup::Needs((namespace.to_owned(), name.to_owned())));
    let sources = source::named_objects(&stack.spec, &own).into_iter();
    let sources = sources.flat_map(|(kind, key)| [StackGroup::SourceKind(kind.clone()), StackGroup::Source(kind, key)]);
    needs.chain(sources).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stack_is_indexed_by_its_source_and_dependencies() {
        let stack: Stack = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"namespace": "apps", "name": "web"},
            "spec": {
                "stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b", "namespace": "base"}},
                "prerequisites": [{"name": "net"}], "dependsOn": [{"name": "db"}, {"name": "dns", "namespace": "base"}],
            },
        }))
        .expect("a Stack");
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let bucket = GroupKind::new("source.toolkit.fluxcd.io", "Bucket");
        let wanted = [
            StackGroup::Needs(key("apps", "net")),
            StackGroup::Needs(key("apps", "db")),
            StackGroup::Needs(key("base", "dns")),
            StackGroup::SourceKind(bucket.clone()),
            StackGroup::Source(bucket, key("base", "b")),
        ];
        assert_eq!(groups_of(&stack), wanted);
    }
}
