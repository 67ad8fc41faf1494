//! Containers in the Azure Blob Storage emulator, and shared access signatures for these containers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;

use super::emulators::Emulators;
use crate::harness::http;

const VERSION: &str = "2021-12-02";
const CONTENT_TYPE: &str = "application/xml";
/// Permissions in a stored access policy: read, add, create, write, delete and list.
const PERMISSIONS: &str = "racwdl";

pub async fn create_container(container: &str) {
    put(&format!("creating the container {container}"), container, &["restype=container"], "").await;
}

/// Replaces the stored access policies of a container. A shared access signature is valid only while its stored access
/// policy exists.
pub async fn set_policies(container: &str, numbers: &[u32]) {
    let policies = numbers.iter().map(|number| {
        format!(
            "<SignedIdentifier><Id>{}</Id><AccessPolicy><Expiry>2099-01-01T00:00:00.0000000Z</Expiry>\
             <Permission>{PERMISSIONS}</Permission></AccessPolicy></SignedIdentifier>",
            policy(*number)
        )
    });
    let body = format!("<SignedIdentifiers>{}</SignedIdentifiers>", policies.collect::<String>());
    let action = format!("setting the access policies {numbers:?} of the container {container}");
    put(&action, container, &["comp=acl", "restype=container"], &body).await;
}

/// Returns a shared access signature for a container. The signature depends on a stored access policy.
pub fn shared_access_signature(container: &str, number: u32) -> String {
    let account = &Emulators::get().azure_account;
    let policy = policy(number);
    let resource = format!("/blob/{account}/{container}");
    // The empty fields are optional signature parameters that the test does not set.
    let signed = ["", "", "", &resource, &policy, "", "", VERSION, "c", "", "", "", "", "", "", ""].join("\n");
    let signature = sign(&signed);
    let signature = utf8_percent_encode(&signature, NON_ALPHANUMERIC);
    format!("sv={VERSION}&sr=c&si={policy}&sig={signature}")
}

fn policy(number: u32) -> String {
    format!("policy{number}")
}

/// Sends a PUT request for a container, and signs the request with the account key. The caller must sort the parameters
/// in `query`.
async fn put(action: &str, container: &str, query: &[&str], body: &str) {
    let Emulators { azure_url, azure_account: account, .. } = Emulators::get();
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&Timestamp::now()).expect("a date after 1970");
    let length = if body.is_empty() { String::new() } else { body.len().to_string() };
    // The empty lines are optional headers that the test does not set.
    let headers = ["PUT", "", "", &length, "", CONTENT_TYPE, "", "", "", "", "", ""].join("\n");
    let parameters: String = query.iter().map(|parameter| format!("\n{}", parameter.replacen('=', ":", 1))).collect();
    // The emulator's paths start with the account, so the signed resource contains the account twice.
    let path = format!("/{account}/{container}");
    let signed = format!("{headers}\nx-ms-date:{date}\nx-ms-version:{VERSION}\n/{account}{path}{parameters}");
    let request = http::client()
        .put(format!("{azure_url}{path}?{}", query.join("&")))
        .header("Authorization", format!("SharedKey {account}:{}", sign(&signed)))
        .header("Content-Type", CONTENT_TYPE)
        .header("x-ms-date", date)
        .header("x-ms-version", VERSION)
        .body(body.to_owned());
    http::send(action, request).await;
}

/// Signs a string with the account key, and returns the signature.
fn sign(text: &str) -> String {
    let key = BASE64_STANDARD.decode(&Emulators::get().azure_key).expect("AZURE_KEY is base64");
    let mut hmac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length is valid");
    hmac.update(text.as_bytes());
    BASE64_STANDARD.encode(hmac.finalize().into_bytes())
}
