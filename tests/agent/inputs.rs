//! Tests that the agent reports changes to mounted inputs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{ConfigItem, Outcome, RunRequest, Settings, StatusRequest};
use pulumi_controller::rpc::protocol::settings_digest;

use crate::harness::{Workspace, has_pulumi, outputs, variable};

/// Mounted Secret with the same layout as in a pod. Each key is a symbolic link through `..data`, and the kubelet
/// replaces `..data` atomically.
struct Mount {
    directory: PathBuf,
    exchanges: usize,
}

impl Mount {
    fn new(directory: PathBuf) -> Self {
        fs::create_dir(&directory).unwrap();
        Mount { directory, exchanges: 0 }
    }

    fn replace(&mut self, keys: &[(&str, &str)]) {
        self.exchanges += 1;
        let data = format!("..2026_{}", self.exchanges);
        fs::create_dir(self.directory.join(&data)).unwrap();
        for (key, value) in keys {
            fs::write(self.directory.join(&data).join(key), value).unwrap();
        }
        symlink(&data, self.directory.join("..data_tmp")).unwrap();
        fs::rename(self.directory.join("..data_tmp"), self.directory.join("..data")).unwrap();
        for (key, _) in keys {
            let link = self.directory.join(key);
            if !link.is_symlink() {
                symlink(format!("..data/{key}"), link).unwrap();
            }
        }
        if self.exchanges > 1 {
            fs::remove_dir_all(self.directory.join(format!("..2026_{}", self.exchanges - 1))).unwrap();
        }
    }

    fn file(&self, key: &str) -> String {
        self.directory.join(key).display().to_string()
    }
}

fn status_request(files: &[String]) -> StatusRequest {
    StatusRequest { config_files: files.to_vec(), ..StatusRequest::default() }
}

async fn config_hash(workspace: &Workspace, files: &[String]) -> String {
    workspace.connect().await.status_with_inputs(status_request(files)).await.unwrap().config_inputs
}

#[tokio::test]
async fn a_change_to_any_key_of_a_mounted_secret_changes_its_hash() {
    let workspace = Workspace::start().await;
    let mut secret = Mount::new(workspace.path("secrets/aws"));
    let mut map = Mount::new(workspace.path("secrets/map"));
    let directories = [&secret, &map].map(|mount| mount.directory.display().to_string());
    let requests = StatusRequest { mounted_directories: directories.to_vec(), ..StatusRequest::default() };
    let hashes = async || {
        let reply = workspace.connect().await.status_with_inputs(requests.clone()).await.unwrap();
        directories.clone().map(|directory| reply.mounted_inputs.get(&directory).cloned().unwrap_or_default())
    };
    secret.replace(&[("id", "one"), ("secret", "one")]);
    map.replace(&[("region", "eu")]);
    let [first, region] = hashes().await;
    assert_eq!((first.len(), region.len()), (64, 64));
    assert_eq!(hashes().await, [first.clone(), region.clone()]);
    secret.replace(&[("id", "one"), ("secret", "two")]);
    let [second, same] = hashes().await;
    assert_ne!(second, first);
    assert_eq!(same, region, "each input has its own hash");
    secret.replace(&[("id", "one"), ("secret", "one")]);
    assert_eq!(hashes().await, [first, region], "a reverted input has its previous hash");
}

#[tokio::test]
async fn only_changes_to_config_inputs_change_the_config_hash() {
    let mut workspace = Workspace::start().await;
    let mut secret = Mount::new(workspace.path("secrets/keys"));
    let mut map = Mount::new(workspace.path("secrets/map"));
    let files = [secret.file("token"), map.file("greeting")];
    assert_eq!(config_hash(&workspace, &[]).await, "", "without inputs there is no hash");
    let absent = config_hash(&workspace, &files).await;
    assert_eq!(absent.len(), 64);
    secret.replace(&[("token", "one"), ("other", "one")]);
    map.replace(&[("greeting", "hello")]);
    let first = config_hash(&workspace, &files).await;
    assert_ne!(first, absent, "the key exists now");
    assert_eq!(config_hash(&workspace, &files).await, first);
    secret.replace(&[("token", "one"), ("other", "two")]);
    assert_eq!(config_hash(&workspace, &files).await, first, "no configuration refers to the other key");
    secret.replace(&[("token", "two"), ("other", "two")]);
    let second = config_hash(&workspace, &files).await;
    assert_ne!(second, first);
    map.replace(&[("greeting", "good morning")]);
    let third = config_hash(&workspace, &files).await;
    assert!(third != second && third != first);

    workspace.terminate();
    workspace.wait_for_exit().await;
    map.replace(&[("greeting", "hello")]);
    workspace.start_agent().await;
    assert_eq!(config_hash(&workspace, &files).await, second, "changes while the agent was down are detected");
}

