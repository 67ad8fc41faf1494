//! Checks quantities and image references in a pod template. The API server reports an invalid quantity without its
//! field, and the kubelet reports an invalid image reference only after the pod exists. All functions are pure.

use serde_json::Value;

/// Invalid value in a pod template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    #[error("invalid {field} of the pod: {value:?} is not a quantity such as 500m, 512Mi or 1Gi")]
    Quantity { field: String, value: String },
    #[error(
        "invalid image of container {container}: {image:?} is not an image reference such as registry.example/team/image:1.0"
    )]
    Image { container: String, image: String },
}

/// Suffixes of a quantity, except for exponents.
const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Maximum length of an image name without its tag and digest, in characters.
const MAX_IMAGE_NAME: usize = 255;
/// Maximum length of an image tag, in characters.
const MAX_TAG: usize = 128;

/// Checks all quantities and image references of a pod template.
pub(super) fn check(template: &Value) -> Result<(), InvalidValue> {
    let spec = template.get("spec").unwrap_or(&Value::Null);
    check_quantities("spec", spec)?;
    ["initContainers", "containers"].into_iter().try_for_each(|list| {
        let containers = spec.get(list).and_then(Value::as_array).into_iter().flatten();
        containers.into_iter().try_for_each(check_image)
    })
}

/// Checks the quantities in a value. `path` is the path of the value in the pod template.
fn check_quantities(path: &str, value: &Value) -> Result<(), InvalidValue> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            let path = format!("{path}.{name}");
            for (path, quantity) in quantities(&path, name, field) {
                check_quantity(path, quantity)?;
            }
            check_quantities(&path, field)
        }),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
            let name = item.get("name").and_then(Value::as_str).map_or_else(|| index.to_string(), str::to_owned);
            check_quantities(&format!("{path}[{name}]"), item)
        }),
        _ => Ok(()),
    }
}

/// Returns the quantities in a field of the pod API, each with its path. Labels and similar maps can have fields with
/// the same names, but their values are strings.
fn quantities<'a>(path: &str, name: &str, field: &'a Value) -> Vec<(String, &'a Value)> {
    let each = |field: &'a Value, path: &str| -> Vec<(String, &'a Value)> {
        let fields = field.as_object().into_iter().flatten();
        fields.map(|(name, value)| (format!("{path}.{name}"), value)).collect()
    };
    let one = |key: &str| field.get(key).map(|value| (format!("{path}.{key}"), value)).into_iter().collect();
    match name {
        "resources" => ["requests", "limits"]
            .into_iter()
            .filter_map(|kind| Some(each(field.get(kind)?, &format!("{path}.{kind}"))))
            .flatten()
            .collect(),
        "overhead" => each(field, path),
        "emptyDir" => one("sizeLimit"),
        "resourceFieldRef" => one("divisor"),
        _ => Vec::new(),
    }
}

/// Checks a quantity. A number is always valid. The API server reports all other types with their field.
fn check_quantity(field: String, quantity: &Value) -> Result<(), InvalidValue> {
    match quantity.as_str() {
        Some(value) if !is_quantity(value) => Err(InvalidValue::Quantity { field, value: value.to_owned() }),
        _ => Ok(()),
    }
}

fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let Some((number, suffix)) = unsigned.split_at_checked(end) else { return false };
    let is_number = number.contains(|c: char| c.is_ascii_digit()) && number.matches('.').count() <= 1;
    let is_exponent = suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_number && (SUFFIXES.contains(&suffix) || is_exponent)
}

/// Checks the image of a container. The API server reports a missing image.
fn check_image(container: &Value) -> Result<(), InvalidValue> {
    let text = |field: &str| container.get(field).and_then(Value::as_str).unwrap_or_default();
    let image = text("image");
    if image.is_empty() || is_image(image) {
        return Ok(());
    }
    Err(InvalidValue::Image { container: text("name").to_owned(), image: image.to_owned() })
}

