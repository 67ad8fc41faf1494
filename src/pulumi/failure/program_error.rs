//! Formats the error output of programs. The first line contains the location in the program's files, and the cause.
//! Omits the stack frames of libraries and runtimes. The pod log contains the complete output.

use super::program_location::{compiler_message, is_program_line, program_location};

/// First line of a Python traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";
/// First line of the memory statistics that Node.js writes when the process runs out of memory.
const MEMORY_STATISTICS: &str = "<--- Last few GCs --->";
/// Prefixes without information about the failure. `format` removes these prefixes from messages.
const PREFIXES: [&str; 6] = [
    "an unhandled error occurred: ",
    "program failed:",
    "waiting for RPCs: ",
    "rpc error: code = Unknown desc = ",
    "Exception calling application: ",
    "\t* ",
];
/// Maximum number of lines in the source excerpt that Node.js prints before a syntax error.
const MAX_EXCERPT: usize = 6;

/// Formats the error output of a program. Returns an empty string if the output contains no message.
pub(super) fn format(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(without_prefixes).filter(|line| !is_heading(line)).collect();
    let lines = without_excerpt(&lines);
    let mut kept = without_memory_statistics(without_library_frames(lines));
    let first = || kept.first().map(|line| Cause { location: None, text: line });
    let Some(Cause { location, text }) = find_cause(lines).or_else(first) else { return String::new() };
    if let Some(position) = kept.iter().rposition(|line| line.ends_with(text)) {
        kept.remove(position);
    }
    let text = text.trim();
    let headline = match location.or_else(|| program_location(output)) {
        Some(location) => format!("{location}: {text}"),
        None => text.to_owned(),
    };
    [headline.as_str()].into_iter().chain(kept).collect::<Vec<_>>().join("\n")
}

fn without_prefixes(line: &str) -> &str {
    let mut rest = line.trim_end();
    while let Some(after) = PREFIXES.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    rest
}

/// Returns whether a line contains no information about the cause of a failure.
fn is_heading(line: &str) -> bool {
    let line = line.trim();
    let is_go_package = line.strip_prefix("# ").is_some_and(|package| !package.contains(char::is_whitespace));
    line.is_empty()
        || line == "1 error occurred:"
        || line == "for call at"
        || line.ends_with("failed with an unhandled exception:")
        || line.ends_with("Unable to compile TypeScript:")
        || line.starts_with("(node:")
        || line.starts_with("(Use `node --trace-")
        || line.starts_with("Node.js v")
        || (line.starts_with("goroutine ") && line.ends_with("]:"))
        || is_go_package
}

/// Removes the source excerpt that Node.js prints before some errors: the location, the source line and carets.
fn without_excerpt<'a, 'b>(lines: &'b [&'a str]) -> &'b [&'a str] {
    let is_location = |line: &&str| {
        line.rsplit_once(':').is_some_and(|(file, number)| {
            !file.contains(char::is_whitespace) && number.parse::<u32>().is_ok() && file.contains(['/', ':'])
        })
    };
    let is_carets = |line: &&str| !line.trim().is_empty() && line.trim().chars().all(|c| c == '^' || c == '~');
    if !lines.first().is_some_and(is_location) {
        return lines;
    }
    match lines.iter().take(MAX_EXCERPT).position(is_carets) {
        Some(carets) => lines.get(carets + 1..).unwrap_or_default(),
        None => lines,
    }
}

/// Removes the stack frames outside the program's files.
pub(super) fn without_library_frames<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut kept: Vec<&str> = Vec::new();
    let mut rest = lines;
    while let Some((line, mut after)) = rest.split_first() {
        match frame(line) {
            Some(language) if !is_program_line(line) => {
                after = match language {
                    Language::Node => without_properties(line, after),
                    Language::Python => without_code(line, after),
                    Language::Go => {
                        kept.pop_if(|function| is_go_function(function));
                        after
                    }
                };
            }
            _ => kept.push(line),
        }
        rest = after;
    }
    let has_frame = |position: usize| kept.get(position + 1).is_some_and(|line| frame(line).is_some());
    let without_frames = |position: usize, line: &str| line.trim() == TRACEBACK && !has_frame(position);
    kept.iter().enumerate().filter(|(position, line)| !without_frames(*position, line)).map(|(_, line)| *line).collect()
}

/// Language of a stack frame. Stack frames of Java and .NET have the same format as stack frames of Node.js.
enum Language {
    Node,
    Python,
    Go,
}

fn frame(line: &str) -> Option<Language> {
    let text = line.trim_start();
    if text.len() == line.len() {
        None
    } else if text.starts_with("at ") && text.contains(['(', ':']) {
        Some(Language::Node)
    } else if text.starts_with("File \"") && text.contains("\", line ") {
        Some(Language::Python)
    } else if line.starts_with('\t') && text.contains(".go:") && !text.starts_with("go: ") {
        Some(Language::Go)
    } else {
        None
    }
}

/// Skips the properties of the error, which Node.js prints after the last stack frame.
fn without_properties<'a, 'b>(frame: &str, after: &'b [&'a str]) -> &'b [&'a str] {
    let end = after.iter().position(|line| *line == "}").filter(|_| frame.ends_with(" {"));
    end.and_then(|end| after.get(end + 1..)).unwrap_or(after)
}

/// Skips the source lines that follow a Python frame, which have a larger indentation than the frame.
fn without_code<'a, 'b>(frame: &str, after: &'b [&'a str]) -> &'b [&'a str] {
    let code = after.iter().take_while(|line| indentation(line) > indentation(frame)).count();
    after.get(code..).unwrap_or_default()
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns whether a line is the first line of a Go frame. The first line contains the function, and the next line
/// contains the file.
fn is_go_function(line: &str) -> bool {
    let has_form = line.ends_with(')') || line.starts_with("created by ");
    has_form && indentation(line) == 0 && !line.starts_with("panic: ")
}

fn without_memory_statistics(lines: Vec<&str>) -> Vec<&str> {
    let end = lines.iter().position(|line| line.trim() == MEMORY_STATISTICS).unwrap_or(lines.len());
    lines.into_iter().take(end).collect()
}

/// Cause of a failure, which a single line of the output contains.
struct Cause<'a> {
    /// Location in the program, if the same line contains a location.
    location: Option<String>,
    text: &'a str,
}

/// Returns the cause of a failure, or `None` if the output has an unknown format.
fn find_cause<'a>(lines: &[&'a str]) -> Option<Cause<'a>> {
    let is_fatal = |line: &&&str| line.starts_with("panic: ") || line.starts_with("FATAL ERROR: ");
    let of_runtime = exception(lines).or_else(|| lines.iter().find(is_fatal));
    if let Some(text) = of_runtime {
        return Some(Cause { location: None, text });
    }
    let (location, text) = lines.iter().find_map(|line| compiler_message(line))?;
    Some(Cause { location: Some(location), text })
}

/// Returns the line of a Python traceback that contains the exception. Uses the last traceback, because the last
/// traceback contains the exception that the program did not handle.
fn exception<'a, 'b>(lines: &'b [&'a str]) -> Option<&'b &'a str> {
    let traceback = lines.iter().rposition(|line| line.trim() == TRACEBACK)?;
    lines.get(traceback + 1..)?.iter().find(|line| indentation(line) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_without_a_known_error_format_is_unchanged() {
        for output in ["one", "one\ntwo", "  indented\nat home"] {
            assert_eq!(format(output), output.trim());
        }
    }
}
