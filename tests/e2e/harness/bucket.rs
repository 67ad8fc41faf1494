//! Buckets on the S3 server, and the Flux Bucket objects that track these buckets. The tests upload files with the S3
//! API.

use std::cell::Cell;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::pulumi::SourceArtifact;
use rusty_s3::{Credentials, S3Action, UrlStyle};
use serde_json::json;

use super::environment::Environment;
use super::flux_object::FluxObject;
use super::http;
use super::program::File;
use super::scene::Scene;

const REGION: &str = "us-east-1";
/// Validity period of a presigned request.
const SIGNATURE_VALIDITY: Duration = Duration::from_secs(300);

/// A scene's bucket, and the Flux Bucket object that tracks the bucket.
pub struct Bucket<'a> {
    scene: &'a Scene,
    pub object: FluxObject<'a>,
    is_created: Cell<bool>,
}

impl Scene {
    pub fn bucket(&self, name: &str) -> Bucket<'_> {
        Bucket { scene: self, object: self.flux_object("Bucket", "buckets", name), is_created: Cell::new(false) }
    }
}

impl Bucket<'_> {
    /// Uploads the files, requests a reconciliation of the Bucket, and waits for an artifact that differs from
    /// `before`.
    pub async fn put(&self, files: &[File], before: Option<&SourceArtifact>) -> SourceArtifact {
        let environment = Environment::get();
        let endpoint = environment.s3_url.parse().expect("S3_URL is a URL");
        let bucket = rusty_s3::Bucket::new(endpoint, UrlStyle::Path, self.scene.namespace.clone(), REGION)
            .expect("the namespace name is a valid bucket name");
        let credentials = Credentials::new(environment.s3_access_key.clone(), environment.s3_secret_key.clone());
        let is_created = self.is_created.replace(true);
        if !is_created {
            let url = bucket.create_bucket(&credentials).sign(SIGNATURE_VALIDITY);
            http::send("creating a bucket", http::client().put(url)).await;
        }
        for file in files {
            let url = bucket.put_object(Some(&credentials), &file.path).sign(SIGNATURE_VALIDITY);
            http::send("uploading an object", http::client().put(url).body(file.content.clone())).await;
        }
        match is_created {
            true => self.object.request_reconciliation().await,
            false => self.create_object().await,
        }
        let old = before.map(|artifact| artifact.digest.clone());
        self.object.artifact("stored object", |artifact| Some(&artifact.digest) != old.as_ref()).await
    }

    async fn create_object(&self) {
        let environment = Environment::get();
        let secret = format!("{}-credentials", self.object.name);
        let credentials = json!({"accesskey": environment.s3_access_key, "secretkey": environment.s3_secret_key});
        self.scene.create::<Secret>(json!({"metadata": {"name": secret}, "stringData": credentials})).await;
        let spec = json!({
            "provider": "generic", "bucketName": self.scene.namespace, "endpoint": environment.s3_host_in_cluster,
            "insecure": true, "region": REGION, "secretRef": {"name": secret}, "interval": "1h", "timeout": "30s",
        });
        self.object.create(spec).await;
    }
}
