//! Characters of texts that people read.

/// Returns whether a character is invisible and changes the direction or the lines of a text. Such characters can
/// make a text look like another text.
pub fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
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
}
