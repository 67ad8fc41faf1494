//! Checks the dependencies between the modules in `src`, and checks that files do not import each other in a cycle.
//! `ARCHITECTURE.md` explains the layers.

#[path = "modules/imports.rs"]
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;

use imports::{Crate, Imports, Reference, SourceFile, module_of};

/// A top-level module of the crate: a directory or a file in `src`.
struct Module {
    name: &'static str,
    /// Names of the top-level modules that this module may import, separated by spaces.
    uses: &'static str,
    /// Explanation of the rule. The message about a forbidden import contains this explanation.
    rule: &'static str,
}

const BASE: &str = "the base layer (api, artifact, file_watch, http_client, mutual_tls, pulumi, subprocess, text) uses no other module, except api, which uses artifact, artifact, which uses mutual_tls, and mutual_tls and pulumi, which use text";
const MIDDLE: &str =
    "source, rpc and runtime use the base layer and not each other, except source, which uses the slots of runtime";
const SUPPORT: &str = "cli, config, telemetry and server support all other layers and use only the base layer, except config, which checks the URL of the history";

/// All top-level modules except [`ROOTS`].
const MODULES: &[Module] = &[
    Module { name: "api", uses: "artifact", rule: BASE },
    Module { name: "artifact", uses: "mutual_tls", rule: BASE },
    Module { name: "file_watch", uses: "", rule: BASE },
    Module { name: "http_client", uses: "", rule: BASE },
    Module { name: "mutual_tls", uses: "text", rule: BASE },
    Module { name: "pulumi", uses: "text", rule: BASE },
    Module { name: "subprocess", uses: "", rule: BASE },
    Module { name: "text", uses: "", rule: BASE },
    Module { name: "view", uses: "api text", rule: "the views for users are pure functions of the API objects" },
    Module {
        name: "source",
        uses: "api artifact file_watch http_client pulumi subprocess text runtime config server telemetry",
        rule: MIDDLE,
    },
    Module {
        name: "history",
        uses: "api telemetry",
        rule: "the history stores the data of runs, and knows neither agents nor reconcilers",
    },
    Module { name: "rpc", uses: "api artifact file_watch pulumi config server telemetry", rule: MIDDLE },
    Module { name: "runtime", uses: "api artifact mutual_tls pulumi subprocess config server telemetry", rule: MIDDLE },
    Module {
        name: "controller",
        uses: "api artifact mutual_tls pulumi subprocess source rpc history runtime config server telemetry",
        rule: "the controllers share only rpc with the agent, and receive their settings as arguments",
    },
    Module {
        name: "history_api",
        uses: "history runtime config server telemetry",
        rule: "the endpoint for the history reads only the storage, and asks the API server about permissions",
    },
    Module {
        name: "receiver",
        uses: "api http_client runtime config server telemetry text",
        rule: "the webhook receiver shares only the API objects with the controllers",
    },
    Module {
        name: "ui",
        uses: "api history http_client runtime config server telemetry text view",
        rule: "the web UI shares only the API objects and the history with the controllers",
    },
    Module {
        name: "agent",
        uses: "api artifact file_watch pulumi source rpc runtime cli config server telemetry",
        rule: "the agent shares only rpc with the controllers",
    },
    Module {
        name: "manager",
        uses: "api artifact mutual_tls pulumi subprocess source rpc history history_api runtime controller receiver ui cli config server telemetry",
        rule: "the manager starts the controllers and the receiver; the agent is another process",
    },
    Module { name: "allocator", uses: "", rule: "the settings of the allocator use no other module" },
    Module { name: "cli", uses: "api telemetry", rule: SUPPORT },
    Module { name: "config", uses: "api artifact history mutual_tls cli telemetry", rule: SUPPORT },
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

/// A single invalid object of a tenant would stop a watch of kube-rs for all tenants.
#[test]
fn all_watches_skip_invalid_objects() -> Result<()> {
    let module = Path::new("runtime/tolerant_watcher.rs");
    let sources = Crate::read(&source_directory())?;
    let mut watches = Vec::new();
    for path in sources.files.values().map(|file| &file.path).filter(|path| path.as_path() != module) {
        let text = std::fs::read_to_string(source_directory().join(path))?;
        // The watches of `tolerant_watcher` have their own backoff.
        if ["default_backoff(", "watch_object("].iter().any(|call| text.contains(call)) {
            watches.push(path.display().to_string());
        }
    }
    assert!(watches.is_empty(), "use `runtime::tolerant_watcher` in these files: {watches:?}");
    Ok(())
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
