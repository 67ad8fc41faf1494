//! Directories in which the programs of a run write, and which also exist if the container's file system is read-only:
//! the home directory of the Pulumi CLI and a directory for temporary files.
//!
//! The CLI ignores `HOME` if `/etc/passwd` contains its user ID. `PULUMI_HOME` therefore contains a path on the share
//! volume, for runs and for commands that users run in the pod. This path is a link to the directory in the image, if
//! the CLI can write to it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::durable;
use super::layout::Layout;

/// File that contains the home directories of the image's users.
const PASSWD: &str = "/etc/passwd";
/// Maximum number of bytes of [`PASSWD`] that the agent reads.
const MAX_PASSWD: u64 = 1024 * 1024;
/// Name of the CLI's directory in a home directory.
const PULUMI_DIRECTORY: &str = ".pulumi";
/// Name of the directory in `PULUMI_HOME` that contains one directory per plugin.
pub const PLUGINS: &str = "plugins";

/// Creates the directories. The agent calls this function when it starts, and before it starts other programs.
pub fn prepare(layout: &Layout) -> io::Result<()> {
    let mut passwd = String::new();
    if let Ok(file) = File::open(PASSWD) {
        file.take(MAX_PASSWD).read_to_string(&mut passwd)?;
    }
    let user = rustix::process::getuid().as_raw();
    let home = home_of(&passwd, user).map(PathBuf::from).or_else(|| std::env::var_os("HOME").map(PathBuf::from));
    prepare_pulumi_home(&layout.pulumi_home(), home.as_deref())?;
    if let Err(error) = durable::remove(&layout.temporary()) {
        tracing::warn!(%error, "failed to remove the temporary files of the previous container");
    }
    fs::create_dir_all(layout.temporary())
}

/// Returns whether the process can create files in a directory.
pub fn is_writable(directory: &Path) -> bool {
    directory.is_dir() && rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Returns the home directory of a user ID from the content of [`PASSWD`].
fn home_of(passwd: &str, user: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_user = fields.next()?.parse() == Ok(user);
        fields.nth(2).filter(|home| is_user && !home.is_empty())
    })
}

/// Creates `path` as a link to the CLI's directory in `home`. If the CLI cannot write to that directory, the function
/// creates a directory that contains the plugins of the image. If `path` is a directory, for example on a persistent
/// volume, the function keeps it, and replaces only the plugins of the image, which can be another one.
fn prepare_pulumi_home(path: &Path, home: Option<&Path>) -> io::Result<()> {
    let own = home.filter(|home| home.is_absolute()).map(|home| home.join(PULUMI_DIRECTORY));
    let Some(own) = own.filter(|own| own != path) else { return make_directory(path) };
    let is_kept = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    // The creation fails if the directory exists, or if the home directory is not writable.
    if !is_kept && (fs::create_dir(&own).is_ok() || is_writable(&own)) {
        durable::remove(path)?;
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        return durable::symlink(&own, path);
    }
    make_directory(path)?;
    link_plugins(&own.join(PLUGINS), &path.join(PLUGINS))
}

/// Creates a directory, and replaces a link at its path.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_symlink() {
        durable::remove(path)?;
    }
    fs::create_dir_all(path)
}

/// Creates a directory for each plugin in `from`, with links to the files of the plugin, and removes such directories of
/// an earlier image. The CLI ignores a plugin whose directory is a link.
fn link_plugins(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for plugin in fs::read_dir(to)?.flatten().filter(|plugin| is_plugin_of_image(&plugin.path())) {
        durable::remove(&plugin.path())?;
    }
    // The image may have no plugins.
    for plugin in fs::read_dir(from).into_iter().flatten().flatten() {
        let Ok(files) = fs::read_dir(plugin.path()) else { continue };
        let linked = to.join(plugin.file_name());
        if linked.exists() {
            continue;
        }
        fs::create_dir(&linked)?;
        for file in files.flatten() {
            durable::symlink(&file.path(), &linked.join(file.file_name()))?;
        }
    }
    Ok(())
}

