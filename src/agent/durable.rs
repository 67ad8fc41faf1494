//! Files that are whole after a crash: either the old content or the new one.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Replaces a file: the content reaches the disk before the name does. Only the owner may read it.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory =
        path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a file without a directory"))?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_directory(directory)
}

/// Makes the names in a directory durable.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Removes a file, a link or a whole directory. Nothing there is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The text of a file, or `None` when there is no such file.
pub fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_has_the_new_content_and_leaves_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(read_if_there(&path).unwrap().as_deref(), Some("two"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn removing_takes_files_links_and_trees_and_nothing_behind_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir_all(tree.join("inner")).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).unwrap();
        remove(&link).unwrap();
        assert!(tree.join("inner").is_dir());
        remove(&tree).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
