//! Client for the control API of the test cluster's Pulumi Cloud server (`tests/cluster/services/pulumicloud`).

use pulumi_controller::api::pulumi::Stack;
use reqwest::RequestBuilder;
use serde::Deserialize;
use serde_json::{Value, json};

use super::environment::Environment;
use super::http;
use super::scene::Scene;
use super::source::Source;

/// Secret with the access token of a scene.
pub const TOKEN_SECRET: &str = "pulumi-access-token";

/// Organization of one scene in Pulumi Cloud with two members. The member names contain the scene ID, because all
/// scenes share the server.
pub struct PulumiCloud {
    pub organization: String,
    pub alice: String,
    pub bob: String,
    control: String,
}

/// Update of a Pulumi stack.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudUpdate {
    pub kind: String,
    pub version: u64,
    pub status: String,
    pub requested_by: String,
    #[serde(default)]
    pub expired: bool,
    program: UpdateProgram,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct UpdateProgram {
    #[serde(default)]
    metadata: UpdateMetadata,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct UpdateMetadata {
    #[serde(default)]
    message: String,
    #[serde(default)]
    environment: std::collections::BTreeMap<String, String>,
}

impl CloudUpdate {
    /// Returns the message of the update in the Pulumi Cloud history.
    pub fn message(&self) -> &str {
        &self.program.metadata.message
    }

    /// Returns a value from the update metadata, such as `git.head`.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.program.metadata.environment.get(name).map(String::as_str)
    }
}

/// Name of a Pulumi stack in an organization, which consists of the project name and the stack name.
pub type StackName<'a> = (&'a str, &'a str);

impl PulumiCloud {
    pub async fn of(scene: &Scene) -> PulumiCloud {
        Self::create(scene, format!("org-{}", scene.id)).await
    }

    /// Creates another organization with the same members. The organization becomes the default organization of its
    /// members.
    pub async fn default_of(scene: &Scene) -> PulumiCloud {
        Self::create(scene, format!("default-{}", scene.id)).await
    }

    /// Creates an organization. For each user, the server selects the organization with the alphabetically first name
    /// as the default.
    async fn create(scene: &Scene, organization: String) -> PulumiCloud {
        let control = format!("{}/control/organizations/{organization}", Environment::get().pulumi_cloud_url);
        let [alice, bob] = ["alice", "bob"].map(|name| format!("{name}-{}", scene.id));
        let members = json!({"members": {&alice: "admin", &bob: "admin"}});
        let cloud = PulumiCloud { organization, alice, bob, control };
        cloud.send("creating an organization", http::client().put(&cloud.control).body(members.to_string())).await;
        cloud
    }

    /// Creates an access token for a user.
    pub async fn token(&self, user: &str) -> String {
        let request = http::client().post(format!("{}/tokens", self.control)).body(json!({"user": user}).to_string());
        let response: Value = self.read("creating an access token", request).await;
        response["token"].as_str().expect("a token").to_owned()
    }

    pub async fn revoke(&self, token: &str) {
        self.send("revoking a token", http::client().delete(format!("{}/tokens/{token}", self.control))).await;
    }

    /// Adds a fault. The server's documentation describes the fields of a fault.
    pub async fn add_fault(&self, fault: Value) {
        self.send("adding a fault", http::client().post(format!("{}/faults", self.control)).body(fault.to_string()))
            .await;
    }

    pub async fn remove_faults(&self) {
        self.send("removing the faults", http::client().delete(format!("{}/faults", self.control))).await;
    }

    /// Sets the OIDC issuers that the organization trusts.
    pub async fn set_issuers(&self, issuers: Value) {
        self.send(
            "setting the issuers",
            http::client().put(format!("{}/issuers", self.control)).body(issuers.to_string()),
        )
        .await;
    }

    /// Returns the requests whose path matches a regular expression.
    pub async fn requests(&self, method: &str, path: &str) -> Vec<Value> {
        let url = format!("{}/requests", self.control);
        let url = reqwest::Url::parse_with_params(&url, [("method", method), ("path", path)]).expect("a valid URL");
        self.read("listing the requests", http::client().get(url)).await
    }

