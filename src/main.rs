//! Entry point of the controller, which parses the flags, initializes logging, runs the selected role, and returns the
//! role's exit code.

#![deny(unsafe_code)]

mod allocator;

use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use pulumi_controller::cli::{AgentFlags, CommandLine, FetchFlags, Role};
use pulumi_controller::config::{self, ManagerConfig};
use pulumi_controller::controller::stack;
use pulumi_controller::runtime::served_schemas;
use pulumi_controller::source::git;
use pulumi_controller::telemetry::logging;
use pulumi_controller::{agent, api, manager};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("error: failed to install the TLS crypto provider: already installed");
        return ExitCode::FAILURE;
    }
    match run(CommandLine::parse().into_role()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(role: Role) -> anyhow::Result<ExitCode> {
    if matches!(role, Role::Manager(_) | Role::Agent(_) | Role::Fetch(_))
        && let Err(error) = disable_core_dumps()
    {
        eprintln!("warning: failed to disable core dumps: {error}");
    }
    match role {
        Role::Manager(flags) => {
            allocator::limit_arenas();
            let config = ManagerConfig::from_flags(flags)?;
            logging::install(config.log_level, config.log_encoding)?;
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let ended = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(manage(config))));
            // The process exits without waiting for blocking file operations, because another replica may already be
            // the leader.
            runtime.shutdown_background();
            ended.unwrap_or_else(|panic| panic::resume_unwind(panic))?;
        }
        Role::Agent(flags) if flags.child => {
            logging::install(flags.log.log_level, flags.log.log_encoding)?;
            agent::serve(&agent_config(flags)?)?;
        }
        // The first process starts a child process with the same role.
        Role::Agent(_) => return Ok(agent::run_as_init(&std::env::args_os().skip(1).collect::<Vec<_>>())),
        Role::Bootstrap(flags) => {
            if let Some(owner) = &flags.owner {
                agent::prepare_volume(&flags.share, owner, flags.discard_source)?;
            }
            agent::bootstrap(&flags.to)?;
            flags.project.as_deref().map(agent::make_project).transpose()?;
        }
        Role::Fetch(flags) => {
            logging::install(flags.log.log_level, flags.log.log_encoding)?;
            agent::fetch(&fetch_config(flags)?)?;
        }
        Role::Launch(flags) => return Ok(agent::launch(&flags.arguments)),
        Role::Evaluate => stack::evaluate_stdin()?,
        Role::CompareSchemas => served_schemas::compare_stdin()?,
        Role::Git => git::run_child()?,
        Role::Crds => print_crds()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Disables core dumps for this process and its children, and prevents the user's other processes from reading the
/// memory of this process. The memory of child processes is not protected, because the kernel resets the dumpable
/// attribute when a child executes a program.
fn disable_core_dumps() -> std::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // If the kernel passes core dumps to a program, the resource limit has no effect. The dumpable attribute prevents
    // core dumps in this case.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

fn agent_config(flags: AgentFlags) -> anyhow::Result<agent::AgentConfig> {
    Ok(agent::AgentConfig {
        address: agent_address("address", &flags.pod.address)?,
        health_address: agent_address("health-address", &flags.health_address)?,
        share: flags.pod.share,
        cache_directory: flags.cache_directory,
        cache_size: flags.cache_size,
        tls_directory: flags.pod.tls_directory,
        termination_log: flags.termination_log,
        pod_uid: flags.pod.pod_uid,
        pod_name: flags.pod_name,
        termination_grace: Duration::from_secs(flags.termination_grace_seconds),
        version_after: Duration::from_secs(flags.version_after_seconds),
    })
}

fn fetch_config(flags: FetchFlags) -> anyhow::Result<agent::FetchConfig> {
    Ok(agent::FetchConfig {
        address: agent_address("address", &flags.pod.address)?,
        share: flags.pod.share,
        tls_directory: flags.pod.tls_directory,
        pod_uid: flags.pod.pod_uid,
    })
}

fn agent_address(flag: &'static str, value: &str) -> anyhow::Result<SocketAddr> {
    config::address(flag, value)?.with_context(|| format!("invalid --{flag}={value}: the agent requires an address"))
}

async fn manage(config: ManagerConfig) -> anyhow::Result<()> {
    let end = CancellationToken::new();
    let signalled = end.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let signals = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        signalled.cancel();
        std::future::pending::<anyhow::Result<()>>().await
    };
    tokio::select! {
        ended = manager::run(config, end) => ended,
        ended = signals => ended,
        never = allocator::trim_after_load() => match never {},
    }
}

fn print_crds() -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    for crd in api::definitions::custom_resource_definitions() {
        writeln!(out, "---\n{}", serde_saphyr::to_string(&crd)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn core_dumps_are_disabled_and_proc_self_stays_readable() {
        disable_core_dumps().unwrap();
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
