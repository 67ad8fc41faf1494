//! The stack's settings file as a state: rebuilt from the source's own file and the settings that were sent, whenever either
//! is another one than before. What is not sent any more is gone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::durable;
use super::layout::Layout;
use super::source::InPlace;
use crate::pulumi::project::{Project, ProjectError};
use crate::pulumi::settings::{self, SettingsError};
use crate::rpc::proto;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error("the value of config key {key:?} is not JSON: {reason}")]
    Value { key: String, reason: String },
    #[error(transparent)]
    Rebuild(#[from] SettingsError),
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

/// The settings that were written last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// The source that they were written into.
    tree: String,
    stack: String,
    digest: String,
    /// The settings file, relative to the project.
    file: PathBuf,
}

/// Keeps the settings files of the source in place.
pub struct Settings {
    layout: Layout,
    written: Mutex<Option<Written>>,
}

impl Settings {
    /// Goes on from what an agent before this one wrote.
    pub fn open(layout: Layout) -> Self {
        let written = std::fs::read(layout.settings().join("written.json")).ok();
        let written = written.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Settings { layout, written: Mutex::new(written) }
    }

    /// Digest of the settings that were written last; empty before the first time.
    pub fn digest(&self) -> String {
        self.written().as_ref().map(|written| written.digest.clone()).unwrap_or_default()
    }

    /// Makes the settings file what it shall be. Touches nothing when it is that already.
    pub fn apply(&self, wanted: &proto::Settings, digest: &str, in_place: &InPlace) -> Result<(), ApplyError> {
        let mut written = self.written();
        let project = Project::read(&self.layout.workspace())?;
        let file = project.settings_path(&wanted.stack);
        let path = self.layout.workspace().join(&file);
        let now = Written {
            tree: in_place.tree.clone(),
            stack: wanted.stack.clone(),
            digest: digest.to_owned(),
            file: file.clone(),
        };
        if written.as_ref() == Some(&now) && path.is_file() {
            return Ok(());
        }
        let original = self.original(&in_place.tree, &file, &path)?;
        let was_ours = written.as_ref().is_some_and(|written| written.tree == in_place.tree);
        let current = self.current(&file, &path, was_ours);
        let config = config(wanted)?;
        let format = project.settings_format();
        let text = settings::rebuild(original.as_deref(), current.as_deref(), &project.name, &config, format)?;
        // Until it is written again, nothing is known of the file.
        self.record(&mut written, None)?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed("make", directory))?;
        }
        durable::write_atomically(&path, text.as_bytes()).map_err(failed("write", &path))?;
        self.record(&mut written, Some(now))
    }

    /// Keeps the settings file of the source that is about to be replaced: its encryption header goes into the next one.
    /// That it cannot be kept must not keep the next source away, which may be the one that mends it.
    pub fn keep(&self, in_place: Option<&InPlace>) {
        let Some(written) = self.written().clone() else { return };
        // Of a source before it: what is there now is not what the CLI left.
        if in_place.is_none_or(|in_place| in_place.tree != written.tree) {
            return;
        }
        if let Err(error) = self.keep_file(&written) {
            tracing::warn!(%error, "cannot keep the stack's settings file for the next source");
        }
    }

    fn keep_file(&self, written: &Written) -> Result<(), ApplyError> {
        let path = self.layout.workspace().join(&written.file);
        let Some(text) = durable::read_if_there(&path).map_err(failed("read", &path))? else { return Ok(()) };
        let kept = self.kept(&written.file);
        if let Some(directory) = kept.parent() {
            std::fs::create_dir_all(directory).map_err(failed("make", directory))?;
        }
        durable::write_atomically(&kept, text.as_bytes()).map_err(failed("write", &kept))
    }

    /// The file as it came with the source; `None` when the source has none. The first look at a source is kept.
    fn original(&self, tree: &str, file: &Path, path: &Path) -> Result<Option<String>, ApplyError> {
        let directory = self.layout.settings().join("originals");
        let of_tree = directory.join(tree);
        let kept = of_tree.join(flat_name(file));
        if let Some(kept) = durable::read_if_there(&kept).map_err(failed("read", &kept))? {
            return serde_json::from_str(&kept).map_err(|error| failed("read", &of_tree)(error.into()));
        }
        if !of_tree.is_dir() {
            // Those of sources that are gone.
            durable::remove(&directory).map_err(failed("remove", &directory))?;
            std::fs::create_dir_all(&of_tree).map_err(failed("make", &of_tree))?;
        }
        let original = durable::read_if_there(path).map_err(failed("read", path))?;
        let text = serde_json::to_vec(&original).map_err(|error| failed("write", &kept)(error.into()))?;
        durable::write_atomically(&kept, &text).map_err(failed("write", &kept))?;
        Ok(original)
    }

    /// The file as the CLI left it, in this source or in the one before. One that cannot be read has no header to keep.
    fn current(&self, file: &Path, path: &Path, was_ours: bool) -> Option<String> {
        let own = if was_ours { read_or_warn(path) } else { None };
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
        tracing::warn!(path = %path.display(), %error, "cannot read the stack's settings file as the CLI left it");
        None
    })
}

