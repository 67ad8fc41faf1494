//! The rooms of `src` and who may use whom. ARCHITECTURE.md says why; this reads the code and holds it to that.
#![allow(clippy::string_slice, clippy::indexing_slicing, reason = "cut where a search has found something")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder or file of `src`, which is a module of the crate.
struct Room {
    name: &'static str,
    /// The other rooms that it may use.
    uses: &'static [&'static str],
    /// The sentence for who reaches further.
    rule: &'static str,
}

const GROUND: &str = "the ground floor (api, artifact, pulumi, subprocess) uses no other room";
const MIDDLE: &str =
    "source, rpc and runtime use the ground floor, and not each other; source takes slots from runtime";
const HALLS: &str = "cli, config, telemetry and server serve every floor above the ground and know none but that";

/// All of it. `main.rs` wires and may use everything; `lib.rs` only lists the rooms.
const ROOMS: &[Room] = &[
    Room { name: "api", uses: &[], rule: GROUND },
    Room { name: "artifact", uses: &[], rule: GROUND },
    Room { name: "pulumi", uses: &[], rule: GROUND },
    Room { name: "subprocess", uses: &[], rule: GROUND },
    Room {
        name: "source",
        uses: &["api", "artifact", "pulumi", "subprocess", "runtime", "config", "server", "telemetry"],
        rule: MIDDLE,
    },
    Room { name: "rpc", uses: &["api", "artifact", "pulumi", "config", "server", "telemetry"], rule: MIDDLE },
    Room {
        name: "runtime",
        uses: &["api", "artifact", "pulumi", "subprocess", "config", "server", "telemetry"],
        rule: MIDDLE,
    },
    Room {
        name: "controller",
        uses: &["api", "artifact", "pulumi", "subprocess", "source", "rpc", "runtime", "config", "server", "telemetry"],
        rule: "the controller meets the agent only in rpc, and is given its settings",
    },
    Room {
        name: "receiver",
        uses: &["api", "runtime", "config", "server", "telemetry"],
        rule: "what takes webhooks meets the controllers only in the API",
    },
    Room {
        name: "agent",
        uses: &["api", "artifact", "pulumi", "source", "rpc", "runtime", "cli", "config", "server", "telemetry"],
        rule: "the agent meets the controller only in rpc",
    },
    Room {
        name: "manager",
        uses: &[
            "api",
            "artifact",
            "pulumi",
            "subprocess",
            "source",
            "rpc",
            "runtime",
            "controller",
            "receiver",
            "cli",
            "config",
            "server",
            "telemetry",
        ],
        rule: "the manager wires the controllers' side; the agent is another process",
    },
    Room { name: "cli", uses: &["api", "telemetry"], rule: HALLS },
    Room { name: "config", uses: &["api", "artifact", "cli", "telemetry"], rule: HALLS },
    Room { name: "telemetry", uses: &["api"], rule: HALLS },
    Room { name: "server", uses: &["api", "config", "telemetry"], rule: HALLS },
];

fn room(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn no_room_reaches_where_it_may_not() -> Result<()> {
    let mut broken = Vec::new();
    for file in rust_files(&source_folder())? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let path = file.strip_prefix(source_folder())?;
        broken.extend(violations(path, &text));
    }
    assert!(broken.is_empty(), "\n{}\nThe table of rooms is in tests/rooms.rs.", broken.join("\n"));
    Ok(())
}

#[test]
fn the_table_names_every_room_and_no_other() -> Result<()> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(source_folder())? {
        let path = entry?.path();
        found.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    let mut listed: BTreeSet<String> = ROOMS.iter().map(|room| room.name.to_owned()).collect();
    listed.extend(["main".to_owned(), "lib".to_owned()]);
    assert_eq!(found, listed, "left: what is in src; right: the table in tests/rooms.rs");
    for room in ROOMS {
        assert!(!reach(room.name).contains(room.name), "{} reaches itself by way of others", room.name);
        for used in room.uses {
            assert!(listed.contains(*used), "{} may use {used}, and there is no such room", room.name);
        }
    }
    Ok(())
}

