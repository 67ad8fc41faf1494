//! Protects the memory of this process, which holds keys and credentials.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Disables core dumps of this process and its children, and prevents other processes of the same user from reading its memory.
/// The latter does not cover child processes: the kernel resets that flag when they execute a program.
pub fn disable() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // The limit does not apply if the core dump handler of the kernel is a program.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn core_dumps_are_disabled_and_proc_self_stays_readable() {
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
