//! Maintains the settings file of the stack: rebuilds it from the source's own file and the received settings when
//! either of them changes. Settings that are no longer sent are removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::durable;
use super::layout::Layout;
use super::source::CurrentSource;
use crate::pulumi::project::{Project, ProjectError};
use crate::pulumi::settings::{self, Entry, SettingsError};

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error(transparent)]
    Rebuild(#[from] SettingsError),
    #[error("failed to {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

/// The settings that were written last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// ID of the source tree that contains the settings file.
    tree: String,
    stack: String,
    digest: String,
    /// The settings file, relative to the project.
    file: PathBuf,
    /// Digest of all values, including those from Secrets and ConfigMaps.
    #[serde(default)]
    values: String,
    /// Digests of the secret values by key.
    #[serde(default)]
    secrets: BTreeMap<String, String>,
    /// Keys of the secrets that the CLI still has to write.
    #[serde(default)]
    missing_secrets: Vec<String>,
}

/// The desired settings.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub stack: &'a str,
    /// Digest of the received settings.
    pub digest: &'a str,
    pub config: &'a [Entry],
    /// Pulumi ESC environments to import.
    pub environments: &'a [String],
}

impl Written {
    fn of(wanted: &Wanted<'_>, current_source: &CurrentSource, file: PathBuf) -> Written {
        Written {
            tree: current_source.tree.clone(),
            stack: wanted.stack.to_owned(),
            digest: wanted.digest.to_owned(),
            file,
            values: digest(wanted.config.iter()),
            secrets: wanted
                .config
                .iter()
                .filter(|entry| entry.is_secret)
                .map(|entry| (entry.key.clone(), digest([entry])))
                .collect(),
            missing_secrets: Vec::new(),
        }
    }

    /// Returns the keys of the secrets that are encrypted in the file and unchanged.
    fn kept_secrets(&self, now: &Written) -> Vec<String> {
        let is_same =
            |key: &&String| self.secrets.get(*key) == now.secrets.get(*key) && !self.missing_secrets.contains(key);
        now.secrets.keys().filter(is_same).cloned().collect()
    }
}

/// Returns the digest of values. It has no key, because the values themselves are in plain text on the same volume or
/// in a Secret in the same pod.
fn digest<'a>(config: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut hasher = Sha256::new();
    for Entry { key, value, is_path, is_secret } in config {
        let entry = serde_json::json!([key, value, is_path, is_secret]).to_string();
        hasher.update((entry.len() as u64).to_be_bytes());
        hasher.update(entry);
    }
    hex::encode(hasher.finalize())
}

/// Maintains the settings files of the current source.
pub struct Settings {
    layout: Layout,
    written: Mutex<Option<Written>>,
}

impl Settings {
    /// Continues with the settings that a previous agent wrote.
    pub fn open(layout: Layout) -> Self {
        let written = std::fs::read(layout.settings().join("written.json")).ok();
        let written = written.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Settings { layout, written: Mutex::new(written) }
    }

    /// Returns the digest of the settings that were written last; empty if there are none.
    pub fn digest(&self) -> String {
        self.written().as_ref().map(|written| written.digest.clone()).unwrap_or_default()
    }

