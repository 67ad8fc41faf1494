//! Effects of `securityProfile` on the pod of a Workspace. Pure functions.

use serde_json::{Value, json};

use super::spec_error::SpecError;

/// Tag suffix of an image with a non-root user. The image without the suffix runs as root.
const NONROOT: &str = "-nonroot";

/// Privileges of the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SecurityProfile {
    /// Pod Security Standard `restricted`.
    #[default]
    Restricted,
    /// Pod Security Standard `baseline`, with the user of the image.
    Baseline,
}

impl SecurityProfile {
    pub(super) fn parse(profile: Option<&str>) -> Result<Self, SpecError> {
        match profile {
            None | Some("" | "restricted") => Ok(Self::Restricted),
            Some("baseline") => Ok(Self::Baseline),
            Some(other) => Err(SpecError::SecurityProfile { profile: other.to_owned() }),
        }
    }

    /// Returns the security context of the pod.
    pub(super) fn of_pod(self) -> Value {
        let seccomp = json!({"type": "RuntimeDefault"});
        match self {
            Self::Restricted => json!({
                "runAsNonRoot": true,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "seccompProfile": seccomp,
            }),
            Self::Baseline => json!({"seccompProfile": seccomp}),
        }
    }

    /// Returns the security context of the `pulumi` container, if it needs one.
    pub(super) fn of_pulumi(self) -> Option<Value> {
        match self {
            Self::Restricted => Some(restricted()),
            Self::Baseline => None,
        }
    }

    /// Returns the image for a Workspace that does not specify one.
    pub(super) fn image(self, default: &str) -> &str {
        match self {
            Self::Restricted => default,
            Self::Baseline => default.strip_suffix(NONROOT).unwrap_or(default),
        }
    }
}

/// Returns the security context of a container for the Pod Security Standard `restricted`.
pub(super) fn restricted() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_security_profile_is_restricted_or_baseline() {
        let rows = [
            (None, Ok(SecurityProfile::Restricted)),
            (Some(""), Ok(SecurityProfile::Restricted)),
            (Some("restricted"), Ok(SecurityProfile::Restricted)),
            (Some("baseline"), Ok(SecurityProfile::Baseline)),
            (
                Some("privileged"),
                Err("invalid securityProfile \"privileged\": must be restricted or baseline".to_owned()),
            ),
        ];
        for (profile, wanted) in rows {
            assert_eq!(SecurityProfile::parse(profile).map_err(|error| error.to_string()), wanted);
        }
    }

    #[test]
    fn the_baseline_profile_uses_the_image_without_the_nonroot_suffix() {
        let rows = [
            ("pulumi/pulumi:latest-nonroot", "pulumi/pulumi:latest"),
            ("registry.example/pulumi:3.200-nonroot", "registry.example/pulumi:3.200"),
            ("registry.example/mine:1", "registry.example/mine:1"),
        ];
        for (image, baseline) in rows {
            assert_eq!(SecurityProfile::Baseline.image(image), baseline);
            assert_eq!(SecurityProfile::Restricted.image(image), image);
        }
    }
}
