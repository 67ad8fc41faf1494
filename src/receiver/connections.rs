//! The connections of those who call: so many, each for one call, and each for so long.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::receiver::handler::Handler;

/// Bounds of a connection, so that who sends slowly, or nothing, does no harm.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many there are at the same time. Others wait in the listener's queue.
    pub connections: usize,
    /// How long the header of a call may take.
    pub header: Duration,
    /// How long all of it may take, with the answer.
    pub all: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 128, header: Duration::from_secs(10), all: Duration::from_secs(30) }
    }
}

/// The most bytes, and lines, of a header.
const LARGEST_HEADER: usize = 32 * 1024;
const MOST_HEADERS: usize = 100;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);

/// Takes calls until it is told to end.
pub async fn serve(
    listener: TcpListener,
    handler: Arc<Handler>,
    limits: Limits,
    tasks: TaskTracker,
    end: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let accept = async {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => drop(tasks.spawn(one_call(stream, handler.clone(), limits, place))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for webhooks");
                    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = end.cancelled() => {}
    }
}

async fn one_call(stream: TcpStream, handler: Arc<Handler>, limits: Limits, place: OwnedSemaphorePermit) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let handler = handler.clone();
        async move { handler.answer(request.map(Body::new)).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(LARGEST_HEADER)
        .max_headers(MOST_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(limits.all, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for webhooks broke down"),
        Err(_) => tracing::debug!("a connection for webhooks took too long"),
    }
    drop(place);
}
