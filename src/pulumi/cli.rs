//! CLI properties that do not depend on the run: environment variables, commands and supported versions.

use std::ffi::OsString;
use std::path::Path;

/// Environment variable that enables the flag `--event-log` of the CLI.
pub const DEBUG_COMMANDS: &str = "PULUMI_DEBUG_COMMANDS";
/// Environment variable that informs language runtimes that a program controls the CLI.
pub const AUTOMATION_API: &str = "PULUMI_AUTOMATION_API";
/// Environment variable that disables the check for a newer CLI version.
pub const SKIP_UPDATE_CHECK: &str = "PULUMI_SKIP_UPDATE_CHECK";
/// Environment variable that makes the CLI read the secrets provider from the stack's state if the settings file
/// specifies no secrets provider. Without this variable, the CLI would replace the secrets provider with the default
/// secrets provider.
pub const FALLBACK_TO_STATE_SECRETS_MANAGER: &str = "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER";
/// Environment variable that contains the home directory of programs and language runtimes.
pub const HOME: &str = "HOME";
/// Environment variable that contains the directory in which the CLI stores plugins and credentials. Without this
/// variable, the directory is `.pulumi` in the home directory that `/etc/passwd` contains for the user ID, or in
/// [`HOME`] if the user ID is unknown.
pub const PULUMI_HOME: &str = "PULUMI_HOME";
/// Environment variable that contains the directory for temporary files.
pub const TEMPORARY_DIRECTORY: &str = "TMPDIR";
/// Environment variable that contains the user name that the CLI writes to a lock. If the variable is missing and the
/// user ID has no name in the image, the CLI cannot lock a stack.
pub const USER: &str = "USER";
/// Default value of [`USER`].
pub const DEFAULT_USER: &str = "pulumi";

/// Environment variable with the path of a program that supplies the credentials of the CLI. A login with a
/// ServiceAccount token fails with such a program. A CLI before version 3.274 ignores the variable.
pub const CREDENTIAL_HELPER: &str = "PULUMI_CREDENTIAL_HELPER";
/// Value of [`CREDENTIAL_HELPER`] with which the CLI uses no program that it finds beside itself, in the `PATH`, or in
/// its credentials file.
pub const NO_CREDENTIAL_HELPER: &str = "none";
/// Environment variable with the flag `--json` of `pulumi config set-all`: the values in a JSON object. The agent sets
/// the variable instead of the flag, because every user on the node can read the arguments of a process. A CLI before
/// version 3.208 ignores the variable.
pub const SECRETS: &str = "PULUMI_OPTION_JSON";
/// Environment variable with the parent of the CLI's spans, in the W3C Trace Context format.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// Returns the environment variables for every CLI call. Callers set these variables last, so that they override
/// user-defined variables.
pub fn engine_environment(home: &Path, user: &str) -> Vec<(OsString, OsString)> {
    let switches = [DEBUG_COMMANDS, AUTOMATION_API, SKIP_UPDATE_CHECK, FALLBACK_TO_STATE_SECRETS_MANAGER];
    let mut environment: Vec<_> = switches.iter().map(|name| (name.into(), "true".into())).collect();
    environment.push((HOME.into(), home.into()));
    environment.push((USER.into(), user.into()));
    environment
}

/// Commands that have subcommands, with the names of their subcommands.
const GROUPS: [(&str, &str); 11] = [
    (
        "stack",
        "change-secrets-provider export graph history import init ls output rename rm select tag unselect webhook",
    ),
    ("config", "cp env get refresh rm rm-all set set-all"),
    ("state", "delete edit move protect rename repair taint unprotect untaint upgrade"),
    ("plugin", "install ls rm run"),
    ("policy", "disable enable group install ls new publish rm validate-config"),
    ("org", "get-default role search set-default team webhook"),
    ("env", "clone diff edit get init ls open rm rotate run set tag version"),
    ("package", "add delete gen-sdk get-mapping get-schema info pack-sdk publish"),
    ("schema", "check"),
    ("deployment", "run settings"),
    ("project", "ls new"),
];
/// Commands without subcommands.
const COMMANDS: &str = "about ai cancel completion console convert convert-trace destroy dn down help import install login \
                        logout logs new pre preview refresh replay-events template up update version watch whoami";
