//! Whether this process may write. The gate for writes asks before each request.

use tokio::sync::watch;
use tokio::time::Instant;

/// The answer, now. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Until when this process may write, if at all; no channel when it has no rivals.
    until: Option<watch::Receiver<Option<Instant>>>,
}

impl Leadership {
    /// For a process that has no rivals.
    pub fn sole() -> Self {
        Leadership { until: None }
    }

    /// For one that is elected: what is sent is the time until which it may write. At first it may not.
    pub fn elected() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, until) = watch::channel(None);
        (sender, Leadership { until: Some(until) })
    }

    /// Whether this process may write. The clock decides and not a task that has to notice: a process that was stopped
    /// for a while may wake up anywhere, and is too late at its first look.
    pub fn is_held(&self) -> bool {
        match &self.until {
            None => true,
            Some(until) => until.borrow().is_some_and(|until| Instant::now() < until),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_ends_it_by_itself() {
        let (until, leadership) = Leadership::elected();
        assert!(!leadership.is_held(), "nobody leads before the election");
        until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
        assert!(leadership.is_held());
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!leadership.is_held(), "nobody had to say so");
        until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
        assert!(leadership.is_held());
        until.send_replace(None);
        assert!(!leadership.is_held());
        assert!(Leadership::sole().is_held());
    }
}
