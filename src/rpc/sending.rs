//! Message stream that delivers an archive to an agent, and reports its progress.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use crate::rpc::proto;
use crate::rpc::proto::put_source_request::Part;

/// Size of an archive chunk in bytes.
const CHUNK: usize = 256 * 1024;

/// Rate below which a stream is slow: one chunk in two seconds. An agent that is reading the source accepts a chunk in
/// a fraction of this time.
const SLOW: Rate = Rate { bytes: CHUNK as u64, within: Duration::from_secs(2) };

/// Number of bytes in a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub bytes: u64,
    pub within: Duration,
}

/// Progress of a source stream. Cloning is cheap, and all clones refer to the same stream.
#[derive(Clone, Debug, Default)]
pub struct Sending(Arc<watch::Sender<Sent>>);

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    bytes: u64,
    is_complete: bool,
}

impl Sending {
    /// Waits until the connection has accepted all bytes.
    pub async fn done(&self) {
        // The wait cannot fail, because `self` owns the sender.
        let _ = self.0.subscribe().wait_for(|sent| sent.is_complete).await;
    }

    /// Waits until the stream is slow. The function never returns after the connection has accepted the complete
    /// stream.
    pub async fn until_slow(&self) {
        self.until_slower(SLOW).await;
    }

    /// Waits until the stream is slower than `rate`, and then returns the number of bytes sent in the last period. The
    /// function never returns after the connection has accepted the complete stream.
    pub(super) async fn until_slower(&self, rate: Rate) -> u64 {
        loop {
            let before = self.0.borrow().bytes;
            tokio::time::sleep(rate.within).await;
            let sent = *self.0.borrow();
            if sent.is_complete {
                std::future::pending::<()>().await;
            }
            let received = sent.bytes.saturating_sub(before);
            if received < rate.bytes {
                return received;
            }
        }
    }

    fn record(&self, bytes: usize) {
        self.0.send_modify(|sent| match bytes {
            0 => sent.is_complete = true,
            bytes => sent.bytes += bytes as u64,
        });
    }
}

/// Returns the header and then the chunks. The stream reads the next chunk only when the connection can send it. If the
/// reader fails, the stream ends early. The agent then rejects the source, and `broken` contains the error.
pub(super) fn source_messages<R>(
    header: proto::SourceHeader,
    reader: R,
    broken: Arc<Mutex<Option<io::Error>>>,
    sending: Sending,
) -> impl Stream<Item = proto::PutSourceRequest> + Send + 'static
where
    R: AsyncRead + Send + Unpin + 'static,
{
    let message = |part| proto::PutSourceRequest { part: Some(part) };
    let first = futures::stream::iter([message(Part::Header(header))]);
    let chunks = futures::stream::unfold((reader, broken, sending), move |(mut reader, broken, sending)| async move {
        match read_chunk(&mut reader).await {
            Ok(chunk) => {
                sending.record(chunk.len());
                let more = (!chunk.is_empty()).then_some(chunk)?;
                Some((message(Part::Chunk(more)), (reader, broken, sending)))
            }
            Err(error) => {
                if let Ok(mut slot) = broken.lock() {
                    *slot = Some(error);
                }
                None
            }
        }
    });
    futures::StreamExt::chain(first, chunks)
}

async fn read_chunk(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut chunk = Vec::with_capacity(CHUNK);
    reader.take(CHUNK as u64).read_to_end(&mut chunk).await?;
    Ok(chunk)
}
