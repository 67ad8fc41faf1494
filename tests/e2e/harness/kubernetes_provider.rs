//! Image with Pulumi's Kubernetes provider, and the server in the test cluster from which the CLI downloads the
//! provider.

use serde_json::{Value, json};

/// Image with the Pulumi CLI, the YAML language host and the Kubernetes provider.
pub const IMAGE: &str = "localhost/pulumi-controller-test/pulumi-kubernetes:test";

/// Returns the environment variables for a Workspace whose CLI downloads the provider. Pods in the test cluster have no
/// access to the internet.
pub fn plugin_variables() -> Value {
    json!([
        {"name": "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "value": "false"},
        {"name": "PULUMI_PLUGIN_DOWNLOAD_URL_OVERRIDES", "value": "^.*$=http://plugins.test-services"},
    ])
}
