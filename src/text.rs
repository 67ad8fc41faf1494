//! Strings for users: error messages with their causes, and replacements for characters that can mislead a reader.

/// Returns whether a character is invisible and changes the direction or the line breaks of a string. Such a character
/// can make a string look like a different string.
pub fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
}

/// Returns an error message and the messages of all causes as one line, without repetitions.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}

/// Replaces control characters and invisible format characters in a string, but keeps line breaks and tabs. Therefore,
/// a message from the cluster cannot change the terminal state or look like a different message.
pub fn printable(text: &str) -> String {
    text.chars().map(|character| if is_unprintable(character) { '\u{fffd}' } else { character }).collect()
}

/// Returns whether a character can change the terminal state or the text direction.
pub fn is_unprintable(character: char) -> bool {
    (character.is_control() && character != '\n' && character != '\t') || is_format(character)
}

/// Like [`printable`], but also replaces line breaks and tabs, so that a value from the cluster cannot imitate another
/// line.
pub fn printable_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invisible_characters_are_format_characters() {
        for character in ['\u{202e}', '\u{2028}', '\u{2066}', '\u{feff}', '\u{200f}'] {
            assert!(is_format(character), "{}", character.escape_unicode());
        }
        for character in ['a', 'ß', '…', '✗', '\n', ' '] {
            assert!(!is_format(character), "{}", character.escape_unicode());
        }
    }

    #[test]
    fn a_text_contains_no_control_and_format_characters() {
        assert_eq!(printable("a\u{9b}b\r\u{202e}c\n\td"), "a\u{fffd}b\u{fffd}\u{fffd}c\n\td");
        assert_eq!(printable_line("a\n\u{2066}b"), "a\u{fffd}\u{fffd}b");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the door")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("the key is lost")]
    struct Inner;

    #[derive(Debug, thiserror::Error)]
    #[error("no: {0}")]
    struct Repeating(#[source] Inner);

    #[test]
    fn repeated_causes_of_an_error_are_shown_once() {
        assert_eq!(chain(&Outer(Inner)), "cannot open the door: the key is lost");
        assert_eq!(chain(&Repeating(Inner)), "no: the key is lost");
    }
}
