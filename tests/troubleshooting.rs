//! Compares `docs/troubleshooting.md` and `docs/events.md` with the messages and the reasons in `src`.
#![allow(clippy::expect_used, clippy::string_slice, reason = "a file that cannot be read fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemConst, ItemMod, LitStr, Macro, Meta};

/// Files whose errors do not appear in conditions or events, each with the reason.
const INTERNAL: &[(&str, &str)] = &[
    ("agent/bootstrap.rs", "the log of the init container bootstrap"),
    ("agent/init.rs", "the log of the pulumi container"),
    ("agent/install/cache/mod.rs", "the log of the pulumi container, about a cache that the agent does not use"),
    ("artifact/fetch/settings.rs", "printed at startup, about a flag"),
    ("config/values.rs", "printed at startup, about a flag"),
    ("controller/workspace/pool/maintenance.rs", "the log of the controller, about a pod of a pool"),
    ("history/open.rs", "printed at startup, about a flag"),
    ("history_api/access.rs", "the response to a request for the history of runs"),
    ("history_api/mod.rs", "the response to a request for the history of runs"),
    ("plugin/error.rs", "printed by the kubectl plugin"),
    ("rpc/client_tls.rs", "the log of the controller, about certificates that the controller has created"),
    ("rpc/server_tls.rs", "the log of the pulumi container, about mounted certificates"),
    ("runtime/client.rs", "printed at startup, about the kubeconfig"),
    ("runtime/events/notifications.rs", "the log of the controller, about an event that was not delivered"),
    ("runtime/fair_slots.rs", "the callers write their own messages"),
    ("runtime/lease.rs", "the log of the controller, about leader election"),
    ("runtime/reconcile.rs", "the log of the controller, about a reconciliation that is retried"),
    ("server/metrics_text.rs", "the response to a request for the metrics"),
    ("server/mod.rs", "printed at startup, about an address"),
    ("server/profile.rs", "the response to a request for a CPU profile"),
    ("telemetry/logging.rs", "printed at startup, about a flag"),
    ("telemetry/traces/export.rs", "the log of the controller, about spans that were not exported"),
    ("ui/error.rs", "a page of the web UI"),
    ("ui/session.rs", "printed at startup, or a page of the web UI"),
];

/// Minimum number of letters in a message that `docs/troubleshooting.md` must document. Shorter messages only add a
/// field name to another message.
const MIN_LETTERS: usize = 9;

/// Prefix of messages from the Pulumi CLI. The troubleshooting page also documents some of these messages.
const PULUMI: &str = "error: ";

/// Source files in `src`. Each key is a path relative to `src`.
static SOURCES: LazyLock<BTreeMap<String, Found>> = LazyLock::new(|| sources().expect("src can be parsed"));

