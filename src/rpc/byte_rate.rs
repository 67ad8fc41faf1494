//! Rate limits for the data that agents send to the controller. A tenant can replace the agents in its pods, so the
//! controller must limit the data from each namespace.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, Join, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum rate at which the controller reads from all agents in a namespace, in bytes per second.
const NAMESPACE_RATE: u32 = 1024 * 1024;
/// Maximum burst per namespace in bytes. This burst is sufficient for two results of maximum size.
const NAMESPACE_BURST: u32 = 8 * 1024 * 1024;
/// Maximum number of bytes that a connection reads before it yields to other tasks. Without this limit, a connection
/// that always has data could occupy a thread for a long time.
const MAX_UNINTERRUPTED: usize = 64 * 1024;
/// Minimum duration of a pause. Shorter pauses accumulate until they reach this minimum, because timers are not precise
/// enough.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MICROSECONDS: i64 = 1_000_000;

/// Token bucket for bytes. If a connection reads more bytes than the bucket contains, the deficit delays the next read.
#[derive(Debug)]
pub struct ByteRate {
    /// Refill rate in bytes per second.
    rate: i64,
    burst: i64,
    left: i64,
    filled: Instant,
}

impl ByteRate {
    /// Creates a full bucket. `rate` is in bytes per second, and `burst` is in bytes.
    pub fn new(rate: u32, burst: u32, now: Instant) -> Self {
        let (rate, burst) = (i64::from(rate.max(1)), i64::from(burst));
        ByteRate { rate, burst, left: burst, filled: now }
    }

    /// Removes bytes from the bucket, and returns the pause before the next read.
    pub fn spend(&mut self, bytes: usize, now: Instant) -> Duration {
        self.refill(now);
        self.left = self.left.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        let debt = self.left.saturating_neg().max(0);
        let pause = debt.saturating_mul(MICROSECONDS) / self.rate;
        let pause = Duration::from_micros(pause.unsigned_abs());
        if pause < MIN_PAUSE { Duration::ZERO } else { pause }
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left >= self.burst
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = i64::try_from(now.duration_since(self.filled).as_micros()).unwrap_or(i64::MAX);
        // If the elapsed time refills less than one byte, the next call includes this time.
        let filled = elapsed.saturating_mul(self.rate) / MICROSECONDS;
        if filled > 0 {
            self.left = self.left.saturating_add(filled).min(self.burst);
            self.filled = now;
        }
    }
}

type SharedRate = Arc<Mutex<ByteRate>>;

/// Rate limits of all namespaces. All connections to the agents in a namespace share one limit. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct NamespaceRates(Arc<Mutex<HashMap<String, SharedRate>>>);

impl NamespaceRates {
    /// Limits the rate of a connection to an agent in this namespace.
    pub fn limit(&self, namespace: &str, stream: TcpStream) -> LimitedStream {
        let rate = self.rate(namespace, Instant::now());
        let (reader, writer) = stream.into_split();
        tokio::io::join(LimitedReader { reader, rate, pause: None, uninterrupted: 0 }, writer)
    }

    fn rate(&self, namespace: &str, now: Instant) -> SharedRate {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = rates.get(namespace) {
            return rate.clone();
        }
        // Removes full buckets without a connection, because a full bucket equals a new bucket.
        let is_full = |rate: &SharedRate| rate.lock().unwrap_or_else(PoisonError::into_inner).is_full(now);
        rates.retain(|_, rate| Arc::strong_count(rate) > 1 || !is_full(rate));
        let new = || Arc::new(Mutex::new(ByteRate::new(NAMESPACE_RATE, NAMESPACE_BURST, now)));
        rates.entry(namespace.to_owned()).or_insert_with(new).clone()
    }
}

/// Connection with a rate limit for reads. The limit applies below the TLS layer, so the limit also covers empty TLS
/// records and HTTP/2 frames without content.
pub(super) type LimitedStream = Join<LimitedReader, OwnedWriteHalf>;

/// Read half of a connection.
#[derive(Debug)]
pub(super) struct LimitedReader {
    reader: OwnedReadHalf,
    rate: SharedRate,
    pause: Option<Pin<Box<Sleep>>>,
    /// Number of bytes that this connection has read since it last yielded to other tasks.
    uninterrupted: usize,
}

impl LimitedReader {
    fn poll_permitted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            (self.pause, self.uninterrupted) = (None, 0);
        }
        if self.uninterrupted >= MAX_UNINTERRUPTED {
            self.uninterrupted = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn record(&mut self, bytes: usize) {
        self.uninterrupted += bytes;
        let pause = self.rate.lock().unwrap_or_else(PoisonError::into_inner).spend(bytes, Instant::now());
        self.pause = (!pause.is_zero()).then(|| Box::pin(sleep(pause)));
    }
}

impl AsyncRead for LimitedReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_permitted(context));
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.reader).poll_read(context, buffer);
        match &read {
            Poll::Ready(_) => self.record(buffer.filled().len() - before),
            Poll::Pending => self.uninterrupted = 0,
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deficit_delays_the_next_read() {
        let begin = Instant::now();
        let mut rate = ByteRate::new(1000, 2000, begin);
        assert_eq!(rate.spend(2000, begin), Duration::ZERO);
        assert_eq!(rate.spend(10, begin), Duration::ZERO, "a short pause accumulates");
        assert_eq!(rate.spend(990, begin), Duration::from_secs(1));
        let later = begin + Duration::from_secs(1);
        assert_eq!(rate.spend(100, later), Duration::from_millis(100));
        assert!(!rate.is_full(later) && rate.is_full(later + Duration::from_secs(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_a_namespace_share_a_limit_that_outlives_them() {
        let (rates, now) = (NamespaceRates::default(), Instant::now());
        let burst = usize::try_from(NAMESPACE_BURST).unwrap();
        rates.rate("a", now).lock().unwrap().spend(2 * burst, now);
        assert!(rates.rate("a", now).lock().unwrap().spend(1, now) > Duration::from_secs(7));
        assert!(rates.rate("b", now).lock().unwrap().spend(1, now).is_zero());
        let later = now + Duration::from_secs(60);
        rates.rate("c", later);
        assert_eq!(rates.0.lock().unwrap().len(), 1, "unused limits are removed after they are full");
    }

    #[tokio::test]
    async fn an_endless_stream_is_read_at_the_limited_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sender = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let zeros = vec![0; 64 * 1024];
            while stream.write_all(&zeros).await.is_ok() {}
        });
        let rates = NamespaceRates::default();
        let mut stream = rates.limit("a", TcpStream::connect(address).await.unwrap());
        let mut buffer = vec![0; 64 * 1024];
        let mut read = 0;
        let _ = tokio::time::timeout(Duration::from_millis(1500), async {
            loop {
                read += stream.read(&mut buffer).await.unwrap();
            }
        })
        .await;
        let burst = usize::try_from(NAMESPACE_BURST).unwrap();
        let most = burst + 3 * usize::try_from(NAMESPACE_RATE).unwrap();
        assert!((burst..most).contains(&read), "read {read} bytes");
        sender.abort();
    }
}
