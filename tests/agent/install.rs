//! Tests the installation of dependencies. A script replaces `pulumi install`, and calls npm or pip.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use pulumi_controller::rpc::client::Sending;
use pulumi_controller::rpc::proto::{self, Outcome};

use crate::harness::{TOKEN, Workspace, archive, has_programs, has_pulumi, outputs, processes, report_skipped, signal};
use crate::registry::{Registry, make_wheels};

const YAML: (&str, &str) = ("Pulumi.yaml", "name: example\nruntime: yaml\n");
const NODE: (&str, &str) = ("Pulumi.yaml", "name: example\nruntime: nodejs\n");
const PYTHON: (&str, &str) =
    ("Pulumi.yaml", "name: example\nruntime: {name: python, options: {toolchain: pip, virtualenv: venv}}\n");

/// Script that replaces the CLI, and the directory that contains the script's inputs and records.
struct FakeCli {
    directory: tempfile::TempDir,
    script: String,
}

impl FakeCli {
    /// Creates the script. `install` is the implementation of `pulumi install`.
    fn new(install: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("version"), "v3.259.0").unwrap();
        let here = directory.path().display();
        let script = format!(
            "set -eu\n\
             case \"$*\" in *version*) cat {here}/version; exit;; *install*) ;; *) exit 0;; esac\n\
             echo \"$PWD\" >>{here}/installs\n\
             if [ -f {here}/broken ]; then\n\
                 mkdir -p node_modules; echo half >node_modules/half; echo \"no such package; the token is ${{TOKEN:-none}}\" >&2; exit 1\n\
             fi\n\
             {install}"
        );
        FakeCli { directory, script }
    }

    async fn npm(registry: &Registry) -> Self {
        Self::new(&format!("{}exec npm install", registry.exports()))
    }

    async fn pip() -> Self {
        let fake_cli = Self::new("");
        let wheels = fake_cli.path("wheels");
        fs::create_dir(&wheels).unwrap();
        make_wheels(&wheels).await;
        let install = format!(
            "python3 -m venv venv\n\
             exec venv/bin/python -m pip install --no-index --find-links {} -r requirements.txt",
            wheels.display()
        );
        FakeCli { script: fake_cli.script.clone() + &install, ..fake_cli }
    }

    async fn start(&self) -> Workspace {
        Workspace::start_with(Some(&self.script), &[]).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the number of installation attempts.
    fn installs(&self) -> usize {
        fs::read_to_string(self.path("installs")).unwrap_or_default().lines().count()
    }
}

#[tokio::test]
async fn an_installation_waits_until_its_referenced_inputs_are_mounted() {
    let fake_cli = FakeCli::new("mkdir -p node_modules");
    let workspace = fake_cli.start().await;
    let (artifact, archive) = archive(&[NODE, ("package.json", "{}")]);
    let directory = workspace.path("secrets/npm");
    fs::create_dir(&directory).unwrap();
    let header = proto::SourceHeader {
        artifact: Some(artifact.clone()),
        size: archive.len() as u64,
        required_directories: vec![directory.display().to_string()],
        ..proto::SourceHeader::default()
    };
    let sending = Sending::default();
    workspace.connect().await.put_source(header, std::io::Cursor::new(archive), &sending).await.unwrap();
    workspace
        .until("the agent waits for the input", |status| {
            status.candidate.as_ref().is_some_and(|c| c.doing.contains("mounted"))
        })
        .await;
    assert_eq!(fake_cli.installs(), 0);
    fs::write(directory.join("token"), "value").unwrap();
    workspace.until_installed(&artifact).await.unwrap();
    assert_eq!(fake_cli.installs(), 1);
}

fn inode(workspace: &Workspace, name: &str) -> u64 {
    fs::metadata(workspace.path("share/workspace").join(name)).unwrap().ino()
}

