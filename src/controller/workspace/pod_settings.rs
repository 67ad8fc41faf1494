//! Settings of the controller for workspace pods.

use super::restrictions::PodRestrictions;

/// Settings of the controller for workspace pods.
#[derive(Clone, Debug)]
pub struct PodSettings {
    /// Image that contains the binary `/pulumi-controller`.
    pub agent_image: String,
    /// Pull policy of the agent image; the Kubernetes default if absent.
    pub agent_image_pull_policy: Option<String>,
    /// Image of the `pulumi` container if the Workspace does not specify one.
    pub default_image: String,
    pub restrictions: PodRestrictions,
}
