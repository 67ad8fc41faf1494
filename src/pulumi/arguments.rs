//! Command lines of the Pulumi CLI. Each flag has the form `--flag=value`, because the CLI could parse a separate value
//! as a flag.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use OperationKind::{Destroy, DriftCheck, Preview, PreviewDestroy, PreviewRefresh, Refresh, Up};

/// The operation that a run performs on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Creates, updates and deletes resources to match the program.
    Up,
    /// Deletes all resources of the stack.
    Destroy,
    /// Reports the changes that `up` would make. Changes neither the resources nor the state.
    Preview,
    /// Reports the resources that `destroy` would delete. Changes neither the resources nor the state.
    PreviewDestroy,
    /// Reports the changes that `refresh` would make to the state. Changes neither the resources nor the state.
    PreviewRefresh,
    /// Updates the state to match the actual resources that the providers report.
    Refresh,
    /// Reports the changes that a refresh would find, before an operation that must not start if there are any.
    DriftCheck,
}

impl OperationKind {
    /// Returns whether the operation only reports changes.
    pub fn is_preview(self) -> bool {
        matches!(self, Preview | PreviewDestroy | PreviewRefresh)
    }

    /// Returns whether the operation applies the resources that the program declares, or previews the changes.
    pub fn is_forward(self) -> bool {
        matches!(self, Up | Preview)
    }

    /// Returns whether the operation deletes all resources, or previews their deletion.
    pub fn is_destroy(self) -> bool {
        matches!(self, Destroy | PreviewDestroy)
    }
}

/// A run of the Pulumi engine.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub kind: OperationKind,
    /// Name of the stack in a form that the CLI accepts: `dev`, `organization/dev` or `organization/project/dev`.
    pub stack: &'a str,
    /// File to which the CLI writes its events, one JSON object per line. The CLI truncates an existing file. If the
    /// CLI cannot open the file, the CLI runs without an event log and reports no error.
    pub event_log: &'a Path,
    /// Whether the run refreshes the state before the operation.
    pub refresh: bool,
    /// Message that appears in the stack's update history.
    pub message: Option<&'a str>,
    /// Plan file that a preview wrote. An `up` that deviates from the plan fails. Other operations ignore the plan.
    pub plan: Option<&'a Path>,
    /// File to which an `up` preview writes its plan. Other operations write no plan.
    pub save_plan: Option<&'a Path>,
    pub options: Options<'a>,
}

/// Additional CLI options. [`arguments`] omits options that the command does not support.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// URNs of the resources that the operation affects. An empty list selects all resources.
    pub targets: &'a [String],
    /// Whether to include the resources that depend on the targets.
    pub target_dependents: bool,
    /// URNs of the resources to replace.
    pub replace: &'a [String],
    /// Maximum number of concurrent resource operations.
    pub parallel: Option<u32>,
    /// Whether the run continues after a resource operation has failed.
    pub continue_on_error: bool,
    /// Whether the run fails if it finds changes.
    pub expect_no_changes: bool,
    /// Whether a destroy also removes the stack from the state backend.
    pub remove: bool,
    /// Whether a destroy or refresh, also the refresh before an operation, runs the program.
    pub run_program: bool,
    /// Verbosity of the logs that the CLI and its plugins write to stderr. The value 0 disables the logs.
    pub log_level: u32,
    /// Policy packs that the operation enforces.
    pub policy_packs: &'a [PolicyPack],
}

/// A policy pack, as the CLI flags specify it. The paths must not contain commas or quotation marks, because the CLI
/// parses the flag values as comma-separated lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPack {
    /// Directory that contains `PulumiPolicy.yaml`.
    pub directory: PathBuf,
    /// JSON file with the configuration. The CLI requires that either all policy packs have such a file, or none.
    pub config: PathBuf,
}

