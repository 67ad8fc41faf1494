//! `doctor`: checks the cluster, the controller, the user's permissions and the Stacks.

mod checks;
mod migration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::ListParams;
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;

use crate::plugin::args::{DoctorFlags, Format, ListFlags};
use crate::plugin::cluster::Cluster;
use crate::plugin::controller;
use crate::plugin::error::PluginError;
use crate::plugin::screen::{self, Screen};
use crate::plugin::select;

use checks::{Check, PERMISSIONS, Permission};

/// Checks the cluster, the controller, the user's permissions and the Stacks.
///
/// # Errors
///
/// Prints the results of all checks, and then returns an error if a check has failed.
pub async fn run(cluster: &Cluster, flags: &DoctorFlags, format: Format) -> Result<(), PluginError> {
    if flags.migration {
        return report_migration(cluster, flags, format).await;
    }
    let client = cluster.client();
    let mut report = Report::default();
    let version = cluster.call(|| "read the version of the API server".to_owned(), client.apiserver_version()).await;
    let is_reachable = version.is_ok();
    report.checks.push(checks::api_server(version.map(|version| version.git_version)));
    if is_reachable {
        let groups = cluster.call(|| "list the API groups".to_owned(), client.list_api_groups()).await;
        report.checks.push(checks::kinds(groups.map(|groups| checks::served(&groups))));
        report.checks.extend(checks::controllers(controller::find(cluster).await));
        report.checks.push(checks::permissions(missing_permissions(cluster).await, cluster.namespace()));
        let stacks = cluster.list::<Stack>(&cluster.scope(flags.all_namespaces), ListParams::default()).await;
        let namespace = (!flags.all_namespaces).then(|| cluster.namespace());
        report.checks.extend(checks::stacks(stacks, namespace));
    }
    screen::print(&report, format)?;
    match report.failures() {
        0 => Ok(()),
        1 => Err(PluginError::Unhealthy("1 check has failed".to_owned())),
        count => Err(PluginError::Unhealthy(format!("{count} checks have failed"))),
    }
}

/// Lists what the user must change in the Stacks of the Pulumi Kubernetes Operator before a migration.
async fn report_migration(cluster: &Cluster, flags: &DoctorFlags, format: Format) -> Result<(), PluginError> {
    let list = ListFlags { stacks: Vec::new(), selector: None, all_namespaces: flags.all_namespaces };
    let stacks = select::listed(cluster, &list).await?;
    let report = migration::Report::of(&stacks, (!flags.all_namespaces).then(|| cluster.namespace()));
    screen::print(&report, format)?;
    match report.affected() {
        0 => Ok(()),
        1 => Err(PluginError::Unhealthy("1 Stack requires an action before the migration".to_owned())),
        count => Err(PluginError::Unhealthy(format!("{count} Stacks require an action before the migration"))),
    }
}

/// Returns the permissions that the user lacks in the namespace.
async fn missing_permissions(cluster: &Cluster) -> Result<Vec<&'static Permission>, PluginError> {
    let mut missing = Vec::new();
    for permission in &PERMISSIONS {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes(permission, cluster.namespace())),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = cluster.review(&review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(permission);
        }
    }
    Ok(missing)
}

fn attributes(permission: &Permission, namespace: &str) -> ResourceAttributes {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ResourceAttributes {
        group: text(permission.group),
        namespace: text(namespace),
        resource: text(permission.resource),
        subresource: text(permission.subresource),
        verb: text(permission.verb),
        ..ResourceAttributes::default()
    }
}

/// Results of all checks.
#[derive(Default, Serialize)]
struct Report {
    checks: Vec<Check>,
}

impl Report {
    fn failures(&self) -> usize {
        self.checks.iter().filter(|check| check.is_failure()).count()
    }
}

impl Screen for Report {
    fn text(&self) -> String {
        self.checks.iter().map(Check::text).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::controller::{Controller, VERSION};
    use crate::plugin::fixtures::{condition, stack};
    use crate::plugin::reference_tests::assert_example;

    #[test]
    fn the_report_lists_all_checks_with_their_actions() {
        let controller = Controller {
            namespace: "flux-system".to_owned(),
            name: "pulumi-controller".to_owned(),
            image: format!("ghcr.io/pulumi-controller/pulumi-controller:v{VERSION}"),
            available: 1,
            replicas: 1,
        };
        let stalled = json!({ "conditions": [condition("Stalled", "True", "PendingCreates", "")] });
        let stacks = vec![stack("web", &json!({}), &stalled)];
        let mut report = Report::default();
        report.checks.push(checks::api_server(Ok("v1.33.1".to_owned())));
        report.checks.push(checks::kinds(Ok(pulumi_controller::api::definitions::api_versions())));
        report.checks.extend(checks::controllers(Ok(vec![controller])));
        let missing = PERMISSIONS.iter().filter(|permission| permission.verb == "approve").collect();
        report.checks.push(checks::permissions(Ok(missing), "apps"));
        report.checks.extend(checks::stacks(Ok(stacks), Some("apps")));
        assert_example("kubectl pulumi doctor", &report.text().replace(VERSION, "0.1.0"));
        assert_eq!(report.failures(), 1);
    }
}
