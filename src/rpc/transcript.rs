//! Size limits for a transcript, and checks for transcript chunks. A tenant can replace the agent, so the controller
//! checks the size of a part before it reads the part, and again after each chunk.

use crate::rpc::proto::{ReadTranscriptReply, TranscriptPart};

/// Maximum size of a chunk in bytes.
pub const MAX_CHUNK: usize = 256 * 1024;
/// Parts of a transcript.
pub const PARTS: [TranscriptPart; 3] = [TranscriptPart::Output, TranscriptPart::Events, TranscriptPart::Steps];
/// Maximum number of bytes that compression adds to a part. Incompressible data becomes larger.
const COMPRESSION: usize = 16 * 1024;

/// Returns the maximum uncompressed size of a part in bytes.
pub const fn limit(part: TranscriptPart) -> usize {
    match part {
        TranscriptPart::Unspecified => 0,
        TranscriptPart::Output => 1024 * 1024,
        TranscriptPart::Events => 4 * 1024 * 1024,
        TranscriptPart::Steps => 256 * 1024,
    }
}

/// Content of a part that the controller reads in chunks.
#[derive(Debug)]
pub(super) struct PartContent {
    limit: usize,
    bytes: Vec<u8>,
}

impl PartContent {
    pub(super) fn new(part: TranscriptPart) -> Self {
        PartContent { limit: limit(part) + COMPRESSION, bytes: Vec::new() }
    }

    /// Returns the offset of the next chunk.
    pub(super) fn offset(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Adds a chunk, and returns whether the part is complete. Each chunk except the last must have the maximum size.
    /// This requirement limits the number of calls.
    pub(super) fn add(&mut self, reply: &ReadTranscriptReply) -> Result<bool, String> {
        let (size, limit) = (usize::try_from(reply.size).unwrap_or(usize::MAX), self.limit);
        if size > limit {
            return Err(format!("the part of {size} bytes exceeds the limit of {limit} bytes"));
        }
        let received = self.bytes.len().saturating_add(reply.chunk.len());
        if received > size || received < size && reply.chunk.len() < MAX_CHUNK {
            return Err(format!("received {received} bytes of a part of {size} bytes"));
        }
        self.bytes.extend_from_slice(&reply.chunk);
        Ok(received == size)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(chunk: usize, size: usize) -> ReadTranscriptReply {
        ReadTranscriptReply { chunk: vec![7; chunk], size: size as u64 }
    }

    #[test]
    fn a_part_is_read_in_chunks() {
        let mut content = PartContent::new(TranscriptPart::Output);
        let size = MAX_CHUNK * 2 + 5;
        assert_eq!(content.add(&reply(MAX_CHUNK, size)), Ok(false));
        assert_eq!(content.offset(), MAX_CHUNK as u64);
        assert_eq!(content.add(&reply(MAX_CHUNK, size)), Ok(false));
        assert_eq!(content.add(&reply(5, size)), Ok(true));
        assert_eq!(content.into_bytes().len(), size);
        assert_eq!(
            PartContent::new(TranscriptPart::Steps).add(&reply(0, 0)),
            Ok(true),
            "an operation without this part"
        );
    }

    #[test]
    fn a_part_of_a_hostile_agent_is_limited() {
        let size = limit(TranscriptPart::Steps);
        let rows = [
            (MAX_CHUNK, size * 2, "exceeds the limit"),
            (MAX_CHUNK, 10, "received 262144 bytes of a part of 10 bytes"),
            (10, 1000, "received 10 bytes of a part of 1000 bytes"),
            (0, 1000, "received 0 bytes of a part of 1000 bytes"),
        ];
        for (chunk, size, expected) in rows {
            let error = PartContent::new(TranscriptPart::Steps).add(&reply(chunk, size)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
