//! Patterns in a Stack's spec. `*` matches any sequence of characters.

/// Maximum number of `*` in a pattern. Limits the duration of a comparison.
const MAX_ASTERISKS: usize = 8;
/// Maximum length of a pattern, in bytes.
const MAX_LENGTH: usize = 4096;

/// Checks a pattern. `field` is the field path of the pattern. Returns an error message if a comparison would be too
/// expensive.
pub fn check(field: &str, pattern: &str) -> Result<(), String> {
    match is_valid(pattern) {
        true => Ok(()),
        false => Err(format!(
            "invalid {field}: a pattern has at most {MAX_ASTERISKS} asterisks and {MAX_LENGTH} bytes; shorten the pattern"
        )),
    }
}

pub fn is_valid(pattern: &str) -> bool {
    pattern.len() <= MAX_LENGTH && pattern.matches('*').count() <= MAX_ASTERISKS
}

/// Returns whether the pattern matches the string. An invalid pattern matches no string.
pub fn matches(pattern: &str, text: &str) -> bool {
    if !is_valid(pattern) {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asterisk_matches_any_characters() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("**", "x", true),
            ("*a*a*a*a*a*a*a*", "aaaaaaa", true),
            ("*a*a*a*a*a*a*a*a*", "aaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
