//! Bounded list responses. Users can store objects of up to 1.5 MiB, so the length of a response says more about the
//! required memory than the number of objects.
//!
//! kube-rs keeps the text of a whole response and all its parsed objects in memory. The functions in this module stop
//! reading a response at a maximum size, and parse only the fields that the caller requires.

use std::collections::BTreeMap;
use std::pin::pin;

use futures::AsyncReadExt as _;
use http::Request;
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// Items of a list response, and the token of the next page.
#[derive(Debug, Default)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Token of the next page, or `None` if this is the last page.
    pub next: Option<String>,
}

/// Metadata of an object that identifies the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Identity {
    pub name: Option<String>,
    pub uid: Option<String>,
}

/// Object of which only the identity is parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Identified {
    pub metadata: Identity,
}

/// Object of which only the identity and the labels are parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Labeled {
    metadata: LabeledMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LabeledMetadata {
    name: Option<String>,
    uid: Option<String>,
    labels: BTreeMap<String, String>,
}

impl Labeled {
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    pub fn into_identity(self) -> Identity {
        Identity { name: self.metadata.name, uid: self.metadata.uid }
    }
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    metadata: ResponseMetadata,
    #[serde(default)]
    items: Vec<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseMetadata {
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// Sends a list request. Returns `None` if the response is longer than `max` bytes. The function omits each item that
/// cannot be parsed, so that a single item does not hide the others. The omissions are not logged, because users can
/// create any number of such items.
pub async fn page<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    max: u64,
) -> kube::Result<Option<Page<T>>> {
    let response = client.request_stream(request).await?;
    let mut response = pin!(response.take(max.saturating_add(1)));
    let mut text = Vec::new();
    response.read_to_end(&mut text).await.map_err(kube::Error::ReadEvents)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > max {
        return Ok(None);
    }
    let Response { metadata, items } = serde_json::from_slice(&text).map_err(kube::Error::SerdeError)?;
    let items = items.iter().filter_map(|item| serde_json::from_str(item.get()).ok()).collect();
    Ok(Some(Page { items, next: metadata.continue_token.filter(|token| !token.is_empty()) }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api::{FakeResponse, client};

    async fn names(items: serde_json::Value, max: u64) -> Option<Vec<Option<String>>> {
        let list = json!({ "metadata": { "continue": "" }, "items": items });
        let (client, _) = client(move |_| FakeResponse::Json(200, list.clone()));
        let request = Request::get("/api/v1/pods").body(Vec::new()).expect("valid request");
        let page = page::<Identified>(&client, request, max).await.expect("successful request")?;
        assert_eq!(page.next, None);
        Some(page.items.into_iter().map(|item| item.metadata.name).collect())
    }

    #[tokio::test]
    async fn a_response_that_is_too_long_is_not_parsed() {
        let items = json!([{ "metadata": { "name": "web", "annotations": { "a": "x".repeat(1000) } } }]);
        let list = json!({ "metadata": { "continue": "" }, "items": items });
        let length = u64::try_from(list.to_string().len()).expect("a short list");
        assert_eq!(names(items.clone(), length).await, Some(vec![Some("web".to_owned())]));
        assert_eq!(names(items, length - 1).await, None);
    }

    #[tokio::test]
    async fn an_item_that_cannot_be_parsed_does_not_hide_other_items() {
        let deep = (0..500).fold(json!({}), |inner, _| json!({ "a": inner }));
        let items = json!([{ "metadata": { "name": 1 } }, 2, { "metadata": { "name": "web" }, "spec": deep }]);
        assert_eq!(names(items, 100_000).await, Some(vec![Some("web".to_owned())]));
    }
}
