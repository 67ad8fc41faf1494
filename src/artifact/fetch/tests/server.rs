//! An HTTP server that counts requests and simulates faults: wrong lengths, broken connections, and slow or hanging
//! responses.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Response that the server sends to a request.
#[derive(Clone)]
pub(super) struct Response {
    bytes: Vec<u8>,
    drip: Option<Duration>,
    hang: bool,
}

impl Response {
    /// Returns a response that sends the text and then closes the connection.
    pub(super) fn raw(text: &str) -> Self {
        Self { bytes: text.as_bytes().to_vec(), drip: None, hang: false }
    }

    pub(super) fn ok(body: &[u8]) -> Self {
        let mut response = Self::raw(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()));
        response.bytes.extend_from_slice(body);
        response
    }

    pub(super) fn chunked(body: &[u8]) -> Self {
        let mut response = Self::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        for byte in body {
            response.bytes.extend_from_slice(&[b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
        }
        response.bytes.extend_from_slice(b"0\r\n\r\n");
        response
    }

    pub(super) fn not_found() -> Self {
        Self::raw("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    }

    /// Sends one byte at a time, with a pause after each byte.
    pub(super) fn dripping(self, pause: Duration) -> Self {
        Self { drip: Some(pause), ..self }
    }

    /// Keeps the connection open after the last byte without sending more data.
    pub(super) fn hanging(self) -> Self {
        Self { hang: true, ..self }
    }
}

/// A running HTTP server. Dropping this value stops the server.
pub(super) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Starts a server that calls `response` with the number of each request. The first request has the number 0.
    pub(super) async fn start(response: impl Fn(usize) -> Response + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let Some(request) = read_request(&mut stream).await else { continue };
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(request);
                    seen.len() - 1
                };
                connections.spawn(send(stream, response(number)));
            }
        });
        Self { address, requests, _tasks: tasks }
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Waits until the server has received `count` requests.
    pub(super) async fn until_requests(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.count() < count {
            assert!(Instant::now() < until, "received {} of {count} requests", self.count());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(request).ok()
}

async fn send(mut stream: TcpStream, response: Response) {
    let pieces: Vec<&[u8]> = match response.drip {
        Some(_) => response.bytes.chunks(1).collect(),
        None => vec![&response.bytes],
    };
    for piece in pieces {
        if stream.write_all(piece).await.is_err() {
            return;
        }
        if let Some(pause) = response.drip {
            tokio::time::sleep(pause).await;
        }
    }
    if response.hang {
        std::future::pending::<()>().await;
    }
    // Waits until the client closes the connection, because a connection reset could discard bytes in transit.
    let _ = stream.shutdown().await;
    let _ = stream.read(&mut [0]).await;
}