/// Returns whether the kubelet accepts an image reference: a name with an optional tag and an optional digest.
fn is_image(reference: &str) -> bool {
    let (tagged, digest) = reference.split_once('@').map_or((reference, None), |(name, digest)| (name, Some(digest)));
    let is_port = tagged.rsplit_once(':').is_some_and(|(_, end)| end.contains('/'));
    let (name, tag) = match tagged.rsplit_once(':').filter(|_| !is_port) {
        Some((name, tag)) => (name, Some(tag)),
        None => (tagged, None),
    };
    let has_domain = |first: &str| first.contains(['.', ':']) || first == "localhost" || first.to_lowercase() != first;
    let path = match name.split_once('/').filter(|(first, _)| has_domain(first)) {
        Some((domain, path)) if is_domain(domain) => path,
        Some(_) => return false,
        None => name,
    };
    name.len() <= MAX_IMAGE_NAME
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

fn is_domain(domain: &str) -> bool {
    if let Some((address, port)) = domain.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_port = port.strip_prefix(':').map_or(port.is_empty(), is_number);
        return is_port && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    }
    let (host, port) = domain.split_once(':').map_or((domain, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether the text consists of lowercase letters and digits, separated by `.`, `_`, `__` or hyphens.
fn is_path_component(component: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |separator: &str| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-');
    let ends = [component.chars().next(), component.chars().next_back()];
    ends.into_iter().all(|end| end.is_some_and(is_alphanumeric)) && component.split(is_alphanumeric).all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hash)| {
        algorithm.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && algorithm.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+' | b'.'))
            && hash.len() >= 32
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_have_a_number_and_a_known_suffix() {
        let valid = [
            "0", "1", "-1", "+1", "1.", ".5", "1.5", "100m", "1k", "1M", "1G", "1E", "1Ki", "512Mi", "1.5Gi", "1e3",
            "1E-3", "1e+3", "12n", "3u",
        ];
        let invalid =
            ["", "abc", "1GB", "512MB", "2g", "1 Gi", " 1Gi", "1Gi ", "1K", "1mi", "1e", "1.2.3", "--1", "Mi", "."];
        for quantity in valid {
            assert!(is_quantity(quantity), "{quantity:?}");
        }
        for quantity in invalid {
            assert!(!is_quantity(quantity), "{quantity:?}");
        }
    }

    #[test]
    fn an_invalid_quantity_is_reported_with_its_field() {
        let limits = |memory: Value| json!({"name": "pulumi", "resources": {"limits": {"memory": memory}}});
        let volume = |source: Value| json!({"volumes": [{"name": "cache", "emptyDir": source}]});
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1GB"}}}});
        let divisor = json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "one"}});
        let rows = [
            (json!({"containers": [limits(json!("1Gi"))]}), None),
            (json!({"containers": [limits(json!(1))]}), None),
            (json!({"containers": [limits(json!(null))]}), None),
            (json!({"containers": [limits(json!("1GB"))]}), Some("spec.containers[pulumi].resources.limits.memory")),
            (
                json!({"initContainers": [limits(json!(""))]}),
                Some("spec.initContainers[pulumi].resources.limits.memory"),
            ),
            (json!({"resources": {"requests": {"cpu": "x"}}}), Some("spec.resources.requests.cpu")),
            (json!({"overhead": {"cpu": "x"}}), Some("spec.overhead.cpu")),
            (volume(json!({"sizeLimit": "10Gi"})), None),
            (volume(json!({"sizeLimit": "10GB"})), Some("spec.volumes[cache].emptyDir.sizeLimit")),
            (
                json!({"volumes": [{"name": "a", "ephemeral": {"volumeClaimTemplate": claim}}]}),
                Some("spec.volumes[a].ephemeral.volumeClaimTemplate.spec.resources.requests.storage"),
            ),
            (
                json!({"containers": [{"name": "a", "env": [{"name": "CPU", "valueFrom": divisor}]}]}),
                Some("spec.containers[a].env[CPU].valueFrom.resourceFieldRef.divisor"),
            ),
            (json!({"nodeSelector": {"sizeLimit": "large", "resources": "many", "limits": "x"}}), None),
        ];
        for (spec, expected) in rows {
            let field = match check(&json!({"spec": spec})) {
                Err(InvalidValue::Quantity { field, .. }) => Some(field),
                Err(other) => panic!("{other}"),
                Ok(()) => None,
            };
            assert_eq!(field.as_deref(), expected, "{spec}");
        }
    }

    #[test]
    fn an_image_reference_has_a_lowercase_name_a_tag_and_a_digest() {
        let hash = "0123456789abcdef".repeat(4);
        let digest = format!("pulumi/pulumi@sha256:{hash}");
        let both = format!("registry.example:5000/a/b:1.0@sha256:{hash}");
        let valid = [
            "pulumi/pulumi",
            "pulumi/pulumi:latest-nonroot",
            "localhost/image:dev",
            "localhost:5000/image",
            &digest,
            &both,
            "registry.example/a_b/c__d/e--f/g.h:V1_2-3",
            "[::1]:5000/image",
            "MYREGISTRY/image",
            "nope.invalid/x:1",
            "a",
        ];
        let short = "a@sha256:0123".to_owned();
        let long = "a/".repeat(200) + "b";
        let invalid = [
            "Foo",
            "pulumi/Pulumi",
            "a b",
            " a",
            "a:",
            "a:b:c",
            "a@",
            &short,
            "a@sha256",
            "https://registry.example/a",
            "/a",
            "a/",
            "a//b",
            "-a",
            "a-",
            "a._b",
            "a:.1",
            "registry.example:port/a",
            "-x.example/a",
            "a\n",
            &long,
        ];
        for image in valid {
            assert!(is_image(image), "{image:?}");
        }
        for image in invalid {
            assert!(!is_image(image), "{image:?}");
        }
    }

    #[test]
    fn an_invalid_image_is_reported_with_its_container() {
        let of = |list: &str, image: Value| check(&json!({"spec": {list: [{"name": "extra", "image": image}]}}));
        let invalid = |image: &str| Err(InvalidValue::Image { container: "extra".to_owned(), image: image.to_owned() });
        for list in ["containers", "initContainers"] {
            assert_eq!(of(list, json!("Not An Image")), invalid("Not An Image"), "{list}");
            assert_eq!(of(list, json!("busybox:1")), Ok(()), "{list}");
            assert_eq!(of(list, json!("")), Ok(()), "the API server reports a missing image");
        }
    }
}
