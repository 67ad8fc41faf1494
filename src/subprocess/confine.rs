//! The child's side: it takes its limits before it reads anything else.

use std::io::{self, BufRead, BufReader, Read};

use rustix::process::{DumpableBehavior, Resource, Rlimit, nice, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;

use super::limits::Limits;

/// The longest header.
const MAX_HEADER: u64 = 4 * 1024;
/// The kernel kills a process with this score first when memory runs out, and so before the parent.
const FIRST_TO_BE_KILLED: &str = "1000";

/// Applies the limits that the parent has written, and gives the input that comes after them. To be called before anything else, while
/// the process has one thread.
///
/// # Errors
/// There is no header, or a limit cannot be set.
pub fn confined_input() -> io::Result<impl Read> {
    let mut stdin = BufReader::new(io::stdin());
    let mut header = Vec::new();
    stdin.by_ref().take(MAX_HEADER).read_until(b'\n', &mut header)?;
    let limits = Limits::parse(&header).map_err(|error| {
        io::Error::other(format!("the limits cannot be read: {error}. Only the controller starts this role"))
    })?;
    apply(&limits)?;
    Ok(stdin)
}

fn apply(limits: &Limits) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", FIRST_TO_BE_KILLED)?;
    set_no_new_privs(true)?;
    // Nobody attaches to it, and it leaves no core dump: its memory may hold credentials.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    nice(i32::from(limits.nice))?;
    set(Resource::Stack, limits.stack)?;
    set(Resource::Data, limits.memory)?;
    set(Resource::As, limits.address_space)?;
    // One second later the kernel kills a process that does not end by itself.
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
