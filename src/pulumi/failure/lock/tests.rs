use proptest::prelude::*;

use super::*;

#[test]
fn every_lock_in_the_error_is_parsed() {
    let text = "two locks\n  file:///state/a.json?no_tmp_dir=true: created by a b@x.org@host (pid 1) at 2026-01-01T00:00:00Z\n  \
                gs://b/c.json: created by r@h (pid 2) at 2026-01-01T00:00:00+02:00\n  gs://b: created by r@h (pid x) at y\n";
    let locks = parse_locks(text);
    assert_eq!(locks.len(), 2);
    assert_eq!((locks[0].user.as_str(), locks[0].host.as_str(), locks[0].pid), ("a b@x.org", "host", 1));
    assert_eq!(locks[1].time, "2026-01-01T00:00:00+02:00");
}

/// The CLI inserts the lock's path before the query of the backend URL.
#[test]
fn the_lock_of_each_backend_is_parsed() {
    let path = ".pulumi/locks/organization/web/production/0f9e.json";
    let urls = [
        format!("s3://state/{path}?endpoint=http://s3.test:7070&region=us-east-1&s3ForcePathStyle=true"),
        format!("azblob://state/{path}?storage_account=acme&domain=azurite.test:10000&protocol=http&localemu=true"),
        format!("gs://state/{path}"),
        format!("postgres://****:****@db.test:5432/state/{path}?sslmode=disable"),
        format!("file:///state/{path}?no_tmp_dir=true"),
    ];
    for url in urls {
        let text = format!(
            "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the \
             lock file with `pulumi cancel`.\n  {url}: created by pulumi@web-workspace-0 (pid 42) at 2026-11-21T10:02:00Z\n"
        );
        let lock = only_lock(&text).expect("the only lock");
        assert_eq!((lock.url, lock.host, lock.pid), (url, "web-workspace-0".to_owned(), 42));
    }
}

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
fn a_lock_belongs_to_an_exited_process_only_if_every_field_matches() {
    let exited = |host: &str, pid, started, ended| ExitedProcess {
        host: host.into(),
        pid,
        started: millisecond(started),
        ended: millisecond(ended),
        permalink: None,
    };
    let ours = exited("web-0", 42, "2026-11-21T10:00:00.700Z", "2026-11-21T10:05:00.200Z");
    let earlier = exited("web-0", 41, "2026-11-21T09:00:00Z", "2026-11-21T09:05:00Z");
    let (during, host) = ("2026-11-21T10:02:00Z", "web-0");
    let table = [
        (error(1, &[(host, 42, during)]), true),
        // A lock from the run's first second, a lock from the run's last second, and a lock whose time has another time
        // zone.
        (error(1, &[(host, 42, "2026-11-21T10:00:00Z")]), true),
        (error(1, &[(host, 42, "2026-11-21T10:05:00Z")]), true),
        (error(1, &[(host, 42, "2026-11-21T11:02:00+01:00")]), true),
        (error(1, &[(host, 42, "2026-11-21T09:59:59Z")]), false),
        (error(1, &[(host, 42, "2026-11-21T10:05:01Z")]), false),
        (error(1, &[(host, 42, "yesterday")]), false),
        (error(1, &[("web-1", 42, during)]), false),
        (error(1, &[("WEB-0", 42, during)]), false),
        (error(1, &[(host, 43, during)]), false),
        // A lock with an earlier run's process ID, created during this run.
        (error(1, &[(host, 41, during)]), false),
        // Several locks, with equal or different holders. The number of listed locks can differ from the number that
        // the CLI reports.
        (error(2, &[(host, 42, during), (host, 42, during)]), false),
        (error(2, &[(host, 42, during), ("laptop", 7, during)]), false),
        (error(2, &[(host, 42, during)]), false),
        (error(1, &[(host, 42, during), ("laptop", 7, during)]), false),
        (error(1, &[]), false),
        ("error: [409] Conflict: Another update is currently in progress.\n".to_owned(), false),
        (format!("  s3://a.json: created by pulumi@{host} (pid 42) at {during}\n"), false),
    ];
    let known = [earlier, ours.clone()];
    for (stderr, is_ours) in table {
        let lock = only_lock(&stderr);
        let holder = lock.as_ref().and_then(|lock| exited_holder(lock, &known));
        assert_eq!(holder, is_ours.then_some(&ours), "{stderr}");
    }
    let lock = only_lock(&error(1, &[(host, 42, during)])).expect("lock in the message");
    assert_eq!(exited_holder(&lock, &[]), None, "no known process holds the lock");
    let anonymous = ExitedProcess { host: String::new(), ..ours };
    let lock = Lock { host: String::new(), ..lock };
    assert_eq!(exited_holder(&lock, &[anonymous]), None, "an empty host name identifies no process");
}

proptest! {
    #[test]
    fn arbitrary_lock_errors_never_cause_a_panic(stderr in "(the stack is currently locked by | lock\\(s\\)|: created by |@| \\(pid |\\) at |[0-9]|.|\\n){0,30}", started in any::<i64>()) {
        let exited = ExitedProcess { host: "h".into(), pid: 1, started, ended: i64::MAX, permalink: None };
        if let Some(lock) = only_lock(&stderr) {
            let _ = exited_holder(&lock, &[exited]);
        }
    }
}
