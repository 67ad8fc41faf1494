//! Addresses and credentials for the emulators that `tests/cluster/cluster backends` starts.

use std::sync::LazyLock;

/// Addresses and credentials for the emulators, from the cluster's environment variables.
#[derive(Debug)]
pub struct Emulators {
    pub azure_url: String,
    pub azure_host_in_cluster: String,
    pub azure_account: String,
    pub azure_key: String,
    pub gcs_url: String,
    pub gcs_address_in_cluster: String,
    pub gcs_bucket: String,
    pub vault_url: String,
    pub vault_url_in_cluster: String,
    pub vault_root_token: String,
    pub kms_url: String,
    pub kms_url_in_cluster: String,
}

static EMULATORS: LazyLock<Result<Emulators, String>> = LazyLock::new(|| read(|name| std::env::var(name).ok()));

impl Emulators {
    /// Returns the addresses and credentials. Panics with an explanation if the cluster does not contain the emulators.
    pub fn get() -> &'static Emulators {
        match &*EMULATORS {
            Ok(emulators) => emulators,
            Err(message) => panic!("{message}"),
        }
    }
}

fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Emulators, String> {
    let get = |name: &str| {
        variable(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            format!(
                "the tests of backends need the emulators of the test cluster ({name} is not set): run \
                 `tests/run install backends`, or run `tests/cluster/cluster backends` before this test"
            )
        })
    };
    Ok(Emulators {
        azure_url: get("AZURE_URL")?,
        azure_host_in_cluster: get("AZURE_HOST_IN_CLUSTER")?,
        azure_account: get("AZURE_ACCOUNT")?,
        azure_key: get("AZURE_KEY")?,
        gcs_url: get("GCS_URL")?,
        gcs_address_in_cluster: get("GCS_ADDRESS_IN_CLUSTER")?,
        gcs_bucket: get("GCS_BUCKET")?,
        vault_url: get("VAULT_URL")?,
        vault_url_in_cluster: get("VAULT_URL_IN_CLUSTER")?,
        vault_root_token: get("VAULT_ROOT_TOKEN")?,
        kms_url: get("KMS_URL")?,
        kms_url_in_cluster: get("KMS_URL_IN_CLUSTER")?,
    })
}
