//! Requests to the agent, and commands in the agent's pod.

use super::*;

impl Workspace {
    /// Installs a source that consists of a single program.
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

    /// Sends a policy pack. `required` contains all policy packs that the workspace requires.
    pub async fn put_policy_pack(
        &self,
        artifact: &proto::Artifact,
        archive: Vec<u8>,
        required: &[&proto::Artifact],
    ) -> Result<bool, RpcError> {
        let header = proto::SourceHeader {
            artifact: Some(artifact.clone()),
            size: archive.len() as u64,
            policy_packs: required.iter().map(|artifact| (*artifact).clone()).collect(),
            ..proto::SourceHeader::default()
        };
        let (agent, sending) = (self.connect().await, Sending::default());
        Ok(agent.put_policy_pack(header, std::io::Cursor::new(archive), &sending).await?.unchanged)
    }

    /// Sends a source with these files, and waits until the source is installed or the first attempt has failed.
    pub async fn deliver(&self, files: &[(&str, &str)]) -> Result<proto::Artifact, String> {
        let (artifact, archive) = archive(files);
        self.put_archive(artifact.clone(), archive).await.map_err(|error| error.to_string())?;
        self.until_installed(&artifact).await.map(|()| artifact)
    }

    /// Waits until the source is installed or the first attempt has failed.
    pub async fn until_installed(&self, artifact: &proto::Artifact) -> Result<(), String> {
        let status = self
            .until("the source is installed or has failed", |status| match &status.candidate {
                Some(candidate) => !candidate.failure.is_empty(),
                None => status.artifact.as_ref() == Some(artifact),
            })
            .await;
        status.candidate.map_or(Ok(()), |candidate| Err(candidate.failure))
    }

    /// Waits until `predicate` returns `true` for the agent's status, and returns this status.
    pub async fn until(&self, what: &str, predicate: impl Fn(&proto::StatusReply) -> bool) -> proto::StatusReply {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let status = self.status().await;
            if predicate(&status) {
                return status;
            }
            assert!(Instant::now() < end, "timed out: {what}; status of the agent: {status:?}; log:\n{}", self.log());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the request that the controller would send for an `up` with the installed source.
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
            ..proto::Settings::default()
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
        assert_eq!(reply.held, "", "no interactive session blocks the run");
        Ok(reply.known)
    }

    /// Returns the reason why the agent delays a run.
    pub async fn held(&self, request: &proto::RunRequest) -> String {
        self.connect().await.run(request.clone()).await.unwrap().held
    }

    /// Starts a process with the CLI's name in the workspace directory, as a user would. The process runs until the
    /// caller drops the guard.
    pub fn session(&self, arguments: &[&str]) -> InteractiveSession {
        self.session_with(&[], &self.path("share/workspace"), arguments)
    }

    /// Starts a process with the CLI's name in this directory, with this command line prefix.
    pub fn session_with(&self, wrapper: &[&str], directory: &Path, arguments: &[&str]) -> InteractiveSession {
        let program = self.path("pulumi");
        if !program.exists() {
            write_script(&program, "read line");
        }
        let mut words = wrapper.iter().copied().chain([program.to_str().unwrap()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(arguments).current_dir(directory).stdin(Stdio::piped());
        InteractiveSession(command.spawn().unwrap())
    }

    /// Runs a CLI command in the workspace directory with the container's environment, as `kubectl exec` would.
    pub fn exec(&self, command: &str) -> String {
        let line = format!("cd {} && {command}", self.path("share/workspace").display());
        let ended = Command::new("sh")
            .args(["-c", &line])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("PULUMI_HOME", self.path("home/.pulumi"))
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

    /// Returns the result of an operation, and the progress events before the result.
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
            Err(_) => panic!("the operation {id} has not ended; log of the pod:\n{}", self.log()),
        }
    }

    /// Starts a run, and returns its result.
    pub async fn run_to_end(&self, request: &proto::RunRequest) -> proto::Result {
        assert!(!self.run(request).await.unwrap());
        self.result(&request.id).await.0
    }

    /// Waits until the provider has started an operation, and returns the CLI's process ID.
    pub async fn until_operation_begins(&self, id: &str) -> u32 {
        let mut attachment = self.attach(id).await;
        let mut pid = 0;
        let replies = async {
            loop {
                let Part::Progress(step) = attachment.next().await.unwrap().unwrap().part.unwrap() else {
                    panic!("the operation {id} has ended; log of the pod:\n{}", self.log());
                };
                match step.event.unwrap() {
                    progress::Event::Started(started) => pid = started.pid,
                    progress::Event::Resource(step) if step.urn.contains("testing:index:Step") => return,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, replies).await.unwrap_or_else(|_| panic!("{id} has not started"));
        pid
    }

    /// Writes a lock for the stack `dev` to the backend.
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

    /// Returns whether the state files of all stacks are complete. The CLI does not replace state files atomically, so
    /// a killed CLI can leave an incomplete file.
    pub fn has_complete_state(&self) -> bool {
        let mut files = files_below(&self.path("state/.pulumi/stacks"));
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        let is_complete = |file: &PathBuf| {
            std::fs::read(file).is_ok_and(|content| serde_json::from_slice::<serde_json::Value>(&content).is_ok())
        };
        files.iter().all(is_complete)
    }
}
