//! Command lines of the Pulumi CLI. Values are passed as `--flag=value`, so that the CLI never parses a value as a flag.

use std::ffi::OsString;
use std::path::Path;

use OperationKind::{Destroy, DriftCheck, Preview, Refresh, Up};

/// Operation of a run on its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Creates, updates and deletes resources to match the program.
    Up,
    /// Deletes all resources.
    Destroy,
    /// Reports the changes that `up` would make. Changes neither resources nor state.
    Preview,
    /// Updates the state to the resources that the providers report.
    Refresh,
    /// Reports whether a refresh would find changes and fails if so. Changes nothing.
    DriftCheck,
}

/// One run of the Pulumi engine.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub kind: OperationKind,
    /// Name of the stack in one of the forms that the CLI accepts: `dev`, `organization/dev`, `organization/project/dev`.
    pub stack: &'a str,
    /// File to which the CLI writes its events, one JSON object per line. The CLI truncates an existing file. If it cannot open
    /// the file, it runs without an event log and reports no error.
    pub event_log: &'a Path,
    /// Whether the run refreshes the state from the providers first.
    pub refresh: bool,
    /// Message for the update history of the stack.
    pub message: Option<&'a str>,
    pub options: Options<'a>,
}

/// Further options of the CLI. Options that a command does not support are ignored.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// URNs of the resources to operate on; empty for all resources.
    pub targets: &'a [String],
    /// Whether to include the resources that depend on the targets.
    pub target_dependents: bool,
    /// URNs of the resources to replace.
    pub replace: &'a [String],
    /// Maximum number of concurrent resource operations.
    pub parallel: Option<u32>,
    /// Whether the run continues after a resource operation has failed.
    pub continue_on_error: bool,
    /// Whether the run fails if there are changes.
    pub expect_no_changes: bool,
    /// Whether to remove the stack from the backend after it is destroyed.
    pub remove: bool,
    /// Whether a destroy or refresh runs the program.
    pub run_program: bool,
    /// Verbosity of the logs that the CLI and its plugins write to standard error; 0 disables them.
    pub log_level: u32,
}

/// Commands that support an option.
#[derive(Clone, Copy)]
struct Commands(&'static [OperationKind]);

impl Commands {
    const PARALLEL: Self = Self(&[Up, Destroy, Preview, Refresh, DriftCheck]);
    const TARGET: Self = Self::PARALLEL;
    const TARGET_DEPENDENTS: Self = Self(&[Up, Preview, Destroy]);
    const REPLACE: Self = Self(&[Up, Preview]);
    const CONTINUE_ON_ERROR: Self = Self(&[Up, Destroy]);
    const EXPECT_NO_CHANGES: Self = Self(&[Up, Preview, Refresh]);
    const REFRESH: Self = Self(&[Up, Preview, Destroy]);
    const REMOVE: Self = Self(&[Destroy]);
    const RUN_PROGRAM: Self = Self(&[Destroy, Refresh]);

    fn have(self, kind: OperationKind) -> bool {
        self.0.contains(&kind)
    }
}

impl Options<'_> {
    fn flags(&self, kind: OperationKind) -> Vec<OsString> {
        let switches = [
            ("--target-dependents=true", self.target_dependents, Commands::TARGET_DEPENDENTS),
            ("--continue-on-error=true", self.continue_on_error, Commands::CONTINUE_ON_ERROR),
            ("--expect-no-changes=true", self.expect_no_changes, Commands::EXPECT_NO_CHANGES),
            ("--remove=true", self.remove, Commands::REMOVE),
            ("--run-program=true", self.run_program, Commands::RUN_PROGRAM),
        ];
        let switches = switches.into_iter().filter(|(_, is_wanted, commands)| *is_wanted && commands.have(kind));
        let parallel = self.parallel.filter(|_| Commands::PARALLEL.have(kind));
        let verbose = Some(self.log_level).filter(|level| *level > 0);
        let logging =
            verbose.map(|level| ["--logtostderr".into(), "--logflow".into(), flag("--verbose", &level.to_string())]);
        let targets = self.targets.iter().filter(|_| Commands::TARGET.have(kind));
        let replaced = self.replace.iter().filter(|_| Commands::REPLACE.have(kind));
        switches
            .map(|(switch, ..)| switch.into())
            .chain(logging.into_iter().flatten())
            .chain(parallel.map(|number| flag("--parallel", &number.to_string())))
            .chain(targets.map(|urn| flag("--target", urn)))
            .chain(replaced.map(|urn| flag("--replace", urn)))
            .collect()
    }
}

