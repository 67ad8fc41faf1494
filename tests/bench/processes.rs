//! Reads the memory and CPU time of pod processes from `/proc` on the machine that runs the node.

use std::fs;

const CLOCK_TICKS: f64 = 100.0;

/// A process in a pod.
#[derive(Clone, Copy, Debug)]
pub struct Process(u32);

impl Process {
    /// Returns the processes of the controller binary in a pod that have this role (`manager` or `agent`).
    pub fn in_pod(pod_uid: &str, role: &str) -> Vec<Process> {
        let all = fs::read_dir("/proc").expect("/proc can be listed").flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.map(Process).filter(|process| process.has_role(pod_uid, role)).collect()
    }

    fn has_role(self, pod_uid: &str, role: &str) -> bool {
        let text = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", self.0)).unwrap_or_default();
        let command = text("cmdline");
        let mut words = command.split('\0');
        words.next().is_some_and(|program| program.ends_with("pulumi-controller"))
            && words.next() == Some(role)
            && text("cgroup").contains(pod_uid)
    }

    /// Returns the anonymous resident memory in MiB.
    pub fn rss_anon(self) -> f64 {
        self.memory("RssAnon:")
    }

    /// Returns the resident memory in MiB, including mapped files.
    pub fn rss(self) -> f64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak resident memory in MiB.
    pub fn peak(self) -> f64 {
        self.memory("VmHWM:")
    }

    fn memory(self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a line of the status");
        let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kilobytes");
        kibibytes / 1024.0
    }

    /// Returns the total CPU time of the process in seconds.
    pub fn cpu_time(self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).expect("the process runs");
        let (_, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = |i: usize| fields[i].parse::<f64>().expect("a number of ticks");
        (ticks(11) + ticks(12)) / CLOCK_TICKS
    }
}
