//! CA generations: the current CA, which signs, and the next and the previous CA, which are only trusted.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

use crate::rpc::identity::{Authority, IdentityError, Issued};

/// CA generations in force. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Generations {
    current: Arc<Authority>,
    next: Option<Pending>,
    previous: Option<Pending>,
    bundle: String,
}

/// CA that does not sign, with the time of its promotion or retirement. Without a time, only a user promotes or removes it.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub authority: Arc<Authority>,
    pub until: Option<Timestamp>,
}

impl Generations {
    /// Creates the generations of a new controller, with only a current CA.
    pub fn first(authority: Authority) -> Self {
        Self::new(Arc::new(authority), None, None)
    }

    pub(super) fn new(current: Arc<Authority>, next: Option<Pending>, previous: Option<Pending>) -> Self {
        let others = next.iter().chain(&previous).map(|pending| pending.authority.certificate_pem());
        let bundle = std::iter::once(current.certificate_pem()).chain(others).collect();
        Generations { current, next, previous, bundle }
    }

    /// Returns the CA that signs.
    pub fn current(&self) -> &Authority {
        &self.current
    }

    /// Returns the certificates of all generations, which both ends of a connection must trust.
    pub fn bundle_pem(&self) -> &str {
        &self.bundle
    }

    /// Issues client certificates for the controller: from the current CA, and from the previous one for pods that do not
    /// trust the current CA yet.
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

    /// Returns whether the bundle contains this CA certificate.
    pub(super) fn trusts(&self, certificate: &CertificateDer<'_>) -> bool {
        let others = [&self.next, &self.previous].into_iter().flatten().map(|pending| &pending.authority);
        std::iter::once(&self.current).chain(others).any(|authority| authority.certificate() == certificate)
    }

    /// Returns the generations with a next CA that signs from `promote_at` on.
    pub(super) fn with_next(&self, next: Authority, promote_at: Timestamp) -> Self {
        let next = Pending { authority: Arc::new(next), until: Some(promote_at) };
        Self::new(self.current.clone(), Some(next), self.previous.clone())
    }

    /// Returns the generations after promotion of the next CA. The current CA stays trusted until `retire_at`. Without a next
    /// CA, nothing changes.
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

    /// Returns the generations after a replacement. The replaced CA stays trusted until `retire_at`.
    pub(super) fn succeeding(&self, replaced: &Generations, retire_at: Timestamp) -> Self {
        Self::new(self.current.clone(), None, Some(replaced.outgoing(retire_at)))
    }

    fn outgoing(&self, until: Timestamp) -> Pending {
        Pending { authority: self.current.clone(), until: Some(until) }
    }
}

impl PartialEq for Generations {
    /// Whether both trust the same certificates and the same CA signs.
    fn eq(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.current.certificate() == other.current.certificate()
    }
}
