//! Recognizes the output lines in which the CLI reports a resource state, such as ` + aws:s3:Bucket logs created (2s)`.

use serde::Serialize;

/// Maximum length of each string in a resource state, in characters.
const MAX_TEXT: usize = 200;
/// Symbols and names of the Pulumi engine's operations.
const SYMBOLS: [(&str, &str); 13] = [
    ("+", "create"),
    ("-", "delete"),
    ("~", "update"),
    ("+-", "replace"),
    ("-+", "replace"),
    ("++", "create replacement"),
    ("--", "delete replaced"),
    (">", "read"),
    (">-", "discard"),
    ("<", "discard"),
    ("=", "import"),
    ("=>", "import replacement"),
    ("*", "same"),
];

/// State of a resource during a run.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ResourceState {
    operation: &'static str,
    kind: String,
    name: String,
    state: String,
}

/// Returns the resource state in a line, or `None` if the line reports no resource.
pub(super) fn parse(line: &str) -> Option<ResourceState> {
    let line = line.trim_start().trim_start_matches("@ ");
    let (symbol, rest) = line.split_once(' ')?;
    let operation = SYMBOLS.iter().find(|(known, _)| *known == symbol).map(|(_, name)| *name)?;
    let mut words = rest.split_whitespace();
    let (kind, name) = (words.next()?, words.next()?);
    // A resource type has the form `PACKAGE:MODULE:TYPE`.
    if kind.split(':').count() != 3 || kind.split(':').any(str::is_empty) {
        return None;
    }
    let state: Vec<&str> = words.collect();
    let short = |text: &str| text.chars().take(MAX_TEXT).collect();
    Some(ResourceState { operation, kind: short(kind), name: short(name), state: short(&state.join(" ")) })
        .filter(|found| !found.state.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_resources_are_recognized() {
        let found =
            |line: &str| parse(line).map(|found| (found.operation, [found.kind, found.name, found.state].join("|")));
        let rows = [
            (" +  aws:s3:Bucket logs creating (0s)", Some(("create", "aws:s3:Bucket|logs|creating (0s)"))),
            ("@ updating....", None),
            (
                " ~  pulumi:pulumi:Stack web-dev updated (1s)",
                Some(("update", "pulumi:pulumi:Stack|web-dev|updated (1s)")),
            ),
            (
                " -- random:index/randomPet:RandomPet pet deleted original (0.01s)",
                Some(("delete replaced", "random:index/randomPet:RandomPet|pet|deleted original (0.01s)")),
            ),
            (" - a list item", None),
            ("Updating (dev):", None),
            (" +  aws:s3:Bucket logs", None),
            ("", None),
        ];
        for (line, expected) in rows {
            let expected = expected.map(|(operation, text)| (operation, text.to_owned()));
            assert_eq!(found(line), expected, "{line}");
        }
    }
}
