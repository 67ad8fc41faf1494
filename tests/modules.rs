//! Checks the dependencies between the modules in `src`, and checks that files do not import each other in a cycle.
//! `ARCHITECTURE.md` explains the layers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemImpl, ItemMod, ItemUse, Macro, Meta, UseTree, VisRestricted, Visibility};

/// A top-level module of the crate: a directory or a file in `src`.
struct Module {
    name: &'static str,
    /// Names of the top-level modules that this module may import, separated by spaces.
    uses: &'static str,
    /// Explanation of the rule. The message about a forbidden import contains this explanation.
    rule: &'static str,
}

const BASE: &str = "the base layer (api, artifact, file_watch, pulumi, subprocess, text) uses no other module, except api, which uses artifact, and pulumi, which uses text";
const MIDDLE: &str =
    "source, rpc and runtime use the base layer and not each other, except source, which uses the slots of runtime";
const SUPPORT: &str = "cli, config, telemetry and server support all other layers and use only the base layer, except config, which checks the URL of the history";

/// All top-level modules except [`ROOTS`].
const MODULES: &[Module] = &[
    Module { name: "api", uses: "artifact", rule: BASE },
    Module { name: "artifact", uses: "", rule: BASE },
    Module { name: "file_watch", uses: "", rule: BASE },
    Module { name: "pulumi", uses: "text", rule: BASE },
    Module { name: "subprocess", uses: "", rule: BASE },
    Module { name: "text", uses: "", rule: BASE },
    Module { name: "view", uses: "api text", rule: "the views for users are pure functions of the API objects" },
    Module {
        name: "source",
        uses: "api artifact file_watch pulumi subprocess text runtime config server telemetry",
        rule: MIDDLE,
    },
    Module {
        name: "history",
        uses: "api telemetry",
        rule: "the history stores the data of runs, and knows neither agents nor reconcilers",
    },
    Module { name: "rpc", uses: "api artifact file_watch pulumi config server telemetry", rule: MIDDLE },
    Module { name: "runtime", uses: "api artifact pulumi subprocess config server telemetry", rule: MIDDLE },
    Module {
        name: "controller",
        uses: "api artifact pulumi subprocess source rpc history runtime config server telemetry",
        rule: "the controllers share only rpc with the agent, and receive their settings as arguments",
    },
    Module {
        name: "history_api",
        uses: "history runtime config server telemetry",
        rule: "the endpoint for the history reads only the storage, and asks the API server about permissions",
    },
    Module {
        name: "receiver",
        uses: "api runtime config server telemetry",
        rule: "the webhook receiver shares only the API objects with the controllers",
    },
    Module {
        name: "ui",
        uses: "api history runtime config server telemetry text view",
        rule: "the web UI shares only the API objects and the history with the controllers",
    },
    Module {
        name: "agent",
        uses: "api artifact file_watch pulumi source rpc runtime cli config server telemetry",
        rule: "the agent shares only rpc with the controllers",
    },
    Module {
        name: "manager",
        uses: "api artifact pulumi subprocess source rpc history history_api runtime controller receiver ui cli config server telemetry",
        rule: "the manager starts the controllers and the receiver; the agent is another process",
    },
    Module { name: "allocator", uses: "", rule: "the settings of the allocator use no other module" },
    Module { name: "cli", uses: "api telemetry", rule: SUPPORT },
    Module { name: "config", uses: "api artifact history cli telemetry", rule: SUPPORT },
    Module { name: "telemetry", uses: "api text", rule: SUPPORT },
    Module { name: "server", uses: "api config telemetry", rule: SUPPORT },
    Module {
        name: "plugin",
        uses: "api text view",
        rule: "the kubectl plugin uses only the API objects and their views",
    },
];

/// Files that may import every module: the roots of the binaries and `lib.rs`.
const ROOTS: [&str; 3] = ["main", "kubectl_pulumi", "lib"];

/// Sets of modules that still import each other in a cycle. Do not add another set.
const KNOWN_CYCLES: &[&str] = &[];

#[test]
fn modules_import_only_modules_that_their_layer_allows() -> Result<()> {
    let sources = Crate::read(&source_directory())?;
    let forbidden: Vec<String> = sources.files.values().flat_map(forbidden_uses).collect();
    assert!(forbidden.is_empty(), "\n{}\ntests/modules.rs lists the allowed imports.", forbidden.join("\n"));
    Ok(())
}

