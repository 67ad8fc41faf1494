//! HTTP client for the web UI. The client connects to the controller pod through the API server's proxy.

use axum::http::{Request, header};
use kube::client::Body;
use kube::{Client, ResourceExt};

use super::controller::{Controller, NAMESPACE};
use super::wait::WaitLimit;

/// Response of the UI.
pub struct Page {
    pub status: u16,
    cookies: Vec<String>,
    pub text: String,
}

/// UI client that keeps the session cookies.
pub struct Browser {
    client: Client,
    pod: String,
    cookies: String,
}

impl Browser {
    pub async fn open(client: &Client) -> Self {
        let pod = Controller::new(client).pod().await.name_any();
        Browser { client: client.clone(), pod, cookies: String::new() }
    }

    pub async fn get(&self, path: &str) -> Page {
        self.send(Request::get(self.url(path)).header(header::COOKIE, &self.cookies), "").await
    }

    pub async fn post(&self, path: &str, form: &str) -> Page {
        let request = Request::post(self.url(path)).header(header::COOKIE, &self.cookies);
        self.send(request.header("sec-fetch-site", "same-origin"), form).await
    }

    fn url(&self, path: &str) -> String {
        format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:9294/proxy{path}", self.pod)
    }

    async fn send(&self, request: axum::http::request::Builder, form: &str) -> Page {
        let request = request.body(Body::from(form.as_bytes().to_vec())).expect("a request");
        let what = request.uri().to_string();
        let response = async {
            let response = self.client.send(request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let cookies = response.headers().get_all(header::SET_COOKIE).into_iter();
            let pairs = cookies.map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap_or_default().to_owned());
            let (status, cookies) = (response.status().as_u16(), pairs.collect());
            let body = response.into_body().collect_bytes().await.unwrap_or_else(|error| panic!("{what}: {error}"));
            Page { status, cookies, text: String::from_utf8_lossy(&body).into_owned() }
        };
        let limit = WaitLimit::Call.limit();
        tokio::time::timeout(limit, response)
            .await
            .unwrap_or_else(|_| panic!("no response from {what} within {limit:?}"))
    }

    /// Signs in with a token.
    pub async fn sign_in(&mut self, token: &str) {
        let page = self.post("/sign-in", &format!("token={token}")).await;
        assert_eq!(page.status, 303, "{}", page.text);
        self.cookies = page.cookies.join("; ");
    }

    /// Performs an action on a Stack's page. `fields` are additional form fields.
    pub async fn act(&self, namespace: &str, stack: &str, action: &str, fields: &str) -> Page {
        let path = format!("/stacks/{namespace}/{stack}");
        let page = self.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let (_, rest) = page.text.split_once("name=\"form-token\" value=\"").unwrap_or_else(|| panic!("{}", page.text));
        let token = rest.split('"').next().unwrap_or_default();
        self.post(&format!("{path}/actions/{action}"), &format!("form-token={token}{fields}")).await
    }
}
