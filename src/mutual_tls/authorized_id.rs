//! SPIFFE IDs that a flag authorizes.

use std::str::FromStr;

use spiffe::{SpiffeId, SpiffeIdError, TrustDomain};

/// Name that stands for the trust domain of the controller's own X.509-SVID.
const OWN: &str = "self";

/// Value of a flag that authorizes servers: an exact SPIFFE ID, a prefix of SPIFFE IDs, or all SPIFFE IDs of a trust
/// domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizedId {
    trust_domain: TrustDomain,
    path: Path,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Path {
    Any,
    Exact(String),
    /// Beginning of the path, with a slash at the end.
    Prefix(String),
}

impl FromStr for AuthorizedId {
    type Err = SpiffeIdError;

    fn from_str(text: &str) -> Result<Self, SpiffeIdError> {
        let prefix = text.strip_suffix('/');
        let id = SpiffeId::new(prefix.unwrap_or(text))?;
        let path = match (id.path(), prefix) {
            ("", _) => Path::Any,
            (path, None) => Path::Exact(path.to_owned()),
            (path, Some(_)) => Path::Prefix(format!("{path}/")),
        };
        Ok(Self { trust_domain: id.trust_domain().clone(), path })
    }
}

impl AuthorizedId {
    /// Returns whether the value authorizes the SPIFFE ID of a server. `own` is the trust domain of the controller's
    /// X.509-SVID.
    pub(super) fn authorizes(&self, server: &SpiffeId, own: Option<&TrustDomain>) -> bool {
        let trust_domain = if self.trust_domain.as_str() == OWN { own } else { Some(&self.trust_domain) };
        trust_domain == Some(server.trust_domain())
            && match &self.path {
                Path::Any => true,
                Path::Exact(path) => server.path() == path,
                Path::Prefix(prefix) => server.path().starts_with(prefix),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_authorizes_a_spiffe_id_a_prefix_or_a_trust_domain() {
        let own = TrustDomain::new("example.org").unwrap();
        // Columns: value of the flag, SPIFFE ID of the server, whether the value authorizes the server.
        let rows = [
            ("spiffe://example.org/flux/source", "spiffe://example.org/flux/source", true),
            ("spiffe://example.org/flux/source", "spiffe://example.org/flux/source-watcher", false),
            ("spiffe://example.org/flux/source", "spiffe://example.org/flux/source/a", false),
            ("spiffe://example.org/flux/source", "spiffe://example.com/flux/source", false),
            ("spiffe://example.org/flux/", "spiffe://example.org/flux/source", true),
            ("spiffe://example.org/flux/", "spiffe://example.org/flux/a/b", true),
            ("spiffe://example.org/flux/", "spiffe://example.org/flux", false),
            ("spiffe://example.org/flux/", "spiffe://example.org/fluxury/source", false),
            ("spiffe://example.org/flux/", "spiffe://example.com/flux/source", false),
            ("spiffe://example.org", "spiffe://example.org/any", true),
            ("spiffe://example.org/", "spiffe://example.org/any", true),
            ("spiffe://example.org", "spiffe://example.org.evil/any", false),
            ("spiffe://self", "spiffe://example.org/any", true),
            ("spiffe://self", "spiffe://example.com/any", false),
            ("spiffe://self", "spiffe://self/any", false),
            ("spiffe://self/flux/source", "spiffe://example.org/flux/source", true),
            ("spiffe://self/flux/source", "spiffe://example.org/flux/other", false),
            ("spiffe://self/flux/", "spiffe://example.org/flux/source", true),
            ("spiffe://self/flux/", "spiffe://example.com/flux/source", false),
        ];
        for (value, server, expected) in rows {
            let (id, server) = (value.parse::<AuthorizedId>().unwrap(), SpiffeId::new(server).unwrap());
            assert_eq!(id.authorizes(&server, Some(&own)), expected, "{value} {server}");
        }
        let (id, server) = ("spiffe://self".parse::<AuthorizedId>().unwrap(), SpiffeId::new("spiffe://a/b").unwrap());
        assert!(!id.authorizes(&server, None), "without an identity, the controller has no trust domain");
    }

    #[test]
    fn a_value_that_is_no_spiffe_id_is_rejected() {
        for value in ["", "self", "example.org/flux", "https://example.org/flux", "spiffe://", "spiffe:///a"] {
            assert!(value.parse::<AuthorizedId>().is_err(), "{value}");
        }
        for value in ["spiffe://example.org//", "spiffe://example.org/a//", "spiffe://example.org/../a"] {
            assert!(value.parse::<AuthorizedId>().is_err(), "{value}");
        }
    }
}
