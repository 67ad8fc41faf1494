//! References to other variables in the values of environment variables. The kubelet expands these references when the
//! container starts. The agent expands them for each run, so that a run uses the current values.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// End of the name of a variable that contains the address of a Service. The beginning of the name identifies the
/// Service.
const SERVICE_HOST: &str = "_SERVICE_HOST";
/// Text that follows the beginning in the names of all variables of a Service.
const SERVICE_PARTS: [&str; 2] = ["_SERVICE_", "_PORT"];

/// Returns the variables of the container that contain the addresses of Services. The kubelet sets the variables of the
/// API server in each container, and the variables of all Services in the namespace if the pod template sets
/// `enableServiceLinks: true`.
pub(super) fn service_variables(container: &BTreeMap<OsString, OsString>) -> BTreeMap<OsString, OsString> {
    let names = container.keys().filter_map(|name| name.to_str());
    let services: BTreeSet<&str> = names.filter_map(|name| name.strip_suffix(SERVICE_HOST)).collect();
    let is_of_service = |name: &str| {
        let mut ends = SERVICE_PARTS.iter().flat_map(|part| name.match_indices(*part)).map(|(at, _)| at);
        ends.any(|end| name.get(..end).is_some_and(|service| services.contains(service)))
    };
    let variables = container.iter().filter(|(name, _)| name.to_str().is_some_and(is_of_service));
    variables.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Replaces each `$(NAME)` with the value of the variable, in the same way as the kubelet: keeps references to unknown
/// variables, and replaces `$$` with `$`. Returns `None` if the result exceeds `limit` bytes.
pub(super) fn expand(template: &str, variables: &BTreeMap<OsString, OsString>, limit: u64) -> Option<OsString> {
    let mut expanded = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.extend_from_slice(before.as_bytes());
        let reference = after.strip_prefix('(').and_then(|name| name.split_once(')'));
        rest = match (after.strip_prefix('$'), reference) {
            (None, Some((name, after))) => {
                match variables.get(OsStr::new(name)) {
                    Some(value) => expanded.extend_from_slice(value.as_bytes()),
                    None => expanded.extend_from_slice(format!("$({name})").as_bytes()),
                }
                after
            }
            (escaped, _) => {
                expanded.push(b'$');
                escaped.unwrap_or(after)
            }
        };
        if expanded.len() as u64 > limit {
            return None;
        }
    }
    expanded.extend_from_slice(rest.as_bytes());
    (expanded.len() as u64 <= limit).then(|| OsString::from_vec(expanded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_all_services_of_the_namespace_are_known() {
        let names = |names: &[&str]| -> BTreeMap<OsString, OsString> {
            names.iter().map(|name| ((*name).into(), "10.0.0.1".into())).collect()
        };
        let of_services = [
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_PORT_443_TCP_ADDR",
            "MY_SERVICE_REDIS_SERVICE_HOST",
            "MY_SERVICE_REDIS_SERVICE_PORT",
            "MY_SERVICE_REDIS_SERVICE_PORT_HTTP",
            "MY_SERVICE_REDIS_PORT",
        ];
        let of_image = ["HOME", "HTTP_PORT", "KUBERNETES_VERSION", "OTHER_SERVICE_PORT", "PATH"];
        assert_eq!(service_variables(&names(&[&of_services[..], &of_image].concat())), names(&of_services));
    }

    #[test]
    fn references_are_expanded_as_in_the_kubelet() {
        let variables = BTreeMap::from([("A".into(), "1".into()), ("B".into(), "$(A)".into())]);
        let rows = [
            ("", Some("")),
            ("plain", Some("plain")),
            ("$(A)", Some("1")),
            ("x$(A)y$(A)", Some("x1y1")),
            ("$(B)", Some("$(A)")),
            ("$(C)", Some("$(C)")),
            ("$()", Some("$()")),
            ("$$", Some("$")),
            ("$$(A)", Some("$(A)")),
            ("$$$(A)", Some("$1")),
            ("$A", Some("$A")),
            ("$(A", Some("$(A")),
            ("$(A$(B)", Some("$(A$(B)")),
            ("a$", Some("a$")),
            ("0123456789$(A)", None),
            ("0123456789a", None),
        ];
        for (template, expected) in rows {
            assert_eq!(expand(template, &variables, 10), expected.map(OsString::from), "{template}");
        }
    }
}
