//! Workspace on the local machine. The workspace has an agent with its own share directory, certificates and backend.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pulumi_controller::artifact::{Digest, pack};
use pulumi_controller::rpc::client::{AgentAddress, AgentClient, Agents, Attachment, RpcError, Sending};
use pulumi_controller::rpc::identity::Authority;
use pulumi_controller::rpc::proto::attach_reply::Part;
use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, progress};
use pulumi_controller::rpc::protocol::settings_digest;

mod requests;

pub use crate::processes::{InteractiveSession, children, descendants, processes, signal};
pub use crate::required_programs::{has_programs, report_skipped};

/// Timeout for each wait in a test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const SERVER_NAME: &str = "example-workspace.default.svc";
const POD_UID: &str = "11111111-2222-3333-4444-555555555555";
pub const POLL: Duration = Duration::from_millis(20);
/// Value in a mounted Secret. This value must not appear in any log.
pub const TOKEN: &str = "token-that-nobody-may-see";

const PASSPHRASE: &str = "correct horse";

/// Returns whether the Pulumi CLI, its YAML language host and the test provider are on the `PATH`.
pub fn has_pulumi(test: &str) -> bool {
    has_programs(test, &["pulumi", "pulumi-language-yaml", "pulumi-resource-testing"])
}

pub struct Workspace {
    directory: tempfile::TempDir,
    agents: Agents,
    address: SocketAddr,
    health_address: SocketAddr,
    agent: Option<Child>,
    /// First entry of the agent's `PATH`, if the test sets one.
    programs: Option<PathBuf>,
    /// Command line prefix of the agent.
    wrapper: Vec<String>,
    /// Additional environment variables of the agent.
    variables: Vec<(&'static str, PathBuf)>,
    /// Program that the harness hides from the agent's `PATH`.
    hidden: Option<&'static str>,
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            eprintln!("the log of the pod:\n{log}");
        }
    }
}

impl Workspace {
    /// Starts a workspace, and waits until its agent responds.
    pub async fn start() -> Self {
        let mut workspace = Self::prepare();
        workspace.start_agent().await;
        workspace
    }

    /// Starts a workspace. The script `cli` replaces the CLI, and `wrapper` is the agent's command line prefix.
    pub async fn start_with(cli: Option<&str>, wrapper: &[&str]) -> Self {
        let mut workspace = Self::prepare();
        workspace.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        workspace.replace_cli(cli);
        workspace.start_agent().await;
        workspace
    }

    /// Starts the init container that receives the source, but not the agent.
    pub async fn start_fetch() -> Self {
        Self::start_fetch_with(None).await
    }

    /// Starts the init container that receives the source. For the agent that starts later, the script `cli` replaces
    /// the CLI.
    pub async fn start_fetch_with(cli: Option<&str>) -> Self {
        let mut workspace = Self::prepare();
        workspace.replace_cli(cli);
        workspace.start_role(&["fetch".to_owned()]).await;
        workspace
    }

    fn replace_cli(&mut self, script: Option<&str>) {
        let Some(script) = script else { return };
        let programs = self.directory.path().join("programs");
        fs::create_dir(&programs).unwrap();
        write_script(&programs.join("pulumi"), script);
        self.programs = Some(programs);
    }

    /// Starts a workspace in a pod with this termination grace period in seconds.
    pub async fn start_with_grace(seconds: u32) -> Self {
        let mut workspace = Self::prepare();
        workspace.variables.push(("POD_TERMINATION_GRACE_SECONDS", seconds.to_string().into()));
        workspace.start_agent().await;
        workspace
    }

    /// Starts a workspace with a dependency cache in the directory `cache`. The script `cli` replaces the CLI.
    pub async fn start_with_cache(cli: &str) -> Self {
        let mut workspace = Self::prepare();
        let cache = workspace.path("cache");
        fs::create_dir(&cache).unwrap();
        workspace.variables.push(("DEPENDENCY_CACHE_DIRECTORY", cache));
        workspace.replace_cli(Some(cli));
        workspace.start_agent().await;
        workspace
    }

    /// Starts an agent in a new pod with an empty share volume and an empty home directory.
    pub async fn replace_pod(&mut self) {
        self.kill();
        for name in ["share", "home"] {
            fs::remove_dir_all(self.path(name)).unwrap();
            fs::create_dir(self.path(name)).unwrap();
        }
        self.start_agent().await;
    }

    /// Starts a workspace with an additional environment variable. The `PATH` of its agent does not contain the hidden
    /// program.
    pub async fn start_without(hidden: &'static str, variable: &'static str, value: PathBuf) -> Self {
        let mut workspace = Self::prepare();
        workspace.variables.push((variable, value));
        workspace.hidden = Some(hidden);
        workspace.start_agent().await;
        workspace
    }

    /// Starts a workspace on a file system that `mount` mounts at the share volume path.
    pub async fn start_on(cli: Option<&str>, mount: impl FnOnce(&Path)) -> Self {
        let mut workspace = Self::prepare();
        mount(&workspace.path("share"));
        workspace.replace_cli(cli);
        workspace.start_agent().await;
        workspace
    }

