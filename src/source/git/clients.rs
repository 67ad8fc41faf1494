//! HTTP clients for the APIs of GitHub Apps.

use std::sync::{Mutex, PoisonError};

use crate::source::git::error::GitError;
use crate::source::git::http::{self, Proxies};

/// Clients for the APIs of GitHub Apps. The client without additional certificates is cached until the certificates for all Stacks
/// change.
#[derive(Debug, Default)]
pub struct Clients {
    pub proxies: Proxies,
    kept: Mutex<Option<(Option<String>, reqwest::Client)>>,
}

impl Clients {
    pub fn of_environment() -> Self {
        Self { proxies: Proxies::of_environment(), kept: Mutex::default() }
    }

    /// Returns a client that trusts the system certificates, the certificates for all Stacks (`for_all`), and `own`.
    pub(super) fn client(
        &self,
        for_all: Option<String>,
        own: Vec<String>,
        local: bool,
    ) -> Result<reqwest::Client, GitError> {
        if !own.is_empty() {
            return http::client(&own.into_iter().chain(for_all).collect::<Vec<_>>(), &self.proxies, local);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = kept.as_ref().filter(|(made_with, _)| *made_with == for_all) {
            return Ok(client.clone());
        }
        let client = http::client(&for_all.iter().cloned().collect::<Vec<_>>(), &self.proxies, local)?;
        *kept = Some((for_all, client.clone()));
        Ok(client)
    }
}
