//! The authority that signs, with the one that will and the one that did: what is trusted at this moment.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

use crate::rpc::identity::{Authority, IdentityError, Issued};

/// The authorities of this moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Generations {
    current: Arc<Authority>,
    next: Option<Pending>,
    previous: Option<Pending>,
    bundle: String,
}

/// An authority that does not sign, and when that changes or ends; without a time, somebody else sees to it.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub authority: Arc<Authority>,
    pub until: Option<Timestamp>,
}

impl Generations {
    /// The first authority of a controller.
    pub fn first(authority: Authority) -> Self {
        Self::new(Arc::new(authority), None, None)
    }

    pub(super) fn new(current: Arc<Authority>, next: Option<Pending>, previous: Option<Pending>) -> Self {
        let others = next.iter().chain(&previous).map(|pending| pending.authority.certificate_pem());
        let bundle = std::iter::once(current.certificate_pem()).chain(others).collect();
        Generations { current, next, previous, bundle }
    }

    /// The one that signs.
    pub fn current(&self) -> &Authority {
        &self.current
    }

    /// The certificates of all of them: what both ends of a connection have to trust.
    pub fn bundle_pem(&self) -> &str {
        &self.bundle
    }

    /// Certificates for the controller: of the current authority, and of the previous one for pods that have not been
    /// told yet.
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

    /// Whether whoever has this bundle trusts what an authority has signed.
    pub(super) fn trusts(&self, certificate: &CertificateDer<'_>) -> bool {
        let others = [&self.next, &self.previous].into_iter().flatten().map(|pending| &pending.authority);
        std::iter::once(&self.current).chain(others).any(|authority| authority.certificate() == certificate)
    }

    /// With an authority that signs from `promote_at` on.
    pub(super) fn with_next(&self, next: Authority, promote_at: Timestamp) -> Self {
        let next = Pending { authority: Arc::new(next), until: Some(promote_at) };
        Self::new(self.current.clone(), Some(next), self.previous.clone())
    }

    /// The next one signs, the current one is trusted until `retire_at`. Without a next one, all stays as it is.
    pub(super) fn promoted(&self, retire_at: Timestamp) -> Self {
        match &self.next {
            Some(next) => Self::new(next.authority.clone(), None, Some(self.outgoing(retire_at))),
            None => self.clone(),
        }
    }

    /// Only what signs, or will, is trusted.
    pub(super) fn retired(&self) -> Self {
        Self::new(self.current.clone(), self.next.clone(), None)
    }

    /// The authority that signed until somebody replaced it is trusted until `retire_at`.
    pub(super) fn succeeding(&self, replaced: &Generations, retire_at: Timestamp) -> Self {
        Self::new(self.current.clone(), None, Some(replaced.outgoing(retire_at)))
    }

    fn outgoing(&self, until: Timestamp) -> Pending {
        Pending { authority: self.current.clone(), until: Some(until) }
    }
}

impl PartialEq for Generations {
    /// Whether the same certificates are trusted and the same one signs.
    fn eq(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.current.certificate() == other.current.certificate()
    }
}
