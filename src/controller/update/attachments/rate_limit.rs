//! Rate limit for the messages of an agent. A faster agent is slowed down by the flow control of the connection.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes per second. The message for one step of the engine has about 300 bytes.
const RATE: i64 = 1024 * 1024;
/// Maximum burst in bytes: all messages of a run with tens of thousands of resources, sent when a controller attaches again.
const BURST: i64 = 16 * 1024 * 1024;
/// Cost of a message in addition to its size, in bytes.
const MESSAGE: i64 = 256;
/// Minimum pause. Shorter pauses accumulate, because timers are not precise enough.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MICROSECONDS: i64 = 1_000_000;

/// Token bucket of bytes. Reading beyond its content creates a debt, which a pause pays off.
#[derive(Debug)]
pub struct RateLimit {
    left: i64,
    filled: Instant,
}

impl RateLimit {
    pub fn new(now: Instant) -> Self {
        RateLimit { left: BURST, filled: now }
    }

    /// Counts a message of this size and returns the pause before the next read.
    pub fn spend(&mut self, bytes: usize, now: Instant) -> Duration {
        let elapsed = i64::try_from(now.duration_since(self.filled).as_micros()).unwrap_or(i64::MAX);
        // The refill of less than one byte is counted on the next call.
        let filled = elapsed.saturating_mul(RATE) / MICROSECONDS;
        if filled > 0 {
            self.left = self.left.saturating_add(filled).min(BURST);
            self.filled = now;
        }
        self.left = self.left.saturating_sub(MESSAGE).saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        let debt = u64::try_from(self.left.saturating_neg()).unwrap_or_default();
        let pause = Duration::from_micros(debt.saturating_mul(MICROSECONDS as u64) / RATE as u64);
        if pause < MIN_PAUSE { Duration::ZERO } else { pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_ordinary_run_is_not_rate_limited() {
        let mut limit = RateLimit::new(Instant::now());
        let replay = (0..20_000).map(|_| limit.spend(300, Instant::now())).max();
        assert_eq!(replay, Some(Duration::ZERO), "a large run that is attached to again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flooding_agent_is_read_at_the_limited_rate() {
        let begin = Instant::now();
        let mut limit = RateLimit::new(begin);
        let mut read = 0;
        while begin.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(limit.spend(100, Instant::now())).await;
            read += 1;
        }
        let most = (BURST + 61 * RATE) / (MESSAGE + 100);
        let read: i64 = read;
        assert!(read <= most && read > most / 2, "{read} messages in a minute; {most} may be");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_larger_than_the_burst_delays_reading_once() {
        let mut limit = RateLimit::new(Instant::now());
        let pause = limit.spend(32 * 1024 * 1024, Instant::now());
        assert_eq!(pause.as_secs(), 16);
        tokio::time::advance(pause).await;
        assert!(limit.spend(300, Instant::now()) < Duration::from_millis(1));
    }
}