    /// Writes the settings file, unless it is up to date. Returns the keys of the secrets that the CLI has to write;
    /// the caller confirms each of them with [`Settings::has_secret`].
    pub fn apply(&self, wanted: &Wanted<'_>, current_source: &CurrentSource) -> Result<Vec<String>, ApplyError> {
        let mut written = self.written();
        let project = Project::read(&self.layout.workspace())?;
        let now = Written::of(wanted, current_source, project.settings_path(wanted.stack));
        let path = self.layout.workspace().join(&now.file);
        if written.as_ref() == Some(&now) && path.is_file() {
            return Ok(Vec::new());
        }
        let original = self.original(&current_source.tree, &now.file, &path)?;
        let is_same_tree = written.as_ref().is_some_and(|written| written.tree == current_source.tree);
        let current = self.current(&now.file, &path, is_same_tree);
        let kept_secrets = written.as_ref().map(|before| before.kept_secrets(&now)).unwrap_or_default();
        let format = project.settings_format();
        let (original, current) = (original.as_deref(), current.as_deref());
        let Wanted { config, environments, .. } = *wanted;
        let content = settings::Wanted { config, environments, kept_secrets: &kept_secrets };
        let rebuilt = settings::rebuild(original, current, &project.name, &content, format)?;
        // Until the file is written, its content is unknown.
        self.record(&mut written, None)?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        }
        durable::write_atomically(&path, rebuilt.text.as_bytes()).map_err(failed("write", &path))?;
        let missing_secrets = rebuilt.missing_secrets.clone();
        self.record(&mut written, Some(Written { missing_secrets, ..now }))?;
        Ok(rebuilt.missing_secrets)
    }

    /// Records that a secret is in the settings file.
    pub fn has_secret(&self, key: &str) -> Result<(), ApplyError> {
        let mut written = self.written();
        let now = written.clone().map(|mut now| {
            now.missing_secrets.retain(|missing| missing != key);
            now
        });
        self.record(&mut written, now)
    }

    /// Keeps the settings file of the source that is about to be replaced: the next file needs its encryption header.
    /// Errors are only logged, because the next source can be the one that fixes the cause.
    pub fn keep(&self, current_source: Option<&CurrentSource>) {
        let Some(written) = self.written().clone() else { return };
        // The settings were written into an earlier source, so this file is not the CLI's.
        if current_source.is_none_or(|current_source| current_source.tree != written.tree) {
            return;
        }
        if let Err(error) = self.keep_file(&written) {
            tracing::warn!(%error, "failed to keep the stack settings file for the next source");
        }
    }

    fn keep_file(&self, written: &Written) -> Result<(), ApplyError> {
        let path = self.layout.workspace().join(&written.file);
        let Some(text) = durable::read_if_there(&path).map_err(failed("read", &path))? else { return Ok(()) };
        let kept = self.kept(&written.file);
        if let Some(directory) = kept.parent() {
            std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        }
        durable::write_atomically(&kept, text.as_bytes()).map_err(failed("write", &kept))
    }

    /// Returns the file as it came with the source; `None` if the source has none. Stores the file on first access.
    fn original(&self, tree: &str, file: &Path, path: &Path) -> Result<Option<String>, ApplyError> {
        let directory = self.layout.settings().join("originals");
        let of_tree = directory.join(tree);
        let kept = of_tree.join(flat_name(file));
        if let Some(kept) = durable::read_if_there(&kept).map_err(failed("read", &kept))? {
            return serde_json::from_str(&kept).map_err(|error| failed("read", &of_tree)(error.into()));
        }
        if !of_tree.is_dir() {
            // Remove the files of earlier sources.
            durable::remove(&directory).map_err(failed("remove", &directory))?;
            std::fs::create_dir_all(&of_tree).map_err(failed("create", &of_tree))?;
        }
        let original = durable::read_if_there(path).map_err(failed("read", path))?;
        let text = serde_json::to_vec(&original).map_err(|error| failed("write", &kept)(error.into()))?;
        durable::write_atomically(&kept, &text).map_err(failed("write", &kept))?;
        Ok(original)
    }

    /// Returns the file as the CLI left it, in this source or the previous one; `None` if neither is readable.
    fn current(&self, file: &Path, path: &Path, is_same_tree: bool) -> Option<String> {
        let own = if is_same_tree { read_or_warn(path) } else { None };
        own.or_else(|| read_or_warn(&self.kept(file)))
    }

    fn kept(&self, file: &Path) -> PathBuf {
        self.layout.settings().join("kept").join(flat_name(file))
    }

    fn record(&self, written: &mut Option<Written>, now: Option<Written>) -> Result<(), ApplyError> {
        let path = self.layout.settings().join("written.json");
        *written = None;
        match &now {
            None => durable::remove(&path).map_err(failed("remove", &path))?,
            Some(now) => {
                let text = serde_json::to_vec_pretty(now).map_err(|error| failed("write", &path)(error.into()))?;
                durable::write_atomically(&path, &text).map_err(failed("write", &path))?;
            }
        }
        *written = now;
        Ok(())
    }

    fn written(&self) -> MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_or_warn(path: &Path) -> Option<String> {
    durable::read_if_there(path).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "failed to read the stack settings file");
        None
    })
}

