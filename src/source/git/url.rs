//! Repository URLs in the formats that Git supports. This module performs no I/O.

use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;

/// A repository URL without credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepositoryUrl {
    text: String,
    location: Location,
}

/// The protocol and location of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A URL with the scheme `https` or `http`.
    Http(Url),
    Ssh(SshLocation),
}

/// The location of a repository on an SSH server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SshLocation {
    pub user: String,
    pub host: String,
    pub port: u16,
    pub path: String,
}

const FORMS: &str = "must have the form https://HOST/PATH, http://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH";

impl TryFrom<String> for RepositoryUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<RepositoryUrl> for String {
    fn from(url: RepositoryUrl) -> Self {
        url.text
    }
}

impl RepositoryUrl {
    /// Parses a URL. The error does not contain `text`, because `text` can contain a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !text.contains("://") {
            return Self::short_ssh(text);
        }
        let mut url = Url::parse(text).map_err(|error| format!("{FORMS} ({error})"))?;
        if url.password().is_some() {
            let what = "must not contain a password: store it in a Secret, and set spec.gitAuth or spec.gitAuthSecret of \
                        the Stack, or spec.git.auth of the Workspace";
            return Err(what.to_owned());
        }
        let host = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned);
        let host = host.ok_or_else(|| format!("{FORMS} (no host)"))?;
        if url.path().trim_matches('/').is_empty() {
            return Err(format!("{FORMS} (no path on host {host})"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must not have a query or a fragment".to_owned());
        }
        match url.scheme() {
            "https" | "http" => {
                // Removes the user name, because the user name is part of the credentials.
                if url.set_username("").is_err() {
                    return Err(FORMS.to_owned());
                }
                Ok(Self { text: url.to_string(), location: Location::Http(url) })
            }
            "ssh" | "git+ssh" | "ssh+git" => {
                let user = decoded(url.username()).filter(|user| !user.is_empty()).unwrap_or_else(|| "git".to_owned());
                let path = decoded(url.path()).ok_or_else(|| "path must be UTF-8".to_owned())?;
                // `ssh://host/~user/repository` refers to the home directory of `user`.
                let path = if path.starts_with("/~") { path.trim_start_matches('/').to_owned() } else { path };
                Self::ssh(text.to_owned(), user, &host, url.port().unwrap_or(22), path)
            }
            other => Err(format!("{FORMS} (unsupported scheme {other})")),
        }
    }

    /// Parses `user@host:path`.
    fn short_ssh(text: &str) -> Result<Self, String> {
        let (location, path) = text.split_once(':').ok_or_else(|| FORMS.to_owned())?;
        let (user, host) = location.split_once('@').unwrap_or(("git", location));
        if host.is_empty() || user.is_empty() || path.trim_matches('/').is_empty() || location.contains('/') {
            return Err(FORMS.to_owned());
        }
        Self::ssh(text.to_owned(), user.to_owned(), host, 22, path.to_owned())
    }

    fn ssh(text: String, user: String, host: &str, port: u16, path: String) -> Result<Self, String> {
        if [user.as_str(), host, path.as_str()].iter().any(|part| part.contains(char::is_control)) {
            return Err("must not contain a control character".to_owned());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        Ok(Self { text, location: Location::Ssh(SshLocation { user, host, port, path }) })
    }

    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the server's host name.
    pub fn host(&self) -> &str {
        match &self.location {
            Location::Http(url) => url.host_str().unwrap_or_default(),
            Location::Ssh(location) => &location.host,
        }
    }
}

impl fmt::Display for RepositoryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Decodes a percent-encoded string. Returns `None` if the encoding is invalid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_git_url_form_is_parsed() {
        let ssh = |user: &str, host: &str, port, path: &str| {
            Location::Ssh(SshLocation { user: user.to_owned(), host: host.to_owned(), port, path: path.to_owned() })
        };
        let rows = [
            ("git@github.com:org/app.git", ssh("git", "github.com", 22, "org/app.git")),
            ("github.com:org/app", ssh("git", "github.com", 22, "org/app")),
            ("ssh://git@github.com/org/app.git", ssh("git", "github.com", 22, "/org/app.git")),
            ("ssh://me@Host.example:2222/srv/a%20b", ssh("me", "host.example", 2222, "/srv/a b")),
            ("ssh://host/~me/app", ssh("git", "host", 22, "~me/app")),
            ("git+ssh://host/app", ssh("git", "host", 22, "/app")),
        ];
        for (text, expected) in rows {
            let url = RepositoryUrl::parse(text).unwrap();
            assert_eq!((url.location(), url.to_string().as_str()), (&expected, text));
        }
        let url = RepositoryUrl::parse(" https://me@example.com:8443/org/app.git ").unwrap();
        assert_eq!(url.to_string(), "https://example.com:8443/org/app.git", "the user name is removed");
        assert_eq!(url.host(), "example.com");
    }

    #[test]
    fn the_error_for_an_invalid_repository_url_contains_no_password() {
        let rows = [
            ("https://me:hunter2@example.com/app", "must not contain a password"),
            ("file:///etc", "no host"),
            ("git://example.com/app", "unsupported scheme git"),
            ("https://example.com/", "no path on host example.com"),
            ("https://example.com/app?x=1", "a query"),
            ("/srv/app", "must have the form"),
            ("./a:b", "must have the form"),
            ("git@host:", "must have the form"),
            ("https://", "must have the form"),
            ("ssh://host/a%0ab", "control character"),
            ("", "must have the form"),
        ];
        for (text, expected) in rows {
            let message = RepositoryUrl::parse(text).expect_err(text);
            assert!(message.contains(expected) && !message.contains("hunter2"), "{text}: {message}");
        }
    }
}
