//! Counts the processes that the kernel has killed because the container was out of memory. With cgroup v1, and with
//! cgroup v2 without `memory.oom.group`, the kernel can kill a single process of a container. Kubernetes does not
//! report such a kill.

use std::path::Path;

use crate::pulumi::advice::MORE_MEMORY;

/// Path of the container's cgroup.
const CONTROL_GROUP: &str = "/sys/fs/cgroup";
/// Names of the files that contain the number of killed processes and the memory limit, for cgroup v2 and v1.
const FILES: [(&str, &str); 2] =
    [("memory.events", "memory.max"), ("memory/memory.oom_control", "memory/memory.limit_in_bytes")];
const MEBIBYTE: u64 = 1024 * 1024;
/// Minimum value that means "unlimited". For an unlimited container, cgroup v1 returns the largest signed 64-bit
/// number, rounded down to whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// Returns the number of container processes that the kernel has killed because of insufficient memory. Returns 0 if
/// this number is not available.
pub fn kill_count() -> u64 {
    kill_count_in(Path::new(CONTROL_GROUP))
}

/// Describes how many processes the kernel has killed since [`kill_count`] returned `before`, and the container's
/// memory limit. Returns `None` if the kernel has killed no process since then.
pub fn killed_since(before: u64) -> Option<String> {
    describe(Path::new(CONTROL_GROUP), before)
}

fn describe(control_group: &Path, before: u64) -> Option<String> {
    let killed = kill_count_in(control_group).checked_sub(before).filter(|killed| *killed > 0)?;
    let processes = if killed == 1 { "a process was".to_owned() } else { format!("{killed} processes were") };
    let limit = match limit_in(control_group) {
        Some(limit) => format!("the container reached its memory limit of {}", quantity(limit)),
        None => "memory was exhausted".to_owned(),
    };
    Some(format!("OOMKilled: {processes} killed because {limit} ({MORE_MEMORY})"))
}

fn kill_count_in(control_group: &Path) -> u64 {
    let counts = FILES.iter().filter_map(|(counts, _)| std::fs::read_to_string(control_group.join(counts)).ok());
    let count = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("oom_kill ").and_then(|count| count.trim().parse().ok()))
    };
    counts.filter_map(count).next().unwrap_or_default()
}

/// Returns the memory limit in bytes, or `None` if the container has no limit.
fn limit_in(control_group: &Path) -> Option<u64> {
    let limits = FILES.iter().filter_map(|(_, limit)| std::fs::read_to_string(control_group.join(limit)).ok());
    limits.filter_map(|text| text.trim().parse().ok()).find(|limit| *limit < NO_LIMIT)
}

/// Formats bytes as a Kubernetes quantity.
fn quantity(bytes: u64) -> String {
    if bytes.is_multiple_of(MEBIBYTE) { format!("{}Mi", bytes / MEBIBYTE) } else { bytes.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the description for a cgroup that contains these files. The previous number of killed processes is 1.
    fn of(files: &[(&str, &str)]) -> Option<String> {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, content).expect("written");
        }
        describe(directory.path(), 1)
    }

    #[test]
    fn oom_kills_are_reported_with_the_memory_limit_for_cgroup_v1_and_v2() {
        let two =
            |count| ("memory.events", format!("low 0\nhigh 0\nmax 7\noom 3\noom_kill {count}\noom_group_kill 0\n"));
        let one = |count| ("memory/memory.oom_control", format!("oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"));
        let limit = |name, limit: &'static str| (name, limit);
        for ((counts, content), (name, limit), expected) in [
            (
                two(2),
                limit("memory.max", "536870912\n"),
                Some("a process was killed because the container reached its memory limit of 512Mi"),
            ),
            (
                two(4),
                limit("memory.max", "1000\n"),
                Some("3 processes were killed because the container reached its memory limit of 1000"),
            ),
            (two(2), limit("memory.max", "max\n"), Some("a process was killed because memory was exhausted")),
            (
                one(2),
                limit("memory/memory.limit_in_bytes", "1073741824\n"),
                Some("a process was killed because the container reached its memory limit of 1024Mi"),
            ),
            (
                one(2),
                limit("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                Some("a process was killed because memory was exhausted"),
            ),
            (one(1), limit("memory/memory.limit_in_bytes", "1073741824\n"), None),
            (two(1), limit("memory.max", "1000\n"), None),
            (("memory.stat", String::new()), limit("memory.max", "1000\n"), None),
        ] {
            let expected = expected.map(|expected| format!("OOMKilled: {expected} ({MORE_MEMORY})"));
            assert_eq!(of(&[(counts, &content), (name, limit)]), expected, "{content} {limit}");
        }
    }
}
