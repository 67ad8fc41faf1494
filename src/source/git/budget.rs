//! What a conversation with a server may cost: time, silence and bytes; and what went wrong in it, in our own words, since the protocol's
//! library hands on no more than texts.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::source::git::error::GitError;

/// How long a server may send nothing.
const SILENCE: Duration = Duration::from_secs(30);

/// The bounds of one conversation.
#[derive(Debug)]
pub struct Budget {
    runtime: Handle,
    what: &'static str,
    limit: Duration,
    ends: Instant,
    allowance: Mutex<Allowance>,
    /// The first failure; later ones follow from it.
    failure: Mutex<Option<GitError>>,
    /// Checked by what works on bytes for long.
    pub interrupt: AtomicBool,
}

/// What the server sends at the moment.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    what: &'static str,
    limit: u64,
    left: u64,
}

impl Budget {
    /// A conversation about this may take so long.
    pub fn new(runtime: Handle, what: &'static str, limit: Duration) -> Self {
        Self {
            runtime,
            what,
            limit,
            ends: Instant::now() + limit,
            allowance: Mutex::default(),
            failure: Mutex::default(),
            interrupt: AtomicBool::new(false),
        }
    }

    /// From here on the server sends this, and no more of it than so many bytes.
    pub fn allow(&self, what: &'static str, limit: u64) {
        *self.allowance.lock().unwrap_or_else(PoisonError::into_inner) = Allowance { what, limit, left: limit };
    }

    /// The server has sent something.
    pub fn spend(&self, count: usize) -> io::Result<()> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        match allowance.left.checked_sub(count) {
            Some(left) => {
                allowance.left = left;
                Ok(())
            }
            None => Err(self.fail(GitError::TooLarge { what: allowance.what, limit: allowance.limit })),
        }
    }

    /// Waits for something, as long as there is time. Never on a thread of the runtime itself.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        let left = self.ends.saturating_duration_since(Instant::now());
        let patience = left.min(SILENCE);
        let waited = self.runtime.block_on(async { tokio::time::timeout(patience, work).await });
        waited.map_err(|_| {
            let (what, limit) =
                if left <= SILENCE { (self.what, self.limit) } else { ("the server's next word", SILENCE) };
            self.fail(GitError::TimedOut { what, limit })
        })
    }

    /// Notes what went wrong; the answer is for the library.
    pub fn fail(&self, error: GitError) -> io::Error {
        self.interrupt.store(true, Ordering::Relaxed);
        let said = error.to_string();
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            *failure = Some(error);
        }
        io::Error::other(said)
    }

    /// What went wrong: what was noted, or what the library says.
    pub fn reason(&self, said: &dyn std::fmt::Display) -> GitError {
        let noted = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        noted.unwrap_or_else(|| GitError::Protocol(one_line(&format!("{said:#}"))))
    }
}

/// The longest text of another's that is shown.
const LONGEST: usize = 300;

/// What others say, made fit to be shown: one line, no control characters, not too long.
pub fn one_line(text: &str) -> String {
    let clean: Vec<&str> =
        text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let clean = clean.join(" ");
    if clean.chars().count() <= LONGEST { clean } else { clean.chars().take(LONGEST).chain("…".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_shown_in_one_short_line() {
        assert_eq!(one_line("ERROR:\n\n\tRepository \u{1b}[31mnot found.\n"), "ERROR: Repository [31mnot found.");
        assert_eq!(one_line(&"x".repeat(999)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn the_first_failure_is_the_reason() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let budget = Budget::new(runtime.handle().clone(), "the test", Duration::from_secs(1));
        budget.allow("the list", 10);
        assert!(budget.spend(10).is_ok());
        assert!(budget.spend(1).is_err());
        budget.fail(GitError::Empty);
        assert!(matches!(budget.reason(&"other"), GitError::TooLarge { what: "the list", limit: 10 }));
        assert!(matches!(budget.reason(&"other"), GitError::Protocol(said) if said == "other"));
    }
}
