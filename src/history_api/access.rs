//! Authenticates the user who sends a request, and checks whether this user may read a Stack's history. The API server
//! decides both questions. A user may read only the runs of the current namespace, not the runs of a deleted namespace
//! with the same name.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::rejected_tokens::RejectedTokens;
use crate::runtime::reads::{ReadError, Reader};

/// Timeout of an access check, including all its requests to the API server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent checks. The maximum prevents clients without a valid token from flooding the API
/// server.
const MAX_CONCURRENT: usize = 8;
/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 16 * 1024;

/// The reason why a request was rejected, or why the access check failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error("the request contains no token: set the header `Authorization: Bearer TOKEN`")]
    NoToken,
    #[error("the API server rejected the token")]
    InvalidToken,
    #[error("too many rejected tokens: retry later with a valid token")]
    TooManyRejected,
    #[error(
        "user {user} cannot read the history of Stack {namespace}/{stack}: the user needs the verb get for stacks/history"
    )]
    Forbidden { user: String, namespace: String, stack: String },
    #[error("failed to check the permissions of the user: {source}")]
    Review { source: Box<kube::Error> },
    #[error("failed to check the namespace: {source}")]
    Namespace { source: Box<ReadError> },
    #[error("the API server did not check the permissions of the user within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("too many requests: retry later")]
    Busy,
}

impl From<kube::Error> for AccessError {
    fn from(source: kube::Error) -> Self {
        AccessError::Review { source: Box::new(source) }
    }
}

impl From<ReadError> for AccessError {
    fn from(source: ReadError) -> Self {
        AccessError::Namespace { source: Box::new(source) }
    }
}

pub(super) struct Access {
    client: Client,
    reader: Reader,
    slots: Semaphore,
    rejected_tokens: RejectedTokens,
}

impl Access {
    pub(super) fn new(client: Client) -> Self {
        let reader = Reader::new(client.clone(), TIMEOUT);
        let slots = Semaphore::new(MAX_CONCURRENT);
        Access { client, reader, slots, rejected_tokens: RejectedTokens::default() }
    }

    /// Authenticates the user with the token in `headers`. Returns the namespace's creation time if the user may read
    /// the Stack's history. A missing namespace results in the same error as a missing permission.
    pub(super) async fn check(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        namespace: &str,
        stack: &str,
    ) -> Result<Timestamp, AccessError> {
        let token = token(headers).ok_or(AccessError::NoToken)?;
        if !self.rejected_tokens.may_review(peer, token, Instant::now()) {
            return Err(AccessError::TooManyRejected);
        }
        let _slot = self.slots.try_acquire().map_err(|_| AccessError::Busy)?;
        let review = async {
            let user = self.authenticate(token, peer).await?;
            let name = user.username.clone().unwrap_or_default();
            let is_permitted = self.is_permitted(user, namespace, stack).await?;
            let created = if is_permitted { self.created(namespace).await? } else { None };
            created.ok_or_else(|| AccessError::Forbidden {
                user: name,
                namespace: namespace.to_owned(),
                stack: stack.to_owned(),
            })
        };
        tokio::time::timeout(TIMEOUT, review).await.unwrap_or(Err(AccessError::Timeout))
    }

    /// Returns a namespace's creation time, or `None` if the namespace does not exist.
    async fn created(&self, namespace: &str) -> Result<Option<Timestamp>, AccessError> {
        let found = self.reader.get_cluster_metadata_opt::<Namespace>(namespace).await?;
        Ok(found.and_then(|found| found.metadata.creation_timestamp).map(|created| created.0))
    }

    async fn authenticate(&self, token: &str, peer: Option<IpAddr>) -> Result<UserInfo, AccessError> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let status = api.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        match user {
            Some(_) => self.rejected_tokens.accept(token, Instant::now()),
            None => self.rejected_tokens.reject(peer, token, Instant::now()),
        }
        user.ok_or(AccessError::InvalidToken)
    }

    async fn is_permitted(&self, user: UserInfo, namespace: &str, stack: &str) -> Result<bool, AccessError> {
        let resource_attributes = Some(ResourceAttributes {
            group: Some("pulumi.com".to_owned()),
            resource: Some("stacks".to_owned()),
            subresource: Some("history".to_owned()),
            verb: Some("get".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(stack.to_owned()),
            ..ResourceAttributes::default()
        });
        let UserInfo { username, groups, uid, extra } = user;
        let spec = SubjectAccessReviewSpec {
            resource_attributes,
            user: username,
            groups,
            uid,
            extra,
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = api.create(&PostParams::default(), &review).await?.status;
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

/// Returns the bearer token from the headers, if any.
fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}
