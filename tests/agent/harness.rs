//! A workspace on the local machine: the real agent with its own share directory, certificates and backend.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pulumi_controller::artifact::{Digest, pack};
use pulumi_controller::rpc::client::{AgentAddress, AgentClient, Agents, Attachment, RpcError, Sending};
use pulumi_controller::rpc::identity::Authority;
use pulumi_controller::rpc::proto::attach_reply::Part;
use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, progress};
use pulumi_controller::rpc::protocol::settings_digest;

pub use crate::processes::{InteractiveSession, children, descendants, processes, signal};

/// Timeout for all conditions on which the tests wait.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const SERVER_NAME: &str = "example-workspace.default.svc";
const POD_UID: &str = "11111111-2222-3333-4444-555555555555";
pub const POLL: Duration = Duration::from_millis(20);
/// Value of a mounted Secret, which must not appear in any log.
pub const TOKEN: &str = "token-that-nobody-may-see";

const PASSPHRASE: &str = "correct horse";

/// Reports whether the required programs are on `PATH`; prints a message if one is missing.
pub fn has_programs(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = programs.iter().find(|name| !std::env::split_paths(&path).any(|place| place.join(name).is_file()));
    if let Some(missing) = missing {
        eprintln!("NOT RUN: {test}: there is no {missing} on PATH");
    }
    missing.is_none()
}

/// Reports whether the Pulumi CLI, its YAML language host and the test provider are on `PATH`.
pub fn has_pulumi(test: &str) -> bool {
    has_programs(test, &["pulumi", "pulumi-language-yaml", "pulumi-resource-testing"])
}

pub struct Workspace {
    directory: tempfile::TempDir,
    agents: Agents,
    address: SocketAddr,
    health_address: SocketAddr,
    agent: Option<Child>,
    /// First entry of `PATH`, if set.
    programs: Option<PathBuf>,
    /// Command line prefix of the agent.
    wrapper: Vec<String>,
    /// Additional environment variables of the agent.
    variables: Vec<(&'static str, PathBuf)>,
    /// A program that must not be on the agent's `PATH`.
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
    /// Starts a workspace and waits until its agent answers.
    pub async fn start() -> Self {
        let mut workspace = Self::prepare();
        workspace.start_agent().await;
        workspace
    }

    /// Starts a workspace with a script in place of the CLI and a command line prefix for the agent.
    pub async fn start_with(cli: Option<&str>, wrapper: &[&str]) -> Self {
        let mut workspace = Self::prepare();
        workspace.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        workspace.replace_cli(cli);
        workspace.start_agent().await;
        workspace
    }

    /// Starts the init container that receives the source, without the agent.
    pub async fn start_fetch() -> Self {
        Self::start_fetch_with(None).await
    }

    /// Starts that init container; the agent will find a script in place of the CLI.
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

    /// Starts a workspace in a pod with this termination grace period.
    pub async fn start_with_grace(seconds: u32) -> Self {
        let mut workspace = Self::prepare();
        workspace.variables.push(("POD_TERMINATION_GRACE_SECONDS", seconds.to_string().into()));
        workspace.start_agent().await;
        workspace
    }

    /// Starts a workspace with an additional variable and without the `PATH` entries that contain the hidden program.
    pub async fn start_without(hidden: &'static str, variable: &'static str, value: PathBuf) -> Self {
        let mut workspace = Self::prepare();
        workspace.variables.push((variable, value));
        workspace.hidden = Some(hidden);
        workspace.start_agent().await;
        workspace
    }

    /// Starts a workspace whose share volume is the file system that `mount` mounts.
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

    /// Starts the agent as the container does and waits until it answers.
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
            .env("POD_UID", POD_UID)
            .env("POD_NAME", "example-workspace-0")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.agent = Some(agent);
        let end = Instant::now() + TEST_TIMEOUT;
        while self.try_connect().await.is_err() {
            assert!(Instant::now() < end, "the agent does not answer; its log:\n{}", self.log());
            tokio::time::sleep(POLL).await;
        }
    }

    async fn try_connect(&self) -> Result<AgentClient, RpcError> {
        let address =
            AgentAddress { ip: self.address.ip(), port: self.address.port(), server_name: SERVER_NAME.to_owned() };
        self.agents.connect(&address).await
    }

    pub async fn connect(&self) -> AgentClient {
        self.try_connect().await.unwrap()
    }

