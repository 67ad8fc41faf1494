//! Stack names in the forms that the CLI accepts.

use crate::pulumi::backend;

/// Maximum number of parts in a stack name: organization, project and stack.
const MAX_PARTS: usize = 3;

/// Returns an error message for users if the CLI does not accept the form of a stack name.
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

/// Parts of a stack name in the form `stack`, `organization/stack` or `organization/project/stack`.
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

/// Returns the parts of the stack name from an update or preview URL, which has the form
/// `https://HOST/ORGANIZATION/PROJECT/STACK/updates/NUMBER`. Returns `None` for other URLs.
pub fn in_permalink(url: &str) -> Option<Parts<'_>> {
    let (scheme, location) = url.split_once("://")?;
    let (_host, path) = location.split_once('/')?;
    let ["http" | "https", organization, project, stack, "updates" | "previews", _] =
        [scheme].into_iter().chain(path.split('/')).collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let is_complete = [organization, project, stack].iter().all(|part| !part.is_empty());
    is_complete.then_some(Parts { organization: Some(organization), project: Some(project), stack })
}

/// The identity of a stack: its name, its project, and its state backend URL without credentials.
#[derive(Clone, Copy, Debug)]
pub struct Qualified<'a> {
    pub name: &'a str,
    pub project: Option<&'a str>,
    pub backend: Option<&'a str>,
}

impl Qualified<'_> {
    /// Returns the name of this stack with the [organization](Self::organization_of) of `applied`.
    pub fn name_with_organization(&self, applied: &Qualified<'_>) -> Option<String> {
        Some(format!("{}/{}", self.organization_of(applied)?, self.name))
    }

    /// Returns the Pulumi Cloud organization of `applied`, if `applied` is the same stack. For a name without an
    /// organization, Pulumi Cloud would select the current user's default organization, which can change. Returns
    /// `None` if this stack's name contains an organization, or if the organization of `applied` is unknown.
    pub fn organization_of<'a>(&self, applied: &Qualified<'a>) -> Option<&'a str> {
        let is_in_cloud = applied.backend.is_some_and(backend::is_pulumi_cloud);
        let is_needed = is_in_cloud && parts(self.name).organization.is_none() && !self.differs_from(applied);
        parts(applied.name).organization.filter(|_| is_needed)
    }

    /// Returns the organization in the name. In a self-managed backend, the CLI accepts only the word `organization`, so
    /// the function returns `None`.
    pub fn organization(&self) -> Option<&str> {
        let is_self_managed = self.backend.is_some_and(backend::is_self_managed);
        parts(self.name).organization.filter(|_| !is_self_managed)
    }

    /// Returns whether the two stacks are different. Ignores a part if it is unknown for one of the stacks, and the
    /// organization in a self-managed backend, which has no organizations.
    pub fn differs_from(&self, other: &Qualified<'_>) -> bool {
        let differ =
            |one: Option<&str>, other: Option<&str>| matches!((one, other), (Some(one), Some(other)) if one != other);
        let (backend, other_backend) = (self.backend.map(backend::location), other.backend.map(backend::location));
        let (name, other_name) = (parts(self.name), parts(other.name));
        name.stack != other_name.stack
            || differ(self.organization(), other.organization())
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
            (of("organization/web/dev", None, Some("s3://a/?region=x")), false),
            (of("acme/web/dev", Some("ignored"), None), false),
            (of("prod", Some("web"), Some("s3://a")), true),
            (of("dev", Some("api"), Some("s3://a")), true),
            (of("acme/api/dev", None, None), true),
            (of("dev", Some("web"), Some("s3://b")), true),
        ];
        let cloud = |name| of(name, Some("web"), Some("https://api.pulumi.com"));
        assert!(cloud("acme/dev").differs_from(&cloud("organization/dev")));
        for (other, expected) in rows {
            assert_eq!(applied.differs_from(&other), expected, "{other:?}");
            assert_eq!(other.differs_from(&applied), expected, "{other:?}");
        }
    }

    #[test]
    fn only_urls_of_updates_and_previews_contain_a_stack() {
        let rows = [
            ("https://app.pulumi.com/acme/web/dev/updates/7", Some(("acme", "web", "dev"))),
            ("http://localhost:8080/acme/web/dev/previews/0b6c", Some(("acme", "web", "dev"))),
            ("https://app.pulumi.com/acme/web/dev", None),
            ("https://app.pulumi.com/acme/web/dev/updates/7/more", None),
            ("https://app.pulumi.com/acme//dev/updates/7", None),
            ("https://evil.example.com/login?next=phish", None),
            ("file:///acme/web/dev/updates/7", None),
            ("", None),
        ];
        for (url, expected) in rows {
            let found = in_permalink(url);
            let found = found.as_ref().and_then(|parts| Some((parts.organization?, parts.project?, parts.stack)));
            assert_eq!(found, expected, "{url}");
        }
    }

    #[test]
    fn the_organization_of_the_applied_stack_completes_a_name_in_pulumi_cloud() {
        let of = |name, project, backend| Qualified { name, project, backend };
        let cloud = Some("https://api.pulumi.com");
        let applied = of("acme/dev", Some("web"), cloud);
        let rows = [
            (of("dev", Some("web"), cloud), applied, Some("acme/dev")),
            (of("dev", None, Some("https://API.pulumi.com:443/")), applied, Some("acme/dev")),
            (of("other/dev", Some("web"), cloud), applied, None),
            (of("prod", Some("web"), cloud), applied, None),
            (of("dev", Some("api"), cloud), applied, None),
            (of("dev", Some("web"), Some("https://pulumi.example.com")), applied, None),
            (of("dev", Some("web"), cloud), of("dev", Some("web"), cloud), None),
            (of("dev", Some("web"), None), of("organization/dev", Some("web"), Some("s3://state")), None),
        ];
        for (stack, applied, expected) in rows {
            assert_eq!(stack.name_with_organization(&applied).as_deref(), expected, "{stack:?} {applied:?}");
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
