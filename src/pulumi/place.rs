//! Finds the file and line at which a program failed, in the error output of its language.

/// File extensions of program files.
const ENDINGS: &[&str] = &["ts", "tsx", "js", "mjs", "cjs", "py", "go", "cs", "fs", "java", "kt", "scala"];
/// Path parts of files that do not belong to the program.
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
/// Directories of the source in a workspace.
const ROOTS: &[&str] = &["/share/source/", "/share/workspace/"];

/// Returns the innermost location in the program's own files, such as `index.ts line 5`. Most languages print the innermost
/// frame first, Python last.
pub fn of(error: &str) -> Option<String> {
    let found: Vec<(&str, u32)> = error.lines().filter_map(in_line).filter(|(file, _)| is_own(file)).collect();
    let innermost = found.iter().rev().find(|(file, _)| file.ends_with(".py")).or_else(|| found.first());
    innermost.map(|(file, line)| format!("{} line {line}", shown(file)))
}

fn is_own(file: &str) -> bool {
    !FOREIGN.iter().any(|part| file.contains(part))
}

fn shown(file: &str) -> &str {
    let file = file.strip_prefix("file://").unwrap_or(file);
    let below = ROOTS.iter().find_map(|root| file.strip_prefix(root));
    below.or_else(|| file.strip_prefix("./")).unwrap_or(file)
}

/// Returns the first file in a line that is followed by a line number.
fn in_line(line: &str) -> Option<(&str, u32)> {
    line.match_indices('.').find_map(|(dot, _)| {
        let (before, after) = (line.get(..dot)?, line.get(dot + 1..)?);
        let ending = ENDINGS.iter().find(|ending| {
            let rest = after.strip_prefix(**ending);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '.'))
        })?;
        let number = number_of_line(after.get(ending.len()..)?)?;
        let begin = before.rfind([' ', '\t', '"', '\'', '(', '[']).map_or(0, |at| at + 1);
        let file = line.get(begin..dot + 1 + ending.len())?;
        (begin < dot).then_some((file, number))
    })
}

/// Parses the line number in `:5`, `(5,7)`, `:[5,7]`, `:line 5` and `", line 5`.
fn number_of_line(after: &str) -> Option<u32> {
    let rest = [":line ", "\", line ", ":[", ":", "("].iter().find_map(|separator| after.strip_prefix(separator))?;
    let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_program_location_is_found_in_errors_of_each_language() {
        let node = "Running program '/share/source/index.ts' failed with an unhandled exception:\n<ref *1> Error: no such zone\n    \
                    at find (/share/source/node_modules/zones/index.js:3:9)\n    at Object.<anonymous> \
                    (/share/source/lib/dns.ts:12:5)\n    at Module._compile (node:internal/modules/cjs/loader:1554:14)";
        let module = "Running program failed with an unhandled exception:\nError: boom\n    at file:///share/source/index.mjs:5:7";
        let python = "Program failed with an unhandled exception:\nTraceback (most recent call last):\n  File \
                      \"/usr/lib/python3.12/runpy.py\", line 88, in _run_code\n  File \"/share/source/__main__.py\", line 3, in \
                      <module>\n    names.make()\n  File \"/share/source/names.py\", line 21, in make\n  File \
                      \"/share/source/venv/lib/python3.12/site-packages/pulumi/output.py\", line 9, in apply\nValueError: no name";
        let table = [
            (node, Some("lib/dns.ts line 12")),
            (module, Some("index.mjs line 5")),
            ("index.ts(5,7): error TS2322: Type 'string' is not assignable to type 'number'.", Some("index.ts line 5")),
            (python, Some("names.py line 21")),
            ("# example\n./main.go:12:3: undefined: nothing", Some("main.go line 12")),
            (
                "panic: runtime error: index out of range\n\ngoroutine 1 [running]:\nmain.main.func1()\n\t/share/source/main.go:14 \
                 +0x1d",
                Some("main.go line 14"),
            ),
            ("/share/source/Program.cs(9,13): error CS0103: The name 'x' does not exist", Some("Program.cs line 9")),
            ("   at Program.Main() in /share/source/Program.cs:line 7", Some("Program.cs line 7")),
            (
                "[ERROR] /share/source/src/main/java/App.java:[14,5] cannot find symbol",
                Some("src/main/java/App.java line 14"),
            ),
            ("    at example.App.main(App.java:31)", Some("App.java line 31")),
            ("the file index.ts is missing", None),
            ("visit https://example.org/index.js for more", None),
            ("version 3.go: 5", None),
            ("    at x (/usr/lib/node.js:3:4)", None),
            ("", None),
        ];
        for (error, place) in table {
            assert_eq!(of(error).as_deref(), place, "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(\\.ts|\\.py|:|\\(|\", line |:line |[0-9]{1,12}|/share/source/|é|.|\\n){0,20}") {
            let _ = of(&text);
        }
    }
}
