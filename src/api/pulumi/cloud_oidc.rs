//! Login to Pulumi Cloud with a workspace pod's ServiceAccount token.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{bounds, duration, schema};

/// Minimum lifetime of an access token in seconds.
const MIN_EXPIRATION: u64 = 10 * 60;
/// Maximum lifetime of an access token in seconds.
const MAX_EXPIRATION: u64 = 24 * 60 * 60;

/// Login to Pulumi Cloud with the pod's ServiceAccount token. The agent exchanges this token for a short-lived
/// access token.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PulumiCloudOidc {
    /// Organization in Pulumi Cloud that trusts the cluster's OIDC issuer.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub organization: String,

    /// Team that owns the access token. Mutually exclusive with `user`. Default: none. Without `team` and `user`, the
    /// organization owns the access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAME))]
    pub team: Option<String>,

    /// Login name of the user who owns the access token. Mutually exclusive with `team`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAME))]
    pub user: Option<String>,

    /// Audience of the ServiceAccount token. Default: `urn:pulumi:org:` followed by the organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub audience: Option<String>,

    /// Lifetime of the access token, as a duration such as `2h`. Minimum: 10 minutes. Maximum: 24 hours. The maximum
    /// lifetime in Pulumi Cloud's OIDC issuer settings also applies. Default: twice the run timeout, within these
    /// limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub expiration: Option<String>,
}

impl PulumiCloudOidc {
    /// Returns the audience for the ServiceAccount token.
    pub fn audience(&self) -> String {
        let given = self.audience.clone().filter(|audience| !audience.is_empty());
        given.unwrap_or_else(|| format!("urn:pulumi:org:{}", self.organization))
    }

    /// Returns the access token lifetime in seconds for a run with this timeout. A timeout of 0 means no limit.
    ///
    /// The default lifetime exceeds the timeout, so that consecutive runs can use the same access token.
    pub fn expiration_seconds(&self, timeout_seconds: u64) -> u64 {
        let given = self.expiration.as_deref().and_then(duration::seconds);
        let desired = given.unwrap_or_else(|| match timeout_seconds {
            0 => MAX_EXPIRATION,
            seconds => seconds.saturating_mul(2),
        });
        desired.clamp(MIN_EXPIRATION, MAX_EXPIRATION)
    }

    /// Returns the first invalid field and the rule that it violates.
    pub fn invalid_field(&self) -> Option<(&'static str, &'static str)> {
        let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
        let is_optional_name = |name: &Option<String>| name.as_deref().is_none_or(is_name);
        let is_expiration = |text: &String| {
            duration::seconds(text).is_some_and(|seconds| (MIN_EXPIRATION..=MAX_EXPIRATION).contains(&seconds))
        };
        let rules = [
            (
                "organization",
                is_name(&self.organization),
                "must be the name of an organization, which is not empty and has no whitespace or control characters",
            ),
            (
                "team",
                is_optional_name(&self.team),
                "must be the name of a team, which is not empty and has no whitespace or control characters",
            ),
            (
                "user",
                is_optional_name(&self.user),
                "must be the login name of a user, which is not empty and has no whitespace or control characters",
            ),
            ("user", self.team.is_none() || self.user.is_none(), "must not be set together with team"),
            (
                "audience",
                is_optional_name(&self.audience),
                "must be an audience, which is not empty and has no whitespace or control characters, for example \
                 urn:pulumi:org:acme",
            ),
            (
                "expiration",
                self.expiration.as_ref().is_none_or(is_expiration),
                "must be a duration of at least 10m and at most 24h",
            ),
        ];
        rules.into_iter().find(|(_, is_valid, _)| !is_valid).map(|(field, _, rule)| (field, rule))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn oidc(more: &Value) -> PulumiCloudOidc {
        let mut whole = json!({"organization": "acme"});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn the_first_invalid_field_is_reported() {
        let rows = [
            (json!({}), None),
            (json!({"team": "platform", "audience": "urn:example", "expiration": "2h"}), None),
            (json!({"user": "jane"}), None),
            (json!({"organization": ""}), Some("organization")),
            (json!({"organization": "a b"}), Some("organization")),
            (json!({"team": ""}), Some("team")),
            (json!({"user": "jane\n"}), Some("user")),
            (json!({"team": "platform", "user": "jane"}), Some("user")),
            (json!({"audience": "a b"}), Some("audience")),
            (json!({"expiration": "9m"}), Some("expiration")),
            (json!({"expiration": "25h"}), Some("expiration")),
            (json!({"expiration": "soon"}), Some("expiration")),
        ];
        for (more, expected) in rows {
            assert_eq!(oidc(&more).invalid_field().map(|(field, _)| field), expected, "{more}");
        }
    }

    #[test]
    fn the_audience_contains_the_organization_by_default() {
        assert_eq!(oidc(&json!({})).audience(), "urn:pulumi:org:acme");
        assert_eq!(oidc(&json!({"audience": ""})).audience(), "urn:pulumi:org:acme");
        assert_eq!(oidc(&json!({"audience": "urn:example"})).audience(), "urn:example");
    }

    #[test]
    fn the_default_expiration_covers_the_timeout_of_the_run() {
        let rows = [
            (json!({}), 0, 86_400),
            (json!({}), 60, 600),
            (json!({}), 3600, 7200),
            (json!({}), 86_400, 86_400),
            (json!({}), u64::MAX, 86_400),
            (json!({"expiration": "30m"}), 3600, 1800),
            (json!({"expiration": "1m"}), 3600, 600),
        ];
        for (more, timeout, expected) in rows {
            assert_eq!(oidc(&more).expiration_seconds(timeout), expected, "{more}, timeout {timeout}");
        }
    }
}
