//! Installation inputs for Go. `pulumi install` runs `go mod tidy`. The result of `go mod tidy` depends on the module
//! files and on the packages that the Go files import.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::package_manager::{Files, LOCAL_DEPENDENCY, ManagerProperties, NO_LOCK, named};

pub(super) const FILES: [&str; 3] = ["go.mod", "go.sum", "go.work"];

/// Path of the module that contains a Go toolchain.
const TOOLCHAIN: &str = "golang.org/toolchain";

/// Version of a module. Both fields have the form that Go uses in its module cache, with `!a` instead of `A`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    pub path: String,
    /// The version of a toolchain lacks the operating system and the architecture, which follow after a dot.
    pub version: String,
}

pub(super) fn properties(files: &Files) -> ManagerProperties {
    let has = |name: &str| named(files, &[name]).next().is_some();
    let is_local = |content: &[u8]| std::str::from_utf8(content).map_or(true, replaces_with_path);
    let reinstall_reason = if !has("go.mod") || !has("go.sum") {
        Some(NO_LOCK.to_owned())
    } else if has("go.work") || named(files, &["go.mod"]).any(|(_, content)| is_local(content)) {
        Some(LOCAL_DEPENDENCY.to_owned())
    } else {
        None
    };
    // The module cache is outside the source, so a new source needs no copy of the cache.
    ManagerProperties {
        name: "go".to_owned(),
        reinstall_reason,
        works_without_trees: true,
        ..ManagerProperties::default()
    }
}

/// Returns whether `go.mod` replaces a module with a directory. The dependencies of the module in this directory can
/// change without a change to `go.mod`. The path of a directory must start with `./`, `../` or `/`.
fn replaces_with_path(module: &str) -> bool {
    let targets = module.lines().filter_map(|line| line.split_once("=>")).map(|(_, target)| target);
    targets.map(|target| target.trim_start_matches([' ', '\t', '"', '`'])).any(|target| target.starts_with(['.', '/']))
}

/// Returns the modules that the `go.sum` files list, and the toolchains that the `go.mod` files require. The go command
/// reads no other modules: it adds each module that it uses to `go.sum`, even if it reads only the module's `go.mod`.
pub(super) fn modules(files: &Files) -> BTreeSet<Module> {
    let listed = named(files, &["go.sum"]).flat_map(|(_, sum)| modules_in_sum(&String::from_utf8_lossy(sum)));
    let required = named(files, &["go.mod"]).flat_map(|(_, module)| toolchains(&String::from_utf8_lossy(module)));
    listed.chain(required).collect()
}

/// Returns the modules that a `go.sum` file lists. Ignores paths that are not the path of a module.
pub fn modules_in_sum(sum: &str) -> Vec<Module> {
    let module = |line: &str| {
        let mut words = line.split_whitespace();
        let (path, version) = (words.next()?, words.next()?);
        let is_valid = Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
        let version = version.strip_suffix("/go.mod").unwrap_or(version);
        is_valid.then(|| Module { path: escape(path), version: escape(version) })
    };
    sum.lines().filter_map(module).collect()
}

/// Returns the toolchains that the lines `go` and `toolchain` of a `go.mod` file require.
fn toolchains(module: &str) -> Vec<Module> {
    let required = |line: &str| {
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()?) {
            ("go", version) => toolchain(&format!("go{version}")),
            ("toolchain", name) => toolchain(name),
            _ => None,
        }
    };
    module.lines().filter_map(required).collect()
}

/// Returns the module of a toolchain such as `go1.26.1`. The name can have the form of the variable `GOTOOLCHAIN`, such
/// as `go1.26.1+auto`. Returns `None` if the name contains no version, such as `local`.
pub fn toolchain(name: &str) -> Option<Module> {
    let name = name.split_once('+').map_or(name, |(name, _)| name);
    name.starts_with("go").then(|| Module { path: TOOLCHAIN.to_owned(), version: format!("v0.0.1-{name}") })
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_uppercase() {
            escaped.push('!');
        }
        escaped.push(character.to_ascii_lowercase());
    }
    escaped
}

/// Returns the packages that a Go file imports. Import declarations precede all other declarations.
pub fn imports(file: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut is_in_block, mut is_in_comment) = (false, false);
    for line in file.lines().map(str::trim) {
        let Some(line) = code(line, &mut is_in_comment) else { continue };
        let specification = match line.strip_prefix("import") {
            Some(rest) if rest.trim_start().starts_with('(') => {
                is_in_block = true;
                rest.trim_start().trim_start_matches('(')
            }
            Some(rest) if rest.starts_with([' ', '\t', '"', '`']) => rest,
            _ if is_in_block => line,
            _ if ["func ", "func(", "type ", "var ", "const "].iter().any(|keyword| line.starts_with(keyword)) => break,
            _ => continue,
        };
        found.extend(specification.split(';').filter_map(path));
        let comment = specification.find("//").into_iter().chain(specification.find("/*")).min();
        is_in_block &= !specification.get(..comment.unwrap_or(specification.len())).unwrap_or_default().contains(')');
    }
    found
}

