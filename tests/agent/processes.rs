//! Helpers that inspect processes and send signals to them.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

/// A CLI process that a user has started in the pod.
pub struct InteractiveSession(pub Child);

impl InteractiveSession {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for InteractiveSession {
    fn drop(&mut self) {
        // If a wrapper started the process, `kill` terminates only the wrapper. The process then exits because its
        // stdin is closed.
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process that the test has started.
pub fn signal(pid: u32, name: &str) {
    Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Returns the parent process ID and the state of each process.
pub fn processes() -> BTreeMap<u32, (u32, char)> {
    let mut processes = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let Some(pid) = entry.unwrap().file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_whitespace();
        let state = fields.next().and_then(|state| state.chars().next()).unwrap();
        processes.insert(pid, (fields.next().unwrap().parse().unwrap(), state));
    }
    processes
}

pub fn children(parent: u32) -> Vec<u32> {
    processes().into_iter().filter(|(_, (of, _))| *of == parent).map(|(pid, _)| pid).collect()
}

/// Returns all descendants of a process.
pub fn descendants(parent: u32) -> Vec<u32> {
    children(parent).into_iter().flat_map(|child| [descendants(child), vec![child]].concat()).collect()
}