    pub async fn status(&self) -> proto::StatusReply {
        self.connect().await.status().await.unwrap()
    }

    /// Returns the HTTP status line of the readiness probe.
    pub async fn readiness(&self) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.health_address).await.unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: pod\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the output that `kubectl logs` would show.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    pub async fn until_logged(&self, words: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.log().contains(words) {
            assert!(Instant::now() < end, "not logged: {words}; the log of the pod:\n{}", self.log());
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

    /// Sends SIGTERM to the first process, as Kubernetes does to end a container.
    pub fn terminate(&self) {
        signal(self.init_pid(), "TERM");
    }

    pub fn is_running(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    /// Waits until the first process ends and returns its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.agent.as_mut().unwrap().try_wait().unwrap() {
                self.agent = None;
                return status.code();
            }
            assert!(Instant::now() < end, "the agent does not end; its log:\n{}", self.log());
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

    /// Installs a source with one program.
    pub async fn put(&self, program: &str) -> proto::Artifact {
        let (artifact, archive) = archive(&[("Pulumi.yaml", program)]);
        self.put_archive(artifact.clone(), archive).await.unwrap();
        artifact
    }

    pub async fn put_archive(&self, artifact: proto::Artifact, archive: Vec<u8>) -> Result<bool, RpcError> {
        let token = Source::File(self.path("secrets/token").to_str().unwrap().into());
        let size = archive.len() as u64;
        let (artifact, environment) = (Some(artifact), vec![variable("TOKEN", token)]);
        let header = proto::SourceHeader { artifact, size, environment, ..proto::SourceHeader::default() };
        Ok(self.connect().await.put_source(header, std::io::Cursor::new(archive), &Sending::default()).await?.unchanged)
    }

    /// Sends a source with these files and waits until it is installed or the first attempt has failed.
    pub async fn bring(&self, files: &[(&str, &str)]) -> Result<proto::Artifact, String> {
        let (artifact, archive) = archive(files);
        self.put_archive(artifact.clone(), archive).await.map_err(|error| error.to_string())?;
        self.until_in_place(&artifact).await.map(|()| artifact)
    }

    /// Waits until a source is installed or an attempt has failed.
    pub async fn until_in_place(&self, artifact: &proto::Artifact) -> Result<(), String> {
        let status = self
            .until("the source is in place, or cannot be", |status| match &status.candidate {
                Some(candidate) => !candidate.failure.is_empty(),
                None => status.artifact.as_ref() == Some(artifact),
            })
            .await;
        status.candidate.map_or(Ok(()), |candidate| Err(candidate.failure))
    }

    /// Waits until `is_so` returns true for the status of the agent.
    pub async fn until(&self, what: &str, is_so: impl Fn(&proto::StatusReply) -> bool) -> proto::StatusReply {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let status = self.status().await;
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not so: {what}; the agent says {status:?}; its log:\n{}", self.log());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns a request for an `up` of the installed source, as the controller would send it.
    pub async fn request(&self, config: &[(&str, &str)]) -> proto::RunRequest {
        let status = self.status().await;
        let item = |(key, value): &(&str, &str)| proto::ConfigItem {
            key: (*key).into(),
            value: (*value).into(),
            ..proto::ConfigItem::default()
        };
        let settings = proto::Settings {
            stack: "dev".into(),
            config: config.iter().map(item).collect(),
            environments: Vec::new(),
        };
        let id = uuid::Uuid::new_v4().to_string();
        let value = |name: &str, value: String| variable(name, Source::Value(value));
        proto::RunRequest {
            name: format!("update-{}", &id[..8]),
            id,
            kind: proto::OperationKind::Up.into(),
            pod_uid: status.pod_uid,
            start_id: status.start_id,
            artifact: status.artifact,
            settings_digest: settings_digest(&settings),
            settings: Some(settings),
            environment: vec![
                value("PULUMI_BACKEND_URL", self.backend()),
                value("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE.into()),
                value("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "true".into()),
                variable("TOKEN", Source::File(self.path("secrets/token").to_str().unwrap().into())),
            ],
            message: "a test".into(),
            ..proto::RunRequest::default()
        }
    }

    pub async fn run(&self, request: &proto::RunRequest) -> Result<bool, RpcError> {
        let reply = self.connect().await.run(request.clone()).await?;
        assert_eq!(reply.held, "", "nobody works in the pod");
        Ok(reply.known)
    }

    /// Returns the reason why a run cannot start yet.
    pub async fn held(&self, request: &proto::RunRequest) -> String {
        self.connect().await.run(request.clone()).await.unwrap().held
    }

    /// Starts a process with the name of the CLI in the workspace, as a user does. The process waits until the guard is
    /// dropped.
    pub fn person(&self, arguments: &[&str]) -> InteractiveSession {
        self.person_by(&[], &self.path("share/workspace"), arguments)
    }

    /// Starts such a process with a command line prefix and in another directory.
    pub fn person_by(&self, wrapper: &[&str], directory: &Path, arguments: &[&str]) -> InteractiveSession {
        let program = self.path("pulumi");
        if !program.exists() {
            write_script(&program, "read line");
        }
        let mut words = wrapper.iter().copied().chain([program.to_str().unwrap()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(arguments).current_dir(directory).stdin(Stdio::piped());
        InteractiveSession(command.spawn().unwrap())
    }

    /// Runs a CLI command in the workspace's directory with the environment of the container, as `kubectl exec` does.
    pub fn exec(&self, command: &str) -> String {
        let line = format!("cd {} && {command}", self.path("share/workspace").display());
        let ended = Command::new("sh")
            .args(["-c", &line])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("PULUMI_BACKEND_URL", self.backend())
            .env("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE)
            .env("PULUMI_SKIP_UPDATE_CHECK", "true")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let [out, err] = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(ended.status.success(), "{command}: {out}{err}");
        out
    }

    fn backend(&self) -> String {
        format!("file://{}", self.path("state").display())
    }

    pub async fn attach(&self, id: &str) -> Attachment {
        self.connect().await.attach(id, 0).await.unwrap()
    }

    /// Returns the result of an operation and the progress events before it.
    pub async fn result(&self, id: &str) -> (proto::Result, Vec<proto::Progress>) {
        let mut attachment = self.attach(id).await;
        let mut progress = Vec::new();
        let replies = async {
            loop {
                match attachment.next().await.unwrap().unwrap().part.unwrap() {
                    Part::Progress(step) => progress.push(step),
                    Part::Result(result) => return result,
                }
            }
        };
        match tokio::time::timeout(TEST_TIMEOUT, replies).await {
            Ok(result) => (result, progress),
            Err(_) => panic!("operation {id} does not end; the log of the pod:\n{}", self.log()),
        }
    }

    /// Starts a run and waits for its result.
    pub async fn run_to_end(&self, request: &proto::RunRequest) -> proto::Result {
        assert!(!self.run(request).await.unwrap());
        self.result(&request.id).await.0
    }

    /// Waits until the provider works on a resource and returns the process ID of the CLI.
    pub async fn until_working(&self, id: &str) -> u32 {
        let mut attachment = self.attach(id).await;
        let mut pid = 0;
        let replies = async {
            loop {
                let Part::Progress(step) = attachment.next().await.unwrap().unwrap().part.unwrap() else {
                    panic!("operation {id} ended; the log of the pod:\n{}", self.log());
                };
                match step.event.unwrap() {
                    progress::Event::Started(started) => pid = started.pid,
                    progress::Event::Resource(step) if step.urn.contains("testing:index:Step") => return,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, replies).await.unwrap_or_else(|_| panic!("{id} does not come to work"));
        pid
    }

    /// Writes a lock of the stack `dev` to the backend.
    pub fn put_lock(&self, host: &str, pid: u32, time: &str) {
        let locks = self.path("state/.pulumi/locks/organization/example/dev");
        fs::create_dir_all(&locks).unwrap();
        let lock = format!(r#"{{"pid":{pid},"username":"somebody","hostname":"{host}","timestamp":"{time}"}}"#);
        fs::write(locks.join(format!("{}.json", uuid::Uuid::new_v4())), lock).unwrap();
    }

    /// Returns the lock files in the backend.
    pub fn locks(&self) -> Vec<PathBuf> {
        let mut files = files_below(&self.path("state/.pulumi/locks"));
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files
    }
}

pub fn variable(name: &str, source: Source) -> proto::EnvironmentVariable {
    proto::EnvironmentVariable { name: name.into(), source: Some(source) }
}

/// Returns an archive of the files and its descriptor as the controller would send it.
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

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
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