/// Commands that only print information about the CLI itself.
const INFORMATIONAL_COMMANDS: [&str; 3] = ["completion", "help", "version"];
const CLI: &str = "pulumi";

/// Returns the command in an argument list, such as `pulumi config set`. Returns `None` if the command only prints
/// information about the CLI itself. The result contains no other arguments, because other arguments can be secret.
pub fn command_in_words<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut arguments = arguments.into_iter().peekable();
    // Recognizes an informational command only as the first argument, because a word after an option can be the
    // option's value, such as a stack name.
    if arguments.peek().is_some_and(|first| INFORMATIONAL_COMMANDS.contains(first)) {
        return None;
    }
    // If an option's value equals a command name, the result contains this value. The result still contains no secret,
    // because a command name is not secret.
    let Some(first) = arguments.find(|word| group(word).is_some() || is_among(COMMANDS, word)) else {
        return Some(CLI.to_owned());
    };
    let second = group(first).and_then(|words| arguments.find(|word| is_among(words, word)));
    Some([CLI, first].into_iter().chain(second).collect::<Vec<_>>().join(" "))
}

fn group(word: &str) -> Option<&'static str> {
    GROUPS.iter().find(|(name, _)| *name == word).map(|(_, words)| *words)
}

fn is_among(words: &str, word: &str) -> bool {
    words.split_ascii_whitespace().any(|known| known == word)
}

/// Major and minor version of the oldest supported CLI. Older versions lack flags that the controller requires:
/// `--suppress-progress`, and `--preview-only` of `refresh`.
pub const OLDEST: (u64, u64) = (3, 105);

/// Returns whether `version`, the output of `pulumi version`, is older than [`OLDEST`]. Returns `false` if the string
/// is not a version.
pub fn is_too_old(version: &str) -> bool {
    let mut numbers = version.trim().trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cli_environment_has_all_required_variables() {
        let environment = engine_environment(Path::new("/home/pulumi"), "pulumi");
        let expected = [
            ("PULUMI_DEBUG_COMMANDS", "true"),
            ("PULUMI_AUTOMATION_API", "true"),
            ("PULUMI_SKIP_UPDATE_CHECK", "true"),
            ("PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER", "true"),
            ("HOME", "/home/pulumi"),
            ("USER", "pulumi"),
        ];
        assert_eq!(environment, expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn a_command_is_shown_without_its_argument_values() {
        let table = [
            ("up", Some("pulumi up")),
            ("--non-interactive -C /share/workspace up --yes", Some("pulumi up")),
            ("--stack organization/web/dev import aws:s3/bucket:Bucket mine hunter2", Some("pulumi import")),
            ("config set --secret password hunter2", Some("pulumi config set")),
            ("config --secret=hunter2 set password hunter2", Some("pulumi config set")),
            ("config hunter2", Some("pulumi config")),
            ("stack", Some("pulumi stack")),
            ("stack --stack hunter2 ls", Some("pulumi stack ls")),
            ("hunter2 --config a=hunter2", Some("pulumi")),
            ("", Some("pulumi")),
            ("version", None),
            ("--color never version", Some("pulumi version")),
            ("--stack help up", Some("pulumi help")),
            ("help up", None),
        ];
        for (arguments, expected) in table {
            assert_eq!(command_in_words(arguments.split_whitespace()).as_deref(), expected, "{arguments}");
        }
    }

    #[test]
    fn a_cli_without_the_required_flags_is_too_old() {
        let rows = [
            ("v3.104.2", true),
            ("3.9.0", true),
            ("v2.250.0", true),
            ("v3.105.0", false),
            ("v3.105.0-alpha.1", false),
            ("v3.259.0+dirty", false),
            ("v4.0.0", false),
            ("", false),
            ("a custom build", false),
        ];
        for (version, expected) in rows {
            assert_eq!(is_too_old(version), expected, "{version}");
        }
    }
}
