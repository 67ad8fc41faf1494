//! Runs each case in a process of its own, so that no case depends on others and a case that crashes or hangs ends alone.
#![allow(unsafe_code, reason = "calls fork and waitpid")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Real time after which a case is killed, in seconds.
const LIMIT: u32 = 120;

/// Stack size of a case in bytes. Futures in builds without optimization are large.
const STACK: usize = 64 << 20;

/// Messages of all panics in this process, also of those in tasks.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs the cases in as many processes as there are CPUs. Calls `done` with each case and its result, or with the
/// messages of its panics.
pub fn run_each<C: Sync, R: Serialize + DeserializeOwned + Send>(
    cases: impl IntoIterator<Item = C>,
    run: impl Fn(&C) -> R + Sync,
    mut done: impl FnMut(C, Result<R, String>),
) {
    let results = tempfile::tempdir().expect("a temporary directory");
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cases = cases.into_iter().enumerate();
    let mut running: BTreeMap<libc::pid_t, (C, PathBuf)> = BTreeMap::new();
    loop {
        while running.len() < most {
            let Some((number, case)) = cases.next() else { break };
            let path = results.path().join(number.to_string());
            let pid = start(&case, &run, &path);
            running.insert(pid, (case, path));
        }
        if running.is_empty() {
            return;
        }
        let (pid, status) = wait();
        let Some((case, path)) = running.remove(&pid) else { continue };
        done(case, result(&path, status));
        let _ = std::fs::remove_file(&path);
    }
}

fn start<C: Sync, R: Serialize + Send>(case: &C, run: impl Fn(&C) -> R + Sync, path: &Path) -> libc::pid_t {
    // SAFETY: this process has only one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed: {}", std::io::Error::last_os_error());
    if pid > 0 {
        return pid;
    }
    // SAFETY: the function has no preconditions.
    unsafe { libc::alarm(LIMIT) };
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("a panic").to_owned();
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{text} ({place})"));
    }));
    // A new thread, because the standard library seeds the hash tables of a thread once, and in this thread the parent may
    // have done so.
    let result = std::thread::scope(|scope| {
        let running = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || run(case));
        running.expect("a thread").join()
    });
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    let result = if panics.is_empty() { result.map_err(|_| panics) } else { Err(panics) };
    let written = serde_json::to_vec(&result).map(|bytes| std::fs::write(path, bytes));
    // SAFETY: ends the process without destructors, which belong to the parent.
    unsafe { libc::_exit(i32::from(!matches!(written, Ok(Ok(()))))) }
}

fn wait() -> (libc::pid_t, libc::c_int) {
    let mut status = 0;
    // SAFETY: `status` is valid.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    assert!(pid > 0, "waitpid failed: {}", std::io::Error::last_os_error());
    (pid, status)
}

fn result<R: DeserializeOwned>(path: &Path, status: libc::c_int) -> Result<R, String> {
    if libc::WIFSIGNALED(status) {
        return match libc::WTERMSIG(status) {
            libc::SIGALRM => Err(format!("the world has not ended after {LIMIT} s of real time")),
            signal => Err(format!("the process ended with signal {signal}")),
        };
    }
    let bytes = std::fs::read(path).map_err(|error| format!("the process wrote no result: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("the result is invalid: {error}"))?
}
