//! Parses the namespace annotations that set the maximum number of concurrent runs, the weight, the shared
//! concurrency groups and the number of idle pods. Only an administrator can set these annotations, because the
//! ClusterRole `edit` does not permit changes to a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::api::conditions::shorten;
use crate::api::names::{
    self, ANNOTATION_CONCURRENCY_GROUPS, ANNOTATION_IDLE_PODS, ANNOTATION_MAX_CONCURRENT_RUNS, ANNOTATION_RUN_WEIGHT,
};
use crate::runtime::run_limiter::Share;

/// Maximum value of the annotation that limits the concurrent runs in a namespace.
const MAX_RUNS: usize = 10_000;
/// Maximum weight of a namespace.
const MAX_WEIGHT: usize = 100;
/// Maximum value of the annotation that sets the number of idle pods.
const MAX_IDLE_PODS: usize = 1000;
/// Maximum number of concurrency groups that a namespace shares.
const MAX_GROUPS: usize = 100;
/// Maximum length of a value in a message, in bytes.
const MAX_SHOWN: usize = 64;

/// Run slot share, shared concurrency groups and number of idle pods of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunShare {
    pub share: Share,
    /// Names of the concurrency groups that the namespace shares with other namespaces.
    pub shared_groups: BTreeSet<String>,
    /// Number of idle pods that each pool in the namespace keeps.
    pub idle_pods: usize,
    /// Messages about annotations that have no effect because their values are invalid.
    pub ignored: Vec<String>,
}

impl RunShare {
    /// Parses the annotations of a namespace.
    pub fn of_namespace(namespace: &str, annotations: &BTreeMap<String, String>) -> Self {
        let mut ignored = Vec::new();
        let mut number = |name: &str, range: RangeInclusive<usize>| {
            let value = annotations.get(name)?.trim();
            let parsed = value.parse::<usize>().ok().filter(|number| range.contains(number));
            if parsed.is_none() && !value.is_empty() {
                let why = format!("is not an integer from {} to {}", range.start(), range.end());
                ignored.push(message(namespace, name, value, &why));
            }
            parsed
        };
        let limit = number(ANNOTATION_MAX_CONCURRENT_RUNS, 1..=MAX_RUNS);
        let weight = number(ANNOTATION_RUN_WEIGHT, 1..=MAX_WEIGHT).unwrap_or_else(|| Share::default().weight);
        let idle_pods = number(ANNOTATION_IDLE_PODS, 0..=MAX_IDLE_PODS).unwrap_or_default();
        let (shared_groups, surplus) = groups(annotations);
        if let Some(value) = surplus {
            let why = format!("must contain at most {MAX_GROUPS} names of concurrency groups, separated by commas");
            ignored.push(message(namespace, ANNOTATION_CONCURRENCY_GROUPS, &value, &why));
        }
        RunShare { share: Share { limit, weight }, shared_groups, idle_pods, ignored }
    }

    /// Returns a message that lists the annotated groups that the flag `--concurrency-groups` does not define.
    /// `limits` contains the groups that the flag defines. The controller does not share the listed groups between
    /// namespaces.
    pub fn missing_groups(&self, namespace: &str, limits: &BTreeMap<String, u32>) -> Option<String> {
        let missing = self.shared_groups.iter().map(String::as_str).filter(|name| !limits.contains_key(*name));
        let missing = missing.collect::<Vec<_>>().join(", ");
        let shown = shorten(&missing, MAX_SHOWN);
        (!missing.is_empty()).then(|| {
            format!(
                "concurrency groups that --concurrency-groups does not contain are not shared: {shown} (annotation \
                 {ANNOTATION_CONCURRENCY_GROUPS} of namespace {namespace})"
            )
        })
    }
}

/// Returns the names of the shared groups, and the first name that is invalid or exceeds [`MAX_GROUPS`].
fn groups(annotations: &BTreeMap<String, String>) -> (BTreeSet<String>, Option<String>) {
    let value = annotations.get(ANNOTATION_CONCURRENCY_GROUPS).map(String::as_str).unwrap_or_default();
    let parts = value.split(',').map(str::trim).filter(|name| !name.is_empty());
    let (valid, invalid): (Vec<&str>, Vec<&str>) = parts.partition(|name| names::is_object_name(name));
    let surplus = invalid.first().or_else(|| valid.get(MAX_GROUPS));
    (valid.iter().take(MAX_GROUPS).map(|name| (*name).to_owned()).collect(), surplus.map(|name| (*name).to_owned()))
}

