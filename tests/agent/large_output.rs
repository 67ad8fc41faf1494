//! Tests a program whose output exceeds the agent's limits.

use pulumi_controller::rpc::proto::Outcome;

use crate::harness::Workspace;

/// Total size of the output and the event log that `VERBOSE_CLI` writes, in KiB.
const OUTPUT_KIB: u64 = 148 * 1024;

/// Script that replaces the CLI. The script writes a line of 48 MiB to the event log. The script prints 50 MiB without
/// a line break, and lines with a total size of 50 MiB.
const VERBOSE_CLI: &str = r#"
case "$*" in *--event-log=*) ;; *) exit 0 ;; esac
for word; do case "$word" in --event-log=*) log=${word#--event-log=} ;; esac; done
{
    printf '{"diagnosticEvent":{"severity":"error","message":"'
    head -c 50331648 /dev/zero | tr '\0' x
    printf '"}}\n{"diagnosticEvent":{"severity":"error","message":"what really went wrong"}}\n'
} >"$log"
head -c 52428800 /dev/zero | tr '\0' y
yes "$(printf '%0100d' 0)" | head -c 52428800 >&2
exit 255
"#;

#[tokio::test]
async fn agent_memory_stays_far_below_the_size_of_the_output() {
    let workspace = Workspace::start_with(Some(VERBOSE_CLI), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let before = max_memory(workspace.agent_pid());
    let request = workspace.request(&[]).await;
    let result = workspace.run_to_end(&request).await;
    let grown = max_memory(workspace.agent_pid()) - before;
    let printed = std::fs::metadata(workspace.path("log")).unwrap().len();
    // Truncates the log, because a failed assertion would print the complete log.
    std::fs::File::options().write(true).truncate(true).open(workspace.path("log")).unwrap();
    assert!(printed > 100 * 1024 * 1024, "the log of the pod is incomplete: {printed} bytes");
    assert_eq!(result.outcome(), Outcome::Failed);
    assert_eq!(result.message, "what really went wrong");
    assert!(grown < OUTPUT_KIB / 3, "the memory of the agent grew by {grown} KiB for {OUTPUT_KIB} KiB of output");
    let journal = workspace.path("share/operations").join(&request.id);
    let kept: u64 = std::fs::read_dir(journal).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(kept < 1024 * 1024, "the journal of the run has {kept} bytes");
}

/// Returns the peak resident memory of a process in KiB.
fn max_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