/// A name in one directory for a file in a tree. The path may lead anywhere and be longer than a name may be, so that it
/// cannot be used as it is.
fn flat_name(file: &Path) -> String {
    hex::encode(Sha256::digest(file.as_os_str().as_encoded_bytes()))
}

fn config(wanted: &proto::Settings) -> Result<Vec<(String, Value)>, ApplyError> {
    let parse = |item: &proto::ConfigItem| match serde_json::from_str(&item.value) {
        Ok(value) => Ok((item.key.clone(), value)),
        Err(error) => Err(ApplyError::Value { key: item.key.clone(), reason: error.to_string() }),
    };
    wanted.config.iter().map(parse).collect()
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

    /// A workspace whose source has the given settings file.
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

    fn tree(name: &str) -> InPlace {
        InPlace { digest: "sha256:00".into(), tree: name.into(), ..InPlace::default() }
    }

    fn wanted(config: &[(&str, &str)]) -> proto::Settings {
        let item = |(key, value): &(&str, &str)| proto::ConfigItem { key: (*key).into(), value: (*value).into() };
        proto::Settings { stack: "organization/example/dev".into(), config: config.iter().map(item).collect() }
    }

    fn text(layout: &Layout) -> String {
        std::fs::read_to_string(layout.source().join("Pulumi.dev.yaml")).unwrap()
    }

    #[test]
    fn a_key_that_is_not_sent_any_more_is_gone_and_the_sources_own_one_is_back() {
        let place = place(Some("config:\n  example:size: small\n"));
        let settings = Settings::open(place.layout.clone());
        settings.apply(&wanted(&[("example:size", "\"big\""), ("example:extra", "true")]), "one", &tree("a")).unwrap();
        assert!(text(&place.layout).contains("big") && text(&place.layout).contains("extra"));
        settings.apply(&wanted(&[]), "two", &tree("a")).unwrap();
        let rebuilt = text(&place.layout);
        assert!(rebuilt.contains("small") && !rebuilt.contains("extra"), "{rebuilt}");
        assert_eq!(settings.digest(), "two");
    }

    #[test]
    fn settings_that_are_in_force_are_not_written_again_even_by_another_agent() {
        let place = place(None);
        Settings::open(place.layout.clone()).apply(&wanted(&[("example:a", "1")]), "one", &tree("a")).unwrap();
        let path = place.layout.source().join("Pulumi.dev.yaml");
        std::fs::write(&path, "# touched\n").unwrap();
        let settings = Settings::open(place.layout.clone());
        assert_eq!(settings.digest(), "one");
        settings.apply(&wanted(&[("example:a", "1")]), "one", &tree("a")).unwrap();
        assert_eq!(text(&place.layout), "# touched\n");
    }

    #[test]
    fn the_encryption_header_goes_along_into_the_next_source() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        settings.apply(&wanted(&[("example:a", "1")]), "one", &tree("a")).unwrap();
        let left = format!("encryptionsalt: v1:abc=:v1:def:ghi\n{}", text(&place.layout));
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), left).unwrap();
        settings.keep(Some(&tree("a")));
        put_source(&place.layout, Some("config:\n  example:b: two\n"));
        settings.apply(&wanted(&[("example:a", "1")]), "one", &tree("b")).unwrap();
        let rebuilt = text(&place.layout);
        for part in ["v1:abc=:v1:def:ghi", "example:a", "example:b"] {
            assert!(rebuilt.contains(part), "{part} is missing in:\n{rebuilt}");
        }
    }

    #[test]
    fn a_settings_file_that_cannot_be_read_is_no_header_and_stops_nothing() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        settings.apply(&wanted(&[("example:a", "1")]), "one", &tree("a")).unwrap();
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
        settings.keep(Some(&tree("a")));
        put_source(&place.layout, None);
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
        settings.apply(&wanted(&[]), "one", &tree("b")).unwrap_err();
        settings.keep(Some(&tree("b")));
        put_source(&place.layout, None);
        settings.apply(&wanted(&[("example:a", "2")]), "two", &tree("c")).unwrap();
        std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
        settings.apply(&wanted(&[("example:a", "3")]), "three", &tree("c")).unwrap();
        assert!(text(&place.layout).contains("example:a: 3"), "{}", text(&place.layout));
    }

    #[test]
    fn a_stack_may_have_a_long_name() {
        let place = place(None);
        let settings = Settings::open(place.layout.clone());
        let stack = "a".repeat(200);
        let wanted = proto::Settings { stack: stack.clone(), config: Vec::new() };
        settings.apply(&wanted, "one", &tree("a")).unwrap();
        settings.keep(Some(&tree("a")));
        assert!(settings.kept(Path::new(&format!("Pulumi.{stack}.yaml"))).is_file());
    }
}
