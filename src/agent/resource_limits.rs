//! Recovers from resource limits that a program has lowered. A program runs as the same user as the agent. The program
//! can therefore change the agent's limits with `prlimit`, for example to zero open files.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Interval between two attempts of a failed operation.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of consecutive failures before the agent exits. With [`RETRY_INTERVAL`], the agent exits after about
/// ten seconds.
const MAX_FAILURES: u32 = 50;
/// Exit code of the agent, which equals `EX_OSERR` in `sysexits.h`.
const EXIT_CODE: i32 = 71;

/// Counter for consecutive failures of an operation that is essential for the agent.
#[derive(Debug, Default)]
pub struct Failures(u32);

impl Failures {
    /// Records a failure, and raises the limit of open files. After [`MAX_FAILURES`], terminates the agent. When the
    /// agent exits, the container and all its processes terminate. The restarted container has the original limits.
    pub fn record(&mut self, operation: &str, error: &io::Error) {
        self.0 += 1;
        tracing::warn!(operation, %error, failures = self.0, "failed to perform a system operation");
        if let Err(error) = raise_open_files() {
            tracing::warn!(%error, "failed to raise the limit of open files");
        }
        if self.0 >= MAX_FAILURES {
            tracing::error!(operation, %error, "exiting after too many failures of a system operation");
            std::process::exit(EXIT_CODE);
        }
    }

    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

/// Raises the soft limit of open files to the hard limit.
fn raise_open_files() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