/// The commands that support an option.
#[derive(Clone, Copy)]
struct Commands(&'static [OperationKind]);

impl Commands {
    const PARALLEL: Self = Self(&[Up, Destroy, Preview, PreviewDestroy, PreviewRefresh, Refresh, DriftCheck]);
    const TARGET: Self = Self::PARALLEL;
    const TARGET_DEPENDENTS: Self = Self(&[Up, Preview, Destroy, PreviewDestroy]);
    const REPLACE: Self = Self(&[Up, Preview]);
    const CONTINUE_ON_ERROR: Self = Self(&[Up, Destroy]);
    const EXPECT_NO_CHANGES: Self = Self(&[Up, Preview, Refresh, PreviewRefresh]);
    const REFRESH: Self = Self(&[Up, Preview, Destroy, PreviewDestroy]);
    const REMOVE: Self = Self(&[Destroy]);
    const RUN_PROGRAM: Self = Self(&[Destroy, PreviewDestroy, Refresh, PreviewRefresh, DriftCheck]);
    /// In these commands, the option affects only the refresh before the operation.
    const RUN_PROGRAM_IN_REFRESH: Self = Self(&[Up, Preview]);
    const PLAN: Self = Self(&[Up]);
    const SAVE_PLAN: Self = Self(&[Preview]);
    const POLICY_PACK: Self = Self(&[Up, Preview]);

    fn have(self, kind: OperationKind) -> bool {
        self.0.contains(&kind)
    }
}

impl Options<'_> {
    /// Returns the flags of a command. `refresh` is whether the command refreshes the state before the operation.
    fn flags(&self, kind: OperationKind, refresh: bool) -> Vec<OsString> {
        let switches = [
            ("--target-dependents=true", self.target_dependents, Commands::TARGET_DEPENDENTS),
            ("--continue-on-error=true", self.continue_on_error, Commands::CONTINUE_ON_ERROR),
            ("--expect-no-changes=true", self.expect_no_changes, Commands::EXPECT_NO_CHANGES),
            ("--remove=true", self.remove, Commands::REMOVE),
            ("--run-program=true", self.run_program, Commands::RUN_PROGRAM),
            ("--run-program=true", self.run_program && refresh, Commands::RUN_PROGRAM_IN_REFRESH),
        ];
        let switches = switches.into_iter().filter(|(_, is_desired, commands)| *is_desired && commands.have(kind));
        let parallel = self.parallel.filter(|_| Commands::PARALLEL.have(kind));
        let verbose = Some(self.log_level).filter(|level| *level > 0);
        let logging =
            verbose.map(|level| ["--logtostderr".into(), "--logflow".into(), flag("--verbose", &level.to_string())]);
        let targets = self.targets.iter().filter(|_| Commands::TARGET.have(kind));
        let packs = self.policy_packs.iter().filter(|_| Commands::POLICY_PACK.have(kind));
        let packs = packs.flat_map(|PolicyPack { directory, config }| {
            [file_flag("--policy-pack", directory), file_flag("--policy-pack-config", config)]
        });
        let replaced = self.replace.iter().filter(|_| Commands::REPLACE.have(kind));
        switches
            .map(|(switch, ..)| switch.into())
            .chain(logging.into_iter().flatten())
            .chain(parallel.map(|number| flag("--parallel", &number.to_string())))
            .chain(targets.map(|urn| flag("--target", urn)))
            .chain(replaced.map(|urn| flag("--replace", urn)))
            .chain(packs)
            .collect()
    }
}

/// Returns the CLI arguments for a run, without the program name.
///
/// The output is human-readable and contains diagnostics and stack outputs, because the agent copies the output to the
/// pod log. The CLI accepts `--event-log` only if `PULUMI_DEBUG_COMMANDS` is set (see
/// [`super::cli::engine_environment`]).
pub fn arguments(operation: &Operation<'_>) -> Vec<OsString> {
    let words: &[&str] = match operation.kind {
        Up => &["up", "--yes", "--skip-preview"],
        Destroy => &["destroy", "--yes", "--skip-preview"],
        Refresh => &["refresh", "--yes", "--skip-preview"],
        // `--diff` shows how each resource differs, because users read the output of a preview.
        Preview => &["preview", "--diff"],
        PreviewDestroy => &["destroy", "--preview-only", "--diff"],
        PreviewRefresh => &["refresh", "--preview-only", "--diff"],
        DriftCheck => &["refresh", "--preview-only"],
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
    arguments.extend(operation.options.flags(operation.kind, operation.refresh));
    for (name, file, commands) in
        [("--plan", operation.plan, Commands::PLAN), ("--save-plan", operation.save_plan, Commands::SAVE_PLAN)]
    {
        arguments.extend(file.filter(|_| commands.have(operation.kind)).map(|file| file_flag(name, file)));
    }
    arguments.push(file_flag("--event-log", operation.event_log));
    arguments.push(flag("--stack", operation.stack));
    arguments
}

/// Returns the arguments that create a stack without selecting the stack. The command fails if the stack exists: see
/// [`super::failure::stack_exists`]. Without `secrets_provider`, the CLI uses the default secrets provider of the state
/// backend.
pub fn stack_init(stack: &str, secrets_provider: Option<&str>) -> Vec<OsString> {
    with_provider(on_stack(&["stack", "init", "--no-select"], stack), secrets_provider)
}

/// Returns the arguments that select a stack, so that commands that users run in the pod apply to this stack.
pub fn stack_select(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "select"], stack)
}

/// Returns the arguments that select a stack, and create the stack first if it does not exist in the state backend.
pub fn stack_select_or_init(stack: &str, secrets_provider: Option<&str>) -> Vec<OsString> {
    with_provider(on_stack(&["stack", "select", "--create"], stack), secrets_provider)
}

/// Returns the arguments that change the secrets provider of a stack. The CLI encrypts the settings file and the state
/// again.
pub fn change_secrets_provider(stack: &str, provider: &str) -> Vec<OsString> {
    let mut arguments = on_stack(&["stack", "change-secrets-provider"], stack);
    arguments.extend(["--", provider].map(OsString::from));
    arguments
}

