//! Opens the history storage that a URL specifies.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use super::retention::Retention;
use super::store::{HistoryStore, Place};
use crate::telemetry::metrics::Metrics;

/// Maximum time between the storage client's first attempt at a request and its last retry. The history writer has a
/// longer timeout.
const RETRY_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of retries per request.
const MAX_RETRIES: usize = 2;
/// Timeout of a request, in the storage client's format.
const REQUEST_TIMEOUT: &str = "10 seconds";
/// Timeout for opening a connection, in the storage client's format.
const CONNECT_TIMEOUT: &str = "3 seconds";
/// Parameters that an S3 URL may contain. Credentials are not permitted, because the URL appears in flags and in the
/// status of objects.
const S3_PARAMETERS: [&str; 4] = ["region", "endpoint", "allow_http", "virtual_hosted_style_request"];
/// Parameters that an Azure URL may contain. Credentials are not permitted.
const AZURE_PARAMETERS: [&str; 3] = ["account_name", "endpoint", "allow_http"];

/// The reason why a history URL is invalid. Each message completes the sentence "the URL must be …".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryUrlError {
    #[error("s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY")]
    Format,
    #[error("a URL without a user name and password: use environment variables or workload identity")]
    Credentials,
    #[error("a URL without the parameter {0:?}: supported parameters: {1}")]
    Parameter(String, String),
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("failed to create the directory {} for the history of runs: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("failed to open the storage {url} for the history of runs: {source}")]
    Storage { url: String, source: object_store::Error },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Google,
    Azure,
    File,
}

/// A validated URL of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryUrl {
    kind: Kind,
    url: Url,
}

impl FromStr for HistoryUrl {
    type Err = HistoryUrlError;

    fn from_str(text: &str) -> Result<Self, HistoryUrlError> {
        let url = Url::parse(text).map_err(|_| HistoryUrlError::Format)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(HistoryUrlError::Credentials);
        }
        let has_host = url.host_str().is_some_and(|host| !host.is_empty());
        let (kind, parameters): (Kind, &[&str]) = match (url.scheme(), has_host) {
            ("s3", true) => (Kind::S3, &S3_PARAMETERS),
            ("gs", true) => (Kind::Google, &[]),
            ("az", true) => (Kind::Azure, &AZURE_PARAMETERS),
            ("file", false) if url.path() != "/" => (Kind::File, &[]),
            _ => return Err(HistoryUrlError::Format),
        };
        if url.fragment().is_some() {
            return Err(HistoryUrlError::Format);
        }
        match url.query_pairs().find(|(key, _)| !parameters.contains(&key.as_ref())) {
            Some((key, _)) => Err(HistoryUrlError::Parameter(key.into_owned(), list(parameters))),
            None => Ok(HistoryUrl { kind, url }),
        }
    }
}

fn list(parameters: &[&str]) -> String {
    if parameters.is_empty() { "none".to_owned() } else { parameters.join(", ") }
}

impl HistoryUrl {
    /// Returns the URL of a directory on a volume.
    pub fn of_directory(directory: &std::path::Path) -> Option<Self> {
        Some(HistoryUrl { kind: Kind::File, url: Url::from_file_path(directory).ok()? })
    }

    /// Returns whether the history is on a volume in the controller's pod.
    pub fn is_volume(&self) -> bool {
        self.kind == Kind::File
    }

    /// Returns the URL without parameters and without a trailing slash.
    pub fn base(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.as_str().trim_end_matches('/').to_owned()
    }

    /// Returns the prefix that all object names share. For a volume, the prefix is empty, because the directory in the
    /// URL is the storage root.
    fn prefix(&self) -> String {
        match self.kind {
            Kind::File => String::new(),
            Kind::S3 | Kind::Google | Kind::Azure => self.url.path().trim_matches('/').to_owned(),
        }
    }

    fn parameters(&self) -> Vec<(String, String)> {
        self.url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect()
    }
}

/// Opens the storage, but sends no request to the object storage. Reads the credentials from the environment, like the
/// SDKs of the cloud providers.
pub fn open(url: &HistoryUrl, retention: Retention, metrics: Metrics) -> Result<HistoryStore, OpenError> {
    let failed = |source| OpenError::Storage { url: url.base(), source };
    let storage = match url.kind {
        Kind::S3 => s3(url).map_err(failed)?,
        Kind::Google => google(url).map_err(failed)?,
        Kind::Azure => azure(url).map_err(failed)?,
        Kind::File => volume(url)?,
    };
    let place = Place { storage, prefix: url.prefix(), base: url.base(), retention };
    Ok(if url.is_volume() { HistoryStore::on_volume(place, metrics) } else { HistoryStore::new(place, metrics) })
}

type Opened = Result<Box<dyn ObjectStore>, object_store::Error>;

fn s3(url: &HistoryUrl) -> Opened {
    let mut builder = AmazonS3Builder::from_env()
        .with_url(url.base())
        .with_retry(retry())
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT);
    for (key, value) in url.parameters() {
        builder = builder.with_config(key.parse()?, value);
    }
    Ok(Box::new(builder.build()?))
}

fn google(url: &HistoryUrl) -> Opened {
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_url(url.base())
        .with_retry(retry())
        .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
        .with_config(GoogleConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT);
    Ok(Box::new(builder.build()?))
}

fn azure(url: &HistoryUrl) -> Opened {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_url(url.base())
        .with_retry(retry())
        .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
        .with_config(AzureConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT);
    for (key, value) in url.parameters() {
        builder = builder.with_config(key.parse()?, value);
    }
    Ok(Box::new(builder.build()?))
}

fn volume(url: &HistoryUrl) -> Result<Box<dyn ObjectStore>, OpenError> {
    let path = url.url.to_file_path().unwrap_or_else(|()| PathBuf::from(url.url.path()));
    std::fs::create_dir_all(&path).map_err(|source| OpenError::Directory { path: path.clone(), source })?;
    let storage =
        LocalFileSystem::new_with_prefix(&path).map_err(|source| OpenError::Storage { url: url.base(), source })?;
    Ok(Box::new(storage.with_automatic_cleanup(true)))
}

fn retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_consists_of_a_storage_and_a_prefix() {
        let rows = [
            ("s3://runs/team/a?region=eu-central-1", "s3://runs/team/a", "team/a", false),
            ("s3://runs", "s3://runs", "", false),
            ("gs://runs/history/", "gs://runs/history", "history", false),
            ("az://container/p?account_name=acme", "az://container/p", "p", false),
            ("file:///data/history", "file:///data/history", "", true),
        ];
        for (text, base, prefix, is_volume) in rows {
            let url: HistoryUrl = text.parse().unwrap();
            assert_eq!((url.base().as_str(), url.prefix().as_str(), url.is_volume()), (base, prefix, is_volume));
        }
    }

    #[test]
    fn invalid_urls_and_credentials_are_rejected() {
        for text in ["runs", "s3://", "ftp://runs", "file:///", "file://host/data", "https://runs", "s3://runs/a#b"] {
            assert_eq!(text.parse::<HistoryUrl>(), Err(HistoryUrlError::Format), "{text}");
        }
        assert_eq!("s3://key:word@runs".parse::<HistoryUrl>(), Err(HistoryUrlError::Credentials));
        let error = "s3://runs?secret_access_key=x".parse::<HistoryUrl>().unwrap_err().to_string();
        assert!(error.contains("\"secret_access_key\"") && error.contains("region, endpoint"), "{error}");
        let error = "gs://runs?region=x".parse::<HistoryUrl>().unwrap_err().to_string();
        assert!(error.ends_with("supported parameters: none"), "{error}");
    }
}
