//! Formats the output of a failed `pulumi install`, so that the first line contains the cause. Each package manager
//! writes the cause at a different position, between progress messages and advice. The CLI adds lines that contain only
//! an exit status.

use super::super::{advice, console};
use super::cli_error::error_text;
use super::program_error::{self, without_library_frames};

/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 4 * 1024;
/// Maximum number of output lines that follow the cause in a message.
const MAX_DETAILS: usize = 15;
/// Beginning of the line in which the CLI reports the package manager's exit status.
const EXIT_STATUS: &str = "installing dependencies: ";
/// Prefixes of npm's error lines: the prefix of the current version, and the prefix of versions before 10.
const NPM: [&str; 2] = ["npm error", "npm ERR!"];
/// Keys at the start of npm error lines that do not contain the cause.
const NPM_KEYS: [&str; 5] = ["code ", "syscall ", "errno ", "path ", "signal "];
/// Part of pip's warning about credentials that the package index rejects.
const REFUSAL: &str = " Error, Credentials not correct for ";
/// Substrings that identify irrelevant lines: progress messages, and references to files in the pod.
const NOISE: [&str; 30] = [
    "━",
    "Installing dependencies",
    "Creating virtual environment",
    "Finished creating virtual environment",
    "Updating pip, setuptools, and wheel",
    "Finished updating",
    "Requirement already satisfied: ",
    "Collecting ",
    "Downloading ",
    "Using cached ",
    "Processing ",
    "Installing collected packages: ",
    "Attempting uninstall: ",
    "Found existing installation: ",
    "Uninstalling ",
    "Successfully uninstalled ",
    "Successfully installed ",
    "Installing build dependencies: ",
    "Getting requirements to build ",
    "Preparing metadata ",
    "Looking in indexes: ",
    "[end of output]",
    "subprocess-exited-with-error",
    "│ exit code: ",
    "lines of output]",
    "note: This error originates from a subprocess",
    "A complete log of this run can be found in: ",
    "For a full report see:",
    "go: downloading ",
    "go: finding module ",
];

/// Formats the output of a failed installation and adds advice. Returns an empty string for empty output. The result
/// has at most 4 KiB.
pub fn message(stdout: &str, stderr: &str) -> String {
    let (stdout, stderr) = (console::for_display(stdout), console::for_display(stderr));
    let errors = error_text(&stderr);
    let exit_status = errors.lines().find_map(|line| line.strip_prefix(EXIT_STATUS));
    let is_result = |line: &&str| !is_noise(line) && exit_status.is_none_or(|status| !line.ends_with(status));
    let results: Vec<&str> = stderr.lines().chain(stdout.lines()).filter(is_result).map(str::trim_end).collect();
    let known = [of_npm, of_pip, of_go, of_other].iter().find_map(|cause| cause(&results));
    let cause = known.or_else(|| results.last().map(|line| (*line).to_owned()));
    let Some(cause) = cause.or_else(|| exit_status.map(str::to_owned)) else { return String::new() };
    let mut lines = vec![cause.trim()];
    let frames = without_library_frames(&results);
    let details: Vec<&str> = frames.into_iter().filter(|line| !is_part_of(line, &cause)).collect();
    lines.extend(details.get(details.len().saturating_sub(MAX_DETAILS)..).unwrap_or_default());
    console::shorten(&advice::with(&lines.join("\n")), MAX_MESSAGE)
}

fn is_noise(line: &str) -> bool {
    let line = line.trim();
    let is_npm_key = npm_error(line).is_some_and(|rest| !rest.contains(' '));
    line.is_empty() || is_npm_key || NOISE.iter().any(|part| line.contains(part))
}

/// Returns whether the cause contains a line.
fn is_part_of(line: &str, cause: &str) -> bool {
    if is_go_import(line) {
        return true;
    }
    let line = without_marker(line);
    let begins = cause.strip_prefix(line).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "));
    begins || cause.strip_suffix(line).is_some_and(|rest| rest.ends_with(": "))
}

/// Returns npm's error: the line after the error code, or the script error if a package script failed.
fn of_npm(lines: &[&str]) -> Option<String> {
    let is_code = |line: &&str| npm_error(line).is_some_and(|rest| rest.starts_with("code "));
    let code = lines.iter().position(is_code)?;
    let (script, errors) = lines.split_at(code);
    if errors.iter().filter_map(|line| npm_error(line)).any(|rest| rest.starts_with("command failed")) {
        let error = program_error::format(&script.join("\n"));
        return error.lines().next().map(str::to_owned);
    }
    let is_cause = |rest: &str| !NPM_KEYS.iter().any(|key| rest.starts_with(key));
    errors.iter().find(|line| npm_error(line).is_some_and(is_cause)).map(|line| (*line).to_owned())
}

fn npm_error(line: &str) -> Option<&str> {
    NPM.iter().find_map(|prefix| line.strip_prefix(prefix)).map(str::trim_start)
}

/// Returns pip's error with details from other lines: the location in the requirements file, or the exception that made
/// a build fail. If the package index rejected the credentials, returns pip's warning about the credentials, because
/// pip's error only states that pip found no package.
fn of_pip(lines: &[&str]) -> Option<String> {
    let refusal = lines.iter().filter_map(|line| line.strip_prefix("WARNING: ")).find(|line| line.contains(REFUSAL));
    if let Some(refusal) = refusal {
        return Some(refusal.to_owned());
    }
    let errors = || lines.iter().filter_map(|line| line.strip_prefix("ERROR: "));
    let is_summary = |error: &&str| {
        error.starts_with("ResolutionImpossible") || error.starts_with("Could not find a version that satisfies")
    };
    let error = errors().find(|error| !is_summary(error)).or_else(|| errors().next())?;
    if let Some(location) = lines.iter().find_map(|line| requirements_line(line)) {
        return Some(format!("{location}: {error}"));
    }
    let exception = error.starts_with("Failed to build").then(|| build_exception(lines)).flatten();
    Some(exception.map_or_else(|| error.to_owned(), |exception| format!("{error}: {exception}")))
}