/// Returns the arguments of a run, without the program name.
///
/// The output remains human-readable, with diagnostics and stack outputs, because it goes to the log of the pod. The CLI
/// accepts `--event-log` only if `PULUMI_DEBUG_COMMANDS` is set (see [`super::environment::engine_environment`]).
pub fn arguments(operation: &Operation<'_>) -> Vec<OsString> {
    let words: &[&str] = match operation.kind {
        Up => &["up", "--yes", "--skip-preview"],
        Destroy => &["destroy", "--yes", "--skip-preview"],
        Refresh => &["refresh", "--yes", "--skip-preview"],
        // The output is for users.
        Preview => &["preview", "--diff"],
        DriftCheck => &["refresh", "--preview-only", "--expect-no-changes=true"],
    };
    let mut arguments = command_line(words);
    arguments.extend(["--suppress-progress", "--exec-kind=auto.local"].map(OsString::from));
    arguments.push(concat!("--exec-agent=pulumi-controller/", env!("CARGO_PKG_VERSION")).into());
    if operation.refresh && Commands::REFRESH.have(operation.kind) {
        arguments.push("--refresh=true".into());
    }
    if let Some(message) = operation.message {
        arguments.push(flag("--message", message));
    }
    arguments.extend(operation.options.flags(operation.kind));
    let mut event_log = OsString::from("--event-log=");
    event_log.push(operation.event_log);
    arguments.push(event_log);
    arguments.push(flag("--stack", operation.stack));
    arguments
}

/// Creates a stack without selecting it. Fails if the stack exists: see [`super::failure::stack_exists`]. Without
/// `secrets_provider`, the CLI uses the default provider of the backend.
pub fn stack_init(stack: &str, secrets_provider: Option<&str>) -> Vec<OsString> {
    with_provider(on_stack(&["stack", "init", "--no-select"], stack), secrets_provider)
}

/// Selects a stack for the commands that users run in the pod.
pub fn stack_select(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "select"], stack)
}

/// Selects a stack and creates it first if the backend does not have it.
pub fn stack_select_or_init(stack: &str, secrets_provider: Option<&str>) -> Vec<OsString> {
    with_provider(on_stack(&["stack", "select", "--create"], stack), secrets_provider)
}

fn with_provider(mut arguments: Vec<OsString>, secrets_provider: Option<&str>) -> Vec<OsString> {
    arguments.extend(secrets_provider.map(|provider| flag("--secrets-provider", provider)));
    arguments
}

/// Encrypts a value and writes it to the settings file. The CLI reads the value from its standard input and strips one trailing
/// line feed. An argument would be visible to every user of the node.
pub fn set_secret(stack: &str, is_path: bool, key: &str) -> Vec<OsString> {
    let mut arguments = on_stack(&["config", "set", "--secret"], stack);
    arguments.extend(is_path.then(|| OsString::from("--path")));
    arguments.extend(["--", key].map(OsString::from));
    arguments
}

/// Prints the outputs of a stack, including secret values: see [`super::outputs::parse`].
pub fn stack_output(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "output", "--json", "--show-secrets"], stack)
}

/// Exports the state of a stack to a file. Secrets stay encrypted.
pub fn stack_export(stack: &str, file: &Path) -> Vec<OsString> {
    on_stack_with_file(&["stack", "export"], stack, file)
}

/// Replaces the state of a stack by the state in a file.
pub fn stack_import(stack: &str, file: &Path) -> Vec<OsString> {
    on_stack_with_file(&["stack", "import"], stack, file)
}

/// Removes all locks of a stack in a DIY backend (file system or object store).
pub fn cancel(stack: &str) -> Vec<OsString> {
    on_stack(&["cancel", "--yes"], stack)
}

/// Prints the version of the CLI.
pub fn version() -> Vec<OsString> {
    command_line(&["version"])
}

