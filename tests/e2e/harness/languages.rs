//! Image with the language runtimes, and the test cluster's registry for npm, Python and Go packages.

use serde_json::{Value, json};

/// Image with the language runtimes.
pub const IMAGE: &str = "localhost/pulumi-controller-test/languages:test";
/// URL of the registry, which also provides plugins.
pub const REGISTRY: &str = "http://packages.test-services";
pub const REGISTRY_HOST: &str = "packages.test-services";

/// Returns the environment variables for a Workspace that uses the registry. Pods in the test cluster have no access to
/// the internet.
pub fn registry_variables() -> Value {
    json!([
        {"name": "NPM_CONFIG_REGISTRY", "value": format!("{REGISTRY}/npm/")},
        {"name": "PIP_INDEX_URL", "value": format!("{REGISTRY}/pypi/simple/")},
        {"name": "PIP_TRUSTED_HOST", "value": REGISTRY_HOST},
        {"name": "GOPROXY", "value": format!("{REGISTRY}/go")},
        {"name": "GOSUMDB", "value": "off"},
    ])
}