/// Parses `(from line 2 of requirements.txt)`.
fn requirements_line(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("(from line ")?;
    let (number, file) = rest.strip_suffix(')')?.split_once(" of ")?;
    Some(format!("{file} line {number}"))
}

/// Returns the last line of a failed build's output, which pip indents.
fn build_exception<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let is_error = |line: &&&str| line.starts_with("ERROR: ");
    lines.iter().take_while(|line| !is_error(line)).last().map(|line| line.trim())
}

/// Returns the go command's error: the reason why the command cannot provide a package, or the first line of the
/// output.
fn of_go(lines: &[&str]) -> Option<String> {
    if let Some(import) = lines.iter().position(|line| is_go_import(line)) {
        let reasons = lines.iter().skip(import + 1).take_while(|line| line.starts_with('\t'));
        return reasons.map(|line| line.trim()).find(|line| line.contains(": ")).map(str::to_owned);
    }
    let is_go = |line: &&&str| line.starts_with("go: ") || line.ends_with(": checksum mismatch");
    lines.iter().find(is_go).map(|line| (*line).to_owned())
}

/// Returns whether a line is the go command's heading above a package that the command cannot provide.
fn is_go_import(line: &str) -> bool {
    line.starts_with("go: ") && line.ends_with(" imports")
}

/// Returns the first error line of yarn, pnpm, uv, poetry or the CLI itself.
fn of_other(lines: &[&str]) -> Option<String> {
    let is_error = |line: &&&str| {
        let line = line.trim();
        line.starts_with("ERR_PNPM_")
            || line.starts_with("error ")
            || line.starts_with("error: ") && !line.starts_with(&format!("error: {EXIT_STATUS}"))
            || line.starts_with("╰─▶ ")
            || line.ends_with("version solving failed.")
            || line.starts_with("➤ YN") && line.contains(" not found")
    };
    lines.iter().find(is_error).map(|line| without_marker(line).to_owned())
}

fn without_marker(line: &str) -> &str {
    let line = line.trim();
    ["╰─▶ ", "error: ", "ERROR: ", "WARNING: "].iter().find_map(|marker| line.strip_prefix(marker)).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recorded failures in `tests/failure_corpus` contain only output from npm, pip and go.
    #[test]
    fn the_cause_is_found_in_the_output_of_other_package_managers() {
        let status = "error: installing dependencies: uv failed: exit status 1\nuv failed: exit status 1\n";
        for (stdout, stderr, expected) in [
            (
                "",
                "  × No solution found when resolving dependencies:\n  ╰─▶ Because six was not found in the package registry and \
                 your project depends on six, we can conclude that your project's requirements are unsatisfiable.\n",
                "Because six was not found in the package registry and your project depends on six, we can conclude that your \
                 project's requirements are unsatisfiable.",
            ),
            (
                "",
                "Because web depends on six (9) which doesn't match any versions, version solving failed.\n",
                "Because web depends",
            ),
            (
                " ERR_PNPM_FETCH_404  GET https://registry.example.com/absent: Not Found - 404\nThis error happened\n",
                "",
                "ERR_PNPM_FETCH_404  GET https://registry.example.com/absent: Not Found - 404",
            ),
            (
                "yarn install v1.22.22\n[1/4] Resolving packages...\ninfo Visit https://yarnpkg.com/en/docs/cli/install\n",
                "error Couldn't find package \"absent\" on the \"npm\" registry.\n",
                "error Couldn't find package \"absent\"",
            ),
            (
                "➤ YN0000: ┌ Resolution step\n➤ YN0035: │ absent@npm:1: Package not found\n",
                "",
                "➤ YN0035: │ absent@npm:1",
            ),
            (
                "WARNING: 401 Error, Credentials not correct for https://pypi.example.com/simple/pip/\n",
                "ERROR: Could not find a version that satisfies the requirement pip (from versions: none)\nERROR: No matching \
                 distribution found for pip\n",
                "401 Error, Credentials not correct for https://pypi.example.com/simple/pip/\n",
            ),
            ("", "something else\nthe last line\n", "the last line\nsomething else"),
        ] {
            let message = message(stdout, &format!("{stderr}{status}"));
            assert!(message.starts_with(expected) && !message.contains("exit status"), "{message}");
        }
    }

    #[test]
    fn an_exit_status_is_reported_only_without_a_better_error() {
        let missing =
            "error: failed to load language plugin nodejs: no language plugin 'pulumi-language-nodejs' found\n";
        assert!(message("", missing).starts_with("failed to load language plugin nodejs: no language plugin"));
        let status =
            "error: installing dependencies: npm install failed: exit status 1\nnpm install failed: exit status 1\n";
        assert_eq!(message("Installing dependencies...\n\n", status), "npm install failed: exit status 1");
        assert_eq!(message("", ""), "");
    }

    #[test]
    fn a_long_installation_error_is_truncated_at_its_end() {
        let stderr = format!("npm error code E404\nnpm error 404 the cause\n{}", "x".repeat(100_000));
        let message = message("", &stderr);
        assert!(message.len() <= MAX_MESSAGE && message.starts_with("npm error 404 the cause\n"), "{message}");
    }
}
