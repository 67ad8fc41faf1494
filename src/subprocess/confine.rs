//! The child's side: applies its limits before it reads any input.

use std::io::{self, BufRead, BufReader, Read};

use rustix::process::{DumpableBehavior, Resource, Rlimit, nice, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;

use super::limits::Limits;

/// Maximum size of the header in bytes.
const MAX_HEADER: u64 = 4 * 1024;
/// OOM score adjustment with which the kernel kills this process first, and so before the parent.
const FIRST_TO_BE_KILLED: &str = "1000";

/// Applies the limits that the parent has sent, and returns the input that follows them. Call this function first,
/// while the process has one thread.
///
/// # Errors
///
/// Returns an error if the header is missing or a limit cannot be set.
pub fn confined_input() -> io::Result<impl Read> {
    let mut stdin = BufReader::new(io::stdin());
    let mut header = Vec::new();
    stdin.by_ref().take(MAX_HEADER).read_until(b'\n', &mut header)?;
    let limits = Limits::parse(&header).map_err(|error| {
        io::Error::other(format!("failed to read the limits: {error}; only the controller starts this role"))
    })?;
    apply(&limits)?;
    Ok(stdin)
}

fn apply(limits: &Limits) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", FIRST_TO_BE_KILLED)?;
    set_no_new_privs(true)?;
    // No debugger can attach, and there is no core dump: the memory can contain credentials.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    nice(i32::from(limits.nice))?;
    set(Resource::Stack, limits.stack)?;
    set(Resource::Data, limits.memory)?;
    set(Resource::As, limits.address_space)?;
    // One second later, the kernel kills a process that ignores SIGXCPU.
    let cpu = limits.cpu.as_secs();
    setrlimit(Resource::Cpu, Rlimit { current: Some(cpu), maximum: Some(cpu + 1) })?;
    set(Resource::Fsize, limits.file_size)?;
    set(Resource::Core, 0)?;
    set(Resource::Nofile, limits.open_files)?;
    if !limits.threads {
        set(Resource::Nproc, 0)?;
    }
    Ok(())
}

fn set(resource: Resource, limit: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?)
}
