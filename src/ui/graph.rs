//! Dependency graph of a Stack: the Stacks on which the Stack depends, and the Stacks that depend on the Stack. All
//! functions are pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::row::{Key, Row};

/// Maximum depth of a branch.
const MAX_DEPTH: usize = 4;
/// Maximum number of Stacks in each direction.
const MAX_NODES: usize = 200;

/// Stack in a graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) key: Key,
    /// Row of the Stack. `None` if the Stack does not exist, or if the user may not see the Stack.
    pub(super) row: Option<Arc<Row>>,
    pub(super) next: Vec<Node>,
}

/// Dependency graph of a Stack.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Graph {
    pub(super) requires: Vec<Node>,
    pub(super) required_by: Vec<Node>,
    /// Whether the graph omits Stacks.
    pub(super) is_cut: bool,
}

impl Graph {
    /// Returns the graph of a Stack. `rows` contains the rows that the user may see. `own` contains the Stack's
    /// dependencies.
    pub(super) fn of(rows: &[Arc<Row>], stack: &Key, own: &[Key]) -> Self {
        let known: BTreeMap<Key, Arc<Row>> = rows.iter().map(|row| (row.key(), row.clone())).collect();
        let mut dependents: BTreeMap<&Key, Vec<&Arc<Row>>> = BTreeMap::new();
        for row in rows {
            for dependency in &row.dependencies {
                let found = dependents.entry(dependency).or_default();
                // Thousands of Stacks can refer to the same Stack, but a walk visits at most `MAX_NODES` Stacks.
                if found.len() <= MAX_NODES {
                    found.push(row);
                }
            }
        }
        let mut requires = Walk::new(&known, stack);
        let forward = |key: &Key| match known.get(key) {
            _ if key == stack => own.to_vec(),
            Some(row) => row.dependencies.clone(),
            None => Vec::new(),
        };
        let required = requires.next(stack, 0, &forward);
        let mut required_by = Walk::new(&known, stack);
        let backward = |key: &Key| dependents.get(key).into_iter().flatten().map(|row| row.key()).collect::<Vec<Key>>();
        let requiring = required_by.next(stack, 0, &backward);
        Graph { requires: required, required_by: requiring, is_cut: requires.is_cut || required_by.is_cut }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requires.is_empty() && self.required_by.is_empty()
    }
}

/// Walk in one direction.
struct Walk<'a> {
    known: &'a BTreeMap<Key, Arc<Row>>,
    /// Stacks on the current path. The walk ends at a Stack that the path already contains, because dependencies can
    /// form a cycle.
    path: BTreeSet<Key>,
    nodes: usize,
    is_cut: bool,
}

impl<'a> Walk<'a> {
    fn new(known: &'a BTreeMap<Key, Arc<Row>>, start: &Key) -> Self {
        Walk { known, path: BTreeSet::from([start.clone()]), nodes: 0, is_cut: false }
    }

    fn next(&mut self, key: &Key, depth: usize, neighbors: &impl Fn(&Key) -> Vec<Key>) -> Vec<Node> {
        let mut found = Vec::new();
        for key in neighbors(key) {
            if self.nodes >= MAX_NODES || depth >= MAX_DEPTH {
                self.is_cut = true;
                break;
            }
            self.nodes += 1;
            let next = if self.path.insert(key.clone()) {
                let next = self.next(&key, depth + 1, neighbors);
                self.path.remove(&key);
                next
            } else {
                Vec::new()
            };
            found.push(Node { row: self.known.get(&key).cloned(), key, next });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::stack;

    fn row(name: &str, dependencies: &[&str]) -> Arc<Row> {
        let list: Vec<_> = dependencies.iter().map(|name| json!({ "name": name })).collect();
        Arc::new(Row::of(&stack(name, &json!({ "dependsOn": list }), &json!({}))))
    }

    fn key(name: &str) -> Key {
        ("apps".to_owned(), name.to_owned())
    }

    fn names(nodes: &[Node]) -> Vec<String> {
        let name = |node: &Node| match node.next.as_slice() {
            [] => node.key.1.clone(),
            next => format!("{}({})", node.key.1, names(next).join(" ")),
        };
        nodes.iter().map(name).collect()
    }

    #[test]
    fn the_graph_contains_both_directions_and_ends_in_cycles() {
        let rows = [row("web", &["db", "dns"]), row("db", &["net"]), row("net", &["web"]), row("app", &["web"])];
        let graph = Graph::of(&rows, &key("web"), &[key("db"), key("dns")]);
        assert_eq!(names(&graph.requires), ["db(net(web))", "dns"]);
        assert_eq!(names(&graph.required_by), ["net(db(web))", "app"]);
        assert!(graph.requires[1].row.is_none(), "the Stack dns does not exist");
        assert!(!graph.is_cut && !graph.is_empty());
        assert!(Graph::of(&[], &key("web"), &[]).is_empty());
    }

    #[test]
    fn a_large_graph_is_cut() {
        let names: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let rows: Vec<_> = all.iter().map(|name| row(name, &all)).collect();
        let graph = Graph::of(&rows, &key("s0"), &all.iter().map(|name| key(name)).collect::<Vec<_>>());
        assert!(graph.is_cut);
    }

    #[test]
    fn a_stack_with_thousands_of_dependents_has_a_cut_graph() {
        let rows: Vec<_> = (0..5000).map(|number| row(&format!("s{number}"), &["db"])).collect();
        let graph = Graph::of(&rows, &key("db"), &[]);
        assert_eq!((graph.required_by.len(), graph.is_cut), (MAX_NODES, true));
        let few = Graph::of(rows.get(..MAX_NODES).unwrap(), &key("db"), &[]);
        assert_eq!((few.required_by.len(), few.is_cut), (MAX_NODES, false));
    }
}
