//! Determines the namespaces whose Stacks a user may list, and the actions that a user may perform on a Stack. The API
//! server decides, and the UI caches the decisions for a short time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::error::UiError;
use super::row;
use super::users::{self, User};

/// Lifetime of a cached decision.
const TTL: Duration = Duration::from_secs(30);
/// Maximum number of cached decisions.
const MAX_CACHED: usize = 20_000;
/// Maximum number of namespaces that the UI checks for a page.
const MAX_NAMESPACES: usize = 200;
/// Maximum number of concurrent checks.
const CONCURRENT: usize = 8;

/// Cached decisions of the API server.
#[derive(Default)]
pub(super) struct Permissions(Mutex<HashMap<Key, Decision>>);

/// Digest of the user's token, and a permission.
type Key = ([u8; 32], Permission);

/// Permission for objects in the API group of Stacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Permission {
    verb: &'static str,
    resource: &'static str,
    subresource: Option<&'static str>,
    /// `None` means all namespaces.
    namespace: Option<String>,
    /// Name of the object. `None` means all objects.
    name: Option<String>,
}

impl Permission {
    /// Permission for all objects in a namespace, or in all namespaces.
    fn for_all(verb: &'static str, resource: &'static str, namespace: Option<&str>) -> Self {
        Permission { verb, resource, subresource: None, namespace: namespace.map(str::to_owned), name: None }
    }

    /// Permission for a Stack.
    fn for_stack(verb: &'static str, stack: &row::Key) -> Self {
        Permission { name: Some(stack.1.clone()), ..Self::for_all(verb, "stacks", Some(&stack.0)) }
    }

    /// Permission to read a Stack's run history.
    pub(super) fn for_history(stack: &row::Key) -> Self {
        Permission { subresource: Some("history"), ..Self::for_stack("get", stack) }
    }
}

/// Actions that a user may perform on a Stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Actions {
    /// Whether the user may change the Stack, and request, cancel and resolve the Stack's runs.
    pub(super) may_change: bool,
    /// Whether the user may approve and reject the plan.
    pub(super) may_decide: bool,
    /// Whether the user may not check permissions, so that the permissions for actions are unknown.
    pub(super) is_unknown: bool,
}

#[derive(Clone, Copy)]
struct Decision {
    is_allowed: bool,
    expires: Instant,
}

/// Namespaces whose Stacks a user may list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Visible {
    All,
    Only {
        namespaces: BTreeSet<String>,
        /// Number of namespaces that the UI has not checked, because the total number of namespaces exceeds the limit.
        unchecked: usize,
    },
}

impl Visible {
    pub(super) fn contains(&self, namespace: &str) -> bool {
        match self {
            Visible::All => true,
            Visible::Only { namespaces, .. } => namespaces.contains(namespace),
        }
    }

    /// Returns the number of namespaces that the UI has not checked.
    pub(super) fn unchecked(&self) -> usize {
        match self {
            Visible::All => 0,
            Visible::Only { unchecked, .. } => *unchecked,
        }
    }
}

impl Permissions {
    /// Returns the subset of these namespaces that a user may see.
    ///
    /// # Errors
    /// Returns an error if the API server rejects the token or does not respond.
    pub(super) async fn visible(&self, user: &User, all: BTreeSet<String>) -> Result<Visible, UiError> {
        // For a single namespace, one check is sufficient, because a permission for all namespaces includes this
        // namespace.
        if all.len() != 1 && self.may_list(user, None).await? {
            return Ok(Visible::All);
        }
        let unchecked = all.len().saturating_sub(MAX_NAMESPACES);
        let checks = futures::stream::iter(all.into_iter().take(MAX_NAMESPACES)).map(|namespace| async move {
            let is_allowed = self.may_list(user, Some(&namespace)).await?;
            Ok::<_, UiError>(is_allowed.then_some(namespace))
        });
        let checked: Vec<_> = checks.buffer_unordered(CONCURRENT).collect().await;
        let mut namespaces = BTreeSet::new();
        for namespace in checked {
            namespaces.extend(namespace?);
        }
        Ok(Visible::Only { namespaces, unchecked })
    }

    /// Returns which actions a user may perform on a Stack. `has_plan` is true if a plan waits for a decision. Without
    /// such a plan, the function does not check the permissions for decisions. An administrator can remove the default
    /// permission to check permissions, so a forbidden check is not an error.
    ///
    /// # Errors
    /// Returns an error if the API server rejects the token or does not respond.
    pub(super) async fn actions(&self, user: &User, stack: &row::Key, has_plan: bool) -> Result<Actions, UiError> {
        match self.checked_actions(user, stack, has_plan).await {
            Err(error) if error.is_forbidden() => Ok(Actions { is_unknown: true, ..Actions::default() }),
            checked => checked,
        }
    }

    async fn checked_actions(&self, user: &User, stack: &row::Key, has_plan: bool) -> Result<Actions, UiError> {
        let may_change = self.may(user, Permission::for_stack("patch", stack)).await?;
        // The admission policy for Approvals requires the verb `approve`.
        let may_decide = has_plan
            && self.may(user, Permission::for_all("create", "approvals", Some(&stack.0))).await?
            && self.may(user, Permission::for_stack("approve", stack)).await?;
        Ok(Actions { may_change, may_decide, is_unknown: false })
    }

    async fn may_list(&self, user: &User, namespace: Option<&str>) -> Result<bool, UiError> {
        self.may(user, Permission::for_all("list", "stacks", namespace)).await
    }

