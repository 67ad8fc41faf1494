use std::net::Ipv4Addr;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio_util::sync::DropGuard;

use super::*;

/// Timeout for every wait in these tests. The timeout is shorter than [`LONG`], so that a test fails instead of waiting
/// for [`LONG`].
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout that must not expire during a test.
const LONG: Duration = Duration::from_secs(120);
/// Incomplete requests.
const UNFINISHED: [&str; 3] = ["", "GET /", "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nabc"];

struct Server {
    address: SocketAddr,
    _end: DropGuard,
}

impl Server {
    async fn start(connections: usize, waiting_per_peer: usize) -> Server {
        let limits = Limits { connections, waiting_per_peer, header: LONG, all: LONG };
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()));
        let router = Router::new()
            .route("/", get(|| async { "ok" }))
            .route("/large", get(|| async { "x".repeat(64 << 20) }))
            .route("/echo", post(|body: String| async { body }));
        let end = CancellationToken::new();
        tokio::spawn(serve("a test", listener, router, limits, TaskTracker::new(), end.clone()));
        Server { address, _end: end.drop_guard() }
    }

    /// Connects from 127.0.0.`host` and sends `text`.
    async fn connect(&self, host: u8, text: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0))).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, host: u8) -> String {
        rest(self.connect(host, "GET / HTTP/1.1\r\nHost: test\r\n\r\n").await).await
    }
}

/// Returns all data that the server sends until it closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut response = Vec::new();
    let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await;
    drop(read.expect("the server responds or closes the connection in time"));
    String::from_utf8(response).unwrap()
}

fn is_ok(response: &str) -> bool {
    response.starts_with("HTTP/1.1 200 ") && response.ends_with("ok")
}

#[tokio::test]
async fn idle_connections_of_one_peer_do_not_block_other_peers() {
    for text in UNFINISHED {
        let server = Server::start(4, 4).await;
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(server.connect(2, text).await);
        }
        let response = server.get(3).await;
        assert!(is_ok(&response), "after {text:?}: {response:?}");
    }
}

#[tokio::test]
async fn idle_connections_of_many_peers_do_not_block_other_peers() {
    let server = Server::start(8, 4).await;
    let mut held = Vec::new();
    for host in 2..42 {
        held.push(server.connect(host, "").await);
    }
    assert!(is_ok(&server.get(50).await));
}

#[tokio::test]
async fn a_connection_above_the_limit_closes_the_oldest_of_its_peer() {
    let server = Server::start(16, 2).await;
    let other = server.connect(3, "").await;
    let oldest = server.connect(2, "").await;
    let mut newer = Vec::new();
    for _ in 0..2 {
        newer.push(server.connect(2, "").await);
    }
    assert_eq!(rest(oldest).await, "");
    for mut stream in newer.into_iter().chain([other]) {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
        assert!(is_ok(&rest(stream).await));
    }
}

#[tokio::test]
async fn peers_that_do_not_read_responses_do_not_block_other_peers() {
    let server = Server::start(4, 4).await;
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(server.connect(2, "GET /large HTTP/1.1\r\nHost: test\r\n\r\n").await);
    }
    assert!(is_ok(&server.get(3).await));
}

#[tokio::test]
async fn a_request_in_chunks_receives_a_response() {
    let server = Server::start(2, 2).await;
    let mut stream = server.connect(2, "POST /echo HTTP/1.1\r\nHost: test\r\n").await;
    stream.write_all(b"Content-Length: 6\r\n\r\nab").await.unwrap();
    stream.write_all(b"cdef").await.unwrap();
    let response = rest(stream).await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("abcdef"), "{response}");
}

#[test]
fn the_peer_with_the_most_connections_loses_its_oldest_connection() {
    let waiting = Waiting::new(9);
    let peer = |host| IpAddr::from(Ipv4Addr::new(10, 0, 0, host));
    let tokens: Vec<CancellationToken> = (0..5).map(|_| CancellationToken::new()).collect();
    let mut waits = Vec::new();
    for (token, host) in tokens.iter().zip([1, 2, 3, 2, 3]) {
        waits.push(waiting.join(peer(host), token));
    }
    let closed = || tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>();
    waiting.close_one();
    assert_eq!(
        closed(),
        [false, true, false, false, false],
        "the oldest connection of a peer with two connections is closed"
    );
    waiting.close_one();
    assert_eq!(closed(), [false, true, true, false, false]);
    waiting.close_one();
    assert_eq!(
        closed(),
        [true, true, true, false, false],
        "the oldest connection is closed if each peer has one connection"
    );
    waits.clear();
    waiting.close_one();
    assert_eq!(closed(), [true, true, true, false, false], "connections that do not wait stay open");
}

#[tokio::test]
async fn a_waiting_connection_ends_at_shutdown() {
    let server = Server::start(4, 4).await;
    let waiting = server.connect(1, "GET /").await;
    assert!(is_ok(&server.get(2).await), "the first connection is accepted");
    drop(server);
    assert_eq!(rest(waiting).await, "");
}
