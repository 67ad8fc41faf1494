//! Tests for the sign-in at a fake OIDC issuer.

use std::collections::HashMap;
use std::path::PathBuf;

use axum::routing::{get, post};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tempfile::NamedTempFile;
use url::{Url, form_urlencoded};

use super::*;
use crate::config::OidcConfig;
use crate::http_client::Proxies;

/// Client secret in a token request: the header `Authorization`, and the field of the form.
type Secret = (Option<&'static str>, Option<&'static str>);

/// Starts a fake issuer of a public client.
async fn issuer() -> Oidc {
    issuer_with(Value::Null, None, (None, None)).await
}

/// Starts a fake issuer that supports these authentication methods, and expects this client secret. Each ID token's
/// nonce equals the authorization code in the request, so a test can choose the nonce.
async fn issuer_with(methods: Value, client_secret_file: Option<PathBuf>, secret: Secret) -> Oidc {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let endpoint = |path: &str| format!("{issuer}{path}");
    let published = json!({ "issuer": issuer, "authorization_endpoint": endpoint("/authorize?tenant=a"),
        "token_endpoint": endpoint("/token"), "token_endpoint_auth_methods_supported": methods });
    let published = published.to_string();
    let of_token = issuer.clone();
    let token = move |headers: HeaderMap, form: String| {
        let fields: HashMap<_, _> = form_urlencoded::parse(form.as_bytes()).into_owned().collect();
        let header = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap());
        let is_valid = fields["grant_type"] == "authorization_code"
            && fields["code_verifier"].len() == 43
            && (header, fields.get("client_secret").map(String::as_str)) == secret;
        let nonce = if is_valid { fields["code"].as_str() } else { "invalid" };
        let claims = json!({ "iss": of_token, "aud": "pulumi", "nonce": nonce }).to_string();
        let id_token = format!("e30.{}.sig", BASE64_URL_SAFE_NO_PAD.encode(claims));
        std::future::ready(json!({ "id_token": id_token }).to_string())
    };
    let router = Router::new()
        .route("/.well-known/openid-configuration", get(move || std::future::ready(published.clone())))
        .route("/token", post(token));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = OidcConfig {
        issuer,
        client_id: "pulumi".to_owned(),
        client_secret_file,
        ca_file: None,
        scopes: vec!["openid".to_owned(), "email".to_owned()],
        redirect: Url::parse("https://ui.example.com/sign-in/oidc/callback").unwrap(),
    };
    Oidc::new(config, Proxies::default())
}

