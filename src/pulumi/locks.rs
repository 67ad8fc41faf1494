//! Ownership of locks. A lock may be removed only if it is the stack's only lock and provably belongs to a run whose process is
//! dead.

use jiff::Timestamp;

use super::failure::{self, Lock};

/// A CLI process that is known to be dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadProcess {
    /// Host name, as recorded in locks.
    pub host: String,
    pub pid: u32,
    /// Start of the run, in milliseconds since 1970.
    pub started: i64,
    /// Latest time at which the process can have been alive, in milliseconds since 1970.
    pub ended: i64,
}

/// Returns the lock that blocks a call if the CLI counts exactly one and names it. Returns `None` if there are several locks or
/// an unnamed one; Pulumi Cloud names none.
pub fn only_lock(stderr: &str) -> Option<Lock> {
    let mut locks = failure::parse_locks(stderr);
    let lock = locks.pop()?;
    (locks.is_empty() && announced(stderr) == Some(1)).then_some(lock)
}

/// Returns the number of locks that the CLI reports.
fn announced(stderr: &str) -> Option<u32> {
    let (_, rest) = stderr.split_once("the stack is currently locked by ")?;
    rest.split_once(" lock(s)")?.0.parse().ok()
}

/// Returns the dead process that provably created the lock: host and PID match, and the lock's time is within the lifetime of
/// the process.
pub fn dead_holder<'a>(lock: &Lock, dead: &'a [DeadProcess]) -> Option<&'a DeadProcess> {
    let time = lock.time.parse::<Timestamp>().ok()?.as_millisecond();
    dead.iter().find(|process| {
        // The time of the lock is rounded down to whole seconds.
        let earliest = process.started - process.started.rem_euclid(1000);
        lock.host == process.host && lock.pid == process.pid && (earliest..=process.ended).contains(&time)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(count: u32, locks: &[(&str, u32, &str)]) -> String {
        let mut text = format!(
            "error: the stack is currently locked by {count} lock(s). Either wait for the other process(es) to end or delete \
             the lock file with `pulumi cancel`.\n"
        );
        for (host, pid, time) in locks {
            text.push_str(&format!("  s3://state/{pid}.json: created by pulumi@{host} (pid {pid}) at {time}\n"));
        }
        text
    }

    fn millisecond(time: &str) -> i64 {
        time.parse::<Timestamp>().expect("a time").as_millisecond()
    }

    #[test]
    fn a_lock_belongs_to_a_dead_run_only_if_every_field_matches() {
        let dead = |host: &str, pid, started, ended| DeadProcess {
            host: host.into(),
            pid,
            started: millisecond(started),
            ended: millisecond(ended),
        };
        let ours = dead("web-0", 42, "2026-11-21T10:00:00.700Z", "2026-11-21T10:05:00.200Z");
        let earlier = dead("web-0", 41, "2026-11-21T09:00:00Z", "2026-11-21T09:05:00Z");
        let (during, host) = ("2026-11-21T10:02:00Z", "web-0");
        let table = [
            (error(1, &[(host, 42, during)]), true),
            // First and last second, and another time zone.
            (error(1, &[(host, 42, "2026-11-21T10:00:00Z")]), true),
            (error(1, &[(host, 42, "2026-11-21T10:05:00Z")]), true),
            (error(1, &[(host, 42, "2026-11-21T11:02:00+01:00")]), true),
            (error(1, &[(host, 42, "2026-11-21T09:59:59Z")]), false),
            (error(1, &[(host, 42, "2026-11-21T10:05:01Z")]), false),
            (error(1, &[(host, 42, "yesterday")]), false),
            (error(1, &[("web-1", 42, during)]), false),
            (error(1, &[("WEB-0", 42, during)]), false),
            (error(1, &[(host, 43, during)]), false),
            // PID of another run at the time of this run.
            (error(1, &[(host, 41, during)]), false),
            // Several locks, with any owner, and locks that are not named.
            (error(2, &[(host, 42, during), (host, 42, during)]), false),
            (error(2, &[(host, 42, during), ("laptop", 7, during)]), false),
            (error(2, &[(host, 42, during)]), false),
            (error(1, &[(host, 42, during), ("laptop", 7, during)]), false),
            (error(1, &[]), false),
            ("error: [409] Conflict: Another update is currently in progress.\n".to_owned(), false),
            (format!("  s3://a.json: created by pulumi@{host} (pid 42) at {during}\n"), false),
        ];
        let known = [earlier, ours.clone()];
        for (stderr, is_dead) in table {
            let lock = only_lock(&stderr);
            let holder = lock.as_ref().and_then(|lock| dead_holder(lock, &known));
            assert_eq!(holder, is_dead.then_some(&ours), "{stderr}");
        }
        let lock = only_lock(&error(1, &[(host, 42, during)])).expect("there is one");
        assert_eq!(dead_holder(&lock, &[]), None, "without a proof no lock is a dead run's");
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(stderr in "(the stack is currently locked by | lock\\(s\\)|: created by |@| \\(pid |\\) at |[0-9]|.|\\n){0,30}", started in any::<i64>()) {
            let dead = DeadProcess { host: String::new(), pid: 1, started, ended: i64::MAX };
            if let Some(lock) = only_lock(&stderr) {
                let _ = dead_holder(&lock, &[dead]);
            }
        }
    }
}
