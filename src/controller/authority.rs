//! The controller's certificate authority, kept in a Secret of its own namespace.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::rpc::identity::{Authority, IdentityError};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{Created, WriteError, Writer};

/// The Secret.
pub const SECRET: &str = "pulumi-controller-authority";
const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot read the authority's Secret")]
    Read(#[from] ReadError),
    #[error("cannot write the authority's Secret")]
    Write(#[from] WriteError),
    #[error("cannot make the authority")]
    Make(#[from] IdentityError),
    #[error(
        "Secret {0}/{SECRET} has no usable {1}; delete the Secret to get a new authority: workspaces get new certificates"
    )]
    Unusable(String, &'static str),
}

/// Reads the authority, or makes it. Of two that make one at the same time, the first wins.
pub async fn load(reader: &Reader, writer: &Writer, namespace: &str) -> Result<Authority, AuthorityError> {
    if let Some(secret) = reader.get_opt::<Secret>(namespace, SECRET).await? {
        return parse(&secret, namespace);
    }
    let authority = Authority::generate(Timestamp::now())?;
    let key = authority.key_pem();
    let data = [(CERTIFICATE, authority.certificate_pem()), (KEY, key.as_str())];
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data.map(|(key, pem)| (key.to_owned(), ByteString(pem.as_bytes().to_vec()))).into()),
        ..Secret::default()
    };
    match writer.create(&secret).await? {
        Created::New(_) => Ok(authority),
        Created::Existing(secret) => parse(&secret, namespace),
    }
}

fn parse(secret: &Secret, namespace: &str) -> Result<Authority, AuthorityError> {
    let pem = |key: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|b| b.0.clone());
        bytes
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| AuthorityError::Unusable(namespace.to_owned(), key))
    };
    tracing::debug!(secret = secret.name_any(), "the authority was read");
    Ok(Authority::from_pem(&pem(CERTIFICATE)?, &pem(KEY)?)?)
}
