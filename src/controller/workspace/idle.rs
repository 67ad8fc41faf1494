//! Observes how long a Workspace has been idle, and the versions of its inputs. Both determine whether the Workspace
//! sleeps.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};

use super::context::Context;
use super::environment;
use super::input_versions::{self, Inputs};
use super::spec_error::SpecError;
use crate::api::auto::{Update, Workspace, WorkspaceSpec};
use crate::api::conditions::{READY, find, is_true};
use crate::api::duration;
use crate::api::pulumi::Stack;
use crate::config::MIN_IDLE_AFTER;
use crate::runtime::reads::ReadError;

/// Prefix of the API version in an owner reference to a Stack.
const OWNER_GROUP: &str = "pulumi.com/";
/// Minimum idle time of a Workspace before its Stack has started the first run in the pod. With many new Stacks, a
/// run can start later than the configured idle time. Without this minimum, the controller would delete the pod
/// before the first run.
const MIN_BEFORE_RUN: SignedDuration = SignedDuration::from_mins(10);

/// Idle time and inputs of a Workspace.
#[derive(Clone, Debug)]
pub(super) struct Idle {
    /// Idle time before the Workspace goes to sleep, or `None` if the Workspace never sleeps.
    pub after: Option<SignedDuration>,
    /// Time of the last activity: a run, a waiting Update, an interactive session, or the start of the pod.
    pub since: Timestamp,
    /// Name of an Update that is not complete. Such an Update requires the pod.
    pub pending_update: Option<String>,
    /// Versions of the objects that the Workspace references. `observe` reads the objects only if the Workspace is
    /// sleeping or can go to sleep now.
    pub inputs: Inputs,
}

impl Idle {
    /// Returns the remaining idle time before the Workspace goes to sleep. The result can be negative. Returns `None`
    /// if the Workspace never sleeps or an Update requires the pod.
    pub(super) fn time_left(&self, now: Timestamp) -> Option<SignedDuration> {
        let after = self.after.filter(|_| self.pending_update.is_none())?;
        Some(after.saturating_sub(now.duration_since(self.since)))
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.time_left(now).is_some_and(|left| !left.is_positive())
    }
}

/// Observes the idle time and the inputs. `is_busy` is `true` if the agent reports a run, an interactive session or
/// an installation.
pub(super) async fn observe(
    workspace: &Workspace,
    updates: &[Arc<Update>],
    is_busy: bool,
    context: &Context,
    now: Timestamp,
) -> Result<Idle, ReadError> {
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let key = (namespace.as_str(), name.as_str());
    let pending_update = updates.iter().find(|update| !update.is_complete()).map(|update| update.name_any());
    let activity = &context.memory.activity;
    let is_kept = workspace.metadata.deletion_timestamp.is_none();
    if is_kept && (is_busy || pending_update.is_some()) {
        activity.record(key, now);
    }
    let since = last_activity(workspace, updates, activity.last(key));
    // `observe::desired` reports an invalid duration.
    let after = after(&workspace.spec, context.default_idle_after).unwrap_or_default();
    let after = after.map(|after| if awaits_first_run(workspace, updates) { after.max(MIN_BEFORE_RUN) } else { after });
    let idle = Idle { after, since, pending_update, inputs: Inputs::NotRead };
    if workspace.is_asleep() && is_kept {
        // Normally, the controller registers these objects when it calls the agent, but a sleeping Workspace has no
        // agent.
        let objects = environment::directories(&workspace.spec).into_keys().collect();
        context.inputs.set_mounts(&namespace, &name, objects);
    }
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let may_fall_asleep = is_true(conditions, READY) && idle.is_due(now);
    match is_kept && (workspace.is_asleep() || may_fall_asleep) {
        true => Ok(Idle { inputs: input_versions::read(workspace, context).await?, ..idle }),
        false => Ok(idle),
    }
}

/// Returns whether a Stack owns the Workspace, and no run has completed since the Workspace became ready.
fn awaits_first_run(workspace: &Workspace, updates: &[Arc<Update>]) -> bool {
    let is_owned = workspace
        .owner_references()
        .iter()
        .any(|owner| owner.kind == Stack::kind(&()) && owner.api_version.starts_with(OWNER_GROUP));
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = find(conditions, READY).map(|ready| ready.last_transition_time.0);
    let ends = updates.iter().filter_map(|update| Some(update.status.as_ref()?.end_time.as_ref()?.0));
    is_owned && ends.max() < ready
}

/// Returns the idle time before the Workspace goes to sleep, or `None` if the Workspace never sleeps.
pub(super) fn after(
    spec: &WorkspaceSpec,
    default: Option<SignedDuration>,
) -> Result<Option<SignedDuration>, SpecError> {
    let Some(value) = spec.idle.as_ref().and_then(|idle| idle.after.as_deref()) else { return Ok(default) };
    let seconds = duration::seconds(value).and_then(|seconds| i64::try_from(seconds).ok());
    match seconds.map(SignedDuration::from_secs) {
        Some(after) if after.is_zero() => Ok(None),
        Some(after) if after >= MIN_IDLE_AFTER => Ok(Some(after)),
        _ => Err(SpecError::IdleAfter { value: value.to_owned() }),
    }
}

