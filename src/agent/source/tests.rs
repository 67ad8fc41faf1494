use std::collections::VecDeque;
use std::fs;

use tonic::Status;

use super::*;
use crate::artifact::{Digest, pack};
use crate::pulumi::install::InstallPlan;
use crate::rpc::proto::put_source_request::Part;
use crate::rpc::proto::{Artifact, PutSourceRequest, SourceHeader};

/// A call with these messages.
struct Call(VecDeque<PutSourceRequest>);

impl Parts for Call {
    async fn next(&mut self) -> Result<Option<PutSourceRequest>, Status> {
        Ok(self.0.pop_front())
    }
}

struct Place {
    _directory: tempfile::TempDir,
    layout: Layout,
    workspace_lock: WorkspaceLock,
    source: Arc<Source>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        layout.create().unwrap();
        let workspace_lock = WorkspaceLock::default();
        let source = open(&layout, &workspace_lock);
        Place { _directory: directory, layout, workspace_lock, source }
    }

    async fn put(&self, archive: &[u8], directory: &str) -> Result<bool, Refusal> {
        let put =
            self.source.put(call(archive, &Digest::of(archive).to_string(), directory, archive.len() as u64)).await;
        // Waits for the tasks, because the agent removes the old source after its reply.
        self.source.tasks.close();
        self.source.tasks.wait().await;
        put
    }

    fn program(&self) -> String {
        fs::read_to_string(self.layout.workspace().join("Pulumi.yaml")).unwrap()
    }
}

fn open(layout: &Layout, workspace_lock: &WorkspaceLock) -> Arc<Source> {
    let settings = Arc::new(Settings::open(layout.clone()));
    Arc::new(Source::open(layout.clone(), workspace_lock.clone(), settings, CancellationToken::new()).unwrap())
}

fn call(archive: &[u8], digest: &str, directory: &str, size: u64) -> Call {
    let artifact = Some(Artifact { digest: digest.into(), directory: directory.into() });
    let header = Part::Header(SourceHeader { artifact, size, ..SourceHeader::default() });
    let chunks = archive.chunks(64 * 1024).map(|chunk| Part::Chunk(chunk.to_vec()));
    Call(std::iter::once(header).chain(chunks).map(|part| PutSourceRequest { part: Some(part) }).collect())
}

