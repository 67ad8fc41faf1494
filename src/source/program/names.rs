//! Names in a Program: declared names, references to names, and dependency cycles. A reference has a form such as
//! `${name}`, `${name.property}` or `${name["key"][0]}`. `$$` is an escaped dollar sign.

use crate::api::pulumi::Program;
use crate::source::program::sentences::quoted;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, btree_set};

/// Name that the Pulumi YAML language reserves.
pub const RESERVED: &str = "pulumi";

/// The section that declares a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    Config,
    Variable,
    Resource,
}

/// The names that a Program declares.
#[derive(Debug)]
pub struct Declarations {
    /// The optional prefix `<project>:` of a config key.
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

/// Returns a dependency cycle between variables and resources, if any. The first and the last name in the result are
/// equal.
pub fn cycle(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut walk = Walk { dependencies, path: Vec::new(), on_path: BTreeSet::new(), done: BTreeSet::new() };
    dependencies.keys().find_map(|name| walk.from(name))
}

/// A depth-first search for a cycle. The search is iterative, because a Program can contain a long dependency chain.
struct Walk<'a> {
    dependencies: &'a BTreeMap<String, BTreeSet<String>>,
    /// The path from the start to the current name. Each element contains a name and an iterator over its remaining
    /// dependencies.
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

/// The references in a string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceText {
    /// The first name in each reference.
    pub roots: Vec<String>,
    /// Whether the string also contains text outside references.
    has_more: bool,
}

impl ReferenceText {
    /// If the string consists of exactly one reference, returns the reference's first name.
    pub fn only_root(&self) -> Option<&str> {
        match self.roots.as_slice() {
            [root] if !self.has_more => Some(root),
            _ => None,
        }
    }
}

/// Parses the references in a string. The error contains the invalid reference and the reason.
pub fn parse_references(text: &str) -> Result<ReferenceText, String> {
    let mut found = ReferenceText::default();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("$$") {
            found.has_more = true;
            rest = after;
        } else if let Some(reference) = rest.strip_prefix("${") {
            let (root, after) =
                access(reference).map_err(|what| format!("invalid reference {}: {what}", quoted(rest)))?;
            found.roots.push(root);
            rest = after;
        } else {
            found.has_more = true;
            let mut characters = rest.chars();
            characters.next();
            rest = characters.as_str();
        }
    }
    Ok(found)
}

/// Returns the first name in a reference and the text after its closing brace.
fn access(reference: &str) -> Result<(String, &str), &'static str> {
    let mut root = None;
    let mut rest = reference;
    loop {
        let mut characters = rest.chars();
        match characters.next() {
            None => return Err("missing closing brace"),
            Some('}') => return root.map(|root| (root, characters.as_str())).ok_or("empty name"),
            Some('.') => rest = characters.as_str(),
            Some('[') => {
                let (key, after) = subscript(characters.as_str(), root.is_none())?;
                root.get_or_insert(key);
                rest = after;
            }
            Some(_) => {
                let (name, after) = rest.split_at(rest.find(['.', '[', '}']).unwrap_or(rest.len()));
                root.get_or_insert_with(|| name.to_owned());
                rest = after;
            }
        }
    }
}

/// Returns a key or an index and the text after its closing bracket.
fn subscript(text: &str, is_first: bool) -> Result<(String, &str), &'static str> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (key, after) = quoted_key(quoted)?;
        let after = after.strip_prefix(']').ok_or("missing closing bracket after the key")?;
        return Ok((key, after));
    }
    let (index, after) = text.split_once(']').ok_or("missing closing bracket after the index")?;
    if index.parse::<i64>().is_err() {
        return Err("index must be an integer (put a key in quotes)");
    }
    if is_first {
        return Err("must start with a name, not with an index");
    }
    Ok((index.to_owned(), after))
}

/// Returns a key up to its closing quote and the text after the quote.
fn quoted_key(text: &str) -> Result<(String, &str), &'static str> {
    let mut key = String::new();
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix("\\\"") {
            key.push('"');
            rest = after;
            continue;
        }
        let mut characters = rest.chars();
        match characters.next() {
            None => return Err("missing closing quote"),
            Some('"') => return Ok((key, characters.as_str())),
            Some(character) => key.push(character),
        }
        rest = characters.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_cycles_are_distinguished_from_chains() {
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
    fn a_long_dependency_chain_does_not_overflow_the_call_stack() {
        let edge = |n: u32| (format!("v{n:06}"), [format!("v{:06}", n + 1)].into());
        assert_eq!(cycle(&(0..50_000).map(edge).collect()), None);
    }

    #[test]
    fn references_are_parsed_in_every_form() {
        let rows: [(&str, &[&str], Option<&str>); 12] = [
            ("", &[], None),
            ("plain, $ and { and }", &[], None),
            ("$${name}", &[], None),
            ("${name}", &["name"], Some("name")),
            ("${name.property[0].deep}", &["name"], Some("name")),
            ("${name[\"a.b\\\"}\"].c}", &["name"], Some("name")),
            ("${[\"a name\"].c}", &["a name"], Some("a name")),
            ("${.name}", &["name"], Some("name")),
            ("${aws:region}", &["aws:region"], Some("aws:region")),
            ("a ${name}", &["name"], None),
            ("${one}${two}", &["one", "two"], None),
            ("$$${name}ä", &["name"], None),
        ];
        for (text, roots, only) in rows {
            let found = parse_references(text).expect(text);
            assert!(found.roots.iter().eq(roots), "{text}: {found:?}");
            assert_eq!(found.only_root(), only, "{text}");
        }
    }

    #[test]
    fn the_error_for_an_invalid_reference_states_the_reason() {
        let rows = [
            ("${", "missing closing brace"),
            ("a ${name", "\"${name\": missing closing brace"),
            ("${}", "empty name"),
            ("${.}", "empty name"),
            ("${[0]}", "must start with a name"),
            ("${a[b]}", "index must be an integer"),
            ("${a[0}", "missing closing bracket"),
            ("${a[\"b}", "missing closing quote"),
            ("${a[\"b\"}", "missing closing bracket"),
        ];
        for (text, expected) in rows {
            let error = parse_references(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
