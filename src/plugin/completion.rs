//! Completions for kubectl. kubectl runs the program `kubectl_complete-pulumi`, which calls the plugin. The output has
//! the format of the Cobra library. Each line contains a completion, a tab and a description. The last line is a
//! directive.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory as _};
use kube::ResourceExt;
use kube::api::ListParams;
use pulumi_controller::api::pulumi::Stack;

use crate::plugin::args::{CommandLine, GlobalFlags};
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::screen;

/// Script that users save as `kubectl_complete-pulumi` in a directory on the `PATH`.
pub const SCRIPT: &str = "\
#!/bin/sh
# Completions of `kubectl pulumi`. Save this script as kubectl_complete-pulumi in a directory of the PATH, and make it
# executable.
exec kubectl pulumi __complete -- \"$@\"
";

/// Cobra directive that disables file name completion.
const NO_FILES: &str = ":4";
/// Timeout of a completion.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Commands whose first argument is not a Stack.
const WITHOUT_STACK: [&str; 4] = ["completion", "doctor", "mcp", "version"];

/// Prints the completions for the last word. Ignores cluster errors, because kubectl cannot show them.
///
/// # Errors
///
/// Returns an error if the output cannot be written.
pub async fn complete(global: &GlobalFlags, words: &[String]) -> Result<(), PluginError> {
    let found = match candidates(words) {
        Candidates::Words(found) => found,
        Candidates::Stacks => stacks(global, words).await.unwrap_or_default(),
    };
    let prefix = words.last().map(String::as_str).unwrap_or_default();
    let lines = found.iter().filter(|line| line.starts_with(prefix)).map(|line| format!("{line}\n"));
    screen::write(format!("{}{NO_FILES}\n", lines.collect::<String>()).as_bytes())
}

/// Completions of a word.
#[derive(Debug, PartialEq, Eq)]
enum Candidates {
    /// Completions, each with an optional description after a tab.
    Words(Vec<String>),
    /// The names of Stacks, which the plugin must read from the cluster.
    Stacks,
}

/// Returns the completions for the last word.
fn candidates(words: &[String]) -> Candidates {
    let root = CommandLine::command();
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", words),
    };
    let command = command_of(&root, before);
    let flags: Vec<&Arg> = flags_of(&root).chain(command.into_iter().flat_map(flags_of)).collect();
    if let Some(flag) = before.last().and_then(|word| flag_with_value(&flags, word)) {
        let values = flag.get_possible_values();
        return Candidates::Words(values.iter().map(|value| value.get_name().to_owned()).collect());
    }
    if last.starts_with('-') {
        let longs =
            flags.iter().filter_map(|flag| Some(with_help(&format!("--{}", flag.get_long()?), flag.get_help())));
        return Candidates::Words(longs.collect());
    }
    let command = command.unwrap_or(&root);
    if command.has_subcommands() {
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
        return Candidates::Words(commands.map(|command| with_help(command.get_name(), command.get_about())).collect());
    }
    match WITHOUT_STACK.contains(&command.get_name()) {
        true => Candidates::Words(Vec::new()),
        false => Candidates::Stacks,
    }
}

/// Returns the flags of a command, without its positional arguments.
fn flags_of(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| !argument.is_positional())
}

/// Returns the command that the words select, or `None` if the words contain no command. A command with subcommands has
/// no flags of its own.
fn command_of<'c>(root: &'c Command, words: &[String]) -> Option<&'c Command> {
    let flags: Vec<&Arg> = flags_of(root).collect();
    let mut found = None;
    let mut is_value = false;
    for word in words {
        if !is_value && !word.starts_with('-') {
            match found.unwrap_or(root).find_subcommand(word.as_str()) {
                Some(command) => found = Some(command),
                None => return found,
            }
        }
        is_value = !is_value && flag_with_value(&flags, word).is_some();
    }
    found
}

/// Returns the flag that a word names, or `None` if the flag's value is not the next word.
fn flag_with_value<'f>(flags: &[&'f Arg], word: &str) -> Option<&'f Arg> {
    let is_named = |flag: &&&Arg| {
        let short =
            word.strip_prefix('-').filter(|name| name.chars().count() == 1).and_then(|name| name.chars().next());
        let long = word.strip_prefix("--");
        (short.is_some() && flag.get_short() == short) || (long.is_some() && flag.get_long() == long)
    };
    flags.iter().find(is_named).copied().filter(|flag| flag.get_action().takes_values())
}

