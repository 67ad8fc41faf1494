//! Detection of local dependencies. Their files may change without a change of any lock file.

/// Prefixes that package managers write before a path.
const SCHEMES: [&str; 6] = ["file:", "link:", "portal:", "workspace:", "patch:", "exec:"];

/// TOML keys that precede a path or mark a dependency as local.
const TOML_KEYS: [&str; 5] = ["path=", "directory=", "editable=", "workspace=true", "develop=true"];

/// Whether a dependency is a path instead of a name.
pub(super) fn is_path(text: &str) -> bool {
    text.starts_with(['.', '/', '~']) || names_path(text)
}

/// Whether a text contains one of the prefixes at the start of a word.
pub(super) fn names_path(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| has_word(text, scheme))
}

/// Whether a TOML manifest or lock file contains a local dependency.
pub(super) fn toml_names_path(text: &str) -> bool {
    let text: String = text.chars().filter(|c| !matches!(c, ' ' | '\t')).collect();
    let others = text.match_indices("virtual=\"").any(|(at, word)| {
        // `virtual = "."` is the project itself, which is not installed.
        !text.get(at + word.len()..).is_some_and(|rest| rest.starts_with(".\""))
    });
    others
        || names_path(&text)
        || TOML_KEYS.iter().any(|key| has_word(&text, key))
        || ["type=\"directory\"", "type=\"file\"", "[tool.uv.workspace]"].iter().any(|words| text.contains(words))
}

/// Whether a text contains `word` without a letter, a digit, `_` or `-` directly before it.
fn has_word(text: &str, word: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    text.match_indices(word).any(|(at, _)| !text.get(..at).is_some_and(|before| before.ends_with(continues)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_paths_are_distinguished_from_package_names() {
        for (text, wanted) in [
            ("file:../sibling", true),
            ("npm:left-pad@1.0.0", false),
            ("workspace:*", true),
            ("\"foo@link:./foo\"", true),
            ("profile:x", false),
            ("./shared", true),
            ("../sibling", true),
            ("/opt/shared", true),
            ("~/shared", true),
            ("^1.0.0", false),
            ("@scope/name", false),
        ] {
            assert_eq!(is_path(text), wanted, "{text}");
        }
    }

    #[test]
    fn local_paths_in_toml_are_found() {
        for (text, wanted) in [
            ("shared = { path = \"../sibling\" }", true),
            ("source = { editable = \".\" }", true),
            ("source = { virtual = \".\" }", false),
            ("source = { virtual = \"member\" }", true),
            ("shared = { workspace = true }", true),
            ("[tool.uv.workspace]", true),
            ("type = \"directory\"", true),
            ("dependencies = [\"a @ file:///a\"]", true),
            ("pythonpath = \"src\"", false),
            ("dependencies = [\"pulumi>=3\"]\nfiles = [{file = \"a.whl\", hash = \"x\"}]", false),
        ] {
            assert_eq!(toml_names_path(text), wanted, "{text}");
        }
    }
}