#[tokio::test]
async fn a_user_signs_in_at_the_issuer() {
    let server = Server::with_issuer(Some(issuer().await));
    assert!(server.get("/sign-in?next=%2Ffleet", "").await.text.contains("href=\"/sign-in/oidc?next=%2Ffleet\""));
    let begun = server.get("/sign-in/oidc?next=%2Ffleet", "").await;
    assert_eq!(begun.status, 303, "{}", begun.text);
    let cookie = begun.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(cookie.ends_with("; Secure; HttpOnly; SameSite=Lax"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let address = Url::parse(begun.location()).unwrap();
    let fields: HashMap<_, _> = address.query_pairs().into_owned().collect();
    assert_eq!((fields["tenant"].as_str(), fields["scope"].as_str()), ("a", "openid email"));
    assert_eq!(fields["code_challenge_method"], "S256");
    let (state, nonce) = (&fields["state"], &fields["nonce"]);
    let callback = |code: &str, state: &str| format!("/sign-in/oidc/callback?code={code}&state={state}");
    let refused = server.get(&callback(nonce, state), "").await;
    assert!(refused.status == 403 && refused.text.contains("was started in another browser"), "{}", refused.text);
    assert_eq!(server.get(&callback(nonce, "other"), cookie).await.status, 403, "another state");
    let replayed = server.get(&callback("other", state), cookie).await;
    assert!(replayed.status == 502 && replayed.text.contains("belongs to another"), "{}", replayed.text);
    let done = server.get(&callback(nonce, state), cookie).await;
    assert!(done.status == 200 && done.text.contains("0; url=/fleet"), "{}", done.text);
    let cookies = done.headers.get_all(header::SET_COOKIE).into_iter();
    let session: Vec<_> = cookies.map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap()).collect();
    assert_eq!(server.get("/fleet", &session.join("; ")).await.status, 200);
}

#[tokio::test]
async fn sign_ins_in_two_tabs_are_independent() {
    let server = Server::with_issuer(Some(issuer().await));
    let (mut cookies, mut callbacks) = (Vec::<String>::new(), Vec::<String>::new());
    for next in ["/fleet", "/"] {
        let begun = server.get(&format!("/sign-in/oidc?next={next}"), &cookies.join("; ")).await;
        let set: Vec<_> = begun.headers.get_all(header::SET_COOKIE).into_iter().collect();
        assert_eq!(set.len(), 1, "the first sign-in continues: {set:?}");
        cookies.push(set[0].to_str().unwrap().split(';').next().unwrap().to_owned());
        let address = Url::parse(begun.location()).unwrap();
        let fields: HashMap<_, _> = address.query_pairs().into_owned().collect();
        callbacks.push(format!("/sign-in/oidc/callback?code={}&state={}", fields["nonce"], fields["state"]));
    }
    for (number, next) in ["/fleet", "/"].into_iter().enumerate() {
        let done = server.get(&callbacks[number], &cookies.join("; ")).await;
        assert!(done.status == 200 && done.text.contains(&format!("0; url={next}\"")), "{}", done.text);
        let set = done.headers.get_all(header::SET_COOKIE).into_iter().map(|value| value.to_str().unwrap());
        let deleted: Vec<_> = set.filter(|cookie| cookie.contains("-oidc-")).collect();
        let (name, _) = cookies[number].split_once('=').unwrap();
        assert!(deleted.len() == 1 && deleted[0].starts_with(&format!("{name}=; Path=/; Max-Age=0;")), "{deleted:?}");
    }
}

#[tokio::test]
async fn the_client_secret_is_sent_as_the_issuer_expects_it() {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret\n").unwrap();
    let in_header = (Some("Basic cHVsdW1pOnMzY3JldA=="), None);
    let rows = [
        (Value::Null, in_header),
        (json!(["client_secret_post", "client_secret_basic"]), in_header),
        (json!(["client_secret_post"]), (None, Some("s3cret"))),
    ];
    for (methods, secret) in rows {
        let issuer = issuer_with(methods.clone(), Some(file.path().to_owned()), secret).await;
        let server = Server::with_issuer(Some(issuer));
        let begun = server.get("/sign-in/oidc", "").await;
        let cookie = begun.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
        let address = Url::parse(begun.location()).unwrap();
        let fields: HashMap<_, _> = address.query_pairs().into_owned().collect();
        let callback = format!("/sign-in/oidc/callback?code={}&state={}", fields["nonce"], fields["state"]);
        let done = server.get(&callback, cookie).await;
        assert_eq!(done.status, 200, "{methods}: {}", done.text);
    }
    let issuer = issuer_with(json!(["private_key_jwt"]), Some(file.path().to_owned()), in_header).await;
    let refused = Server::with_issuer(Some(issuer)).get("/sign-in/oidc", "").await;
    assert!(refused.status == 502 && refused.text.contains("neither client_secret_basic nor"), "{}", refused.text);
}

#[tokio::test]
async fn exchanges_of_a_code_are_limited() {
    let server = Server::with_issuer(Some(issuer().await));
    let begun = server.get("/sign-in/oidc", "").await;
    let cookie = begun.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
    let address = Url::parse(begun.location()).unwrap();
    let (_, state) = address.query_pairs().find(|(name, _)| name == "state").unwrap();
    let mut statuses = Vec::new();
    for _ in 0..11 {
        let request = Request::get(format!("/sign-in/oidc/callback?code=guess&state={state}")).header("cookie", cookie);
        let request = request.extension(PeerAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        statuses.push(server.send(request.body(Body::empty()).unwrap()).await.status);
    }
    assert_eq!((statuses[9], statuses[10]), (502, 429), "{statuses:?}");
}

#[tokio::test]
async fn without_an_issuer_there_is_no_sign_in_with_oidc() {
    let server = Server::start();
    assert_eq!(server.get("/sign-in/oidc", "").await.status, 404);
    assert!(!server.get("/sign-in", "").await.text.contains("single sign-on"));
}
