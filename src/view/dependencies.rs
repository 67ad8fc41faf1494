//! Stacks to which a Stack refers.

use kube::ResourceExt as _;

use crate::api::pulumi::Stack;

/// Returns the namespace and the name of each Stack to which a Stack refers, without duplicates.
pub fn dependencies_of(stack: &Stack) -> Vec<(String, String)> {
    let own = stack.namespace().unwrap_or_default();
    let depends = stack.spec.depends_on.iter().map(|other| {
        let namespace = other.namespace.clone().unwrap_or_else(|| own.clone());
        (namespace, other.name.clone())
    });
    let prerequisites = stack.spec.prerequisites.iter().map(|other| (own.clone(), other.name.clone()));
    let mut all: Vec<_> = depends.chain(prerequisites).collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::stack;

    #[test]
    fn dependencies_are_listed_once_with_their_namespace() {
        let spec = json!({
            "dependsOn": [{ "name": "network" }, { "name": "dns", "namespace": "shared" }],
            "prerequisites": [{ "name": "network" }],
        });
        let pair = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let found = dependencies_of(&stack("web", &spec, &json!({})));
        assert_eq!(found, [pair("apps", "network"), pair("shared", "dns")]);
    }
}
