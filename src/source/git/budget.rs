//! Limits how long a connection to a server lasts, how long it is idle, and how much data the server sends. Records the
//! first error on the connection, because the protocol library returns errors only as strings.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::source::git::error::GitError;

/// Timeout for each read from a server.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The minimum data rate of a server, as a number of bytes per time window. The first window starts when the first byte
/// arrives. Without a minimum data rate, a server that sends single bytes could occupy a slot until the connection
/// times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinRate {
    pub bytes: u64,
    pub window: Duration,
}

/// The conditions for a connection: its time limit, minimum data rate and allowed addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub time: Duration,
    pub min_rate: MinRate,
    /// Whether the server may have a loopback or link-local address.
    pub local_addresses: bool,
}

/// The limits for one connection, and the amount of data that the server may still send.
#[derive(Debug)]
pub struct Budget {
    runtime: Runtime,
    what: &'static str,
    terms: Terms,
    deadline: Instant,
    allowance: Mutex<Allowance>,
    window: Mutex<Option<Window>>,
    /// The first error on the connection, which causes all later errors.
    failure: Mutex<Option<GitError>>,
    /// Flag that the budget sets after an error to stop long computations.
    pub interrupt: AtomicBool,
}

/// The number of bytes received since the start of the time window.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    bytes: u64,
}

/// The size limit for the data that the server currently sends.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    what: &'static str,
    limit: u64,
    left: u64,
}

impl Budget {
    /// Creates the budget of a connection. In error messages, `what` describes the purpose of the connection.
    ///
    /// # Errors
    /// Fails if the async runtime cannot start.
    pub fn new(what: &'static str, terms: Terms) -> Result<Self, GitError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let failed = |error: io::Error| GitError::Protocol(format!("failed to start the async runtime: {error}"));
        Ok(Self {
            runtime: runtime.map_err(failed)?,
            what,
            terms,
            deadline: Instant::now() + terms.time,
            allowance: Mutex::default(),
            window: Mutex::default(),
            failure: Mutex::default(),
            interrupt: AtomicBool::new(false),
        })
    }

    /// Sets the description (`what`) and the maximum size (`limit`) of the data that the server sends next.
    pub fn allow(&self, what: &'static str, limit: u64) {
        *self.allowance.lock().unwrap_or_else(PoisonError::into_inner) = Allowance { what, limit, left: limit };
    }

    /// Counts received bytes. Fails if the server exceeds the size limit or sends data too slowly.
    pub fn spend(&self, count: usize) -> io::Result<()> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.check_rate(count, Instant::now())?;
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        match allowance.left.checked_sub(count) {
            Some(left) => {
                allowance.left = left;
                Ok(())
            }
            None => Err(self.fail(GitError::TooLarge { what: allowance.what.into(), limit: allowance.limit })),
        }
    }

    /// Fails if the server's data rate is below the minimum.
    fn check_rate(&self, count: u64, now: Instant) -> io::Result<()> {
        let MinRate { bytes, window } = self.terms.min_rate;
        let mut open = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let current = open.get_or_insert(Window { began: now, bytes: 0 });
        current.bytes = current.bytes.saturating_add(count);
        if now.saturating_duration_since(current.began) < window {
            return Ok(());
        }
        if current.bytes < bytes {
            return Err(self.fail(GitError::TooSlow { bytes, window }));
        }
        *open = Some(Window { began: now, bytes: 0 });
        Ok(())
    }

    /// Waits for `work`. Fails after `READ_TIMEOUT`, or when the connection reaches its time limit.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let timeout = left.min(READ_TIMEOUT);
        let waited = self.runtime.block_on(async { tokio::time::timeout(timeout, work).await });
        waited.map_err(|_| {
            let (what, limit) = if left <= READ_TIMEOUT {
                (self.what, self.terms.time)
            } else {
                ("waiting for data from the server", READ_TIMEOUT)
            };
            self.fail(GitError::TimedOut { what: what.into(), limit })
        })
    }

    /// Records an error, and returns an [`io::Error`] with the same message for the protocol library.
    pub fn fail(&self, error: GitError) -> io::Error {
        self.interrupt.store(true, Ordering::Relaxed);
        let text = error.to_string();
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            *failure = Some(error);
        }
        io::Error::other(text)
    }

    /// Returns the recorded error, or the protocol library's error if no error is recorded.
    pub fn reason(&self, error: &dyn std::fmt::Display) -> GitError {
        let recorded = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        recorded.unwrap_or_else(|| GitError::Protocol(one_line(&error.to_string())))
    }
}

/// Maximum number of characters that a message quotes from an external string.
const MAX_QUOTED: usize = 300;

/// Converts an external string to a single line for a message. Removes control characters and limits the length of the
/// string.
pub fn one_line(text: &str) -> String {
    let clean: Vec<&str> =
        text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let clean = clean.join(" ");
    if clean.chars().count() <= MAX_QUOTED {
        clean
    } else {
        clean.chars().take(MAX_QUOTED).chain("…".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn remote_messages_are_shortened_to_one_line() {
        assert_eq!(one_line("ERROR:\n\n\tRepository \u{1b}[31mnot found.\n"), "ERROR: Repository [31mnot found.");
        assert_eq!(one_line(&"x".repeat(999)).chars().count(), MAX_QUOTED + 1);
    }

    fn budget() -> Budget {
        let min_rate = MinRate { bytes: 100, window: Duration::from_secs(10) };
        Budget::new("the test", Terms { time: Duration::from_secs(1), min_rate, local_addresses: true }).unwrap()
    }

    #[test]
    fn a_server_must_keep_the_minimum_rate_after_its_first_byte() {
        let (budget, began) = (budget(), Instant::now());
        let sends = |bytes: u64, second: u64| budget.check_rate(bytes, began + Duration::from_secs(second)).is_ok();
        let rows = [(1, 0, true), (1, 9, true), (98, 10, true), (1, 11, true), (98, 19, true), (0, 20, false)];
        for (bytes, second, expected) in rows {
            assert_eq!(sends(bytes, second), expected, "{bytes} bytes in second {second}");
        }
        assert!(matches!(budget.reason(&""), GitError::TooSlow { bytes: 100, .. }));
    }

    #[test]
    fn a_connection_reports_its_first_error() {
        let budget = budget();
        budget.allow("the list", 10);
        assert!(budget.spend(10).is_ok());
        assert!(budget.spend(1).is_err());
        budget.fail(GitError::Empty);
        assert!(matches!(budget.reason(&"other"), GitError::TooLarge { what: Cow::Borrowed("the list"), limit: 10 }));
        assert!(matches!(budget.reason(&"other"), GitError::Protocol(message) if message == "other"));
    }
}
