//! CA generations: the current CA signs certificates, and the next CA and the previous CA are only trusted.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

use crate::rpc::identity::{Authority, IdentityError, Issued};

/// Current, next and previous CA. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Generations {
    current: Arc<Authority>,
    next: Option<Pending>,
    previous: Option<Pending>,
    bundle: String,
}

/// Next CA and its promotion time, or previous CA and its removal time. Without a time, only a user can promote or
/// remove the CA.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub authority: Arc<Authority>,
    pub until: Option<Timestamp>,
}

impl Generations {
    /// Creates generations that contain a current CA, but neither a next CA nor a previous CA.
    pub fn first(authority: Authority) -> Self {
        Self::new(Arc::new(authority), None, None)
    }

    pub(super) fn new(current: Arc<Authority>, next: Option<Pending>, previous: Option<Pending>) -> Self {
        let others = next.iter().chain(&previous).map(|pending| pending.authority.certificate_pem());
        let bundle = std::iter::once(current.certificate_pem()).chain(others).collect();
        Generations { current, next, previous, bundle }
    }

    /// Returns the CA that signs certificates.
    pub fn current(&self) -> &Authority {
        &self.current
    }

    /// Returns the certificates of all generations as a PEM bundle. Both sides of a connection must trust all
    /// certificates in the bundle.
    pub fn bundle_pem(&self) -> &str {
        &self.bundle
    }

    /// Issues the client certificates of the controller: one from the current CA, and one from the previous CA. The
    /// previous CA's certificate is for pods that do not trust the current CA yet.
    pub(super) fn issue_clients(&self, now: Timestamp) -> Result<Vec<Issued>, IdentityError> {
        let previous = self.previous.as_ref().map(|pending| pending.authority.as_ref());
        std::iter::once(self.current.as_ref()).chain(previous).map(|authority| authority.issue_client(now)).collect()
    }

    pub(super) fn next(&self) -> Option<&Pending> {
        self.next.as_ref()
    }

    pub(super) fn previous(&self) -> Option<&Pending> {
        self.previous.as_ref()
    }

    /// Returns whether the bundle contains the given CA certificate.
    pub(super) fn trusts(&self, certificate: &CertificateDer<'_>) -> bool {
        let others = [&self.next, &self.previous].into_iter().flatten().map(|pending| &pending.authority);
        std::iter::once(&self.current).chain(others).any(|authority| authority.certificate() == certificate)
    }

    /// Returns the generations with `next` as the next CA, which the controller promotes at `promote_at`.
    pub(super) fn with_next(&self, next: Authority, promote_at: Timestamp) -> Self {
        let next = Pending { authority: Arc::new(next), until: Some(promote_at) };
        Self::new(self.current.clone(), Some(next), self.previous.clone())
    }

    /// Returns the generations after the next CA has been promoted. The replaced CA remains trusted until
    /// `retire_at`. Returns the same generations if there is no next CA.
    pub(super) fn promoted(&self, retire_at: Timestamp) -> Self {
        match &self.next {
            Some(next) => Self::new(next.authority.clone(), None, Some(self.outgoing(retire_at))),
            None => self.clone(),
        }
    }

    /// Returns the generations without the previous CA.
    pub(super) fn retired(&self) -> Self {
        Self::new(self.current.clone(), self.next.clone(), None)
    }

    /// Returns the generations with the current CA of `replaced` as the previous CA. This CA remains trusted until
    /// `retire_at`.
    pub(super) fn succeeding(&self, replaced: &Generations, retire_at: Timestamp) -> Self {
        Self::new(self.current.clone(), None, Some(replaced.outgoing(retire_at)))
    }

    fn outgoing(&self, until: Timestamp) -> Pending {
        Pending { authority: self.current.clone(), until: Some(until) }
    }
}

impl PartialEq for Generations {
    /// Returns whether both values trust the same certificates and sign with the same CA.
    fn eq(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.current.certificate() == other.current.certificate()
    }
}
