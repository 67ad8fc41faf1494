//! What a command needs: its time, and the most memory of it and of all that it starts.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Short beside what is measured, long beside the look itself.
const PAUSE: Duration = Duration::from_millis(4);
const LIMIT: Duration = Duration::from_secs(300);

/// What it needed. Memory is in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub seconds: f64,
    /// What no file can give back, of all processes together; the most that was seen.
    pub anonymous: f64,
    /// Memory of all kinds, mapped files too, of the largest process.
    pub largest: f64,
}

impl Usage {
    /// One command after the other.
    pub fn then(self, next: Usage) -> Usage {
        Usage {
            seconds: self.seconds + next.seconds,
            anonymous: self.anonymous.max(next.anonymous),
            largest: self.largest.max(next.largest),
        }
    }

    fn see(&mut self, process: u32) {
        let seen: Vec<BTreeMap<String, f64>> = with_children(process).into_iter().map(memory).collect();
        let of = |field: &'static str| seen.iter().filter_map(move |memory| memory.get(field).copied());
        self.anonymous = self.anonymous.max(of("RssAnon").sum());
        self.largest = of("VmHWM").fold(self.largest, f64::max);
    }
}

/// Runs a command, which has to succeed. It blocks.
pub fn run(command: &mut Command) -> Usage {
    let began = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let mut usage = Usage::default();
    loop {
        usage.see(child.id());
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            assert!(status.success(), "{command:?} ended with {status}");
            usage.seconds = began.elapsed().as_secs_f64();
            return usage;
        }
        if began.elapsed() > LIMIT {
            drop(child.kill());
            panic!("{command:?} did not end in {LIMIT:?}");
        }
        sleep(PAUSE);
    }
}

/// A process and all that it has started. One that has ended meanwhile has none.
fn with_children(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|id| id.parse().ok()).flat_map(with_children));
    }
    found
}

/// The figures of a process that are in kilobytes, in MiB. One that has ended has none.
fn memory(process: u32) -> BTreeMap<String, f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let figures = status.lines().filter_map(|line| {
        let (field, figure) = line.strip_suffix(" kB")?.split_once(':')?;
        Some((field.to_owned(), figure.trim().parse::<f64>().ok()? / 1024.0))
    });
    figures.collect()
}