/// Returns an archive that contains a project in each of these directories.
fn archive(projects: &[(&str, &str)]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    for (place, name) in projects {
        let place = directory.path().join(place);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("Pulumi.yaml"), format!("name: {name}\nruntime: yaml\n")).unwrap();
    }
    let mut bytes = Vec::new();
    pack(directory.path(), &mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn only_a_synced_source_on_a_persistent_volume_survives_a_node_change() {
    let place = Place::new();
    place.put(&archive(&[("", "first")]), "").await.unwrap();
    place.source.sync_for_next_pod().await;
    assert_eq!(recover(&place.layout, "another boot"), None, "the volume is not persistent");
    fs::write(place.layout.owner(), "app").unwrap();
    place.source.sync_for_next_pod().await;
    let current_source = recover(&place.layout, "another boot").unwrap();
    assert_eq!((current_source.boot_id.as_str(), current_source.is_synced), ("another boot", false));
    assert_eq!(recover(&place.layout, "another boot"), Some(current_source));
    assert_eq!(recover(&place.layout, "third boot"), None, "the agent on the second node did not exit normally");
}

#[tokio::test]
async fn a_source_is_installed_once_and_the_previous_source_is_kept() {
    let place = Place::new();
    let (first, second) = (archive(&[("", "first")]), archive(&[("", "second")]));
    assert!(!place.put(&first, "").await.unwrap());
    assert!(place.program().contains("first"));
    assert!(place.put(&first, "").await.unwrap());
    assert!(!place.put(&second, "./").await.unwrap());
    assert!(place.program().contains("second"));
    assert!(fs::read_to_string(place.layout.previous().join("Pulumi.yaml")).unwrap().contains("first"));
    assert_eq!(fs::read_dir(place.layout.staging()).unwrap().count(), 0);
    assert!(place.layout.source().symlink_metadata().unwrap().is_dir());
}

#[tokio::test]
async fn the_same_archive_with_another_directory_is_a_different_source() {
    let place = Place::new();
    let bytes = archive(&[("a", "first"), ("deep/b", "second")]);
    place.put(&bytes, "a").await.unwrap();
    assert!(place.program().contains("first"));
    assert!(!place.put(&bytes, "deep/b").await.unwrap());
    assert!(place.program().contains("second"));
    assert_eq!(fs::read_link(place.layout.workspace()).unwrap(), std::path::Path::new("source/deep/b"));
}

#[tokio::test]
async fn a_new_agent_keeps_the_current_source_and_removes_partial_sources() {
    let place = Place::new();
    let bytes = archive(&[("", "first")]);
    place.put(&bytes, "").await.unwrap();
    let left = place.layout.staging().join("left/tree");
    fs::create_dir_all(&left).unwrap();
    let next = open(&place.layout, &place.workspace_lock);
    assert_eq!(next.current_source(), place.source.current_source());
    assert!(!left.exists());
    fs::remove_file(place.layout.source_record()).unwrap();
    assert_eq!(open(&place.layout, &place.workspace_lock).current_source(), None);
}

#[tokio::test]
async fn a_source_installed_before_a_reboot_of_the_node_is_not_current() {
    let place = Place::new();
    let bytes = archive(&[("", "first")]);
    place.put(&bytes, "").await.unwrap();
    let mut record = Record::read(&place.layout);
    let current_source = record.current_source.as_mut().unwrap();
    assert_eq!(current_source.boot_id, processes::boot_id().unwrap());
    current_source.boot_id = "00000000-0000-0000-0000-000000000000".to_owned();
    record.write(&place.layout).unwrap();
    // Simulates a file that is empty after a power loss.
    fs::write(place.layout.workspace().join("Pulumi.yaml"), "").unwrap();
    let place = Place { source: open(&place.layout, &place.workspace_lock), ..place };
    assert_eq!(place.source.current_source(), None);
    assert!(!place.put(&bytes, "").await.unwrap(), "the source is installed again");
    assert!(place.program().contains("first"));
    assert_eq!(open(&place.layout, &place.workspace_lock).current_source(), place.source.current_source());
}

#[tokio::test]
async fn an_invalid_source_is_rejected_and_the_current_source_stays() {
    let place = Place::new();
    place.put(&archive(&[("", "first")]), "").await.unwrap();
    let before = place.source.current_source();
    let bytes = archive(&[("infrastructure", "second"), ("other", "third")]);
    let digest = Digest::of(&bytes).to_string();
    let wrong = Digest::of(b"other bytes").to_string();
    let size = bytes.len() as u64;
    let empty = PutSourceRequest { part: None };
    let headless = Call(VecDeque::from([PutSourceRequest { part: Some(Part::Chunk(vec![1])) }]));
    for (call, words) in [
        (call(&bytes, &wrong, "infrastructure", size), vec![digest.as_str(), wrong.as_str()]),
        (call(&bytes, &digest, "infrastructure", size - 1), vec!["expected", "received more"]),
        (call(&bytes, &digest, "infrastructure", size + 1), vec!["size of the source does not match"]),
        (call(&bytes, &digest, "infra", size), vec!["\"infra\"", "infrastructure, other"]),
        (call(&bytes, &digest, "", size), vec!["no Pulumi.yaml", "infrastructure, other"]),
        (call(&bytes, &digest, "../..", size), vec![".."]),
        (call(&bytes, "sha256:12", "", size), vec!["sha256"]),
        (call(b"no archive", &Digest::of(b"no archive").to_string(), "", 10), vec!["failed to unpack the source"]),
        (call(&[], &digest, "", u64::MAX), vec!["exceeds the limit"]),
        (Call(VecDeque::from([empty])), vec!["empty"]),
        (headless, vec!["header"]),
    ] {
        let message = place.source.put(call).await.unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
    }
    assert!(place.program().contains("first"));
    assert_eq!(place.source.current_source(), before);
    assert_eq!(fs::read_dir(place.layout.staging()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_agent_applies_the_source_limits_from_the_controller() {
    let place = Place::new();
    let bytes = archive(&[("", "first")]);
    let (digest, size) = (Digest::of(&bytes).to_string(), bytes.len() as u64);
    let within = |most_bytes: u64, most_unpacked_bytes: u64| {
        let mut call = call(&bytes, &digest, "", size);
        if let Some(Part::Header(header)) = call.0.front_mut().and_then(|first| first.part.as_mut()) {
            (header.most_bytes, header.most_unpacked_bytes) = (most_bytes, most_unpacked_bytes);
        }
        call
    };
    let refused = |limits: (u64, u64)| place.source.put(within(limits.0, limits.1));
    let large = refused((size - 1, 0)).await.unwrap_err().to_string();
    assert!(large.contains(&format!("exceeds the limit of {} bytes (--artifact-max-size)", size - 1)), "{large}");
    let large = refused((size, 512)).await.unwrap_err().to_string();
    assert!(large.contains("exceeds the limit of 512 decompressed bytes (--artifact-max-unpacked-size)"), "{large}");
    assert!(!place.source.put(within(size, 1 << 20)).await.unwrap(), "the source was not installed before");
}

#[tokio::test]
async fn a_later_installation_uses_the_environment_of_the_last_call() {
    let place = Place::new();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("Pulumi.yaml"), "name: a\nruntime: nodejs\n").unwrap();
    fs::write(directory.path().join("index.js"), "").unwrap();
    let mut bytes = Vec::new();
    pack(directory.path(), &mut bytes).unwrap();
    // With a persistent volume, the second pod finds the source of the first pod, and can mount another Secret.
    for (secret, is_in_place) in [("/secrets/npm", false), ("/secrets/corrected", true)] {
        let mut call = call(&bytes, &Digest::of(&bytes).to_string(), "", bytes.len() as u64);
        let token = proto::environment_variable::Source::File(format!("{secret}/token"));
        let environment =
            vec![proto::EnvironmentVariable { name: "NPM_TOKEN".into(), source: Some(token), optional: false }];
        let directories = vec![secret.to_owned()];
        if let Some(Part::Header(header)) = call.0.front_mut().and_then(|first| first.part.as_mut()) {
            (header.environment, header.required_directories) = (environment.clone(), directories.clone());
        }
        let settings = Arc::new(Settings::open(place.layout.clone()));
        let fetch = Source::open(place.layout.clone(), WorkspaceLock::default(), settings, CancellationToken::new());
        let fetch = Arc::new(fetch.unwrap().without_installing());
        assert_eq!(fetch.put(call).await.unwrap(), is_in_place);
        fetch.tasks.close();
        fetch.tasks.wait().await;
        let current_source = Record::read(&place.layout).current_source.unwrap();
        assert!(current_source.awaits_install);
        let desired = Desired::awaited(&current_source).unwrap();
        assert_eq!((desired.environment, desired.required_directories), (environment, directories));
    }
}

#[tokio::test]
async fn an_invalid_project_causes_the_same_error_on_each_attempt() {
    let place = Place::new();
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("infra")).unwrap();
    fs::write(directory.path().join("infra/Pulumi.yaml"), "name: [\n").unwrap();
    let mut bytes = Vec::new();
    pack(directory.path(), &mut bytes).unwrap();
    let first = place.put(&bytes, "infra").await.unwrap_err().to_string();
    assert!(first.contains(": invalid project file infra/Pulumi.yaml"), "{first}");
    assert_eq!(place.put(&bytes, "infra").await.unwrap_err().to_string(), first);
}

#[test]
fn dependencies_that_the_cache_cannot_contain_have_a_reason() {
    let place = Place::new();
    let source = |has_cache: bool| {
        let layout = place.layout.clone().with_cache(place.layout.root());
        let settings = Arc::new(Settings::open(layout.clone()));
        let source =
            Source::open(layout.clone(), WorkspaceLock::default(), settings, CancellationToken::new()).unwrap();
        source.with_cache(DependencyCache::open(&layout, 1).filter(|_| has_cache))
    };
    let project = Project::parse(Path::new("Pulumi.yaml"), "name: a\nruntime: nodejs").unwrap();
    let plan = crate::agent::install::plan(place.layout.root(), &"".parse().unwrap(), &project, "v3.259.0");
    assert!(plan.reinstall_reason.is_some(), "there is no lock file");
    let known = InstallPlan { reinstall_reason: None, ..plan.clone() };
    let module = InstallPlan { works_without_trees: true, ..known.clone() };
    let installed = Some(plan.installed.clone());
    for (plan, installed, expected) in [
        (Some(&plan), &installed, Some("no lock file")),
        (Some(&module), &None, Some("the installation changes its own inputs")),
        (Some(&known), &installed, Some("the dependencies are outside the source")),
        (Some(&module), &installed, None),
        (None, &None, Some("the source is part of the pod")),
    ] {
        let reason = |has_cache| source(has_cache).uncached_reason(plan, installed.as_ref());
        assert_eq!(reason(true).as_deref(), expected);
        assert_eq!(reason(false), None, "the pod mounts no cache");
    }
}

#[tokio::test]
async fn plugins_that_a_run_downloads_are_not_cached() {
    let place = Place::new();
    place.put(&archive(&[("", "first")]), "").await.unwrap();
    let plugins = place.layout.pulumi_home().join("plugins");
    fs::create_dir_all(plugins.join("resource-of-image-v1.0.0")).unwrap();
    let layout = place.layout.clone().with_cache(place.layout.root());
    let settings = Arc::new(Settings::open(layout.clone()));
    let source = Source::open(layout.clone(), WorkspaceLock::default(), settings, CancellationToken::new()).unwrap();
    let source = source.with_cache(DependencyCache::open(&layout, 1));
    assert_eq!(source.uncached(), None);
    for name in ["resource-tok-v1.0.1", "resource-tok-v1.0.1.lock"] {
        fs::create_dir(plugins.join(name)).unwrap();
    }
    let expected = proto::Uncached { reason: String::new(), plugins: vec!["resource-tok-v1.0.1".to_owned()] };
    assert_eq!(source.uncached(), Some(expected));
    assert_eq!(place.source.uncached(), None, "the pod mounts no cache");
}

#[tokio::test]
async fn no_source_is_installed_while_an_operation_is_running() {
    let place = Place::new();
    let bytes = archive(&[("", "first")]);
    let guard = place.workspace_lock.lock_for_operation("busy").unwrap();
    assert!(place.put(&bytes, "").await.unwrap_err().to_string().contains("busy"));
    drop(guard);
    place.put(&bytes, "").await.unwrap();
    let _guard = place.workspace_lock.lock_for_operation("busy").unwrap();
    assert!(place.put(&bytes, "").await.unwrap(), "an installed source needs no exchange");
}