#[test]
fn the_table_lists_every_module_of_src_and_has_no_cycle() -> Result<()> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(source_directory())? {
        found.extend(entry?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    let mut listed: BTreeSet<String> = MODULES.iter().map(|module| module.name.to_owned()).collect();
    listed.extend(ROOTS.map(str::to_owned));
    assert_eq!(found, listed, "left: the modules in src; right: the table in tests/modules.rs");
    for Module { name, uses, .. } in MODULES {
        assert!(!all_uses(name).contains(name), "{name} uses itself through other modules");
        for used in uses.split_whitespace() {
            assert!(listed.contains(used), "{name} may use {used}, but this module does not exist");
        }
    }
    Ok(())
}

#[test]
fn agent_and_controller_do_not_depend_on_each_other() {
    assert!(!all_uses("agent").contains("controller"), "the agent uses {:?}", all_uses("agent"));
    assert!(!all_uses("controller").contains("agent"), "the controller uses {:?}", all_uses("controller"));
}

#[test]
fn no_files_import_each_other_in_a_cycle_outside_tests() -> Result<()> {
    let imports = Crate::read(&source_directory())?.imports();
    let cycles = cycles(&imports);
    let known: BTreeSet<&str> = KNOWN_CYCLES.iter().copied().collect();
    let new: Vec<String> =
        cycles.iter().filter(|cycle| !cycle.is_subset(&known)).map(|cycle| describe(cycle, &imports)).collect();
    assert!(new.is_empty(), "import cycles: move the shared items to another module\n\n{}", new.join("\n\n"));
    let removed: Vec<&&str> =
        known.iter().filter(|module| !cycles.iter().any(|cycle| cycle.contains(*module))).collect();
    assert!(
        removed.is_empty(),
        "these modules are no longer in a cycle; remove them from KNOWN_CYCLES in tests/modules.rs: {removed:?}"
    );
    Ok(())
}

fn source_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn module(name: &str) -> Option<&'static Module> {
    MODULES.iter().find(|module| module.name == name)
}

/// Returns the modules that a module may import directly or transitively.
fn all_uses(name: &str) -> BTreeSet<&'static str> {
    reachable(name, |name| module(name).map(|module| module.uses.split_whitespace().collect()).unwrap_or_default())
}

/// Returns the nodes of a graph that are reachable from `start`.
fn reachable<'a>(start: &str, next: impl Fn(&str) -> Vec<&'a str>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = next(start);
    while let Some(node) = open.pop() {
        if reached.insert(node) {
            open.extend(next(node));
        }
    }
    reached
}

/// Returns a message about each import in a file that the table does not permit.
fn forbidden_uses(file: &SourceFile) -> Vec<String> {
    // Ignores the roots, which the table does not contain.
    let Some(own) = file.module.first().and_then(|name| module(name)) else { return Vec::new() };
    let mut found = Vec::new();
    for Reference { line, path, .. } in &file.references {
        let Some(name) =
            path.first().filter(|name| *name != own.name && !own.uses.split_whitespace().any(|used| used == *name))
        else {
            continue;
        };
        let place = format!("src/{}:{line}: {}", file.path.display(), own.name);
        found.push(match module(name) {
            Some(_) => format!("{place} uses {name}: {}", own.rule),
            None => format!("{place} refers to crate::{name}, which is not a module"),
        });
    }
    found
}

/// Maps each pair of a module and an imported module to the location of one import. Omits imports in tests.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the sets of modules that import each other, directly or transitively.
fn cycles(imports: &Imports) -> BTreeSet<BTreeSet<&str>> {
    let next = |name: &str| imports.get(name).map(|imported| imported.keys().map(String::as_str).collect());
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|name| (name.as_str(), reachable(name, |name| next(name).unwrap_or_default()))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains(to));
    let cycle_of = |name: &&str| -> BTreeSet<&str> {
        reached.keys().copied().filter(|other| reaches(name, other) && reaches(other, name)).collect()
    };
    reached.keys().map(cycle_of).filter(|cycle| !cycle.is_empty()).collect()
}

/// Returns the imports within a cycle, one per line.
fn describe(cycle: &BTreeSet<&str>, imports: &Imports) -> String {
    let imports = cycle.iter().filter_map(|module| imports.get(*module)).flatten();
    let within = imports.filter(|(imported, _)| cycle.contains(imported.as_str()));
    within.map(|(imported, place)| format!("{place} imports {imported}")).collect::<Vec<_>>().join("\n")
}

/// A path relative to the crate root. For example, the path of `crate::api::names` is `["api", "names"]`.
type ModulePath = Vec<String>;

/// Source files in the crate by module.
struct Crate {
    files: BTreeMap<ModulePath, SourceFile>,
}

/// A source file, which defines one module.
#[derive(Default)]
struct SourceFile {
    /// Path relative to `src`.
    path: PathBuf,
    module: ModulePath,
    /// All references in the file to items in this crate.
    references: Vec<Reference>,
    /// Names that the file re-exports with `pub use`, and their paths.
    re_exports: BTreeMap<String, ModulePath>,
    /// Modules in separate files that belong only to tests.
    test_modules: Vec<ModulePath>,
}

