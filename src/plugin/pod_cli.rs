//! Command lines that run the Pulumi CLI in a workspace pod, with the same environment as the agent's runs.
//!
//! The commands are shell scripts that receive values as arguments, so the shell does not interpret the values.

use std::time::Duration;

use pulumi_controller::api::names;
use tokio::time::Instant;

use crate::plugin::cluster::Cluster;

/// Start of each script. Sets the same variables as the agent: see `agent/environment.rs`. If the plugin loses the
/// connection, `timeout` terminates the CLI.
const START: &str = r#"set -u
share=$1 limit=$2 bytes=$3
shift 3
bounded() {
    if command -v timeout >/dev/null 2>&1; then timeout -s INT -k 30 "$limit" "$@"; else "$@"; fi
}
if [ ! -w "${HOME:-/}" ]; then
    mkdir -p "$share/home"
    export HOME="$share/home"
fi
export USER="${USER:-pulumi}"
export PULUMI_SKIP_UPDATE_CHECK=true PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER=true PULUMI_DEBUG_COMMANDS=true
export POETRY_VIRTUALENVS_IN_PROJECT="${POETRY_VIRTUALENVS_IN_PROJECT:-true}"
export GOCACHE="${GOCACHE:-$share/cache/go-build}" GOMODCACHE="${GOMODCACHE:-$share/cache/go-modules}"
"#;

/// Runs the CLI in the Stack's project directory. Passes the first `bytes` bytes of the input to the CLI.
const CALL: &str = r#"cd "$share/workspace" || exit 1
if [ "$bytes" -gt 0 ]; then head -c "$bytes" | bounded pulumi "$@"; else bounded pulumi "$@" </dev/null; fi
"#;

/// Prints a file in the Stack's project directory, if the file exists.
const READ: &str = r#"[ ! -f "$share/workspace/$1" ] || cat "$share/workspace/$1"
"#;

/// Prints the agent's records about the installed source and the last written settings, if the records exist: see
/// `agent/source` and `agent/settings.rs`.
const RECORDS: &str = r#"for record in source.json settings/written.json; do
    [ ! -f "$share/$record" ] || cat "$share/$record" || exit 1
done
"#;

/// Previews the Stack's project or, with an archive as input, a project in the archive. The last line of stderr
/// contains a marker and the CLI's summary event. The preview directory is on the share volume, where the agent detects
/// the interactive session. Each preview also removes the directories that interrupted previews left more than a day
/// ago.
const PREVIEW: &str = r#"marker=$1 project=$2 installs=$3
shift 3
find "$share" -maxdepth 1 -name 'preview.*' -mtime +0 -exec rm -rf {} + 2>/dev/null
scratch=$(mktemp -d "$share/preview.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
if [ "$bytes" -gt 0 ]; then
    mkdir "$scratch/source" || exit 1
    head -c "$bytes" | tar -xzof - -C "$scratch/source" || exit 1
    cd "$scratch/source/$project" || exit 1
    if [ "$installs" = yes ]; then bounded pulumi install </dev/null >&2 || exit 1; fi
else
    cd "$share/workspace" || exit 1
fi
bounded pulumi preview "--event-log=$scratch/events" "$@" </dev/null || exit 1
printf '%s%s\n' "$marker" "$(grep '"summaryEvent"' "$scratch/events" | tail -n 1)" >&2
"#;

/// A script with its arguments.
pub struct PodCommand {
    script: &'static str,
    arguments: Vec<String>,
}

impl PodCommand {
    /// Calls the CLI with arguments.
    pub fn call(arguments: &[String]) -> Self {
        PodCommand { script: CALL, arguments: arguments.to_vec() }
    }

    /// Prints a file of the project.
    pub fn read(path: &str) -> Self {
        PodCommand { script: READ, arguments: vec![path.to_owned()] }
    }

    /// Prints the agent's records about the installed source and the last written settings.
    pub fn records() -> Self {
        PodCommand { script: RECORDS, arguments: Vec::new() }
    }

    /// Runs a preview. `project` is the project directory in the archive. `installs` is true if the preview must first
    /// install the project's dependencies.
    pub fn preview(marker: &str, project: &str, installs: bool, options: &[String]) -> Self {
        let installs = if installs { "yes" } else { "no" };
        let mut arguments = [marker, project, installs].map(str::to_owned).to_vec();
        arguments.extend_from_slice(options);
        PodCommand { script: PREVIEW, arguments }
    }

    /// Returns the command line for an input of `bytes` bytes.
    pub fn command_line(&self, cluster: &Cluster, bytes: usize) -> Vec<String> {
        let limit = cluster.deadline().saturating_duration_since(Instant::now());
        self.words(names::SHARE_DIRECTORY, limit, bytes)
    }

    fn words(&self, share: &str, limit: Duration, bytes: usize) -> Vec<String> {
        let limit = limit.as_secs().max(1).to_string();
        let script = format!("{START}{}", self.script);
        let mut words = vec!["sh".to_owned(), "-c".to_owned(), script, "kubectl-pulumi".to_owned()];
        words.extend([share.to_owned(), limit, bytes.to_string()]);
        words.extend(self.arguments.iter().cloned());
        words
    }
}

#[cfg(test)]
mod tests;
