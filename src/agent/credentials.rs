//! Reads the CLI's credentials file, which contains the state backend of the last login and the access tokens.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::pulumi::cli::PULUMI_HOME;

/// Environment variables that set the directory of the credentials file, in order of precedence.
const DIRECTORIES: [&str; 2] = ["PULUMI_CREDENTIALS_PATH", PULUMI_HOME];
const FILE: &str = "credentials.json";
/// Maximum size of the file in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Content of the credentials file.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Credentials {
    /// URL of the state backend to which a client last logged in. Empty if no client has logged in.
    pub current: String,
    /// Accounts, with the URLs of their state backends as keys.
    accounts: BTreeMap<String, Account>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Account {
    access_token: String,
    token_information: Option<TokenInformation>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TokenInformation {
    expires_at: Option<String>,
}

/// A stored access token.
pub struct AccessToken {
    pub token: Zeroizing<String>,
    /// Expiration time, or `None` if the file contains no expiration time.
    pub expires: Option<Timestamp>,
}

impl Credentials {
    /// Returns the access token for a state backend, or `None` if the file contains no such token.
    pub fn access_token(mut self, url: &str) -> Option<AccessToken> {
        let Account { access_token, token_information } = self.accounts.remove(url)?;
        let token = Zeroizing::new(access_token);
        let expires = token_information.and_then(|information| information.expires_at?.parse().ok());
        (!token.is_empty()).then_some(AccessToken { token, expires })
    }
}

/// Reads the credentials file that the CLI uses with these environment variables. Returns `None` if the file does not
/// exist or cannot be parsed, for example because the CLI has encrypted the file.
pub fn read(variables: &BTreeMap<OsString, OsString>) -> Option<Credentials> {
    let mut text = Zeroizing::new(String::new());
    // Without this flag, the call would block on a named pipe until another process opens the pipe for writing.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(directory(variables)?.join(FILE)).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    file.take(MAX_SIZE).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn directory(variables: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    let given = |name: &str| variables.get(OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from);
    DIRECTORIES.iter().find_map(|name| given(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://api.pulumi.com";

    fn read_text(text: &str) -> Option<Credentials> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), text).unwrap();
        read(&BTreeMap::from([("PULUMI_HOME".into(), directory.path().into())]))
    }

    #[test]
    fn access_tokens_and_their_expirations_are_read() {
        let account = |account: &str| format!(r#"{{"current": "{URL}", "accounts": {{"{URL}": {account}}}}}"#);
        let expires = "2026-01-01T12:00:00.5+01:00";
        let rows = [
            (
                account(&format!(r#"{{"accessToken": "pul-1", "tokenInformation": {{"expiresAt": "{expires}"}}}}"#)),
                Some(("pul-1", Some(expires))),
            ),
            (account(r#"{"accessToken": "pul-1", "tokenInformation": {"name": "ci"}}"#), Some(("pul-1", None))),
            (account(r#"{"accessToken": "pul-1", "tokenInformation": {"expiresAt": "soon"}}"#), Some(("pul-1", None))),
            (account(r#"{"accessToken": "pul-1", "insecure": false}"#), Some(("pul-1", None))),
            (account(r#"{"username": "jane"}"#), None),
            ("{}".to_owned(), None),
        ];
        for (text, expected) in rows {
            let found = read_text(&text).unwrap().access_token(URL);
            let found = found.as_ref().map(|found| (found.token.as_str(), found.expires));
            let expected =
                expected.map(|(token, expires)| (token, expires.map(|time| time.parse::<Timestamp>().unwrap())));
            assert_eq!(found, expected, "{text}");
        }
        assert!(read_text("an encrypted file").is_none());
    }

    #[test]
    fn a_named_pipe_is_not_a_credentials_file() {
        let directory = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(directory.path().join(FILE)).status().unwrap();
        assert!(made.success());
        assert!(read(&BTreeMap::from([("PULUMI_HOME".into(), directory.path().into())])).is_none());
    }

    #[test]
    fn the_file_is_in_the_directory_that_the_cli_uses() {
        let table = [
            (&[("HOME", "/home/a"), ("PULUMI_HOME", "/b")][..], Some("/b")),
            (&[("PULUMI_CREDENTIALS_PATH", ""), ("PULUMI_HOME", "/b")][..], Some("/b")),
            (&[("PULUMI_CREDENTIALS_PATH", "/c"), ("PULUMI_HOME", "/b")][..], Some("/c")),
            (&[][..], None),
        ];
        for (variables, expected) in table {
            let variables: BTreeMap<OsString, OsString> =
                variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            assert_eq!(directory(&variables), expected.map(PathBuf::from), "{variables:?}");
        }
    }
}
