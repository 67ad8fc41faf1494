//! Cleans the CLI's console output, and finds the update URL in the output.

use super::stack_name;
use crate::text::is_format;

/// Text that replaces a secret value.
pub const REDACTED: &str = "[secret]";
/// Labels that the CLI prints before an update URL.
const PERMALINK_LABELS: [&str; 4] = ["View Live: ", "View in Browser: ", "View in Browser (Ctrl+O): ", "Permalink: "];
/// Maximum length of an update URL, in bytes.
const MAX_ADDRESS: usize = 2048;

/// Returns the Pulumi Cloud URL of an update or a preview, if the CLI printed the URL to stdout. The CLI indents
/// program messages, but not the URL.
pub fn permalink(stdout: &str, stack: &str) -> Option<String> {
    stdout.lines().find_map(|line| {
        let address = PERMALINK_LABELS.iter().find_map(|label| line.strip_prefix(label))?.trim();
        let is_of_stack =
            stack_name::in_permalink(address).is_some_and(|url| url.stack == stack_name::parts(stack).stack);
        (is_of_stack && address.len() <= MAX_ADDRESS).then(|| address.to_owned())
    })
}

/// Returns whether a line of the CLI output contains the path of a saved plan. A line that contains this path does not
/// help users, because the file exists only during the run.
pub fn is_about_plan_file(line: &str) -> bool {
    ["Update plan written to '", "Run `pulumi up --plan='"].iter().any(|beginning| line.starts_with(beginning))
}

/// Removes color tags: engine tags (`<{%reset%}>`) and terminal escape sequences (`ESC [31m`).
pub fn without_colors(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(['<', '\u{1b}']) {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let length = color_length(from);
        // If no color tag starts here, keeps one character and continues the search after this character.
        let (color, after) = from.split_at(if length == 0 { 1 } else { length });
        if length == 0 {
            out.push_str(color);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Removes colors, control characters and invisible format characters from a string for display.
pub fn for_display(text: &str) -> String {
    let is_shown = |character: char| (!character.is_control() || "\n\t".contains(character)) && !is_format(character);
    without_colors(text).chars().filter(|character| is_shown(*character)).collect()
}

/// Returns the length of the color tag at the start of a string, or 0.
fn color_length(text: &str) -> usize {
    if text.starts_with("<{%") {
        return text.find("%}>").map_or(0, |end| end + 3);
    }
    let Some(parameters) = text.strip_prefix("\u{1b}[") else {
        return 0;
    };
    let length = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    match parameters.as_bytes().get(length) {
        Some(last) if last.is_ascii_alphabetic() => length + 3,
        _ => 0,
    }
}

/// Shortens a string to at most `limit` bytes. Keeps the beginning and the end.
pub fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let gap = " ... ";
    let half = limit.saturating_sub(gap.len()) / 2;
    let (beginning, _) = text.split_at(text.floor_char_boundary(half));
    let (_, end) = text.split_at(text.ceil_char_boundary(text.len().saturating_sub(half)));
    if half == 0 { String::new() } else { format!("{beginning}{gap}{end}") }
}

/// Labels of request identifiers in AWS SDK errors, in lower case.
const REQUEST_ID_LABELS: [&str; 4] = ["requestid: ", "hostid: ", "request id: ", "host id: "];
const ID_SEPARATOR: &str = ", ";

/// Returns the message without the request identifiers of cloud providers. The identifiers do not help users, and each
/// occurrence of the same error has a different identifier.
pub fn remove_request_ids(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((start, end)) = find_request_id(rest) {
        let (before, after) = (rest.get(..start).unwrap_or_default(), rest.get(end..).unwrap_or_default());
        rest = after.strip_prefix(ID_SEPARATOR).unwrap_or(after);
        kept.push_str(before);
        if rest.len() == after.len() {
            // Removes the separator before an identifier at the end of a list.
            kept.truncate(kept.strip_suffix(ID_SEPARATOR).map_or(kept.len(), str::len));
        }
    }
    kept.push_str(rest);
    kept
}

/// Returns the start and the end of the first identifier, including its label.
fn find_request_id(text: &str) -> Option<(usize, usize)> {
    // Converts only ASCII letters to lower case, so that byte positions are the same in both strings.
    let small = text.to_ascii_lowercase();
    let (start, length) = REQUEST_ID_LABELS.iter().filter_map(|label| Some((small.find(label)?, label.len()))).min()?;
    let value = text.get(start + length..)?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_+/=.".contains(c);
    Some((start, start + length + value.find(|c| !is_part(c)).unwrap_or(value.len())))
}

#[cfg(test)]
mod tests;