fn message(namespace: &str, annotation: &str, value: &str, why: &str) -> String {
    let value = shorten(value, MAX_SHOWN);
    format!("ignoring the annotation {annotation} of namespace {namespace}: {value:?} {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(annotations: &[(&str, &str)]) -> RunShare {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        RunShare::of_namespace("apps", &annotations)
    }

    #[test]
    fn invalid_values_have_no_effect_and_are_reported() {
        let share = |limit, weight| Share { limit, weight };
        let (runs, weight) = (ANNOTATION_MAX_CONCURRENT_RUNS, ANNOTATION_RUN_WEIGHT);
        let rows = [
            (vec![], share(None, 1), 0),
            (vec![(runs, "3"), (weight, " 2 ")], share(Some(3), 2), 0),
            (vec![(runs, ""), (weight, "")], share(None, 1), 0),
            (vec![(runs, "0"), (weight, "101")], share(None, 1), 2),
            (vec![(runs, "three"), (weight, "-1")], share(None, 1), 2),
            (vec![(runs, "1"), (weight, "1.5")], share(Some(1), 1), 1),
            (vec![(runs, "99999999999999999999"), (weight, "100")], share(None, 100), 1),
        ];
        for (annotations, expected, ignored) in rows {
            let found = parse(&annotations);
            assert_eq!((found.share, found.ignored.len()), (expected, ignored), "{annotations:?}");
        }
        let found = parse(&[(weight, "many")]).ignored;
        assert_eq!(
            found,
            [
                "ignoring the annotation pulumi.com/run-weight of namespace apps: \"many\" is not an integer from 1 to 100"
            ]
        );
    }

    #[test]
    fn an_invalid_number_of_idle_pods_is_reported_and_results_in_zero() {
        let rows = [("", 0, 0), ("0", 0, 0), (" 3 ", 3, 0), ("-1", 0, 1), ("1001", 0, 1), ("some", 0, 1)];
        for (value, expected, ignored) in rows {
            let found = parse(&[(ANNOTATION_IDLE_PODS, value)]);
            assert_eq!((found.idle_pods, found.ignored.len()), (expected, ignored), "{value}");
        }
        assert_eq!(parse(&[]).idle_pods, 0);
    }

    #[test]
    fn the_shared_groups_are_a_list_of_names() {
        let found = parse(&[(ANNOTATION_CONCURRENCY_GROUPS, "aws-prod, state ,,Not valid")]);
        assert_eq!(found.shared_groups, ["aws-prod", "state"].map(str::to_owned).into());
        assert_eq!(found.ignored.len(), 1, "{:?}", found.ignored);
        let many: Vec<String> = (0..=MAX_GROUPS).map(|number| format!("group-{number}")).collect();
        let found = parse(&[(ANNOTATION_CONCURRENCY_GROUPS, &many.join(","))]);
        assert_eq!((found.shared_groups.len(), found.ignored.len()), (MAX_GROUPS, 1));
    }

    #[test]
    fn a_shared_group_that_the_flag_does_not_contain_is_reported() {
        let limits = BTreeMap::from([("state".to_owned(), 2)]);
        let missing = |value: &str| parse(&[(ANNOTATION_CONCURRENCY_GROUPS, value)]).missing_groups("apps", &limits);
        assert_eq!(missing(""), None);
        assert_eq!(missing("state"), None);
        let expected = "concurrency groups that --concurrency-groups does not contain are not shared: aws, gcp \
                        (annotation pulumi.com/concurrency-groups of namespace apps)";
        assert_eq!(missing("state,gcp,aws").as_deref(), Some(expected));
        let many: Vec<String> = (0..MAX_GROUPS).map(|number| format!("group-{number}")).collect();
        assert!(missing(&many.join(",")).is_some_and(|message| message.len() < 250 && message.contains("...")));
    }
}
