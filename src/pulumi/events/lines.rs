//! Splits a growing file into lines.

use super::event::EventError;

/// Maximum length of a line in the event log, in bytes. Parsing needs a multiple of this amount of memory.
pub const MAXIMUM_LINE: usize = 16 * 1024 * 1024;

/// Splits the bytes of a growing file into complete lines. Buffers at most one line, up to its maximum length.
#[derive(Debug)]
pub struct LineSplitter {
    limit: usize,
    /// Start of the incomplete last line.
    begun: Vec<u8>,
    /// Whether the rest of the line is skipped because the line is too long.
    skipping: bool,
}

impl Default for LineSplitter {
    fn default() -> Self {
        LineSplitter::new(MAXIMUM_LINE)
    }
}

impl LineSplitter {
    /// Creates a splitter. `limit` is the maximum length of a line in bytes.
    pub fn new(limit: usize) -> Self {
        LineSplitter { limit, begun: Vec::new(), skipping: false }
    }

    /// Adds bytes of the file and returns the lines that are now complete, without their newlines. Empty lines are omitted. A
    /// line that is too long results in one error, as soon as it exceeds the limit.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<Result<Vec<u8>, EventError>> {
        let mut lines = Vec::new();
        let mut pieces = chunk.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            if let Err(error) = self.extend(piece) {
                lines.push(Err(error));
            }
            if pieces.peek().is_none() {
                break; // The newline of the last piece is still missing.
            }
            if !self.skipping && !self.begun.is_empty() {
                lines.push(Ok(std::mem::take(&mut self.begun)));
            }
            self.skipping = false;
        }
        lines
    }

    fn extend(&mut self, piece: &[u8]) -> Result<(), EventError> {
        if self.skipping {
            return Ok(());
        }
        if self.begun.len().saturating_add(piece.len()) > self.limit {
            self.begun = Vec::new();
            self.skipping = true;
            return Err(EventError::Oversized { limit: self.limit });
        }
        self.begun.extend_from_slice(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn push(splitter: &mut LineSplitter, chunk: &str) -> Vec<String> {
        let lines = splitter.push(chunk.as_bytes()).into_iter();
        lines
            .map(|line| line.map_or_else(|error| error.to_string(), |line| String::from_utf8(line).expect("text")))
            .collect()
    }

    #[test]
    fn only_complete_lines_are_returned() {
        let mut splitter = LineSplitter::default();
        assert_eq!(push(&mut splitter, "on"), [""; 0]);
        assert_eq!(push(&mut splitter, "e\ntwo\n\nthr"), ["one", "two"]);
        assert_eq!(push(&mut splitter, "ee"), [""; 0]);
        assert_eq!(push(&mut splitter, "\n"), ["three"]);
        assert_eq!(push(&mut splitter, ""), [""; 0]);
    }

    #[test]
    fn an_overlong_line_is_one_error_and_the_next_line_is_read() {
        let mut splitter = LineSplitter::new(4);
        assert_eq!(push(&mut splitter, "1234\n12345"), ["1234", "event log line exceeds 4 bytes"]);
        assert_eq!(push(&mut splitter, "67890"), [""; 0]);
        assert_eq!(push(&mut splitter, "\n1\n123456\n2\n"), ["1", "event log line exceeds 4 bytes", "2"]);
    }

    proptest! {
        #[test]
        fn line_splitting_is_independent_of_chunk_boundaries(text in "[ab\n]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..8)) {
            let mut whole = LineSplitter::new(5);
            let mut cut = LineSplitter::new(5);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let pieces = cuts.windows(2).flat_map(|pair| push(&mut cut, text.get(pair[0]..pair[1]).expect("it is ASCII"))).collect::<Vec<_>>();
            prop_assert_eq!(push(&mut whole, &text), pieces);
        }
    }
}
