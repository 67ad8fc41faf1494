//! Tests the login to Pulumi Cloud with a ServiceAccount token.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, Outcome};

use crate::harness::{Workspace, has_pulumi, variable};

const PROGRAM: &str = "name: example\nruntime: yaml\n";
const URL: &str = "https://cloud.example";

/// Script that replaces the CLI and records its commands. As with the real CLI, a login stores an access token, which
/// expires after `$LIFETIME` seconds.
const CLI: &str = r#"case "$*" in
*" login "*)
    echo login >>"$HOME/calls"
    mkdir -p "$HOME/.pulumi"
    expires="$(date -u -d "+$LIFETIME seconds" +%Y-%m-%dT%H:%M:%SZ)"
    account="{\"accessToken\": \"pul-0123456789\", \"tokenInformation\": {\"expiresAt\": \"$expires\"}}"
    echo "{\"accounts\": {\"https://cloud.example\": $account}}" >"$HOME/.pulumi/credentials.json";;
*" up "*)
    echo up >>"$HOME/calls"
    echo "the access token is pul-0123456789";;
esac"#;

/// Returns a token without a valid signature.
fn service_account_token() -> String {
    let header = r#"{"alg":"RS256","typ":"JWT"}"#;
    let claims = r#"{"iss":"https://kubernetes","sub":"system:serviceaccount:apps:web","aud":["urn:pulumi:org:acme"]}"#;
    [header, claims, "signature"].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".")
}

async fn request(workspace: &Workspace, url: &str, lifetime: &str) -> proto::RunRequest {
    let token_file = workspace.path("secrets/oidc");
    std::fs::write(&token_file, service_account_token()).unwrap();
    let login = proto::OidcLogin {
        organization: "acme".into(),
        token_file: token_file.to_str().unwrap().into(),
        expiration_seconds: 7200,
        ..proto::OidcLogin::default()
    };
    let mut request = workspace.request(&[]).await;
    request.environment.push(variable("PULUMI_BACKEND_URL", Source::Value(url.into())));
    request.environment.push(variable("LIFETIME", Source::Value(lifetime.into())));
    proto::RunRequest { oidc_login: Some(login), timeout_seconds: 3600, ..request }
}

fn calls(workspace: &Workspace) -> Vec<String> {
    let text = std::fs::read_to_string(workspace.path("home/calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn consecutive_runs_use_one_login_and_hide_its_access_token() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    for _ in 0..2 {
        let result = workspace.run_to_end(&request(&workspace, URL, "7200").await).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        assert_eq!(result.backend, URL);
    }
    assert_eq!(calls(&workspace), ["login", "up", "up"]);
    let log = workspace.log();
    assert!(log.contains("the access token is [secret]") && !log.contains("pul-0123456789"), "{log}");
}

#[tokio::test]
async fn a_run_with_a_login_uses_no_credential_helper_of_the_image() {
    const PRINTING: &str = r#"case "$*" in
    *" login "* | *" up "*) echo "helper $PULUMI_CREDENTIAL_HELPER" >>"$HOME/calls";;
    esac"#;
    let workspace = Workspace::start_with(Some(PRINTING), &[]).await;
    workspace.put(PROGRAM).await;
    let own = variable("PULUMI_CREDENTIAL_HELPER", Source::Value("/opt/helper".into()));
    let with_login = request(&workspace, URL, "7200").await;
    let mut with_helper = request(&workspace, URL, "7200").await;
    with_helper.environment.push(own);
    let without_login = proto::RunRequest { oidc_login: None, ..request(&workspace, URL, "7200").await };
    for (request, expected) in
        [(with_login, "helper none"), (with_helper, "helper /opt/helper"), (without_login, "helper ")]
    {
        workspace.run_to_end(&request).await;
        let calls = calls(&workspace);
        assert!(!calls.is_empty() && calls.iter().all(|call| call == expected), "{calls:?}");
        std::fs::remove_file(workspace.path("home/calls")).unwrap();
    }
}

#[tokio::test]
async fn an_expired_access_token_is_renewed_before_each_command() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let result = workspace.run_to_end(&request(&workspace, URL, "0").await).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let expected = ["login", "login", "login", "up"];
    assert_eq!(calls(&workspace), expected, "before the run, before the selection of the stack, and before `up`");
}

#[tokio::test]
async fn a_rejected_service_account_token_is_described_in_the_result() {
    if !has_pulumi("a_rejected_service_account_token_is_described_in_the_result") {
        return;
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let reply = r#"{"code":401,"message":"no policy allows this subject"}"#;
    let app = axum::Router::new()
        .fallback(move || async move { (StatusCode::UNAUTHORIZED, [(CONTENT_TYPE, "application/json")], reply) });
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let result = workspace.run_to_end(&request(&workspace, &url, "").await).await;
    server.abort();
    assert_eq!(result.outcome(), Outcome::InvalidAccessToken, "{}", result.message);
    let expected = "Pulumi Cloud rejected the ServiceAccount token (issuer \"https://kubernetes\", subject \
                    \"system:serviceaccount:apps:web\", audience \"urn:pulumi:org:acme\"): no policy allows this subject\n(";
    assert!(result.message.starts_with(expected), "{}", result.message);
    assert!(!workspace.log().contains(&service_account_token()), "{}", workspace.log());
}
