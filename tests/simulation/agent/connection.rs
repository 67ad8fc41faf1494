//! Connection to an agent. Nothing arrives while the node of the agent is lost.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::container::Container;

pub struct Connection {
    stream: DuplexStream,
    container: Arc<Container>,
    /// Completes when the connection is reset.
    reset: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    pub fn new(stream: DuplexStream, container: &Arc<Container>) -> Connection {
        let reset = Box::pin(container.connections().cancelled_owned());
        Connection { stream, container: container.clone(), reset }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

// The connection is reset when the process ends and when the node recovers. A connection always reads, so only reading
// needs to notice this.
impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.reset.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        match self.container.is_unreachable() {
            true => Poll::Pending,
            false => Pin::new(&mut self.stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.container.is_unreachable() {
            true => Poll::Pending,
            false => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
