//! HTTP server that limits the number and the duration of connections. The server accepts one request per
//! connection. When all connections are in use, the server closes a connection that waits for its peer, so that no peer
//! can block other peers by keeping connections open.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use futures::StreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Connection limits for one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// Maximum number of waiting connections per IP address. A connection waits for its peer while the peer has not
    /// sent the complete request or has not read the response. If a peer exceeds the maximum, the server closes the
    /// peer's oldest waiting connection.
    pub waiting_per_peer: usize,
    /// Timeout for receiving the complete request header.
    pub header: Duration,
    /// Maximum duration of a connection.
    pub all: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 128, waiting_per_peer: 16, header: Duration::from_secs(10), all: Duration::from_secs(30) }
    }
}

/// Maximum size of a request header in bytes.
const MAX_HEADER: usize = 32 * 1024;
/// Maximum number of header fields in a request.
const MAX_HEADERS: usize = 100;
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Grace period for waiting connections during the server's shutdown. The period is shorter than the grace period that
/// all tasks have at shutdown.
const END: Duration = Duration::from_secs(1);

/// IP address of the peer, as a request extension. Behind a proxy, the peer is the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// Serves requests until `end` is canceled. The server spawns one task for each connection in `tasks`.
pub async fn serve(
    purpose: &'static str,
    listener: TcpListener,
    router: Router,
    limits: Limits,
    tasks: TaskTracker,
    end: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let waiting = Waiting::new(limits.waiting_per_peer);
    let accept = async {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, purpose, "failed to accept connection");
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                    continue;
                }
            };
            if slots.available_permits() == 0 {
                waiting.close_one();
            }
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let connection = Connection { purpose, peer: address(peer), waiting: waiting.clone(), limits };
            let router = router.clone();
            tasks.spawn(async move {
                connection.serve(stream, router).await;
                drop(slot);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = end.cancelled() => {}
    }
    drop(listener);
    // A waiting connection could delay the shutdown, so the server closes it. The server still responds to complete
    // requests.
    if !waiting.is_empty() {
        tokio::time::sleep(END).await;
        waiting.close_all();
    }
}

/// Returns the IP address of a peer. A listener on `[::]` reports an IPv4 address as an IPv6 address. This function
/// converts it back to the IPv4 address.
fn address(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

struct Connection {
    purpose: &'static str,
    peer: IpAddr,
    waiting: Waiting,
    limits: Limits,
}

impl Connection {
    /// Serves one request.
    async fn serve(self, stream: TcpStream, router: Router) {
        let Connection { purpose, peer, waiting, limits } = self;
        let peer = Peer { address: peer, close: CancellationToken::new(), list: waiting };
        let (closed, wait) = (peer.close.clone(), Arc::new(Mutex::new(Some(peer.wait()))));
        let service = service_fn(|request: Request<Incoming>| {
            let (router, peer, wait) = (router.clone(), peer.clone(), wait.clone());
            async move {
                drop(lock(&wait).take());
                let response = respond(router, request, peer.clone()).await;
                *lock(&wait) = Some(peer.wait());
                response
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header)
            .max_buf_size(MAX_HEADER)
            .max_headers(MAX_HEADERS)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            ended = tokio::time::timeout(limits.all, connection) => match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, purpose, "connection failed"),
                Err(_) => tracing::debug!(purpose, "connection timed out"),
            },
            () = closed.cancelled() => {
                tracing::debug!(peer = %peer.address, purpose, "waiting connection closed");
            }
        }
    }
}

/// Responds to a request. While the router reads the body, the connection waits for its peer.
async fn respond(router: Router, request: Request<Incoming>, peer: Peer) -> Result<Response<Body>, Infallible> {
    let address = PeerAddress(peer.address);
    let mut request = request.map(|body| {
        let pieces = Body::new(body).into_data_stream();
        let read = async move {
            let wait = peer.wait();
            pieces.map(move |piece| {
                let _held = &wait;
                piece
            })
        };
        Body::from_stream(futures::stream::once(read).flatten())
    });
    request.extensions_mut().insert(address);
    router.oneshot(request).await
}

/// Connections that wait for their peers, oldest first, at most [`Limits::connections`]. Cheap to clone.
#[derive(Clone)]
struct Waiting(Arc<WaitingList>);

struct WaitingList {
    per_peer: usize,
    entries: Mutex<Vec<Entry>>,
}

struct Entry {
    peer: IpAddr,
    close: CancellationToken,
    /// Identity of the [`Wait`] to which this entry belongs. Two identities are equal if their pointers are equal.
    identity: Arc<()>,
}

/// Peer of a connection, with the token that closes the connection.
#[derive(Clone)]
struct Peer {
    address: IpAddr,
    close: CancellationToken,
    list: Waiting,
}

impl Peer {
    /// Marks the connection as waiting until the caller drops the returned guard.
    fn wait(&self) -> Wait {
        self.list.join(self.address, &self.close)
    }
}

/// Guard of a waiting connection. Dropping the guard removes the connection from the list.
struct Wait {
    list: Waiting,
    identity: Arc<()>,
}

impl Waiting {
    fn new(per_peer: usize) -> Self {
        Waiting(Arc::new(WaitingList { per_peer, entries: Mutex::default() }))
    }

    /// Adds a connection. If the peer has too many waiting connections, the function closes the oldest of these
    /// connections.
    fn join(&self, peer: IpAddr, close: &CancellationToken) -> Wait {
        let mut entries = lock(&self.0.entries);
        if entries.iter().filter(|entry| entry.peer == peer).count() >= self.0.per_peer {
            close_oldest(&mut entries, peer);
        }
        let identity = Arc::new(());
        entries.push(Entry { peer, close: close.clone(), identity: identity.clone() });
        Wait { list: self.clone(), identity }
    }

    fn is_empty(&self) -> bool {
        lock(&self.0.entries).is_empty()
    }

    /// Closes all waiting connections.
    fn close_all(&self) {
        for entry in lock(&self.0.entries).drain(..) {
            entry.close.cancel();
        }
    }

    /// Selects the peer with the most waiting connections, and closes its oldest waiting connection.
    fn close_one(&self) {
        let mut entries = lock(&self.0.entries);
        let count = |peer: IpAddr| entries.iter().filter(|entry| entry.peer == peer).count();
        // If several peers have the maximum number of connections, `max_by_key` returns the last of these peers.
        // Because the order is reversed, this is the peer with the oldest connection.
        let peer = entries.iter().rev().map(|entry| entry.peer).max_by_key(|peer| count(*peer));
        if let Some(peer) = peer {
            close_oldest(&mut entries, peer);
        }
    }
}

fn close_oldest(entries: &mut Vec<Entry>, peer: IpAddr) {
    if let Some(position) = entries.iter().position(|entry| entry.peer == peer) {
        entries.remove(position).close.cancel();
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        lock(&self.list.0.entries).retain(|entry| !Arc::ptr_eq(&entry.identity, &self.identity));
    }
}

/// Locks a mutex. Hold the lock only for short critical sections, and never across an `.await`.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
