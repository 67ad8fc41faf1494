//! The names that a program declares, and what depends on what.

use std::collections::{BTreeMap, BTreeSet, btree_set};

use kube::ResourceExt;

use crate::api::pulumi::Program;

/// The name that the language has taken for itself.
pub const RESERVED: &str = "pulumi";

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    Config,
    Variable,
    Resource,
}

/// The names that a program declares.
#[derive(Debug)]
pub struct Declarations {
    /// `<project>:`, which may stand before a config key.
    prefix: String,
    names: BTreeMap<String, Declared>,
}

impl Declarations {
    pub fn of(program: &Program) -> Self {
        let prefix = format!("{}:", program.name_any());
        let content = &program.program;
        let config = content.config.keys().chain(content.configuration.keys());
        // A resource or a variable counts before config of the same name.
        let names = config
            .map(|key| (key.strip_prefix(&prefix).unwrap_or(key), Declared::Config))
            .chain(content.variables.keys().map(|key| (key.as_str(), Declared::Variable)))
            .chain(content.resources.keys().map(|key| (key.as_str(), Declared::Resource)))
            .map(|(name, declared)| (name.to_owned(), declared))
            .collect();
        Declarations { prefix, names }
    }

    /// What a name stands for, if the program declares it.
    pub fn find(&self, name: &str) -> Option<Declared> {
        self.names.get(name).or_else(|| self.names.get(name.strip_prefix(&self.prefix)?)).copied()
    }
}

/// Of variables and resources, each with the names that it depends on: a circle, if there is one. It begins and ends with the same name.
pub fn circle(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut walk = Walk { dependencies, path: Vec::new(), on_path: BTreeSet::new(), done: BTreeSet::new() };
    dependencies.keys().find_map(|name| walk.from(name))
}

/// A walk down what depends on what. It does not recur: a program may be a long chain.
struct Walk<'a> {
    dependencies: &'a BTreeMap<String, BTreeSet<String>>,
    /// From the start to here: each name with those below it that are still to be visited.
    path: Vec<(&'a str, btree_set::Iter<'a, String>)>,
    on_path: BTreeSet<&'a str>,
    done: BTreeSet<&'a str>,
}

impl<'a> Walk<'a> {
    fn from(&mut self, start: &'a str) -> Option<Vec<String>> {
        self.enter(start);
        while let Some((name, below)) = self.path.last_mut() {
            match below.next() {
                Some(other) if self.on_path.contains(other.as_str()) => return Some(self.circle_at(other)),
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

    fn circle_at(&self, name: &str) -> Vec<String> {
        let names = self.path.iter().map(|(name, _)| *name).skip_while(|on_path| *on_path != name);
        names.chain([name]).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_a_chain_is_none() {
        let rows: [(&[(&str, &[&str])], Option<&[&str]>); 6] = [
            (&[], None),
            (&[("a", &["b", "c"]), ("b", &["c"]), ("c", &["config"])], None),
            (&[("a", &["a"])], Some(&["a", "a"])),
            (&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])], Some(&["b", "c", "b"])),
            (&[("a", &["b"]), ("b", &["a"])], Some(&["a", "b", "a"])),
            (&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])], None),
        ];
        for (edges, wanted) in rows {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let dependencies =
                edges.iter().map(|(name, next)| ((*name).to_owned(), names(next).into_iter().collect())).collect();
            assert_eq!(circle(&dependencies), wanted.map(names), "{edges:?}");
        }
    }

    #[test]
    fn a_chain_of_any_length_is_followed() {
        let edge = |n: u32| (format!("v{n:06}"), [format!("v{:06}", n + 1)].into());
        assert_eq!(circle(&(0..50_000).map(edge).collect()), None);
    }
}
