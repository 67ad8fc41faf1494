//! Environment variables that every call of the CLI gets in addition to those of the user.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Enables `--event-log` in the CLI.
pub const DEBUG_COMMANDS: &str = "PULUMI_DEBUG_COMMANDS";
/// Informs language runtimes that a program controls the CLI.
pub const AUTOMATION_API: &str = "PULUMI_AUTOMATION_API";
/// Disables the check for a newer version of the CLI and its warning.
pub const SKIP_UPDATE_CHECK: &str = "PULUMI_SKIP_UPDATE_CHECK";
/// Makes the CLI read the secrets provider of a stack from its state if the settings file names none, as a new settings file
/// does. Otherwise, the CLI would replace the provider by a default one.
pub const FALLBACK_TO_STATE_SECRETS_MANAGER: &str = "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER";
/// Parent directory of `.pulumi`, in which the CLI stores plugins and credentials.
pub const HOME: &str = "HOME";
/// Owner of a lock. Without this variable, a user ID that has no name in the image cannot lock a stack.
pub const USER: &str = "USER";

/// Prefix of variables that set any flag of the CLI.
const OPTION_PREFIX: &[u8] = b"PULUMI_OPTION_";

/// Returns the variables for every call of the CLI. Callers set them after the variables of the user, so that these take
/// precedence.
pub fn engine_environment(home: &Path, user: &str) -> Vec<(OsString, OsString)> {
    let switches = [DEBUG_COMMANDS, AUTOMATION_API, SKIP_UPDATE_CHECK, FALLBACK_TO_STATE_SECRETS_MANAGER];
    let mut environment: Vec<_> = switches.iter().map(|name| (name.into(), "true".into())).collect();
    environment.push((HOME.into(), home.into()));
    environment.push((USER.into(), user.into()));
    environment
}

/// Whether a variable must not reach the CLI. `PULUMI_OPTION_<FLAG>` would set a flag that the controller does not expect.
pub fn is_scrubbed(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(OPTION_PREFIX)
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
    fn only_variables_that_set_cli_flags_are_removed() {
        let table = [
            ("PULUMI_OPTION_STACK", true),
            ("PULUMI_OPTION_", true),
            ("PULUMI_OPTIONS", false),
            ("PULUMI_ACCESS_TOKEN", false),
            ("MY_PULUMI_OPTION_STACK", false),
        ];
        for (name, expected) in table {
            assert_eq!(is_scrubbed(OsStr::new(name)), expected, "{name}");
        }
    }
}