#[test]
fn the_agent_and_the_controller_do_not_know_each_other() {
    assert!(!reach("agent").contains("controller"), "the agent reaches the controller: {:?}", reach("agent"));
    assert!(!reach("controller").contains("agent"), "the controller reaches the agent: {:?}", reach("controller"));
}

/// Everything that a room can reach by way of others.
fn reach(name: &str) -> BTreeSet<&'static str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = room(name).map(|room| room.uses.to_vec()).unwrap_or_default();
    while let Some(next) = open.pop() {
        if let Some(room) = room(next).filter(|room| reached.insert(room.name)) {
            open.extend(room.uses);
        }
    }
    reached
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// One sentence for each place in a file (its path counts from `src`) that reaches where its room may not.
fn violations(path: &Path, text: &str) -> Vec<String> {
    let module = module_of(path);
    let Some(own) = module.first().and_then(|name| room(name)) else {
        return Vec::new(); // main.rs and lib.rs; that nothing else lies there is another test's business
    };
    let mut found = Vec::new();
    for Reference { line, name } in references(module.len(), text) {
        let place = format!("src/{}:{line}: {}", path.display(), own.name);
        if name == own.name || own.uses.contains(&name.as_str()) {
            continue;
        }
        found.push(match room(&name) {
            Some(_) => format!("{place} uses {name}: {}", own.rule),
            None => format!("{place} names crate::{name}, which is no room"),
        });
    }
    found
}

/// `api/pulumi/stack.rs` is the module `api::pulumi::stack`, `api/mod.rs` is `api`.
fn module_of(path: &Path) -> Vec<String> {
    let mut module: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    module
}

/// A place in the code that names something at the root of the crate.
#[derive(Debug, PartialEq)]
struct Reference {
    line: usize,
    name: String,
}

/// What a text names below `crate::`, and by as many `super::` as lead there from a module so deep.
fn references(depth: usize, text: &str) -> Vec<Reference> {
    let tokens = tokens(text);
    let word = |position: usize| tokens.get(position).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    // For each open brace, whether it is that of a module written in place.
    let mut braces: Vec<bool> = Vec::new();
    let mut position = 0;
    while position < tokens.len() {
        match word(position) {
            "{" => braces.push(position >= 2 && word(position - 2) == "mod"),
            "}" => drop(braces.pop()),
            "crate" if word(position + 1) == "::" => found.extend(names_after(&tokens, position + 2)),
            "super" if word(position + 1) == "::" => {
                let mut steps = 1;
                while word(position + 2) == "super" && word(position + 3) == "::" {
                    steps += 1;
                    position += 2;
                }
                if steps >= depth + braces.iter().filter(|is_module| **is_module).count() {
                    found.extend(names_after(&tokens, position + 2));
                }
            }
            _ => {}
        }
        position += 1;
    }
    found
}

/// The name at a position, or, of a group in braces there, the first name of each of its parts.
fn names_after(tokens: &[Token], start: usize) -> Vec<Reference> {
    let Some(first) = tokens.get(start) else { return Vec::new() };
    if first.text != "{" {
        return vec![Reference { line: first.line, name: first.text.clone() }];
    }
    let mut found = Vec::new();
    let mut open = 0;
    let mut begins = false;
    for token in tokens.iter().skip(start) {
        match token.text.as_str() {
            "{" => {
                open += 1;
                begins = open == 1;
            }
            "}" => {
                open -= 1;
                if open == 0 {
                    break;
                }
            }
            "," => begins = open == 1,
            name => {
                if begins {
                    found.push(Reference { line: token.line, name: name.to_owned() });
                }
                begins = false;
            }
        }
    }
    found
}

struct Token {
    line: usize,
    text: String,
}

