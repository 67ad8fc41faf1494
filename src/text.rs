//! Strings for users: error messages with their causes, and replacements for characters that can mislead a reader.

/// Returns whether a character is a format character (the Unicode category Cf) or a separator of lines or paragraphs.
/// Almost all of these characters are invisible, and can make a string look like a different string. The function makes
/// no exception for the joiners in emoji and in some scripts, because a joiner between other letters is invisible.
pub fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}'
            | '\u{e0020}'..='\u{e007f}'
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

/// Returns whether a character can change the terminal state or the text direction, or is invisible.
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
    fn all_characters_of_the_category_are_format_characters() {
        let rows = [
            ("soft hyphen", '\u{ad}', true),
            ("zero width space", '\u{200b}', true),
            ("zero width joiner", '\u{200d}', true),
            ("right-to-left mark", '\u{200f}', true),
            ("line separator", '\u{2028}', true),
            ("right-to-left override", '\u{202e}', true),
            ("word joiner", '\u{2060}', true),
            ("left-to-right isolate", '\u{2066}', true),
            ("byte order mark", '\u{feff}', true),
            ("tag", '\u{e0061}', true),
            ("letter", 'a', false),
            ("letter outside of ASCII", 'ß', false),
            ("punctuation", '…', false),
            ("symbol", '✗', false),
            ("control character", '\n', false),
            ("space", ' ', false),
            ("no-break space", '\u{a0}', false),
            ("hyphen", '\u{2010}', false),
            ("variation selector of emoji", '\u{fe0f}', false),
            ("replacement character", '\u{fffd}', false),
        ];
        for (name, character, expected) in rows {
            assert_eq!(is_format(character), expected, "{name}");
        }
        // Unicode 17 has 170 format characters, one line separator and one paragraph separator.
        assert_eq!(('\0'..=char::MAX).filter(|character| is_format(*character)).count(), 172);
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