#[test]
fn troubleshooting_lists_every_error_message_for_users() -> Result<()> {
    let documented = documented("troubleshooting.md")?;
    let internal: BTreeSet<&str> = INTERNAL.iter().map(|(file, _)| *file).collect();
    let mut missing = Vec::new();
    for (file, found) in &*SOURCES {
        for message in found.errors.iter().filter(|_| !internal.contains(file.as_str())) {
            if letters(message) >= MIN_LETTERS && !documented.iter().any(|text| matches(&parts(message), text)) {
                missing.push(format!("src/{file}: {message}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks these messages:\n{}", missing.join("\n"));
    Ok(())
}

#[test]
fn troubleshooting_lists_only_messages_of_the_code() -> Result<()> {
    let literals: Vec<Vec<String>> = SOURCES
        .values()
        .flat_map(|found| &found.literals)
        .filter(|text| letters(text) >= MIN_LETTERS)
        .map(|text| parts(text))
        .collect();
    let is_known = |text: &str| {
        let start = text.strip_suffix('…').unwrap_or(text);
        literals.iter().any(|literal| matches(literal, text) || matches(literal, start))
    };
    let documented = documented("troubleshooting.md")?;
    let outdated: Vec<&String> =
        documented.iter().filter(|text| text.contains(' ') && !text.starts_with(PULUMI) && !is_known(text)).collect();
    assert!(outdated.is_empty(), "docs/troubleshooting.md lists messages that src does not contain: {outdated:#?}");
    Ok(())
}

#[test]
fn troubleshooting_lists_every_reason_of_a_condition() -> Result<()> {
    let documented = documented("troubleshooting.md")?;
    let reasons = &SOURCES.get("api/conditions.rs").context("src/api/conditions.rs exists")?.reasons;
    assert!(reasons.len() > 40, "found only {} reasons", reasons.len());
    let missing: Vec<&String> = reasons.iter().filter(|reason| !documented.contains(*reason)).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks these reasons: {missing:?}");
    Ok(())
}

#[test]
fn the_list_of_events_contains_every_reason_of_an_event() -> Result<()> {
    let documented = documented("events.md")?;
    let emitting = SOURCES.values().filter(|found| found.emits_events);
    let missing: BTreeSet<&String> = emitting
        .flat_map(|found| &found.literals)
        .filter(|literal| is_reason(literal) && !documented.contains(*literal))
        .collect();
    assert!(missing.is_empty(), "docs/events.md lacks these reasons: {missing:?}");
    Ok(())
}

#[test]
fn the_list_of_internal_files_contains_only_files_with_errors() {
    let has_errors = |file: &str| SOURCES.get(file).is_some_and(|found| !found.errors.is_empty());
    let outdated: Vec<&str> = INTERNAL.iter().map(|(file, _)| *file).filter(|file| !has_errors(file)).collect();
    assert!(outdated.is_empty(), "tests/troubleshooting.rs lists files without errors: {outdated:?}");
}

#[test]
fn a_message_matches_only_its_own_template() {
    let cases = [
        ("failed to read {path}: {0}", "failed to read …: …", true),
        ("failed to read {path}: {0}", "failed to write …: …", false),
        ("HTTP status {status}{}", "HTTP status …", true),
        ("{what} is missing", "… is missing", true),
        ("{what} is missing", "… is missing now", false),
        ("a {{b}} {c}", "a {b} …", true),
    ];
    for (template, text, expected) in cases {
        assert_eq!(matches(&parts(template), text), expected, "{template:?} {text:?}");
    }
}

#[test]
fn code_spans_of_headings_and_first_cells_are_messages() {
    let page = "# A `b c`\ntext `d`\n| e | f |\n|---|---|\n| `g`<br>`` h `i` `` | `j` |\n```sh\n# `k`\n```\n";
    assert_eq!(code_spans(page), ["b c", "g", "h `i`"].map(str::to_owned).into());
}

/// Messages and reasons in a source file. The tests in the file are not included.
#[derive(Default)]
struct Found {
    /// Templates in `#[error("…")]`.
    errors: Vec<String>,
    /// All string literals.
    literals: BTreeSet<String>,
    /// Constant values in modules with the suffix `_reason`.
    reasons: BTreeSet<String>,
    emits_events: bool,
    is_in_reasons: bool,
}

impl Found {
    fn read_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    self.literals.extend(syn::parse_str::<LitStr>(&literal.to_string()).ok().map(|text| text.value()));
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_for_tests) {
            let was_in_reasons =
                std::mem::replace(&mut self.is_in_reasons, module.ident.to_string().ends_with("_reason"));
            visit::visit_item_mod(self, module);
            self.is_in_reasons = was_in_reasons;
        }
    }

    fn visit_item_const(&mut self, constant: &'ast ItemConst) {
        if let (true, syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. })) =
            (self.is_in_reasons, &*constant.expr)
        {
            self.reasons.insert(text.value());
        }
        visit::visit_item_const(self, constant);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Meta::List(list) = &attribute.meta else { return };
        if list.path.is_ident("error") {
            let first = list.tokens.clone().into_iter().next().map(|token| token.to_string());
            let message = first.and_then(|token| syn::parse_str::<LitStr>(&token).ok()).map(|text| text.value());
            self.literals.extend(message.clone());
            self.errors.extend(message);
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.read_tokens(call.tokens.clone());
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.literals.insert(text.value());
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            let names: Vec<String> = function.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.emits_events |= names == ["Event", "new"];
        }
        visit::visit_expr_call(self, call);
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

/// Reads all files in `src` that are not tests. Each key is a path relative to `src`.
fn sources() -> Result<BTreeMap<String, Found>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = BTreeMap::new();
    for path in files(&root)? {
        let relative = path.strip_prefix(&root)?.to_string_lossy().into_owned();
        if relative.split('/').any(|part| part == "tests" || part.ends_with("tests.rs")) {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| relative.clone())?;
        let mut found = Found::default();
        found.visit_file(&syn::parse_file(&text).with_context(|| relative.clone())?);
        sources.insert(relative, found);
    }
    Ok(sources)
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the messages and reasons that a page in `docs` documents.
fn documented(page: &str) -> Result<BTreeSet<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    Ok(code_spans(&std::fs::read_to_string(path).with_context(|| page.to_owned())?))
}

/// Returns the code spans in the headings and in the first table column of a Markdown page.
fn code_spans(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let first_cell = line.strip_prefix("| ").map(|row| row.split(" | ").next().unwrap_or(row));
        let text = first_cell.or_else(|| line.starts_with('#').then_some(line)).filter(|_| !is_code);
        let mut rest = text.unwrap_or_default();
        while let Some(start) = rest.find('`') {
            let fence: String = rest[start..].chars().take_while(|character| *character == '`').collect();
            let inside = &rest[start + fence.len()..];
            let Some(end) = inside.find(&fence) else { break };
            found.insert(inside[..end].trim().to_owned());
            rest = &inside[end + fence.len()..];
        }
    }
    found
}

/// Returns the parts of a format string between its placeholders.
fn parts(template: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = template.chars().peekable();
    while let Some(character) = characters.next() {
        let is_doubled = characters.peek() == Some(&character);
        match character {
            '{' | '}' if is_doubled => parts.last_mut().expect("not empty").extend(characters.next()),
            '{' => {
                characters.by_ref().take_while(|character| *character != '}').for_each(drop);
                parts.push(String::new());
            }
            _ => parts.last_mut().expect("not empty").push(character),
        }
    }
    parts
}

/// Returns whether a string consists of these parts with any text between the parts.
fn matches(parts: &[String], text: &str) -> bool {
    let [first, between @ .., last] = parts else { return parts.first().is_some_and(|only| only == text) };
    let Some(mut rest) = text.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str())) else {
        return false;
    };
    between.iter().all(|part| match rest.find(part.as_str()) {
        Some(start) => {
            rest = &rest[start + part.len()..];
            true
        }
        None => false,
    })
}

fn letters(template: &str) -> usize {
    parts(template).iter().flat_map(|part| part.chars()).filter(|character| character.is_alphabetic()).count()
}

/// Returns whether a literal is a name in upper camel case that consists of several words, such as `StackCreated`.
fn is_reason(literal: &str) -> bool {
    let is_word = literal.chars().all(|character| character.is_ascii_alphabetic());
    let capitals = literal.chars().filter(char::is_ascii_uppercase).count();
    let starts_with_capital = literal.starts_with(|first: char| first.is_ascii_uppercase());
    is_word && starts_with_capital && capitals > 1 && capitals < literal.len()
}