/// Returns whether a plugin consists of links to the plugin of the image: see [`link_plugins`].
pub fn is_plugin_of_image(plugin: &Path) -> bool {
    let files = fs::read_dir(plugin).into_iter().flatten().flatten();
    let mut kinds = files.filter_map(|file| file.file_type().ok()).peekable();
    kinds.peek().is_some() && kinds.all(|kind| kind.is_symlink())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\npulumi:x:1000:1000::/home/pulumi:/bin/sh\n\
                          empty:x:1001:1001:::\ninvalid\n";

    #[test]
    fn the_home_directory_of_a_user_id_is_read_from_passwd() {
        let rows = [(0, Some("/root")), (1000, Some("/home/pulumi")), (1001, None), (1_000_680_000, None)];
        for (user, expected) in rows {
            assert_eq!(home_of(PASSWD, user), expected, "{user}");
        }
    }

    #[test]
    fn a_writable_home_directory_of_the_cli_is_linked() {
        let directory = tempfile::tempdir().unwrap();
        let (home, path) = (directory.path().join("home"), directory.path().join("share/home/.pulumi"));
        fs::create_dir(&home).unwrap();
        for _ in 0..2 {
            prepare_pulumi_home(&path, Some(&home)).unwrap();
            assert_eq!(fs::read_link(&path).unwrap(), home.join(".pulumi"));
            fs::write(path.join("credentials.json"), "{}").unwrap();
        }
        assert!(home.join(".pulumi/credentials.json").is_file());
    }

    #[test]
    fn without_a_writable_home_directory_the_cli_keeps_the_plugins_of_the_image() {
        let directory = tempfile::tempdir().unwrap();
        let (home, path) = (directory.path().join("home"), directory.path().join("share/.pulumi"));
        let plugin = home.join(".pulumi/plugins/resource-aws-v6.0.0");
        fs::create_dir_all(&plugin).unwrap();
        fs::write(plugin.join("pulumi-resource-aws"), "binary").unwrap();
        let plugins = path.join("plugins");
        // A program has downloaded a plugin, and an earlier image contained another version.
        fs::create_dir_all(plugins.join("resource-tok-v1.0.0/inner")).unwrap();
        fs::create_dir(plugins.join("resource-aws-v5.0.0")).unwrap();
        durable::symlink(Path::new("/absent"), &plugins.join("resource-aws-v5.0.0/pulumi-resource-aws")).unwrap();
        for _ in 0..2 {
            // The directory exists, so the function does not replace it with a link.
            prepare_pulumi_home(&path, Some(&home)).unwrap();
            assert!(
                plugins.join("resource-tok-v1.0.0/inner").is_dir() && !plugins.join("resource-aws-v5.0.0").exists()
            );
            let linked = plugins.join("resource-aws-v6.0.0");
            assert!(!linked.is_symlink() && is_plugin_of_image(&linked));
            assert_eq!(fs::read_to_string(linked.join("pulumi-resource-aws")).unwrap(), "binary");
        }
        assert!(!is_plugin_of_image(&plugin) && !is_plugin_of_image(&plugins.join("absent")));
        // A file cannot contain the directory of the CLI, not even for root.
        fs::write(directory.path().join("file"), "").unwrap();
        for home in [None, Some(directory.path().join("file")), Some("relative".into())] {
            prepare_pulumi_home(&path, home.as_deref()).unwrap();
            assert!(path.is_dir() && !path.is_symlink(), "{home:?}");
        }
    }

    #[test]
    fn a_home_directory_on_the_share_volume_is_not_linked_to_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".pulumi");
        for _ in 0..2 {
            prepare_pulumi_home(&path, Some(directory.path())).unwrap();
            assert!(path.is_dir() && !path.is_symlink());
        }
    }
}