struct Reference {
    line: usize,
    path: ModulePath,
    in_test: bool,
}

impl Crate {
    fn read(directory: &Path) -> Result<Self> {
        let mut texts = Vec::new();
        for path in rust_files(directory)? {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push((path.strip_prefix(directory)?.to_owned(), text));
        }
        Self::parse(&texts)
    }

    fn parse(texts: &[(PathBuf, String)]) -> Result<Self> {
        let modules: BTreeSet<ModulePath> = texts.iter().map(|(path, _)| module_of(path)).collect();
        let mut files = BTreeMap::new();
        for (path, text) in texts {
            let syntax = syn::parse_file(text).with_context(|| format!("cannot parse {}", path.display()))?;
            let module = module_of(path);
            let file = SourceFile { path: path.clone(), module: module.clone(), ..SourceFile::default() };
            let mut reader = Reader { modules: &modules, module: module.clone(), in_test: false, file };
            reader.visit_file(&syntax);
            files.insert(module, reader.file);
        }
        Ok(Crate { files })
    }

    fn imports(&self) -> Imports {
        let test_modules: Vec<&ModulePath> = self.files.values().flat_map(|file| &file.test_modules).collect();
        let is_test = |module: &ModulePath| test_modules.iter().any(|test| module.starts_with(test));
        let mut imports = Imports::new();
        for file in self.files.values().filter(|file| !is_test(&file.module)) {
            let imported = imports.entry(file.module.join("::")).or_default();
            for reference in file.references.iter().filter(|reference| !reference.in_test) {
                let definition = self.definition(&reference.path);
                if let Some(other) = definition.filter(|other| other.module != file.module && !is_test(&other.module)) {
                    let place = || format!("src/{}:{}", file.path.display(), reference.line);
                    imported.entry(other.module.join("::")).or_insert_with(place);
                }
            }
        }
        imports
    }

    /// Returns the file that defines the item at a path. Resolves re-exports.
    fn definition(&self, path: &[String]) -> Option<&SourceFile> {
        let prefixes = (1..=path.len()).rev().filter_map(|length| path.get(..length));
        let file = prefixes.filter_map(|prefix| self.files.get(prefix)).next()?;
        let mut rest = path.iter().skip(file.module.len());
        match rest.next().and_then(|name| file.re_exports.get(name)) {
            Some(target) => self.definition(&target.iter().chain(rest).cloned().collect::<ModulePath>()),
            None => Some(file),
        }
    }
}

fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the module that a file defines, such as `api::pulumi::stack` for `api/pulumi/stack.rs`.
fn module_of(path: &Path) -> ModulePath {
    let mut module: ModulePath =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    module
}

/// Collects the references in a file.
struct Reader<'a> {
    /// Modules of all files.
    modules: &'a BTreeSet<ModulePath>,
    /// The current module: the module of the file or an inline module in the file.
    module: ModulePath,
    in_test: bool,
    file: SourceFile,
}

impl Reader<'_> {
    /// Returns the path relative to the crate root, or `None` for paths in other crates and for local names.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let parents = path.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            // The binaries use the crate name to import modules from the library.
            "crate" | "pulumi_controller" => (0, 1),
            "self" => (self.module.len(), 1),
            "super" => (self.module.len().saturating_sub(parents), parents),
            _ => (self.module.len(), 0),
        };
        let absolute: ModulePath = self.module.iter().take(base).chain(path.iter().skip(rest)).cloned().collect();
        let is_child = || absolute.get(..=base).is_some_and(|child| self.modules.contains(child));
        (rest > 0 || is_child()).then_some(absolute)
    }

    fn add(&mut self, path: &[String], line: usize) {
        if let Some(path) = self.absolute(path).filter(|_| path.len() > 1) {
            self.file.references.push(Reference { line, path, in_test: self.in_test });
        }
    }

    /// Adds the imports of a `use` item. If the item is public, also adds the re-exports.
    fn add_use(&mut self, tree: &UseTree, prefix: &[String], is_public: bool) {
        let with = |name: &dyn ToString| prefix.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &with(&path.ident), is_public),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_use(tree, prefix, is_public));
            }
            UseTree::Name(name) if name.ident == "self" => (prefix.to_vec(), prefix.last().cloned()),
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => (with(&"*"), None),
        };
        self.add(&path, tree.span().start().line);
        if let (Some(name), Some(target), true) = (name, self.absolute(&path), is_public) {
            self.file.re_exports.insert(name, target);
        }
    }

    /// Adds the paths in macro arguments.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons) = (Vec::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Punct(sign) if sign.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(&std::mem::take(&mut path), line);
                    }
                    line = name.span().start().line;
                    path.push(name.to_string());
                    colons = 0;
                }
                other => {
                    self.add(&std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(&path, line);
    }

    fn visit_with(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.in_test;
        self.in_test |= attributes.iter().any(is_test_only);
        visit(self);
        self.in_test = before;
    }
}

