//! What the controller itself decides about workspace pods.

use super::restrictions::PodRestrictions;

/// The settings of the controller for workspace pods.
#[derive(Clone, Debug)]
pub struct PodSettings {
    /// The image that holds our binary at `/pulumi-controller`.
    pub agent_image: String,
    /// When it is pulled; Kubernetes' default if absent.
    pub agent_image_pull_policy: Option<String>,
    /// The image of the `pulumi` container when the Workspace names none.
    pub default_image: String,
    pub restrictions: PodRestrictions,
}
