//! Where a Stack's state is, as far as the Stack itself says it. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::pulumi::{ResourceRef, Stack};
use crate::pulumi::backend;

const URL: &str = backend::URL_VARIABLE;
const TOKEN: &str = "PULUMI_ACCESS_TOKEN";

/// Backend, organization and name of the stack in one text, and the project, where the Stack names it. None where nobody but this
/// Stack can reach the state: in a file of its own pod.
pub(super) fn address(stack: &Stack) -> Option<(String, Option<String>)> {
    let parts: Vec<&str> = stack.spec.stack.split('/').collect();
    let (organization, project, name) = match parts.as_slice() {
        [name] => (None, None, *name),
        [organization, name] => (Some(*organization), None, *name),
        [organization, project, name] => (Some(*organization), Some((*project).to_owned()), *name),
        _ => return None,
    };
    let variables = variables(stack);
    let url = variables.get(URL).cloned().unwrap_or_default();
    let (scheme, rest) = url.as_str().and_then(|url| url.split_once("://")).unwrap_or_default();
    let with = |prefix: &str| -> Vec<_> { variables.iter().filter(|(name, _)| name.starts_with(prefix)).collect() };
    let unseen = sources(stack);
    let is_whole = rest.contains("endpoint=") || rest.contains("storage_account=");
    let address = match scheme {
        "file" => return None,
        // What the URL does not say, the environment may.
        "s3" if !is_whole => json!([url, with("AWS_ENDPOINT"), unseen, name]),
        "azblob" if !is_whole => json!([url, with("AZURE_STORAGE"), unseen, name]),
        "gs" => json!([url, with("STORAGE_EMULATOR"), name]),
        // The token says which organization is meant.
        "" | "http" | "https" if organization.is_none() => json!([url, variables.get(TOKEN), unseen, name]),
        "" => json!([url, unseen, organization, name]),
        "http" | "https" => json!([url, organization, name]),
        _ => json!([url, name]),
    };
    Some((address.to_string(), project))
}

/// The URL of the backend, without credentials, where the Stack itself has it.
pub(super) fn url(stack: &Stack) -> Option<String> {
    backend::without_credentials(variables(stack).get(URL)?.as_str()?)
}

/// The variables that the Stack gives one by one: their values, or where these are kept.
fn variables(stack: &Stack) -> BTreeMap<String, Value> {
    let namespace = stack.namespace().unwrap_or_default();
    let mut variables = BTreeMap::new();
    if let Some(url) = &stack.spec.backend {
        variables.insert(URL.to_owned(), json!(url.trim_end_matches('/')));
    }
    if let Some(secret) = &stack.spec.access_token_secret {
        variables.insert(TOKEN.to_owned(), json!([namespace, secret, "accessToken"]));
    }
    for (name, ResourceRef { literal, secret, config_map, .. }) in &stack.spec.env_refs {
        let value = match literal {
            Some(literal) => json!(literal.value.trim_end_matches('/')),
            None => json!([namespace, secret, config_map]),
        };
        variables.insert(name.clone(), value);
    }
    for variable in in_template(stack, "env") {
        let (Some(name), value) = (variable.get("name").and_then(Value::as_str), variable.get("value")) else {
            continue;
        };
        let value = match value.and_then(Value::as_str) {
            Some(value) => json!(value.trim_end_matches('/')),
            None => json!([namespace, variable.get("valueFrom")]),
        };
        variables.insert(name.to_owned(), value);
    }
    variables
}

/// Where the Stack takes all variables from that are there.
fn sources(stack: &Stack) -> Value {
    let of_template: Vec<&Value> = in_template(stack, "envFrom").collect();
    if stack.spec.envs.is_empty() && stack.spec.env_secrets.is_empty() && of_template.is_empty() {
        return Value::Null;
    }
    json!([stack.namespace(), stack.spec.envs, stack.spec.env_secrets, of_template])
}

