//! Splits a log into lines with a limited length.

/// Maximum length of a line in bytes. [`Lines`] omits the rest of a longer line.
const MAX_LINE: usize = 4096;

/// Buffer for the beginning of the next line. A tenant's program writes the log, so a line can have any length.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
}

impl Lines {
    /// Adds bytes, and returns the lines that these bytes complete.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let space = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend(part.iter().take(space));
            if parts.peek().is_some() {
                let line = std::mem::take(&mut self.line);
                complete.push(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned());
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_and_limited() {
        let mut lines = Lines::default();
        assert!(lines.add(b"Upda").is_empty());
        assert_eq!(lines.add(b"ting\r\n\nDo"), ["Updating", ""]);
        assert_eq!(lines.add(b"ne\n"), ["Done"]);
        for _ in 0..100 {
            assert!(lines.add(&[b'x'; 1000]).is_empty());
            assert!(lines.line.len() <= MAX_LINE);
        }
        assert_eq!(lines.add(b"\nnext\n"), ["x".repeat(MAX_LINE), "next".to_owned()]);
        assert_eq!(lines.add(b"\xff\n"), ["\u{fffd}"]);
    }
}
