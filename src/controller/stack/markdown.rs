//! Escapes strings from Pulumi programs for Markdown. Flux posts events as comments on pull requests, so a string must
//! not become a mention, a link or HTML.

use crate::pulumi::console;

/// Characters that start a mention, a link, HTML or a code span.
const SPECIAL: [char; 7] = ['`', '<', '>', '[', ']', '@', '\\'];

/// Returns the string on one line, without control characters. A string with special characters becomes a code span.
pub fn inline(text: &str) -> String {
    let text = console::for_display(text).replace(['\n', '\t'], " ");
    if text.contains(SPECIAL) { code(&text) } else { text }
}

/// Returns a text as a code span.
pub fn code(text: &str) -> String {
    let text = console::for_display(text).replace(['\n', '\t'], " ");
    format!("`{}`", text.replace('`', "'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_have_no_effect() {
        let rows = [
            ("No bucket is public.", "No bucket is public."),
            ("a\nb\u{202e}c\u{1b}[1m", "a bc"),
            ("@everyone", "`@everyone`"),
            ("x` <b>", "`x' <b>`"),
            ("[link](http://a)", "`[link](http://a)`"),
        ];
        for (text, expected) in rows {
            assert_eq!(inline(text), expected, "{text:?}");
        }
        assert_eq!(code("no-`public"), "`no-'public`");
    }
}
