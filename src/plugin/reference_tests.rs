//! Compares `docs/kubectl-plugin.md` with the commands, flags, exit codes and screens, and checks the commands in
//! `docs/tasks.md`.

use std::collections::BTreeSet;

use clap::{CommandFactory as _, Parser as _};

use crate::plugin::args::CommandLine;

/// The reference of the plugin.
const REFERENCE: &str = include_str!("../../docs/kubectl-plugin.md");
/// Page that compares the commands for everyday tasks with the commands of other tools.
const TASKS: &str = include_str!("../../docs/tasks.md");

/// Asserts that the reference contains an example with this command and this output.
pub fn assert_example(command: &str, output: &str) {
    let example = format!("$ {command}\n{output}");
    assert!(REFERENCE.contains(&example), "docs/kubectl-plugin.md lacks this example:\n{example}");
}

/// Asserts that the reference page contains this string.
pub fn assert_text(text: &str) {
    assert!(REFERENCE.contains(text), "docs/kubectl-plugin.md lacks this text:\n{text}");
}

/// Returns the text between a heading and the next heading.
fn section(heading: &str) -> &'static str {
    let (_, rest) = REFERENCE.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let text = rest.split("\n## ").next().unwrap_or_default();
    text.split("\n### ").next().unwrap_or_default()
}

/// Returns the flags that the tables in a text list in their first column, such as `--selector`.
fn documented_flags(text: &str) -> BTreeSet<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let words = cells.flat_map(|cell| cell.split([' ', ',', '=']));
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
}

/// Returns the flags of a command, except the global flags and `--help`.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter(|flag| !flag.is_global_set() && !flag.is_hide_set());
    own.filter_map(|flag| flag.get_long()).filter(|long| *long != "help").map(|long| format!("--{long}")).collect()
}

/// Returns the visible commands that have no subcommands, with their full names.
fn leaves<'c>(parent: &'c clap::Command, prefix: &str) -> Vec<(String, &'c clap::Command)> {
    let visible = parent.get_subcommands().filter(|command| !command.is_hide_set());
    visible
        .flat_map(|command| {
            let name = format!("{prefix}{}", command.get_name());
            match command.has_subcommands() {
                true => leaves(command, &format!("{name} ")),
                false => vec![(name, command)],
            }
        })
        .collect()
}

#[test]
fn the_reference_lists_every_command_and_its_flags() {
    let root = CommandLine::command();
    let commands = leaves(&root, "");
    for (name, command) in &commands {
        assert_eq!(
            documented_flags(section(&format!("### {name}"))),
            flags(command),
            "left: the section {name}; right: the command"
        );
    }
    let sections: BTreeSet<&str> = REFERENCE.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let names: BTreeSet<&str> = commands.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(sections, names, "left: the sections; right: the commands");
}

#[test]
fn the_reference_lists_every_global_flag() {
    let root = CommandLine::command();
    let global = root.get_arguments().filter(|flag| flag.is_global_set()).filter_map(|flag| flag.get_long());
    assert_eq!(documented_flags(section("## Global flags")), global.map(|long| format!("--{long}")).collect());
}

#[test]
fn the_commands_of_the_tasks_exist() {
    let spans = TASKS.split('`').skip(1).step_by(2);
    let commands: Vec<&str> = spans.filter_map(|span| span.strip_prefix("kubectl pulumi ")).collect();
    assert!(commands.len() > 15, "found only {} commands", commands.len());
    for command in commands {
        let words = std::iter::once("kubectl-pulumi").chain(command.split(' '));
        assert!(CommandLine::try_parse_from(words).is_ok(), "kubectl pulumi {command}");
    }
}
