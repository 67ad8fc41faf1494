//! Errors of the CLI itself.

/// Returns the errors that the CLI itself wrote to stderr, without the prefix `error: `. Omits other output, such as
/// warnings, and lines that only separate text.
pub(super) fn error_text(stderr: &str) -> String {
    let mut lines = Vec::new();
    let mut in_error = false;
    for line in stderr.lines() {
        if let Some(error) = line.strip_prefix("error: ") {
            in_error = true;
            lines.extend(Some(error.trim_end()).filter(|error| !error.is_empty()));
        } else if line.starts_with("warning: ") {
            in_error = false;
        } else if in_error && !line.trim().trim_matches('=').is_empty() {
            lines.push(line.trim_end());
        }
    }
    lines.join("\n")
}