#[tokio::test]
async fn a_run_waits_until_its_referenced_inputs_are_mounted() {
    let cli = "case \"$*\" in *up*) echo \"region: $REGION\" >>\"$HOME/seen\";; esac";
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let mut secret = Mount::new(workspace.path("secrets/aws"));
    // For a missing optional object, the kubelet mounts an empty directory.
    secret.replace(&[]);
    let directory = secret.directory.display().to_string();
    let environment = vec![variable("", Source::Directory(directory.clone()))];
    let request = RunRequest { environment, ..workspace.request(&[]).await };
    let strict = RunRequest { required_directories: vec![directory], ..request.clone() };
    let mut begun = std::pin::pin!(workspace.run(&strict));
    let early = tokio::time::timeout(Duration::from_secs(1), &mut begun).await;
    assert!(early.is_err(), "no run has started: {early:?}");
    secret.replace(&[("REGION", "eu")]);
    begun.await.unwrap();
    workspace.result(&strict.id).await;
    let seen = || fs::read_to_string(workspace.path("home/seen")).unwrap();
    assert_eq!(seen(), "region: eu\n");

    secret.replace(&[]);
    fs::remove_file(workspace.path("secrets/aws/REGION")).unwrap();
    let allowed = RunRequest { id: uuid::Uuid::new_v4().to_string(), ..request };
    workspace.run_to_end(&allowed).await;
    assert_eq!(seen(), "region: eu\nregion: \n", "an object without keys may be empty");
    assert!(workspace.run(&strict).await.unwrap(), "a known run does not wait for inputs");
}

#[tokio::test]
async fn a_run_uses_the_new_value_after_the_hash_of_the_inputs_has_changed() {
    if !has_pulumi("a_run_uses_the_new_value_after_the_hash_of_the_inputs_has_changed") {
        return;
    }
    let workspace = Workspace::start().await;
    let mut map = Mount::new(workspace.path("secrets/map"));
    let files = [map.file("greeting")];
    workspace
        .put("name: example\nruntime: yaml\nconfig:\n  greeting: {type: string}\noutputs:\n  result: ${greeting}\n")
        .await;
    let run = async || {
        let item = ConfigItem { key: "greeting".into(), file: files[0].clone(), ..ConfigItem::default() };
        let settings = Settings { stack: "dev".into(), config: vec![item], ..Settings::default() };
        let request = workspace.request(&[]).await;
        let request = RunRequest { settings_digest: settings_digest(&settings), settings: Some(settings), ..request };
        let result = workspace.run_to_end(&request).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        outputs(&result)["result"].0.to_owned()
    };
    map.replace(&[("greeting", "hello")]);
    let before = config_hash(&workspace, &files).await;
    assert_eq!(run().await, "\"hello\"");
    assert_eq!(config_hash(&workspace, &files).await, before, "a run does not change the hash of the inputs");
    map.replace(&[("greeting", "good morning")]);
    assert_ne!(config_hash(&workspace, &files).await, before);
    assert_eq!(run().await, "\"good morning\"");
}

#[tokio::test]
async fn the_result_contains_the_hash_of_the_config_inputs_of_the_run() {
    let workspace = Workspace::start_with(Some("true"), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let mut map = Mount::new(workspace.path("secrets/map"));
    map.replace(&[]);
    let files = vec![map.file("size")];
    let absent = config_hash(&workspace, &files).await;
    map.replace(&[("size", "big")]);
    let request = RunRequest { config_files: files.clone(), ..workspace.request(&[]).await };
    workspace.run(&request).await.unwrap();
    map.replace(&[("size", "small")]);
    let read = workspace.result(&request.id).await.0.config_inputs;
    let now = config_hash(&workspace, &files).await;
    assert!(read.len() == 64 && read != absent && read != now, "{read} {absent} {now}");
    map.replace(&[("size", "big")]);
    assert_eq!(config_hash(&workspace, &files).await, read);

    let without = RunRequest { id: uuid::Uuid::new_v4().to_string(), config_files: Vec::new(), ..request };
    workspace.run(&without).await.unwrap();
    assert_eq!(workspace.result(&without.id).await.0.config_inputs, "");
}
