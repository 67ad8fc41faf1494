//! Restrictions on the start of a due run: pauses and schedules. An open run has no restrictions.

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::auto::UpdateKind;
use crate::api::conditions::stack_reason;
use crate::api::names::ANNOTATION_SCHEDULE;
use crate::api::pulumi::RunSchedule;
use crate::controller::namespaces::RunSettings;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::run_windows::{self, Opening};

/// Reason why a due run does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restriction {
    /// The run waits until a pause ends or a schedule permits the run.
    Waiting(Held),
    /// A schedule is invalid. Contains the message.
    Invalid(String),
}

/// Run that waits until a pause ends or a schedule permits the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Reason for the conditions.
    pub reason: &'static str,
    pub message: String,
    /// Time at which the run may start, or `None` if this time is unknown.
    pub until: Option<Timestamp>,
}

/// Returns the restriction on a run of this kind. Returns `None` if the run may start.
pub fn restriction(observed: &Observed, kind: UpdateKind, now: Timestamp) -> Option<Restriction> {
    let namespace = observed.stack.namespace().unwrap_or_default();
    let run = RestrictedRun { kind, namespace: &namespace, schedule: observed.stack.spec.schedule.as_ref() };
    run.restriction(&observed.run_settings, now)
}

/// Properties of a run that determine whether a restriction applies.
#[derive(Clone, Copy, Debug)]
pub struct RestrictedRun<'a> {
    pub kind: UpdateKind,
    pub namespace: &'a str,
    /// Schedule in the Stack's spec.
    pub schedule: Option<&'a RunSchedule>,
}

impl RestrictedRun<'_> {
    /// Returns the restriction on the run. Returns `None` if the run may start. Schedules do not apply to previews,
    /// which include plans and drift checks.
    pub fn restriction(self, settings: &RunSettings, now: Timestamp) -> Option<Restriction> {
        if let Some(message) = settings.pause.clone() {
            return Some(Restriction::Waiting(Held { reason: stack_reason::PAUSED, message, until: None }));
        }
        if self.kind == UpdateKind::Preview {
            return None;
        }
        let origin = format!("annotation {ANNOTATION_SCHEDULE} of namespace {}", self.namespace);
        let of_namespace = settings.schedule.as_deref().map(run_windows::parse).transpose();
        let of_namespace = match of_namespace {
            Ok(schedule) => schedule,
            Err(why) => return Some(Restriction::Invalid(format!("{origin}: {why}"))),
        };
        let schedules: Vec<(&str, &RunSchedule)> = [
            self.schedule.map(|schedule| ("spec.schedule", schedule)),
            of_namespace.as_ref().map(|schedule| (origin.as_str(), schedule)),
        ]
        .into_iter()
        .flatten()
        .collect();
        match run_windows::opening(&schedules, now) {
            Opening::Open => None,
            Opening::Closed { until, why } => {
                let message = format!("{} waits: {why}", self.kind.as_str());
                Some(Restriction::Waiting(Held { reason: stack_reason::OUTSIDE_SCHEDULE, message, until }))
            }
            Opening::Invalid(message) => Some(Restriction::Invalid(message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::pulumi::Stack;

    const FREEZE: &str = "freezes: [{from: '2026-01-01T00:00:00Z', to: '2026-01-03T00:00:00Z', reason: audit}]";

    fn observed(schedule: serde_json::Value, settings: RunSettings) -> Observed {
        let stack: Stack = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "web", "namespace": "apps"},
            "spec": {"stack": "dev", "schedule": schedule},
        }))
        .unwrap();
        Observed { run_settings: settings, ..Observed::of(stack) }
    }

    fn settings(pause: Option<&str>, schedule: Option<&str>) -> RunSettings {
        RunSettings { pause: pause.map(str::to_owned), schedule: schedule.map(str::to_owned), ..RunSettings::default() }
    }

    #[test]
    fn pauses_apply_to_all_runs_and_schedules_only_to_changes() {
        // Columns: the settings, the restriction on a run that changes resources, and the restriction on a preview.
        let rows = [
            ("no settings", RunSettings::default(), None, None),
            ("pause", settings(Some("paused"), None), Some("Paused"), Some("Paused")),
            ("freeze", settings(None, Some(FREEZE)), Some("OutsideSchedule"), None),
            ("both", settings(Some("audit"), Some(FREEZE)), Some("Paused"), Some("Paused")),
            ("invalid", settings(None, Some("window: []")), Some("invalid"), None),
        ];
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        for (name, settings, expected, expected_of_preview) in rows {
            let observed = observed(json!(null), settings);
            for (kind, expected) in [(UpdateKind::Up, expected), (UpdateKind::Preview, expected_of_preview)] {
                let found = restriction(&observed, kind, now);
                let reason = found.as_ref().map(|found| match found {
                    Restriction::Waiting(held) => held.reason,
                    Restriction::Invalid(_) => "invalid",
                });
                assert_eq!(reason, expected, "{name}: {found:?}");
            }
        }
    }

    #[test]
    fn the_message_contains_the_reason_and_the_end() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let message = |settings| match restriction(&observed(json!(null), settings), UpdateKind::Up, now) {
            Some(Restriction::Waiting(held)) => (held.message, held.until.map(|until| until.to_string())),
            other => panic!("{other:?}"),
        };
        assert_eq!(message(settings(Some("audit"), None)), ("audit".to_owned(), None));
        let (frozen, until) = message(settings(None, Some(FREEZE)));
        assert!(frozen.contains("audit") && frozen.contains("namespace apps"), "{frozen}");
        assert_eq!(until.as_deref(), Some("2026-01-03T00:00:00Z"));
        let both = json!({"windows": [{"start": "10:00", "end": "12:00"}]});
        let observed = observed(both, settings(None, Some(FREEZE)));
        let Some(Restriction::Waiting(held)) = restriction(&observed, UpdateKind::Destroy, now) else { panic!("open") };
        assert_eq!(held.until.map(|until| until.to_string()).as_deref(), Some("2026-01-03T10:00:00Z"));
    }
}
