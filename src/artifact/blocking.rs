//! Blocking work of the controller, such as access to the artifact store.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::JoinHandle;

static IS_INLINE: AtomicBool = AtomicBool::new(false);

/// Runs the work on a thread for blocking work, or inline after [`run_inline`]. The work must not wait for a task.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if IS_INLINE.load(Ordering::Relaxed) {
        tokio::spawn(async move { work() })
    } else {
        tokio::task::spawn_blocking(work)
    }
}

/// Returns a reader of the file that reads on a thread for blocking work, or inline after [`run_inline`].
pub fn reader(file: File) -> Box<dyn AsyncRead + Send + Unpin> {
    if IS_INLINE.load(Ordering::Relaxed) {
        Box::new(InlineReader(file))
    } else {
        Box::new(tokio::fs::File::from_std(file))
    }
}

struct InlineReader(File);

impl AsyncRead for InlineReader {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let count = self.0.read(buffer.initialize_unfilled())?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// Runs the blocking work of this process in its async tasks. A simulation has only one thread, because the order of
/// events would otherwise depend on the scheduler of the operating system.
pub fn run_inline() {
    IS_INLINE.store(true, Ordering::Relaxed);
}
