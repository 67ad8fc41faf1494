//! Finds the location of an error in the program's files.

/// File extensions of program files.
const EXTENSIONS: &[&str] = &["ts", "tsx", "js", "mjs", "cjs", "py", "go", "cs", "fs", "java", "kt", "scala", "yaml"];
/// Parts of paths that identify library and runtime files.
const FOREIGN: &[&str] = &[
    "node_modules/",
    "node:",
    "site-packages/",
    "dist-packages/",
    "/lib/python",
    "/usr/",
    "/go/pkg/mod/",
    "/go/src/",
    "/pulumi-language-",
    "<frozen",
];
/// Directories that contain the source in a workspace.
const ROOTS: &[&str] = &["/share/source/", "/share/workspace/"];

/// Returns the innermost location in the program's files, such as `index.ts line 5`. Most languages print the innermost
/// stack frame first. Python prints the innermost stack frame last.
pub(super) fn program_location(error: &str) -> Option<String> {
    let found: Vec<(&str, u32)> =
        error.lines().filter_map(location_in).filter(|(file, _)| is_program_file(file)).collect();
    let innermost = found.iter().rev().find(|(file, _)| file.ends_with(".py")).or_else(|| found.first());
    innermost.map(|(file, line)| format_location(file, *line))
}

/// Returns whether a line contains a location in the program's files.
pub(super) fn is_program_line(line: &str) -> bool {
    location_in(line).is_some_and(|(file, _)| is_program_file(file))
}

/// Returns the location and the message from a line that a compiler wrote, such as `index.ts(5,7): error TS2322: ...`
/// or `./main.go:12:3: undefined: nothing`.
pub(super) fn compiler_message(line: &str) -> Option<(String, &str)> {
    let (file, number) = location_in(line).filter(|(file, _)| is_program_file(file))?;
    let (before, after) = line.split_once(file)?;
    if !before.is_empty() && !before.starts_with('[') {
        return None;
    }
    let separators = [": ", "] "].iter().filter_map(|separator| after.split_once(separator));
    let (position, message) = separators.min_by_key(|(position, _)| position.len())?;
    let is_position = position.chars().all(|c| c.is_ascii_digit() || ":,()[".contains(c));
    (is_position && !message.trim().is_empty()).then(|| (format_location(file, number), message))
}

fn format_location(file: &str, line: u32) -> String {
    format!("{} line {line}", relative_path(file))
}

fn is_program_file(file: &str) -> bool {
    !FOREIGN.iter().any(|part| file.contains(part)) && !is_trimmed_go_dependency(file)
}

/// Returns whether a file belongs to a Go dependency or to the standard library. The check works for programs that were
/// built with `-trimpath`. With this option, the path of a dependency contains the dependency's version, and the path
/// of a standard library package has no prefix.
fn is_trimmed_go_dependency(file: &str) -> bool {
    let has_version = |part: &str| {
        part.split_once("@v").is_some_and(|(_, version)| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    let standard = ["runtime/", "reflect/", "sync/", "net/", "internal/", "os/", "context/"];
    file.ends_with(".go")
        && (file.split('/').any(has_version) || standard.iter().any(|package| file.starts_with(package)))
}

fn relative_path(file: &str) -> &str {
    let file = file.strip_prefix("file://").unwrap_or(file);
    let below = ROOTS.iter().find_map(|root| file.strip_prefix(root));
    below.or_else(|| file.strip_prefix("./")).unwrap_or(file)
}

/// Returns the first file name in an output line that is followed by a line number, and the number.
fn location_in(line: &str) -> Option<(&str, u32)> {
    line.match_indices('.').find_map(|(dot, _)| {
        let (before, after) = (line.get(..dot)?, line.get(dot + 1..)?);
        let extension = EXTENSIONS.iter().find(|extension| {
            let rest = after.strip_prefix(**extension);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '.'))
        })?;
        let number = line_number(after.get(extension.len()..)?)?;
        let begin = before.rfind([' ', '\t', '"', '\'', '(', '[']).map_or(0, |at| at + 1);
        let file = line.get(begin..dot + 1 + extension.len())?;
        (begin < dot).then_some((file, number))
    })
}

/// Parses the line number in `:5`, `(5,7)`, `:[5,7]`, `:line 5`, `", line 5` and ` line 5`.
fn line_number(after: &str) -> Option<u32> {
    let rest =
        [":line ", "\", line ", " line ", ":[", ":", "("].iter().find_map(|separator| after.strip_prefix(separator))?;
    let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests;