/// Returns the time of the last activity. `known` is the time of the last activity that this process has observed.
fn last_activity(workspace: &Workspace, updates: &[Arc<Update>], known: Timestamp) -> Timestamp {
    let ends = updates.iter().filter_map(|update| Some(update.status.as_ref()?.end_time.as_ref()?.0));
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = find(conditions, READY).map(|ready| ready.last_transition_time.0);
    ends.chain(ready).fold(known, Timestamp::max)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("timestamp in range")
    }

    #[test]
    fn the_idle_time_of_the_spec_replaces_the_default() {
        let minutes = |minutes: i64| Some(SignedDuration::from_mins(minutes));
        let of = |idle: serde_json::Value| {
            let spec: WorkspaceSpec = serde_json::from_value(json!({"idle": idle})).expect("valid spec");
            after(&spec, minutes(30)).map_err(|error| error.to_string())
        };
        assert_eq!(of(json!(null)), Ok(minutes(30)));
        assert_eq!(of(json!({})), Ok(minutes(30)));
        assert_eq!(of(json!({"after": "1m"})), Ok(minutes(1)));
        assert_eq!(of(json!({"after": "2h"})), Ok(minutes(120)));
        assert_eq!(of(json!({"after": "0s"})), Ok(None));
        for value in ["59s", "1ms", "soon", ""] {
            let error = of(json!({"after": value})).expect_err("should be rejected");
            assert_eq!(error, format!("invalid idle.after {value:?}: must be at least 1m, or 0s to disable"));
        }
    }

    #[test]
    fn a_new_pod_of_a_stack_awaits_its_first_run() {
        let time = |second: i64| at(second).to_string();
        let workspace = |owners: serde_json::Value| -> Workspace {
            serde_json::from_value(json!({
                "metadata": {"name": "app", "ownerReferences": owners}, "spec": {},
                "status": {"conditions": [{
                    "type": "Ready", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": time(100),
                }]},
            }))
            .expect("valid Workspace")
        };
        let update = |end: Option<i64>| -> Arc<Update> {
            let update = json!({
                "metadata": {"name": "app-1"}, "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
                "status": {"endTime": end.map(time)},
            });
            Arc::new(serde_json::from_value(update).expect("valid Update"))
        };
        let stack = json!([{"apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "app", "uid": "1"}]);
        let rows = [
            ("no run", stack.clone(), vec![], true),
            ("a run in an earlier pod", stack.clone(), vec![update(Some(50))], true),
            ("an open run", stack.clone(), vec![update(Some(50)), update(None)], true),
            ("a run in this pod", stack, vec![update(Some(50)), update(Some(150))], false),
            ("no Stack", json!([]), vec![], false),
        ];
        for (what, owners, updates, expected) in rows {
            assert_eq!(awaits_first_run(&workspace(owners), &updates), expected, "{what}");
        }
    }

    #[test]
    fn the_idle_time_begins_with_the_last_activity() {
        let time = |second: i64| at(second).to_string();
        let workspace: Workspace = serde_json::from_value(json!({
            "metadata": {"name": "app"}, "spec": {},
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": time(100),
            }]},
        }))
        .expect("valid Workspace");
        let update = |end: i64| -> Arc<Update> {
            let update = json!({
                "metadata": {"name": "app-1"}, "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
                "status": {"endTime": time(end)},
            });
            Arc::new(serde_json::from_value(update).expect("valid Update"))
        };
        assert_eq!(last_activity(&workspace, &[], at(50)), at(100), "the pod became ready");
        assert_eq!(last_activity(&workspace, &[update(200), update(150)], at(50)), at(200), "a run ended");
        assert_eq!(last_activity(&workspace, &[update(200)], at(300)), at(300), "a session was open");
    }

    #[test]
    fn the_remaining_idle_time_depends_on_waiting_updates() {
        let idle = |after: Option<i64>, pending_update: Option<&str>| Idle {
            after: after.map(SignedDuration::from_secs),
            since: at(1000),
            pending_update: pending_update.map(str::to_owned),
            inputs: Inputs::NotRead,
        };
        let left = |idle: Idle| idle.time_left(at(1060)).map(|left| left.as_secs());
        assert_eq!(left(idle(Some(90), None)), Some(30));
        assert_eq!(left(idle(Some(60), None)), Some(0));
        assert!(idle(Some(60), None).is_due(at(1060)) && !idle(Some(61), None).is_due(at(1060)));
        assert_eq!(left(idle(Some(60), Some("app-2"))), None);
        assert_eq!(left(idle(None, None)), None);
    }
}
