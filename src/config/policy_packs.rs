//! Policy packs that the controller adds to all Stacks.

use crate::api::{bounds, names};
use crate::artifact::Directory;

/// Valid format of a policy pack, for error messages.
const FORMAT: &str = "must be KIND/NAMESPACE/NAME or KIND/NAMESPACE/NAME:DIR";
/// Prefix of the policy pack names. The names do not collide with names in the spec of a Stack, which cannot
/// contain a slash.
const PREFIX: &str = "cluster/";

/// Source of a policy pack, and the policy pack's directory in the source artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPolicyPack {
    /// Name that no policy pack in the spec of a Stack can have.
    pub name: String,
    /// Kind of the source: `KIND` for the Flux kinds, or `KIND.GROUP`.
    pub kind: String,
    pub namespace: String,
    pub source: String,
    pub directory: Directory,
}

/// Parses the policy packs. The error consists of the invalid value and the reason.
pub fn parse(values: &[String]) -> Result<Vec<ClusterPolicyPack>, (String, String)> {
    let mut packs: Vec<ClusterPolicyPack> = Vec::new();
    for value in values.iter().map(|value| value.trim()).filter(|value| !value.is_empty()) {
        let pack = parse_one(value).map_err(|why| (value.to_owned(), why))?;
        if packs.contains(&pack) {
            return Err((value.to_owned(), "must not be repeated".to_owned()));
        }
        packs.push(pack);
    }
    let most = usize::try_from(bounds::POLICY_PACKS).unwrap_or(usize::MAX);
    match packs.get(most) {
        Some(surplus) => Err((surplus.name.clone(), format!("must be one of at most {most} policy packs"))),
        None => Ok(packs),
    }
}

fn parse_one(value: &str) -> Result<ClusterPolicyPack, String> {
    let (object, directory) = value.split_once(':').unwrap_or((value, ""));
    let parts: Vec<&str> = object.split('/').collect();
    let [kind, namespace, source] = parts.as_slice() else { return Err(FORMAT.to_owned()) };
    if kind.is_empty() || !names::is_object_name(namespace) || !names::is_object_name(source) {
        return Err(FORMAT.to_owned());
    }
    let directory = directory.parse::<Directory>().map_err(|error| error.to_string())?;
    if directory.as_str().contains('"') {
        return Err("must not contain quotation marks".to_owned());
    }
    let mut name = format!("{PREFIX}{object}");
    if !directory.is_root() {
        name = format!("{name}:{}", directory.as_str());
    }
    let [kind, namespace, source] = [kind, namespace, source].map(|part| (*part).to_owned());
    Ok(ClusterPolicyPack { name, kind, namespace, source, directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(values: &[&str]) -> Result<Vec<String>, String> {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let packs = parse(&values).map_err(|(value, why)| format!("{value} {why}"))?;
        let line = |pack: ClusterPolicyPack| {
            let directory = pack.directory.as_str();
            format!("{} {} {} {} {directory}", pack.name, pack.kind, pack.namespace, pack.source)
        };
        Ok(packs.into_iter().map(line).collect())
    }

    #[test]
    fn a_pack_is_the_source_and_an_optional_directory() {
        let values = ["GitRepository/flux-system/policies:./house/", " ", "OCIRepository/flux-system/base"];
        let expected = [
            "cluster/GitRepository/flux-system/policies:house GitRepository flux-system policies house".to_owned(),
            "cluster/OCIRepository/flux-system/base OCIRepository flux-system base ".to_owned(),
        ];
        assert_eq!(parsed(&values), Ok(expected.to_vec()));
        assert_eq!(parsed(&[]), Ok(Vec::new()));
    }

    #[test]
    fn invalid_packs_are_errors() {
        let many: Vec<String> = (0..11).map(|number| format!("Bucket/apps/p{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let rows: [(&[&str], &str); 8] = [
            (&["house"], FORMAT),
            (&["Bucket/house"], FORMAT),
            (&["/apps/house"], FORMAT),
            (&["Bucket/apps/Not a name"], FORMAT),
            (&["Bucket/apps/house/more"], FORMAT),
            (&["Bucket/apps/house:../up"], ".."),
            (&["Bucket/apps/house", "Bucket/apps/house"], "must not be repeated"),
            (&many, "at most 10 policy packs"),
        ];
        for (values, expected) in rows {
            let error = parsed(values).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
