//! A Git repository with a long history and many large files. The benchmark creates the repository once, and then
//! reuses the repository.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Number of commits.
pub const COMMITS: usize = 10_000;
/// Number of large files, each with a size of one megabyte. The last commits add these files.
pub const MEGABYTES: usize = 200;
const MEGABYTE: usize = 1_000_000;
/// Number of large files per commit.
const FILES_PER_COMMIT: usize = 10;
/// Number of small files. The commits without large files change the small files in turn.
const SMALL_FILES: usize = 500;
/// Time of the first commit, in seconds since the Unix epoch. The other commits follow at intervals of one minute.
/// Fixed times make the commits reproducible.
const BEGAN: usize = 1_700_000_000;

/// A repository that later runs of the benchmark reuse.
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// Returns the repository in a directory. Creates the repository if it does not exist.
    pub fn in_folder(folder: &Path) -> Repository {
        let root = folder.join(format!("repository-{COMMITS}-{MEGABYTES}"));
        if !root.is_dir() {
            println!("creating a repository with {COMMITS} commits and {MEGABYTES} MB in {}", root.display());
            std::fs::create_dir_all(folder).expect("the directory of the benchmarks is writable");
            let unfinished = tempfile::tempdir_in(folder).expect("a temporary folder");
            make(unfinished.path());
            std::fs::rename(unfinished.keep(), &root).expect("the complete repository is renamed");
        }
        Repository { root }
    }

    /// Returns the servers' root directory, which contains the repository in the subdirectory `app`.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Returns a `git` command for a directory, without the settings and proxies of the user who runs the benchmarks.
pub fn git(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(directory).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

fn make(root: &Path) {
    let init = git(root, &["init", "--quiet", "--bare", "--initial-branch=main", "app"]).status();
    assert!(init.expect("`git` starts").success(), "`git init` failed");
    let mut import = git(&root.join("app"), &["fast-import", "--quiet"]);
    let mut import = import.stdin(Stdio::piped()).spawn().expect("`git` starts");
    let stream = import.stdin.take().expect("the standard input is piped");
    write_history(&mut BufWriter::new(stream)).expect("`git fast-import` reads the history");
    assert!(import.wait().expect("the process can be awaited").success(), "`git fast-import` failed");
}

fn write_history(to: &mut impl Write) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(3);
    let first_large = COMMITS - MEGABYTES.div_ceil(FILES_PER_COMMIT);
    for number in 0..COMMITS {
        let time = BEGAN + 60 * number;
        writeln!(to, "commit refs/heads/main\ncommitter Test <test@example.com> {time} +0000\ndata 8\na change")?;
        match number.checked_sub(first_large) {
            None => {
                let path = format!("src/{:02}/{:03}.txt", number % 20, number % SMALL_FILES);
                write_file(to, &path, format!("{number}\n").repeat(100).as_bytes())?;
            }
            Some(step) => {
                for file in step * FILES_PER_COMMIT..MEGABYTES.min((step + 1) * FILES_PER_COMMIT) {
                    let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(MEGABYTE).collect();
                    write_file(to, &format!("large/{file:03}.bin"), &content)?;
                }
            }
        }
    }
    to.flush()
}

fn write_file(to: &mut impl Write, path: &str, content: &[u8]) -> std::io::Result<()> {
    writeln!(to, "M 100644 inline {path}\ndata {}", content.len())?;
    to.write_all(content)?;
    to.write_all(b"\n")
}