fn in_template<'a>(stack: &'a Stack, list: &str) -> impl Iterator<Item = &'a Value> {
    let list = stack.spec.workspace_template.as_ref().and_then(|template| template.get("spec")?.get(list)?.as_array());
    list.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(namespace: &str, spec: &Value) -> Stack {
        let mut whole = json!({"stack": "dev"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut stack = Stack::new("app", serde_json::from_value(whole).unwrap());
        stack.metadata.namespace = Some(namespace.to_owned());
        stack
    }

    fn same(one: Value, other: Value) -> bool {
        address(&stack("a", &one)).is_some() && address(&stack("a", &one)) == address(&stack("b", &other))
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn stacks_have_the_same_address_only_where_it_is_certain() {
        let literal = |name: &str, value: &str| json!({name: {"type": "Literal", "literal": {"value": value}}});
        let kept = |name: &str| json!({name: {"type": "Secret", "secret": {"name": "s", "key": "k"}}});
        let rows = [
            ("one bucket", json!({"backend": "gs://state/"}), json!({"backend": "gs://state"}), true),
            ("two buckets", json!({"backend": "gs://state"}), json!({"backend": "gs://other"}), false),
            ("another name", json!({"backend": "gs://s"}), json!({"backend": "gs://s", "stack": "prod"}), false),
            (
                "a bucket has no organizations",
                json!({"backend": "gs://s"}),
                json!({"backend": "gs://s", "stack": "organization/dev"}),
                true,
            ),
            ("a pod's own file", json!({"backend": "file:///state"}), json!({"backend": "file:///state"}), false),
            ("an S3 bucket", json!({"backend": "s3://s"}), json!({"backend": "s3://s"}), true),
            (
                "an S3 bucket behind another endpoint",
                json!({"backend": "s3://s"}),
                json!({"backend": "s3://s", "envRefs": literal("AWS_ENDPOINT_URL", "http://minio")}),
                false,
            ),
            (
                "whatever else is in the environment",
                json!({"backend": "s3://s", "envRefs": kept("AWS_ACCESS_KEY_ID")}),
                json!({"backend": "s3://s", "envRefs": kept("PULUMI_CONFIG_PASSPHRASE")}),
                true,
            ),
            (
                "an S3 bucket, and nobody sees what else the environment says",
                json!({"backend": "s3://s", "envSecrets": ["aws"]}),
                json!({"backend": "s3://s", "envSecrets": ["aws"]}),
                false,
            ),
            (
                "an S3 bucket whose URL says all",
                json!({"backend": "s3://s?endpoint=minio", "envSecrets": ["aws"]}),
                json!({"backend": "s3://s?endpoint=minio", "envSecrets": ["aws"]}),
                true,
            ),
            (
                "a URL in the template",
                json!({"backend": "gs://s"}),
                json!({"workspaceTemplate": {"spec": {"env": [{"name": "PULUMI_BACKEND_URL", "value": "gs://s"}]}}}),
                true,
            ),
            (
                "a URL in each namespace's own Secret",
                json!({"envRefs": kept("PULUMI_BACKEND_URL")}),
                json!({"envRefs": kept("PULUMI_BACKEND_URL")}),
                false,
            ),
            ("Pulumi Cloud", json!({"stack": "acme/dev"}), json!({"stack": "acme/dev"}), true),
            (
                "Pulumi Cloud with other tokens for one organization",
                json!({"stack": "acme/p/dev", "accessTokenSecret": "t"}),
                json!({"stack": "acme/p/dev", "accessTokenSecret": "t"}),
                true,
            ),
            (
                "Pulumi Cloud, and each token has an organization of its own",
                json!({"accessTokenSecret": "t"}),
                json!({"accessTokenSecret": "t"}),
                false,
            ),
        ];
        for (name, one, other, wanted) in rows {
            assert_eq!(same(one, other), wanted, "{name}");
        }
        let named = address(&stack("a", &json!({"stack": "acme/web/dev"}))).unwrap();
        assert_eq!(named.1.as_deref(), Some("web"));
    }
}