fn is_test_only(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        if item.content.is_none() && item.attrs.iter().any(is_test_only) {
            self.file.test_modules.push(self.module.clone());
        }
        self.visit_with(&item.attrs, |reader| visit::visit_item_mod(reader, item));
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_public = !matches!(item.vis, Visibility::Inherited) && self.module == self.file.module;
        self.visit_with(&item.attrs, |reader| reader.add_use(&item.tree, &[], is_public));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.visit_with(&item.attrs, |reader| visit::visit_item_impl(reader, item));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&names, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(call.tokens.clone());
    }

    /// Ignores visibilities such as `pub(in crate::agent)`, which are not imports.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

fn parse(files: &[(&str, &str)]) -> Result<Crate> {
    let texts: Vec<_> = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
    Crate::parse(&texts)
}

#[test]
fn a_forbidden_use_is_reported_with_file_line_and_rule() -> Result<()> {
    let found = |path: &str, text: &str| -> Result<Vec<String>> {
        Ok(parse(&[(path, text)])?.files.values().flat_map(forbidden_uses).collect())
    };
    let text = "use std::fs;\n\nuse crate::controller::stack;\n";
    assert_eq!(
        found("agent/serve.rs", text)?,
        ["src/agent/serve.rs:3: agent uses controller: the agent shares only rpc with the controllers"]
    );
    assert_eq!(found("main.rs", text)?, Vec::<String>::new(), "main.rs may import every module");
    assert_eq!(found("controller/stack/mod.rs", text)?, Vec::<String>::new(), "a module may import itself");
    assert_eq!(
        found("source/flux.rs", "fn f() { crate::helper() }")?,
        ["src/source/flux.rs:1: source refers to crate::helper, which is not a module"]
    );
    Ok(())
}

#[test]
fn every_form_of_module_path_is_recognized_outside_text() -> Result<()> {
    let cases: &[(&str, &str, &[&str])] = &[
        ("rpc/a.rs", "use crate::api::names;", &["api::names"]),
        ("rpc/a.rs", "use crate::{api::{auto, names as n}, b};", &["api::auto", "api::names", "b"]),
        ("rpc/a.rs", "use {crate::api, crate::b::{self, C}};", &["api", "b", "b::C"]),
        ("rpc/a.rs", "use crate::*;", &["*"]),
        ("rpc/a.rs", "fn f() -> crate::b::Error { crate::c() }", &["b::Error", "c"]),
        ("plugin/a.rs", "use pulumi_controller::api::{self, names};", &["api", "api::names"]),
        ("rpc/a.rs", "fn f(x: Vec<crate::b::X>) { g!(x, crate::c::d(crate::e)) }", &["b::X", "c::d", "e"]),
        ("rpc/a.rs", "pub(in crate::b) fn f() {}", &[]),
        ("rpc/a.rs", "// crate::b\n/// [`crate::b`]\nconst T: &str = \"crate::b\";", &[]),
        ("rpc/a.rs", "use super::sibling; use super::super::b;", &["rpc::sibling", "b"]),
        ("rpc.rs", "use super::b;", &["b"]),
        ("rpc.rs", "mod a; mod tests { use super::a; use super::super::b; }", &["rpc::a", "b"]),
        (
            "rpc/mod.rs",
            "use a::X; fn f() { a::g(); other::g(); self::a::h() }",
            &["rpc::a::X", "rpc::a::g", "rpc::a::h"],
        ),
    ];
    for (path, text, expected) in cases {
        let read = parse(&[("rpc/a.rs", ""), (path, text)])?;
        let file = read.files.get(&module_of(Path::new(path))).unwrap();
        let found: Vec<String> = file.references.iter().map(|reference| reference.path.join("::")).collect();
        assert_eq!(found, *expected, "{path}: {text}");
    }
    Ok(())
}

#[test]
fn cycles_are_found_through_re_exports_but_not_in_tests() -> Result<()> {
    let imports = parse(&[
        ("a/mod.rs", "mod b; pub use b::B; #[cfg(test)] mod tests;"),
        ("a/b.rs", "use crate::c::{self, C}; #[cfg(test)] mod tests { use crate::d::D; }"),
        ("a/tests.rs", "use crate::d::D;"),
        ("c.rs", "fn f() -> crate::a::B { todo!() }"),
        ("d.rs", "use crate::a::B;"),
    ])?
    .imports();
    let cycles = cycles(&imports);
    assert_eq!(cycles, BTreeSet::from([BTreeSet::from(["a::b", "c"])]));
    assert_eq!(describe(cycles.first().unwrap(), &imports), "src/a/b.rs:1 imports c\nsrc/c.rs:1 imports a::b");
    Ok(())
}
