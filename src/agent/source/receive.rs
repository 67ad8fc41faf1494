//! Receives an archive and computes its digest at the same time. Only an archive with the expected digest is unpacked.

use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tonic::Status;

use super::wanted::Wanted;
use crate::agent::refusal::Refusal;
use crate::artifact::Hasher;
use crate::rpc::proto::put_source_request::Part;
use crate::rpc::proto::{PutSourceRequest, SourceHeader};

/// Maximum size of a chunk in bytes.
const MAX_CHUNK: usize = 256 * 1024;
/// Maximum time between two messages.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);

/// The messages of a call.
pub trait Parts: Send {
    fn next(&mut self) -> impl Future<Output = Result<Option<PutSourceRequest>, Status>> + Send;
}

impl Parts for tonic::Streaming<PutSourceRequest> {
    fn next(&mut self) -> impl Future<Output = Result<Option<PutSourceRequest>, Status>> + Send {
        self.message()
    }
}

async fn next(parts: &mut impl Parts) -> Result<Option<Part>, Refusal> {
    match tokio::time::timeout(CHUNK_TIMEOUT, parts.next()).await {
        Ok(Ok(Some(message))) => {
            message.part.map(Some).ok_or_else(|| Refusal::Invalid("source message is empty".to_owned()))
        }
        Ok(Ok(None)) => Ok(None),
        Ok(Err(status)) => Err(Refusal::Precondition(format!("source stream failed: {}", status.message()))),
        Err(_) => Err(Refusal::TooLate(format!(
            "timed out after {} s waiting for the next chunk of the source",
            CHUNK_TIMEOUT.as_secs()
        ))),
    }
}

/// Receives the header, which must be the first message.
pub(super) async fn header(parts: &mut impl Parts) -> Result<SourceHeader, Refusal> {
    match next(parts).await? {
        Some(Part::Header(header)) => Ok(header),
        _ => Err(Refusal::Invalid("the first message of a source must be its header".to_owned())),
    }
}

/// Writes the archive to a file and verifies its size and digest.
pub(super) async fn archive(parts: &mut impl Parts, wanted: &Wanted, to: &Path) -> Result<(), Refusal> {
    let limit = wanted.limits.download_bytes;
    if wanted.size > limit {
        let size = wanted.size;
        return Err(Refusal::Invalid(format!(
            "the source of {size} bytes exceeds the limit of {limit} bytes (--artifact-max-size)"
        )));
    }
    let failed = || Refusal::system(format!("failed to write the source to {}", to.display()));
    let mut file = tokio::fs::File::create(to).await.map_err(failed())?;
    let mut hasher = Hasher::new(wanted.digest.algorithm());
    let mut size: u64 = 0;
    while let Some(part) = next(parts).await? {
        let Part::Chunk(chunk) = part else {
            return Err(Refusal::Invalid("source has more than one header".to_owned()));
        };
        if chunk.len() > MAX_CHUNK {
            return Err(Refusal::Invalid(format!("source chunk exceeds {MAX_CHUNK} bytes")));
        }
        size += chunk.len() as u64;
        if size > wanted.size {
            break;
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await.map_err(failed())?;
    }
    file.flush().await.map_err(failed())?;
    if size != wanted.size {
        let found = if size > wanted.size { "more".to_owned() } else { size.to_string() };
        return Err(Refusal::DataLoss(format!(
            "size of the source does not match: expected {} bytes, received {found}",
            wanted.size
        )));
    }
    let found = hasher.finish();
    if !wanted.digest.verify(&found) {
        return Err(Refusal::DataLoss(format!(
            "digest of the source does not match: expected {}, received {found}",
            wanted.digest
        )));
    }
    Ok(())
}
