//! Finds pod processes in the `/proc` directory of the machine that runs the node.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Controller,
    Agent,
    /// `pulumi up` or `pulumi destroy`.
    Pulumi,
    Provider,
}

/// A process in a pod. A pidfd identifies the process, so a signal never reaches another process with a reused process
/// ID.
#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    handle: OwnedFd,
    /// Owner of the pod.
    pub owner: String,
}

impl Process {
    /// Sends SIGKILL. Returns false if the process has already exited.
    pub fn kill(&self) -> bool {
        pidfd_send_signal(&self.handle, Signal::KILL).is_ok()
    }
}

/// Returns all processes with a role in these pods. `pods` maps pod UIDs to owners.
pub fn find(pods: &BTreeMap<String, String>, role: Role) -> Vec<Process> {
    let all = std::fs::read_dir("/proc").expect("/proc can be listed").flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<Process> = ids.filter_map(|pid| open(pid, pods, role)).collect();
    found.sort_by(|one, other| (&one.owner, one.pid).cmp(&(&other.owner, other.pid)));
    found
}

/// Returns a process if the process has the role and is in one of these pods. Opens the pidfd first, because another
/// process could reuse the process ID before the function has read the other values.
fn open(pid: i32, pods: &BTreeMap<String, String>, role: Role) -> Option<Process> {
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let text = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let cgroup = text("cgroup");
    let (_, owner) = pods.iter().find(|(uid, _)| cgroup.contains(uid.as_str()))?;
    has_role(&text("cmdline"), role).then(|| Process { pid, handle, owner: owner.clone() })
}

/// Returns whether a command line matches a role. NUL characters separate the words of the command line.
fn has_role(command: &str, role: Role) -> bool {
    let words: Vec<&str> = command.split('\0').collect();
    let program = words.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
    let arguments = words.get(1..).unwrap_or_default();
    match role {
        Role::Controller => program == "pulumi-controller" && arguments.first() == Some(&"manager"),
        Role::Agent => program == "pulumi-controller" && arguments.first() == Some(&"agent"),
        Role::Pulumi => program == "pulumi" && arguments.iter().any(|word| ["up", "destroy"].contains(word)),
        Role::Provider => program == "pulumi-resource-testing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_role_is_derived_from_its_command_line() {
        let examples = [
            ("/usr/bin/pulumi-controller\0manager\0--log-level=info\0", Some(Role::Controller)),
            ("/share/agent/pulumi-controller\0agent\0", Some(Role::Agent)),
            ("pulumi\0--non-interactive\0up\0--yes\0", Some(Role::Pulumi)),
            ("/usr/bin/pulumi\0--non-interactive\0stack\0export\0", None),
            ("/usr/bin/pulumi-resource-testing\x00127.0.0.1:4000\0", Some(Role::Provider)),
            ("/bin/sh\0-c\0pulumi up\0", None),
            ("", None),
        ];
        for (command, expected) in examples {
            for role in [Role::Controller, Role::Agent, Role::Pulumi, Role::Provider] {
                assert_eq!(has_role(command, role), expected == Some(role), "{command:?} {role:?}");
            }
        }
    }

    #[test]
    fn processes_outside_the_pods_are_never_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let foreign = BTreeMap::from([("00000000-0000-0000-0000-00000000dead".to_owned(), "s".to_owned())]);
        for role in [Role::Controller, Role::Agent, Role::Pulumi, Role::Provider] {
            assert!(find(&foreign, role).is_empty());
        }
        assert!(child.try_wait().unwrap().is_none(), "other processes are not killed");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
