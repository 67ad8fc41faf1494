//! Verifies SSH host keys with `known_hosts` lists. For each host, only the first list that contains a key for the host
//! applies. This module performs no I/O.

use russh::keys::ssh_key::known_hosts::{Entry, HostPatterns, Marker};
use russh::keys::{Algorithm, HashAlg, PublicKey};

use crate::source::git::error::GitError;
use crate::source::git::url::SshLocation;
use crate::source::git::wildcards::matches_host;

/// The built-in host keys of large public Git providers.
const BUILT_IN: &str = include_str!("known_hosts.txt");

/// Lists of trusted host keys, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    lists: Vec<List>,
}

#[derive(Clone, Debug)]
struct List {
    entries: Vec<Entry>,
    /// Number of invalid lines.
    unreadable: usize,
}

impl KnownHosts {
    /// Creates an instance with the lists in `texts`, followed by the built-in list.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let lists = texts.into_iter().map(|text| List::parse(&text));
        Self { lists: lists.chain(std::iter::once(List::parse(BUILT_IN))).collect() }
    }

    /// Returns the signature algorithms for a host's trusted keys. If the result is not empty, the client offers only
    /// these algorithms to the server.
    pub fn algorithms(&self, location: &SshLocation) -> Vec<Algorithm> {
        let mut algorithms = Vec::new();
        for key in self.keys(location) {
            for algorithm in signature_algorithms(&key.algorithm()) {
                if !algorithms.contains(&algorithm) {
                    algorithms.push(algorithm);
                }
            }
        }
        algorithms
    }

    /// Returns an error unless the host's trusted keys include this key.
    pub fn check(&self, location: &SshLocation, presented: &PublicKey) -> Result<(), GitError> {
        let known = self.keys(location);
        if known.iter().any(|key| key.key_data() == presented.key_data()) {
            return Ok(());
        }
        let host = &location.host;
        let key = format!("{} {}", presented.algorithm(), presented.fingerprint(HashAlg::Sha256));
        let port = if location.port == 22 { String::new() } else { format!("-p {} ", location.port) };
        let unreadable: usize = self.lists.iter().map(|list| list.unreadable).sum();
        let hint =
            if unreadable == 0 { String::new() } else { format!(" (invalid lines in known_hosts: {unreadable})") };
        Err(GitError::HostKey(match known.is_empty() {
            true => format!(
                "unknown host key of {host} ({key}){hint}: verify the key, then add the output of `ssh-keyscan {port}{host}` to the key \
                 `known_hosts` of the Secret with the SSH key, or for all Stacks to the ConfigMap pulumi-controller-git in the \
                 controller's namespace"
            ),
            false => format!(
                "host key of {host} ({key}) does not match known_hosts{hint}: the key has changed, or the connection is \
                 intercepted; if the change is legitimate, update `known_hosts`"
            ),
        }))
    }

    /// Returns the keys in the first list that contains a key for the host. As in OpenSSH, a key that any list revokes
    /// for the host is not trusted.
    fn keys(&self, location: &SshLocation) -> Vec<&PublicKey> {
        let name = match location.port {
            22 => location.host.clone(),
            port => format!("[{}]:{port}", location.host),
        };
        let revoked: Vec<&PublicKey> =
            self.lists.iter().flat_map(|list| list.keys(&name, Some(&Marker::Revoked))).collect();
        let mut trusted = self.lists.iter().map(|list| list.keys(&name, None));
        let mut keys = trusted.find(|keys| !keys.is_empty()).unwrap_or_default();
        keys.retain(|key| !revoked.iter().any(|other| other.key_data() == key.key_data()));
        keys
    }
}

impl List {
    fn parse(text: &str) -> Self {
        let mut list = List { entries: Vec::new(), unreadable: 0 };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            match line.parse() {
                Ok(entry) => list.entries.push(entry),
                Err(_) => list.unreadable += 1,
            }
        }
        list
    }

    /// Returns the keys in the entries with this marker for the host `name`.
    fn keys(&self, name: &str, marker: Option<&Marker>) -> Vec<&PublicKey> {
        let is_match = |entry: &&Entry| entry.marker() == marker && matches(entry.host_patterns(), name);
        self.entries.iter().filter(is_match).map(Entry::public_key).collect()
    }
}

/// Returns the signature algorithms for a key type. An RSA key supports more than one algorithm.
fn signature_algorithms(algorithm: &Algorithm) -> Vec<Algorithm> {
    match algorithm {
        Algorithm::Rsa { .. } => {
            [Some(HashAlg::Sha512), Some(HashAlg::Sha256)].map(|hash| Algorithm::Rsa { hash }).to_vec()
        }
        other => vec![other.clone()],
    }
}