    /// Returns the tags of a stack.
    pub async fn tags(&self, stack: StackName<'_>) -> Value {
        let described: Value = self.read("reading a stack", http::client().get(self.stack_url(stack, ""))).await;
        described["tags"].clone()
    }

    /// Returns the updates and previews of a stack, newest first. Returns an empty list if the stack does not exist.
    pub async fn updates(&self, stack: StackName<'_>) -> Vec<CloudUpdate> {
        match self.state(stack).await {
            Some(_) => {
                self.read("listing the updates of a stack", http::client().get(self.stack_url(stack, "/updates"))).await
            }
            None => Vec::new(),
        }
    }

    /// Returns the state of a stack, or `None` if the stack does not exist.
    pub async fn state(&self, stack: StackName<'_>) -> Option<String> {
        let response = http::client().get(self.stack_url(stack, "/state")).send().await;
        let response = response.unwrap_or_else(|error| panic!("reading the state of {stack:?}: {error:?}"));
        if response.status() == reqwest::StatusCode::NOT_FOUND {
            return None;
        }
        let text = response.error_for_status().expect("the server returns the state").text().await;
        Some(text.unwrap_or_else(|error| panic!("reading the state of {stack:?}: {error:?}")))
    }

    /// Expires the lease of the update in progress.
    pub async fn expire_lease(&self, stack: StackName<'_>) {
        self.send("expiring a lease", http::client().post(self.stack_url(stack, "/lease/expire"))).await;
    }

    /// Deletes a stack with the request that the CLI sends.
    pub async fn delete_stack(&self, (project, stack): StackName<'_>, token: &str) {
        let base = &Environment::get().pulumi_cloud_url;
        let url = format!("{base}/api/stacks/{}/{project}/{stack}?force=true", self.organization);
        let request = http::client().delete(url).header("Authorization", format!("token {token}"));
        self.send("deleting a stack", request).await;
    }

    /// Creates a Pulumi ESC environment.
    pub async fn create_environment(&self, project: &str, name: &str, token: &str, definition: &str) {
        let base = format!("{}/api/esc/environments/{}", Environment::get().pulumi_cloud_url, self.organization);
        let authorization = format!("token {token}");
        let new = http::client().post(&base).body(json!({"project": project, "name": name}).to_string());
        self.send("creating an environment", new.header("Authorization", &authorization)).await;
        let content = http::client().patch(format!("{base}/{project}/{name}")).body(definition.to_owned());
        let content = content.header("Content-Type", "application/x-yaml").header("Authorization", &authorization);
        self.send("defining an environment", content).await;
    }

    /// Returns the URL of an update that the CLI prints. The CLI replaces `api` in the host name with `app`.
    pub fn permalink(&self, (project, stack): StackName<'_>, version: u64) -> String {
        let base = Environment::get().pulumi_cloud_url_in_cluster.replacen("//api.", "//app.", 1);
        format!("{base}/{}/{project}/{stack}/updates/{version}", self.organization)
    }

    fn stack_url(&self, (project, stack): StackName<'_>, path: &str) -> String {
        format!("{}/stacks/{project}/{stack}{path}", self.control)
    }

    async fn send(&self, action: &str, request: RequestBuilder) {
        http::send(&format!("{action} in {}", self.organization), request).await;
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, action: &str, request: RequestBuilder) -> T {
        let text = http::send(action, request).await.text().await;
        let text = text.unwrap_or_else(|error| panic!("{action}: {error:?}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{action}: invalid response {text}: {error}"))
    }
}

impl Scene {
    /// Returns a Stack that stores its state in Pulumi Cloud. The Secret [`TOKEN_SECRET`] contains the access token.
    pub fn stack_in_cloud(&self, name: &str, source: &Source<'_>, cloud: &PulumiCloud, project: &str) -> Stack {
        let mut stack = self.stack(name, source);
        stack.spec.stack = format!("{}/{project}/{name}-{}", cloud.organization, self.id);
        stack.spec.backend = Some(Environment::get().pulumi_cloud_url_in_cluster.clone());
        stack.spec.access_token_secret = Some(TOKEN_SECRET.to_owned());
        for variable in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PULUMI_CONFIG_PASSPHRASE"] {
            stack.spec.env_refs.remove(variable);
        }
        stack
    }
}
