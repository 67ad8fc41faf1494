//! Leadership of this process: whether it may write. [`Writer`](super::writes::Writer) checks it before each request.

use tokio::sync::watch;
use tokio::time::Instant;

/// Leadership of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Time until which this process may write, if at all. There is no channel without leader election.
    until: Option<watch::Receiver<Option<Instant>>>,
}

impl Leadership {
    /// Returns the leadership of a process without leader election, which may always write.
    pub fn sole() -> Self {
        Leadership { until: None }
    }

    /// Returns the leadership of a candidate, and a channel for the time until which it may write. Initially it may not write.
    pub fn elected() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, until) = watch::channel(None);
        (sender, Leadership { until: Some(until) })
    }

    /// Whether this process may write. This depends on the clock instead of a task: a process that was suspended may resume at
    /// any point, and its first check must already fail.
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
    async fn leadership_expires_without_an_explicit_signal() {
        let (until, leadership) = Leadership::elected();
        assert!(!leadership.is_held(), "no leadership before the election");
        until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
        assert!(leadership.is_held());
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!leadership.is_held(), "the deadline suffices");
        until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
        assert!(leadership.is_held());
        until.send_replace(None);
        assert!(!leadership.is_held());
        assert!(Leadership::sole().is_held());
    }
}
