//! Validation of `spec.concurrencyGroup`.

use crate::api::names;
use crate::api::pulumi::{ConcurrencyGroup, Stack};

/// Maximum length of a group name.
const MAX_NAME: usize = 63;

/// Checks the concurrency group of a Stack. Returns the error message. The API server validates this field only in the
/// version v1.
pub fn check(stack: &Stack) -> Result<(), String> {
    let Some(ConcurrencyGroup { name, limit }) = &stack.spec.concurrency_group else { return Ok(()) };
    if !names::is_object_name(name) || name.contains('.') || name.len() > MAX_NAME {
        return Err(format!(
            "invalid spec.concurrencyGroup.name: {name:?} must consist of at most {MAX_NAME} lowercase letters, digits \
             and hyphens"
        ));
    }
    match limit {
        Some(limit) if !(1..=ConcurrencyGroup::MAX_LIMIT).contains(limit) => Err(format!(
            "invalid spec.concurrencyGroup.limit: {limit} must be from 1 to {}",
            ConcurrencyGroup::MAX_LIMIT
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::StackSpec;

    #[test]
    fn the_name_is_a_dns_label_and_the_limit_is_from_1_to_100() {
        let long = "a".repeat(64);
        let rows = [
            ("aws-prod", None, None),
            ("a", Some(100), None),
            ("", None, Some("name")),
            ("Aws", None, Some("name")),
            ("aws.prod", None, Some("name")),
            (long.as_str(), None, Some("name")),
            ("aws-prod", Some(0), Some("limit")),
            ("aws-prod", Some(101), Some("limit")),
        ];
        for (name, limit, field) in rows {
            let concurrency_group = Some(ConcurrencyGroup { name: name.to_owned(), limit });
            let stack = Stack::new("web", StackSpec { concurrency_group, ..StackSpec::default() });
            let error = check(&stack).err();
            assert_eq!(error.is_some(), field.is_some(), "{name} {limit:?}: {error:?}");
            let expected = field.map(|field| format!("invalid spec.concurrencyGroup.{field}: "));
            assert!(error.unwrap_or_default().starts_with(&expected.unwrap_or_default()), "{name} {limit:?}");
        }
    }
}
