//! State backends for the tests, and their credentials.

use std::collections::BTreeMap;

use serde_json::Value;

use super::azure;
use super::emulators::Emulators;
use super::state::{CERTIFICATES, State};
use crate::harness::{Environment, Scene, http, kubectl};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    S3,
    Azure,
    Google,
    /// A directory on a PersistentVolume.
    Volume,
}

/// Environment variables with credentials, by name.
pub type Credentials = BTreeMap<String, String>;

/// Number of a scene's first credentials.
const FIRST: u32 = 1;

impl Backend {
    /// Creates the storage for the state, and the scene's objects that Stacks need to use the storage.
    pub async fn prepare(self, scene: &Scene) -> State<'_> {
        let credentials = match self {
            Backend::S3 | Backend::Google => self.issue(scene, FIRST).await,
            Backend::Azure => {
                azure::create_container(&scene.namespace).await;
                let Emulators { azure_account, azure_key, .. } = Emulators::get();
                [("AZURE_STORAGE_ACCOUNT", azure_account), ("AZURE_STORAGE_KEY", azure_key)]
                    .map(|(name, value)| (name.to_owned(), value.clone()))
                    .into()
            }
            Backend::Volume => Credentials::new(),
        };
        State::create(scene, self, &credentials).await
    }

    /// Like `prepare`, but creates and returns credentials that the test can revoke.
    pub async fn prepare_with_revocable_credentials(self, scene: &Scene) -> (State<'_>, Credentials) {
        if self == Backend::Azure {
            azure::create_container(&scene.namespace).await;
        }
        let credentials = self.issue(scene, FIRST).await;
        (State::create(scene, self, &credentials).await, credentials)
    }

    /// Creates a scene's second credentials, and revokes the first credentials.
    pub async fn rotate(self, scene: &Scene, first: &Credentials) -> Credentials {
        let second = FIRST + 1;
        let credentials = self.issue(scene, second).await;
        match self {
            Backend::S3 => {
                administer_s3(&["delete-user", "--access", &first["AWS_ACCESS_KEY_ID"]]).await;
            }
            Backend::Azure => azure::set_policies(&scene.namespace, &[second]).await,
            Backend::Google => {
                let id = key_file(&first["GOOGLE_CREDENTIALS"])["private_key_id"].clone();
                let id = id.as_str().expect("a key has an ID");
                let url = format!("{}/control/keys/{id}", Emulators::get().gcs_url);
                http::send("deleting a key of a service account", http::client().delete(url)).await;
            }
            Backend::Volume => panic!("a volume has no credentials"),
        }
        credentials
    }

    /// Returns a part of the message that the CLI prints about revoked credentials.
    pub fn rejection(self) -> &'static str {
        match self {
            Backend::S3 => "InvalidAccessKeyId",
            Backend::Azure => "AuthorizationFailure",
            Backend::Google => "invalid_grant",
            Backend::Volume => panic!("a volume has no credentials"),
        }
    }

    /// Returns a secret part of the credentials, which must not appear in the pod log or in a status.
    pub fn secret_part(self, credentials: &Credentials) -> String {
        match self {
            Backend::S3 => credentials["AWS_SECRET_ACCESS_KEY"].clone(),
            Backend::Azure => {
                let (_, signature) = credentials["AZURE_STORAGE_SAS_TOKEN"].rsplit_once("sig=").expect("a signature");
                signature.to_owned()
            }
            Backend::Google => {
                let file = key_file(&credentials["GOOGLE_CREDENTIALS"]);
                let key = file["private_key"].as_str().expect("a private key");
                // Skips the first line, which is the header of the PEM block.
                key.lines().nth(1).expect("a line of the key").to_owned()
            }
            Backend::Volume => panic!("a volume has no credentials"),
        }
    }

    /// Returns the backend URL for the pods in a scene.
    pub fn url(self, scene: &Scene) -> String {
        match self {
            Backend::S3 => Environment::get().s3_backend_url.clone(),
            Backend::Azure => {
                let Emulators { azure_account, azure_host_in_cluster, .. } = Emulators::get();
                format!(
                    "azblob://{}?storage_account={azure_account}&domain={azure_host_in_cluster}&protocol=http&localemu=true",
                    scene.namespace
                )
            }
            Backend::Google => format!("gs://{}", Emulators::get().gcs_bucket),
            Backend::Volume => "file:///state".to_owned(),
        }
    }

    /// Returns the environment variables that are not secret.
    pub fn variables(self) -> Vec<(&'static str, String)> {
        match self {
            Backend::Google => vec![("SSL_CERT_FILE", format!("{CERTIFICATES}/ca.crt"))],
            Backend::S3 | Backend::Azure | Backend::Volume => Vec::new(),
        }
    }

    async fn issue(self, scene: &Scene, number: u32) -> Credentials {
        match self {
            Backend::S3 => {
                let (access, secret) = (format!("{}{number}", scene.id), format!("secret-of-{}-{number}", scene.id));
                administer_s3(&["create-user", "--access", &access, "--secret", &secret, "--role", "admin"]).await;
                [("AWS_ACCESS_KEY_ID", access), ("AWS_SECRET_ACCESS_KEY", secret)]
                    .map(|(name, value)| (name.to_owned(), value))
                    .into()
            }
            Backend::Azure => {
                azure::set_policies(&scene.namespace, &(FIRST..=number).collect::<Vec<_>>()).await;
                let signature = azure::shared_access_signature(&scene.namespace, number);
                [("AZURE_STORAGE_SAS_TOKEN".to_owned(), signature)].into()
            }
            Backend::Google => [("GOOGLE_CREDENTIALS".to_owned(), google_key().await)].into(),
            Backend::Volume => panic!("a volume has no credentials"),
        }
    }
}

/// Creates a key of a service account, and returns its file.
pub async fn google_key() -> String {
    let url = format!("{}/control/keys", Emulators::get().gcs_url);
    let response = http::send("creating a key of a service account", http::client().post(url)).await;
    response.text().await.expect("the response is a text")
}

fn key_file(text: &str) -> Value {
    serde_json::from_str(text).expect("a key of a service account is JSON")
}

/// Runs an administrative command in the S3 server's pod, whose environment contains the root credentials.
async fn administer_s3(arguments: &[&str]) {
    let program = ["versitygw", "admin", "--endpoint-url", "http://127.0.0.1:7070"];
    let exec = ["exec", "--namespace", "test-services", "deployment/s3", "--"];
    kubectl(&[&exec[..], &program, arguments].concat(), "").await;
}
