//! Parsed requests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::Method;
use http::request::Parts;
use serde_json::Value;

use crate::status::Status;
use crate::store::GroupResource;

/// Request of a client, as interceptors and traces see it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Number of the request. All clients share one counter.
    pub sequence: u64,
    /// Name of the client.
    pub actor: String,
    pub verb: Verb,
    pub resource: GroupResource,
    pub version: String,
    /// Empty for cluster-scoped resources, and for lists of all namespaces.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    pub subresource: String,
    pub is_dry_run: bool,
    /// Path, for requests that are not about a resource.
    pub path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) accept: String,
    pub(crate) user_agent: String,
    pub(crate) authorization: String,
    pub(crate) body: Vec<u8>,
}

/// Verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch(PatchType),
    Delete,
    DeleteCollection,
    /// Request that is not about a resource, such as discovery.
    Other,
}

/// Type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PatchType {
    Merge,
    Json,
    Strategic,
    Apply,
}

impl Verb {
    /// Returns whether the request can change objects.
    pub fn is_write(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch | Verb::Other)
    }
}

impl std::fmt::Display for Verb {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch(PatchType::Merge) => "patch(merge)",
            Verb::Patch(PatchType::Json) => "patch(json)",
            Verb::Patch(PatchType::Strategic) => "patch(strategic)",
            Verb::Patch(PatchType::Apply) => "apply",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Other => "other",
        })
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "#{} {} {} ", self.sequence, self.actor, self.verb)?;
        if self.verb == Verb::Other {
            return formatter.write_str(&self.path);
        }
        write!(formatter, "{} ", self.resource)?;
        if !self.namespace.is_empty() {
            write!(formatter, "{}/", self.namespace)?;
        }
        formatter.write_str(&self.name)?;
        if !self.subresource.is_empty() {
            write!(formatter, "/{}", self.subresource)?;
        }
        if self.is_dry_run {
            formatter.write_str(" (dry run)")?;
        }
        Ok(())
    }
}

impl Call {
    pub(crate) fn parse(sequence: u64, actor: &str, parts: &Parts, body: Vec<u8>) -> Result<Self, Status> {
        let header = |name: &str| {
            let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let query = parse_query(parts.uri.query().unwrap_or_default());
        let mut call = Call {
            sequence,
            actor: actor.to_owned(),
            verb: Verb::Other,
            resource: GroupResource::default(),
            version: String::new(),
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            is_dry_run: query.get("dryRun").is_some_and(|value| value == "All"),
            path: parts.uri.path().to_owned(),
            query,
            accept: header("accept"),
            user_agent: header("user-agent"),
            authorization: header("authorization"),
            body,
        };
        let is_watch = matches!(call.query.get("watch").map(String::as_str), Some("true" | "1"));
        if !call.parse_path(parts.uri.path()) {
            return Ok(call);
        }
        let content_type = header("content-type");
        let is_collection = call.name.is_empty();
        call.verb = match parts.method {
            Method::GET if is_watch => Verb::Watch,
            Method::GET if is_collection => Verb::List,
            Method::GET => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch(patch_type(&content_type)?),
            Method::DELETE if is_collection => Verb::DeleteCollection,
            Method::DELETE => Verb::Delete,
            _ => return Err(Status::new(405, "MethodNotAllowed", "the server does not allow this method")),
        };
        Ok(call)
    }

    /// Parses the path of a resource. Returns `false` if the path is not about a resource.
    fn parse_path(&mut self, path: &str) -> bool {
        let segments: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return false,
        };
        self.version = version.to_owned();
        let (namespace, rest) = match rest {
            [] => return false,
            ["namespaces", namespace, rest @ ..] if !matches!(rest, [] | ["status" | "finalize"]) => (*namespace, rest),
            rest => ("", rest),
        };
        let (resource, name, subresource) = match rest {
            [resource] => (*resource, "", ""),
            [resource, name] => (*resource, *name, ""),
            [resource, name, subresource] => (*resource, *name, *subresource),
            _ => return false,
        };
        self.resource = GroupResource::new(group, resource);
        self.namespace = namespace.to_owned();
        self.name = name.to_owned();
        self.subresource = subresource.to_owned();
        true
    }

    /// Returns a query parameter.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Returns the body as JSON, or null if there is none.
    pub fn body(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns the bearer token of the request.
    pub fn token(&self) -> Option<&str> {
        self.authorization.strip_prefix("Bearer ")
    }

    /// Returns the field manager: the parameter, or the first part of the header `User-Agent`.
    pub(crate) fn field_manager(&self) -> String {
        match self.parameter("fieldManager") {
            "" => self.user_agent.split('/').next().unwrap_or_default().to_owned(),
            manager => manager.to_owned(),
        }
    }
}

fn patch_type(content_type: &str) -> Result<PatchType, Status> {
    match content_type.split(';').next().unwrap_or_default() {
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        other => {
            let message = format!("the body of the request was in an unknown format: {other}");
            Err(Status::new(415, "UnsupportedMediaType", &message))
        }
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let plus = |text: &str| -> String {
        let text: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
        decode(&text)
    };
    pairs.map(|(key, value)| (plus(key), plus(value))).collect()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parse(method: &str, uri: &str, content_type: &str) -> String {
        let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Call::parse(1, "me", &parts, Vec::new()).map_or_else(|status| status.message, |call| call.to_string())
    }

    #[test]
    fn requests_are_classified() {
        let table = [
            ("GET", "/api/v1/namespaces/a/pods/x", "", "#1 me get pods a/x"),
            ("GET", "/api/v1/pods?watch=true", "", "#1 me watch pods "),
            ("GET", "/apis/apps/v1/namespaces/a/statefulsets?limit=5", "", "#1 me list statefulsets.apps a/"),
            ("GET", "/api/v1/namespaces/a", "", "#1 me get namespaces a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "", "#1 me update namespaces a/finalize"),
            ("POST", "/api/v1/namespaces/a/pods?dryRun=All", "", "#1 me create pods a/ (dry run)"),
            (
                "PATCH",
                "/apis/a.b/v1/namespaces/n/cs/x/status?fieldManager=f",
                "application/merge-patch+json",
                "#1 me patch(merge) cs.a.b n/x/status",
            ),
            ("GET", "/apis", "", "#1 me other /apis"),
            ("DELETE", "/api/v1/namespaces/a/pods", "", "#1 me deletecollection pods a/"),
        ];
        for (method, uri, content_type, expected) in table {
            assert_eq!(parse(method, uri, content_type), expected);
        }
        assert!(parse("PATCH", "/api/v1/namespaces/a/pods/x", "text/plain").contains("unknown format"));
    }
}
