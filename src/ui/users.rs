//! Kubernetes clients that use a user's token.

use std::time::Duration;

use axum::http::{HeaderValue, Request, header};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use ring::digest;

use super::error::UiError;
use crate::runtime::reads::Reader;

/// Timeout of an API server request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the clients of users. The clients of all users share the connections of one client without credentials.
pub(super) struct Users {
    without_credentials: Client,
}

/// User of a request.
pub(super) struct User {
    pub(super) client: Client,
    /// Reads objects with the user's permissions.
    pub(super) reader: Reader,
    /// Identifies the token in caches.
    pub(super) token_digest: [u8; 32],
}

impl Users {
    pub(super) fn new(without_credentials: Client) -> Self {
        Users { without_credentials }
    }

    /// Returns the user with this token.
    ///
    /// # Errors
    /// Returns an error if the token contains characters that are not valid in a header.
    pub(super) fn with_token(&self, token: &str) -> Result<User, UiError> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| UiError::InvalidToken)?;
        value.set_sensitive(true);
        let client = self.without_credentials.clone();
        let service = tower::service_fn(move |mut request: Request<Body>| {
            request.headers_mut().insert(header::AUTHORIZATION, value.clone());
            let client = client.clone();
            async move { client.send(request).await }
        });
        let client = Client::new(service, "default");
        let reader = Reader::new(client.clone(), TIMEOUT);
        let mut token_digest = [0; 32];
        for (to, from) in token_digest.iter_mut().zip(digest::digest(&digest::SHA256, token.as_bytes()).as_ref()) {
            *to = *from;
        }
        Ok(User { client, reader, token_digest })
    }
}

impl User {
    /// Returns the user name that the API server derives from the token.
    ///
    /// # Errors
    /// Returns an error if the API server rejects the token or the request fails.
    pub(super) async fn name(&self) -> Result<String, UiError> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
        let review = call(|| "read your user name".to_owned(), api.create(&parameters, &review)).await?;
        let info = review.status.and_then(|status| status.user_info);
        info.and_then(|info| info.username).filter(|name| !name.is_empty()).ok_or(UiError::InvalidToken)
    }
}

/// Waits for the response to a request.
///
/// # Errors
/// Returns an error if the API server rejects the request or does not respond in time.
pub(super) async fn call<T>(
    request: impl Fn() -> String,
    response: impl Future<Output = kube::Result<T>>,
) -> Result<T, UiError> {
    match tokio::time::timeout(TIMEOUT, response).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(UiError::of_request(request(), error)),
        Err(_) => Err(UiError::Timeout { request: request() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api::{FakeResponse, client};

    #[tokio::test]
    async fn each_request_contains_the_token_of_the_user() {
        let (client, log) = client(|request| match request.authorization.as_str() {
            "Bearer of-alice" => {
                let status = json!({ "userInfo": { "username": "alice" } });
                FakeResponse::Json(201, json!({ "metadata": {}, "status": status }))
            }
            _ => FakeResponse::refusal(401, "Unauthorized"),
        });
        let users = Users::new(client);
        assert_eq!(users.with_token("of-alice").unwrap().name().await.unwrap(), "alice");
        let unknown = users.with_token("of-mallory").unwrap();
        assert!(matches!(unknown.name().await, Err(UiError::SignedOut)));
        assert!(users.with_token("a\nb").is_err());
        assert_eq!(log.verbs()[0], "POST /apis/authentication.k8s.io/v1/selfsubjectreviews");
        assert_ne!(unknown.token_digest, users.with_token("of-alice").unwrap().token_digest);
    }
}
