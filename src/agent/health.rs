//! Readiness endpoint: plain HTTP on its own port, with a single path and bounded requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// Timeout of a request including its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests. Further connections wait in the backlog of the listener.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// Maximum size of a request in bytes.
const MAX_REQUEST: usize = 2048;
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Serves until the future is dropped. Calls `is_ready` for each connection.
pub async fn serve(listener: TcpListener, tasks: TaskTracker, is_ready: impl Fn() -> bool) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let ready = is_ready();
                tasks.spawn(async move {
                    // Errors concern only this client.
                    let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer(stream, ready)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a readiness connection");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, ready: bool) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 512];
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let length = stream.read(&mut buffer).await?;
        if length == 0 || request.len() + length > MAX_REQUEST {
            return Ok(());
        }
        request.extend_from_slice(buffer.get(..length).unwrap_or_default());
    }
    stream.write_all(response(&request, ready).as_bytes()).await?;
    stream.shutdown().await
}

fn response(request: &[u8], ready: bool) -> String {
    let is_readiness = request.starts_with(b"GET /readyz ");
    let (status, body) = match (is_readiness, ready) {
        (false, _) => ("404 Not Found", "not found\n"),
        (true, true) => ("200 OK", "ok\n"),
        (true, false) => ("503 Service Unavailable", "agent is shutting down\n"),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_readyz_reports_readiness() {
        for (request, ready, wanted) in [
            ("GET /readyz HTTP/1.1\r\n\r\n", true, "HTTP/1.1 200 "),
            ("GET /readyz HTTP/1.1\r\n\r\n", false, "HTTP/1.1 503 "),
            ("GET / HTTP/1.1\r\n\r\n", true, "HTTP/1.1 404 "),
            ("POST /readyz HTTP/1.1\r\n\r\n", true, "HTTP/1.1 404 "),
        ] {
            assert!(response(request.as_bytes(), ready).starts_with(wanted), "{request}");
        }
    }
}
