//! Tags that a run sets on its Pulumi stack. Pulumi Cloud displays the tags, and users can group and filter stacks by
//! tags.

use std::collections::HashMap;

use kube::ResourceExt;

use crate::api::auto::Update;
use crate::controller::stack::stack_of;

/// Maximum length of a tag value, in bytes. Pulumi Cloud rejects longer values.
const MAX_VALUE: usize = 256;

/// Returns the tags for a run, except tags whose value would be empty. `cluster` is the cluster name, which can be
/// empty.
pub fn of(update: &Update, cluster: &str) -> HashMap<String, String> {
    let revision = update.artifact().map(|artifact| artifact.revision.clone()).unwrap_or_default();
    let tags = [
        ("kubernetes:cluster", cluster.to_owned()),
        ("kubernetes:namespace", update.namespace().unwrap_or_default()),
        ("kubernetes:stack", stack_of(update).unwrap_or_default()),
        ("flux:revision", revision),
    ];
    let tags = tags.into_iter().map(|(name, text)| (name.to_owned(), value(&text)));
    tags.filter(|(_, value)| !value.is_empty()).collect()
}

/// Removes control characters from a string, and truncates the beginning of a long string. The end of a revision is
/// more important, because it contains the checksum.
fn value(text: &str) -> String {
    let text: String = text.chars().filter(|character| !character.is_control()).collect();
    let start = text.ceil_char_boundary(text.len().saturating_sub(MAX_VALUE));
    text.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::auto::{ArtifactReference, UpdateSpec};
    use crate::artifact::Digest;

    const COMMIT: &str = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d";

    fn update(stack: Option<&str>, revision: Option<&str>) -> Update {
        let artifact = |revision: &str| ArtifactReference {
            digest: Digest::of(b"a"),
            revision: revision.to_owned(),
            dir: String::new(),
        };
        let spec = UpdateSpec { artifact: revision.map(artifact), ..UpdateSpec::default() };
        let mut update = Update::new("web-1", spec);
        update.metadata.namespace = Some("apps".to_owned());
        update.metadata.labels = stack.map(|stack| {
            let labels = [("pulumi.com/component", "stack"), ("auto.pulumi.com/workspace-name", stack)];
            labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        });
        update
    }

    #[test]
    fn the_tags_identify_the_cluster_the_stack_and_the_revision() {
        let main = format!("main@sha1:{COMMIT}");
        let rows: [(Update, &str, &[(&str, &str)]); 4] = [
            (
                update(Some("web"), Some(&main)),
                "prod",
                &[
                    ("flux:revision", main.as_str()),
                    ("kubernetes:cluster", "prod"),
                    ("kubernetes:namespace", "apps"),
                    ("kubernetes:stack", "web"),
                ],
            ),
            (update(Some("web"), None), "", &[("kubernetes:namespace", "apps"), ("kubernetes:stack", "web")]),
            (update(None, Some("")), "", &[("kubernetes:namespace", "apps")]),
            (update(None, Some("v1\n\u{1b}")), "", &[("flux:revision", "v1"), ("kubernetes:namespace", "apps")]),
        ];
        for (update, cluster, expected) in rows {
            let tags: BTreeMap<String, String> = of(&update, cluster).into_iter().collect();
            let tags: Vec<_> = tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(tags, expected);
        }
    }

    #[test]
    fn names_and_values_of_tags_are_within_the_limits_of_pulumi_cloud() {
        let branch = "ä".repeat(1000);
        let tags = of(&update(Some("web"), Some(&format!("{branch}@sha1:{COMMIT}"))), &"c".repeat(300));
        let is_in_name = |character: char| character.is_ascii_alphanumeric() || "-_.:".contains(character);
        for (name, value) in &tags {
            assert!(name.len() <= 40 && name.chars().all(is_in_name), "{name}");
            assert!(value.len() <= 256, "{name}: {} bytes", value.len());
        }
        assert!(tags.get("flux:revision").is_some_and(|value| value.ends_with(&format!("ä@sha1:{COMMIT}"))));
    }
}
