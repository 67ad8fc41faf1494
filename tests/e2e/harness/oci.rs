//! Repositories in the OCI registry, and the OCIRepository objects that track these repositories. The tests push
//! artifacts in the `flux push artifact` format.

use pulumi_controller::artifact::Digest;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::environment::Environment;
use super::flux_object::FluxObject;
use super::http;
use super::program::{File, archive};
use super::scene::Scene;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.cncf.flux.config.v1+json";
const LAYER: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
const TAG: &str = "latest";

/// A repository in the registry, and the OCIRepository that tracks the repository's `latest` tag.
pub struct OciRepository<'a> {
    scene: &'a Scene,
    pub object: FluxObject<'a>,
    is_created: std::cell::Cell<bool>,
}

impl Scene {
    pub fn oci_repository(&self, name: &str) -> OciRepository<'_> {
        let object = self.flux_object("OCIRepository", "ocirepositories", name);
        OciRepository { scene: self, object, is_created: std::cell::Cell::new(false) }
    }
}

impl OciRepository<'_> {
    /// Pushes the files with the tag `latest`, and requests a reconciliation. Returns the revision in the Flux format.
    pub async fn push(&self, files: &[File]) -> String {
        self.push_with(files, json!({})).await
    }

    /// Pushes the files with an origin revision, as `flux push artifact --revision` does.
    pub async fn push_with_origin(&self, files: &[File], origin: &str) -> String {
        self.push_with(files, json!({"org.opencontainers.image.revision": origin})).await
    }

    async fn push_with(&self, files: &[File], annotations: Value) -> String {
        let config = self.push_blob(CONFIG, b"{}".to_vec()).await;
        let layer = self.push_blob(LAYER, archive(files)).await;
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
            "annotations": annotations});
        let bytes = manifest.to_string().into_bytes();
        let revision = format!("{TAG}@{}", digest(&bytes));
        let url = format!("{}/manifests/{TAG}", self.url());
        let request = http::client().put(url).header(CONTENT_TYPE, MANIFEST).body(bytes);
        http::send("pushing a manifest", request).await;
        match self.is_created.replace(true) {
            true => self.object.request_reconciliation().await,
            false => {
                let url = format!("oci://{}/{}", Environment::get().registry_host_in_cluster, self.repository());
                let spec =
                    json!({"url": url, "insecure": true, "interval": "1h", "timeout": "30s", "ref": {"tag": TAG}});
                self.object.create(spec).await;
            }
        }
        revision
    }

    /// Pushes a blob in one request, and returns the blob's descriptor for a manifest.
    async fn push_blob(&self, media_type: &str, bytes: Vec<u8>) -> Value {
        let descriptor = json!({"mediaType": media_type, "digest": digest(&bytes), "size": bytes.len()});
        let begin = http::client().post(format!("{}/blobs/uploads/", self.url()));
        let begun = http::send("beginning an upload to the registry", begin).await;
        let location = begun.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let mut to = begun.url().join(location.expect("Location header")).expect("valid URL");
        to.query_pairs_mut().append_pair("digest", &digest(&bytes));
        let request = http::client().put(to).header(CONTENT_TYPE, "application/octet-stream").body(bytes);
        http::send("uploading a blob to the registry", request).await;
        descriptor
    }

    fn url(&self) -> String {
        format!("{}/v2/{}", Environment::get().registry_url, self.repository())
    }

    /// Returns the repository name. All scenes share the registry, so the name contains the namespace.
    fn repository(&self) -> String {
        format!("{}/{}", self.scene.namespace, self.object.name)
    }
}

fn digest(bytes: &[u8]) -> String {
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
    assert!(digest.parse::<Digest>().is_ok(), "{digest} is a digest");
    digest
}
