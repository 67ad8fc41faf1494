//! Keeps the memory of this process to itself: it holds keys and credentials.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// No core dump is written of this process and of what it starts, and no other process of the same user reads its memory. A program
/// that this process starts may be read by such a process again.
pub fn disable() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // A handler of core dumps that is a program is not bound by the limit.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn the_process_leaves_no_core_dump_and_still_reads_about_itself() {
        disable().unwrap();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        for path in ["/proc/self/stat", "/proc/self/limits", "/proc/self/cgroup", "/proc/self/maps"] {
            std::fs::read(path).unwrap();
        }
        assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 0);
        std::process::Command::new("/proc/self/exe").arg("--help").output().unwrap();
    }
}