/// Names, `::`, and single signs. Comments and the contents of strings are left out: prose may name any room.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(sign) = rest.chars().next() {
        let length = if sign.is_alphanumeric() || sign == '_' {
            match raw_string(rest) {
                Some(length) => length,
                None => {
                    let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                    tokens.push(Token { line, text: rest[..length].to_owned() });
                    length
                }
            }
        } else if let Some(length) = skipped(rest) {
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { sign.len_utf8() };
            if !sign.is_whitespace() {
                tokens.push(Token { line, text: rest[..length].to_owned() });
            }
            length
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

/// The length of the comment, string or character that a text begins with.
fn skipped(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(closing_quote(text, '"'));
    }
    // A lifetime has no closing quote: `'a` is followed by anything but one.
    let mut signs = text.chars();
    match (signs.next(), signs.next(), signs.next()) {
        (Some('\''), Some('\\'), _) => Some(closing_quote(text, '\'')),
        (Some('\''), Some(inner), Some('\'')) => Some(2 + inner.len_utf8()),
        _ => None,
    }
}

fn block_comment(text: &str) -> usize {
    let mut open = 0;
    for (position, _) in text.char_indices() {
        if text[position..].starts_with("/*") {
            open += 1;
        } else if text[position..].starts_with("*/") {
            open -= 1;
            if open == 0 {
                return position + 2;
            }
        }
    }
    text.len()
}

/// The length of a string or character with its quotes.
fn closing_quote(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (position, sign) in text.char_indices().skip(1) {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if sign == quote => return position + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the raw string (`r#"…"#`, `br"…"`) that a text begins with.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.chars().take_while(|sign| *sign == '#').count();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |length| begin + length + end.len()))
}

#[test]
fn a_reach_into_a_forbidden_room_is_named_with_file_line_and_rule() {
    let text = "use std::fs;\n\nuse crate::controller::stack;\n";
    assert_eq!(
        violations(Path::new("agent/serve.rs"), text),
        ["src/agent/serve.rs:3: agent uses controller: the agent meets the controller only in rpc"]
    );
    assert_eq!(violations(Path::new("main.rs"), text), Vec::<String>::new(), "main wires");
    assert_eq!(violations(Path::new("controller/stack/mod.rs"), text), Vec::<String>::new(), "its own room");
    assert_eq!(
        violations(Path::new("source/flux.rs"), "fn f() { crate::helper() }"),
        ["src/source/flux.rs:1: source names crate::helper, which is no room"]
    );
}

#[test]
fn every_way_to_name_a_room_is_seen_and_prose_is_not() {
    let cases: &[(usize, &str, &[&str])] = &[
        (2, "use crate::api::names;", &["api"]),
        (2, "use crate::{api::{auto, names}, rpc, runtime::gate as g};", &["api", "rpc", "runtime"]),
        (2, "use {crate::api, crate::rpc::proto};", &["api", "rpc"]),
        (2, "fn f() -> crate::agent::Error { crate::rpc::call() }", &["agent", "rpc"]),
        (2, "pub(crate) fn f() {}", &[]),
        (2, "pub(in crate::controller) fn f() {}", &["controller"]),
        (2, "// crate::agent\n/* crate::agent /* crate::agent */ */\n/// [`crate::agent`]\nfn f() {}", &[]),
        (2, r##"const T: &str = "crate::agent \" crate::agent"; const R: &str = r#"crate::agent"#;"##, &[]),
        (2, "fn f<'a>(c: char) { if c == '\"' || c == '\\'' { crate::rpc::g() } }", &["rpc"]),
        (2, "use super::sibling; use super::super::agent;", &["agent"]),
        (1, "use super::agent;", &["agent"]),
        (3, "use super::super::sibling;", &[]),
        (2, "mod tests { use super::*; use super::super::sibling; use super::super::super::agent; }", &["agent"]),
        (2, "mod tests { fn f() {} } use super::super::agent;", &["agent"]),
        (2, "use crate::*;", &["*"]),
    ];
    for (depth, text, wanted) in cases {
        let found: Vec<String> = references(*depth, text).into_iter().map(|reference| reference.name).collect();
        assert_eq!(found, *wanted, "{text}");
    }
}