/// Returns the part of a line that is not in a comment of the form `/* … */`, or `None` if there is no such part. A line
/// of a comment can start with a word such as `type`, which would look like a declaration. `is_in_comment` is the state
/// at the start of the line, and the function updates this state.
fn code<'a>(mut line: &'a str, is_in_comment: &mut bool) -> Option<&'a str> {
    loop {
        if *is_in_comment {
            line = line.split_once("*/")?.1.trim_start();
            *is_in_comment = false;
        }
        match line.strip_prefix("/*") {
            Some(rest) => (line, *is_in_comment) = (rest, true),
            None => break,
        }
    }
    let mut rest = line;
    while let Some((before, comment)) = rest.split_once("/*")
        && !before.contains("//")
    {
        let Some((_, after)) = comment.split_once("*/") else {
            *is_in_comment = true;
            break;
        };
        rest = after;
    }
    Some(line)
}

/// Returns the path in an import specification such as `name "example.com/module/package"`.
fn path(specification: &str) -> Option<&str> {
    let (before, rest) = specification.split_once(['"', '`'])?;
    let is_name = !before.contains("//") && !before.contains("/*");
    rest.split_once(['"', '`']).map(|(path, _)| path).filter(|path| is_name && !path.is_empty())
}

/// Returns whether the go command ignores a directory because of its name. Does not check the directory's parents.
pub fn is_ignored_directory(name: &str) -> bool {
    name.starts_with(['.', '_']) || ["vendor", "testdata", "node_modules"].contains(&name)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_imports_before_the_first_declaration_are_found() {
        let file = "// Package main.\n//go:build linux\npackage main\n\nimport \"fmt\"\nimport p \"a.example/p\" // \"no\"\n\
                    import (\n\t\"os\"; . \"b.example/q\"\n\n\t// \"commented.example\"\n\t_ `c.example/r`\n)\n\
                    import(\"d.example\")\n\nconst text = `\nimport \"e.example\"\n`\n";
        assert_eq!(imports(file), ["fmt", "a.example/p", "os", "b.example/q", "c.example/r", "d.example"]);
        let comments = "/*\nPackage main is a\ntype of program.\n*/ /* x */ package main\n\n/* one line */\n\
                        import (\n\t\"os\" /* why\n\tfunc */\n\t/* \"no.example\" */ \"a.example/p\"\n)\n\
                        // /* not a comment\nimport \"b.example\"\n";
        assert_eq!(imports(comments), ["os", "a.example/p", "b.example"]);
        let with_urls = "import (\n\t\"os\" /* https://no.example (1) */\n\t\"a.example/p\"\n)\n\
                         import \"b.example\" /*/ open\nfunc */ // x\nimport \"c.example\"\n";
        assert_eq!(imports(with_urls), ["os", "a.example/p", "b.example", "c.example"]);
        assert!(imports("").is_empty() && imports("import \"").is_empty() && imports("import (").is_empty());
    }

    #[test]
    fn the_modules_of_go_sum_and_the_toolchains_of_go_mod_are_found() {
        let sum = "github.com/Azure/sdk v1.0.0-RC.1 h1:x=\ngithub.com/Azure/sdk v1.0.0-RC.1/go.mod h1:x=\n\n\
                   b.example v2.0.0/go.mod h1:x=\n../c v1.0.0 h1:x=\n/d v1.0.0 h1:x=\nincomplete\n";
        let module = "module a\n\ngo 1.26.1\n\ntoolchain go1.26.2\n\nrequire go.example v1.0.0\n";
        let files = [("app/go.sum", sum), ("go.sum", "c.example v1.0.0 h1:x="), ("go.mod", module)];
        let files = files.map(|(path, content)| (PathBuf::from(path), content.as_bytes().to_vec()));
        let found: Vec<String> = modules(&Files::from(files))
            .into_iter()
            .map(|Module { path, version }| format!("{path}@{version}"))
            .collect();
        assert_eq!(
            found,
            [
                "b.example@v2.0.0",
                "c.example@v1.0.0",
                "github.com/!azure/sdk@v1.0.0-!r!c.1",
                "golang.org/toolchain@v0.0.1-go1.26.1",
                "golang.org/toolchain@v0.0.1-go1.26.2",
            ]
        );
        let version = |name: &str| toolchain(name).map(|toolchain| toolchain.version);
        assert_eq!(version("go1.26.1+auto").as_deref(), Some("v0.0.1-go1.26.1"));
        assert_eq!((version("local"), version("auto")), (None, None));
    }

    #[test]
    fn local_module_replacements_in_go_mod_are_found() {
        for (module, expected) in [
            ("module a\n\nrequire b v1.0.0\n", false),
            ("replace b => c v1.0.0", false),
            ("replace b => ./b", true),
            ("replace (\n\tb v1.0.0 => \"../b\"\n)", true),
            ("replace b => /b", true),
        ] {
            assert_eq!(replaces_with_path(module), expected, "{module}");
        }
    }
}
