//! A bucket on the S3 server for the run history.

use std::io::Read;
use std::time::Duration;

use reqwest::StatusCode;
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use serde_json::{Value, json};

use super::environment::Environment;
use super::http;

pub const REGION: &str = "us-east-1";
/// Validity period of a presigned request.
const SIGNATURE_VALIDITY: Duration = Duration::from_secs(300);

/// A bucket to which the controller can write.
pub struct ObjectStorage {
    name: String,
    bucket: Bucket,
    credentials: Credentials,
}

impl ObjectStorage {
    pub async fn create(name: &str) -> Self {
        let environment = Environment::get();
        let endpoint = environment.s3_url.parse().expect("S3_URL is a URL");
        let bucket = Bucket::new(endpoint, UrlStyle::Path, name.to_owned(), REGION).expect("a valid bucket name");
        let credentials = Credentials::new(environment.s3_access_key.clone(), environment.s3_secret_key.clone());
        let url = bucket.create_bucket(&credentials).sign(SIGNATURE_VALIDITY);
        let request = http::client().put(url);
        let status = request.send().await.map(|response| response.status());
        // An earlier test run can have created the bucket. The objects of different test runs do not collide, because
        // their names contain different namespaces.
        let exists = status.as_ref().is_ok_and(|status| status.is_success() || *status == StatusCode::CONFLICT);
        assert!(exists, "creating the bucket {name}: {status:?}");
        ObjectStorage { name: name.to_owned(), bucket, credentials }
    }

    /// Returns the URL for the `--history-url` flag, which selects a prefix in the bucket.
    pub fn history_url(&self, prefix: &str) -> String {
        let host = &Environment::get().s3_host_in_cluster;
        let parameters = format!("region={REGION}&endpoint=http://{host}&allow_http=true");
        format!("s3://{}/{prefix}?{parameters}", self.name)
    }

    /// Returns the environment variables that contain the bucket credentials.
    pub fn variables() -> Vec<Value> {
        let environment = Environment::get();
        let variables =
            [("AWS_ACCESS_KEY_ID", &environment.s3_access_key), ("AWS_SECRET_ACCESS_KEY", &environment.s3_secret_key)];
        variables.map(|(name, value)| json!({"name": name, "value": value})).into()
    }

    /// Returns the names of all objects with a prefix.
    pub async fn list(&self, prefix: &str) -> Vec<String> {
        let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
        action.with_prefix(prefix.to_owned());
        let url = action.sign(SIGNATURE_VALIDITY);
        let response = http::send("listing the history", http::client().get(url)).await;
        let text = response.text().await.expect("a response");
        let listed = ListObjectsV2::parse_response(&text).expect("a list of objects");
        listed.contents.into_iter().map(|object| object.key).collect()
    }

    /// Returns the content of an object, decompressed if necessary.
    pub async fn read(&self, name: &str) -> String {
        let url = self.bucket.get_object(Some(&self.credentials), name).sign(SIGNATURE_VALIDITY);
        let response = http::send("reading the history", http::client().get(url)).await;
        let bytes = response.bytes().await.expect("a response");
        if name.ends_with(".gz") {
            return unpack(&bytes);
        }
        String::from_utf8(bytes.to_vec()).expect("a text")
    }
}

/// Decompresses a text.
pub fn unpack(content: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(content).read_to_string(&mut text).expect("a compressed text");
    text
}
