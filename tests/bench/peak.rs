//! Measures the duration and the peak memory of a command, including its child processes.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval between two samples. The interval is much shorter than the command's duration, and much longer than the
/// duration of one sample.
const PAUSE: Duration = Duration::from_millis(4);
const TIMEOUT: Duration = Duration::from_secs(300);

/// Resource usage. Memory is in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub seconds: f64,
    /// Peak of the total anonymous memory of all processes.
    pub anonymous: f64,
    /// Peak memory of the largest process, including mapped files.
    pub largest: f64,
}

impl Usage {
    /// Combines the usage of two consecutive commands.
    pub fn then(self, next: Usage) -> Usage {
        Usage {
            seconds: self.seconds + next.seconds,
            anonymous: self.anonymous.max(next.anonymous),
            largest: self.largest.max(next.largest),
        }
    }

    fn sample(&mut self, process: u32) {
        let seen: Vec<BTreeMap<String, f64>> = with_children(process).into_iter().map(memory).collect();
        let of = |field: &'static str| seen.iter().filter_map(move |memory| memory.get(field).copied());
        self.anonymous = self.anonymous.max(of("RssAnon").sum());
        self.largest = of("VmHWM").fold(self.largest, f64::max);
    }
}

/// Runs a command that must succeed, and blocks until the command exits.
pub fn run(command: &mut Command) -> Usage {
    let began = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?} failed to start: {error}"));
    let mut usage = Usage::default();
    loop {
        usage.sample(child.id());
        if let Some(status) = child.try_wait().expect("the process can be awaited") {
            assert!(status.success(), "{command:?} ended with {status}");
            usage.seconds = began.elapsed().as_secs_f64();
            return usage;
        }
        if began.elapsed() > TIMEOUT {
            drop(child.kill());
            panic!("{command:?} did not end within {TIMEOUT:?}");
        }
        sleep(PAUSE);
    }
}

/// Returns a process and all its descendants. Ignores processes that have exited.
fn with_children(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|id| id.parse().ok()).flat_map(with_children));
    }
    found
}

/// Returns a process's memory values in MiB. The result is empty if the process has exited.
fn memory(process: u32) -> BTreeMap<String, f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let fields = status.lines().filter_map(|line| {
        let (field, figure) = line.strip_suffix(" kB")?.split_once(':')?;
        Some((field.to_owned(), figure.trim().parse::<f64>().ok()? / 1024.0))
    });
    fields.collect()
}
