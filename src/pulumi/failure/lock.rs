//! Stack locks in DIY backends. The agent may remove a lock only if the stack has no other lock and the process that
//! created the lock has provably exited.

use jiff::Timestamp;

/// Maximum number of locks that a message lists.
const MAX_LISTED_LOCKS: usize = 5;

/// A stack lock in a DIY backend (bucket, database or file system). The CLI reports locks in an error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// URL of the lock in the backend.
    pub url: String,
    pub user: String,
    pub host: String,
    pub pid: u32,
    /// Creation time in RFC 3339 format.
    pub time: String,
}

/// A CLI process that has provably exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitedProcess {
    /// Host name of the process, which the process also writes to its locks. Empty if other processes can have the same
    /// host name, for example in a pod with `hostNetwork`.
    pub host: String,
    pub pid: u32,
    /// Start of the run, in milliseconds since 1970.
    pub started: i64,
    /// A time after the process exited, in milliseconds since 1970.
    pub ended: i64,
    /// Pulumi Cloud URL of the update that the process ran, if known.
    pub permalink: Option<String>,
}

/// Parses the locks in a CLI error. Each lock has a line of the form `<url>: created by USER@HOST (pid P) at TIME`.
pub fn parse_locks(text: &str) -> Vec<Lock> {
    text.lines().filter_map(parse_lock).collect()
}

fn parse_lock(line: &str) -> Option<Lock> {
    let (rest, time) = line.trim().rsplit_once(" at ")?;
    let (rest, pid) = rest.strip_suffix(')')?.rsplit_once(" (pid ")?;
    let (url, holder) = rest.split_once(": created by ")?;
    let (user, host) = holder.rsplit_once('@')?;
    Some(Lock {
        url: url.to_owned(),
        user: user.to_owned(),
        host: host.to_owned(),
        pid: pid.parse().ok()?,
        time: time.to_owned(),
    })
}

/// Returns the lock that blocked a CLI call, if the CLI reports exactly one lock with details. Returns `None` for an
/// update in progress in Pulumi Cloud, because Pulumi Cloud does not report details.
pub fn only_lock(stderr: &str) -> Option<Lock> {
    let mut locks = parse_locks(stderr);
    let lock = locks.pop()?;
    (locks.is_empty() && reported_lock_count(stderr) == Some(1)).then_some(lock)
}

/// Returns the number of locks that the CLI reports.
fn reported_lock_count(stderr: &str) -> Option<u32> {
    let (_, rest) = stderr.split_once("the stack is currently locked by ")?;
    rest.split_once(" lock(s)")?.0.parse().ok()
}

/// Returns whether the CLI reports that it could not delete its lock. The report does not change the exit code.
pub fn remains(stderr: &str) -> bool {
    stderr.contains("there was a problem deleting the lock")
}

/// Returns the exited process that provably created the lock. The lock's host and process ID must be those of the
/// process, and the lock's creation time must be within the lifetime of the process.
pub fn exited_holder<'a>(lock: &Lock, exited: &'a [ExitedProcess]) -> Option<&'a ExitedProcess> {
    let time = lock.time.parse::<Timestamp>().ok()?.as_millisecond();
    exited.iter().find(|process| {
        // The CLI rounds the lock's creation time down to whole seconds.
        let earliest = process.started - process.started.rem_euclid(1000);
        !process.host.is_empty()
            && (lock.host.as_str(), lock.pid) == (process.host.as_str(), process.pid)
            && (earliest..=process.ended).contains(&time)
    })
}

/// Returns the message for a locked stack.
pub(super) fn lock_message(holders: &[Lock]) -> String {
    let mut named: Vec<_> = holders
        .iter()
        .take(MAX_LISTED_LOCKS)
        .map(|lock| format!("{}@{} (pid {}) since {}", lock.user, lock.host, lock.pid, lock.time))
        .collect();
    if holders.len() > MAX_LISTED_LOCKS {
        named.push(format!("{} more", holders.len() - MAX_LISTED_LOCKS));
    }
    format!(
        "the stack is locked by {}; if no process holds the lock anymore, remove it with `pulumi cancel`",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests;
