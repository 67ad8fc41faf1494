//! Errors of the certificate authority.

use super::secret::SECRET;
use crate::rpc::client::ClientIdentityError;
use crate::rpc::identity::IdentityError;
use crate::runtime::reads::ReadError;
use crate::runtime::writes::WriteError;

/// Reason why there is no CA, or why the CA in force cannot be updated.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("failed to issue certificates")]
    Issue(#[from] IdentityError),
    #[error("failed to use the client certificates of the controller")]
    Use(#[from] ClientIdentityError),
    #[error(
        "invalid Secret {namespace}/{SECRET}: {reason}; store a CA certificate and its key in ca.crt and ca.key, or delete the \
         Secret so that the controller creates it again"
    )]
    Unusable { namespace: String, reason: String },
    #[error("failed to update Secret {0}/{SECRET}: another client changes it continuously")]
    Contended(String),
}