/// Returns the output of a command that runs in a source directory.
fn printed(workspace: &Workspace, source: &str, command: &[&str]) -> String {
    let directory = workspace.path("share").join(source);
    let output = Command::new(command[0]).args(&command[1..]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn manifest(version: &str) -> String {
    serde_json::json!({"name": "example", "version": "0.0.1", "dependencies": {"pads": version}}).to_string()
}

#[tokio::test]
async fn npm_dependencies_are_reused_only_if_the_lock_file_is_equal() {
    let test = "npm_dependencies_are_reused_only_if_the_lock_file_is_equal";
    if !has_programs(test, &["node", "npm"]) {
        return;
    }
    let registry = Registry::start().await;
    let fake_cli = FakeCli::npm(&registry).await;
    let workspace = fake_cli.start().await;
    let (old, new) = (manifest("1.0.0"), manifest("1.1.0"));
    let (old_lock, new_lock) =
        (registry.lock(&[("package.json", &old)]).await, registry.lock(&[("package.json", &new)]).await);
    let version = ["node", "-p", "require('pads')"];
    let files = [NODE, ("package.json", old.as_str()), ("package-lock.json", old_lock.as_str())];

    workspace.deliver(&files).await.unwrap();
    assert_eq!((fake_cli.installs(), printed(&workspace, "workspace", &version).as_str()), (1, "1.0.0"));
    let installed_at = fs::read_to_string(fake_cli.path("installs")).unwrap();
    assert_eq!(installed_at.trim(), workspace.path("share/workspace").to_str().unwrap());
    let before = inode(&workspace, "node_modules");

    workspace.deliver(&[&files[..], &[("index.js", "1")]].concat()).await.unwrap();
    assert_eq!((fake_cli.installs(), inode(&workspace, "node_modules")), (1, before), "{}", workspace.log());
    assert_eq!(printed(&workspace, "workspace", &version), "1.0.0");
    assert!(!workspace.path("share/previous/node_modules").exists());

    let files = [NODE, ("package.json", new.as_str()), ("package-lock.json", new_lock.as_str())];
    workspace.deliver(&files).await.unwrap();
    assert_eq!((fake_cli.installs(), printed(&workspace, "workspace", &version).as_str()), (2, "1.1.0"));
    assert_ne!(inode(&workspace, "node_modules"), before);
    assert_eq!(printed(&workspace, "previous", &version), "1.0.0", "the previous source keeps its dependencies");
    assert!(workspace.log().contains("copying the dependencies of the previous source"), "{}", workspace.log());
}

#[tokio::test]
async fn a_new_pod_restores_its_dependencies_from_the_cache() {
    let plugin = "home/.pulumi/plugins/resource-pads-v1.0.0/pulumi-resource-pads";
    let fake_cli = FakeCli::new(
        "plugin=\"$HOME/.pulumi/plugins/resource-pads-v1.0.0\"\n\
         mkdir -p node_modules/pads \"$plugin\"\n\
         echo 1 >node_modules/pads/index.js\n\
         echo 2 >\"$plugin/pulumi-resource-pads\"",
    );
    let mut workspace = Workspace::start_with_cache(&fake_cli.script).await;
    let files = [NODE, ("package.json", "{}"), ("package-lock.json", "{}")];
    workspace.deliver(&files).await.unwrap();
    assert_eq!(fake_cli.installs(), 1);
    workspace.until_logged("stored the dependencies in the cache").await;

    workspace.replace_pod().await;
    workspace.deliver(&files).await.unwrap();
    assert_eq!(fake_cli.installs(), 1, "{}", workspace.log());
    let read = |workspace: &Workspace, name: &str| fs::read_to_string(workspace.path(name)).unwrap();
    assert_eq!(read(&workspace, "share/workspace/node_modules/pads/index.js"), "1\n");
    assert_eq!(read(&workspace, plugin), "2\n");

    for archive in fs::read_dir(workspace.path("cache/v1/archives")).unwrap() {
        fs::write(archive.unwrap().path(), "damaged").unwrap();
    }
    workspace.replace_pod().await;
    workspace.deliver(&files).await.unwrap();
    assert_eq!(fake_cli.installs(), 2, "{}", workspace.log());
    assert!(workspace.log().contains("is damaged: its digest is sha256:"), "{}", workspace.log());
    assert_eq!(read(&workspace, "share/workspace/node_modules/pads/index.js"), "1\n");

    workspace.replace_pod().await;
    let other = [NODE, ("package.json", "{}"), ("package-lock.json", "{\"lockfileVersion\": 3}")];
    workspace.deliver(&other).await.unwrap();
    assert_eq!(fake_cli.installs(), 3, "another lock file is another entry");
}

#[tokio::test]
async fn local_path_dependencies_are_reinstalled_despite_an_equal_lock_file() {
    if !has_programs("local_path_dependencies_are_reinstalled_despite_an_equal_lock_file", &["node", "npm"]) {
        return;
    }
    let registry = Registry::start().await;
    let fake_cli = FakeCli::npm(&registry).await;
    let workspace = fake_cli.start().await;
    let manifest = r#"{"name": "example", "version": "0.0.1", "dependencies": {"shared": "file:./shared"}}"#;
    let shared = ("shared/package.json", r#"{"name": "shared", "version": "1.0.0"}"#);
    let lock = registry.lock(&[("package.json", manifest), shared]).await;
    for (number, content) in ["one", "two"].into_iter().enumerate() {
        let program = format!("module.exports = '{content}'");
        let files = [
            NODE,
            ("package.json", manifest),
            ("package-lock.json", lock.as_str()),
            shared,
            ("shared/index.js", program.as_str()),
        ];
        workspace.deliver(&files).await.unwrap();
        assert_eq!(fake_cli.installs(), number + 1);
        assert_eq!(printed(&workspace, "workspace", &["node", "-p", "require('shared')"]), content);
    }
}

/// Returns whether Python can create virtual environments. If Python cannot create them, the function reports the test
/// as skipped.
fn has_venv(test: &str) -> bool {
    if !has_programs(test, &["python3"]) {
        return false;
    }
    let imported = Command::new("python3").args(["-c", "import venv, ensurepip"]).status();
    let has_venv = imported.is_ok_and(|ended| ended.success());
    if !has_venv {
        report_skipped(test, "python3 cannot create virtual environments");
    }
    has_venv
}

#[tokio::test]
async fn a_damaged_virtualenv_is_not_copied_by_the_second_attempt() {
    if !has_venv("a_damaged_virtualenv_is_not_copied_by_the_second_attempt") {
        return;
    }
    let fake_cli = FakeCli::pip().await;
    let workspace = fake_cli.start().await;
    workspace.deliver(&[PYTHON, ("requirements.txt", "pads==1.0.0\n")]).await.unwrap();
    let lib = workspace.path("share/workspace/venv/lib");
    let python = fs::read_dir(lib).unwrap().next().unwrap().unwrap().path();
    fs::write(python.join("site-packages/pip/__main__.py"), "raise SystemExit('pip is damaged')\n").unwrap();

    let changed = [PYTHON, ("requirements.txt", "pads==1.1.0\n")];
    let failure = workspace.deliver(&changed).await.unwrap_err();
    assert!(failure.contains("pip is damaged"), "{failure}");
    let (artifact, _) = archive(&changed);
    workspace.until("the installation is retried", |status| status.artifact.as_ref() == Some(&artifact)).await;
    assert_eq!(printed(&workspace, "workspace", &["venv/bin/pads"]), "1.1.0");
}

#[tokio::test]
async fn a_virtualenv_is_reused_only_if_all_pins_are_equal() {
    if !has_venv("a_virtualenv_is_reused_only_if_all_pins_are_equal") {
        return;
    }
    let fake_cli = FakeCli::pip().await;
    let workspace = fake_cli.start().await;
    let program = ["venv/bin/pads"];
    let pinned = ("requirements.txt", "pads==1.0.0\nother==1.0.0\n");
    workspace.deliver(&[PYTHON, pinned]).await.unwrap();
    assert_eq!(
        printed(&workspace, "workspace", &program),
        "1.0.0",
        "the programs of the virtual environment can be run"
    );
    let before = inode(&workspace, "venv");

    workspace.deliver(&[PYTHON, pinned, ("__main__.py", "1")]).await.unwrap();
    assert_eq!((fake_cli.installs(), inode(&workspace, "venv")), (1, before), "{}", workspace.log());
    assert_eq!(printed(&workspace, "workspace", &program), "1.0.0");

    workspace.deliver(&[PYTHON, ("requirements.txt", "pads==1.1.0\n")]).await.unwrap();
    assert_eq!((fake_cli.installs(), printed(&workspace, "workspace", &program).as_str()), (2, "1.1.0"));
    assert!(
        !workspace.path("share/workspace/venv/bin/other").exists(),
        "packages that are no longer required are removed"
    );

    let floating = ("requirements.txt", "pads>=1.0.0\n");
    workspace.deliver(&[PYTHON, floating]).await.unwrap();
    workspace.deliver(&[PYTHON, floating, ("__main__.py", "1")]).await.unwrap();
    assert_eq!(fake_cli.installs(), 4, "requirements without a pin are installed each time");
    assert_eq!(printed(&workspace, "workspace", &program), "1.1.0");
}

#[tokio::test]
async fn a_failed_installation_keeps_the_old_source_and_is_retried() {
    let fake_cli = FakeCli::new("mkdir -p node_modules; cp package.json node_modules/installed");
    let workspace = fake_cli.start().await;
    let files = |manifest| [NODE, ("package.json", manifest), ("package-lock.json", manifest)];
    let good = workspace.deliver(&files("{}")).await.unwrap();
    let before = inode(&workspace, "node_modules");

    fs::write(fake_cli.path("broken"), "").unwrap();
    let (broken, _) = archive(&files("{\"name\": \"broken\"}"));
    let failure = workspace.deliver(&files("{\"name\": \"broken\"}")).await.unwrap_err();
    assert!(failure.contains("`pulumi install` failed: ") && failure.contains("no such package"), "{failure}");
    assert!(!failure.contains(TOKEN) && failure.contains("the token is [secret]"), "{failure}");
    let log = workspace.log();
    assert!(log.contains("install: no such package") && !log.contains(TOKEN), "{log}");
    let status = workspace.status().await;
    assert_eq!(status.artifact.as_ref(), Some(&good));
    assert_eq!((inode(&workspace, "node_modules"), fake_cli.installs()), (before, 2));
    assert!(!workspace.path("share/workspace/node_modules/half").exists());
    // During an installation attempt, the agent rejects runs. Between two attempts, the agent accepts runs with the
    // previous source.
    let request = workspace.request(&[]).await;
    assert_eq!(request.artifact, Some(good));
    while let Err(refusal) = workspace.run(&request).await {
        assert!(refusal.message.contains("another source is being installed"), "{refusal}");
    }
    workspace.result(&request.id).await;

    fs::remove_file(fake_cli.path("broken")).unwrap();
    workspace.until("the installation is retried", |status| status.artifact.as_ref() == Some(&broken)).await;
    assert!(!workspace.path("share/workspace/node_modules/half").exists(), "{}", workspace.log());

    fs::write(fake_cli.path("broken"), "").unwrap();
    workspace.deliver(&files("{\"name\": \"broken again\"}")).await.unwrap_err();
    fs::remove_file(fake_cli.path("broken")).unwrap();
    let fixed = workspace.deliver(&files("{\"name\": \"mended\"}")).await.unwrap();
    assert_eq!(workspace.status().await.artifact, Some(fixed));
    assert!(fs::read_to_string(workspace.path("share/workspace/node_modules/installed")).unwrap().contains("mended"));
}

/// Implementation of `pulumi install`. The installation never completes if the source contains the file `endless`.
const ENDLESS: &str =
    "[ -f endless ] || { mkdir -p node_modules; exit 0; }; echo half >node_modules/half; (sleep 1000 & wait)";

/// Installs a source with dependencies, and then sends a source whose installation never completes.
async fn start_endless_installation(fake_cli: &FakeCli) -> (Workspace, proto::Artifact) {
    let workspace = fake_cli.start().await;
    let good = workspace.deliver(&[NODE, ("package.json", "{}"), ("package-lock.json", "{}")]).await.unwrap();
    let (artifact, bytes) =
        archive(&[NODE, ("package.json", "{}"), ("package-lock.json", "{\"a\": 1}"), ("endless", "")]);
    assert!(
        !workspace.put_archive(artifact.clone(), bytes).await.unwrap(),
        "the response does not wait for the installation"
    );
    let half = workspace.path("share/workspace/node_modules/half");
    let is_installing = |status: &proto::StatusReply| {
        let candidate = status.candidate.as_ref();
        candidate.is_some_and(|candidate| candidate.doing == "installing its dependencies") && half.exists()
    };
    let status = workspace.until("the installation runs", is_installing).await;
    assert_eq!(status.candidate.unwrap().artifact, Some(artifact));
    assert_eq!(status.artifact.as_ref(), Some(&good), "the agent reports the previous source");
    let request = workspace.request(&[]).await;
    let refusal = workspace.run(&request).await.unwrap_err();
    assert!(refusal.message.contains("another source is being installed"), "{refusal}");
    (workspace, good)
}

/// Returns the process IDs of installations that are running in this workspace.
fn installers(workspace: &Workspace) -> Vec<u32> {
    let mark = format!("PULUMI_CONTROLLER_OPERATION=install-{}", workspace.path("share").display());
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    processes().into_iter().filter(|(_, (_, state))| *state != 'Z').map(|(pid, _)| pid).filter(is_marked).collect()
}

#[tokio::test]
async fn killing_the_agent_during_an_installation_keeps_the_old_source() {
    let fake_cli = FakeCli::new(ENDLESS);
    let (mut workspace, good) = start_endless_installation(&fake_cli).await;
    let source = fs::metadata(workspace.path("share/source")).unwrap().ino();
    assert!(!installers(&workspace).is_empty());
    signal(workspace.agent_pid(), "KILL");
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    assert_eq!(installers(&workspace), Vec::<u32>::new());
    let status = workspace.status().await;
    assert_eq!((status.artifact, status.candidate), (Some(good), None));
    assert_ne!(fs::metadata(workspace.path("share/source")).unwrap().ino(), source);
    assert!(workspace.path("share/workspace/node_modules").is_dir());
    assert!(!workspace.path("share/workspace/endless").exists());
    assert!(!workspace.path("share/workspace/node_modules/half").exists());
    assert_eq!(fs::read_dir(workspace.path("share/staging")).unwrap().count(), 0);
}

#[tokio::test]
async fn sigterm_during_an_installation_restores_the_old_source() {
    let fake_cli = FakeCli::new(ENDLESS);
    let (mut workspace, good) = start_endless_installation(&fake_cli).await;
    workspace.terminate();
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    assert_eq!(installers(&workspace), Vec::<u32>::new());
    assert!(!workspace.path("share/workspace/endless").exists());
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.artifact, Some(good));
}

#[tokio::test]
async fn a_new_source_cancels_the_installation_of_the_previous_source() {
    let fake_cli = FakeCli::new(ENDLESS);
    let (workspace, good) = start_endless_installation(&fake_cli).await;
    let newer = workspace.deliver(&[YAML]).await.unwrap();
    assert_eq!(workspace.status().await.artifact, Some(newer));
    assert_eq!(installers(&workspace), Vec::<u32>::new());
    drop(workspace);

    let fake_cli = FakeCli::new(ENDLESS);
    let (workspace, back) = start_endless_installation(&fake_cli).await;
    let (_, bytes) = archive(&[NODE, ("package.json", "{}"), ("package-lock.json", "{}")]);
    assert_eq!(back, good);
    assert!(workspace.put_archive(back.clone(), bytes).await.unwrap(), "the previous source is installed again");
    let status = workspace.status().await;
    assert_eq!((status.artifact, status.candidate), (Some(back), None));
    assert_eq!(installers(&workspace), Vec::<u32>::new());
}

#[tokio::test]
async fn a_changed_cli_version_reinstalls_dependencies() {
    let fake_cli = FakeCli::new("mkdir -p node_modules");
    let mut workspace = fake_cli.start().await;
    let files = [NODE, ("package.json", "{}"), ("package-lock.json", "{}")];
    workspace.deliver(&files).await.unwrap();
    workspace.terminate();
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    workspace.deliver(&[&files[..], &[("index.js", "1")]].concat()).await.unwrap();
    assert_eq!(fake_cli.installs(), 1, "a new agent finds the installed dependencies");
    fs::write(fake_cli.path("version"), "v3.260.0").unwrap();
    workspace.terminate();
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    workspace.deliver(&[&files[..], &[("index.js", "2")]].concat()).await.unwrap();
    assert_eq!(fake_cli.installs(), 2);
}

#[tokio::test]
async fn a_restarted_agent_installs_the_dependencies_without_a_new_source() {
    let fake_cli = FakeCli::new("mkdir -p node_modules");
    let mut workspace = fake_cli.start().await;
    let artifact = workspace.deliver(&[NODE, ("package.json", "{}")]).await.unwrap();
    workspace.terminate();
    workspace.wait_for_exit().await;
    let record = workspace.path("share/source.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"awaits_install\": false", "\"awaits_install\": true")).unwrap();
    fs::write(workspace.path("share/workspace/made-in-the-pod"), "").unwrap();
    fs::write(fake_cli.path("broken"), "").unwrap();
    workspace.start_agent().await;
    let failure = workspace.until_installed(&artifact).await.unwrap_err();
    assert!(failure.contains("no such package"), "{failure}");
    assert_eq!(workspace.status().await.artifact, None, "the source is not reported before its installation");
    fs::remove_file(fake_cli.path("broken")).unwrap();
    workspace.until("the source is installed", |status| status.artifact.as_ref() == Some(&artifact)).await;
    assert!(workspace.path("share/workspace/made-in-the-pod").exists(), "the source directory is not replaced");
}

#[tokio::test]
async fn plugins_of_the_image_are_used() {
    let test = "plugins_of_the_image_are_used";
    if !has_pulumi(test) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let plugin = home.path().join("plugins/resource-testing-v0.0.1");
    fs::create_dir_all(&plugin).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let provider = "pulumi-resource-testing";
    let found = std::env::split_paths(&path).map(|place| place.join(provider)).find(|file| file.is_file()).unwrap();
    fs::copy(found, plugin.join(provider)).unwrap();
    let program = "name: example\nruntime: yaml\nresources:\n  step:\n    type: testing:index:Step\n    \
                   properties: {name: quick, seconds: 0, steps: 1}\noutputs:\n  done: true\n";

    // The request disables plugin downloads, so the run succeeds only if the CLI finds the plugin in `PULUMI_HOME`.
    let workspace = Workspace::start_without(provider, "PULUMI_HOME", home.path().to_owned()).await;
    workspace.put(program).await;
    let result = workspace.run_to_end(&workspace.request(&[]).await).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}\n{}", result.message, workspace.log());
    assert_eq!(outputs(&result)["done"], ("true", false));

    let workspace = Workspace::start_without(provider, "PULUMI_HOME", home.path().join("empty")).await;
    workspace.put(program).await;
    let result = workspace.run_to_end(&workspace.request(&[]).await).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.message.contains("testing"), "{}", result.message);
}
