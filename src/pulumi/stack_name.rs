//! Names of stacks, as the CLI accepts them.

use crate::pulumi::backend;

/// Number of parts in the longest form of a name: organization, project and stack.
const MAX_PARTS: usize = 3;

/// Returns an error if the CLI does not accept the form of a name. The error is a message for users.
pub fn check(name: &str) -> Result<(), String> {
    let parts: Vec<&str> = name.split('/').collect();
    // The CLI parses an argument that begins with a hyphen as an option.
    let is_part = |part: &&str| !part.trim().is_empty() && !part.starts_with('-');
    if parts.len() <= MAX_PARTS && parts.iter().all(is_part) {
        return Ok(());
    }
    Err(format!(
        "invalid stack name {name:?}: must have the form <stack>, <organization>/<stack> or <organization>/<project>/<stack>"
    ))
}

/// Parts of a name in the form `stack`, `organization/stack` or `organization/project/stack`.
pub struct Parts<'a> {
    pub organization: Option<&'a str>,
    pub project: Option<&'a str>,
    pub stack: &'a str,
}

pub fn parts(name: &str) -> Parts<'_> {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [organization, project, stack] => Parts { organization: Some(organization), project: Some(project), stack },
        [organization, stack] => Parts { organization: Some(organization), project: None, stack },
        _ => Parts { organization: None, project: None, stack: name },
    }
}

/// A stack, identified by its name, its project and the URL of its state backend, without credentials.
#[derive(Clone, Copy, Debug)]
pub struct Qualified<'a> {
    pub name: &'a str,
    pub project: Option<&'a str>,
    pub backend: Option<&'a str>,
}

impl Qualified<'_> {
    /// Returns whether the two stacks are different. Ignores a part that is unknown for one of the stacks.
    pub fn differs_from(&self, other: &Qualified<'_>) -> bool {
        let differ =
            |one: Option<&str>, other: Option<&str>| matches!((one, other), (Some(one), Some(other)) if one != other);
        let (backend, other_backend) = (self.backend.map(backend::sorted), other.backend.map(backend::sorted));
        let (name, other_name) = (parts(self.name), parts(other.name));
        name.stack != other_name.stack
            || differ(name.organization, other_name.organization)
            || differ(name.project.or(self.project), other_name.project.or(other.project))
            || differ(backend.as_deref(), other_backend.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_differ_if_a_part_that_both_specify_differs() {
        let of = |name, project, backend| Qualified { name, project, backend };
        let applied = of("dev", Some("web"), Some("s3://a"));
        let rows = [
            (of("dev", Some("web"), Some("s3://a")), false),
            (of("acme/dev", None, None), false),
            (of("acme/web/dev", Some("ignored"), None), false),
            (of("prod", Some("web"), Some("s3://a")), true),
            (of("dev", Some("api"), Some("s3://a")), true),
            (of("acme/api/dev", None, None), true),
            (of("dev", Some("web"), Some("s3://b")), true),
        ];
        let parameters = |url| of("dev", Some("web"), Some(url));
        assert!(!parameters("s3://a?region=x&endpoint=y").differs_from(&parameters("s3://a?endpoint=y&region=x")));
        for (other, expected) in rows {
            assert_eq!(applied.differs_from(&other), expected, "{other:?}");
            assert_eq!(other.differs_from(&applied), expected, "{other:?}");
        }
    }

    #[test]
    fn a_stack_name_has_one_of_three_forms() {
        for name in ["dev", "acme/dev", "acme/web/dev", "organization/web/dev"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", " ", "a/b/c/d", "a//b", "/dev", "dev/", "--help", "a/-b"] {
            let error = check(name).expect_err(name);
            let forms = "<stack>, <organization>/<stack> or <organization>/<project>/<stack>";
            assert!(error.starts_with(&format!("invalid stack name {name:?}: ")) && error.ends_with(forms), "{error}");
        }
    }
}