    fn prepare() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["share", "tls", "state", "home", "secrets"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let now = jiff::Timestamp::now();
        let authority = Authority::generate(now).unwrap();
        let server = authority.issue_server(&[SERVER_NAME.to_owned()], now).unwrap();
        let tls = directory.path().join("tls");
        fs::write(tls.join("tls.crt"), &server.certificate_pem).unwrap();
        fs::write(tls.join("tls.key"), &server.key_pem).unwrap();
        fs::write(tls.join("ca.crt"), authority.certificate_pem()).unwrap();
        fs::write(tls.join("inputs.key"), "0123456789abcdef".repeat(4)).unwrap();
        fs::write(directory.path().join("secrets/token"), TOKEN).unwrap();
        let agents = Agents::new(&[authority.issue_client(now).unwrap()], authority.certificate_pem()).unwrap();
        let (address, health_address) = (free_address(), free_address());
        let (agent, programs, wrapper, variables, hidden) = Default::default();
        Workspace { directory, agents, address, health_address, agent, programs, wrapper, variables, hidden }
    }

    /// Starts the agent with the same arguments as in a container, and waits until it responds.
    pub async fn start_agent(&mut self) {
        let arguments = [
            "agent".to_owned(),
            format!("--health-address={}", self.health_address),
            format!("--termination-log={}", self.path("termination-log").display()),
            "--version-after-seconds=0".to_owned(),
        ];
        self.start_role(&arguments).await;
    }

    async fn start_role(&mut self, arguments: &[String]) {
        // A child of the previous agent can hold the socket until it executes its program.
        let end = Instant::now() + TEST_TIMEOUT;
        while let Err(error) = TcpListener::bind(self.address) {
            assert!(Instant::now() < end, "{} is not free: {error}; log:\n{}", self.address, self.log());
            tokio::time::sleep(POLL).await;
        }
        let log = File::options().create(true).append(true).open(self.directory.path().join("log")).unwrap();
        let binary = env!("CARGO_BIN_EXE_pulumi-controller");
        let mut words = self.wrapper.clone();
        words.push(binary.to_owned());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has_hidden = |place: &PathBuf| self.hidden.is_some_and(|hidden| place.join(hidden).exists());
        let others = std::env::split_paths(&path).filter(|place| !has_hidden(place));
        let places: Vec<PathBuf> = self.programs.iter().cloned().chain(others).collect();
        let agent = Command::new(&words[0])
            .args(&words[1..])
            .args(arguments)
            .args(["--share", self.path("share").to_str().unwrap()])
            .args(["--tls-directory", self.path("tls").to_str().unwrap()])
            .args(["--address", &self.address.to_string()])
            .env_clear()
            .env("PATH", std::env::join_paths(places).unwrap())
            .env("HOME", self.path("home"))
            // Otherwise, tests that run as root would use the directory in the home directory of root.
            .env("PULUMI_HOME", self.path("home/.pulumi"))
            .env("POD_UID", POD_UID)
            .env("POD_NAME", "example-workspace-0")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.agent = Some(agent);
        while self.try_connect().await.is_err() {
            assert!(Instant::now() < end, "the agent has not responded; log:\n{}", self.log());
            tokio::time::sleep(POLL).await;
        }
    }

    async fn try_connect(&self) -> Result<AgentClient, RpcError> {
        let address = AgentAddress {
            ip: self.address.ip(),
            port: self.address.port(),
            server_name: SERVER_NAME.to_owned(),
            namespace: "apps".to_owned(),
        };
        self.agents.connect(&address).await
    }

    pub async fn connect(&self) -> AgentClient {
        self.try_connect().await.unwrap()
    }

    pub async fn status(&self) -> proto::StatusReply {
        self.connect().await.status().await.unwrap()
    }

    /// Returns the HTTP status line of the response to a readiness probe.
    pub async fn readiness(&self) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.health_address).await.unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: pod\r\n\r\n").await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response.lines().next().unwrap_or_default().to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the output that `kubectl logs` would show for a real pod.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    pub async fn until_logged(&self, words: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.log().contains(words) {
            assert!(Instant::now() < end, "not logged: {words}; log of the pod:\n{}", self.log());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the process ID of the first process in the container.
    pub fn init_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// Returns the process ID of the agent.
    pub fn agent_pid(&self) -> u32 {
        children(self.init_pid())[0]
    }

    /// Sends SIGTERM to the first process, as Kubernetes does.
    pub fn terminate(&self) {
        signal(self.init_pid(), "TERM");
    }

    pub fn is_running(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    /// Waits until the first process exits, and returns the exit code.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.agent.as_mut().unwrap().try_wait().unwrap() {
                self.agent = None;
                return status.code();
            }
            assert!(Instant::now() < end, "the agent has not exited; log:\n{}", self.log());
            tokio::time::sleep(POLL).await;
        }
    }

    fn kill(&mut self) {
        let Some(mut agent) = self.agent.take() else { return };
        for pid in descendants(agent.id()) {
            signal(pid, "KILL");
        }
        let _ = agent.kill();
        let _ = agent.wait();
    }
}

pub fn variable(name: &str, source: Source) -> proto::EnvironmentVariable {
    proto::EnvironmentVariable { name: name.into(), source: Some(source), optional: false }
}

/// Returns an archive of the files, and the descriptor that the controller would send with this archive.
pub fn archive(files: &[(&str, &str)]) -> (proto::Artifact, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut bytes = Vec::new();
    pack(directory.path(), &mut bytes).unwrap();
    let artifact = proto::Artifact { digest: Digest::of(&bytes).to_string(), directory: String::new() };
    (artifact, bytes)
}

pub fn outputs(result: &proto::Result) -> BTreeMap<&str, (&str, bool)> {
    result.outputs.iter().map(|output| (output.name.as_str(), (output.value.as_str(), output.secret))).collect()
}

/// Returns an address that no other test of this process uses. The kernel does not use the port of this address for
/// outgoing connections, so the port is still free when the agent starts to listen.
fn free_address() -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(100);
    loop {
        let offset = first.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(offset).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

fn write_script(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