fn with_provider(mut arguments: Vec<OsString>, secrets_provider: Option<&str>) -> Vec<OsString> {
    arguments.extend(secrets_provider.map(|provider| flag("--secrets-provider", provider)));
    arguments
}

/// Returns the arguments that encrypt a value and write the value to the settings file. The CLI reads the value from
/// stdin and strips one trailing line feed. The arguments do not contain the value, because every user on the node can
/// read the arguments of a process.
pub fn set_secret(stack: &str, is_path: bool, key: &str) -> Vec<OsString> {
    let mut arguments = on_stack(&["config", "set", "--secret"], stack);
    arguments.extend(is_path.then(|| OsString::from("--path")));
    arguments.extend(["--", key].map(OsString::from));
    arguments
}

/// Returns the arguments that encrypt the values in the variable [`super::cli::SECRETS`] and write them to the settings
/// file.
pub fn set_secrets(stack: &str) -> Vec<OsString> {
    on_stack(&["config", "set-all"], stack)
}

/// Returns the arguments that print the outputs of a stack, including secret values: see [`super::outputs::parse`].
pub fn stack_output(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "output", "--json", "--show-secrets"], stack)
}

/// Returns the arguments that export the state of a stack to a file. Secret values remain encrypted.
pub fn stack_export(stack: &str, file: &Path) -> Vec<OsString> {
    on_stack_with_file(&["stack", "export"], stack, file)
}

/// Returns the arguments that import the state of a stack from a file.
pub fn stack_import(stack: &str, file: &Path) -> Vec<OsString> {
    on_stack_with_file(&["stack", "import"], stack, file)
}

/// Returns the arguments that print the newest update of a stack as JSON: see [`super::active_update::parse_history`].
pub fn newest_update(stack: &str) -> Vec<OsString> {
    on_stack(&["stack", "history", "--json", "--page-size=1", "--page=1"], stack)
}

/// Returns the arguments that describe a stack and its update in progress: see [`super::active_update::parse_stack`].
pub fn stack_description(stack: &str) -> Vec<OsString> {
    on_stack(&["stack"], stack)
}

/// Returns the arguments that cancel the update that is in progress in Pulumi Cloud. In a DIY backend (bucket, database
/// or file system), the command removes all locks of the stack.
pub fn cancel(stack: &str) -> Vec<OsString> {
    on_stack(&["cancel", "--yes"], stack)
}

/// Login to Pulumi Cloud with an OIDC token.
#[derive(Clone, Copy, Debug)]
pub struct OidcLogin<'a> {
    pub url: &'a str,
    /// File that contains the OIDC token. The arguments do not contain the token, because every user on the node can
    /// read the arguments of a process.
    pub token_file: &'a str,
    pub organization: &'a str,
    /// Team of the access token. If neither the team nor the user is set, Pulumi Cloud issues the access token for the
    /// organization.
    pub team: &'a str,
    /// User of the access token.
    pub user: &'a str,
    /// Validity of the access token.
    pub expiration_seconds: u64,
}

/// Returns the arguments that exchange an OIDC token for an access token. The CLI stores the access token in its
/// credentials file.
pub fn oidc_login(login: &OidcLogin<'_>) -> Vec<OsString> {
    let mut arguments = command_line(&["login"]);
    arguments.push(flag("--cloud-url", login.url));
    arguments.push(flag("--oidc-token", &format!("file://{}", login.token_file)));
    arguments.push(flag("--oidc-org", login.organization));
    for (name, value) in [("--oidc-team", login.team), ("--oidc-user", login.user)] {
        arguments.extend((!value.is_empty()).then(|| flag(name, value)));
    }
    arguments.push(flag("--oidc-expiration", &format!("{}s", login.expiration_seconds)));
    arguments
}

/// Returns the arguments that print the version of the CLI.
pub fn version() -> Vec<OsString> {
    command_line(&["version"])
}

/// Returns the arguments that install the dependencies for the project in the working directory.
pub fn install() -> Vec<OsString> {
    command_line(&["install"])
}

/// Returns the arguments that list the plugins that the project in the working directory uses: see
/// [`super::install::plugins::parse`].
pub fn project_plugins() -> Vec<OsString> {
    command_line(&["plugin", "ls", "--project", "--json"])
}

fn on_stack(words: &[&str], stack: &str) -> Vec<OsString> {
    let mut arguments = command_line(words);
    arguments.push(flag("--stack", stack));
    arguments
}

fn on_stack_with_file(words: &[&str], stack: &str, file: &Path) -> Vec<OsString> {
    let mut arguments = on_stack(words, stack);
    arguments.push(file_flag("--file", file));
    arguments
}

fn command_line(words: &[&str]) -> Vec<OsString> {
    ["--non-interactive", "--color=never"].iter().chain(words).map(OsString::from).collect()
}

fn flag(name: &str, value: &str) -> OsString {
    format!("{name}={value}").into()
}

fn file_flag(name: &str, file: &Path) -> OsString {
    let mut flag = OsString::from(format!("{name}="));
    flag.push(file);
    flag
}

#[cfg(test)]
mod tests;