fn matches(patterns: &HostPatterns, name: &str) -> bool {
    match patterns {
        HostPatterns::Patterns(patterns) => {
            let fits = |pattern: &str| matches_host(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            let excluded = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(fits);
            !excluded && patterns.iter().filter(|pattern| !pattern.starts_with('!')).any(|pattern| fits(pattern))
        }
        HostPatterns::HashedName { salt, hash } => {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
            ring::hmac::verify(&key, name.as_bytes(), hash).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfuCHKVTjquxvt6CM6tdG4SLp1Btn/nOeHHE5UOzRdf";

    fn location(host: &str, port: u16) -> SshLocation {
        SshLocation { user: "git".to_owned(), host: host.to_owned(), port, path: "a".to_owned() }
    }

    fn check(lists: &[&str], host: &str, port: u16, key: &str) -> Result<(), String> {
        let known = KnownHosts::new(lists.iter().map(|list| (*list).to_owned()));
        known.check(&location(host, port), &PublicKey::from_openssh(key).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_built_in_host_keys_match_the_published_fingerprints() {
        let published = [
            ("github.com", "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"),
            ("github.com", "SHA256:p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM"),
            ("github.com", "SHA256:uNiVztksCsDhcc0u9e8BujQXVUpKZIDTMczCvj3tD2s"),
            ("gitlab.com", "SHA256:eUXGGm1YGsMAS7vkcx6JOJdOGHPem5gQp4taiCfCLB8"),
            ("gitlab.com", "SHA256:HbW3g8zUjNSksFbqTiUWPWg2Bq1x8xdGUrliXFzSnUw"),
            ("gitlab.com", "SHA256:ROQFvPThGrW4RuWLoL9tq9I9zJ42fK4XywyRtbOz/EQ"),
            ("bitbucket.org", "SHA256:ybgmFkzwOSotHTHLJgHO0QN8L0xErw6vd0VhFA9m3SM"),
            ("bitbucket.org", "SHA256:FC73VB6C4OQLSCrjEayhMp9UMxS97caD/Yyi2bhW/J0"),
            ("bitbucket.org", "SHA256:46OSHA1Rmj8E8ERTC6xkNcmGOw9oFxYr0WF6zWW8l1E"),
            ("ssh.dev.azure.com", "SHA256:ohD8VZEXGWo6Ez8GSEJQ9WpafgLFsOfLOtGGQCQo6Og"),
        ];
        let built_in = KnownHosts::new([]);
        assert_eq!(built_in.lists[0].unreadable, 0);
        for (host, fingerprint) in published {
            let location = location(host, 22);
            let found =
                built_in.keys(&location).iter().any(|k| k.fingerprint(HashAlg::Sha256).to_string() == fingerprint);
            assert!(found, "{host} {fingerprint}");
        }
        assert_eq!(built_in.lists[0].entries.len(), published.len());
    }

    #[test]
    fn a_host_is_matched_by_name_port_pattern_or_hash() {
        // The output of `ssh-keygen -H` for `git.example` has this format.
        let hashed = {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"salt-of-twenty-bytes");
            use base64::Engine as _;
            let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
            let tag = ring::hmac::sign(&key, b"git.example");
            format!("|1|{}|{} {ONE}", encode(b"salt-of-twenty-bytes"), encode(tag.as_ref()))
        };
        let rows = [
            (format!("git.example {ONE}"), "git.example", 22, true),
            (format!("git.example {ONE} a comment"), "git.example", 22, true),
            (format!("git.example {ONE}"), "git.example", 2222, false),
            (format!("[git.example]:2222 {ONE}"), "git.example", 2222, true),
            (format!("other,git.example {ONE}"), "git.example", 22, true),
            (format!("*.example {ONE}"), "git.example", 22, true),
            (format!("*.example,!git.example {ONE}"), "git.example", 22, false),
            (format!("gi?.example {ONE}"), "git.example", 22, true),
            (hashed, "git.example", 22, true),
            (format!("@revoked git.example {ONE}\ngit.example {ONE}"), "git.example", 22, false),
            (format!("@cert-authority git.example {ONE}"), "git.example", 22, false),
            (format!("# git.example {ONE}\n\ngarbage"), "git.example", 22, false),
        ];
        for (list, host, port, known) in rows {
            assert_eq!(check(&[&list], host, port, ONE).is_ok(), known, "{list} {host}:{port}");
        }
    }

    #[test]
    fn the_first_known_hosts_list_that_contains_the_host_is_used() {
        let (one, other) = (format!("git.example {ONE}"), format!("git.example {OTHER}"));
        assert_eq!(check(&[&one, &other], "git.example", 22, ONE), Ok(()));
        assert!(check(&[&other, &one], "git.example", 22, ONE).unwrap_err().contains("does not match known_hosts"));
        let pinned = format!("github.com {OTHER}");
        assert!(check(&[&pinned], "github.com", 22, ONE).is_err(), "a Secret can override a built-in host key");
    }

    #[test]
    fn a_key_that_a_list_revokes_is_not_trusted_from_another_list() {
        let (one, other) = (format!("git.example {ONE}"), format!("git.example {OTHER}"));
        let revoked = format!("@revoked *.example {ONE}");
        let both = format!("{one}\n{other}");
        for lists in [[revoked.as_str(), both.as_str()], [both.as_str(), revoked.as_str()]] {
            assert!(check(&lists, "git.example", 22, ONE).is_err(), "{lists:?}");
            assert_eq!(check(&lists, "git.example", 22, OTHER), Ok(()), "{lists:?}");
        }
        let built_in = BUILT_IN.lines().find_map(|line| line.strip_prefix("github.com ")).unwrap();
        assert_eq!(check(&[], "github.com", 22, built_in), Ok(()));
        assert!(check(&[&format!("@revoked github.com {built_in}")], "github.com", 22, built_in).is_err());
    }

    #[test]
    fn the_error_for_an_unknown_host_key_explains_how_to_trust_it() {
        let message = check(&["garbage here"], "git.example", 2222, ONE).unwrap_err();
        for part in [
            "ssh-keyscan -p 2222 git.example",
            "SHA256:+DiY3w",
            "known_hosts",
            "pulumi-controller-git",
            "invalid lines in known_hosts: 1",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[test]
    fn only_algorithms_of_known_host_keys_are_offered() {
        let known = KnownHosts::new([format!("git.example {ONE}")]);
        assert_eq!(known.algorithms(&location("git.example", 22)), [Algorithm::Ed25519]);
        assert_eq!(known.algorithms(&location("ssh.dev.azure.com", 22)).len(), 2);
        assert!(known.algorithms(&location("elsewhere", 22)).is_empty());
    }
}
