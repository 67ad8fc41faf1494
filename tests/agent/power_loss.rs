//! Tests for a power loss of the node. The share volume is on a loop device. A copy of the backing file contains the
//! disk content after a power loss, without the data that was only in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Workspace, has_programs};

const FILES: usize = 40;
const YAML: (&str, &str) = ("Pulumi.yaml", "name: example\nruntime: yaml\n");
const NODE: (&str, &str) = ("Pulumi.yaml", "name: example\nruntime: nodejs\n");
/// Script that replaces the CLI, and installs a directory tree.
const CLI: &str = "case \"$*\" in *version*) echo v3.259.0;; *install*)\n\
                   mkdir -p node_modules/left-pad; for n in $(seq 40); do echo \"module $n\" >node_modules/left-pad/$n.js; done;; esac";

/// A file system in a file. Dropping the disk unmounts the file system.
struct Disk {
    directory: tempfile::TempDir,
    mounted: Vec<PathBuf>,
}

impl Disk {
    /// Creates the file system. Returns `None` if the test process has no permission to mount file systems.
    fn new(test: &str) -> Option<Disk> {
        if !has_programs(test, &["mkfs.ext4", "mount", "umount"]) {
            return None;
        }
        let disk = Disk { directory: tempfile::tempdir().unwrap(), mounted: Vec::new() };
        let file = fs::File::create(disk.path("disk")).unwrap();
        file.set_len(64 * 1024 * 1024).unwrap();
        run("mkfs.ext4", &["-q", &disk.path("disk").display().to_string()]).unwrap();
        let probe = disk.path("probe");
        fs::create_dir(&probe).unwrap();
        match mount(&disk.path("disk"), &probe) {
            Ok(()) => run("umount", &[&probe.display().to_string()]).map(|()| disk).ok(),
            Err(why) => {
                // The test is skipped even in CI, because the missing prerequisite is a permission or a kernel feature,
                // and not an installed program.
                eprintln!("NOT RUN: {test}: cannot mount loop devices: {why}");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mount_at(&mut self, place: &Path) {
        mount(&self.path("disk"), place).unwrap();
        self.mounted.push(place.to_owned());
    }

    /// Returns a directory with the content that the disk would have after a power loss.
    fn after_power_loss(&mut self) -> PathBuf {
        fs::copy(self.path("disk"), self.path("copy")).unwrap();
        let place = self.path("left");
        fs::create_dir(&place).unwrap();
        mount(&self.path("copy"), &place).unwrap();
        self.mounted.push(place.clone());
        place
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for place in self.mounted.drain(..).rev() {
            // Unmounts lazily, because a killed agent may still have open files.
            let _ = run("umount", &["--lazy", &place.display().to_string()]);
        }
    }
}

fn mount(file: &Path, place: &Path) -> Result<(), String> {
    run("mount", &["-o", "loop", &file.display().to_string(), &place.display().to_string()])
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn modules() -> Vec<(String, String)> {
    (0..FILES).map(|number| (format!("src/{number}.ts"), format!("export const n = {number};\n"))).collect()
}

#[tokio::test]
async fn an_installed_source_is_intact_after_a_power_loss() {
    let Some(mut disk) = Disk::new("an_installed_source_is_intact_after_a_power_loss") else { return };
    let workspace = Workspace::start_on(None, |share| disk.mount_at(share)).await;
    let modules = modules();
    let mut files: Vec<(&str, &str)> = modules.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    files.push(YAML);
    let artifact = workspace.deliver(&files).await.unwrap();

    let left = disk.after_power_loss();
    let record = fs::read_to_string(left.join("source.json")).unwrap();
    assert!(record.contains(&artifact.digest), "{record}");
    for (path, text) in files {
        let found = fs::read_to_string(left.join("workspace").join(path));
        assert_eq!(found.ok().as_deref(), Some(text), "{path}");
    }
}

#[tokio::test]
async fn dependencies_of_an_installed_source_are_intact_after_a_power_loss() {
    let Some(mut disk) = Disk::new("dependencies_of_an_installed_source_are_intact_after_a_power_loss") else { return };
    let workspace = Workspace::start_on(Some(CLI), |share| disk.mount_at(share)).await;
    let artifact = workspace.deliver(&[NODE, ("package.json", "{}")]).await.unwrap();

    let left = disk.after_power_loss();
    let record = fs::read_to_string(left.join("source.json")).unwrap();
    assert!(record.contains(&artifact.digest), "{record}");
    for number in 1..=FILES {
        let found = fs::read_to_string(left.join(format!("workspace/node_modules/left-pad/{number}.js")));
        assert_eq!(found.ok(), Some(format!("module {number}\n")), "{number}");
    }
}