    async fn may(&self, user: &User, permission: Permission) -> Result<bool, UiError> {
        let key = (user.token_digest, permission);
        if let Some(is_allowed) = self.cached(&key, Instant::now()) {
            return Ok(is_allowed);
        }
        let is_allowed = may(user, &key.1).await?;
        self.remember(key, is_allowed, Instant::now());
        Ok(is_allowed)
    }

    fn cached(&self, key: &Key, now: Instant) -> Option<bool> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.get(key).filter(|decision| decision.expires > now).map(|decision| decision.is_allowed)
    }

    fn remember(&self, key: Key, is_allowed: bool, now: Instant) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= MAX_CACHED {
            cached.retain(|_, decision| decision.expires > now);
        }
        if cached.len() >= MAX_CACHED {
            cached.clear();
        }
        cached.insert(key, Decision { is_allowed, expires: now + TTL });
    }
}

/// Asks the API server whether a user has a permission.
///
/// # Errors
/// Returns an error if the API server rejects the token or does not respond.
pub(super) async fn may(user: &User, permission: &Permission) -> Result<bool, UiError> {
    let resource_attributes = Some(ResourceAttributes {
        group: Some("pulumi.com".to_owned()),
        resource: Some(permission.resource.to_owned()),
        subresource: permission.subresource.map(str::to_owned),
        verb: Some(permission.verb.to_owned()),
        namespace: permission.namespace.clone(),
        name: permission.name.clone(),
        ..ResourceAttributes::default()
    });
    let spec = SelfSubjectAccessReviewSpec { resource_attributes, ..SelfSubjectAccessReviewSpec::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let api: Api<SelfSubjectAccessReview> = Api::all(user.client.clone());
    let parameters = PostParams::default();
    let review = users::call(|| "check your permissions".to_owned(), api.create(&parameters, &review)).await?;
    Ok(review.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api::{FakeResponse, Log, client};
    use crate::ui::users::Users;

    /// Returns a user who may list the Stacks of these namespaces. `*` means all namespaces.
    fn user(allowed: &'static [&'static str]) -> (User, Log) {
        let (client, log) = client(move |request| {
            let namespace = request.body["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or("*");
            let status = json!({ "allowed": allowed.contains(&namespace) || allowed.contains(&"*") });
            FakeResponse::Json(201, json!({ "metadata": {}, "spec": {}, "status": status }))
        });
        (Users::new(client).with_token("token").unwrap(), log)
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn one_check_is_sufficient_for_a_user_of_the_whole_cluster() {
        let (permissions, (user, log)) = (Permissions::default(), user(&["*"]));
        for _ in 0..2 {
            assert_eq!(permissions.visible(&user, set(&["apps", "infra"])).await.unwrap(), Visible::All);
        }
        assert_eq!(log.all().len(), 1, "the decision is cached");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_sees_only_the_permitted_namespaces() {
        let (permissions, (user, log)) = (Permissions::default(), user(&["apps"]));
        let visible = permissions.visible(&user, set(&["apps", "infra"])).await.unwrap();
        assert!(visible.contains("apps") && !visible.contains("infra") && visible.unchecked() == 0);
        assert_eq!(log.all().len(), 3);
        let one = permissions.visible(&user, set(&["infra"])).await.unwrap();
        assert!(!one.contains("infra"));
        assert_eq!(log.all().len(), 3, "cached");
        tokio::time::advance(TTL).await;
        permissions.visible(&user, set(&["infra"])).await.unwrap();
        assert_eq!(log.all().len(), 4, "a revoked permission is noticed after {TTL:?}");
    }

    #[tokio::test]
    async fn a_user_may_perform_the_actions_that_the_api_server_permits() {
        let rows: [(&[&str], bool, bool, bool, usize); 6] = [
            (&["patch stacks/web"], false, true, false, 1),
            (&["patch stacks/web"], true, true, false, 2),
            (&["create approvals", "approve stacks/web"], true, false, true, 3),
            (&["create approvals", "approve stacks/web"], false, false, false, 1),
            (&["create approvals", "approve stacks/db"], true, false, false, 3),
            (&["patch stacks/db", "get stacks/web"], true, false, false, 2),
        ];
        for (allowed, has_plan, may_change, may_decide, requests) in rows {
            let allowed: Vec<String> = allowed.iter().map(|permission| (*permission).to_owned()).collect();
            let (client, log) = client(move |request| {
                let attributes = &request.body["spec"]["resourceAttributes"];
                let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
                let name = attributes["name"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
                let permission = format!("{} {}{name}", text("verb"), text("resource"));
                let is_allowed = allowed.contains(&permission) && text("namespace") == "apps";
                FakeResponse::Json(201, json!({ "metadata": {}, "spec": {}, "status": { "allowed": is_allowed } }))
            });
            let (permissions, user) = (Permissions::default(), Users::new(client).with_token("token").unwrap());
            let stack = ("apps".to_owned(), "web".to_owned());
            for _ in 0..2 {
                let actions = permissions.actions(&user, &stack, has_plan).await.unwrap();
                assert_eq!(actions, Actions { may_change, may_decide, is_unknown: false }, "{:?}", log.verbs());
            }
            assert_eq!(log.all().len(), requests, "the decisions are cached");
        }
    }

    #[tokio::test]
    async fn the_number_of_checks_is_limited() {
        let (permissions, (user, log)) = (Permissions::default(), user(&[]));
        let all = (0..1000).map(|number| format!("team-{number}")).collect();
        assert_eq!(permissions.visible(&user, all).await.unwrap().unchecked(), 800);
        assert_eq!(log.all().len(), 1 + MAX_NAMESPACES);
    }
}
