//! OpenSSH server. The server runs as the user who runs the tests.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::repository::Repository;

pub struct SshServer {
    child: Child,
    directory: TempDir,
    pub port: u16,
    pub user: String,
    repository: PathBuf,
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a key pair of the given type, with or without a passphrase.
pub fn key_pair(directory: &Path, name: &str, kind: &[&str], passphrase: &str) -> (String, String) {
    let path = directory.join(name);
    let generated = Command::new("ssh-keygen")
        .args(["-q", "-N", passphrase, "-C", "test", "-t"])
        .args(kind)
        .arg("-f")
        .arg(&path)
        .status();
    assert!(generated.expect("ssh-keygen is installed").success());
    (fs::read_to_string(&path).unwrap(), fs::read_to_string(path.with_extension("pub")).unwrap())
}

/// Returns the path of `sshd`. Debian installs `sshd` in a directory that is not on the `PATH` of every user.
fn program() -> PathBuf {
    let found = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.exists());
    found.expect("sshd is not installed: run `apt-get install openssh-server` or `tests/cluster/cluster up`")
}

impl SshServer {
    /// Starts a server that provides a repository to clients with this key. If `accept_version` is true, the server
    /// accepts the environment variable that selects version 2 of the Git protocol.
    pub fn of(repository: &Repository, authorized: &str, accept_version: bool) -> Self {
        let directory = TempDir::new().unwrap();
        let root = directory.path();
        key_pair(root, "host", &["ed25519"], "");
        key_pair(root, "host_rsa", &["rsa", "-b", "2048"], "");
        fs::write(root.join("authorized_keys"), authorized).unwrap();
        fs::set_permissions(root.join("authorized_keys"), fs::Permissions::from_mode(0o600)).unwrap();
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap().trim().to_owned();
        if user == "root" {
            // As root, `sshd` starts only if this directory exists.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let accepted = if accept_version { "AcceptEnv GIT_PROTOCOL" } else { "" };
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {root}/host\nHostKey {root}/host_rsa\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nPermitRootLogin yes\nAuthorizedKeysFile {root}/authorized_keys\n{accepted}\n",
            root = root.display()
        );
        fs::write(root.join("config"), config).unwrap();
        let log = fs::File::create(root.join("log")).unwrap();
        let child = Command::new(program())
            .args(["-D", "-e", "-f"])
            .arg(root.join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = SshServer { child, directory, port, user, repository: repository.path() };
        server.until_listening();
        server
    }

    fn until_listening(&self) {
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(20), "sshd does not listen: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn url(&self) -> String {
        format!("ssh://{}@127.0.0.1:{}{}", self.user, self.port, self.repository.display())
    }

    pub fn url_of(&self, path: &str) -> String {
        format!("ssh://{}@127.0.0.1:{}{path}", self.user, self.port)
    }

    /// Returns a `known_hosts` line that contains one of the server's host keys.
    pub fn known_host(&self, key: &str) -> String {
        let public = fs::read_to_string(self.directory.path().join(key).with_extension("pub")).unwrap();
        format!("[127.0.0.1]:{} {public}", self.port)
    }
}