/// Installs the dependencies of the project in the working directory.
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
        let event_log = Path::new("/share/events");
        Operation { kind, stack: "dev", event_log, refresh: false, message: None, options: Options::default() }
    }

    #[test]
    fn runs_are_non_interactive_and_write_an_event_log() {
        let version = env!("CARGO_PKG_VERSION");
        let up = format!(
            "--non-interactive --color=never up --yes --skip-preview --suppress-progress --exec-kind=auto.local \
             --exec-agent=pulumi-controller/{version} --event-log=/share/events --stack=dev"
        );
        assert_eq!(line(&arguments(&operation(OperationKind::Up))), up);
        let rows = [
            (Destroy, "destroy --yes --skip-preview"),
            (Refresh, "refresh --yes --skip-preview"),
            (Preview, "preview --diff"),
            (DriftCheck, "refresh --preview-only --expect-no-changes=true"),
        ];
        for (kind, words) in rows {
            assert_eq!(line(&arguments(&operation(kind))), up.replace("up --yes --skip-preview", words));
        }
    }

    #[test]
    fn refresh_and_message_flags_are_passed_when_set() {
        let operation = Operation { refresh: true, message: Some("--yes, \"now\""), ..operation(OperationKind::Up) };
        let arguments = arguments(&operation);
        assert!(arguments.contains(&"--refresh=true".into()), "{arguments:?}");
        assert!(arguments.contains(&"--message=--yes, \"now\"".into()), "{arguments:?}");
    }

    #[test]
    fn each_command_gets_only_its_supported_options() {
        let urns = ["urn:a".to_owned(), "urn:*,b".to_owned()];
        let options = Options {
            targets: &urns,
            target_dependents: true,
            replace: &urns,
            parallel: Some(3),
            continue_on_error: true,
            expect_no_changes: true,
            remove: true,
            run_program: true,
            log_level: 3,
        };
        let targets = "--logtostderr --logflow --verbose=3 --parallel=3 --target=urn:a --target=urn:*,b";
        for (kind, expected) in [
            (
                OperationKind::Up,
                format!(
                    "--target-dependents=true --continue-on-error=true --expect-no-changes=true {targets} \
                     --replace=urn:a --replace=urn:*,b"
                ),
            ),
            (
                OperationKind::Destroy,
                format!("--target-dependents=true --continue-on-error=true --remove=true --run-program=true {targets}"),
            ),
            (
                OperationKind::Preview,
                format!(
                    "--target-dependents=true --expect-no-changes=true {targets} --replace=urn:a --replace=urn:*,b"
                ),
            ),
            (OperationKind::Refresh, format!("--expect-no-changes=true --run-program=true {targets}")),
            (OperationKind::DriftCheck, targets.to_owned()),
        ] {
            assert_eq!(line(&options.flags(kind)), expected);
            assert_eq!(line(&Options::default().flags(kind)), "");
        }
    }

    #[test]
    fn values_are_never_parsed_as_flags() {
        let operation = Operation {
            stack: "--help",
            event_log: Path::new("-x"),
            message: Some("-y"),
            ..operation(OperationKind::Destroy)
        };
        let file = Path::new("-x");
        let small = [
            stack_init("--help", Some("-y")),
            stack_select("--help"),
            stack_select_or_init("--help", None),
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
    fn helper_commands_have_the_expected_arguments() {
        let table = [
            (stack_init("o/p/dev", None), "stack init --no-select --stack=o/p/dev"),
            (stack_init("dev", Some("awskms://a")), "stack init --no-select --stack=dev --secrets-provider=awskms://a"),
            (stack_select("dev"), "stack select --stack=dev"),
            (stack_select_or_init("dev", None), "stack select --create --stack=dev"),
            (
                stack_select_or_init("dev", Some("passphrase")),
                "stack select --create --stack=dev --secrets-provider=passphrase",
            ),
            (stack_output("dev"), "stack output --json --show-secrets --stack=dev"),
            (stack_export("dev", Path::new("/s/state")), "stack export --stack=dev --file=/s/state"),
            (stack_import("dev", Path::new("/s/state")), "stack import --stack=dev --file=/s/state"),
            (cancel("dev"), "cancel --yes --stack=dev"),
            (set_secret("dev", false, "-a"), "config set --secret --stack=dev -- -a"),
            (set_secret("dev", true, "a.b"), "config set --secret --stack=dev --path -- a.b"),
            (version(), "version"),
            (install(), "install"),
        ];
        for (arguments, expected) in table {
            assert_eq!(line(&arguments), format!("--non-interactive --color=never {expected}"));
        }
    }
}
