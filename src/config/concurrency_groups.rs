//! Concurrency groups that namespaces can share.

use std::collections::BTreeMap;

use crate::api::names;

/// Maximum number of groups. A limit is necessary, because each group has its own metric time series.
const MAX_GROUPS: usize = 100;
/// Maximum limit of a group.
const MAX_LIMIT: u32 = 10_000;
/// Maximum length of a group name, as in `spec.concurrencyGroup`.
const MAX_NAME: usize = 63;

/// Parses the groups. The error contains the invalid value and describes the valid values.
pub fn parse(values: &[String]) -> Result<BTreeMap<String, u32>, (String, String)> {
    let mut groups = BTreeMap::new();
    for value in values.iter().map(|value| value.trim()).filter(|value| !value.is_empty()) {
        let (name, limit) = parse_one(value).map_err(|why| (value.to_owned(), why))?;
        if groups.insert(name, limit).is_some() {
            return Err((value.to_owned(), "a group name that is not repeated".to_owned()));
        }
        if groups.len() > MAX_GROUPS {
            return Err((value.to_owned(), format!("one of at most {MAX_GROUPS} groups")));
        }
    }
    Ok(groups)
}

fn parse_one(value: &str) -> Result<(String, u32), String> {
    let format = || format!("NAME=LIMIT with a DNS label as the name and a limit from 1 to {MAX_LIMIT}");
    let (name, limit) = value.split_once('=').ok_or_else(format)?;
    let is_label = names::is_object_name(name) && !name.contains('.') && name.len() <= MAX_NAME;
    let limit = limit.parse::<u32>().ok().filter(|limit| is_label && (1..=MAX_LIMIT).contains(limit));
    Ok((name.to_owned(), limit.ok_or_else(format)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(values: &[&str]) -> Result<BTreeMap<String, u32>, (String, String)> {
        parse(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_group_has_a_name_and_a_limit() {
        let expected = BTreeMap::from([("aws-prod".to_owned(), 2), ("state".to_owned(), 1)]);
        assert_eq!(parsed(&["aws-prod=2", " state=1 ", ""]), Ok(expected));
        for value in ["aws-prod", "aws-prod=", "aws-prod=0", "aws-prod=10001", "=1", "Aws=1", "a.b=1", "a=b=1"] {
            assert_eq!(parsed(&[value]).map_err(|(value, _)| value), Err(value.to_owned()));
        }
        assert!(parsed(&["state=1", "state=2"]).is_err());
        let many: Vec<String> = (0..=MAX_GROUPS).map(|number| format!("group-{number}=1")).collect();
        assert!(parse(&many).is_err());
    }
}
