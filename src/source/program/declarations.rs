//! Names that a Program declares, and dependency cycles between them.

use std::collections::{BTreeMap, BTreeSet, btree_set};

use kube::ResourceExt;

use crate::api::pulumi::Program;

/// Name that the language reserves.
pub const RESERVED: &str = "pulumi";

/// The section that declares a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    Config,
    Variable,
    Resource,
}

/// Names that a Program declares.
#[derive(Debug)]
pub struct Declarations {
    /// `<project>:`, the optional prefix of a config key.
    prefix: String,
    names: BTreeMap<String, Declared>,
}

impl Declarations {
    pub fn of(program: &Program) -> Self {
        let prefix = format!("{}:", program.name_any());
        let content = &program.program;
        let config = content.config.keys().chain(content.configuration.keys());
        // A resource or variable takes precedence over a config key with the same name.
        let names = config
            .map(|key| (key.strip_prefix(&prefix).unwrap_or(key), Declared::Config))
            .chain(content.variables.keys().map(|key| (key.as_str(), Declared::Variable)))
            .chain(content.resources.keys().map(|key| (key.as_str(), Declared::Resource)))
            .map(|(name, declared)| (name.to_owned(), declared))
            .collect();
        Declarations { prefix, names }
    }

    /// Returns the section that declares a name, if any.
    pub fn find(&self, name: &str) -> Option<Declared> {
        self.names.get(name).or_else(|| self.names.get(name.strip_prefix(&self.prefix)?)).copied()
    }
}

/// Returns a cycle in the dependencies between variables and resources, if there is one. The first and the last name are equal.
pub fn cycle(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut walk = Walk { dependencies, path: Vec::new(), on_path: BTreeSet::new(), done: BTreeSet::new() };
    dependencies.keys().find_map(|name| walk.from(name))
}

/// Depth-first search for a cycle. Iterative, because a Program can contain a long dependency chain.
struct Walk<'a> {
    dependencies: &'a BTreeMap<String, BTreeSet<String>>,
    /// Path from the start to the current name: each name with the iterator over its remaining dependencies.
    path: Vec<(&'a str, btree_set::Iter<'a, String>)>,
    on_path: BTreeSet<&'a str>,
    done: BTreeSet<&'a str>,
}

impl<'a> Walk<'a> {
    fn from(&mut self, start: &'a str) -> Option<Vec<String>> {
        self.enter(start);
        while let Some((name, below)) = self.path.last_mut() {
            match below.next() {
                Some(other) if self.on_path.contains(other.as_str()) => return Some(self.cycle_at(other)),
                Some(other) => self.enter(other),
                None => {
                    self.on_path.remove(*name);
                    self.done.insert(*name);
                    self.path.pop();
                }
            }
        }
        None
    }

    fn enter(&mut self, name: &'a str) {
        if let Some(below) = self.dependencies.get(name).filter(|_| !self.done.contains(name)) {
            self.on_path.insert(name);
            self.path.push((name, below.iter()));
        }
    }

    fn cycle_at(&self, name: &str) -> Vec<String> {
        let names = self.path.iter().map(|(name, _)| *name).skip_while(|on_path| *on_path != name);
        names.chain([name]).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_cycles_are_detected_and_chains_are_not_cycles() {
        let rows: [(&[(&str, &[&str])], Option<&[&str]>); 6] = [
            (&[], None),
            (&[("a", &["b", "c"]), ("b", &["c"]), ("c", &["config"])], None),
            (&[("a", &["a"])], Some(&["a", "a"])),
            (&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])], Some(&["b", "c", "b"])),
            (&[("a", &["b"]), ("b", &["a"])], Some(&["a", "b", "a"])),
            (&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])], None),
        ];
        for (edges, expected) in rows {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let dependencies =
                edges.iter().map(|(name, next)| ((*name).to_owned(), names(next).into_iter().collect())).collect();
            assert_eq!(cycle(&dependencies), expected.map(names), "{edges:?}");
        }
    }

    #[test]
    fn a_long_dependency_chain_is_followed() {
        let edge = |n: u32| (format!("v{n:06}"), [format!("v{:06}", n + 1)].into());
        assert_eq!(cycle(&(0..50_000).map(edge).collect()), None);
    }
}
