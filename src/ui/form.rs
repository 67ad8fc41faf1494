//! Forms of the web UI.

use std::collections::HashMap;

use axum::body::Body;
use axum::http::HeaderMap;
use url::form_urlencoded;

use super::csrf;
use super::error::UiError;
use super::state::{Ui, Visitor};

/// Maximum size of a form in bytes. The largest value is a token.
pub(super) const MAX_FORM: usize = 16 * 1024;
/// Maximum number of fields in a form.
const MAX_FIELDS: usize = 16;

/// Fields of a form.
pub(super) struct Form(HashMap<String, String>);

impl Form {
    /// Reads a form.
    ///
    /// # Errors
    /// Returns an error if the form is too large or incomplete.
    pub(super) async fn read(body: Body) -> Result<Self, UiError> {
        let bytes = axum::body::to_bytes(body, MAX_FORM).await;
        let bytes = bytes.map_err(|_| UiError::Form("it is incomplete or larger than 16 KiB"))?;
        let fields = form_urlencoded::parse(&bytes).take(MAX_FIELDS);
        Ok(Form(fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()))
    }

    /// Reads a form, and checks that a page from the same session has sent the form.
    ///
    /// # Errors
    /// Returns an error if a page outside the session has sent the form.
    pub(super) async fn of_session(
        ui: &Ui,
        headers: &HeaderMap,
        visitor: &Visitor,
        body: Body,
    ) -> Result<Self, UiError> {
        if !csrf::is_same_origin(headers) {
            return Err(UiError::Forged);
        }
        let form = Form::read(body).await?;
        let token = form.get("form-token").unwrap_or_default();
        match ui.sessions.is_form_token(&visitor.session, token) {
            true => Ok(form),
            false => Err(UiError::Forged),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns a form with these fields.
    #[cfg(test)]
    pub(super) fn of(fields: &[(&str, &str)]) -> Self {
        Form(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_form_that_is_too_large_is_rejected() {
        let read = Form::read(Body::from("a=1&b=c%20d")).await.unwrap();
        assert_eq!((read.get("a"), read.get("b"), read.get("c")), (Some("1"), Some("c d"), None));
        assert!(Form::read(Body::from("a".repeat(MAX_FORM + 1))).await.is_err());
    }
}
