//! Errors of the certificate authority.

use super::secret::SECRET;
use crate::rpc::client::ClientIdentityError;
use crate::rpc::identity::IdentityError;
use crate::runtime::reads::ReadError;
use crate::runtime::writes::WriteError;

/// Reason why there is no CA, or why the CA in force cannot be updated.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot read the authority's Secret")]
    Read(#[from] ReadError),
    #[error("cannot write the authority's Secret")]
    Write(#[from] WriteError),
    #[error("cannot make certificates")]
    Make(#[from] IdentityError),
    #[error("cannot use the controller's own certificates")]
    Use(#[from] ClientIdentityError),
    #[error(
        "Secret {namespace}/{SECRET} holds no authority: {reason}. Put certificate and key in ca.crt and ca.key, or delete \
         the Secret: it is written again"
    )]
    Unusable { namespace: String, reason: String },
    #[error("Secret {0}/{SECRET} is changed again and again by somebody else")]
    Restless(String),
}
