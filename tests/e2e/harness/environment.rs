//! Environment variables that `tests/cluster/cluster exec` sets for the tests.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Addresses and credentials for the cluster and the test services.
#[derive(Debug)]
pub struct Environment {
    pub git_url: String,
    pub git_url_in_cluster: String,
    pub s3_url: String,
    pub s3_host_in_cluster: String,
    pub s3_backend_url: String,
    pub s3_access_key: String,
    pub s3_secret_key: String,
    pub registry_url: String,
    pub registry_host_in_cluster: String,
    pub provider_log_url: String,
    pub provider_log_url_in_cluster: String,
    pub source_faults_url: String,
    pub source_faults_url_in_cluster: String,
    pub pulumi_cloud_url: String,
    pub pulumi_cloud_url_in_cluster: String,
    pub pulumi_image: String,
    /// Path of the manifest with the Flux components.
    pub flux_components: String,
}

static ENVIRONMENT: LazyLock<Result<Environment, String>> = LazyLock::new(|| read(|name| std::env::var(name).ok()));

impl Environment {
    /// Returns the environment. Panics with an explanation if the cluster script has not started the test.
    pub fn get() -> &'static Environment {
        match &*ENVIRONMENT {
            Ok(environment) => environment,
            Err(message) => panic!("{message}"),
        }
    }
}

/// Reads the environment. Returns an error if only `KUBECONFIG` is set, because the other variables prove that the
/// cluster script has selected the cluster.
fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Environment, String> {
    let names = [
        "KUBECONFIG",
        "GIT_URL",
        "GIT_URL_IN_CLUSTER",
        "S3_URL",
        "S3_HOST_IN_CLUSTER",
        "S3_BACKEND_URL",
        "S3_ACCESS_KEY",
        "S3_SECRET_KEY",
        "REGISTRY_URL",
        "REGISTRY_HOST_IN_CLUSTER",
        "PROVIDER_LOG_URL",
        "PROVIDER_LOG_URL_IN_CLUSTER",
        "SOURCE_FAULTS_URL",
        "SOURCE_FAULTS_URL_IN_CLUSTER",
        "PULUMI_CLOUD_URL",
        "PULUMI_CLOUD_URL_IN_CLUSTER",
        "PULUMI_IMAGE",
        "FLUX_COMPONENTS",
    ];
    let mut values = BTreeMap::new();
    for name in names {
        let value = variable(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            format!(
                "the end-to-end tests need the test cluster ({name} is not set): run `make test`, or start the cluster, install \
                 the controller and run `tests/cluster/cluster exec cargo test --test e2e`"
            )
        })?;
        values.insert(name, value);
    }
    let mut take = |name: &str| values.remove(name).unwrap_or_default();
    Ok(Environment {
        git_url: take("GIT_URL"),
        git_url_in_cluster: take("GIT_URL_IN_CLUSTER"),
        s3_url: take("S3_URL"),
        s3_host_in_cluster: take("S3_HOST_IN_CLUSTER"),
        s3_backend_url: take("S3_BACKEND_URL"),
        s3_access_key: take("S3_ACCESS_KEY"),
        s3_secret_key: take("S3_SECRET_KEY"),
        registry_url: take("REGISTRY_URL"),
        registry_host_in_cluster: take("REGISTRY_HOST_IN_CLUSTER"),
        provider_log_url: take("PROVIDER_LOG_URL"),
        provider_log_url_in_cluster: take("PROVIDER_LOG_URL_IN_CLUSTER"),
        source_faults_url: take("SOURCE_FAULTS_URL"),
        source_faults_url_in_cluster: take("SOURCE_FAULTS_URL_IN_CLUSTER"),
        pulumi_cloud_url: take("PULUMI_CLOUD_URL"),
        pulumi_cloud_url_in_cluster: take("PULUMI_CLOUD_URL_IN_CLUSTER"),
        pulumi_image: take("PULUMI_IMAGE"),
        flux_components: take("FLUX_COMPONENTS"),
    })
}

#[test]
fn a_kubeconfig_alone_is_rejected_with_a_hint_to_use_make_test() {
    let message = read(|name| (name == "KUBECONFIG").then(|| "/home/me/.kube/config".to_owned())).unwrap_err();
    assert!(message.contains("GIT_URL is not set") && message.contains("`make test`"), "{message}");
}
