//! The command lines of the Pulumi CLI. Every value is given as `--flag=value`, so that none is taken for a flag.

use std::ffi::OsString;
use std::path::Path;

/// What a run does to its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Creates, updates and deletes resources until they are as the program says.
    Up,
    /// Deletes all resources.
    Destroy,
}

/// One run of the engine.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub kind: OperationKind,
    /// The stack's name as the CLI takes it: `dev`, `organization/dev`, `organization/project/dev`.
    pub stack: &'a str,
    /// A file that the CLI truncates and writes its events to, one JSON object per line. Where it cannot be opened, the CLI
    /// runs without it and says nothing.
    pub event_log: &'a Path,
    /// Whether the state is refreshed from the providers first.
    pub refresh: bool,
    /// Kept in the history of the stack.
    pub message: Option<&'a str>,
}

/// The arguments of a run, without the name of the program.
///
/// The output stays the one for people, with diagnostics and outputs, for the pod's log. `PULUMI_DEBUG_COMMANDS` has to be set:
/// without it the CLI does not know `--event-log` (see [`super::environment::engine_environment`]).
pub fn arguments(operation: &Operation<'_>) -> Vec<OsString> {
    let command = match operation.kind {
        OperationKind::Up => "up",
        OperationKind::Destroy => "destroy",
    };
    let mut arguments =
        command_line(&[command, "--yes", "--skip-preview", "--suppress-progress", "--exec-kind=auto.local"]);
    arguments.push(concat!("--exec-agent=pulumi-controller/", env!("CARGO_PKG_VERSION")).into());
    if operation.refresh {
        arguments.push("--refresh=true".into());
    }
    if let Some(message) = operation.message {
        arguments.push(flag("--message", message));
    }
    let mut event_log = OsString::from("--event-log=");
    event_log.push(operation.event_log);
    arguments.push(event_log);
    arguments.push(flag("--stack", operation.stack));
    arguments
}

/// Makes a stack without selecting it. Fails when it exists: see [`super::failure::stack_exists`].
pub fn stack_init(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "init", "--no-select"], stack)
}

/// Selects a stack, so that a person's commands in the pod find it, and makes it first where the backend has none.
pub fn stack_select_or_init(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "select", "--create"], stack)
}

/// Prints the outputs of a stack with the values of secrets: see [`super::outputs::parse`].
pub fn stack_output(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "output", "--json", "--show-secrets"], stack)
}

/// Writes the state of a stack to a file; secrets stay encrypted.
pub fn stack_export(stack: &str, file: &Path) -> Vec<OsString> {
    on_stack_with_file(&["stack", "export"], stack, file)
}

/// Makes what is in a file the state of a stack.
pub fn stack_import(stack: &str, file: &Path) -> Vec<OsString> {
    on_stack_with_file(&["stack", "import"], stack, file)
}

/// Removes all locks of a stack in a file-type backend.
pub fn cancel(stack: &str) -> Vec<OsString> {
    on_stack(&["cancel", "--yes"], stack)
}

/// Prints the version of the CLI.
pub fn version() -> Vec<OsString> {
    command_line(&["version"])
}

/// Installs what the project in the working directory depends on.
pub fn install() -> Vec<OsString> {
    command_line(&["install"])
}

fn on_stack(words: &[&str], stack: &str) -> Vec<OsString> {
    let mut arguments = command_line(words);
    arguments.push(flag("--stack", stack));
    arguments
}

fn on_stack_with_file(words: &[&str], stack: &str, file: &Path) -> Vec<OsString> {
    let mut arguments = on_stack(words, stack);
    let mut flag = OsString::from("--file=");
    flag.push(file);
    arguments.push(flag);
    arguments
}

fn command_line(words: &[&str]) -> Vec<OsString> {
    ["--non-interactive", "--color=never"].iter().chain(words).map(OsString::from).collect()
}

fn flag(name: &str, value: &str) -> OsString {
    format!("{name}={value}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[OsString]) -> String {
        arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn operation(kind: OperationKind) -> Operation<'static> {
        Operation { kind, stack: "dev", event_log: Path::new("/share/events"), refresh: false, message: None }
    }

    #[test]
    fn a_run_is_not_asked_about_and_logs_its_events() {
        let version = env!("CARGO_PKG_VERSION");
        let up = format!(
            "--non-interactive --color=never up --yes --skip-preview --suppress-progress --exec-kind=auto.local \
             --exec-agent=pulumi-controller/{version} --event-log=/share/events --stack=dev"
        );
        assert_eq!(line(&arguments(&operation(OperationKind::Up))), up);
        assert_eq!(line(&arguments(&operation(OperationKind::Destroy))), up.replace(" up ", " destroy "));
    }

    #[test]
    fn refresh_and_message_are_given_when_wanted() {
        let operation = Operation { refresh: true, message: Some("--yes, \"now\""), ..operation(OperationKind::Up) };
        let arguments = arguments(&operation);
        assert!(arguments.contains(&"--refresh=true".into()), "{arguments:?}");
        assert!(arguments.contains(&"--message=--yes, \"now\"".into()), "{arguments:?}");
    }

    #[test]
    fn no_value_is_taken_for_a_flag() {
        let operation = Operation {
            stack: "--help",
            event_log: Path::new("-x"),
            message: Some("-y"),
            ..operation(OperationKind::Destroy)
        };
        let file = Path::new("-x");
        let small = [
            stack_init("--help"),
            stack_select_or_init("--help"),
            stack_output("--help"),
            stack_export("--help", file),
            stack_import("--help", file),
            cancel("--help"),
        ];
        for arguments in [arguments(&operation)].into_iter().chain(small) {
            assert!(arguments.contains(&"--stack=--help".into()), "{arguments:?}");
            assert!(!arguments.iter().any(|argument| argument == "--help" || argument == "-x" || argument == "-y"));
        }
    }

    #[test]
    fn the_small_commands_are_these() {
        let table = [
            (stack_init("o/p/dev"), "stack init --no-select --stack=o/p/dev"),
            (stack_select_or_init("dev"), "stack select --create --stack=dev"),
            (stack_output("dev"), "stack output --json --show-secrets --stack=dev"),
            (stack_export("dev", Path::new("/s/state")), "stack export --stack=dev --file=/s/state"),
            (stack_import("dev", Path::new("/s/state")), "stack import --stack=dev --file=/s/state"),
            (cancel("dev"), "cancel --yes --stack=dev"),
            (version(), "version"),
            (install(), "install"),
        ];
        for (arguments, expected) in table {
            assert_eq!(line(&arguments), format!("--non-interactive --color=never {expected}"));
        }
    }
}