/// Returns a flat file name for a path in a tree. The path itself can leave the directory or exceed the length limit of
/// a name.
fn flat_name(file: &Path) -> String {
    hex::encode(Sha256::digest(file.as_os_str().as_encoded_bytes()))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ApplyError + use<> {
    let path = path.to_owned();
    move |source| ApplyError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        _directory: tempfile::TempDir,
        layout: Layout,
    }

    /// Creates a workspace whose source has the given settings file.
    fn place(original: Option<&str>) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        layout.create().unwrap();
        std::fs::create_dir(layout.source()).unwrap();
        std::os::unix::fs::symlink("source", layout.workspace()).unwrap();
        put_source(&layout, original);
        Place { _directory: directory, layout }
    }

    fn put_source(layout: &Layout, original: Option<&str>) {
        std::fs::remove_dir_all(layout.source()).unwrap();
        std::fs::create_dir(layout.source()).unwrap();
        std::fs::write(layout.source().join("Pulumi.yaml"), "name: example\nruntime: yaml\n").unwrap();
        if let Some(text) = original {
            std::fs::write(layout.source().join("Pulumi.dev.yaml"), text).unwrap();
        }
    }

    fn tree(name: &str) -> CurrentSource {
        CurrentSource { digest: "sha256:00".into(), tree: name.into(), ..CurrentSource::default() }
    }

    fn entries(config: &[(&str, &str)]) -> Vec<Entry> {
        let entry = |(key, value): &(&str, &str)| {
            let value = serde_json::from_str(value).unwrap();
            Entry { key: (*key).into(), value, is_path: false, is_secret: key.contains("secret") }
        };
        config.iter().map(entry).collect()
    }

    /// Returns whether the CLI has to add secrets afterwards.
    fn apply(
        settings: &Settings,
        config: &[(&str, &str)],
        digest: &str,
        tree: &CurrentSource,
    ) -> Result<Vec<String>, ApplyError> {
        settings.apply(
            &Wanted { stack: "organization/example/dev", digest, config: &entries(config), environments: &[] },
            tree,
        )
    }

    fn text(layout: &Layout) -> String {
        std::fs::read_to_string(layout.source().join("Pulumi.dev.yaml")).unwrap()
    }

    #[test]
    fn a_removed_config_key_restores_the_value_of_the_source() {
        let place = place(Some("config:\n  example:size: small\n"));
        let settings = Settings::open(place.layout.clone());
        apply(&settings, &[("example:size", "\"big\""), ("example:extra", "true")], "one", &tree("a")).unwrap();
        assert!(text(&place.layout).contains("big") && text(&place.layout).contains("extra"));
        apply(&settings, &[], "two", &tree("a")).unwrap();
        let rebuilt = text(&place.layout);
        assert!(rebuilt.contains("small") && !rebuilt.contains("extra"), "{rebuilt}");
        assert_eq!(settings.digest(), "two");
    }

    #[test]
    fn unchanged_settings_are_not_rewritten_even_by_a_new_agent() {
        let place = place(None);
        apply(&Settings::open(place.layout.clone()), &[("example:a", "1")], "one", &tree("a")).unwrap();
        let path = place.layout.source().join("Pulumi.dev.yaml");
        std::fs::write(&path, "# touched\n").unwrap();
        let settings = Settings::open(place.layout.clone());
        assert_eq!(settings.digest(), "one");
        apply(&settings, &[("example:a", "1")], "one", &tree("a")).unwrap();
        assert_eq!(text(&place.layout), "# touched\n");
    }

    #[test]
    fn the_encryption_header_is_carried_over_to_the_next_source() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        apply(&settings, &[("example:a", "1")], "one", &tree("a")).unwrap();
        let left = format!("encryptionsalt: v1:abc=:v1:def:ghi\n{}", text(&place.layout));
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), left).unwrap();
        settings.keep(Some(&tree("a")));
        put_source(&place.layout, Some("config:\n  example:b: two\n"));
        apply(&settings, &[("example:a", "1")], "one", &tree("b")).unwrap();
        let rebuilt = text(&place.layout);
        for part in ["v1:abc=:v1:def:ghi", "example:a", "example:b"] {
            assert!(rebuilt.contains(part), "{part} is missing in:\n{rebuilt}");
        }
    }

    #[test]
    fn an_unreadable_settings_file_yields_no_header_and_does_not_block() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        apply(&settings, &[("example:a", "1")], "one", &tree("a")).unwrap();
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
        settings.keep(Some(&tree("a")));
        put_source(&place.layout, None);
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
        apply(&settings, &[], "one", &tree("b")).unwrap_err();
        settings.keep(Some(&tree("b")));
        put_source(&place.layout, None);
        apply(&settings, &[("example:a", "2")], "two", &tree("c")).unwrap();
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
        apply(&settings, &[("example:a", "3")], "three", &tree("c")).unwrap();
        assert!(text(&place.layout).contains("example:a: 3"), "{}", text(&place.layout));
    }

    #[test]
    fn long_stack_names_are_supported() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        let stack = "a".repeat(200);
        settings.apply(&Wanted { stack: &stack, digest: "one", config: &[], environments: &[] }, &tree("a")).unwrap();
        settings.keep(Some(&tree("a")));
        assert!(settings.kept(Path::new(&format!("Pulumi.{stack}.yaml"))).is_file());
    }

    #[test]
    fn secrets_are_encrypted_once_and_again_after_a_change() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        let config = |secret: &'static str| [("secret", secret), ("secret2", "\"z\""), ("a", "1")];
        let none: [String; 0] = [];
        let both = ["secret", "secret2"];
        assert_eq!(apply(&settings, &config("\"x\""), "one", &tree("a")).unwrap(), both);
        assert_eq!(apply(&settings, &config("\"x\""), "one", &tree("a")).unwrap(), both, "they are not encrypted yet");
        let encrypted =
            text(&place.layout) + "  example:secret:\n    secure: v1:x\n  example:secret2:\n    secure: v1:z\n";
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), encrypted).unwrap();
        settings.has_secret("secret2").unwrap();
        let settings = Settings::open(place.layout.clone());
        settings.has_secret("secret").unwrap();
        assert_eq!(apply(&settings, &config("\"x\""), "one", &tree("a")).unwrap(), none);

        settings.keep(Some(&tree("a")));
        put_source(&place.layout, None);
        let again = Settings::open(place.layout.clone());
        let applied = apply(&again, &config("\"x\""), "one", &tree("b")).unwrap();
        assert_eq!(applied, none, "the next source keeps them");
        assert!(text(&place.layout).contains("v1:x"));
        let applied = apply(&again, &config("\"y\""), "one", &tree("b")).unwrap();
        assert_eq!(applied, ["secret"], "only the changed secret is encrypted again");
        assert!(!text(&place.layout).contains("v1:x") && text(&place.layout).contains("v1:z"));
    }
}