/// Returns a completion with the first sentence of its help as the description.
fn with_help(word: &str, help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    let first = help.lines().next().and_then(|line| line.split(". ").next()).unwrap_or_default();
    format!("{word}\t{}", first.trim_end_matches('.'))
}

/// Returns the last value of a flag, which has one of these names. The value is part of the word or the next word.
fn value(words: &[String], names: &[&str]) -> Option<String> {
    let mut values = words.iter().enumerate().filter_map(|(index, word)| match word.split_once('=') {
        Some((name, value)) => names.contains(&name).then(|| value.to_owned()),
        None => words.get(index + 1).filter(|_| names.contains(&word.as_str())).cloned(),
    });
    values.next_back()
}

/// Returns the names of the Stacks in the namespace that the command line selects.
async fn stacks(global: &GlobalFlags, words: &[String]) -> Result<Vec<String>, PluginError> {
    let flags = GlobalFlags {
        namespace: value(words, &["-n", "--namespace"]).or_else(|| global.namespace.clone()),
        context: value(words, &["--context"]).or_else(|| global.context.clone()),
        kubeconfig: value(words, &["--kubeconfig"]).map(Into::into).or_else(|| global.kubeconfig.clone()),
        timeout: TIMEOUT,
        output: global.output,
    };
    let cluster = Cluster::connect(&flags).await?;
    // A warning would appear in the command line of the user.
    let listed = cluster.list_with_invalid::<Stack>(&cluster.scope(false), ListParams::default()).await?;
    let given: BTreeSet<&String> = words.iter().collect();
    Ok(listed.objects.iter().map(ResourceExt::name_any).filter(|name| !given.contains(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Candidates {
        candidates(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    fn names(words: &[&str]) -> Vec<String> {
        match of(words) {
            Candidates::Words(found) => found.iter().map(|line| line.split('\t').next().unwrap().to_owned()).collect(),
            Candidates::Stacks => panic!("expected words, found Stacks"),
        }
    }

    #[test]
    fn commands_flags_values_and_stacks_are_completed() {
        assert!(names(&["re"]).contains(&"reconcile".to_owned()));
        assert!(names(&[]).iter().all(|name| name != "__complete"), "hidden commands are not completed");
        assert!(names(&["-n", "apps", ""]).contains(&"get".to_owned()), "the value of a flag is not a command");
        assert_eq!(names(&["get", "-o", ""]), ["text", "json", "yaml"]);
        assert_eq!(names(&["resolve", "--decision", ""]), ["retry", "create", "clear", "abandon"]);
        let flags = names(&["reconcile", "--"]);
        for flag in ["--with-source", "--selector", "--namespace"] {
            assert!(flags.contains(&flag.to_owned()), "{flag}: {flags:?}");
        }
        assert_eq!(of(&["get", ""]), Candidates::Stacks);
        assert_eq!(of(&["-n", "apps", "get", "we"]), Candidates::Stacks);
        assert_eq!(of(&["version", ""]), Candidates::Words(Vec::new()));
        assert_eq!(names(&["stack", ""]), ["export", "import", "state"]);
        assert_eq!(names(&["stack", "-n", "apps", "state", ""]), ["delete", "unprotect", "rename"]);
        assert_eq!(of(&["stack", "state", "delete", ""]), Candidates::Stacks);
        assert!(names(&["stack", "export", "--"]).contains(&"--show-secrets".to_owned()));
        assert_eq!(names(&["get", "-n", ""]), Vec::<String>::new());
    }

    #[test]
    fn the_stacks_are_those_of_the_selected_namespace() {
        let namespace = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            value(&words, &["-n", "--namespace"])
        };
        assert_eq!(namespace(&["get", "-n", "apps", ""]).as_deref(), Some("apps"));
        assert_eq!(namespace(&["-n", "apps", "get", "--namespace=shared", ""]).as_deref(), Some("shared"));
        assert_eq!(namespace(&["get", "--context=a", ""]), None);
    }

    #[test]
    fn a_completion_has_a_short_description() {
        let Candidates::Words(commands) = of(&["su"]) else { panic!("expected words") };
        assert!(commands.contains(&"suspend\tSuspend Stacks".to_owned()), "{commands:?}");
    }
}
